//! What runs on top of the replica of a shard: sockets of clients, the other threads, the board.

use super::BYTES_MAX;
use super::exchange::{Exchange, Post, Said};
use super::following::Following;
use crate::application::name_of_client;
use crate::board::Board;
use bytes::Bytes;
use meridian_core::hello::ServiceId;
use meridian_core::{NodeId, Time};
use meridian_hermes::{self as hermes, Durability};
use meridian_keys::change::Rmw;
use meridian_keys::command::KEY_MAX;
use meridian_keys::desk::passing::Passed;
use meridian_keys::desk::{ClientNumber, Counter, Desk, Held, Load, Now, Replica, Seat};
use meridian_keys::node::{Command, Output, told};
use meridian_keys::resp::{BULK_MAX, ProtocolError, Reply, Version};
use meridian_keys::slots::Shard;
use meridian_keys::{Grant, Grants, Keys, Moment};
use meridian_runtime::wire::WireError;
use meridian_runtime::{Application, At, ConnectionId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// So many bytes of answers are expected of a request that waits for other replicas: what a client
/// may have under way is bounded by it.
const EXPECTED_LEN: usize = 8 << 10;

/// While so many bytes of requests are under way, no clients are read: those of one request of the
/// greatest length, and as much again.
const UNDER_WAY_MAX: usize = 128 << 20;

/// What runs on top of the replica of a shard.
pub(super) struct Service {
    seat: Seat,
    desk: Desk,
    post: Post,
    /// How many bytes a client is expected to be answered, or has under way.
    expected: BTreeMap<ClientNumber, usize>,
    board: Arc<Board>,
    /// What clients may do.
    grants: Arc<Grants>,
}

/// Carries out what the desk wants done, at the member.
struct Here<'a, 'b> {
    at: &'a mut At<'b, Keys>,
    shard: Shard,
    post: &'a mut Post,
    board: &'a Board,
    grants: &'a Grants,
}

impl Counter for Here<'_, '_> {
    fn time(&self) -> Time {
        self.at.time()
    }

    fn grant(&mut self, client: ClientNumber) -> Option<Arc<Grant>> {
        if self.grants.is_empty() {
            return None; // Nobody pays for what is not used.
        }
        match self.at.speaker(ConnectionId::from(client)) {
            Some(speaker) => self.grants.of(&name_of_client(&speaker)?),
            None => Some(Arc::default()), // It is gone, and so is what it might do.
        }
    }

    fn ask(&mut self, asked: hermes::Command<Rmw>) {
        self.at.command(Command::Replica(asked));
    }

    fn pass(&mut self, to: Shard, passed: Passed) {
        self.post.pass(to, passed);
    }

    fn elsewhere(&self) -> Held {
        self.board.elsewhere(self.shard)
    }

    fn is_stuffed(&mut self, client: ClientNumber) -> bool {
        self.at.is_behind(ConnectionId::from(client))
    }

    fn write(&mut self, client: ClientNumber, reply: &Reply, version: Version) {
        self.at.write(ConnectionId::from(client), |out| reply.write(version, out));
    }

    fn blame(&mut self, client: ClientNumber, error: &ProtocolError) {
        self.at.blame(ConnectionId::from(client), error.to_string());
    }

    fn end(&mut self, client: ClientNumber) {
        self.at.end(ConnectionId::from(client));
    }

    fn info(&self, sections: &[&[u8]]) -> String {
        let wanted = |name: &[u8]| {
            let all = |section: &&[u8]| {
                section.eq_ignore_ascii_case(name)
                    || section.eq_ignore_ascii_case(b"all")
                    || section.eq_ignore_ascii_case(b"everything")
                    || section.eq_ignore_ascii_case(b"default")
            };
            sections.is_empty() || sections.iter().any(all)
        };
        let mut text = String::new();
        if wanted(b"server") {
            text += &format!(
                "# Server\r\nmeridian_version:{}\r\nredis_mode:standalone\r\nprocess_id:{}\r\n\r\n",
                env!("CARGO_PKG_VERSION"),
                std::process::id()
            );
        }
        if wanted(b"clients") {
            text += &format!("# Clients\r\nconnected_clients:{}\r\n\r\n", self.board.clients());
        }
        if wanted(b"replication") {
            let (replica, now) = (self.at.process.replica(), self.at.now);
            let membership = replica.membership();
            text += &format!(
                "# Replication\r\nrole:master\r\nepoch:{}\r\nlive:{}\r\nshadows:{}\r\nserves:{}\r\n\
                 shards:{}\r\nkey_bytes_max:{KEY_MAX}\r\nvalue_bytes_max:{BULK_MAX}\r\n\r\n",
                membership.epoch.0,
                names(membership.live.iter()),
                names(membership.shadows.keys()),
                u8::from(replica.serves(now)),
                self.board.len(),
            );
        }
        if wanted(b"memory") {
            let held = self.board.held();
            text += &format!(
                "# Memory\r\nused_memory_dataset:{}\r\nmaxmemory:{BYTES_MAX}\r\n\r\n",
                held.bytes
            );
        }
        if wanted(b"persistence") {
            let kept_in = match self.at.process.replica().durability() {
                Durability::Memory => "memory",
                Durability::Disk => "disk",
            };
            text += &format!("# Persistence\r\nkeys_durability:{kept_in}\r\n\r\n");
        }
        if wanted(b"keyspace") {
            text += &format!("# Keyspace\r\ndb0:keys={}\r\n\r\n", self.board.held().keys);
        }
        text
    }
}

fn names<'a>(nodes: impl Iterator<Item = &'a NodeId>) -> String {
    nodes.map(NodeId::to_string).collect::<Vec<_>>().join(",")
}

impl Service {
    pub fn new(
        seat: Seat,
        (causal, grants): (Option<Bytes>, Arc<Grants>),
        exchange: Arc<Exchange>,
        board: Arc<Board>,
    ) -> Service {
        let desk = Desk::new(seat, BYTES_MAX).with_causal(causal);
        let (post, expected) = (Post::new(seat.shard, exchange), BTreeMap::new());
        Service { seat, desk, post, expected, board, grants }
    }

    fn with_desk<R>(
        &mut self,
        at: &mut At<'_, Keys>,
        work: impl FnOnce(&mut Desk, Now, &Replica, &mut Here<'_, '_>) -> R,
    ) -> R {
        let now = Now { time: at.now, moment: Moment(at.now.0 / 1_000_000) };
        let Service { desk, post, board, seat, grants, .. } = self;
        let process = at.process;
        let replica = process.replica();
        work(desk, now, replica, &mut Here { at, shard: seat.shard, post, board, grants })
    }

    /// Tells the member how much is still to be answered to a client.
    fn expect(&mut self, at: &mut At<'_, Keys>, client: ClientNumber) {
        let Load { unanswered, under_way, kept } = self.desk.load(client);
        let wanted = unanswered * EXPECTED_LEN + under_way;
        let told = self.expected.entry(client).or_default();
        let (before, id) = (std::mem::replace(told, wanted), ConnectionId::from(client));
        if wanted > before {
            at.expect_bytes(id, wanted - before);
        } else if wanted < before {
            at.unexpect_bytes(id, before - wanted);
        }
        at.keep_bytes(id, kept);
    }

    /// Another thread of this node says something.
    fn hear(&mut self, at: &mut At<'_, Keys>, said: Said) {
        match said {
            Said::Desk(from, passed) => {
                let concerned = self.with_desk(at, |desk, now, replica, here| {
                    desk.on_passed(now, from, passed, replica, here)
                });
                if let Some(client) = concerned {
                    self.expect(at, client);
                }
            }
            Said::Steward(output) => at.command(Command::Replica(told(output))),
        }
    }
}

impl Application<Keys> for Service {
    type Request = Following;

    fn on_request(&mut self, at: &mut At<'_, Keys>, asked: Following) {
        at.set_peers(asked.peers);
        if self.grants != asked.grants {
            self.grants = asked.grants;
            self.with_desk(at, |desk, _, _, here| desk.on_grants(here));
        }
    }

    fn on_output(&mut self, at: &mut At<'_, Keys>, output: Output) {
        match output {
            Output::Answered { token, answer } => {
                let concerned = self.with_desk(at, |desk, now, replica, here| {
                    desk.on_answer(now, token, answer, replica, here)
                });
                concerned.into_iter().for_each(|client| self.expect(at, client));
            }
            Output::Watching => self.desk.on_watching(),
            Output::Committed { key } => self.desk.on_committed(&key),
            Output::Report(report) => self.post.report(report),
        }
    }

    fn on_told(&mut self, at: &mut At<'_, Keys>) {
        // What others read on the board is as new as what they are told.
        let replica = at.process.replica();
        if self.board.note(self.seat.shard, replica, self.desk.len()) {
            self.post.wake(); // There is room again: the other threads may read their clients.
        }
        self.post.say();
    }

    fn on_waker(&mut self, wake: Arc<dyn Fn() + Send + Sync>) {
        self.post.open(wake);
    }

    fn on_connected(&mut self, _: &mut At<'_, Keys>, client: ConnectionId, _: ServiceId) {
        self.desk.connect(client.into());
    }

    fn on_disconnected(&mut self, at: &mut At<'_, Keys>, client: ConnectionId) {
        self.with_desk(at, |desk, _, _, here| desk.disconnect(client.into(), here));
        self.expected.remove(&client.into());
    }

    fn turned_away(&self) -> &'static [u8] {
        b"-ERR max number of clients reached: ask another node\r\n"
    }

    fn on_bytes(&mut self, at: &mut At<'_, Keys>, client: ConnectionId, bytes: &[u8]) {
        self.desk.feed(client.into(), bytes);
        at.keep_bytes(client, self.desk.load(client.into()).kept);
    }

    fn on_next(&mut self, at: &mut At<'_, Keys>, client: ConnectionId) -> Result<bool, WireError> {
        let number = client.into();
        let taken =
            self.with_desk(at, |desk, now, replica, here| desk.take(now, number, replica, here));
        self.expect(at, number);
        if taken && at.process.wants_use(at.now) {
            at.command(Command::Use);
        }
        Ok(taken)
    }

    fn holds_clients(&self, process: &Keys) -> bool {
        let (full, under_way) = (process.replica().is_full(), self.desk.under_way());
        full || under_way >= UNDER_WAY_MAX || self.board.is_full_elsewhere(self.seat.shard)
    }

    fn due(&self) -> Option<Time> {
        self.desk.due()
    }

    fn on_batch(&mut self, at: &mut At<'_, Keys>) {
        for said in self.post.take() {
            self.hear(at, said);
        }
        let concerned =
            self.with_desk(at, |desk, now, replica, here| desk.look_again(now, replica, here));
        concerned.into_iter().for_each(|client| self.expect(at, client));
        self.on_told(at);
    }
}
