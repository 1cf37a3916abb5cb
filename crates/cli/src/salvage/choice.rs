//! Which of what a node had is asked for.

use anyhow::{Context, ensure};
use meridian_fs::inventory::{Inventory, Item};
use meridian_fs::types::{Attributes, Kind};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// What is asked for.
pub struct Choice {
    /// The items, by their place among all.
    pub items: Vec<usize>,
    /// The same of the names that lead to nothing here.
    pub astray: Vec<usize>,
}

impl Choice {
    /// What is at `only` and below it, and is not in `against` as it is here.
    ///
    /// # Errors
    /// If nothing is at that path, or `against` cannot be read.
    pub fn new(
        inventory: &Inventory,
        only: Option<&str>,
        against: Option<&Path>,
    ) -> anyhow::Result<Choice> {
        let only = only.unwrap_or("/");
        ensure!(
            only.starts_with('/'),
            "{only} is not a path of the tree: name it from the root, as /us/home"
        );
        let asked = |path: &[u8]| is_below(path, only.as_bytes());
        let items = (0..inventory.items.len()).filter(|at| asked(&inventory.items[*at].path));
        let astray = (0..inventory.astray.len()).filter(|at| asked(&inventory.astray[*at].path));
        let mut choice = Choice { items: items.collect(), astray: astray.collect() };
        ensure!(
            !choice.items.is_empty() || !choice.astray.is_empty(),
            "nothing that the node had is at {only}; without --only all that it had is listed"
        );
        if let Some(against) = against {
            ensure!(against.is_dir(), "{} is not a directory", against.display());
            let mut differ = Vec::new();
            for at in std::mem::take(&mut choice.items) {
                if differs(&inventory.items[at], against)? {
                    differ.push(at);
                }
            }
            choice.items = differ;
        }
        Ok(choice)
    }

    /// The items, and the directories above them, in their order.
    pub fn with_those_above(&self, inventory: &Inventory) -> Vec<usize> {
        let above: BTreeSet<&[u8]> =
            self.items.iter().flat_map(|at| above(&inventory.items[*at].path)).collect();
        let is_above = |at: &usize| {
            let Item { path, attributes, .. } = &inventory.items[*at];
            attributes.kind == Kind::Directory && above.contains(&path[..])
        };
        let all = (0..inventory.items.len()).filter(is_above).chain(self.items.iter().copied());
        all.collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// Whether `path` is `of`, or below it.
fn is_below(path: &[u8], of: &[u8]) -> bool {
    let end = of.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let rest = path.strip_prefix(&of[..end]);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// The paths of the directories above, from the root on.
fn above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    slashes.map(|(at, _)| if at == 0 { &path[..1] } else { &path[..at] })
}

/// The same path within another directory.
pub fn within(root: &Path, path: &[u8]) -> std::path::PathBuf {
    root.join(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path)))
}

/// Whether it is missing in `against`, or is something else or older there.
fn differs(item: &Item, against: &Path) -> anyhow::Result<bool> {
    let path = within(against, &item.path);
    match fs::symlink_metadata(&path) {
        Ok(there) => Ok(is_other(&item.attributes, &there)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(true)
        }
        Err(error) => Err(error).with_context(|| format!("cannot look at {}", path.display())),
    }
}

/// Whether what is there is another kind of thing; or if it is no directory, whose length and times
/// follow from what is in it, of another length or changed before.
fn is_other(here: &Attributes, there: &Metadata) -> bool {
    let kind = there.file_type();
    let same_kind = match here.kind {
        Kind::File => kind.is_file(),
        Kind::Directory => return !kind.is_dir(),
        Kind::Symlink => kind.is_symlink(),
        Kind::Fifo => kind.is_fifo(),
        Kind::Socket => kind.is_socket(),
        Kind::CharDevice => kind.is_char_device(),
        Kind::BlockDevice => kind.is_block_device(),
    };
    let changed = (here.mtime.seconds, i64::from(here.mtime.nanos));
    !same_kind || there.len() != here.size || (there.mtime(), there.mtime_nsec()) < changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_core::GroupId;
    use meridian_fs::types::{Place, Timestamp};

    fn item(path: &str, kind: Kind, size: u64) -> Item {
        let bare = Attributes::bare(Place::top(GroupId(1)), kind);
        let attributes = Attributes { size, mtime: Timestamp::from_millis(5000), ..bare };
        Item { path: path.into(), attributes, first: None }
    }

    fn inventory() -> Inventory {
        let directory = |path| item(path, Kind::Directory, 0);
        let file = |path| item(path, Kind::File, 3);
        let items = vec![
            directory("/"),
            directory("/us"),
            directory("/us/a"),
            file("/us/a/one"),
            file("/us/ab"),
            item("/us/link", Kind::Symlink, 3),
        ];
        let mut inventory = Inventory::default();
        inventory.items = items;
        inventory
    }

    fn chosen(only: &str) -> (Vec<usize>, Vec<usize>) {
        let choice = Choice::new(&inventory(), Some(only), None).unwrap();
        (choice.items.clone(), choice.with_those_above(&inventory()))
    }

    #[test]
    fn a_part_is_what_is_below_a_path_and_comes_with_the_directories_above() {
        assert_eq!(chosen("/"), ((0..6).collect(), (0..6).collect()));
        assert_eq!(chosen("/us/a"), (vec![2, 3], vec![0, 1, 2, 3]));
        assert_eq!(chosen("/us/a/"), chosen("/us/a"));
        assert_eq!(chosen("/us/ab"), (vec![4], vec![0, 1, 4]));
        for (only, why) in [("/eu", "nothing that the node had is at /eu"), ("us", "root")] {
            let error = Choice::new(&inventory(), Some(only), None).err().unwrap().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn what_is_elsewhere_as_it_is_here_is_left_out() {
        let root = tempfile::tempdir().unwrap();
        let against = || Choice::new(&inventory(), None, Some(root.path())).unwrap().items;
        assert_eq!(against(), [1, 2, 3, 4, 5]);
        let path = |name: &str| within(root.path(), name.as_bytes());
        fs::create_dir_all(path("/us/a")).unwrap();
        fs::write(path("/us/a/one"), "new").unwrap();
        fs::write(path("/us/ab"), "longer").unwrap();
        fs::write(path("/us/link"), "abc").unwrap();
        assert_eq!(against(), [4, 5], "another length, another kind");
        let file = fs::File::options().write(true).open(path("/us/a/one")).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(against(), [3, 4, 5], "older there");
        let error = Choice::new(&inventory(), None, Some(&path("/us/ab"))).err().unwrap();
        assert!(error.to_string().contains("is not a directory"), "{error}");
    }
}
