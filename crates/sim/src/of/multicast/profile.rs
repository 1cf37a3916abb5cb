//! How clients behave.

use crate::world::Random;
use bytes::Bytes;
use meridian_multicast::{Timestamp, Touches};
use rand::RngExt;
use std::time::Duration;

/// What payloads are parts of.
static ZEROS: [u8; 4 << 20] = [0; 4 << 20];

/// A lower bound is mostly so little above what its client has seen, but sometimes very far.
const BOUND_NEAR: u64 = 1000;
const BOUND_FAR: u64 = 1 << 20;

/// How a client has a message multicast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Senders {
    /// It sends START to a member of each destination group itself.
    Groups,
    /// It asks one process, of a destination or not, to multicast it.
    Member,
    /// Now this way, now that way.
    Mixed,
}

/// How clients behave.
#[derive(Clone, Debug)]
pub struct Profile {
    /// How many there are.
    pub clients: u64,
    /// How many messages each sends.
    pub messages: u64,
    /// How long a client thinks between two messages at most.
    pub think: Duration,
    /// How long it waits before it sends again.
    pub timeout: Duration,
    /// How many messages it may wait for at a time.
    pub window: usize,
    /// One client in so many dies while it sends a message; 0 for none.
    pub mortal: u64,
    /// How long a message from a client to a process travels: at least, and at most.
    pub way: (Duration, Duration),
    /// How many destinations a message has at most.
    pub dest_max: usize,
    /// How it is multicast.
    pub senders: Senders,
    /// One START in so many arrives once more, up to so much later than the first; 0 for none.
    pub repeats: (u32, Duration),
    /// Messages touch one or two of so many keys; 0 for none: then all conflict.
    pub keys: u64,
    /// With keys, one message in so many conflicts with all; 0 for none.
    pub all: u32,
    /// One message in so many has a lower bound of its timestamp; 0 for none.
    pub bounds: u32,
    /// How many bytes a payload has at most.
    pub payload_max: usize,
    /// One message in so many is 4 MiB long; 0 for none.
    pub big: u32,
}

impl Default for Profile {
    fn default() -> Self {
        Profile {
            clients: 4,
            messages: 40,
            think: Duration::from_millis(200),
            timeout: Duration::from_millis(500),
            window: 4,
            mortal: 4,
            way: (Duration::from_micros(50), Duration::from_millis(3)),
            dest_max: 3,
            senders: Senders::Groups,
            repeats: (8, Duration::from_secs(2)),
            keys: 0,
            all: 0,
            bounds: 0,
            payload_max: 16,
            big: 0,
        }
    }
}

impl Profile {
    /// One of many manners.
    pub fn drawn(random: &mut Random) -> Self {
        let senders = match random.random_range(0..3) {
            0 => Senders::Groups,
            1 => Senders::Member,
            _ => Senders::Mixed,
        };
        let mut of = |all: &[u64]| all[random.random_range(0..all.len())];
        let (clients, window, think) = (of(&[2, 4, 6]), of(&[1, 4, 8]), of(&[20, 200, 400]));
        let (keys, all) = (of(&[0, 0, 2, 4, 12]), of(&[0, 4, 20]));
        let (bounds, payload) = (of(&[0, 2, 8]), of(&[16, 16, 2000, 100_000]));
        Profile {
            clients,
            messages: 160 / clients,
            think: Duration::from_millis(think),
            window: usize::try_from(window).unwrap_or(usize::MAX),
            senders,
            keys,
            all: u32::try_from(all).unwrap_or_default(),
            bounds: u32::try_from(bounds).unwrap_or_default(),
            payload_max: usize::try_from(payload).unwrap_or(usize::MAX),
            ..Profile::default()
        }
    }

    /// What a message touches.
    pub(crate) fn touches(&self, random: &mut Random) -> Touches {
        if self.keys == 0 || (self.all > 0 && random.random_ratio(1, self.all)) {
            return Touches::All;
        }
        let (one, other) = (random.random_range(0..self.keys), random.random_range(0..self.keys));
        Touches::keys([one, other])
    }

    /// The lower bound of a message whose client has seen `seen`.
    pub(crate) fn bound(&self, seen: Timestamp, random: &mut Random) -> Timestamp {
        if self.bounds == 0 || !random.random_ratio(1, self.bounds) {
            return Timestamp(0);
        }
        let most = if random.random_ratio(1, 10) { BOUND_FAR } else { BOUND_NEAR };
        Timestamp(seen.0 + random.random_range(0..most))
    }

    /// A payload; it begins with `name`.
    pub(crate) fn payload(&self, name: &str, random: &mut Random) -> Bytes {
        if self.big > 0 && random.random_ratio(1, self.big) {
            return Bytes::from_static(&ZEROS);
        }
        let more = random.random_range(0..=self.payload_max).saturating_sub(name.len());
        let more = &ZEROS[..more.min(ZEROS.len())];
        Bytes::from([name.as_bytes(), more].concat())
    }

    /// Whether the client asks one process to multicast a message for it.
    pub(crate) fn by_member(&self, random: &mut Random) -> bool {
        match self.senders {
            Senders::Groups => false,
            Senders::Member => true,
            Senders::Mixed => random.random_bool(0.5),
        }
    }
}
