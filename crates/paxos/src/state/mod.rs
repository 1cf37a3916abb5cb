//! What a replica has: one part a file, none of which knows the replica. The handlers, one role of
//! the report a file, stand beside this folder and borrow the parts that they need.

pub(crate) mod catch_up;
pub(crate) mod detector;
pub(crate) mod proposer;
pub(crate) mod reads;
pub(crate) mod recovery;
pub(crate) mod requests;
