//! Which steps a node notes, of what it hears and of what leaves: see [`crate::steps`].

use super::{Message, Node, Output};
use crate::api::{Reply, ReplyBody, Request, RequestBody};
use crate::replica::Waiter;
use crate::steps::{Report, Step, Steps, What};
use meridian_core::{GroupId, MessageId, NodeId, Outbox, Time, Visible};
use meridian_multicast as multicast;
use meridian_multicast::message::{Ack, NormalMessage, RemoteAck, RemoteDecided, RemoteMessage};

impl Node {
    /// What it has noted of a message.
    pub fn report(&self, now: Time, id: MessageId) -> Report {
        let mut report = self.steps.report(now, id);
        for (group, replica) in &self.replicas {
            // What waits for its turn was not delivered: its steps are not all noted.
            let known = |step: &Step| step.what == What::Final && step.group == Some(*group);
            if let Some(at) = replica.multicast.final_at(id)
                && !report.steps.iter().any(known)
            {
                report.steps.push(Step::of(at, What::Final, *group));
            }
        }
        report.steps.sort_by_key(|step| step.at);
        report
    }

    /// Tells what it has noted of a message.
    pub(super) fn tell_steps(
        &self,
        now: Time,
        waiter: Waiter,
        of: MessageId,
        out: &mut Outbox<Node>,
    ) {
        let body = ReplyBody::Steps(self.report(now, of));
        let reply = Reply { id: waiter.request, body };
        out.output(Output::Reply { connection: waiter.connection, reply });
    }

    /// A client asks for something.
    pub(super) fn note_request(&mut self, now: Time, request: &Request) {
        if let RequestBody::Update { group, start }
        | RequestBody::UpdateAlong { group, start, .. } = &request.body
        {
            self.steps.note(start.id, Step::of(now, What::Requested, *group));
        }
    }

    /// A message came.
    pub(super) fn note_heard(&mut self, now: Time, from: NodeId, message: &Message) {
        let steps = &mut self.steps;
        match message {
            Message::Multicast { from: group, to, message } => {
                let step = |what| Step::of(now, what, *to).with(*group, from);
                match message {
                    multicast::Message::Normal(message) => note_normal(steps, message, step),
                    multicast::Message::Remote(message) => note_remote(steps, message, step),
                    _ => {}
                }
            }
            Message::Vote { from: group, to, id, .. } => {
                steps.note(*id, Step::of(now, What::VoteHeard, *to).with(*group, from));
            }
            Message::VoteWanted { by, of, id } => {
                steps.note(*id, Step::of(now, What::VoteWanted, *of).with(*by, from));
            }
            Message::VoteSettled { .. }
            | Message::Drain(_)
            | Message::Configuration(_)
            | Message::Begins(_)
            | Message::VotesWanted { .. }
            | Message::VotesPart(_) => {}
        }
    }

    /// Entries are appended to the `T` of a group.
    pub(super) fn note_appended(&mut self, now: Time, group: GroupId, record: &multicast::Record) {
        let multicast::Record::Append { from, entries } = record else { return };
        let Some(replica) = self.replicas.get(&group) else { return };
        let leads = replica.multicast.epoch().leader == self.me;
        let what = if leads { What::Proposed } else { What::Appended };
        let step = Step::of(now, what, group).with(group, self.me);
        for (index, entry) in (*from..).zip(entries.iter()) {
            self.steps.note_placed(entry.start.id, index, step);
        }
    }

    /// A message is delivered to the replica of a group.
    pub(super) fn note_delivered(&mut self, now: Time, group: GroupId, id: MessageId) {
        let final_at = self.replicas.get(&group).and_then(|of| of.multicast.final_at(id));
        self.steps.note(id, Step::of(final_at.unwrap_or(now), What::Final, group));
        self.steps.note(id, Step::of(now, What::Delivered, group));
    }

    /// Something leaves.
    pub(super) fn note_passed(&mut self, now: Time, visible: &Visible<Node>) {
        let (steps, me) = (&mut self.steps, self.me);
        match visible {
            Visible::Send { message: Message::Multicast { from, message, .. }, .. } => {
                let step = |what| Step::of(now, what, *from).with(*from, me);
                match message {
                    multicast::Message::Normal(NormalMessage::Ack(Ack { len, .. }))
                    | multicast::Message::Remote(RemoteMessage::RemoteAck(RemoteAck {
                        len, ..
                    })) => steps.note_up_to(*len, step(What::Acknowledged)),
                    multicast::Message::Remote(RemoteMessage::RemoteDecided(RemoteDecided {
                        len,
                        ..
                    })) => steps.note_up_to(*len, step(What::Decided)),
                    _ => {}
                }
            }
            Visible::Send { to, message: Message::Vote { from, to: group, id, .. } } => {
                steps.note(*id, Step::of(now, What::VoteSent, *from).with(*group, *to));
            }
            Visible::Output(Output::Reply { reply, .. }) => {
                let id = match &reply.body {
                    ReplyBody::Updated { id, .. } => *id,
                    ReplyBody::UpdatedAlong(told) => told.id,
                    _ => return,
                };
                steps.note(id, Step::of(now, What::Replied, None));
            }
            Visible::Send { .. } | Visible::Output(_) => {}
        }
    }
}

fn note_normal(steps: &mut Steps, message: &NormalMessage, step: impl Fn(What) -> Step) {
    match message {
        NormalMessage::Start(start) => steps.note(start.id, step(What::Started)),
        NormalMessage::Starts(starts) => {
            starts.iter().for_each(|start| steps.note(start.id, step(What::Started)));
        }
        NormalMessage::Ack(ack) => steps.note_up_to(ack.len, step(What::AckHeard)),
        NormalMessage::Relayed(relayed) => {
            relayed.locals.iter().for_each(|local| steps.note(local.id, step(What::Relayed)));
        }
        NormalMessage::Append(_)
        | NormalMessage::Bump(_)
        | NormalMessage::Resend(_)
        | NormalMessage::Unreachable(_) => {}
    }
}

fn note_remote(steps: &mut Steps, message: &RemoteMessage, step: impl Fn(What) -> Step) {
    match message {
        RemoteMessage::RemoteAppend(append) => {
            for entry in append.entries.iter() {
                steps.note_placed(entry.id, entry.index, step(What::ProposalHeard));
            }
        }
        RemoteMessage::RemoteAck(ack) => steps.note_up_to(ack.len, step(What::AckHeard)),
        RemoteMessage::RemoteDecided(decided) => {
            steps.note_up_to(decided.len, step(What::DecidedHeard));
        }
        RemoteMessage::RemoteWanted | RemoteMessage::Final(_) | RemoteMessage::Pull(_) => {}
    }
}
