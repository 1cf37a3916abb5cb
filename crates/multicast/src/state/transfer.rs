//! Snapshots under way, to and from this process.

use crate::record::State;
use bytes::Bytes;
use meridian_core::{ProcessId, Time};
use std::collections::BTreeMap;
use std::time::Duration;

/// How much of a snapshot travels in one message, in bytes.
pub(crate) const SNAPSHOT_PART: usize = 512 << 10;

/// How many parts are under way at a time: 8 MiB, so that a round trip of 200 ms carries 40 MB/s. A
/// link holds back far more before it gives up.
pub(crate) const PARTS_IN_FLIGHT: usize = 16;

/// While a process is brought up, so many times more of `T` than [`crate::Limits`] say is retained,
/// as far as the snapshot does not contain it: else it would be behind again at the end, for ever.
/// An owner takes on nothing more when `T` is a little longer.
pub(crate) const RETAINED_FOR_TRANSFER: usize = 8;

/// How long the length of the protocol's state is, in bytes.
const LEN_BYTES: usize = 8;

/// After how long without progress a transfer is given up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Snapshots under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Transfers {
    pub outgoing: BTreeMap<ProcessId, Outgoing>,
    pub incoming: Option<Incoming>,
    pub numbered: u64,
    /// Who wanted one before the owner gave it.
    pub wanted: BTreeMap<ProcessId, ()>,
    /// Whether the owner needs another's state, though that may contain no more deliveries.
    pub needed: bool,
    /// How often it was asked for.
    pub fetches: usize,
    /// One came that was of no use, and when: its sender had not delivered something that we have.
    pub refused: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Outgoing {
    pub snapshot: u64,
    pub content: Content,
    /// How much of it was sent.
    pub sent: usize,
    /// The length of `T` in it: what follows the receiver will ask for.
    pub len: u64,
    /// Asked for since the last tick; `None` before the first tick.
    pub asked: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Incoming {
    pub from: ProcessId,
    pub snapshot: u64,
    pub bytes: Vec<u8>,
    pub progress: Time,
}

/// What a snapshot consists of, in this order. The application's bytes are sent, and installed, as
/// its owner gave them: there may be hundreds of megabytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Content {
    /// The protocol's state without the application's, after its length in eight bytes.
    protocol: Bytes,
    application: Bytes,
}

impl Content {
    /// Puts `state` together with the application's state.
    pub fn new(state: &State, application: Bytes) -> Content {
        let protocol = postcard::to_extend(state, vec![0; LEN_BYTES]);
        let mut protocol = protocol.expect("a state can be encoded");
        let len = (protocol.len() - LEN_BYTES) as u64;
        protocol[..LEN_BYTES].copy_from_slice(&len.to_le_bytes());
        Content { protocol: protocol.into(), application }
    }

    /// The length of the whole.
    pub fn len(&self) -> usize {
        self.protocol.len() + self.application.len()
    }

    /// A part of the whole.
    pub fn slice(&self, from: usize, end: usize) -> Bytes {
        let border = self.protocol.len();
        if end <= border {
            self.protocol.slice(from..end)
        } else if from >= border {
            self.application.slice(from - border..end - border)
        } else {
            [&self.protocol[from..], &self.application[..end - border]].concat().into()
        }
    }

    /// The state, with the application's, that the whole contains; `None` if it is damaged.
    pub fn decode(mut whole: Bytes) -> Option<State> {
        let (len, _) = whole.split_first_chunk::<LEN_BYTES>()?;
        let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
        let border = LEN_BYTES.checked_add(len).filter(|border| *border <= whole.len())?;
        let application = whole.split_off(border);
        let state = postcard::from_bytes::<State>(&whole[LEN_BYTES..]).ok()?;
        Some(state.with_application(application))
    }
}

impl Transfers {
    /// Whether a process that is being brought up will ask for the entry at `index`.
    pub fn need(&self, index: u64) -> bool {
        self.outgoing.values().any(|outgoing| outgoing.len <= index)
    }
}

impl Outgoing {
    /// The receiver holds all before `offset`: the parts that may be sent now, each with its
    /// offset.
    pub fn next_parts(&mut self, offset: u64) -> Vec<(u64, Bytes)> {
        let total = self.content.len();
        let held = usize::try_from(offset).unwrap_or(total).min(total);
        let until = total.min(held + PARTS_IN_FLIGHT * SNAPSHOT_PART);
        self.sent = self.sent.max(held);
        let mut parts = Vec::new();
        while self.sent < until || (total == 0 && parts.is_empty()) {
            let end = total.min(self.sent + SNAPSHOT_PART);
            parts.push((self.sent as u64, self.content.slice(self.sent, end)));
            self.sent = end;
        }
        parts
    }
}
