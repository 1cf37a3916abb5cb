//! One update of a session: its name, and how far it is.

use crate::mutation::Mutation;
use crate::names::{Name, Names, Shard};
use meridian_core::{ClientId, GroupId, MessageId, Time};
use meridian_fs::{Place, Query, Vector};
use meridian_host::api::RequestBody;
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
    holder: (ClientId, bool),
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
    /// The groups that have answered.
    pub(crate) answered: BTreeSet<GroupId>,
    /// Those without whose answers it is not acknowledged.
    pub(crate) needed: BTreeSet<GroupId>,
    /// What is asked with it.
    pub(crate) queries: Vec<Query>,
}

impl Update {
    /// The update that makes `change`, of a client that has seen `vector`; `random` is drawn anew.
    pub fn named(
        change: Change,
        holder: (ClientId, bool),
        vector: &Vector,
        names: &mut Names,
        (now, random): (Time, u64),
    ) -> Update {
        let dest: Vec<GroupId> = change.update.partitions().into_iter().collect();
        let (name, keys) = names.begin(&dest, now, random, |id| change.update.keys(id));
        let start = start(&name, &dest, (vector, holder), Some(change.clone()));
        Update {
            change,
            holder,
            start,
            stage: Stage::Held,
            dest,
            name,
            keys,
            was_sent: false,
            was_repeated: false,
            renamed: 0,
            answered: BTreeSet::new(),
            needed: BTreeSet::new(),
            queries: Vec::new(),
        }
    }

    /// What it changes of what clients may hold.
    pub fn alters(&self) -> Vec<Place> {
        self.change.update.alters()
    }

    /// With these questions.
    pub fn with(self, queries: Vec<Query>) -> Update {
        Update { queries, ..self }
    }

    /// Names it anew: no group will ever do it under the name that it has.
    pub fn rename(&mut self, vector: &Vector, names: &mut Names, drawn: (Time, u64)) {
        let (renamed, queries) = (self.renamed + 1, std::mem::take(&mut self.queries));
        let again = Update::named(self.change.clone(), self.holder, vector, names, drawn);
        *self = Update { renamed, queries, ..again };
    }

    /// What a group is asked for with that message.
    pub fn body(&self, group: GroupId, start: Start) -> RequestBody {
        match self.queries.is_empty() || start.id != self.name.id {
            true => RequestBody::Update { group, start },
            false => RequestBody::UpdateAlong { group, start, queries: self.queries.clone() },
        }
    }

    /// What its groups are sent.
    pub fn send(&mut self) -> Start {
        self.stage = Stage::Sent;
        self.answered.clear();
        self.needed.clear();
        self.was_repeated |= self.was_sent;
        self.was_sent = true;
        self.start.clone()
    }

    /// What the groups of `shard` are sent before: it cancels what was given up there and touches
    /// the same.
    pub fn cancel(&mut self, shard: &Shard, vector: &Vector, names: &Names, random: u64) -> Start {
        let name = names.cancel(shard, &self.keys, random);
        let start = start(&name, &shard.dest, (vector, self.holder), None);
        self.stage = Stage::Cancelling { dest: shard.dest.clone(), name };
        start
    }

    /// The group has answered, and told without whose answers, too, it is not acknowledged: others
    /// may hold what it changed there. Whether it is acknowledged now.
    pub fn is_acknowledged(&mut self, by: GroupId, and: Vec<GroupId>, mutation: Mutation) -> bool {
        self.answered.insert(by);
        self.needed.extend(and);
        self.needed.is_subset(&self.answered) || mutation.is(Mutation::TakesAnyAnswer)
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

fn start(
    name: &Name,
    dest: &[GroupId],
    (vector, (by, keeps)): (&Vector, (ClientId, bool)),
    change: Option<Change>,
) -> Start {
    let (vector, cancels) = (vector.clone(), name.cancels.clone());
    let keeps = keeps && change.is_some();
    let payload = Payload { vector, cancels, change, by, keeps, rights: None };
    payload.into_start(name.id, name.low, dest)
}
