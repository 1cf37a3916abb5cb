//! What is said of updates in messages to people.

use meridian_fs::Update;

/// The system call that mostly makes such an update.
pub(crate) fn name_of(update: &Update) -> &'static str {
    match update {
        Update::Create { .. } => "create",
        Update::CreateUnnamed { .. } => "create without a name",
        Update::Link { .. } => "link",
        Update::Unlink { .. } => "unlink",
        Update::Rmdir { .. } => "rmdir",
        Update::Rename { .. } => "rename",
        Update::SetAttributes { .. } => "setattr",
        Update::Write { .. } => "write",
        Update::Merge { .. } => "merge",
        Update::Extend { .. } => "extend",
        Update::PunchHole { .. } => "punch hole",
        Update::SetXattr { .. } => "setxattr",
        Update::RemoveXattr { .. } => "removexattr",
        Update::Lock { .. } => "lock",
        Update::Leave { .. } => "end to wait for a lock",
        Update::Unlock { .. } => "unlock",
        Update::Untangle { .. } => "untangle locks",
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
    }
}
