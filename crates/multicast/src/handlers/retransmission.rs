//! What a real system needs beside the pages: heartbeats, and repeats after restarts.

use crate::message::{Accept, Message, NewEpoch, Promise, Pull, Resend};
use crate::process::PrimCast;
use crate::state::clocks::quorum;
use crate::state::done::Known;
use crate::state::epochs::{ELECTION_TIMEOUT, Role};
use crate::state::retransmission::{HEARTBEAT, RETRY, Retransmission, STUCK_AT_ONCE, STUCK_BYTES};
use meridian_core::{MessageId, Outbox, ProcessId, Time};

impl PrimCast {
    pub(crate) fn on_tick(&mut self, now: Time, out: &mut Outbox<Self>) {
        if self.recovery.memory.lost {
            self.transfers_tick(now, out);
            if !self.is_fetching_snapshot() {
                self.recover_memory(now, out);
            }
            return;
        }
        self.want_reports(now, out);
        self.heartbeat(now, out);
        self.watch_leader(now, out);
        if now.since(self.retransmission.stuck_at) >= RETRY {
            self.retransmission.stuck_at = now;
            self.retransmission.given = 0;
            self.ask_about_stuck(now, out);
            self.pull_unknown(now, out);
            self.linearizable.say_again();
            self.starts.again(Time(now.0.saturating_sub(2 * RETRY.as_nanos() as u64)));
            self.send_again(now, out);
            self.watch_groups(now, out);
        }
        if now.since(self.retransmission.stable_at) >= RETRY {
            self.retransmission.stable_at = now;
            self.truncate_delivered(now, out);
            self.ask_stable(now, out);
        }
        self.transfers_tick(now, out);
    }

    /// The primary is heard of four times a second, its followers once: a primary that hears no
    /// quorum falls silent, so that others who hear each other can go on.
    fn heartbeat(&mut self, now: Time, out: &mut Outbox<Self>) {
        let shown_at = *self.retransmission.shown_at.get_or_insert(now);
        match self.epochs.role {
            Role::Primary if now.since(shown_at) >= HEARTBEAT && self.is_member() => {
                self.retransmission.shown_at = Some(now);
                if self.hears_quorum(now) {
                    let message = self.clock_message();
                    self.peers().for_each(|peer| out.send(peer, message.clone()));
                }
            }
            Role::Follower if now.since(shown_at) >= RETRY => {
                self.retransmission.shown_at = Some(now);
                out.send(self.leader_of(self.epochs.cur), self.clock_message());
            }
            _ => {}
        }
    }

    fn hears_quorum(&self, now: Time) -> bool {
        let started = self.epochs.since;
        let heard = self.peers().filter(|peer| {
            let at = self.epochs.alive.get(&peer.node).copied().unwrap_or(started).max(started);
            now.since(at) < ELECTION_TIMEOUT * 3
        });
        heard.count() + 1 >= quorum(self.voters().len())
    }

    /// Messages that wait too long for timestamps of other groups: their START may never have
    /// arrived there (its sender died), or the ACKs were lost with a restart. START is sent to all
    /// who could know; who knows the message answers with what it knows.
    fn ask_about_stuck(&mut self, now: Time, out: &mut Outbox<Self>) {
        if !self.stands() {
            return;
        }
        let waiting = self.log.waiting().map(|(_, slot)| slot);
        let stuck = waiting.filter(|slot| {
            // In the linearizable order one that is final may wait for word of others.
            (slot.entry.final_ts.is_none() || self.options.order.asks_about_finals())
                && slot.entry.start.dest.len() > 1
                && now.since(slot.since) > RETRY
        });
        let mut bytes = 0;
        for slot in stuck.take(STUCK_AT_ONCE) {
            let start = &slot.entry.start;
            bytes += start.payload.len();
            for group in start.dest.iter() {
                let ours = *group == self.me.group;
                let decided = slot.locals.iter().any(|(of, _)| of == group);
                let missing = !decided || slot.entry.final_ts.is_some();
                let long = now.since(slot.since) > RETRY * 3 || slot.entry.final_ts.is_some();
                if (ours && long) || (!ours && missing) {
                    for process in self.processes(*group).filter(|process| *process != self.me) {
                        out.send(process, Message::from(start.clone()));
                    }
                }
            }
            if bytes > STUCK_BYTES {
                break;
            }
        }
    }

    /// Line 47 makes START known with a remote ACK; ours carry no payload, so it is asked for.
    fn pull_unknown(&mut self, now: Time, out: &mut Outbox<Self>) {
        if self.epochs.role != Role::Primary {
            return;
        }
        let before = Time(now.0.saturating_sub(RETRY.as_nanos() as u64 / 2));
        for (id, by) in self.remote.unknown(before, STUCK_AT_ONCE) {
            if self.deliveries.done.known(id) != Known::No {
                self.remote.take(id);
            } else if !self.starts.contains(id) {
                self.processes(by)
                    .for_each(|process| out.send(process, Message::from(Pull { id })));
            }
        }
    }

    /// What went to other groups only, and may have been lost: to all who could know.
    fn send_again(&mut self, now: Time, out: &mut Outbox<Self>) {
        let Retransmission { sent, .. } = &mut self.retransmission;
        let late = sent.values_mut().filter(|(_, at)| now.since(*at) >= RETRY);
        let mut bytes = 0;
        for (start, at) in late.take(STUCK_AT_ONCE) {
            *at = now;
            bytes += start.payload.len();
            for group in start.dest.iter() {
                for node in self.members.of(*group) {
                    out.send(group.of(*node), Message::from(start.clone()));
                }
            }
            if bytes > STUCK_BYTES {
                break;
            }
        }
    }

    /// Another group's primary asks for a message. Many that are long are given a part at a time.
    pub(crate) fn on_pull(&mut self, from: ProcessId, id: MessageId, out: &mut Outbox<Self>) {
        let start = self.log.slot(id).map(|slot| &slot.entry.start);
        let start = start.or_else(|| self.starts.get(id));
        if let Some(start) = start.filter(|start| start.dest.contains(&from.group))
            && self.retransmission.given <= STUCK_BYTES
        {
            self.retransmission.given += start.payload.len();
            out.send(from, Message::from(start.clone()));
        }
    }

    /// Messages to and from `peer` may be lost: says again what it must know.
    pub(crate) fn on_restarted(&mut self, now: Time, peer: ProcessId, out: &mut Outbox<Self>) {
        if self.members.is_lost(peer) {
            self.tell_lost(now, peer, out);
            return;
        }
        if peer == self.me || !self.members.contains(peer.group, peer.node) {
            return;
        }
        self.on_link_reset(peer, out);
        self.tell_fences(peer, out);
        self.say_again(now, peer, out);
    }

    /// What `peer` must know, as if it knew nothing.
    pub(crate) fn say_again(&mut self, now: Time, peer: ProcessId, out: &mut Outbox<Self>) {
        if self.recovery.memory.lost {
            self.restart_transfer(now, peer);
            return;
        }
        if peer.group == self.me.group {
            self.tell_config(peer, out);
            self.retransmission.asked = None;
            self.starts.again(Time(u64::MAX));
            if self.epochs.role == Role::Candidate {
                out.send(peer, Message::from(NewEpoch { epoch: self.epochs.prom }));
            } else if self.epochs.cur < self.epochs.prom && self.epochs.prom.leader == peer.node {
                let (epoch, clock, progress) = (self.epochs.prom, self.clock.now, self.progress());
                out.send(peer, Message::from(Promise { epoch, clock, progress }));
            }
            if self.epochs.cur == self.epochs.prom {
                out.send(
                    peer,
                    Message::from(Accept { epoch: self.epochs.cur, clock: self.clock.now }),
                );
                if self.epochs.cur.leader == peer.node {
                    let from = self.log.len();
                    out.send(peer, Message::from(Resend { epoch: self.epochs.cur, from }));
                }
            }
            out.send(peer, self.clock_message());
            self.tell_unreachable(peer, out);
            self.restart_transfer(now, peer);
        } else {
            self.outbound.followers.remove(&peer);
            self.stream_again(peer, out);
        }
        self.on_stable_wanted(peer, out);
    }

    /// All that `peer`, of another group, may not have delivered, if there is anything.
    fn stream_again(&mut self, peer: ProcessId, out: &mut Outbox<Self>) {
        self.tell_config(peer, out);
        let needed = self.log.iter_from(0).any(|(_, slot)| {
            let rank = (slot.bound, slot.entry.start.id);
            slot.entry.start.dest.contains(&peer.group)
                && !(slot.delivered && self.stability.has(peer, rank))
        });
        if needed {
            self.stream_whole(peer, out);
        }
    }
}
