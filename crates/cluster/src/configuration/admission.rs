//! Changes of what clients may do, and of who may come at all.

use super::Changed;
use crate::grants::{GRANTS_MAX, Grant, REVOKED_MAX, check_revoked};
use crate::topology::ClusterFile;

pub(super) fn allow(file: &mut ClusterFile, name: String, grant: Option<Grant>) -> Changed {
    if file.insecure_plain_text {
        return Err("this cluster speaks plain text: nobody knows who its clients are".into());
    }
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

pub(super) fn revoke(file: &mut ClusterFile, principal: String) -> Changed {
    if file.insecure_plain_text {
        return Err("this cluster speaks plain text: there are no certificates".into());
    }
    check_revoked(&principal)?;
    let revoked = &mut file.configuration.revoked;
    revoked.insert(principal);
    match revoked.len() > REVOKED_MAX {
        true => Err(format!("{REVOKED_MAX} are revoked: begin with a new authority")),
        false => Ok(None),
    }
}
