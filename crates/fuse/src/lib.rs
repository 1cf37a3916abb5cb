//! The kernel's FUSE protocol: requests as values, replies, interrupts, mounting.
//!
//! | module | what |
//! | --- | --- |
//! | [`request`] | what the kernel asks, checked and cut out of the bytes that it sends |
//! | [`reply`] | what it is answered, once for each request |
//! | [`interrupts`] | which requests the kernel no longer wants to wait for |
//! | [`session`] | the first exchange with the kernel, the threads that read requests |
//! | [`mounting`] | how the file system gets its place, as root and as a user |
//! | [`control`] | questions of programs that are no calls of files, and how they are asked |
//! | `device` | the device file |
//! | `rings` | requests over rings of `io_uring`, where the kernel offers them |
//! | `raw` | memory shared with the kernel: all unsafe code |
//! | `abi` | numbers of the protocol |
//!
//! A [`Service`] gets each request with a [`Reply`], which it may give to another thread or task.
//! A reply that is dropped unanswered answers `EIO`: no program waits for ever.
//!
//! Deliberately absent: a word of Meridian, a runtime, memory of what the kernel knows (so the
//! kernel's `FORGET` is not passed on), and calls that Meridian does not answer: they get `ENOSYS`,
//! upon which the kernel does them by itself or not at all.

mod abi;
pub mod control;
mod device;
pub mod interrupts;
pub mod mounting;
mod raw;
pub mod reply;
pub mod request;
mod rings;
pub mod session;

pub use interrupts::Interrupted;
pub use mounting::{Access, Options};
pub use reply::{Attributes, Directory, Entry, Lifetime, Pages, Reply, Room, Time};
pub use request::{Operation, Request};
pub use session::{Notifier, Service, Session, Transport, mount};
