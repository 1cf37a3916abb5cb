//! Quotas of directories, and how much room there is below one.

use crate::error::ClientError;
use crate::files::attributes::{Totals, strange};
use crate::files::{Files, LOOK_AGAIN};
use bytes::Bytes;
use meridian_fs::quota::{Limits, Quota, Stage};
use meridian_fs::types::Ino;
use meridian_fs::{Answer, FsError, Query, Update};

/// The extended attribute that shows, and of a directory changes, what may lie below it. Only root
/// may set it.
pub const QUOTA: &[u8] = b"user.meridian.quota";

impl Files {
    /// The quota that `ino` has, or else counts against, if any.
    ///
    /// # Errors
    /// If it is gone.
    pub async fn quota(&self, ino: Ino) -> Result<Option<Quota>, ClientError> {
        match self.ask(ino, |inode| Query::Quota { inode }).await?.0 {
            Answer::Quota(quota) => Ok(quota),
            _ => Err(strange()),
        }
    }

    /// The quota that `ino` has itself, if any.
    ///
    /// # Errors
    /// If it is gone.
    pub async fn own_quota(&self, ino: Ino) -> Result<Option<Quota>, ClientError> {
        match self.ask(ino, |inode| Query::OwnQuota { inode }).await?.0 {
            Answer::Quota(quota) => Ok(quota),
            _ => Err(strange()),
        }
    }

    /// Limits what may lie below a directory, or takes its quota away. If it is not empty what is
    /// below it is counted from then on: see [`Quota::stage`].
    ///
    /// # Errors
    /// [`FsError::Busy`] while something is counted in its partition; [`FsError::NoAttribute`] if
    /// it has no quota that could go.
    pub async fn set_quota(&self, ino: Ino, limits: Option<Limits>) -> Result<(), ClientError> {
        for _ in 0..LOOK_AGAIN {
            let parent = self.entry(ino, &Bytes::from_static(b"..")).await?.place;
            let inode = self.place_of(ino); // It may have been found elsewhere by the question.
            let update = Update::SetQuota { inode, parent, limits };
            match self.client.update(&update).await {
                Err(ClientError::Fs(FsError::Stale)) => {}
                other => return other.map(drop),
            }
        }
        Err(FsError::Stale.into())
    }

    /// How much there is, and how much more there may be, where `ino` is: below the directory whose
    /// quota it counts against, or else in its partition.
    ///
    /// # Errors
    /// If the partition does not answer.
    pub async fn totals_at(&self, ino: Ino) -> Result<Totals, ClientError> {
        let quota = match self.quota(ino).await {
            Err(ClientError::Fs(_)) => None, // It is removed; its mount is not.
            other => other?,
        };
        let all = self.totals(self.place_of(ino).partition).await?;
        Ok(quota.map_or(all, |quota| within(all, &quota)))
    }

    /// The value of [`QUOTA`].
    pub(crate) async fn quota_in_words(&self, ino: Ino) -> Result<Bytes, ClientError> {
        let quota = self.quota(ino).await?.ok_or(FsError::NoAttribute)?;
        let Quota { limits, bytes, inodes, stage } = quota;
        let limit = |limit: Option<u64>| limit.map_or("none".into(), |limit| limit.to_string());
        let (most_bytes, most_inodes) = (limit(limits.bytes), limit(limits.inodes));
        let goes_on = match stage {
            Stage::Complete => "",
            Stage::Counts => " counting",
            Stage::Leaves => " leaving",
        };
        Ok(format!("bytes={bytes}/{most_bytes} inodes={inodes}/{most_inodes}{goes_on}").into())
    }
}

/// What a program sees below a directory with a quota.
fn within(all: Totals, quota: &Quota) -> Totals {
    let Quota { limits, bytes, inodes, .. } = *quota;
    let left = limits.bytes.map_or(all.room, |limit| limit.saturating_sub(bytes));
    Totals { inodes, bytes, room: all.room.min(left), inodes_max: limits.inodes }
}

/// The limits that a value of [`QUOTA`] asks for: `bytes=N inodes=N`, each of them a number or
/// `none`.
pub(crate) fn limits_of(value: &[u8]) -> Option<Limits> {
    let mut limits = Limits::default();
    for part in std::str::from_utf8(value).ok()?.split_whitespace() {
        let (what, limit) = part.split_once('=')?;
        let limit = match limit {
            "none" => None,
            number => Some(number.parse().ok()?),
        };
        match what {
            "bytes" => limits.bytes = limit,
            "inodes" => limits.inodes = limit,
            _ => return None,
        }
    }
    Some(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_from_words() {
        let limits = |bytes, inodes| Some(Limits { bytes, inodes });
        assert_eq!(limits_of(b"bytes=10 inodes=none"), limits(Some(10), None));
        assert_eq!(limits_of(b"inodes=3"), limits(None, Some(3)));
        for wrong in ["bytes", "bytes=x", "bytes=-1", "files=1"] {
            assert_eq!(limits_of(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
