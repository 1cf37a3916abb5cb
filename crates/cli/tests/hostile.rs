//! Clients that mean no good, at a cluster that runs: what they are refused, and that others are
//! served meanwhile. The numbers of the cases are those of docs/security.md.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[path = "hostile/blocks.rs"]
mod blocks;
#[allow(dead_code)] // Other tests use the rest of it.
mod harness;
#[allow(dead_code)] // The same.
#[path = "../../transport/tests/intruder/mod.rs"]
mod intruder;
#[path = "hostile/noise.rs"]
mod noise;
#[path = "harness/program.rs"]
mod program;
#[path = "harness/random.rs"]
mod random;
#[path = "hostile/replay.rs"]
mod replay;
#[path = "hostile/room.rs"]
mod room;
#[path = "harness/secured.rs"]
mod secured;
#[path = "hostile/stalled.rs"]
mod stalled;
#[path = "hostile/tenancy.rs"]
mod tenancy;
