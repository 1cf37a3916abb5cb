//! What runs on top of the steward of a node's keys: the way to the shards' threads.

use super::exchange::{Exchange, Said};
use super::following::Following;
use crate::board::Board;
use meridian_core::{NodeId, Time};
use meridian_hermes::reliable::{Output, ReliableMembership};
use meridian_keys::Steward;
use meridian_keys::steward::Command;
use meridian_runtime::{Application, At};
use std::sync::Arc;
use std::time::Duration;

/// See the module's documentation.
pub(super) struct StewardService {
    me: NodeId,
    exchange: Arc<Exchange>,
    board: Arc<Board>,
    /// What the shards are to be told when the batch ends.
    outgoing: Vec<Output>,
    /// How often all keys have gone, as far as it was seen; None before the first look.
    losses: Option<u64>,
    /// As it was told last.
    standing: Standing,
    /// When it is looked again, as nobody tells of the next standing.
    looks_at: Option<Time>,
    /// Since when it has no part in the keys, if that was not told yet.
    outside: Option<Time>,
}

/// A node that has no part in the keys for so long says so: mostly somebody must do something.
const LONG: Duration = Duration::from_secs(10);

/// How often a node looks whether nobody relies on it any more: then it may be told of nothing.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What this node is for the keys of its region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Standing {
    /// Nothing yet.
    #[default]
    Outside,
    /// A shadow replica.
    Follows,
    /// It serves, if it has a lease.
    Live,
    /// Nothing any more.
    Left,
}

impl Standing {
    fn of(me: NodeId, membership: &ReliableMembership) -> Standing {
        let members = membership.registry().members();
        match (members.live.contains(&me), members.shadows.contains_key(&me)) {
            (true, _) => Standing::Live,
            (false, true) => Standing::Follows,
            (false, false) if membership.has_left() => Standing::Left,
            (false, false) => Standing::Outside,
        }
    }
}

impl StewardService {
    /// Of a node that has started now.
    pub fn new(
        (me, now): (NodeId, Time),
        exchange: Arc<Exchange>,
        board: Arc<Board>,
    ) -> StewardService {
        let (outgoing, losses, standing) = (Vec::new(), None, Standing::default());
        let (looks_at, outside) = (None, Some(now));
        StewardService { me, exchange, board, outgoing, losses, standing, looks_at, outside }
    }

    fn look(&mut self, now: Time, membership: &ReliableMembership) {
        self.tell_standing(membership);
        let (released, left) = (membership.is_released(), membership.has_left());
        self.board.note_voters(membership.registry().voters(), released, left);
        self.tell_waiting(now, membership);
        self.looks_at = match self.standing {
            Standing::Outside | Standing::Follows => Some(now + LOOK_AGAIN),
            Standing::Live | Standing::Left => None,
        };
    }

    /// Says what it waits for, once.
    fn tell_waiting(&mut self, now: Time, membership: &ReliableMembership) {
        if self.standing != Standing::Outside || !membership.should_hold() {
            self.outside = None;
        }
        if self.outside.take_if(|since| now.since(*since) >= LONG).is_some() {
            let others = membership.replicas();
            tracing::warn!(
                ?others,
                "has no part in the keys of its region yet: it needs the others, with keys in as \
                 many shards, and with the same ones that are causal"
            );
        }
    }

    /// Says how it comes, and goes.
    fn tell_standing(&mut self, membership: &ReliableMembership) {
        let now = Standing::of(self.me, membership);
        if std::mem::replace(&mut self.standing, now) == now {
            return;
        }
        let epoch = membership.registry().members().epoch.0;
        match now {
            Standing::Outside => tracing::info!(epoch, "out of the members of the region's keys"),
            Standing::Follows => tracing::info!(epoch, "is sent the keys of the region"),
            Standing::Live => tracing::info!(epoch, "has the keys of the region, and serves them"),
            Standing::Left => tracing::info!(epoch, "nobody relies on this node for keys any more"),
        }
    }

    /// Says it aloud if the keys of the region have gone.
    fn look_for_losses(&mut self, steward: &Steward) {
        let losses = steward.membership().registry().losses();
        if self.losses.replace(losses).is_some_and(|before| before < losses) {
            tracing::warn!(
                losses,
                "ALL KEYS OF THE REGION ARE LOST: no server that had all of them was left when \
                 the last one started again, and it had them in memory; keys begin with nothing"
            );
        }
    }
}

impl Application<Steward> for StewardService {
    type Request = Following;

    fn on_request(&mut self, at: &mut At<'_, Steward>, asked: Following) {
        let Following { configured, peers, .. } = asked;
        at.set_peers(peers);
        at.command(Command::Configure(configured));
        if self.looks_at.is_none() && self.standing != Standing::Live {
            self.looks_at = Some(at.now + LOOK_AGAIN); // It may come, or never will.
        }
    }

    fn on_output(&mut self, _: &mut At<'_, Steward>, output: Output) {
        self.outgoing.push(output);
    }

    fn on_told(&mut self, at: &mut At<'_, Steward>) {
        self.look_for_losses(at.process);
        self.look(at.now, at.process.membership());
        if !self.outgoing.is_empty() {
            for shard in self.exchange.shards() {
                shard.put(self.outgoing.iter().cloned().map(Said::Steward));
            }
            self.outgoing.clear();
        }
    }

    fn due(&self) -> Option<Time> {
        self.looks_at
    }

    fn on_due(&mut self, at: &mut At<'_, Steward>) {
        self.look(at.now, at.process.membership());
    }

    fn on_waker(&mut self, wake: Arc<dyn Fn() + Send + Sync>) {
        self.exchange.steward.open(wake);
    }

    fn on_batch(&mut self, at: &mut At<'_, Steward>) {
        let reported = self.exchange.steward.take().into_iter();
        reported.for_each(|reported| at.command(Command::Reported(reported)));
    }
}
