//! What is said of why updates failed, in messages to people.

use crate::client::Client;
use crate::error::ClientError;
use meridian_fs::FsError;
use meridian_host::api::ReplyBody;
use meridian_session::{Failure, Output, Part};

impl Client {
    /// Why `what` failed, of which the session has told this.
    pub(crate) fn unexpected(&self, what: &str, output: Output) -> ClientError {
        match output {
            Output::GaveUp { failure, .. } => self.error(what, failure),
            other => ClientError::Protocol(format!("{what} is answered by {other:?}")),
        }
    }

    /// Why `what` failed, in words.
    fn error(&self, what: &str, failure: Failure) -> ClientError {
        let topology = self.topology();
        match failure {
            Failure::Timeout { group } => {
                let what = format!("{what} in group {}", topology.group_name(group));
                ClientError::Timeout { what }
            }
            Failure::Unreachable { group } => {
                let whom = format!("any node of group {}", topology.group_name(group));
                ClientError::Unreachable { whom }
            }
            Failure::OutOfReach { group } => {
                let whom = format!("group {}", topology.group_name(group));
                match self.inner.driver.is_cut(group) {
                    true => tracing::debug!("{what}: nodes cannot reach {whom}"),
                    false => tracing::warn!("{what}: nodes cannot reach {whom}"),
                }
                ClientError::OutOfReach { whom }
            }
            Failure::Behind { groups } => {
                let names: Vec<_> = groups.iter().map(|of| topology.group_name(*of)).collect();
                let what = format!("what was seen of {}", names.join(", "));
                ClientError::Timeout { what }
            }
            Failure::NoSpace => FsError::NoSpace.into(),
            Failure::TooFewNodes { region } => {
                let name = &topology.regions[usize::from(region.0)].name;
                let whom = format!("enough nodes of region {name} for {what}");
                ClientError::Unreachable { whom }
            }
            Failure::Lost { block } => ClientError::Lost(format!("block {block} is on no node")),
            Failure::Beyond { part } => ClientError::Lost(beyond(part)),
            Failure::Refused(refusal) => ClientError::Refused(refusal),
            Failure::Strange(reply) => strange(&reply),
        }
    }
}

/// Why that part of a block is nowhere.
fn beyond(Part { block, start, len }: Part) -> String {
    let end = u64::from(start) + u64::from(len);
    format!(
        "what the file says is longer than the block: it names bytes {start} to {end} of block \
         {block}, which ends before that on each node that has it; write this part of the file \
         again, or remove the file"
    )
}

pub(crate) fn strange(reply: &ReplyBody) -> ClientError {
    let kind = match reply {
        ReplyBody::Updated { .. } => "Updated",
        ReplyBody::Answer { .. } => "Answer",
        ReplyBody::UpdatedAlong(_) => "UpdatedAlong",
        ReplyBody::AnswerAlong { .. } => "AnswerAlong",
        ReplyBody::Recalled { .. } => "Recalled",
        ReplyBody::Stored => "Stored",
        ReplyBody::Block(_) => "Block",
        ReplyBody::Blocks(_) => "Blocks",
        ReplyBody::Discarded => "Discarded",
        ReplyBody::Status(_) => "Status",
        ReplyBody::Snapshot(_) => "Snapshot",
        ReplyBody::Steps(_) => "Steps",
        ReplyBody::Refused(_) => "Refused",
    };
    ClientError::Protocol(format!("a reply that answers something else: {kind}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_core::BlockId;

    #[test]
    fn who_reads_beyond_a_block_is_told_which_block_and_how_far() {
        let block = BlockId(77);
        let words = beyond(Part { block, start: u32::MAX, len: 5000 });
        assert!(words.contains("what the file says is longer than the block"), "{words}");
        assert!(words.contains(&format!("bytes 4294967295 to 4294972295 of block {block}")));
    }
}
