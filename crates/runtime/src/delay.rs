//! Distance between members that are nearer than they should be.
//!
//! What is put on a connection is held back until its time has come, in a queue of the connection's
//! own: no timer per message. Like a real connection it keeps the order, so what is sent quickly
//! waits behind what is sent slowly.

use bytes::BytesMut;
use meridian_core::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// How long the way to a peer takes, beside the real one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Delay {
    /// The mean, one way.
    pub one_way: Duration,
    /// The standard deviation, in percent of it.
    pub jitter_percent: f64,
}

/// What is on its way to a peer.
#[derive(Debug)]
pub(crate) struct Held {
    delay: Delay,
    random: u64,
    queue: VecDeque<(Time, BytesMut)>,
    /// When the last one is due: none after it is earlier.
    last: Time,
}

impl Held {
    /// Nothing yet; `seed` decides on the jitter.
    pub(crate) fn new(delay: Delay, seed: u64) -> Held {
        Held { delay, random: seed, queue: VecDeque::new(), last: Time::default() }
    }

    /// What leaves from now on takes so long.
    pub(crate) fn set_delay(&mut self, delay: Delay) {
        self.delay = delay;
    }

    /// Whether there is no distance at all.
    pub(crate) fn is_near(&self) -> bool {
        self.delay.one_way.is_zero() && self.queue.is_empty()
    }

    /// A frame leaves now.
    pub(crate) fn push(&mut self, now: Time, frame: BytesMut) {
        let spread = 1.0 + self.delay.jitter_percent / 100.0 * self.normal();
        let due = now + self.delay.one_way.mul_f64(spread.max(0.0));
        self.last = self.last.max(due);
        self.queue.push_back((self.last, frame));
    }

    /// The next frame that has arrived.
    pub(crate) fn pop(&mut self, now: Time) -> Option<BytesMut> {
        self.queue.pop_front_if(|(due, _)| *due <= now).map(|(_, frame)| frame)
    }

    /// When the next one arrives.
    pub(crate) fn due(&self) -> Option<Time> {
        self.queue.front().map(|(due, _)| *due)
    }

    /// The connection is gone, and what was on it.
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
    }

    /// About normally distributed, with mean 0 and standard deviation 1: twelve uniform numbers do.
    fn normal(&mut self) -> f64 {
        if self.delay.jitter_percent == 0.0 {
            return 0.0;
        }
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }

    /// Between 0 and 1, by SplitMix64.
    fn uniform(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_keep_their_order_and_about_their_distance() {
        let delay = Delay { one_way: Duration::from_millis(100), jitter_percent: 5.0 };
        let mut held = Held::new(delay, 7);
        let (mut dues, mut earliest) = (Vec::new(), Time(u64::MAX));
        for at in 0..1000u64 {
            // Far enough apart that none waits for the one before.
            let now = Time(at * 1_000_000_000);
            held.push(now, BytesMut::new());
            assert!(held.pop(now).is_none());
            let due = held.due().unwrap();
            dues.push(due.since(now).as_secs_f64());
            assert!(held.pop(due).is_some());
            earliest = earliest.min(due);
        }
        let mean = dues.iter().sum::<f64>() / 1000.0;
        let variance = dues.iter().map(|due| (due - mean).powi(2)).sum::<f64>() / 1000.0;
        assert!((mean - 0.1).abs() < 0.001, "{mean}");
        assert!((variance.sqrt() - 0.005).abs() < 0.0005, "{}", variance.sqrt());
        let mut last = Time(0);
        for _ in 0..1000 {
            held.push(Time(5_000_000_000_000), BytesMut::new());
        }
        while let Some(due) = held.due() {
            assert!(due >= last);
            last = due;
            assert!(held.pop(due).is_some());
        }
    }
}
