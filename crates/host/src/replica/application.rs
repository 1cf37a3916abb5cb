//! The state of a replica beside its multicast, as it is written and given to others.

use super::{Replica, Wish};
use crate::sessions::Sessions;
use bytes::Bytes;
use meridian_core::{GroupId, MessageId};
use meridian_fs::Partition;
use meridian_fs::vote::Vote;
use meridian_multicast as multicast;
use serde::{Deserialize, Serialize};

/// Copies of that, which can be encoded later, on another thread.
#[derive(Clone, Debug)]
pub struct Frozen {
    partition: Partition,
    sessions: Sessions,
    beside: Beside,
}

/// What programs before level 7 do not know. It comes last: they do not read that far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Beside {
    /// Of the partition of a lost group: the votes of that which are known.
    inherited: Option<Vec<(MessageId, Vote)>>,
    /// Votes of other groups that the state rests on, or will.
    heard: Vec<((MessageId, GroupId), Vote)>,
}

impl Frozen {
    /// The bytes.
    pub fn encode(&self) -> Bytes {
        let Frozen { partition, sessions, beside } = self;
        let all = postcard::to_stdvec(&(partition, sessions, beside));
        all.expect("a state can be encoded").into()
    }
}

impl Replica {
    /// The state of partition and sessions, in bytes.
    pub fn application(&self) -> Bytes {
        self.frozen().encode()
    }

    /// Copies that can be encoded later.
    pub fn frozen(&self) -> Frozen {
        let inherited = self.partition.inherited();
        let beside = Beside {
            inherited: inherited
                .map(|votes| votes.iter().map(|of| (*of.0, of.1.clone())).collect()),
            heard: self.votes.heard().map(|(of, vote)| (*of, vote.clone())).collect(),
        };
        Frozen { partition: self.partition.clone(), sessions: self.sessions.clone(), beside }
    }

    /// Takes over what [`Replica::application`] gave, here or elsewhere.
    ///
    /// # Panics
    /// If the bytes are not that: they passed a checksum, so a program of another version wrote
    /// them.
    pub fn install(&mut self, application: &[u8], out: &mut Vec<Wish>) {
        let read = postcard::take_from_bytes::<(Partition, Sessions)>(application);
        let ((mut partition, sessions), rest) = read.expect("a state of this version");
        let beside = match rest {
            [] => Beside::default(), // Of a program before level 7.
            rest => postcard::from_bytes(rest).expect("a state of this version"),
        };
        partition.set_inherited(match beside.inherited {
            Some(votes) => Some(votes.into_iter().collect()),
            None => self.partition.inherited().cloned(),
        });
        self.replace_partition(partition);
        self.sessions = sessions;
        for ((id, group), vote) in beside.heard {
            // What is known of a lost group was reported: nothing comes to it.
            if self.multicast.fenced(group).is_none() && !self.multicast.has_dropped(id) {
                self.votes.keep(id, group, &vote);
            }
        }
        for (ts, id) in self.partition.waiting_for_others() {
            self.multicast.hold((multicast::Timestamp(ts.0), id));
        }
        self.multicast.handled(self.partition.delivered());
        let known =
            |id: &MessageId| self.sessions.outcome(*id).is_some() || self.sessions.has_ended(*id);
        let answered: Vec<_> = self.updates.keys().copied().filter(known).collect();
        answered.into_iter().for_each(|id| self.on_duplicate(id, out));
        self.vote_again(out);
        self.on_let_go(out);
        self.answer_reads(out);
    }
}
