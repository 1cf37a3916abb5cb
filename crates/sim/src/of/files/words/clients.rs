//! What clients ask nodes and are answered, in words.

use super::tree::{of_answer, of_inodes, of_query, of_result, of_update};
use crate::of::drain::words::{of_after, of_blocks};
use crate::words::{list, of_bytes};
use meridian_core::MessageId;
use meridian_host::ConnectionId;
use meridian_host::api::{Reply, ReplyBody, Request, RequestBody, SnapshotStand, SnapshotStep};
use meridian_host::update::Payload;
use meridian_multicast::Start;

/// A connection is told by its client: the lowest bits are the node.
const NODE_BITS: u32 = 16;

/// The client at the other end.
pub fn of_client(connection: ConnectionId) -> String {
    format!("client {}", connection.0 >> NODE_BITS)
}

/// The updates and blocks that a request is about.
pub fn asked(request: &Request) -> Vec<String> {
    match &request.body {
        RequestBody::Update { start, .. } | RequestBody::UpdateAlong { start, .. } => {
            vec![start.id.to_string()]
        }
        RequestBody::Steps { of } => vec![of.to_string()],
        RequestBody::PutBlock { block, .. } | RequestBody::GetBlock { block, .. } => {
            vec![block.to_string()]
        }
        RequestBody::Discard { blocks } => blocks.iter().map(ToString::to_string).collect(),
        RequestBody::Read { .. }
        | RequestBody::ReadAlong { .. }
        | RequestBody::Recalls { .. }
        | RequestBody::ListBlocks { .. }
        | RequestBody::Status
        | RequestBody::Scrub
        | RequestBody::Snapshot { .. } => Vec::new(),
    }
}

/// The update that a reply is about.
pub fn answered(reply: &Reply) -> Option<MessageId> {
    match &reply.body {
        ReplyBody::Updated { id, .. } => Some(*id),
        ReplyBody::UpdatedAlong(told) => Some(told.id),
        _ => None,
    }
}

/// What a client asks.
pub fn of_request(connection: ConnectionId, request: &Request) -> String {
    let (client, id) = (of_client(connection), request.id);
    format!("{client} asks: {} (its {id})", of_body(&request.body))
}

fn of_body(body: &RequestBody) -> String {
    match body {
        RequestBody::Update { group, start } | RequestBody::UpdateAlong { group, start, .. } => {
            format!("{}, by {} of g{}", of_payload(start), start.id, group.0)
        }
        RequestBody::Read { query, .. } | RequestBody::ReadAlong { query, .. } => of_query(query),
        RequestBody::Recalls { group, .. } => format!("what it is to let go of g{}", group.0),
        RequestBody::PutBlock { block, data } => {
            format!("store block {block}, {}", of_bytes(data.len()))
        }
        RequestBody::GetBlock { block, offset, len } => {
            format!("read block {block}, {len} bytes at {offset}")
        }
        RequestBody::Discard { blocks } => format!("discard blocks {}", of_blocks(blocks)),
        RequestBody::ListBlocks { after } => format!("list blocks{}", of_after(*after)),
        RequestBody::Status => "status".into(),
        RequestBody::Scrub => "scrub".into(),
        RequestBody::Snapshot { group, name, step } => {
            format!("snapshot {name:x} of g{}: {}", group.0, of_step(step))
        }
        RequestBody::Steps { of } => format!("steps of {of}"),
    }
}

/// What an update does, and which others it cancels.
pub fn of_payload(start: &Start) -> String {
    let Ok(payload) = postcard::from_bytes::<Payload>(&start.payload) else {
        return format!("{} that are no update", of_bytes(start.payload.len()));
    };
    let cancels = match payload.cancels.is_empty() {
        true => String::new(),
        false => format!(", cancel {}", list(&payload.cancels)),
    };
    let what = payload.update().map_or("change nothing".into(), of_update);
    format!("{what}{cancels}")
}

fn of_step(step: &SnapshotStep) -> String {
    match step {
        SnapshotStep::Keep => "keep".into(),
        SnapshotStep::Cut(at) => format!("cut at {}", at.0),
        SnapshotStep::Look { at, queries } => {
            format!("at {}: {}", at.0, list(queries.iter().map(of_query)))
        }
        SnapshotStep::Renew => "renew".into(),
        SnapshotStep::End => "end".into(),
    }
}

/// What a client is answered.
pub fn of_reply(connection: ConnectionId, reply: &Reply) -> String {
    let (client, id) = (of_client(connection), reply.id);
    format!("answers {client}: {} (its {id})", of_answered(&reply.body))
}

fn of_answered(body: &ReplyBody) -> String {
    match body {
        ReplyBody::Updated { id, ts, result, .. } => {
            format!("{id} at {}: {}", ts.0, of_result(result))
        }
        ReplyBody::UpdatedAlong(told) => {
            let (id, ts, along) = (told.id, told.ts.0, told.along.len());
            format!("{id} at {ts}: {}, {along} answers along", of_result(&told.result))
        }
        ReplyBody::Answer { result, .. } => of_answer(result),
        ReplyBody::AnswerAlong { result, .. } => format!("{}, more along", of_answer(result)),
        ReplyBody::Recalled { inodes, .. } => format!("let go of {}", of_inodes(inodes)),
        ReplyBody::Stored => "stored".into(),
        ReplyBody::Block(bytes) => of_bytes(bytes.len()),
        ReplyBody::Discarded => "discarded".into(),
        ReplyBody::Blocks(blocks) => of_blocks(blocks),
        ReplyBody::Status(_) => "its status".into(),
        ReplyBody::Snapshot(stand) => of_snapshot(stand),
        ReplyBody::Refused(refusal) => format!("refused: {refusal}"),
        ReplyBody::Steps(report) => format!("{} steps", report.steps.len()),
    }
}

fn of_snapshot(stand: &SnapshotStand) -> String {
    match stand {
        SnapshotStand::Kept => "kept".into(),
        SnapshotStand::Passed => "passed".into(),
        SnapshotStand::Waiting => "waiting".into(),
        SnapshotStand::Whole(_) => "whole".into(),
        SnapshotStand::Unknown => "unknown".into(),
        SnapshotStand::Answers(answers) => list(answers.iter().map(of_answer)),
    }
}
