//! What a [`crate::Member`] needs to know of a protocol beside what all have in common.

use crate::application::Networked;
use bytes::Bytes;
use meridian_core::{GroupId, MessageId, Position, ProcessId};
use meridian_multicast::{Command, Delivery, Output, PrimCast, Protocol, Timestamp};

/// What a process has told, as far as its owner must do something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// A message is delivered.
    Delivered(Delivery),
    /// The owner's state is to be replaced by this one, which contains so many deliveries.
    Install {
        /// How many.
        position: Position,
        /// What another's owner gave.
        state: Bytes,
    },
    /// A peer needs the owner's state.
    Wanted(ProcessId),
    /// A message that was asked for again has been delivered before.
    Duplicate(MessageId),
    /// A message was not multicast, and will not be: this group cannot be reached.
    Refused(MessageId, GroupId),
    /// Nothing.
    Nothing,
}

/// A protocol that can be a [`crate::Member`].
pub trait Hosted: Networked + Protocol + Send {
    /// All messages with a lower timestamp have been delivered here (thesis, section 4.4.2).
    fn safe_ts(&self) -> Timestamp;

    /// How many messages it has delivered.
    fn position(&self) -> Position;

    /// The timestamp of a message that is among those, if its sender still waits for it.
    fn delivered_at(&self, id: MessageId) -> Option<Timestamp>;

    /// How much memory the messages take that it keeps to order or repeat them, in bytes.
    fn log_bytes(&self) -> usize;

    /// Rebuilds what `record` says; tells what the owner was told then.
    fn recover(&mut self, record: Self::Record) -> Told;

    /// What an output says.
    fn told(output: Self::Output) -> Told;

    /// The command that gives a peer the owner's state of this position.
    fn offer(to: ProcessId, position: Position, state: Bytes) -> Self::Command;
}

impl Hosted for PrimCast {
    fn safe_ts(&self) -> Timestamp {
        PrimCast::safe_ts(self)
    }

    fn position(&self) -> Position {
        self.delivered()
    }

    fn delivered_at(&self, id: MessageId) -> Option<Timestamp> {
        PrimCast::delivered_at(self, id)
    }

    fn log_bytes(&self) -> usize {
        PrimCast::log_bytes(self)
    }

    fn recover(&mut self, record: Self::Record) -> Told {
        PrimCast::recover(self, record).map_or(Told::Nothing, Self::told)
    }

    fn told(output: Output) -> Told {
        match output {
            Output::Deliver(delivery) => Told::Delivered(delivery),
            Output::Install { position, application } => {
                Told::Install { position, state: application }
            }
            Output::SnapshotWanted { to } => Told::Wanted(to),
            Output::Refused { id, group } => Told::Refused(id, group),
            Output::Duplicate(id) => Told::Duplicate(id),
            // A member is a destination of all that it multicasts.
            Output::Settled(_) | Output::Ended { .. } => Told::Nothing,
        }
    }

    fn offer(to: ProcessId, position: Position, state: Bytes) -> Command {
        Command::Snapshot { to, position, application: state }
    }
}
