//! What a client kept back and sends together, in the order in which its programs did it
//! (decision 104).
//!
//! Invariants:
//! - B1: of a batch those parts are done that come before the first that is refused, each as if it
//!   came alone, and nothing of the others.
//! - B2: a name goes only from a directory that the client holds exclusively still, and what was
//!   written to a file comes to it only so: else another may have written there.

use crate::FsError;
use crate::apply::{Moment, apply};
use crate::execute::execute;
use crate::mutation::Mutation;
use crate::operation::{Done, Piece, Update, WriteAt};
use crate::settled::{Made, Setting};
use crate::tree::Tree;
use crate::types::{Name, Place, Rank, Timestamp};
use crate::vote::{conclude, prepare};
use meridian_core::{ClientId, GroupId};
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
    /// As [`Update::Unlink`] of a file that its client has not open, in the directory's partition;
    /// [`FsError::Stale`] if the client does not hold the directory exclusively.
    Unlink {
        /// The directory.
        parent: Place,
        /// The name that goes.
        name: Name,
        /// What it led to.
        child: Place,
    },
    /// As [`Update::Settle`] of a file in the directory's partition; [`FsError::Stale`] if the
    /// client does not hold the directory exclusively. From level [`Level::WRITTEN`] on.
    ///
    /// [`Level::WRITTEN`]: meridian_core::level::Level::WRITTEN
    Write(Box<Written>),
}

/// What was written to a file that is there, and set of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Written {
    /// The directory.
    pub parent: Place,
    /// The name that leads to the file.
    pub name: Name,
    /// The file.
    pub inode: Place,
    /// Where.
    pub at: WriteAt,
    /// What.
    pub pieces: Vec<Piece>,
    /// When. It was set at the operation's time, or before.
    pub written: Timestamp,
    /// What was set.
    pub settings: Vec<Setting>,
}

impl Kept {
    /// In which directory.
    pub fn parent(&self) -> Place {
        match self {
            Kept::Make(made) => made.parent,
            Kept::Unlink { parent, .. } => *parent,
            Kept::Write(written) => written.parent,
        }
    }

    /// What is made or written, or loses a name.
    pub fn child(&self) -> Place {
        match self {
            Kept::Make(made) => made.place(),
            Kept::Unlink { child, .. } => *child,
            Kept::Write(written) => written.inode,
        }
    }

    /// Its name.
    pub fn name(&self) -> &Name {
        match self {
            Kept::Make(made) => &made.name,
            Kept::Unlink { name, .. } => name,
            Kept::Write(written) => &written.name,
        }
    }

    /// The same as an update of its own.
    pub fn into_update(self) -> Update {
        match self {
            Kept::Make(made) => Update::Make(made),
            Kept::Unlink { parent, name, child } => {
                Update::Unlink { parent, name, child, keep_for: None }
            }
            Kept::Write(written) => {
                let Written { inode, at, pieces, written, settings, .. } = *written;
                Update::Settle { inode, at, pieces, written, settings }
            }
        }
    }
}

/// The partition of a batch, if it has any part.
pub(crate) fn partition_of(parts: &[Part]) -> Option<GroupId> {
    parts.first().map(|part| part.kept.parent().partition)
}

/// B1. The client holds capabilities under the name `by`, and has named these quotas.
pub(crate) fn run(
    tree: &mut Tree,
    parts: Vec<Part>,
    (by, quotas): (ClientId, &[Place]),
    rank: Rank,
) -> Result<Done, FsError> {
    if parts.len() > BATCH_MAX {
        return Err(FsError::Invalid);
    }
    let mut done = Vec::with_capacity(parts.len());
    let mut refused = None;
    for part in parts {
        match one(tree, part, (by, quotas), rank) {
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

fn one(
    tree: &mut Tree,
    Part { time, kept }: Part,
    (by, quotas): (ClientId, &[Place]),
    rank: Rank,
) -> Result<Done, FsError> {
    let (parent, child) = (kept.parent(), kept.child());
    if parent.partition != tree.group || child.partition != tree.group {
        return Err(FsError::Invalid);
    }
    let (update, moment) = (kept.into_update(), Moment { rank, time });
    if matches!(update, Update::Make(_)) {
        // What counts against a quota comes as an update of its own, which looks at its limits.
        tree.check_named(&update, &[])?;
        return execute(tree, update, moment);
    }
    let is_held =
        tree.caps.holds_alone(by, parent.ino) || tree.mutation.is(Mutation::RemovesUnheld);
    if matches!(update, Update::Settle { .. }) {
        tree.check_named(&update, &[])?;
        return if is_held { execute(tree, update, moment) } else { Err(FsError::Stale) };
    }
    tree.check_named(&update, quotas)?;
    let vote = prepare(tree, &update, None, moment);
    let conclusion = conclude(&update, &BTreeMap::from([(tree.group, &vote)]))?;
    if !is_held {
        return Err(FsError::Stale);
    }
    Ok(apply(tree, &update, conclusion, moment))
}
