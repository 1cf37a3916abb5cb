//! What commands have in common where they meet the user and the operating system.
//!
//! | module | what |
//! | --- | --- |
//! | [`output`] | tables, notes, and errors in one line |
//! | [`log`] | how much is logged, in which format, and how that changes at run time |
//! | [`signals`] | the signals that ask a command to end |
//! | [`manager`] | the service manager, which is told when a service is ready |
//! | `child` | processes that end with the one that started them |
//!
//! Deliberately absent: a word of any protocol, and of the file system.

mod child;
pub mod log;
pub mod manager;
pub mod output;
pub mod signals;

pub use child::die_with_parent;
