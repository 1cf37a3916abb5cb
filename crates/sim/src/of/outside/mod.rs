//! Clients that multicast and are in no group ([`meridian_multicast::outside`]): they, members of
//! groups and their links under faults, and a judgement of what the clients were told.
//!
//! | module | what |
//! | --- | --- |
//! | [`station`] | a member with its desk, or a client: the process of each peer |
//! | [`clients`] | what clients multicast and are told, and what members deliver |
//! | [`trial`] | what is drawn, the run, the end; planted bugs |
//! | [`words`] | the words of a trace |

pub mod clients;
pub mod station;
pub mod trial;
pub mod words;

pub use clients::Clients;
pub use station::Station;
pub use trial::Trial;

use super::{Named, draw_all, names_of_planted};

/// `meridian sim outside`.
pub const NAMED: Named = Named {
    name: "outside",
    about: "Multicast by clients that are in no group, with all kinds of faults",
    help: "\
Each seed is a run of some groups in simulated time, and of clients that are members of none: each
asks a member of a destination, and others when no answer comes. Links are cut and reset, members
and clients crash, members start again from what their disks kept. Then all is mended. Checked is
that each message is delivered once at all members of its groups or at none, in one order; that what
a client was told is delivered is, with the timestamp that it was told; and that what it was told is
not delivered never is.

Examples:
  meridian sim outside --seeds 100000
  meridian sim outside --seed 137 --trace",
    messages: "a message by its client and the client's number, as 7b2f.12",
    explained: None,
    settings: &[],
    pin: draw_all::<Trial>,
    planted: names_of_planted::<Trial>,
};
