//! What a client asks of a node: its replicas, or the node itself.

use super::{Node, Output};
use crate::api::{ALONG_MAX, Refusal, Reply, ReplyBody, Request, RequestBody};
use crate::replica::{ConnectionId, Looks, Waiter, Wish};
use crate::update::Payload;
use meridian_core::{Event, GroupId, Outbox, Time};
use meridian_fs::{Query, Rights};
use meridian_multicast::{self as multicast, Start};

impl Node {
    pub(super) fn on_request(
        &mut self,
        now: Time,
        connection: ConnectionId,
        request: Request,
        out: &mut Outbox<Self>,
    ) {
        let waiter = Waiter { connection, request: request.id };
        if let RequestBody::Discard { blocks } = request.body {
            return self.on_discard(waiter, blocks, out);
        }
        if let RequestBody::Steps { of } = request.body {
            return self.tell_steps(now, waiter, of, out);
        }
        self.note_request(now, &request);
        let Some(group) = request.body.group() else { return };
        let rights = self.rights_of(connection);
        let Some(replica) = self.replicas.get_mut(&group) else {
            let body = ReplyBody::Refused(Refusal::NoReplica(group));
            let reply = Reply { id: request.id, body };
            out.output(Output::Reply { connection, reply });
            return;
        };
        let mut wishes = Vec::new();
        match request.body {
            RequestBody::Update { start, .. } => {
                return self.on_update(now, (waiter, group), (start, Vec::new()), rights, out);
            }
            RequestBody::UpdateAlong { start, queries, .. } => {
                return self.on_update(now, (waiter, group), (start, queries), rights, out);
            }
            RequestBody::Read { vector, by, query } => {
                replica.on_read(waiter, (by, &vector), (query, rights), false, &mut wishes);
            }
            RequestBody::ReadAlong { vector, by, query } => {
                replica.on_read(waiter, (by, &vector), (query, rights), true, &mut wishes);
            }
            RequestBody::Recalls { by, .. } => replica.on_poll(waiter, by, &mut wishes),
            RequestBody::Snapshot { name, step, .. } => {
                let sees_all = rights.is_none_or(|rights| rights.sees_all());
                let body = replica.on_snapshot(name, step, sees_all);
                wishes.push(Wish::Reply(waiter, body));
            }
            RequestBody::PutBlock { .. }
            | RequestBody::GetBlock { .. }
            | RequestBody::Discard { .. }
            | RequestBody::ListBlocks { .. }
            | RequestBody::Scrub
            | RequestBody::Steps { .. }
            | RequestBody::Status => {}
        }
        self.grant(now, group, wishes, Some(out));
    }

    /// A client asks for an update, and for what is to come along with the reply.
    fn on_update(
        &mut self,
        now: Time,
        (waiter, group): (Waiter, GroupId),
        (start, queries): (Start, Vec<Query>),
        rights: Option<Rights>,
        out: &mut Outbox<Self>,
    ) {
        let allowed = match &rights {
            _ if queries.len() > ALONG_MAX => {
                let len = queries.len();
                Err(format!("{len} questions with an update, at most {ALONG_MAX} are allowed"))
            }
            Some(rights) => Payload::restrict(start, rights.clone()),
            None => Ok(start),
        };
        let is_full = self.space.is_full();
        let replica = self.replicas.get_mut(&group).expect("the caller has it");
        let mut wishes = Vec::new();
        let start = match allowed {
            Ok(start) => {
                let looks = Looks { queries, rights };
                replica.on_update(waiter, (&start, looks), is_full, &mut wishes).then_some(start)
            }
            Err(why) => {
                wishes.push(Wish::Reply(waiter, ReplyBody::Refused(Refusal::Bad(why))));
                None
            }
        };
        self.grant(now, group, wishes, Some(out));
        if let Some(start) = start {
            let command = Event::Command(multicast::Command::Start(start));
            self.step_multicast(now, group, command, out);
        }
    }
}
