//! What a program on this client sees of a file of which something is not yet stored.

use super::WriteBack;
use super::dirty::Dirty;
use super::flush::{Batch, Flight};
use meridian_fs::types::Attributes;
use std::ops::Range;

impl<H: Ord + Copy, E: Clone> WriteBack<H, E> {
    /// `attributes` as a program shall see them; `None` if that is known only after the flush.
    pub fn overlay(&self, mut attributes: Attributes) -> Option<Attributes> {
        if self.is_clean() {
            return Some(attributes);
        }
        if self.is_unsure() {
            return None;
        }
        attributes.size = self.end_over(attributes.size);
        let written = |attributes: &mut Attributes| {
            attributes.mtime = self.changed;
            attributes.ctime = attributes.ctime.max(self.changed);
        };
        if let Some(flight) = &self.flight {
            if flight.bytes() > 0 {
                written(&mut attributes);
            }
            flight.settings.show(&mut attributes);
        }
        if !self.dirty.is_empty() || !self.appended.is_empty() {
            written(&mut attributes);
        }
        self.settings.show(&mut attributes);
        Some(attributes)
    }

    /// Where the bytes with an offset end.
    fn positional_end(&self) -> u64 {
        let flying = match self.flight.as_ref().map(|flight| &*flight.batch) {
            Some(Batch::Positional(dirty)) => dirty.end(),
            Some(Batch::Append(_) | Batch::Nothing) | None => 0,
        };
        self.dirty.end().max(flying)
    }

    /// Whether bytes are appended of which nobody knows where they are, or will be; the owner is
    /// asked whether it knows where the file ends.
    pub fn appends_nowhere(&self, knows_end: impl FnOnce() -> bool) -> bool {
        self.append_flies() || self.appends() && !knows_end()
    }

    /// Where the file ends, of which a replica has `size` bytes.
    fn end_over(&self, size: u64) -> u64 {
        let before = self.positional_end().max(size + self.append_next());
        before + self.appended.len() as u64
    }

    /// What is buffered of a range of a file of which a replica has `size` bytes, each over those
    /// before; and where the file ends. No appended bytes fly.
    pub fn over(&self, range: Range<u64>, size: u64) -> (u64, Vec<(u64, Vec<u8>)>) {
        let cut = |at: u64, bytes: &[u8]| {
            let mut run = Dirty::default();
            run.write(at, bytes);
            run.within(range.clone())
        };
        let mut parts = match self.flight.as_ref().map(|flight| &*flight.batch) {
            Some(Batch::Append(bytes)) => cut(size, bytes),
            Some(Batch::Positional(_) | Batch::Nothing) | None => Vec::new(),
        };
        let end = self.end_over(size);
        parts.extend(self.within(range.clone()));
        parts.extend(cut(end - self.appended.len() as u64, &self.appended));
        (end, parts)
    }

    /// What of a range was written at an offset, each over those before.
    fn within(&self, range: Range<u64>) -> Vec<(u64, Vec<u8>)> {
        let mut parts = match self.flight.as_ref().map(|flight| &*flight.batch) {
            Some(Batch::Positional(dirty)) => dirty.within(range.clone()),
            Some(Batch::Append(_) | Batch::Nothing) | None => Vec::new(),
        };
        parts.extend(self.dirty.within(range));
        parts
    }

    /// All bytes of a range, as far as the file reaches, if the newest writes alone cover it, or no
    /// replica can have heard of the file.
    pub fn whole(&self, range: Range<u64>) -> Option<Vec<u8>> {
        if let Some(bytes) = self.dirty.whole(range.clone()) {
            return Some(bytes.to_vec());
        }
        let end = self.own_end()?.min(range.end);
        let place = |at: u64| usize::try_from(at - range.start).expect("within what is kept");
        let mut bytes = vec![0; end.checked_sub(range.start).map_or(0, |_| place(end))];
        for (at, part) in self.within(range.start..end) {
            bytes[place(at)..][..part.len()].copy_from_slice(&part);
        }
        Some(bytes)
    }

    /// Where the file ends, if no replica can have heard of it: what is appended begins there, and
    /// what was not written is a hole.
    pub(super) fn own_end(&self) -> Option<u64> {
        let sent = self.flight.as_ref().is_some_and(Flight::was_sent);
        let is_own = self.birth.is_some() && !sent && !self.appends();
        is_own.then(|| self.positional_end())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::writeback::Accepted;
    use crate::writeback::flush::Step;
    use meridian_core::{BlockId, GroupId, Time};
    use meridian_fs::types::{Ino, Place, Timestamp};
    use meridian_fs::{FsError, Kind};

    type File = WriteBack<u8, FsError>;

    const INODE: Place = Place { ino: Ino(7), partition: GroupId(1) };

    fn put(file: &mut File, offset: Option<u64>, data: &[u8]) {
        let accepted = file.accept(offset, data, Timestamp::default(), Time(1));
        assert_eq!(accepted, Accepted::Buffered);
    }

    /// The batch in flight is packed, and not sent.
    fn take_off(file: &mut File) {
        file.begin_flush(None);
        let Step::Pack(packing) = file.next_step() else { panic!("nothing is to be packed") };
        file.on_packed(packing.pack(INODE, || BlockId(9)));
    }

    /// What is read of a file of which a replica has this.
    fn read(file: &File, stored: &str) -> String {
        let (end, parts) = file.over(0..100, stored.len() as u64);
        let mut bytes = stored.as_bytes().to_vec();
        bytes.resize(end as usize, b'_');
        for (at, part) in parts {
            bytes[at as usize..][..part.len()].copy_from_slice(&part);
        }
        let bare = Attributes::bare(INODE, Kind::File);
        let shown = file.overlay(Attributes { size: stored.len() as u64, ..bare }).unwrap();
        assert_eq!(shown.size, end, "stat tells the same");
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn appended_bytes_lie_behind_all_that_leaves_before_them() {
        let mut file = File::default();
        put(&mut file, None, b"one");
        assert_eq!(read(&file, "stored"), "storedone");
        take_off(&mut file);
        put(&mut file, None, b"two");
        assert_eq!(read(&file, "stored"), "storedonetwo");
        let mut file = File::default();
        put(&mut file, Some(8), b"far");
        put(&mut file, None, b"one");
        assert_eq!(read(&file, "stored"), "stored__farone");
        take_off(&mut file);
        assert_eq!(read(&file, "stored"), "stored__farone");
        // What leaves first lies under what is written later.
        let mut file = File::default();
        put(&mut file, None, b"one");
        take_off(&mut file);
        put(&mut file, Some(7), b"N");
        assert_eq!(read(&file, "stored"), "storedoNe");
    }

    #[test]
    fn where_appended_bytes_lie_is_known_until_they_fly() {
        let mut file = File::default();
        assert!(!file.appends_nowhere(|| panic!("there are none")));
        put(&mut file, None, b"one");
        assert!(file.appends_nowhere(|| false) && !file.appends_nowhere(|| true));
        take_off(&mut file);
        assert!(file.appends_nowhere(|| false) && !file.appends_nowhere(|| true));
        assert!(matches!(file.next_step(), Step::Send { .. }));
        assert!(file.appends_nowhere(|| true), "a replica may have them or not");
    }

    #[test]
    fn a_part_of_it_is_cut_to_its_range() {
        let mut file = File::default();
        put(&mut file, None, b"abc");
        assert_eq!(file.over(2..4, 3), (6, vec![(3, b"a".to_vec())]));
        assert_eq!(file.over(5..9, 3), (6, vec![(5, b"c".to_vec())]));
        assert_eq!(file.over(6..9, 3), (6, Vec::new()));
    }
}
