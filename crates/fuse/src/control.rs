//! Questions of programs to a file system, which are no calls of files: `ioctl` with words both
//! ways. It takes no more than an open file or directory, also where nothing may be written.

use crate::raw;
use rustix::fd::AsFd;
use std::io;

/// The number of a question.
pub type Number = rustix::ioctl::Opcode;

/// So many bytes a question and its answer may have, with the NUL behind each.
pub const ROOM: usize = 12 << 10;

/// The number of a question that stands for `which` of a family.
pub const fn number(family: u8, which: u8) -> Number {
    rustix::ioctl::opcode::read_write::<[u8; ROOM]>(family, which)
}

/// Asks the file system of an open file or directory.
///
/// # Errors
/// Why it fails, and the answer all the same.
pub fn ask<const NUMBER: Number>(
    of: impl AsFd,
    words: &str,
) -> Result<String, (io::Error, Option<String>)> {
    let mut bytes = [0; ROOM];
    if words.len() >= ROOM {
        return Err((io::ErrorKind::InvalidInput.into(), None));
    }
    bytes[..words.len()].copy_from_slice(words.as_bytes());
    match raw::control::<NUMBER>(of.as_fd(), &mut bytes) {
        Ok(()) => Ok(read(&bytes)),
        // Who does not know the question has left it as it was.
        Err(error) => Err((error, Some(read(&bytes)).filter(|said| said != words))),
    }
}

/// The words of a question, or of an answer: up to the NUL.
pub fn read(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// The same as bytes, for an answer for which there is `room`; what is too long is cut.
pub fn written(words: &str, room: u32) -> Vec<u8> {
    let mut bytes = words.as_bytes().to_vec();
    bytes.truncate((room as usize).saturating_sub(1));
    bytes.push(0);
    bytes.truncate(room as usize);
    bytes
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_are_written() {
        assert_eq!(read(&written("token", 99)), "token");
        assert_eq!(written("token", 4), b"tok\0");
        assert_eq!((written("token", 0), read(b"")), (Vec::new(), String::new()));
    }

    #[test]
    fn who_is_no_such_file_system_does_not_know_the_question() {
        const OURS: Number = number(b'M', 99);
        let here = std::fs::File::open("/proc/self/exe").unwrap();
        let (error, said) = ask::<OURS>(&here, "who").unwrap_err();
        assert_eq!((error.raw_os_error(), said), (Some(libc::ENOTTY), None));
        let (error, _) = ask::<OURS>(&here, &"x".repeat(ROOM)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
