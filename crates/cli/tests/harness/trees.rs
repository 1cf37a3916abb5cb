//! The same tree through all mounts.

#![allow(clippy::unwrap_used)] // Part of tests.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// For how long a mount may show what was before: attributes live a moment in the kernel, and
/// another region's replica may be a little behind.
pub const SETTLE: Duration = Duration::from_secs(30);
/// How often is looked again.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// What is at a path, without times of reading: those are told late.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    mode: u32,
    links: u64,
    owner: (u32, u32),
    modified: (i64, i64),
    /// Of a file.
    len: u64,
    checksum: u64,
}

/// All below `top`, by path from there.
fn walk(top: &Path) -> std::io::Result<BTreeMap<PathBuf, Entry>> {
    let (mut found, mut left) = (BTreeMap::new(), vec![top.to_path_buf()]);
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            let meta = fs::symlink_metadata(&path)?;
            let (mut len, mut checksum) = (0, DefaultHasher::new());
            if meta.is_dir() {
                left.push(path.clone());
            } else {
                let bytes = fs::read(&path)?;
                assert_eq!(bytes.len() as u64, meta.len(), "{}", path.display());
                (len, _) = (meta.len(), checksum.write(&bytes));
            }
            let entry = Entry {
                mode: meta.mode(),
                links: meta.nlink(),
                owner: (meta.uid(), meta.gid()),
                modified: (meta.mtime(), meta.mtime_nsec()),
                len,
                checksum: checksum.finish(),
            };
            found.insert(path.strip_prefix(top).unwrap().to_path_buf(), entry);
        }
    }
    Ok(found)
}

/// What differs between two trees, for people.
fn difference(one: &BTreeMap<PathBuf, Entry>, two: &BTreeMap<PathBuf, Entry>) -> Vec<String> {
    let paths = one.keys().chain(two.keys().filter(|path| !one.contains_key(*path)));
    let differ = paths.filter(|path| one.get(*path) != two.get(*path));
    differ
        .map(|path| format!("{}: {:?}, {:?}", path.display(), one.get(path), two.get(path)))
        .collect()
}

/// All mounts show the same, by then at last: names, attributes and bytes.
pub fn check_equal(mounts: &[PathBuf; 3], settle: Duration) {
    let end = Instant::now() + settle;
    loop {
        let trees = mounts.each_ref().map(|mount| walk(mount));
        let wrong = match &trees {
            [Ok(one), Ok(two), Ok(three)] => {
                let wrong = [difference(one, two), difference(one, three)].concat();
                if wrong.is_empty() {
                    return eprintln!("{} files and directories are the same", one.len());
                }
                wrong
            }
            _ => trees.iter().filter_map(|t| Some(t.as_ref().err()?.to_string())).collect(),
        };
        let mounts = mounts.each_ref().map(|mount| mount.display().to_string()).join(", ");
        assert!(Instant::now() < end, "{mounts} differ:\n{}", wrong.join("\n"));
        std::thread::sleep(LOOK_AGAIN);
    }
}
