//! What the other tests here say of mounts over the device file, over rings of `io_uring`, where
//! the kernel has them.
#![allow(clippy::unwrap_used)]
#![allow(clippy::duplicate_mod)] // Each has the world that it has alone.

use meridian_mount::Transport;

/// How requests come.
pub const TRANSPORT: Transport = Transport::Rings;

#[path = "mount.rs"]
mod mount;
#[path = "posix.rs"]
mod posix;
