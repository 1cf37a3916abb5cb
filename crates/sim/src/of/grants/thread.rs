//! A thread of a node: the replica of a shard, its clients, and what these may do.

use super::node::{Following, SHARDS};
use meridian_core::Time;
use meridian_hermes as hermes;
use meridian_keys::change::Rmw;
use meridian_keys::desk::passing::Passed;
use meridian_keys::desk::{ClientNumber, Counter, Desk, Held, Now, Replica, Seat};
use meridian_keys::grant::Mutation;
use meridian_keys::resp::{ProtocolError, Reply, Version};
use meridian_keys::slots::Shard;
use meridian_keys::{Grant, Grants, Keys, Moment};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Keys never take so many bytes here.
const BYTES_MAX: usize = 1 << 30;

/// A planted bug.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bug {
    /// None.
    #[default]
    None,
    /// In desks.
    InDesk(Mutation),
    /// What a client may do is what it might when its connection was new.
    KeepsFirstGrant,
}

/// What a desk wants done, in order.
pub(super) enum Wanted {
    Ask(hermes::Command<Rmw>),
    Pass(Shard, Passed),
    Write(ClientNumber, Reply),
    End(ClientNumber),
}

/// A thread of a node.
#[derive(Debug)]
pub(super) struct Thread {
    pub keys: Keys,
    pub desk: Desk,
    /// The version of the configuration that it has.
    pub version: u64,
    grants: Arc<Grants>,
    /// Who is at the other end of each connection.
    pub names: BTreeMap<ClientNumber, &'static str>,
    /// What they might do at first, for [`Bug::KeepsFirstGrant`].
    pub first: BTreeMap<ClientNumber, Option<Arc<Grant>>>,
    keeps_first: bool,
    /// When the desk is due, as a timer is set for.
    pub alarm: Option<Time>,
}

/// Notes what the desk wants done.
pub(super) struct Here<'a> {
    now: Time,
    grants: &'a Grants,
    names: &'a BTreeMap<ClientNumber, &'static str>,
    first: &'a mut BTreeMap<ClientNumber, Option<Arc<Grant>>>,
    keeps_first: bool,
    wanted: Vec<Wanted>,
}

impl Counter for Here<'_> {
    fn time(&self) -> Time {
        self.now
    }

    fn grant(&mut self, client: ClientNumber) -> Option<Arc<Grant>> {
        let Some(name) = self.names.get(&client) else {
            return Some(Arc::default()); // It is gone, and so is what it might do.
        };
        let now = self.grants.of(name);
        match self.keeps_first {
            true => self.first.entry(client).or_insert(now).clone(),
            false => now,
        }
    }

    fn ask(&mut self, asked: hermes::Command<Rmw>) {
        self.wanted.push(Wanted::Ask(asked));
    }

    fn pass(&mut self, to: Shard, passed: Passed) {
        self.wanted.push(Wanted::Pass(to, passed));
    }

    fn elsewhere(&self) -> Held {
        Held::default()
    }

    fn write(&mut self, client: ClientNumber, reply: &Reply, _: Version) {
        self.wanted.push(Wanted::Write(client, reply.clone()));
    }

    fn is_stuffed(&mut self, _: ClientNumber) -> bool {
        false
    }

    fn blame(&mut self, client: ClientNumber, error: &ProtocolError) {
        panic!("the requests of {client} are well formed: {error}");
    }

    fn end(&mut self, client: ClientNumber) {
        self.wanted.push(Wanted::End(client));
    }

    fn info(&self, _: &[&[u8]]) -> String {
        "keys:all".into()
    }
}

impl Thread {
    pub fn new(shard: Shard, replica: Replica, first: &Following, bug: Bug) -> Thread {
        let mutation = match bug {
            Bug::InDesk(mutation) => mutation,
            Bug::None | Bug::KeepsFirstGrant => Mutation::Correct,
        };
        let seat = Seat { shard, shards: usize::from(SHARDS) };
        Thread {
            keys: Keys::new(replica),
            desk: Desk::new(seat, BYTES_MAX).with_mutation(mutation),
            version: first.configured.version,
            grants: first.grants.clone(),
            names: BTreeMap::new(),
            first: BTreeMap::new(),
            keeps_first: bug == Bug::KeepsFirstGrant,
            alarm: None,
        }
    }

    /// Whether what clients may do is another than it was.
    pub fn follow(&mut self, following: &Following) -> bool {
        if following.configured.version <= self.version {
            return false;
        }
        self.version = following.configured.version;
        let before = std::mem::replace(&mut self.grants, following.grants.clone());
        before != self.grants
    }

    /// Does something at the desk; what that wants done.
    pub fn at_desk<R>(
        &mut self,
        now: Time,
        work: impl FnOnce(&mut Desk, Now, &Replica, &mut Here<'_>) -> R,
    ) -> (R, Vec<Wanted>) {
        let Thread { keys, desk, grants, names, first, keeps_first, .. } = self;
        let (keeps_first, wanted) = (*keeps_first, Vec::new());
        let mut here = Here { now, grants, names, first, keeps_first, wanted };
        let now = Now { time: now, moment: Moment(now.0 / 1_000_000) };
        let result = work(desk, now, keys.replica(), &mut here);
        (result, here.wanted)
    }
}
