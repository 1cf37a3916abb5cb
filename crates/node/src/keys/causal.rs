//! What runs on top of the causal keys of a node: requests that the threads with the clients pass
//! on, and the board.

use super::exchange::{Exchange, Post, Said};
use super::following::{CausalFollowing, Following};
use crate::board::Board;
use meridian_core::Time;
use meridian_eunomia::Options;
use meridian_keys::Moment;
use meridian_keys::causal::CausalKeys;
use meridian_keys::causal::desk::{Counter, Desk, Keys};
use meridian_keys::causal::message::{Command as Asked, Output as Told};
use meridian_keys::causal::shard::{Command, Output};
use meridian_keys::change::Rmw;
use meridian_keys::desk::Now;
use meridian_keys::desk::passing::Passed;
use meridian_keys::node::told;
use meridian_keys::slots::Shard;
use meridian_runtime::{Application, At};
use std::sync::Arc;
use std::time::Duration;

/// How sources, replicas of the service and receivers behave.
pub(super) fn options() -> Options {
    let ms = Duration::from_millis;
    Options {
        idle: ms(400),
        suspect_after: ms(1600),
        reserve: Duration::from_secs(5),
        ..Options::default()
    }
}

/// See the module's documentation.
pub(super) struct CausalService {
    shard: Shard,
    desk: Desk,
    post: Post,
    board: Arc<Board>,
}

/// Carries out what the desk wants done, at the member.
struct Here<'a, 'b> {
    at: &'a mut At<'b, CausalKeys>,
    post: &'a mut Post,
}

impl Counter for Here<'_, '_> {
    fn time(&self) -> Time {
        self.at.time()
    }

    fn ask(&mut self, asked: Asked<Rmw>) {
        self.at.command(Command::Keys(asked));
    }

    fn pass(&mut self, to: Shard, passed: Passed) {
        self.post.pass(to, passed);
    }
}

impl CausalService {
    /// On the thread that has this number, in that cluster.
    pub fn new(
        (shard, cluster): (Shard, u64),
        exchange: Arc<Exchange>,
        board: Arc<Board>,
    ) -> CausalService {
        CausalService { shard, desk: Desk::new(cluster), post: Post::new(shard, exchange), board }
    }

    fn with_desk(
        &mut self,
        at: &mut At<'_, CausalKeys>,
        work: impl FnOnce(&mut Desk, Now, &Keys, &mut Here<'_, '_>),
    ) {
        let now = Now { time: at.now, moment: Moment(at.now.0 / 1_000_000) };
        let CausalService { desk, post, .. } = self;
        let process = at.process;
        work(desk, now, process.keys(), &mut Here { at, post });
    }

    /// Another thread of this node says something.
    fn hear(&mut self, at: &mut At<'_, CausalKeys>, said: Said) {
        match said {
            Said::Desk(from, passed) => {
                if at.process.wants_use(at.now) {
                    at.command(Command::Use);
                }
                self.with_desk(at, |desk, now, keys, here| {
                    desk.on_passed(now, from, passed, keys, here);
                });
            }
            Said::Steward(output) => at.command(Command::Keys(Asked::Replica(told(output)))),
        }
    }
}

impl Application<CausalKeys> for CausalService {
    type Request = Following;

    fn on_request(&mut self, at: &mut At<'_, CausalKeys>, asked: Following) {
        let Some(CausalFollowing { regions, peers, delays }) = asked.causal else { return };
        at.set_delays(delays);
        at.set_peers(peers);
        at.command(Command::Keys(Asked::Configure(regions)));
    }

    fn on_output(&mut self, at: &mut At<'_, CausalKeys>, output: Output) {
        match output {
            Output::Keys(Told::Word(word)) => self.board.note_word(word),
            Output::Keys(output) => {
                self.with_desk(at, |desk, now, keys, here| desk.on_output(now, output, keys, here));
            }
            Output::Report(report) => self.post.report(report),
        }
    }

    fn on_told(&mut self, at: &mut At<'_, CausalKeys>) {
        let keys = at.process.keys();
        if self.board.note(self.shard, keys.replica(), self.desk.len()) {
            self.post.wake();
        }
        self.board.note_causal(keys);
        self.post.say();
    }

    fn on_waker(&mut self, wake: Arc<dyn Fn() + Send + Sync>) {
        self.post.open(wake);
    }

    fn due(&self) -> Option<Time> {
        self.desk.due()
    }

    fn on_batch(&mut self, at: &mut At<'_, CausalKeys>) {
        for said in self.post.take() {
            self.hear(at, said);
        }
        self.with_desk(at, |desk, now, keys, here| desk.look_again(now, keys, here));
        self.on_told(at);
    }
}
