//! What a client makes it holds, if it asks for that (decision 105): the capability comes with the
//! update, so the client may keep what its reply shows, and need not ask for it.
//!
//! The update names what it makes before it is ordered, so it has the keys of these capabilities.
//! Nobody else can hold what was not there; a lease of the client may begin or end before or after
//! the update, as with any grant.
//!
//! Directories are held so since there are capabilities. All else is, and what comes in batches,
//! when the cluster goes by [`Level::MADE`](meridian_core::level::Level::MADE).

use crate::batch::Kept;
use crate::mutation::Mutation;
use crate::operation::{Done, Operation, Update};
use crate::tree::Tree;
use crate::types::{Attributes, Ino, Kind, Place, Rank};
use meridian_core::{ClientId, MessageId};
use serde::{Deserialize, Serialize};

/// A file that was made and that its client holds: as [`Done::Written`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MadeHeld {
    /// The byte at which the write started.
    pub offset: u64,
    /// After it.
    pub attributes: Attributes,
    /// As in [`Done::Written`].
    pub merge_from: Option<u64>,
}

impl Operation {
    /// Whether its client shall hold what it makes.
    pub(crate) fn holds_made(&self) -> bool {
        let makes =
            matches!(self.update, Update::Create { .. } | Update::Make(_) | Update::Batch(_));
        self.keeps && makes
    }

    /// What its client shall hold of what it makes, by a message named `id`.
    pub(crate) fn made(&self, id: MessageId) -> Vec<Place> {
        if self.keeps { self.update.makes(id) } else { Vec::new() }
    }
}

impl Update {
    /// Whether it makes a directory.
    pub fn makes_directory(&self) -> bool {
        matches!(self, Update::Create { node, .. } if node.kind == Kind::Directory)
    }

    /// Whether it takes a name away, and makes none.
    pub fn removes(&self) -> bool {
        match self {
            Update::Unlink { .. } | Update::Rmdir { .. } => true,
            Update::Batch(parts) => {
                parts.iter().all(|part| matches!(part.kept, Kept::Unlink { .. }))
            }
            _ => false,
        }
    }

    /// What it makes that its client may want to hold, if its message is named `id`.
    pub fn makes(&self, id: MessageId) -> Vec<Place> {
        match self {
            Update::Create { parent, .. } => {
                vec![Place { ino: Ino::made(parent.partition, id), ..*parent }]
            }
            Update::Make(made) => vec![made.place()],
            Update::Batch(parts) => {
                let made = parts.iter().filter(|part| matches!(part.kept, Kept::Make(_)));
                made.map(|part| part.kept.child()).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// The message of that rank has done so, and its client wants to hold what it has made: it knows
/// all of it.
pub(crate) fn hold_made(tree: &mut Tree, by: ClientId, done: Done, rank: Rank) -> Done {
    let mut holds = |made: &Attributes| {
        let ino = made.place.ino;
        // A batch may take its name again.
        tree.get(ino).is_some_and(|inode| inode.nlink > 0)
            && (tree.mutation.is(Mutation::GrantsUnnoted)
                || !tree.caps.grant(by, &[ino], rank).is_empty())
    };
    let mut held = |done: Done| match done {
        Done::Attributes(made) if holds(&made) => Done::Held(made),
        Done::Written { offset, attributes, merge_from } if holds(&attributes) => {
            Done::Made(Box::new(MadeHeld { offset, attributes, merge_from }))
        }
        other => other,
    };
    match done {
        Done::Batch { done, refused } => {
            Done::Batch { done: done.into_iter().map(held).collect(), refused }
        }
        one => held(one),
    }
}

impl Done {
    /// What it says but for what the client holds, and what that is: what was made.
    pub fn apart(self) -> (Done, Vec<Attributes>) {
        match self {
            Done::Held(made) => (Done::Attributes(made), vec![made]),
            Done::Made(made) => {
                let MadeHeld { offset, attributes, merge_from } = *made;
                (Done::Written { offset, attributes, merge_from }, vec![attributes])
            }
            Done::Batch { done, refused } => {
                let (done, made): (Vec<_>, Vec<_>) = done.into_iter().map(Done::apart).unzip();
                (Done::Batch { done, refused }, made.into_iter().flatten().collect())
            }
            other => (other, Vec::new()),
        }
    }
}
