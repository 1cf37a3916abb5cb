//! Reads that wait: for an index, for a confirmation, for execution.
//!
//! `reads.rs` beside this folder has the handlers.

use crate::message::{Answer, Output};
use crate::view::Instance;
use bytes::Bytes;
use meridian_core::{NodeId, Outbox, Process, ProcessId, Time};
use std::collections::{BTreeMap, VecDeque};

/// A question of an own client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Question {
    pub token: u64,
    pub question: Bytes,
}

/// Who wants to know an index.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Who {
    Own(Question),
    Follower { node: NodeId, id: u64 },
}

/// A read whose leader must show that it led when it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Unconfirmed {
    pub asked: Time,
    pub index: Instance,
    pub who: Who,
}

/// Reads that wait: for an index, for a confirmation, for execution.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Reads {
    /// At the leader, in the order in which they were asked.
    pub unconfirmed: VecDeque<Unconfirmed>,
    /// At a follower: the leader is asked for the index of these; when that was done last.
    pub asked: BTreeMap<u64, (Question, Time)>,
    pub next_id: u64,
    /// Answered when all below the index is executed.
    pub indexed: BTreeMap<Instance, Vec<Question>>,
    pub waiting: usize,
    /// When all were asked last whether this replica leads.
    pub probed: Time,
}

impl Reads {
    /// A promise has told of what may be decided below `index`.
    pub fn raise_indexes(&mut self, index: Instance) {
        self.unconfirmed.iter_mut().for_each(|read| read.index = read.index.max(index));
    }

    /// The replica leads no more: who asked it asks `leader`.
    pub fn lose_leadership<P: Process<Peer = ProcessId, Output = Output>>(
        &mut self,
        leader: Option<NodeId>,
        out: &mut Outbox<P>,
    ) {
        for unconfirmed in self.unconfirmed.drain(..) {
            self.waiting -= 1;
            if let Who::Own(Question { token, .. }) = unconfirmed.who {
                out.output(Output::Read { token, answer: Answer::Redirect(leader) });
            }
        }
    }
}
