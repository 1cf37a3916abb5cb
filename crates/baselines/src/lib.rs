//! The protocols that PrimCast, Hermes and Eunomia are compared with, on the same [`Process`]
//! trait: so that the figures 4.2 to 4.5 of the thesis, 5 to 7 of the Hermes paper, and 4.2 to 4.8
//! of the Eunomia thesis can be drawn on one runtime.
//!
//! | module | what |
//! | --- | --- |
//! | [`white_box`] | White-Box (thesis, section 4.6.2): 3 steps at leaders, 4 at followers |
//! | [`fast_cast`] | FastCast (section 4.6.1): 4 steps, 8 at worst |
//! | [`skeen`] | Skeen's algorithm (section 5.3, Algorithm 4); each group is one process |
//! | `consensus` | what FastCast takes as given: Paxos inside a group with a stable leader |
//! | [`batch`] | what travels together to one peer |
//! | `place`, `queue` | who is who; the order of deliveries |
//! | [`craq`] | replicated keys by CRAQ (Hermes, section 5.1.2): a chain; linearizable |
//! | [`zab`] | the same by ZAB (section 5.1.1): a leader; its reads are sequentially consistent |
//! | [`keys`] | what both are asked and answer |
//! | [`sequencer`] | numbers for updates, one after the other (Eunomia, section 4.1) |
//! | [`regions`] | keys of several regions: the store and the links of the next three (section 4.2) |
//! | [`eventual`] | what has come is seen; no order |
//! | [`gentle_rain`] | GentleRain: one number says what is seen |
//! | [`cure`] | Cure: a vector does |
//!
//! White-Box and FastCast order all messages, whatever they touch, and know the lower bound of a
//! timestamp (`Start::after`).
//!
//! # Absent: recovery
//!
//! These are the failure-free protocols, and the members are always the same. The leader of a group
//! is its first member, for ever; so is the head of a chain. Nothing but the keys of [`regions`] is
//! persisted (the thesis measures all protocols in memory), and [`Event::Restarted`] is ignored: a
//! message that is lost, or a process that stops, stops those who wait for it. What recovery would
//! cost without failures is there nevertheless: what a quorum must hold, a quorum holds before a
//! delivery.
//!
//! # Made for a fair comparison
//!
//! Keys are kept as Hermes keeps them ([`Shelf`]). What CRAQ says travels in one frame with all
//! that the same batch of the engine has for that peer, as with Hermes.
//!
//! In the multicast, what a process has to say waits for [`Event::Idle`] and travels in one message
//! to each peer; payloads go from a message's sender to the leaders and from each leader to its
//! followers, and never between groups; work per message is at most logarithmic in the number of
//! messages under way; what is delivered is dropped. Of delivered messages only those names are
//! kept (as in PrimCast) that their clients could still send again: see `Start::low`.
//!
//! [`Process`]: meridian_core::Process
//! [`Shelf`]: meridian_core::Shelf
//! [`Event::Idle`]: meridian_core::Event::Idle
//! [`Event::Restarted`]: meridian_core::Event::Restarted
#![forbid(unsafe_code)]

pub mod batch;
mod consensus;
pub mod craq;
pub mod cure;
pub mod eventual;
pub mod fast_cast;
pub mod gentle_rain;
pub mod keys;
mod place;
mod queue;
pub mod regions;
pub mod sequencer;
pub mod skeen;
pub mod white_box;
pub mod zab;

pub use batch::{Batch, Nothing};
pub use craq::Craq;
pub use cure::Cure;
pub use eventual::Eventual;
pub use fast_cast::FastCast;
pub use gentle_rain::GentleRain;
pub use regions::Partition;
pub use sequencer::Sequencer;
pub use skeen::Skeen;
pub use white_box::WhiteBox;
pub use zab::Zab;
