//! What a replica of the reliable membership asks of all, one thing at a time.

use crate::leases::Fault;
use crate::registry::Request;
use crate::reliable::{Configured, ReliableMembership};
use meridian_core::{ClientId, NodeId, Time};
use meridian_paxos::{self as paxos, Change, Kind, change_payload};

/// What is asked of all replicas of the registry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Wish {
    /// Of the registry.
    Request(Request),
    /// Who its replicas are is to change.
    Change(Change),
}

impl Wish {
    pub fn command(&self, client: ClientId, sequence: u64) -> paxos::Command {
        let (kind, payload) = match self {
            Wish::Request(request) => {
                let bytes = postcard::to_stdvec(request).expect("writing to memory");
                (Kind::Execute, bytes.into())
            }
            Wish::Change(change) => (Kind::Reconfigure, change_payload(change)),
        };
        paxos::Command::Request(paxos::Request { client, sequence, kind, payload })
    }
}

impl ReliableMembership {
    /// What is to be asked now.
    pub(crate) fn wish(&self, now: Time) -> Option<Wish> {
        // Who comes later asks for nothing before it would hear what is decided.
        if !self.paxos.open_members().all(|members| members.contains(self.me)) {
            return None;
        }
        if let Some(request) = self.own_wish(now) {
            return Some(Wish::Request(request));
        }
        if !self.paxos.is_leading() {
            return None;
        }
        let request = self.suspects(now).or_else(|| self.dismisses());
        request.map(Wish::Request).or_else(|| self.changes(now).map(Wish::Change))
    }

    /// What this node has to say of itself, and of what it knows.
    fn own_wish(&self, now: Time) -> Option<Request> {
        let (registry, node) = (self.paxos.service(), self.me);
        let (known, incarnation) = (self.is_known(), self.incarnation);
        if !known || registry.is_wanted(node) && !registry.has_joined(node, incarnation) {
            return Some(Request::Join { node, incarnation, holds: self.holds });
        }
        // Before its own wish, which may wait for that: a suspended replica does not become live.
        let over = |(node, _): &(NodeId, u64)| self.has_expired(now, *node);
        if let Some((node, suspension)) = registry.awaited_of(self.me).find(over) {
            return Some(Request::Expired { voter: self.me, node, suspension });
        }
        let followed = self.leases.has_followed(now, registry.voters());
        if registry.is_behind(node) && followed {
            return Some(Request::Follows { node, change: registry.changes() });
        }
        let Configured { version, nodes, .. } = &self.configured;
        if registry.would_configure(*version, nodes) {
            return Some(Request::Configure { version: *version, nodes: nodes.clone() });
        }
        let shadows = &registry.members().shadows;
        let epoch = self.complete.filter(|epoch| shadows.get(&node).is_some_and(|at| at <= epoch));
        epoch.map(|epoch| Request::Complete { node, epoch })
    }

    /// Whose silence is too long.
    fn suspects(&self, now: Time) -> Option<Request> {
        let registry = self.paxos.service();
        let members = registry.members();
        let dozed = self.is(Fault::SuspectsDozing).then_some(Time(0));
        let since = dozed.or(self.attention.since(now, &self.options))?;
        let silent = |node: &&NodeId| {
            let heard = self.heard.get(node).copied().unwrap_or_default().max(since);
            now.since(heard) > self.options.suspect_after && registry.may_suspect(**node)
        };
        let mut others = members.live.iter().chain(members.shadows.keys());
        let node = *others.find(|node| **node != self.me && silent(node))?;
        Some(Request::Suspect { node, epoch: members.epoch })
    }

    /// Who has been let go, and will not be wanted again.
    fn dismisses(&self) -> Option<Request> {
        let registry = self.paxos.service();
        let at_once = self.is(Fault::DismissesAtOnce);
        let stays = |node: &NodeId| self.configured.may_return.contains(node) && !at_once;
        let needless = |node: &NodeId| registry.is_dispensable(*node) && !registry.has_left(*node);
        let goes = |node: &NodeId| needless(node) && !stays(node);
        if self.configured.version < registry.version() {
            return None; // It does not know who may be wanted again.
        }
        self.replicas().into_iter().find(goes).map(|node| Request::Dismiss { node })
    }

    /// Which replica of the registry comes or goes next. One that comes must be there: where there
    /// was one alone nothing could be decided without it.
    fn changes(&self, now: Time) -> Option<Change> {
        let registry = self.paxos.service();
        if self.paxos.open_members().count() > 1 {
            return None; // The last change is not in force.
        }
        let replicas = self.replicas();
        let is_there = |node: &NodeId| {
            let heard = self.heard.get(node);
            heard.is_some_and(|heard| now.since(*heard) < self.options.suspect_after)
        };
        let comes = |node: &NodeId| !replicas.contains(node) && is_there(node);
        let new = registry.wanted().iter().copied().find(comes);
        let old = replicas.iter().copied().find(|node| registry.has_left(*node));
        new.map(|node| Change::Add { node, address: String::new() })
            .or(old.map(|node| Change::Remove { node }))
    }
}
