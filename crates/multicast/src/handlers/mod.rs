//! What a process does: which event changes which part of its state, and what it says then.

mod deliver;
mod dispatch;
mod dissemination;
mod epoch;
mod fence;
mod hybrid;
mod idle;
mod linearizable;
mod memory;
mod normal;
pub(crate) mod obstacles;
mod passing;
mod reach;
mod reconfigure;
mod remote;
mod retransmission;
mod snapshot;
mod stability;
