//! How programs hand over what they have seen in a mount, and go on from what others have
//! (decision 65): two questions by `ioctl` on anything that they may open there. So it takes no
//! right to write, and goes in a mount that is read-only.
//!
//! Numbers are those of [`TOKEN`] and [`AFTER`], words are text with a NUL behind, in as many bytes
//! as the number says.

use meridian_client::files::token::{AWAIT, AWAIT_MAX};
use meridian_client::{ClientError, Files, TakeError};
use meridian_fuse::Reply;
use meridian_fuse::control::{self, Number};
use rustix::fs::{Mode, OFlags};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Asks for the token of what was seen and written in the mount.
pub const TOKEN: Number = control::number(b'M', 1);
/// Asks to go on as the session that gave a token: `TOKEN`, or `TOKEN MILLISECONDS`. The answer
/// says why it fails.
pub const AFTER: Number = control::number(b'M', 2);

/// For as long the kernel keeps attributes that are not held: two ticks of its clock, of which the
/// slowest makes a hundred in a second.
const TICKS: Duration = Duration::from_millis(20);

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The path cannot be opened, or is in no mount that knows the question.
    #[error("{0}")]
    System(io::Error),
    /// The mount says why.
    #[error("{0}")]
    Refused(String),
}

/// The token of the mount in which `path` is.
///
/// # Errors
/// If it is in none, or not all that was written there can be stored.
pub fn token_of(path: &Path) -> Result<String, AskError> {
    let open = open(path)?;
    // Pages that programs have written as memory.
    rustix::fs::syncfs(&open).map_err(|error| AskError::System(error.into()))?;
    control::ask::<TOKEN>(&open, "").map_err(why)
}

/// Has the mount in which `path` is go on as the session that gave `token`, once it has all that
/// that one saw of files; it waits for so long.
///
/// # Errors
/// If it is in none, or that is no token of its cluster, or time is up.
pub fn take_token(path: &Path, token: &str, wait: Duration) -> Result<(), AskError> {
    let words = format!("{token} {}", wait.as_millis());
    control::ask::<AFTER>(&open(path)?, &words).map(drop).map_err(why)
}

fn open(path: &Path) -> Result<rustix::fd::OwnedFd, AskError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|error| AskError::System(error.into()))
}

fn why((error, said): (io::Error, Option<String>)) -> AskError {
    match said.filter(|said| !said.is_empty()) {
        Some(said) => AskError::Refused(said),
        None => AskError::System(error),
    }
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Token,
    After(String, Duration),
}

/// Why it is not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("what was written could not be stored: {0}")]
    Unsaved(ClientError),
    #[error(transparent)]
    Taken(#[from] TakeError),
}

impl Asked {
    /// What a program asks by that number; `None` if it is none of ours.
    pub fn read(number: u32, data: &[u8]) -> Option<Asked> {
        let words = control::read(data);
        match Number::from(number) {
            TOKEN => Some(Asked::Token),
            AFTER => {
                let (token, ms) = words.split_once(' ').unwrap_or((&words, ""));
                let wait = ms.trim().parse().map_or(AWAIT, Duration::from_millis);
                Some(Asked::After(token.into(), wait.min(AWAIT_MAX)))
            }
            _ => None,
        }
    }

    /// Does it; the answer.
    pub async fn answer(self, files: &Arc<Files>) -> Result<String, Failure> {
        match self {
            Asked::Token => files.token().await.map_err(Failure::Unsaved),
            Asked::After(token, wait) => {
                files.take_token(token.as_bytes(), wait).await?;
                // What was held the kernel has dropped. The rest it keeps for no longer than this.
                tokio::time::sleep(TICKS).await;
                Ok(String::new())
            }
        }
    }
}

impl Failure {
    fn errno(&self) -> i32 {
        match self {
            Failure::Unsaved(error) => error.errno(),
            Failure::Taken(error) => error.errno(),
        }
    }
}

/// Tells the program, which has `room` for so many bytes.
pub(crate) fn tell(result: Result<String, Failure>, room: u32, reply: Reply) {
    let (errno, words) = match result {
        Ok(words) => (0, words),
        Err(failure) => (failure.errno(), failure.to_string()),
    };
    reply.controlled(-errno, &control::written(&words, room));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn after(words: &str) -> Option<Asked> {
        Asked::read(AFTER, &control::written(words, 99))
    }

    #[test]
    fn questions_are_understood() {
        let wanted = |ms| Some(Asked::After("m1-00".into(), Duration::from_millis(ms)));
        assert_eq!(Asked::read(TOKEN, &[0; 8]), Some(Asked::Token));
        assert_eq!((after("m1-00"), after("m1-00 70")), (wanted(5000), wanted(70)));
        assert_eq!(after("m1-00 99999999999"), wanted(600_000), "no longer than that");
        assert_eq!(after("m1-00 soon"), wanted(5000));
        assert_eq!(Asked::read(0x5401, &[]), None, "one of a terminal");
    }

    #[test]
    fn what_is_in_no_mount_says_so() {
        let dir = tempfile::tempdir().unwrap();
        for told in [token_of(dir.path()).map(drop), take_token(dir.path(), "m1-00", TICKS)] {
            let Err(AskError::System(error)) = told else { panic!("{told:?}") };
            assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
        }
    }
}
