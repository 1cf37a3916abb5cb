//! Messages that are delivered and change nothing, whatever the tree is like.

use super::{Effect, Ending, Partition};
use crate::FsError;
use crate::operation::Update;
use crate::vote::Vote;
use meridian_core::{MessageId, Position, Stamp};
use std::collections::BTreeSet;

impl Partition {
    /// A message was delivered that changes nothing, because its payload makes no sense.
    pub fn skip(&mut self, id: MessageId, ts: Stamp, out: &mut Vec<Effect>) {
        self.delivered = Position(self.delivered.0 + 1);
        self.pending.take_early(id);
        self.finish((ts, id), Ending::of(&BTreeSet::new(), Err(FsError::Invalid)), out);
    }

    /// A message was delivered that must not take effect, as its client gave it up before: this
    /// partition votes no.
    pub fn refuse(&mut self, id: MessageId, ts: Stamp, update: &Update, out: &mut Vec<Effect>) {
        self.delivered = Position(self.delivered.0 + 1);
        self.pending.take_early(id);
        let mut others = update.partitions();
        others.remove(&self.tree.group);
        for other in &others {
            self.vector.raise(*other, ts);
        }
        if !others.is_empty() {
            let vote = Vote { result: Err(FsError::Expired), held: false };
            self.own_votes.insert(id, vote.clone());
            out.push(Effect::Vote { to: others.into_iter().collect(), id, vote });
        }
        self.finish((ts, id), Ending::of(&BTreeSet::new(), Err(FsError::Expired)), out);
    }
}
