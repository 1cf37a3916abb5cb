//! What all multicast protocols have in common: enough for a runtime, the simulator and a bench to
//! use one without knowing which.

use crate::message::{Command, Delivery, Output, Start};
use crate::process::PrimCast;
use meridian_core::{Process, ProcessId};

/// An atomic multicast protocol.
pub trait Protocol: Process<Peer = ProcessId> {
    /// The command that a-multicasts a message: the process is its sender.
    fn multicast(start: Start) -> Self::Command;

    /// The delivery that an output is, if it is one.
    fn delivery(output: Self::Output) -> Option<Delivery>;
}

impl Protocol for PrimCast {
    fn multicast(start: Start) -> Command {
        Command::Multicast(start)
    }

    fn delivery(output: Output) -> Option<Delivery> {
        match output {
            Output::Deliver(delivery) => Some(delivery),
            Output::Duplicate(_)
            | Output::Settled(_)
            | Output::Ended { .. }
            | Output::Refused { .. }
            | Output::SnapshotWanted { .. }
            | Output::Install { .. } => None,
        }
    }
}
