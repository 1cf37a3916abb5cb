//! Which partitions an update concerns, and whether it takes room there.

use crate::batch::{self, Kept, Part};
use crate::operation::{CapStep, Update};
use crate::settled::Setting;
use crate::types::Place;
use meridian_core::GroupId;
use std::collections::BTreeSet;

impl Update {
    /// Whether only nodes say that, on behalf of a partition. The tree believes them: no node has
    /// such an update ordered for a client.
    pub fn is_of_nodes(&self) -> bool {
        matches!(
            self,
            Update::Reap { .. }
                | Update::Expire { .. }
                | Update::RaiseHorizon { .. }
                | Update::Count { .. }
                | Update::AddRegion { .. }
                | Update::RemoveRegion { .. }
                | Update::Caps {
                    step: CapStep::Expire { .. } | CapStep::ExpireExclusive { .. },
                    ..
                }
        )
    }

    /// Whether the tree keeps more after it than before: what is refused on a full disk. What gives
    /// room back or moves something goes on there, with what that takes.
    pub fn needs_room(&self) -> bool {
        if let Update::Batch(parts) = self {
            let needs = |part: &Part| matches!(part.kept, Kept::Make(_) | Kept::Write(_));
            return parts.iter().any(needs);
        }
        if let Update::Settle { pieces, settings, .. } = self {
            let is_xattr = |setting: &Setting| matches!(setting, Setting::Xattr { .. });
            return !pieces.is_empty() || settings.iter().any(is_xattr);
        }
        !matches!(
            self,
            Update::Unlink { .. }
                | Update::Rmdir { .. }
                | Update::Rename { whiteout: None, .. }
                | Update::SetAttributes { .. }
                | Update::Merge { .. }
                | Update::PunchHole { .. }
                | Update::RemoveXattr { .. }
                | Update::SetDurability { .. }
                | Update::Lock { .. }
                | Update::Leave { .. }
                | Update::Unlock { .. }
                | Update::Untangle { .. }
                | Update::Hold { .. }
                | Update::Forget { .. }
                | Update::Reap { .. }
                | Update::NoteReads { .. }
                | Update::NoteTop { .. }
                | Update::Count { .. }
                | Update::Renew { .. }
                | Update::Expire { .. }
                | Update::Caps { .. }
                | Update::RaiseHorizon { .. }
                | Update::Mark { .. }
                | Update::RemoveRegion { .. }
        )
    }

    /// The partitions that it concerns: where it must be multicast. At least one, but for a cycle
    /// of nobody.
    pub fn partitions(&self) -> BTreeSet<GroupId> {
        let mut all = BTreeSet::new();
        let mut add = |place: &Place| {
            all.insert(place.partition);
        };
        match self {
            Update::Create { parent, .. } | Update::CreateUnnamed { parent, .. } => add(parent),
            Update::Make(made) => add(&made.parent),
            Update::Batch(parts) => all.extend(batch::partition_of(parts)),
            Update::Link { target, parent, .. } => {
                add(target);
                add(parent);
            }
            Update::Unlink { parent, child, .. } | Update::Rmdir { parent, child, .. } => {
                add(parent);
                add(child);
            }
            Update::Rename { from, to, moved, replaced, ancestors, .. } => {
                [from, to, moved].into_iter().for_each(&mut add);
                replaced.iter().chain(ancestors).for_each(add);
            }
            Update::SetAttributes { inode, .. }
            | Update::Write { inode, .. }
            | Update::Settle { inode, .. }
            | Update::Merge { inode, .. }
            | Update::Extend { inode, .. }
            | Update::PunchHole { inode, .. }
            | Update::SetXattr { inode, .. }
            | Update::RemoveXattr { inode, .. }
            | Update::SetDurability { inode, .. }
            | Update::Lock { inode, .. }
            | Update::Leave { inode, .. }
            | Update::Unlock { inode, .. }
            | Update::SetQuota { inode, .. }
            | Update::Count { root: inode, .. } => add(inode),
            Update::Hold { partition, .. }
            | Update::Forget { partition, .. }
            | Update::Reap { partition, .. }
            | Update::NoteReads { partition, .. }
            | Update::NoteTop { partition, .. }
            | Update::Renew { partition, .. }
            | Update::Expire { partition, .. }
            | Update::Caps { partition, .. }
            | Update::RaiseHorizon { partition, .. } => {
                all.insert(*partition);
            }
            Update::Mark { partitions } => all.extend(partitions),
            Update::AddRegion { .. } => drop(all.insert(GroupId::GLOBAL)),
            Update::RemoveRegion { partition, .. } => all.extend([GroupId::GLOBAL, *partition]),
            Update::Untangle { cycle } => cycle.iter().for_each(|wait| add(&wait.inode)),
            Update::PlaceDirectory { parent, child, to, .. } => {
                add(parent);
                add(child);
                all.insert(*to);
            }
        }
        all
    }
}
