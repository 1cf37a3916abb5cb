//! What updates are called, in messages to people.

use crate::operation::Update;

impl Update {
    /// The system call that mostly makes such an update.
    pub fn name(&self) -> &'static str {
        match self {
            Update::Create { .. } => "create",
            Update::Make(_) => "create and write",
            Update::Batch(_) => "changes kept back",
            Update::CreateUnnamed { .. } => "create without a name",
            Update::Link { .. } => "link",
            Update::Unlink { .. } => "unlink",
            Update::Rmdir { .. } => "rmdir",
            Update::Rename { .. } => "rename",
            Update::SetAttributes { .. } => "setattr",
            Update::Write { .. } => "write",
            Update::Settle { .. } => "write and set",
            Update::Merge { .. } => "merge",
            Update::Extend { .. } => "extend",
            Update::PunchHole { .. } => "punch hole",
            Update::SetXattr { .. } => "setxattr",
            Update::RemoveXattr { .. } => "removexattr",
            Update::Lock { .. } => "lock",
            Update::Leave { .. } => "end to wait for a lock",
            Update::Unlock { .. } => "unlock",
            Update::Untangle { .. } => "untangle locks",
            Update::SetDurability { .. } => "durability",
            Update::SetQuota { .. } => "quota",
            Update::Count { .. } => "count for a quota",
            Update::Hold { .. } => "hold",
            Update::Forget { .. } => "forget",
            Update::Reap { .. } => "reap",
            Update::RaiseHorizon { .. } => "raise the horizon of blocks",
            Update::Caps { .. } => "capabilities",
            Update::NoteTop { .. } => "note a placed directory",
            Update::NoteReads { .. } => "note reads",
            Update::Renew { .. } => "renew",
            Update::Expire { .. } => "expire",
            Update::PlaceDirectory { .. } => "place",
            Update::Mark { .. } => "mark a snapshot",
            Update::AddRegion { .. } => "add a region",
            Update::RemoveRegion { .. } => "remove a region",
        }
    }
}
