//! The kernel's table of mounts, as this process sees it.

use crate::about;
use meridian_client::Files;
use rustix::event::{PollFd, PollFlags, poll};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, PipeReader};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Weak;

/// Where it is.
const TABLE: &str = "/proc/self/mountinfo";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Where.
    pub at: PathBuf,
    /// The type of its file system.
    pub kind: String,
    /// How it is mounted, as `ro` and `noatime`.
    pub words: Vec<String>,
}

/// All mounts, in the order in which they lie on each other.
///
/// # Errors
/// As those of reading a file.
pub fn read() -> io::Result<Vec<Line>> {
    fs::read(TABLE).map(|table| parse(&table))
}

/// The lines of a table: the fifth word is where, with blanks and the like as `\040`; the sixth
/// tells how; the type stands behind a word `-`.
fn parse(table: &[u8]) -> Vec<Line> {
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let line = |line: &[u8]| {
        let mut words = line.split(|byte| *byte == b' ').skip(4);
        let (at, how) = (words.next()?, words.next()?);
        let kind = words.skip_while(|word| *word != b"-").nth(1)?;
        Some(Line {
            at: OsString::from_vec(path(at)).into(),
            kind: text(kind),
            words: how.split(|byte| *byte == b',').map(text).collect(),
        })
    };
    table.split(|byte| *byte == b'\n').filter_map(line).collect()
}

fn path(word: &[u8]) -> Vec<u8> {
    let (mut path, mut rest) = (Vec::new(), word);
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                path.push(byte);
                rest = &after[3..];
            }
            _ => {
                path.push(*first);
                rest = after;
            }
        }
    }
    path
}

/// Notes reads, or no more, as the table says of the mount at `at`, until `ended` is closed at its
/// other end. FUSE does not tell when somebody mounts it anew with other words.
///
/// # Errors
/// If the table cannot be read or watched.
pub(crate) fn follow(at: &Path, files: &Weak<Files>, ended: &PipeReader) -> io::Result<()> {
    let table = File::open(TABLE)?;
    loop {
        let mut lines = read()?.into_iter().rev();
        let ours = lines.find(|line| line.at == at && line.kind == about::TYPE);
        if let (Some(line), Some(files)) = (ours, files.upgrade()) {
            files.note_reads(!line.words.iter().any(|word| word == "noatime" || word == "ro"));
        }
        // The kernel takes a change of the table for something urgent.
        let changed = PollFd::new(&table, PollFlags::PRI);
        let mut awaited = [changed, PollFd::new(ended, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut awaited, None))?;
        if !awaited[1].revents().is_empty() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_as_the_kernel_writes_them() {
        let table = b"36 35 98:0 / /mnt/a\\040b rw shared:1 - ext3 /dev/root rw\n\
            1 2 0:1 / /x\\134y ro,noatime - t s o\n";
        let line = |at: &str, kind: &str, words: &[&str]| {
            let words = words.iter().map(|word| word.to_string()).collect();
            Line { at: at.into(), kind: kind.into(), words }
        };
        let expected = [line("/mnt/a b", "ext3", &["rw"]), line("/x\\y", "t", &["ro", "noatime"])];
        assert_eq!(parse(table), expected);
        assert!(read().unwrap().iter().any(|line| line.at == Path::new("/proc")));
    }
}
