//! Access control lists, as Linux keeps them in extended attributes (`posix_acl_xattr.h`).
//!
//! The kernel of the client decides by them who may do what, and [`crate::access`] as whom a client
//! may act. The tree keeps the permission bits of
//! an inode and its list in step, and hands the list of a directory down to what is made in it, as
//! local file systems do (withdrawn POSIX 1003.1e, draft 17).
//!
//! Invariant A1: an inode with a list for access has the permission bits that follow from it; a
//! list that says no more than the bits is not kept.

use crate::FsError;
use crate::inode::Inode;
use crate::operation::NewNode;
use crate::types::{Kind, Name};
use bytes::{BufMut, Bytes, BytesMut};
use imbl::OrdMap;

/// The extended attribute with the list that is in force.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The one with the list that a directory hands down.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

/// The only version of the format.
const VERSION: u32 = 2;
/// Read, write, execute.
const ALL: u16 = 0o7;

/// To whom an entry applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tag {
    Owner,
    User,
    OwningGroup,
    Group,
    /// What users and groups that are named, and the owning group, have at most.
    Mask,
    Other,
}

/// The numbers that Linux has for them, in the order of a list.
const TAGS: [(u16, Tag); 6] = [
    (0x01, Tag::Owner),
    (0x02, Tag::User),
    (0x04, Tag::OwningGroup),
    (0x08, Tag::Group),
    (0x10, Tag::Mask),
    (0x20, Tag::Other),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: Tag,
    permissions: u16,
    /// Which user or group, if it is named.
    id: u32,
}

/// A list that is well formed: its entries in order, one for each of those that must be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl(Vec<Entry>);

impl Acl {
    /// Reads the value of an extended attribute.
    ///
    /// # Errors
    /// [`FsError::Invalid`] if it is not well formed.
    pub fn read(value: &[u8]) -> Result<Acl, FsError> {
        let (version, rest) = value.split_first_chunk::<4>().ok_or(FsError::Invalid)?;
        let (entries, left) = rest.as_chunks::<8>();
        if u32::from_le_bytes(*version) != VERSION || !left.is_empty() {
            return Err(FsError::Invalid);
        }
        let entries: Option<Vec<_>> = entries.iter().map(read_entry).collect();
        let acl = Acl(entries.ok_or(FsError::Invalid)?);
        if acl.is_whole() { Ok(acl) } else { Err(FsError::Invalid) }
    }

    fn is_whole(&self) -> bool {
        let Acl(entries) = self;
        let count = |tag| entries.iter().filter(|entry| entry.tag == tag).count();
        let named = count(Tag::User) + count(Tag::Group);
        let one = [Tag::Owner, Tag::OwningGroup, Tag::Other].into_iter().all(|tag| count(tag) == 1);
        let masked = count(Tag::Mask) == 1 || count(Tag::Mask) == 0 && named == 0;
        one && masked && entries.is_sorted_by_key(|entry| entry.tag)
    }

    /// The value of an extended attribute.
    pub fn write(&self) -> Bytes {
        let mut value = BytesMut::new();
        value.put_u32_le(VERSION);
        for entry in &self.0 {
            let number = TAGS.iter().find(|(_, tag)| *tag == entry.tag).expect("all are there").0;
            value.put_u16_le(number);
            value.put_u16_le(entry.permissions);
            value.put_u32_le(entry.id);
        }
        value.freeze()
    }

    /// Whether it says no more than permission bits can.
    pub fn is_plain(&self) -> bool {
        self.0.len() == 3
    }

    /// The users that are named, and what each may do.
    pub fn users(&self) -> impl Iterator<Item = (u32, u16)> + '_ {
        self.masked(|entry| entry.tag == Tag::User).map(|entry| (entry.id, entry.permissions))
    }

    /// The groups, of which that is the owning one, and what each may do.
    pub fn groups(&self, owning: u32) -> impl Iterator<Item = (u32, u16)> + '_ {
        let all = self.masked(|entry| matches!(entry.tag, Tag::OwningGroup | Tag::Group));
        all.map(move |entry| match entry.tag {
            Tag::OwningGroup => (owning, entry.permissions),
            _ => (entry.id, entry.permissions),
        })
    }

    /// Entries, with no more than the mask allows.
    fn masked(&self, of: impl Fn(&Entry) -> bool) -> impl Iterator<Item = Entry> {
        let mask = self.0.iter().find(|entry| entry.tag == Tag::Mask);
        let mask = mask.map_or(ALL, |entry| entry.permissions);
        let all = self.0.iter().filter(move |entry| of(entry));
        all.map(move |entry| Entry { permissions: entry.permissions & mask, ..*entry })
    }

    /// The permission bits that follow from it.
    pub fn permissions(&self) -> u16 {
        let of = |shown: Tag| {
            let found = self.0.iter().find(|entry| entry.tag == shown);
            found.map(|entry| entry.permissions)
        };
        let group = of(Tag::Mask).or_else(|| of(Tag::OwningGroup));
        let bits = |of: Option<u16>, shift: u16| of.unwrap_or_default() << shift;
        bits(of(Tag::Owner), 6) | bits(group, 3) | bits(of(Tag::Other), 0)
    }

    /// Each entry that permission bits show, changed by `change`, which is given the three bits of
    /// `mode` for it.
    fn with(mut self, mode: u16, change: impl Fn(u16, u16) -> u16) -> Acl {
        let masked = self.0.iter().any(|entry| entry.tag == Tag::Mask);
        let group = if masked { Tag::Mask } else { Tag::OwningGroup };
        for (shown, shift) in [(Tag::Owner, 6), (group, 3), (Tag::Other, 0)] {
            for entry in self.0.iter_mut().filter(|entry| entry.tag == shown) {
                entry.permissions = change(entry.permissions, mode >> shift & ALL);
            }
        }
        self
    }

    /// It after `chmod`.
    fn with_mode(self, mode: u16) -> Acl {
        self.with(mode, |_, bits| bits)
    }

    /// What is handed down to what is made with `mode`: no more than both allow.
    fn within_mode(self, mode: u16) -> Acl {
        self.with(mode, |permissions, bits| permissions & bits)
    }
}

fn read_entry(bytes: &[u8; 8]) -> Option<Entry> {
    let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let (_, tag) = TAGS.into_iter().find(|(number, _)| *number == half(0))?;
    let permissions = Some(half(2)).filter(|bits| bits & !ALL == 0)?;
    let id = u32::from(half(4)) | u32::from(half(6)) << 16;
    Some(Entry { tag, permissions, id })
}

/// Whether that extended attribute is a list.
pub(crate) fn is_list(name: &Name) -> bool {
    [ACCESS, DEFAULT].contains(&&name[..])
}

/// Checks a list that an inode is to get, and gives it the permission bits of one for access. What
/// is left to be kept, if anything.
///
/// # Errors
/// [`FsError::Invalid`] if it is not well formed, or such an inode has none.
pub(crate) fn set(inode: &mut Inode, name: &Name, value: Bytes) -> Result<Option<Bytes>, FsError> {
    let acl = Acl::read(&value)?;
    let is_default = &name[..] == DEFAULT;
    if inode.kind == Kind::Symlink || is_default && inode.kind != Kind::Directory {
        return Err(FsError::Invalid);
    }
    if is_default {
        return Ok(Some(value));
    }
    inode.mode = inode.mode & !0o777 | acl.permissions();
    Ok((!acl.is_plain()).then_some(value))
}

/// The permission bits of an inode were set: its list follows.
pub(crate) fn follow_mode(inode: &mut Inode) {
    let Some(value) = inode.xattrs.get(ACCESS) else { return };
    let acl = Acl::read(value).expect("A1: it was checked when it was set");
    inode.xattrs.insert(Bytes::from_static(ACCESS), acl.with_mode(inode.mode).write());
}

/// What `node`, made in `above`, gets of its list, if there is one; else the umask is applied.
pub(crate) fn inherit(above: &Inode, node: &mut NewNode) -> OrdMap<Name, Bytes> {
    let mut lists = OrdMap::new();
    let default = above.xattrs.get(DEFAULT).filter(|_| node.kind != Kind::Symlink);
    let Some(default) = default else {
        node.mode &= !(node.umask & 0o777);
        return lists;
    };
    let acl = Acl::read(default).expect("A1: it was checked when it was set");
    let acl = acl.within_mode(node.mode);
    node.mode = node.mode & !0o777 | acl.permissions();
    if !acl.is_plain() {
        lists.insert(Bytes::from_static(ACCESS), acl.write());
    }
    if node.kind == Kind::Directory {
        lists.insert(Bytes::from_static(DEFAULT), default.clone());
    }
    lists
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn list(entries: &[(Tag, u16, u32)]) -> Acl {
        Acl(entries
            .iter()
            .map(|(tag, permissions, id)| Entry { tag: *tag, permissions: *permissions, id: *id })
            .collect())
    }

    fn masked() -> Acl {
        let named = [(Tag::Owner, 7, 0), (Tag::User, 6, 9), (Tag::OwningGroup, 5, 0)];
        list(&[&named[..], &[(Tag::Mask, 6, 0), (Tag::Other, 4, 0)]].concat())
    }

    #[test]
    fn what_is_written_is_read_and_what_is_malformed_refused() {
        let acl = masked();
        let value = acl.write();
        assert_eq!(Acl::read(&value), Ok(acl));
        for end in 0..value.len() {
            assert_eq!(Acl::read(&value[..end]), Err(FsError::Invalid), "{end} bytes");
        }
        let no_mask = [(Tag::Owner, 7, 0), (Tag::User, 6, 9), (Tag::OwningGroup, 5, 0)];
        let no_mask = list(&[&no_mask[..], &[(Tag::Other, 4, 0)]].concat());
        assert_eq!(Acl::read(&no_mask.write()), Err(FsError::Invalid));
        let disorder = list(&[(Tag::OwningGroup, 7, 0), (Tag::Owner, 6, 0), (Tag::Other, 4, 0)]);
        assert_eq!(Acl::read(&disorder.write()), Err(FsError::Invalid));
        let too_much = list(&[(Tag::Owner, 8, 0), (Tag::OwningGroup, 6, 0), (Tag::Other, 4, 0)]);
        assert_eq!(Acl::read(&too_much.write()), Err(FsError::Invalid));
    }

    #[test]
    fn the_mask_stands_for_the_group() {
        assert_eq!(masked().permissions(), 0o764);
        let changed = masked().with_mode(0o641);
        assert_eq!(changed.permissions(), 0o641);
        assert_eq!(changed.0[2].permissions, 5, "that of the owning group stays");
        let made = masked().within_mode(0o640);
        assert_eq!((made.permissions(), made.is_plain()), (0o640, false));
        let plain = list(&[(Tag::Owner, 6, 0), (Tag::OwningGroup, 4, 0), (Tag::Other, 0, 0)]);
        assert!(plain.is_plain());
        assert_eq!(plain.with_mode(0o751).permissions(), 0o751);
    }
}
