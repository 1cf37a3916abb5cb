//! A sequencer, alone or as a chain: what Eunomia is compared with (Eunomia, section 4.2).
//!
//! A partition asks the sequencer for a number before it answers an update, so the sequencer is in
//! the way of each update. Replicas form a chain (chain replication): the head takes a request and
//! gives it its number, each replica passes it on, and the tail answers the partition. One replica
//! is head and tail.
//!
//! Invariant: the tail gives the numbers from 0 on, none twice and none left out.

use crate::batch::Nothing;
use meridian_core::{Event, NodeId, Outbox, Process, Time};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;

/// What is said of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    /// A partition to the head: it wants a number.
    Ask {
        /// To be given back.
        token: u64,
    },
    /// Down the chain: this request has this number.
    Pass {
        /// The partition that asks.
        of: NodeId,
        /// Of the request.
        token: u64,
        /// Its number.
        number: u64,
    },
    /// The tail to a partition.
    Number {
        /// Of the request.
        token: u64,
        /// Its number.
        number: u64,
    },
}

/// What a partition is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ask {
    /// To be given back.
    pub token: u64,
}

/// What a partition has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Numbered {
    /// Of the request.
    pub token: u64,
    /// Its number.
    pub number: u64,
}

/// What a node does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Role {
    /// A replica of the sequencer, and who comes behind it in the chain.
    Replica {
        behind: Option<NodeId>,
        /// The next number; the head's counts.
        next: u64,
    },
    /// It asks the head.
    Partition { head: NodeId },
}

/// A replica of a sequencer, or a partition that asks it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sequencer {
    me: NodeId,
    role: Role,
}

impl Sequencer {
    /// The node `me`: the first `replicas` nodes are the chain, in order, all others partitions.
    pub fn new(me: NodeId, replicas: u16) -> Sequencer {
        let behind = (me.0 + 1 < replicas).then_some(NodeId(me.0 + 1));
        let role = match me.0 < replicas {
            true => Role::Replica { behind, next: 0 },
            false => Role::Partition { head: NodeId(0) },
        };
        Sequencer { me, role }
    }

    fn pass(&mut self, of: NodeId, token: u64, number: u64, out: &mut Outbox<Self>) {
        let Role::Replica { behind, next } = &mut self.role else { return };
        assert!(number == *next, "number {number} of {of:?} at {:?}, expected {next}", self.me);
        *next += 1;
        match *behind {
            Some(behind) => out.send(behind, Message::Pass { of, token, number }),
            None => out.send(of, Message::Number { token, number }),
        }
    }
}

impl Process for Sequencer {
    type Peer = NodeId;
    type Message = Message;
    type Record = Nothing;
    type Command = Ask;
    type Output = Numbered;
    type Timer = Infallible;

    fn step(&mut self, _: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Message { from, message: Message::Ask { token } } => {
                let Role::Replica { next, .. } = self.role else { return };
                self.pass(from, token, next, out);
            }
            Event::Message { message: Message::Pass { of, token, number }, .. } => {
                self.pass(of, token, number, out);
            }
            Event::Message { message: Message::Number { token, number }, .. } => {
                out.output(Numbered { token, number });
            }
            Event::Command(Ask { token }) => {
                if let Role::Partition { head } = self.role {
                    out.send(head, Message::Ask { token });
                }
            }
            Event::Timer(never) => match never {},
            Event::Started | Event::Restarted(_) | Event::Idle => {}
        }
    }

    fn replay(&mut self, record: Nothing) {
        match record {}
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Nothing> + Send> {
        Box::new(std::iter::empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_core::Effect;
    use std::collections::VecDeque;

    /// Two partitions ask in turn; what is sent arrives in order.
    fn numbers(replicas: u16) -> Vec<(NodeId, Numbered)> {
        let all = replicas + 2;
        let mut nodes: Vec<_> = (0..all).map(|me| Sequencer::new(NodeId(me), replicas)).collect();
        let ask = |token: u64| {
            let partition = NodeId(replicas + (token % 2) as u16);
            (partition, Event::Command(Ask { token }))
        };
        let mut events: VecDeque<_> = (0..6).map(ask).collect();
        let mut got = Vec::new();
        while let Some((at, event)) = events.pop_front() {
            let mut out = Outbox::new();
            nodes[usize::from(at.0)].step(Time(0), event, &mut out);
            for effect in out.drain() {
                match effect {
                    Effect::Send { to, message } => {
                        events.push_back((to, Event::Message { from: at, message }));
                    }
                    Effect::Output(numbered) => got.push((at, numbered)),
                    other => panic!("a sequencer only sends: {other:?}"),
                }
            }
        }
        got
    }

    #[test]
    fn each_request_gets_a_number_of_its_own_and_none_is_left_out() {
        for replicas in [1, 3] {
            let got = numbers(replicas);
            let mut all: Vec<u64> = got.iter().map(|(_, numbered)| numbered.number).collect();
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2, 3, 4, 5], "{replicas} replicas");
            let own = |(at, numbered): &(NodeId, Numbered)| {
                at.0 == replicas + (numbered.token % 2) as u16
            };
            assert!(got.iter().all(own), "{got:?}");
        }
    }
}
