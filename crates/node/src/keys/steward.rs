//! What runs on top of the steward of a node's keys: the way to the shards' threads.

use super::exchange::{Exchange, Said};
use meridian_hermes::reliable::Output;
use meridian_keys::Steward;
use meridian_keys::steward::Command;
use meridian_runtime::{Application, At};
use std::convert::Infallible;
use std::sync::Arc;

/// See the module's documentation.
pub(super) struct StewardService {
    exchange: Arc<Exchange>,
    /// What the shards are to be told when the batch ends.
    outgoing: Vec<Output>,
    /// How often all keys have gone, as far as it was seen; None before the first look.
    losses: Option<u64>,
}

impl StewardService {
    pub fn new(exchange: Arc<Exchange>) -> StewardService {
        StewardService { exchange, outgoing: Vec::new(), losses: None }
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
    type Request = Infallible;

    fn on_request(&mut self, _: &mut At<'_, Steward>, asked: Infallible) {
        match asked {}
    }

    fn on_output(&mut self, _: &mut At<'_, Steward>, output: Output) {
        self.outgoing.push(output);
    }

    fn on_told(&mut self, at: &mut At<'_, Steward>) {
        self.look_for_losses(at.process);
        if !self.outgoing.is_empty() {
            for shard in self.exchange.shards() {
                shard.put(self.outgoing.iter().cloned().map(Said::Steward));
            }
            self.outgoing.clear();
        }
    }

    fn on_waker(&mut self, wake: Arc<dyn Fn() + Send + Sync>) {
        self.exchange.steward.open(wake);
    }

    fn on_batch(&mut self, at: &mut At<'_, Steward>) {
        let reported = self.exchange.steward.take().into_iter();
        reported.for_each(|reported| at.command(Command::Reported(reported)));
    }
}
