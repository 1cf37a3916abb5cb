//! The FUSE mount: what the kernel asks, translated for [`meridian_client::Files`].
//!
//! | module | what |
//! | --- | --- |
//! | [`session`] | mounting, unmounting, what a dead process left behind |
//! | [`guard`] | the process that frees who waits for a mount when that is killed |
//! | [`handler`] | one method for each call of the kernel |
//! | `call` | who asks, about what, and the way to answer |
//! | `calls` | calls that need more than a translation |
//! | `answers` | answers that many calls share |
//! | `eager` | calls that are begun on the thread that read them |
//! | `kept` | what the kernel may keep, and what it is told when that is recalled |
//! | `marked` | which files lack what the kernel asks for all the time |
//! | `known` | nodes in use that are not open, and where the kernel has directories |
//! | [`slowest`] | which calls took longest, and of which paths |
//! | `moved` | directories that another mount has moved |
//! | [`token`] | what was seen in a mount, handed over; what others saw, taken over |
//! | [`table`] | the kernel's table of mounts |
//! | [`about`] | what a mount says of itself on its machine |
//! | `signals` | which interrupted threads are to die |
//! | [`listing`] | open directories |
//! | [`convert`] | attributes, kinds, times and errors in the kernel's words |
//!
//! The session's threads take each call to its first wait, and a task takes it to its end; so a
//! slow one holds up no other. A thread that is killed while its call waits is answered at once.
//!
//! The kernel keeps names and attributes as long as the client holds capabilities on them; else
//! names for no time at all, so each look asks a replica, and attributes for a few milliseconds,
//! the time of one call. It keeps pages until an open of a file that is not held all that time, or
//! until it sees another time of change.
//! After a lock was taken it asks for attributes in any case.
//!
//! Deliberately absent: rules of the file system, which live in `meridian-fs` and
//! `meridian-client`; the kernel's protocol, which is `meridian-fuse`.
#![forbid(unsafe_code)]

pub mod about;
mod answers;
mod call;
mod calls;
pub mod convert;
mod eager;
pub mod guard;
pub mod handler;
mod kept;
mod known;
pub mod listing;
mod marked;
mod moved;
pub mod session;
mod signals;
pub mod slowest;
pub mod table;
pub mod token;

pub use meridian_fuse::mounting::remount;
pub use meridian_fuse::{Access, Transport};
pub use session::{Mount, MountError, clear_stale, mount, mount_guarded};
