//! What a mount says of itself to who asks on the same machine.
//!
//! They are extended attributes that are in no list of them and are stored nowhere.

use crate::slowest::Slow;
use meridian_client::timeline::{SlowUpdate, Timeline};
use meridian_client::times::Way;
use meridian_client::{Client, Durability};
use meridian_core::MessageId;
use meridian_fuse::Transport;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

/// The attribute, of the root.
pub const NAME: &str = "user.meridian.mount";
/// The attribute that tells how long what the mount asked of nodes took, of all directories and
/// files in it: JSON, of [`Way`]s.
pub const TIMES: &str = "user.meridian.times";
/// With a name behind it: the attribute of a directory that tells whether a look at that name in it
/// would be answered without asking a node.
pub const HOLDS: &str = "user.meridian.holds.";
/// With a name behind it: the attribute of a directory that tells whether a file that is made under
/// that name in it would be kept back now (decision 104), or, if it leads to a file, its removal.
pub const KEEPS: &str = "user.meridian.keeps.";
/// The attribute that tells which calls took longest since it was read last, and of which paths, of
/// all directories and files in the mount: JSON, of [`Slow`]s, for root and whose mount it is.
pub const SLOWEST: &str = "user.meridian.slowest";
/// The attribute that tells how the mount is now, of all directories and files in it: JSON, a
/// [`State`]. Nobody is asked.
pub const STATE: &str = "user.meridian.state";
/// The attribute that tells which updates took longest since it was read last, of all directories
/// and files in the mount: JSON, of [`SlowUpdate`]s. No paths are in it.
pub const UPDATES: &str = "user.meridian.updates";
/// With the name of a message behind it: the attribute that tells the path of that update, of all
/// directories and files in the mount: JSON, a [`Timeline`]. Nodes are asked.
pub const TIMELINE: &str = "user.meridian.timeline.";
/// The kernel takes no longer values.
pub(crate) const VALUE_MAX: usize = 64 << 10;
/// The type of its file system, in tables of mounts.
pub const TYPE: &str = "fuse.meridian";

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// The cluster.
    pub cluster: u64,
    /// How the kernel's requests come: see [`Transport`].
    pub transport: String,
    /// The region that it is in, by name.
    pub region: String,
    /// When what is done in it is durable, where a directory or file does not say; an earlier build
    /// does not tell.
    pub durability: Option<Durability>,
}

impl About {
    pub(crate) fn new(client: &Client, transport: Transport) -> About {
        let (cluster, region) = (client.topology().cluster, client.region());
        let durability = Some(client.durability());
        About { cluster, transport: transport.to_string(), region, durability }
    }

    /// What that which is mounted at `at` says. Waits for it.
    ///
    /// # Errors
    /// As those of `getxattr`; `InvalidData` if it is a mount of another build.
    pub fn of(at: &Path) -> io::Result<About> {
        let mut value = vec![0; 256];
        let length = rustix::fs::getxattr(at, NAME, &mut value[..])?;
        value.truncate(length);
        let said = std::str::from_utf8(&value).ok().and_then(About::read);
        said.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// What those words say, if they are of a mount.
    pub fn read(value: &str) -> Option<About> {
        let word = |name: &str| value.split(' ').find_map(|word| word.strip_prefix(name));
        let cluster = word("cluster=")?.parse().ok()?;
        let (transport, region) = (word("transport=")?.into(), word("region=")?.into());
        let durability = word("durability=").and_then(Durability::of_word);
        Some(About { cluster, transport, region, durability })
    }
}

/// How a mount is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// For how long a call waits for a group that is cut off, in milliseconds.
    pub on_cut_ms: u64,
    /// The groups for which no node answers the mount.
    pub cut_off: Vec<CutOff>,
    /// How many calls of programs are under way.
    pub under_way: u64,
    /// How long the oldest of them has waited, in microseconds.
    pub oldest_us: Option<u64>,
    /// The oldest of them, that one first, with how long they have taken so far; for root and whose
    /// mount it is, as for [`SLOWEST`].
    pub calls: Vec<Slow>,
}

/// A group that is cut off from a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutOff {
    /// Its name.
    pub group: String,
    /// For how long nobody has answered for it, in milliseconds.
    pub for_ms: u64,
}

impl State {
    /// Of a mount over that client, in which so many calls are under way, these the oldest.
    pub(crate) fn new(client: &Client, (under_way, calls): (usize, Vec<Slow>)) -> State {
        let topology = client.topology();
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let cut_off = client
            .cut_off()
            .into_iter()
            .map(|(group, time)| CutOff { group: topology.group_name(group), for_ms: ms(time) });
        State {
            on_cut_ms: ms(client.on_cut()),
            cut_off: cut_off.collect(),
            under_way: under_way as u64,
            oldest_us: calls.first().map(|call| call.took_us),
            calls,
        }
    }
}

/// How the mount that `path` is in is now.
///
/// # Errors
/// As those of `getxattr`: `ENODATA` or `EOPNOTSUPP` if it is in no mount of this build.
pub fn state_of(path: &Path) -> io::Result<State> {
    json_of(path, STATE)
}

/// How long what the mount that `path` is in has asked of nodes took.
///
/// # Errors
/// As those of `getxattr`: `ENODATA` or `EOPNOTSUPP` if it is in no mount of this build.
pub fn times_of(path: &Path) -> io::Result<Vec<Way>> {
    json_of(path, TIMES)
}

fn json_of<T: DeserializeOwned>(path: &Path, attribute: &str) -> io::Result<T> {
    let mut value = vec![0; VALUE_MAX];
    let length = rustix::fs::getxattr(path, attribute, &mut value[..])?;
    serde_json::from_slice(&value[..length]).map_err(io::Error::other)
}

/// Which calls of programs took longest in the mount that `path` is in, the slowest first, since
/// that was asked last.
///
/// # Errors
/// As those of `getxattr`: `EACCES` if the mount is somebody else's, `ENODATA` or `EOPNOTSUPP` if
/// it is in no mount of this build.
pub fn slowest_of(path: &Path) -> io::Result<Vec<Slow>> {
    json_of(path, SLOWEST)
}

/// Which updates took longest in the mount that `path` is in, the slowest first, since that was
/// asked last.
///
/// # Errors
/// As those of `getxattr`: `ENODATA` or `EOPNOTSUPP` if it is in no mount of this build.
pub fn updates_of(path: &Path) -> io::Result<Vec<SlowUpdate>> {
    json_of(path, UPDATES)
}

/// The path of an update, as the mount that `path` is in and the nodes remember it. Waits for the
/// nodes, some seconds at most.
///
/// # Errors
/// As those of `getxattr`: `ENODATA` or `EOPNOTSUPP` if it is in no mount of this build.
pub fn timeline_of(path: &Path, message: MessageId) -> io::Result<Timeline> {
    json_of(path, &format!("{TIMELINE}{message}"))
}

/// Whether the mount that the directory is in would answer a look at that name in it without asking
/// a node; not if the name is so long that it cannot be asked for.
pub fn holds(directory: &Path, name: &OsStr) -> bool {
    is_so(directory, HOLDS, name)
}

/// Whether the mount that the directory is in would keep back now that a file of that name is made
/// in it, or, if there is one, that it is removed; not if the name is too long to be asked for.
pub fn keeps(directory: &Path, name: &OsStr) -> bool {
    is_so(directory, KEEPS, name)
}

fn is_so(directory: &Path, what: &str, name: &OsStr) -> bool {
    let attribute = [OsStr::new(what), name].into_iter().collect::<OsString>();
    let mut value = [0; 8];
    let length = rustix::fs::getxattr(directory, &attribute, &mut value[..]);
    length.is_ok_and(|length| value[..length] == *yes_or_no(true))
}

/// Whether the attribute with this name tells of the mount: it cannot be set.
pub(crate) fn is(attribute: &[u8]) -> bool {
    let whole = [NAME, TIMES, STATE, SLOWEST, UPDATES];
    let begin = [HOLDS, KEEPS, TIMELINE];
    whole.iter().any(|name| name.as_bytes() == attribute)
        || begin.iter().any(|name| attribute.starts_with(name.as_bytes()))
}

/// The message whose path the attribute with this name tells.
pub(crate) fn message(attribute: &[u8]) -> Option<MessageId> {
    let of = attribute.strip_prefix(TIMELINE.as_bytes())?;
    std::str::from_utf8(of).ok()?.parse().ok()
}

pub(crate) fn yes_or_no(is_so: bool) -> &'static [u8] {
    if is_so { b"1" } else { b"0" }
}

pub(crate) fn json<T: Serialize + ?Sized>(told: &T) -> Vec<u8> {
    serde_json::to_vec(told).expect("it is made of text and numbers")
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let About { cluster, transport, region, durability } = self;
        write!(f, "cluster={cluster} transport={transport} region={region}")?;
        durability.map_or(Ok(()), |mode| write!(f, " durability={}", mode.word()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        for transport in [Transport::Rings, Transport::Device] {
            let transport = transport.to_string();
            let durability = Some(Durability::Fsync);
            let about = About { cluster: 77, transport, region: "us".into(), durability };
            assert_eq!(About::read(&about.to_string()), Some(about.clone()));
            let newer = format!("since=1970 {about}");
            assert_eq!(About::read(&newer), Some(about), "a newer build may say more");
        }
        assert_eq!(About::read("cluster=many transport=x"), None);
        let older = About::read("cluster=7 transport=x region=us").unwrap();
        assert_eq!((older.durability, &*older.region), (None, "us"), "it knows of no modes");
    }
}
