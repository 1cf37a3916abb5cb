//! What a client kept back and sends together, in the order in which its programs did it
//! (decision 104).
//!
//! Invariant B1: of a batch those parts are done that come before the first that is refused, each
//! as if it came alone, and nothing of the others.

use crate::FsError;
use crate::apply::{Moment, apply};
use crate::execute::execute;
use crate::mutation::Mutation;
use crate::operation::{Done, Update};
use crate::settled::Made;
use crate::tree::Tree;
use crate::types::{Name, Place, Rank, Timestamp};
use crate::vote::{conclude, prepare};
use meridian_core::GroupId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// So many parts come in one batch at most.
pub const BATCH_MAX: usize = 256;

/// One change of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Part {
    /// When the program did it.
    pub time: Timestamp,
    /// What.
    pub kept: Kept,
}

/// What a client may keep back.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kept {
    /// As [`Update::Make`].
    Make(Box<Made>),
    /// As [`Update::Unlink`] of a file that its client has not open, in the directory's partition.
    Unlink {
        /// The directory.
        parent: Place,
        /// The name that goes.
        name: Name,
        /// What it led to.
        child: Place,
    },
}

impl Kept {
    /// In which directory.
    pub fn parent(&self) -> Place {
        match self {
            Kept::Make(made) => made.parent,
            Kept::Unlink { parent, .. } => *parent,
        }
    }

    /// What is made, or loses a name.
    pub fn child(&self) -> Place {
        match self {
            Kept::Make(made) => made.place(),
            Kept::Unlink { child, .. } => *child,
        }
    }

    /// Its name.
    pub fn name(&self) -> &Name {
        match self {
            Kept::Make(made) => &made.name,
            Kept::Unlink { name, .. } => name,
        }
    }

    /// The same as an update of its own.
    pub fn into_update(self) -> Update {
        match self {
            Kept::Make(made) => Update::Make(made),
            Kept::Unlink { parent, name, child } => {
                Update::Unlink { parent, name, child, keep_for: None }
            }
        }
    }
}

/// The partition of a batch, if it has any part.
pub(crate) fn partition_of(parts: &[Part]) -> Option<GroupId> {
    parts.first().map(|part| part.kept.parent().partition)
}

/// B1.
pub(crate) fn run(tree: &mut Tree, parts: Vec<Part>, rank: Rank) -> Result<Done, FsError> {
    if parts.len() > BATCH_MAX {
        return Err(FsError::Invalid);
    }
    let mut done = Vec::with_capacity(parts.len());
    let mut refused = None;
    for part in parts {
        match one(tree, part, rank) {
            Ok(end) => done.push(end),
            Err(error) => {
                refused = refused.or(Some(error));
                if !tree.mutation.is(Mutation::PassesRefused) {
                    break;
                }
            }
        }
    }
    Ok(Done::Batch { done, refused })
}

fn one(tree: &mut Tree, Part { time, kept }: Part, rank: Rank) -> Result<Done, FsError> {
    if [kept.parent(), kept.child()].iter().any(|place| place.partition != tree.group) {
        return Err(FsError::Invalid);
    }
    let (update, moment) = (kept.into_update(), Moment { rank, time });
    // What counts against a quota comes alone: a batch has none of their keys.
    tree.check_named(&update, &[])?;
    if matches!(update, Update::Make(_)) {
        return execute(tree, update, moment);
    }
    let vote = prepare(tree, &update, None, moment);
    let conclusion = conclude(&update, &BTreeMap::from([(tree.group, &vote)]))?;
    Ok(apply(tree, &update, conclusion, moment))
}
