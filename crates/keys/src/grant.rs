//! What a client may do with keys that may not do all (decision 93).
//!
//! The desk that reads a request looks at it with the grant that its client has at that moment,
//! before anything of it is begun: it is carried out as a whole, or refused as a whole. What that
//! desk passes on to other threads was looked at. One thing is filtered where the keys are: what
//! SCAN shows ([`crate::desk::passing::Walk`]).

use crate::access::Access;
use crate::command::{Command, Watch};
use crate::resp::Reply;
use bytes::Bytes;
use meridian_core::PLANTED_BUGS;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// So many bytes of a key are quoted in an error.
const QUOTED_MAX: usize = 128;

/// What a client may do with keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// It may use the keys that begin with one of these. Without any it may do nothing at all.
    pub prefixes: Vec<Bytes>,
    /// It changes nothing.
    pub read_only: bool,
}

impl Grant {
    /// Whether the key is within it; of what keys begin with: whether all of them are.
    pub fn has(&self, key: &[u8]) -> bool {
        self.prefixes.iter().any(|prefix| key.starts_with(prefix))
    }

    /// Whether the client may ask for that.
    ///
    /// # Errors
    /// The error to answer with: that begins with `NOPERM`, as those of access lists of Redis do.
    pub fn check(&self, command: &Command<'_>) -> Result<(), Reply> {
        if self.prefixes.is_empty() {
            return Err(refused("the grant of this client has no keys".into()));
        }
        match command {
            Command::One { key, access } | Command::Once { key, access, .. } => {
                self.check_access(key, access)
            }
            Command::Many { each, .. } => {
                each.iter().try_for_each(|(key, access)| self.check_access(key, access))
            }
            Command::Settled { key, .. } | Command::Watch(Watch::Key(key) | Watch::Prefix(key)) => {
                self.check_key(key)
            }
            Command::Size => Err(tells_of_all("DBSIZE")),
            Command::Info(_) => Err(tells_of_all("INFO")),
            // They tell nothing of what others have: a walk shows what the grant has.
            Command::Scan(_)
            | Command::Named(_)
            | Command::Session(..)
            | Command::Slot(_)
            | Command::Connection(_)
            | Command::Describe(_)
            | Command::Settings(_) => Ok(()),
        }
    }

    /// Whether the client may know what that key has, or what all keys have that begin so.
    ///
    /// # Errors
    /// As [`Grant::check`].
    pub fn check_key(&self, key: &[u8]) -> Result<(), Reply> {
        if self.has(key) {
            return Ok(());
        }
        let quoted = String::from_utf8_lossy(&key[..key.len().min(QUOTED_MAX)]);
        let prefixes = self.prefixes.iter().map(|of| format!("{:?}", String::from_utf8_lossy(of)));
        let prefixes = prefixes.collect::<Vec<_>>().join(" or ");
        Err(refused(format!(
            "no permission for key {quoted:?}: the grant of this client has keys that begin with \
             {prefixes}"
        )))
    }

    fn check_access(&self, key: &[u8], access: &Access) -> Result<(), Reply> {
        self.check_key(key)?;
        match access {
            Access::Write(_) | Access::Modify(_) if self.read_only => {
                Err(refused("no permission to change keys: the grant is read-only".into()))
            }
            Access::Read(_) | Access::Write(_) | Access::Modify(_) => Ok(()),
        }
    }
}

/// What clients may do that may not do all, by the names in their certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants(BTreeMap<String, Arc<Grant>>);

impl Grants {
    /// Those of these clients: of each the name, what its keys begin with, and whether it changes
    /// nothing.
    pub fn new<'a>(all: impl Iterator<Item = (&'a String, &'a BTreeSet<String>, bool)>) -> Grants {
        let grant = |(name, prefixes, read_only): (&String, &BTreeSet<String>, bool)| {
            let prefixes = prefixes.iter().map(|prefix| Bytes::from(prefix.clone())).collect();
            (name.clone(), Arc::new(Grant { prefixes, read_only }))
        };
        Grants(all.map(grant).collect())
    }

    /// Whether all clients may do all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What the client of this name may do, if it may not do all.
    pub fn of(&self, name: &str) -> Option<Arc<Grant>> {
        self.0.get(name).cloned()
    }
}

/// A planted bug, for the tests of the checkers.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// None.
    #[default]
    Correct,
    /// Of a command on several keys only the first is looked at.
    LooksAtFirstKey,
    /// Of the prefixes of a grant only the first counts.
    LooksAtFirstPrefix,
    /// SCAN shows the keys of all.
    ShowsAll,
    /// What is refused is done all the same.
    DoesAnyway,
    /// Who watches what it may not see any more goes on.
    WatchesOn,
}

impl Mutation {
    /// Whether this is `bug` and bugs can be planted at all: false at compile time in a release
    /// build.
    pub(crate) fn is(self, bug: Mutation) -> bool {
        PLANTED_BUGS && self == bug
    }

    /// [`Grant::check`], or what the bug makes of it.
    pub(crate) fn check(self, grant: &Grant, command: &Command<'_>) -> Result<(), Reply> {
        match command {
            Command::Many { each, .. } if self.is(Mutation::LooksAtFirstKey) => {
                let mut first = each.iter().take(1);
                first.try_for_each(|(key, access)| grant.check_access(key, access))
            }
            command if self.is(Mutation::LooksAtFirstPrefix) => {
                let prefixes = grant.prefixes.iter().take(1).cloned().collect();
                Grant { prefixes, read_only: grant.read_only }.check(command)
            }
            command => grant.check(command),
        }
    }
}

/// What is answered to who asks for more than is granted.
fn refused(why: String) -> Reply {
    let remedy = "an admin changes that with `meridian cluster allow NAME --keys PREFIX`";
    Reply::Error(format!("NOPERM {why}; {remedy}").into())
}

fn tells_of_all(name: &str) -> Reply {
    let why = format!("no permission for {name}: it tells of the keys of others; SCAN shows own");
    Reply::Error(format!("NOPERM {why}").into())
}

#[cfg(test)]
mod tests;
