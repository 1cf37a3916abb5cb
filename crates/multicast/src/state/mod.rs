//! What a process knows, part by part. No part knows of another process, or of the handlers.

pub(crate) mod clock;
pub mod clocks;
pub(crate) mod closure;
pub(crate) mod deliveries;
pub mod done;
pub mod epochs;
pub(crate) mod fences;
pub(crate) mod linearizable;
pub mod log;
pub mod members;
pub(crate) mod memory;
pub(crate) mod outbound;
pub(crate) mod partners;
mod prefetch;
pub mod queue;
pub(crate) mod reach;
pub(crate) mod recovery;
pub(crate) mod relay;
pub mod remote;
pub(crate) mod replication;
pub(crate) mod retransmission;
pub mod runs;
pub(crate) mod stability;
pub(crate) mod starts;
pub(crate) mod stream;
pub(crate) mod transfer;
