//! Changes of what clients may do, and of who may come at all.

use super::Changed;
use super::regions::check_level;
use crate::grants::{GRANTS_MAX, Grant, REVOKED_MAX, check_prefixes, role_of_revoked};
use crate::topology::ClusterFile;
use meridian_core::level::Level;
use meridian_core::principal::Role;
use std::collections::BTreeSet;

pub(super) fn allow(file: &mut ClusterFile, name: String, grant: Option<Grant>) -> Changed {
    if file.insecure_plain_text {
        return Err("this cluster speaks plain text: nobody knows who its clients are".into());
    }
    file.configuration.key_prefixes.remove(&name); // The grant is another now, or none.
    let grants = &mut file.configuration.grants;
    let Some(grant) = grant else {
        return match grants.remove(&name) {
            Some(_) => Ok(None),
            None => Err(format!("client {name} has no grant: it may do all")),
        };
    };
    grant.check(&name)?;
    grants.insert(name, grant);
    match grants.len() > GRANTS_MAX {
        true => Err(format!("{GRANTS_MAX} clients have grants: more is not possible")),
        false => Ok(None),
    }
}

/// As [`allow`], and the client may use the keys that begin so.
pub(super) fn allow_keys(
    file: &mut ClusterFile,
    name: String,
    grant: Grant,
    prefixes: BTreeSet<String>,
) -> Changed {
    check_level(file, Level::KEY_GRANTS, "clients with grants have keys")?;
    check_prefixes(&prefixes)?;
    let allowed = allow(file, name.clone(), Some(grant))?;
    file.configuration.key_prefixes.insert(name, prefixes);
    Ok(allowed)
}

pub(super) fn revoke(file: &mut ClusterFile, principal: String) -> Changed {
    if file.insecure_plain_text {
        return Err("this cluster speaks plain text: there are no certificates".into());
    }
    match role_of_revoked(&principal)? {
        Role::Node | Role::Client | Role::Admin => {}
        Role::Watcher => check_level(file, Level::WATCHERS, "watchers are revoked")?,
    }
    let revoked = &mut file.configuration.revoked;
    revoked.insert(principal);
    match revoked.len() > REVOKED_MAX {
        true => Err(format!("{REVOKED_MAX} are revoked: begin with a new authority")),
        false => Ok(None),
    }
}
