//! Changes of keys as they are committed at a node.

use super::connection::{Connection, Failure};
use super::error::KeysError;
use super::{Inner, Watched};
use bytes::Bytes;
use meridian_keys::resp::answer::Answered;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How long a node may take to begin.
const BEGIN: Duration = Duration::from_secs(2);
/// How long to wait when no node answers.
const PAUSE: Duration = Duration::from_millis(100);

/// What a watch tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A node begins to tell: first the present values, then all changes. Also when another node
    /// had to be asked: keys that were removed meanwhile are not told.
    Began,
    /// The key has this value.
    Set(Bytes, Bytes),
    /// The key has none, any more or yet.
    Removed(Bytes),
    /// No node answers; told once, and they are asked until one does.
    Away {
        /// What the last one said.
        why: String,
    },
}

/// Changes of keys. Each value that is committed at the node is told, in the key's order, but for
/// those that were replaced before the node could tell.
#[derive(Debug)]
pub struct Watch {
    inner: Arc<Inner>,
    watched: Watched,
    at: usize,
    connection: Option<Connection>,
    /// So many nodes in a row have not answered.
    away: usize,
}

impl Watch {
    pub(super) fn new(inner: Arc<Inner>, watched: Watched, at: usize) -> Watch {
        Watch { inner, watched, at, connection: None, away: 0 }
    }

    /// What is told next. May be given up and called again.
    ///
    /// # Errors
    /// If what answers is no server of keys, or refuses.
    pub async fn next(&mut self) -> Result<Change, KeysError> {
        loop {
            let Some(connection) = &mut self.connection else {
                let Some(why) = self.begin().await? else {
                    self.away = 0;
                    return Ok(Change::Began);
                };
                self.leave();
                self.away = self.away.saturating_add(1);
                if self.away == self.inner.options.addresses.len() {
                    return Ok(Change::Away { why });
                }
                sleep(PAUSE).await;
                continue;
            };
            match connection.next().await {
                Ok(Answered::Array(words)) => return change(words),
                Ok(Answered::Error(_)) | Err(Failure::Broken(_)) => self.leave(),
                Ok(other) => return Err(KeysError::Protocol(format!("{other:?}"))),
                Err(Failure::Protocol(error)) => return Err(error),
            }
        }
    }

    /// The next node is asked from now on.
    fn leave(&mut self) {
        (self.connection, self.at) = (None, self.at + 1);
    }

    /// Asks a node to begin; why it does not, if it does not.
    async fn begin(&mut self) -> Result<Option<String>, KeysError> {
        let address = &self.inner.options.addresses[self.at % self.inner.options.addresses.len()];
        let (form, word) = match &self.watched {
            Watched::Key(key) => (&b"KEY"[..], key),
            Watched::Prefix(prefix) => (&b"PREFIX"[..], prefix),
        };
        let asked = async {
            let mut connection = Connection::open(address, &self.inner.options.security).await?;
            let answer = connection.ask(&[b"MERIDIAN.WATCH", form, word]).await?;
            Ok::<_, Failure>((connection, answer))
        };
        match timeout(BEGIN, asked).await {
            Ok(Ok((connection, Answered::Line(_)))) => {
                self.connection = Some(connection);
                Ok(None)
            }
            // Another node would say the same.
            Ok(Ok((_, Answered::Error(why))))
                if why.starts_with("ERR ") || why.starts_with("NOPERM ") =>
            {
                Err(KeysError::Refused(why))
            }
            Ok(Ok((_, other))) => Ok(Some(format!("{other:?}"))),
            Ok(Err(Failure::Protocol(error))) => Err(error),
            Ok(Err(Failure::Broken(why))) => Ok(Some(why)),
            Err(_) => Ok(Some(format!("no answer for {BEGIN:?}"))),
        }
    }
}

fn change(words: Vec<Answered>) -> Result<Change, KeysError> {
    match <[Answered; 3]>::try_from(words) {
        Ok([_, Answered::Bulk(key), Answered::Bulk(value)]) => Ok(Change::Set(key, value)),
        Ok([_, Answered::Bulk(key), Answered::Null]) => Ok(Change::Removed(key)),
        Ok(other) => Err(KeysError::Protocol(format!("{other:?}"))),
        Err(other) => Err(KeysError::Protocol(format!("{other:?}"))),
    }
}
