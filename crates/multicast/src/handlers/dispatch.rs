//! Which handler takes which message, and whose messages count.

use crate::message::{
    EpochMessage, Message, NormalMessage, OrderMessage, RecoveryMessage, RemoteMessage,
    StabilityMessage,
};
use crate::process::PrimCast;
use meridian_core::{Outbox, ProcessId, Time};

impl PrimCast {
    /// A message has come: whether it counts, and to which family it belongs.
    pub(crate) fn on_message(
        &mut self,
        now: Time,
        from: ProcessId,
        message: Message,
        out: &mut Outbox<Self>,
    ) {
        if let Message::Epoch(EpochMessage::Config(config)) = &message {
            self.on_config(from, config, out);
            return;
        }
        if let Message::Fence(message) = message {
            self.on_fence_message(now, from, message, out);
            return;
        }
        if self.members.is_lost(from) {
            self.tell_lost(now, from, out);
            return;
        }
        if !self.may_count(from, &message) {
            return; // Not of this cluster: nothing it says can count.
        }
        if !self.is_of_this_incarnation(now, from, &message, out) {
            return;
        }
        if self.recovery.memory.lost {
            self.on_message_while_lost(now, from, message, out);
            return;
        }
        let ours = from.group == self.me.group;
        if !ours {
            self.outbound.reach.heard(from, now);
        }
        match message {
            Message::Normal(message) => self.on_normal(now, from, message, out),
            Message::Remote(message) => self.on_remote(now, from, message, out),
            Message::Epoch(message) if ours => self.on_epoch(now, from, message, out),
            Message::Epoch(_) => {}
            Message::Stability(message) => self.on_stability(from, message, out),
            Message::Order(message) if !ours => self.on_order(from, message, out),
            Message::Order(_) => {}
            Message::Recovery(message) => self.on_recovery(now, from, message, out),
            Message::Fence(_) => {} // It was for us, member or not.
        }
    }

    /// Whether the sender is a member of its group, or may be one in a configuration that we have
    /// not heard of yet: what it acknowledges and shows counts once that is known, and is not said
    /// again.
    fn may_count(&self, from: ProcessId, message: &Message) -> bool {
        let counted = matches!(
            message,
            Message::Normal(NormalMessage::Ack(_) | NormalMessage::Bump(_))
                | Message::Epoch(EpochMessage::Accept(_))
                | Message::Remote(RemoteMessage::RemoteAck(_))
        );
        self.members.contains(from.group, from.node) || (counted && self.members.has(from.group))
    }

    /// A process that has lost its memory hears only what brings it back.
    fn on_message_while_lost(
        &mut self,
        now: Time,
        from: ProcessId,
        message: Message,
        out: &mut Outbox<Self>,
    ) {
        match message {
            Message::Normal(NormalMessage::Start(start)) => self.starts.hold(start),
            Message::Normal(NormalMessage::Starts(starts)) => {
                starts.into_iter().for_each(|start| self.starts.hold(start));
            }
            Message::Recovery(RecoveryMessage::Recovered(answer)) => {
                self.on_recovered(now, from, answer, out);
            }
            Message::Recovery(RecoveryMessage::NewIncarnation(message)) => {
                self.on_new_incarnation(message, out);
            }
            Message::Recovery(RecoveryMessage::Incarnations(message)) if message.wanted => {
                self.say_incarnations(from, false, out);
            }
            Message::Recovery(RecoveryMessage::SnapshotPart(part)) => {
                self.on_snapshot_part(now, from, &part, out);
            }
            Message::Recovery(RecoveryMessage::Recover(message)) => {
                self.on_recover(from, message, out);
            }
            _ => {}
        }
    }

    fn on_normal(
        &mut self,
        now: Time,
        from: ProcessId,
        message: NormalMessage,
        out: &mut Outbox<Self>,
    ) {
        match message {
            NormalMessage::Start(start) => self.on_start(now, Some(from), start, out),
            NormalMessage::Starts(starts) => {
                starts.into_iter().for_each(|start| self.on_start(now, Some(from), start, out));
            }
            _ if from.group != self.me.group => {} // The rest is said inside a group only.
            NormalMessage::Append(append) => {
                let prompt = append.prompt;
                self.on_append(now, from, append, out);
                self.acknowledge_later(now, prompt, out);
            }
            NormalMessage::Ack(ack) => self.on_ack(now, from, ack, out),
            NormalMessage::Bump(bump) => self.on_bump(now, from, bump, out),
            NormalMessage::Resend(resend) => self.on_resend(from, resend, out),
            NormalMessage::Relayed(relayed) => self.on_relayed(now, from, &relayed, out),
            NormalMessage::Unreachable(groups) => self.on_unreachable(from, &groups),
        }
    }

    fn on_remote(
        &mut self,
        now: Time,
        from: ProcessId,
        message: RemoteMessage,
        out: &mut Outbox<Self>,
    ) {
        match message {
            RemoteMessage::Final(last) => self.on_final(from, last, out),
            RemoteMessage::Pull(pull) => self.on_pull(from, pull.id, out),
            _ if from.group == self.me.group => {} // The rest is said between groups only.
            RemoteMessage::RemoteAppend(append) => self.on_remote_append(now, from, append, out),
            RemoteMessage::RemoteAck(ack) => self.on_remote_ack(from, ack),
            RemoteMessage::RemoteDecided(decided) => self.on_remote_decided(from, decided),
            RemoteMessage::RemoteWanted => self.stream_whole(from, out),
        }
    }

    fn on_epoch(
        &mut self,
        now: Time,
        from: ProcessId,
        message: EpochMessage,
        out: &mut Outbox<Self>,
    ) {
        match message {
            EpochMessage::Suspect(suspect) => self.on_suspect(now, from, suspect.epoch, out),
            EpochMessage::Suspected(answer) => self.on_suspected(now, from, answer.epoch, out),
            EpochMessage::NewEpoch(message) => self.on_new_epoch(now, from, message.epoch, out),
            EpochMessage::Promise(promise) => self.on_promise(now, from, promise, out),
            EpochMessage::Fetch(fetch) => self.on_fetch(from, fetch, out),
            EpochMessage::Fetched(fetched) => self.on_fetched(now, from, fetched, out),
            EpochMessage::NewState(state) => self.on_new_state(now, from, state, out),
            EpochMessage::Accept(accept) => self.on_accept(now, from, accept, out),
            EpochMessage::Config(config) => self.on_config(from, &config, out),
        }
    }

    fn on_stability(&mut self, from: ProcessId, message: StabilityMessage, out: &mut Outbox<Self>) {
        match message {
            StabilityMessage::Stable(stable) => self.on_stable(from, &stable),
            StabilityMessage::StableFor(message) if from.group == self.me.group => {
                self.on_stable(from, &message.stable);
                self.forward_stable(from, &message.groups);
            }
            StabilityMessage::StableFor(_) => {}
            StabilityMessage::Forwarded(stables) => self.on_forwarded_stable(from, &stables),
            StabilityMessage::StableWanted => self.on_stable_wanted(from, out),
        }
    }

    fn on_order(&mut self, from: ProcessId, message: OrderMessage, out: &mut Outbox<Self>) {
        match message {
            OrderMessage::Horizons(horizons) => self.on_horizons(from, &horizons, out),
            OrderMessage::Ready(ids) => self.on_ready(from, &ids, out),
        }
    }

    fn on_recovery(
        &mut self,
        now: Time,
        from: ProcessId,
        message: RecoveryMessage,
        out: &mut Outbox<Self>,
    ) {
        match message {
            RecoveryMessage::NewIncarnation(message) => self.on_new_incarnation(message, out),
            RecoveryMessage::Incarnations(message) => {
                self.on_incarnations(now, from, message.wanted, out);
            }
            _ if from.group != self.me.group => {} // The rest is said inside a group only.
            RecoveryMessage::Recover(message) => self.on_recover(from, message, out),
            RecoveryMessage::Recovered(_) => {} // Our memory is back.
            RecoveryMessage::Behind => self.on_behind(now, from, out),
            RecoveryMessage::ForwardedFinals(finals) => self.on_forwarded_finals(from, finals, out),
            RecoveryMessage::SnapshotRequest(request) => {
                self.on_snapshot_request(from, request, out);
            }
            RecoveryMessage::SnapshotPart(part) => self.on_snapshot_part(now, from, &part, out),
        }
    }
}
