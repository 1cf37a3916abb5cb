//! What clients hear of the world, and which crashes they allow.

use super::{Clients, Doing};
use crate::of::paxos::Replica;
use crate::world::{Owner, Stimulus};
use meridian_core::{NodeId, ProcessId, Time};
use meridian_paxos::{Configuration, Message, Output, Recovery};
use std::collections::BTreeSet;

impl Owner<Replica> for Clients {
    fn begin(&mut self) -> Vec<Stimulus<Replica>> {
        (0..self.clients.len()).map(|client| self.alarm(client, self.profile.think)).collect()
    }

    fn output(&mut self, at: ProcessId, output: Output, _now: Time) -> Vec<Stimulus<Replica>> {
        let answers =
            matches!(output, Output::Connected { .. } | Output::Reply { .. } | Output::Read { .. });
        if answers && self.stopped.contains(&at) {
            self.wrong(format!("stopped: {at} has, and says {output:?}"));
        }
        match output {
            Output::Connected { token, client } => return self.on_connected(token, client),
            Output::Reply { client, sequence, answer } => {
                return self.on_reply(at, (client, sequence), answer);
            }
            Output::Read { token, answer } => return self.on_read(at, token, answer),
            Output::View { leading, .. } => self.counts.add("leaders", u64::from(leading)),
            Output::Recovered => {
                self.begun.borrow_mut().insert(at);
                let lost = self.recovery != Recovery::FullSs && self.ran.contains(&at);
                self.counts.add("recovered", u64::from(lost));
            }
            Output::Stopped(stopped) => self.on_stopped(at, stopped),
            Output::Members(_) => {}
        }
        Vec::new()
    }

    fn wake(&mut self, token: u64, _now: Time) -> Vec<Stimulus<Replica>> {
        let Some(client) = self.asked.get(&token).copied() else { return Vec::new() };
        if self.clients[client].attempt != token {
            return Vec::new();
        }
        let here = std::mem::take(&mut self.clients[client].sent_here);
        match self.clients[client].doing {
            Doing::Nothing => self.begin_one(client),
            _ if here => self.send(client),
            _ => self.elsewhere(client),
        }
    }

    fn crashed(&mut self, at: ProcessId, _now: Time) {
        self.counts.add("crashes", 1);
        self.ran.insert(at);
        self.executed.remove(&at);
    }

    fn started(&mut self, at: ProcessId, _process: &Replica, _now: Time) {
        self.watch.forget(at);
        self.stopped.remove(&at);
    }

    fn traffic(&mut self, _at: ProcessId, message: &Message) {
        self.counts.add("snapshots", u64::from(matches!(message, Message::CatchUpSnapshot(_))));
    }

    fn leads(&self, process: &Replica) -> bool {
        process.inner.is_leading()
    }

    fn may_crash(&self, at: ProcessId, processes: &[(ProcessId, &Replica)]) -> bool {
        if self.recovery == Recovery::FullSs {
            return true;
        }
        // Of the members of each open instance a majority must keep its memory, also of those to
        // come.
        let serving: Vec<_> =
            processes.iter().filter(|(_, replica)| replica.inner.status().active).collect();
        let others = serving.iter().map(|(peer, _)| *peer).filter(|peer| *peer != at);
        let whole: BTreeSet<NodeId> = others.map(|peer| peer.node).collect();
        let enough = |members: &Configuration| members.has_quorum(|node| whole.contains(&node));
        let comes = self.planned.iter().any(|(planned, from)| {
            from.is_none() && planned.contains(at.node) && !self.nodes.contains(&at.node)
        });
        !comes
            && self.planned.iter().all(|(members, _)| enough(members))
            && serving.iter().all(|(_, replica)| replica.inner.open_members().all(enough))
    }

    fn check(&mut self, at: ProcessId, process: &Replica, durable: bool) -> Result<(), String> {
        if self.recovery != Recovery::FullSs {
            self.follow_plans(at, process);
        }
        match self.wrong.take() {
            Some(wrong) => Err(wrong),
            None => self.watch.look(at, process, durable),
        }
    }
}
