//! Which handler takes which message, and whose count.

use crate::message::Message;
use crate::process::PrimCast;
use meridian_core::{Outbox, ProcessId, Time};

impl PrimCast {
    /// Who has lost its memory hears only what brings it back.
    fn on_message_while_lost(
        &mut self,
        now: Time,
        from: ProcessId,
        message: Message,
        out: &mut Outbox<Self>,
    ) {
        match message {
            Message::Recovered { incarnation, e_prom, primary_of, clock, .. } => {
                self.on_recovered(now, from, incarnation, (e_prom, primary_of, clock), out);
            }
            Message::Reborn { member, incarnation } => self.on_reborn(member, incarnation, out),
            Message::Lives { wanted: true, .. } => self.say_lives(from, false, out),
            Message::SnapshotPart { snapshot, offset, bytes, total } => {
                self.on_snapshot_part(now, from, snapshot, offset, &bytes, total, out);
            }
            Message::Recover { incarnation } => self.on_recover(from, incarnation, out),
            Message::Start(start) => self.starts.hold(start),
            Message::Starts(starts) => starts.into_iter().for_each(|start| self.starts.hold(start)),
            _ => {}
        }
    }

    /// Whether the sender is a member of its group, or may be one in a configuration that we have not heard of yet: what
    /// it acknowledges and shows counts once that is known, and is not said again.
    fn may_count(&self, from: ProcessId, message: &Message) -> bool {
        let counted = matches!(
            message,
            Message::Ack { .. }
                | Message::Accept { .. }
                | Message::Bump { .. }
                | Message::RemoteAck { .. }
        );
        self.members.contains(from.group, from.node) || (counted && self.members.has(from.group))
    }

    pub(crate) fn on_message(
        &mut self,
        now: Time,
        from: ProcessId,
        message: Message,
        out: &mut Outbox<Self>,
    ) {
        let ours = from.group == self.me.group;
        if let Message::Config(config) = &message {
            self.on_config(from, config, out);
            return;
        }
        if !self.may_count(from, &message) {
            return; // Not of this cluster: nothing it says can count.
        }
        if !self.is_of_this_life(now, from, &message, out) {
            return;
        }
        if self.memory.lost {
            self.on_message_while_lost(now, from, message, out);
            return;
        }
        if !ours {
            self.reach.heard(from, now);
        }
        match message {
            Message::Start(start) => self.on_start(now, Some(from), start, out),
            Message::Starts(starts) => {
                starts.into_iter().for_each(|start| self.on_start(now, Some(from), start, out));
            }
            Message::RemoteAppend { epoch, whole, from: first, upto, entries, speaks } if !ours => {
                let said = (epoch, whole, speaks);
                self.on_remote_append(now, from, said, (first, upto), &entries, out);
            }
            Message::RemoteAck { epoch, len, clock } if !ours => {
                self.on_remote_ack(from, epoch, len, clock);
            }
            Message::RemoteDecided { epoch, len } if !ours => {
                self.on_remote_decided(from, epoch, len);
            }
            Message::RemoteWanted if !ours => self.stream_whole(from, out),
            Message::Stability { shown, closed, clock } if !ours => {
                self.on_stability(from, &shown, closed, clock, out);
            }
            Message::Reborn { member, incarnation } => self.on_reborn(member, incarnation, out),
            Message::Lives { wanted, .. } => self.on_lives(now, from, wanted, out),
            Message::Ready(ids) if !ours => self.on_ready(from, &ids, out),
            Message::Final { id, ts, delivered } => self.on_final(id, ts, delivered, out),
            Message::Pull(id) => self.on_pull(from, id, out),
            Message::Stable { delivered, except } => self.on_stable(from, delivered, &except),
            Message::StableFor { groups, delivered, except } if ours => {
                self.on_stable(from, delivered, &except);
                self.pass_on_stable(from, &groups);
            }
            Message::Stables(stables) => self.on_stables(from, &stables),
            Message::StableWanted => self.on_stable_wanted(from, out),
            _ if !ours => {} // The rest is said inside a group only.
            Message::RemoteAppend { .. }
            | Message::RemoteAck { .. }
            | Message::RemoteDecided { .. }
            | Message::RemoteWanted
            | Message::StableFor { .. }
            | Message::Stability { .. }
            | Message::Ready(_)
            | Message::Config(_)
            | Message::Recovered { .. } => {}
            Message::Recover { incarnation } => self.on_recover(from, incarnation, out),
            Message::Append { epoch, from: index, entries, clock, prompt } => {
                self.on_append(now, from, epoch, index, entries, clock, out);
                self.acknowledge_later(now, prompt, out);
            }
            Message::Ack { epoch, len, clock } => self.on_ack(now, from, epoch, len, clock, out),
            Message::Bump { epoch, clock } => self.on_bump(now, from, epoch, clock, out),
            Message::Suspect { epoch } => self.on_suspect(now, from, epoch, out),
            Message::Suspected { epoch } => self.on_suspected(now, from, epoch, out),
            Message::NewEpoch { epoch } => self.on_new_epoch(now, from, epoch, out),
            Message::Promise { epoch, clock, progress } => {
                self.on_promise(now, from, epoch, clock, progress, out);
            }
            Message::Fetch { epoch, from: index } => self.on_fetch(from, epoch, index, out),
            Message::Fetched { epoch, part } => self.on_fetched(now, from, epoch, part, out),
            Message::NewState { epoch, clock, part } => {
                self.on_new_state(now, from, epoch, clock, part, out);
            }
            Message::Accept { epoch, clock } => self.on_accept(now, from, epoch, clock, out),
            Message::Resend { epoch, from: index } => self.on_resend(from, epoch, index, out),
            Message::Behind => self.on_behind(now, from, out),
            Message::Relayed { epoch, len, clock, locals, finals } => {
                self.on_relayed(now, from, (epoch, len, clock), &locals, &finals, out);
            }
            Message::Cut(groups) => self.on_cut(from, &groups),
            Message::Vouched(finals) => self.on_vouched(finals, out),
            Message::SnapshotRequest { snapshot, offset } => {
                self.on_snapshot_request(from, snapshot, offset, out);
            }
            Message::SnapshotPart { snapshot, offset, bytes, total } => {
                self.on_snapshot_part(now, from, snapshot, offset, &bytes, total, out);
            }
        }
    }
}
