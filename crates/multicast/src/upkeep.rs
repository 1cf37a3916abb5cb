//! What a real system needs beside the pages: heartbeats, and repeats after restarts.

use crate::done::Known;
use crate::epoch::ELECTION_TIMEOUT;
use crate::message::{Message, Start};
use crate::process::{Of, PrimCast, Role, Speakers};
use meridian_core::{MessageId, Outbox, ProcessId, Time, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How often a process looks whether something is due.
pub(crate) const TICK: Duration = Duration::from_millis(125);
pub(crate) const TICK_TOKEN: Token = Token(0);

/// After how long of silence the primary shows its clock again.
const HEARTBEAT: Duration = Duration::from_millis(250);

/// After how long what seems lost is asked for again.
pub(crate) const RETRY: Duration = Duration::from_secs(1);

/// So many deliveries are told before a second has passed, so that `T` stays short when they are many.
const TELL_AT: usize = 1024;
/// The same where it travels with other things, by way of a primary.
const TELL_NEAR_AT: usize = 256;

/// How many stuck messages are asked about at a time, and about how many bytes of them are sent: the first
/// ones hold up all others. When a primary dies, thousands may be stuck that were on their way to it.
pub(crate) const STUCK_AT_ONCE: usize = 1024;
const STUCK_BYTES: usize = 4 << 20;

/// When what was done last, and what is to be said again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Upkeep {
    /// When it is looked next whether something is due.
    pub tick_at: Time,
    /// When the clock was last shown, seen at the first tick after it.
    pub shown_at: Option<Time>,
    /// When missing entries were last asked for.
    pub asked: Option<Time>,
    /// When the stuck were last asked about.
    stuck_at: Time,
    /// When deliveries were last told to the others.
    stable_at: Time,
    /// Whom our entries are to be sent to again, and whom our ACK.
    pub again: BTreeSet<ProcessId>,
    pub ack_again: BTreeSet<ProcessId>,
    /// What we multicast to other groups only, and when it was sent last.
    pub sent: BTreeMap<MessageId, (Arc<Start>, Time)>,
    /// With so many deliveries untold, they are told.
    pub tell_at: usize,
    /// How many bytes of messages others were given that asked for them, since the stuck were last asked about.
    given: usize,
}

impl Default for Upkeep {
    fn default() -> Upkeep {
        Upkeep {
            tick_at: Time(0),
            shown_at: None,
            asked: None,
            stuck_at: Time(0),
            stable_at: Time(0),
            again: BTreeSet::new(),
            ack_again: BTreeSet::new(),
            sent: BTreeMap::new(),
            tell_at: TELL_AT,
            given: 0,
        }
    }
}

impl PrimCast {
    /// After how many deliveries they are told.
    pub(crate) fn tell_at(&self) -> usize {
        match self.options.speakers {
            Speakers::All => TELL_AT,
            Speakers::Primary => TELL_NEAR_AT,
        }
    }

    pub(crate) fn on_tick(&mut self, now: Time, out: &mut Outbox<Self>) {
        if self.memory.lost {
            self.transfers_tick(now, out);
            if !self.is_fetching_snapshot() {
                self.recover_memory(now, out);
            }
            return;
        }
        self.heartbeat(now, out);
        self.watch_leader(now, out);
        if now.since(self.upkeep.stuck_at) >= RETRY {
            self.upkeep.stuck_at = now;
            self.upkeep.given = 0;
            self.ask_about_stuck(now, out);
            self.pull_unknown(now, out);
            self.stable.say_again();
            self.starts.again(Time(now.0.saturating_sub(2 * RETRY.as_nanos() as u64)));
            self.send_again(now, out);
            self.watch_groups(now, out);
        }
        if now.since(self.upkeep.stable_at) >= RETRY {
            self.upkeep.stable_at = now;
            self.truncate_delivered(now, out);
            self.ask_stable(now, out);
        }
        self.transfers_tick(now, out);
    }

    /// The primary is heard of four times a second, its followers once: a primary that hears no quorum
    /// falls silent, so that others who hear each other can go on.
    fn heartbeat(&mut self, now: Time, out: &mut Outbox<Self>) {
        let shown_at = *self.upkeep.shown_at.get_or_insert(now);
        match self.role {
            Role::Primary if now.since(shown_at) >= HEARTBEAT && self.is_member() => {
                self.upkeep.shown_at = Some(now);
                if self.hears_quorum(now) {
                    let message = self.clock_message();
                    self.peers().for_each(|peer| out.send(peer, message.clone()));
                }
            }
            Role::Follower if now.since(shown_at) >= RETRY => {
                self.upkeep.shown_at = Some(now);
                out.send(self.leader_of(self.e_cur), self.clock_message());
            }
            _ => {}
        }
    }

    fn hears_quorum(&self, now: Time) -> bool {
        let started = self.election.since;
        let heard = self.peers().filter(|peer| {
            let at = self.election.alive.get(&peer.node).copied().unwrap_or(started).max(started);
            now.since(at) < ELECTION_TIMEOUT * 3
        });
        heard.count() + 1 >= crate::clocks::quorum(self.voters().len())
    }

    /// Messages that wait too long for timestamps of other groups: their START may never have arrived
    /// there (its sender died), or the ACKs were lost with a restart. START is sent to all who could
    /// know; who knows the message answers with what it knows.
    fn ask_about_stuck(&mut self, now: Time, out: &mut Outbox<Self>) {
        if !self.stands() {
            return;
        }
        let waiting = self.log.waiting().map(|(_, slot)| slot);
        let stuck = waiting.filter(|slot| {
            // In the linearizable order one that is final may wait for word of others.
            (slot.entry.final_ts.is_none() || self.is_linearizable())
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
                        out.send(process, Message::Start(start.clone()));
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
        if self.role != Role::Primary {
            return;
        }
        let before = Time(now.0.saturating_sub(RETRY.as_nanos() as u64 / 2));
        for (id, by) in self.remote.unknown(before, STUCK_AT_ONCE) {
            if self.done.known(id) != Known::No {
                self.remote.take(id);
            } else if !self.starts.contains(id) {
                self.processes(by).for_each(|process| out.send(process, Message::Pull(id)));
            }
        }
    }

    /// What went to other groups only, and may have been lost: to all who could know.
    fn send_again(&mut self, now: Time, out: &mut Outbox<Self>) {
        let Upkeep { sent, .. } = &mut self.upkeep;
        let late = sent.values_mut().filter(|(_, at)| now.since(*at) >= RETRY);
        let mut bytes = 0;
        for (start, at) in late.take(STUCK_AT_ONCE) {
            *at = now;
            bytes += start.payload.len();
            for group in start.dest.iter() {
                for node in self.members.of(*group) {
                    out.send(group.of(*node), Message::Start(start.clone()));
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
            && self.upkeep.given <= STUCK_BYTES
        {
            self.upkeep.given += start.payload.len();
            out.send(from, Message::Start(start.clone()));
        }
    }

    /// Messages to and from `peer` may be lost: says again what it must know.
    pub(crate) fn on_restarted(&mut self, now: Time, peer: ProcessId, out: &mut Outbox<Self>) {
        if peer == self.me || !self.members.contains(peer.group, peer.node) {
            return;
        }
        self.on_link_reset(peer, out);
        self.say_again(now, peer, out);
    }

    /// What `peer` must know, as if it knew nothing.
    pub(crate) fn say_again(&mut self, now: Time, peer: ProcessId, out: &mut Outbox<Self>) {
        if self.memory.lost {
            self.restart_transfer(now, peer);
            return;
        }
        if peer.group == self.me.group {
            self.tell_config(peer, out);
            self.upkeep.asked = None;
            self.starts.again(Time(u64::MAX));
            if self.role == Role::Candidate {
                out.send(peer, Message::NewEpoch { epoch: self.e_prom });
            } else if self.e_cur < self.e_prom && self.e_prom.leader == peer.node {
                let (epoch, clock, progress) = (self.e_prom, self.clock, self.progress());
                out.send(peer, Message::Promise { epoch, clock, progress });
            }
            if self.e_cur == self.e_prom {
                out.send(peer, Message::Accept { epoch: self.e_cur, clock: self.clock });
                if self.e_cur.leader == peer.node {
                    let from = self.log.len();
                    out.send(peer, Message::Resend { epoch: self.e_cur, from });
                }
            }
            out.send(peer, self.clock_message());
            self.tell_cut(peer, out);
            self.restart_transfer(now, peer);
        } else {
            self.followers.remove(&peer);
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
                && !(slot.delivered && self.truncation.has(peer, rank))
        });
        if needed {
            self.stream_whole(peer, out);
        }
    }
}
