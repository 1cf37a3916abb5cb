//! What a client may do, as the configuration says by the name in its certificate (decision 93),
//! and whose certificates count no more (decision 94).
//!
//! Who has no grant may do all that any client may.

use meridian_core::principal::{Principal, Role, is_name};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// So many clients may have grants: every node looks one up for each request.
pub const GRANTS_MAX: usize = 4096;
/// So many users, and so many groups, a grant names at most: they travel with each update.
pub const IDENTITIES_MAX: usize = 64;
/// So many principals may be revoked. A list that is full is made short by a new authority.
pub const REVOKED_MAX: usize = 4096;
/// So many prefixes of keys a client is granted at most: each key that it asks for is compared with
/// all of them.
pub const PREFIXES_MAX: usize = 16;
/// So many bytes such a prefix has at most.
pub const PREFIX_MAX: usize = 256;
/// So many bytes the path in a grant has at most.
pub const PATH_MAX: usize = 4096;

/// What a client may do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// Only what counts against the quota of this directory.
    #[serde(default)]
    pub below: Option<Below>,
    /// It changes nothing.
    #[serde(default)]
    pub read_only: bool,
    /// Its root is root.
    #[serde(default)]
    pub root: bool,
    /// The users as whom it may act; all but root if there are none.
    #[serde(default)]
    pub users: BTreeSet<u32>,
    /// The groups as which it may act; all but root's if there are none.
    #[serde(default)]
    pub groups: BTreeSet<u32>,
    /// The user and the group that its root becomes; nobody if that is not said.
    #[serde(default)]
    pub squash: Option<(u32, u32)>,
}

/// A directory that has a quota of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Below {
    /// The path by which it was found, for people: the directory may have moved since.
    pub path: String,
    /// The number of its partition.
    pub partition: u16,
    /// Its number.
    pub ino: u64,
}

impl Grant {
    /// Whether a client of that name may have it.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self, name: &str) -> Result<(), String> {
        if !is_name(name) {
            return Err(format!("{name:?} is not the name of a client in a certificate"));
        }
        let (users, groups) = (self.users.len(), self.groups.len());
        if users.max(groups) > IDENTITIES_MAX {
            return Err(format!("a grant names {IDENTITIES_MAX} users or groups at most"));
        }
        if self.users.contains(&0) || self.groups.contains(&0) {
            return Err("user 0 and group 0 are root: say --root".into());
        }
        if self.squash.is_some_and(|(uid, gid)| uid == 0 || gid == 0) {
            return Err("root cannot be squashed to root: say --root".into());
        }
        if self.root && (users > 0 || groups > 0 || self.squash.is_some()) {
            return Err(
                "who is root may act as anybody: leave --uid, --gid and --squash out".into()
            );
        }
        match &self.below {
            Some(below) if below.path.len() > PATH_MAX => {
                Err(format!("a path has {PATH_MAX} bytes at most"))
            }
            _ => Ok(()),
        }
    }
}

/// Whether a client may be granted the keys that begin with one of these.
///
/// # Errors
/// What is wrong, in words.
pub fn check_prefixes(prefixes: &BTreeSet<String>) -> Result<(), String> {
    if !(1..=PREFIXES_MAX).contains(&prefixes.len()) {
        let len = prefixes.len();
        return Err(format!("{len} prefixes of keys are named: 1 to {PREFIXES_MAX} can be"));
    }
    if prefixes.contains("") {
        return Err("all keys begin with the empty prefix: name one that is longer".into());
    }
    match prefixes.iter().any(|prefix| prefix.len() > PREFIX_MAX) {
        true => Err(format!("a prefix of keys has {PREFIX_MAX} bytes at most")),
        false => Ok(()),
    }
}

/// How a principal of the cluster is called on the list of those that are revoked: `ROLE/NAME`.
pub fn revoked_name(role: Role, name: &str) -> String {
    format!("{}/{name}", role.name())
}

/// The role of the principal that the text names.
///
/// # Errors
/// If it names none: how one is named.
pub fn role_of_revoked(text: &str) -> Result<Role, String> {
    let uri = format!("meridian://cluster/{text}");
    let roles = Role::ALL.map(Role::name).join(", ");
    let wrong = |_| format!("{text:?} is not ROLE/NAME with a role of {roles}");
    uri.parse::<Principal>().map(|named| named.role).map_err(wrong)
}
