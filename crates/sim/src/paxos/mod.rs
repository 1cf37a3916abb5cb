//! Trials of state machine replication ([`meridian_paxos`]): clients and faults for a while, then peace, and a judgement.
//!
//! | module | what |
//! | --- | --- |
//! | [`trial`] | what is drawn, the run, the end |
//! | [`clients`] | clients as the library's own behave; what replicas answer |
//! | [`service`] | registers that know what was executed |
//! | [`lossy`] | a network that loses, repeats and reorders |
//! | [`watch`] | what must hold of replicas at all times |
//! | [`linear`] | whether what clients saw is linearizable |
//! | [`planted`] | planted bugs, and a trial for each that shows it soon |

pub mod clients;
pub mod linear;
pub mod lossy;
pub mod planted;
pub mod service;
pub mod trial;
pub mod watch;

pub use clients::Counts;
pub use lossy::{Loss, Lossy};
pub use trial::{Cluster, Failure, Report, Trial, run};
