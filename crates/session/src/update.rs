//! One update of a session: its name, and how far it is.

use crate::names::{Name, Names, Shard};
use meridian_core::{GroupId, MessageId, Time};
use meridian_fs::Vector;
use meridian_host::update::{Change, Payload};
use meridian_multicast::Start;
use std::collections::BTreeSet;

/// What is being done for an update.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nothing, until its owner says more.
    #[default]
    Held,
    /// First, a message is to cancel what was given up and touches the same.
    Cancelling {
        /// To these groups.
        dest: Vec<GroupId>,
        /// Under this name.
        name: Name,
    },
    /// Its groups are asked.
    Sent,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Update {
    change: Change,
    start: Start,
    pub(crate) stage: Stage,
    pub(crate) dest: Vec<GroupId>,
    pub(crate) name: Name,
    /// What it touches.
    pub(crate) keys: BTreeSet<u64>,
    /// Whether its groups were asked under this name.
    pub(crate) was_sent: bool,
    /// Whether they were asked anew after they had not answered in time.
    pub(crate) was_repeated: bool,
    /// How often it was named anew.
    pub(crate) renamed: u32,
}

impl Update {
    /// The update that makes `change`, of a client that has seen `vector`; `random` is drawn anew.
    pub fn named(
        change: Change,
        vector: &Vector,
        names: &mut Names,
        (now, random): (Time, u64),
    ) -> Update {
        let dest: Vec<GroupId> = change.update.partitions().into_iter().collect();
        let name = names.begin(&dest, now, random, |id| change.update.keys(id));
        let keys = change.update.keys(name.id);
        let start = start(&name, &dest, vector, Some(change.clone()));
        Update {
            change,
            start,
            stage: Stage::Held,
            dest,
            name,
            keys,
            was_sent: false,
            was_repeated: false,
            renamed: 0,
        }
    }

    /// Names it anew: no group will ever do it under the name that it has.
    pub fn rename(&mut self, vector: &Vector, names: &mut Names, drawn: (Time, u64)) {
        let renamed = self.renamed + 1;
        *self = Update { renamed, ..Update::named(self.change.clone(), vector, names, drawn) };
    }

    /// What its groups are sent.
    pub fn send(&mut self) -> Start {
        self.stage = Stage::Sent;
        self.was_repeated |= self.was_sent;
        self.was_sent = true;
        self.start.clone()
    }

    /// What the groups of `shard` are sent before: it cancels what was given up there and touches
    /// the same.
    pub fn cancel(&mut self, shard: &Shard, vector: &Vector, names: &Names, random: u64) -> Start {
        let name = names.cancel(shard, &self.keys, random);
        let start = start(&name, &shard.dest, vector, None);
        self.stage = Stage::Cancelling { dest: shard.dest.clone(), name };
        start
    }

    /// Whether the groups are asked for that message now.
    pub fn waits_for(&self, id: MessageId) -> bool {
        match &self.stage {
            Stage::Held => false,
            Stage::Cancelling { name, .. } => name.id == id,
            Stage::Sent => self.name.id == id,
        }
    }
}

fn start(name: &Name, dest: &[GroupId], vector: &Vector, change: Option<Change>) -> Start {
    let payload = Payload { vector: vector.clone(), cancels: name.cancels.clone(), change };
    payload.into_start(name.id, name.low, dest)
}
