//! What calls would ask of nodes, found out by making them: a client that plans looks at the tree
//! as any other does, but sends no update, and stores no block. So what it tells is what the code
//! says that other clients run.
//!
//! It must not keep looks ([`Client::keep_looks`]): a session asks for that by updates of its own.

use crate::client::{Client, lock};
use crate::files::Files;
use meridian_core::GroupId;
use meridian_fs::types::Name;
use meridian_fs::{Ino, Query, Update};
use std::sync::Mutex;

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// A replica of this partition was asked something.
    Look(GroupId),
    /// A block of a file in this partition was fetched.
    Fetch(GroupId),
    /// A block of a file would be stored.
    Store {
        /// In this partition.
        partition: GroupId,
        /// So long it is.
        bytes: usize,
    },
    /// This would be multicast.
    Update(Update),
}

/// What a client that plans has asked for; nothing at any other.
#[derive(Debug)]
pub(crate) struct Plan(Option<Mutex<Vec<Asked>>>);

impl Plan {
    pub(crate) fn new(plans: bool) -> Plan {
        Plan(plans.then(Mutex::default))
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn note(&self, asked: Asked) {
        if let Some(noted) = &self.0 {
            lock(noted).push(asked);
        }
    }
}

impl Client {
    /// What was asked for since this was called last, in order; nothing unless the client plans.
    pub fn planned(&self) -> Vec<Asked> {
        self.inner
            .plan
            .0
            .as_ref()
            .map(|noted| std::mem::take(&mut *lock(noted)))
            .unwrap_or_default()
    }
}

impl Files {
    /// Whether a look at that name would be answered without asking a node.
    pub fn holds(&self, parent: Ino, name: &Name) -> bool {
        let query = Query::Lookup { parent: self.place_of(parent), name: name.clone() };
        self.client.inner.driver.holds(&query)
    }
}
