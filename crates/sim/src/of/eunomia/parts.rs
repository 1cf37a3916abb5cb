//! What an explanation looks at in a process: its parts of Eunomia, whatever else it has.

use crate::lossy::Lossy;
use meridian_core::{Process, RegionId};
use meridian_eunomia::member::Output;
use meridian_eunomia::{
    Inbox, Member, Message, Peer, Receiver, Replica, Role, Source, Timestamp, shard,
};

/// A process with parts of Eunomia in it.
pub trait Parts: Process {
    /// The process that has the source with this number.
    fn at_source(region: RegionId, number: u16) -> Self::Peer;

    /// What it says to another of Eunomia.
    fn said(message: &Self::Message) -> Option<&Message>;

    /// The update of another region that it tells to be applied: where it was made, its timestamp,
    /// and whether its key has changed.
    fn applied(output: &Self::Output) -> Option<(RegionId, Timestamp, bool)>;

    /// The region of this process, which is called `me`.
    fn region(&self, me: Self::Peer) -> RegionId;

    /// What makes updates.
    fn source(&self) -> Option<&Source>;

    /// A replica of the service.
    fn service(&self) -> Option<&Replica>;

    /// The receiver.
    fn receiver(&self) -> Option<&Receiver>;

    /// What applies updates of other regions.
    fn inbox(&self) -> Option<&Inbox>;
}

impl Parts for Member {
    fn at_source(region: RegionId, number: u16) -> Peer {
        Peer { region, role: Role::Shard(number) }
    }

    fn said(message: &Message) -> Option<&Message> {
        Some(message)
    }

    fn applied(output: &Output) -> Option<(RegionId, Timestamp, bool)> {
        match output {
            Output::Shard(shard::Output::Applied { origin, ts, changed }) => {
                Some((*origin, *ts, *changed))
            }
            _ => None,
        }
    }

    fn region(&self, me: Peer) -> RegionId {
        me.region
    }

    fn source(&self) -> Option<&Source> {
        match self {
            Member::Shard(shard) => Some(shard.source()),
            Member::Replica(_) | Member::Receiver(_) => None,
        }
    }

    fn service(&self) -> Option<&Replica> {
        match self {
            Member::Replica(replica) => Some(replica),
            Member::Shard(_) | Member::Receiver(_) => None,
        }
    }

    fn receiver(&self) -> Option<&Receiver> {
        match self {
            Member::Receiver(receiver) => Some(receiver),
            Member::Shard(_) | Member::Replica(_) => None,
        }
    }

    fn inbox(&self) -> Option<&Inbox> {
        match self {
            Member::Shard(shard) => Some(shard.inbox()),
            Member::Replica(_) | Member::Receiver(_) => None,
        }
    }
}

impl<P: Parts> Parts for Lossy<P> {
    fn at_source(region: RegionId, number: u16) -> P::Peer {
        P::at_source(region, number)
    }

    fn said(message: &P::Message) -> Option<&Message> {
        P::said(message)
    }

    fn applied(output: &P::Output) -> Option<(RegionId, Timestamp, bool)> {
        P::applied(output)
    }

    fn region(&self, me: P::Peer) -> RegionId {
        self.inner.region(me)
    }

    fn source(&self) -> Option<&Source> {
        self.inner.source()
    }

    fn service(&self) -> Option<&Replica> {
        self.inner.service()
    }

    fn receiver(&self) -> Option<&Receiver> {
        self.inner.receiver()
    }

    fn inbox(&self) -> Option<&Inbox> {
        self.inner.inbox()
    }
}
