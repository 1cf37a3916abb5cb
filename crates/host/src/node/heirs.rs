//! Groups that are lost: the node tells its replicas, reports the votes that they have heard, and
//! as an heir gathers all such reports before it begins (decision 107).
//!
//! A replica that is sealed makes its report on votes in the same step, after the record of the
//! seal. So once that is known after a crash, either the report is, or it is made anew, with all
//! votes that anything rests on (V1).
//!
//! An heir that has begun hands on with what it did: that is the same for all, as no report ever
//! changes (V2). So a reporter that is lost holds nobody up once one heir has heard all of them.

use super::{Message, Node, Output, REPLICA_TICK, Record, Timer};
use crate::mutation::Mutation;
use crate::replica::{Replica, Wish, report_of_votes, votes_of_report};
use bytes::Bytes;
use meridian_cluster::Topology;
use meridian_cluster::lost::LostRegion;
use meridian_core::{Event, GroupId, MessageId, NodeId, Outbox, ProcessId, Time};
use meridian_fs::vote::Vote;
use meridian_multicast::{Command, Config, Fence, Parts};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// After how long a report that is missing is asked for again.
const RETRY: Duration = Duration::from_secs(1);

/// What this node is to inherit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Heirs {
    gathering: BTreeMap<GroupId, Gathering>,
    /// With what it began, by group.
    begun: BTreeMap<GroupId, Inheritance>,
    /// A planted bug: it begins before all have reported.
    pub early: bool,
    /// A planted bug: it hands nothing on.
    pub silent: bool,
}

/// With what an heir begins.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Inheritance {
    /// Who is lost, and who goes on.
    pub fence: Fence,
    /// The votes of the lost group that anybody had heard.
    pub votes: BTreeMap<MessageId, Vote>,
}

/// Reports under way to an heir.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Gathering {
    fence: Fence,
    parts: Parts,
    asked: Option<Time>,
}

/// A part of a report on votes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VotesPart {
    /// On which group.
    pub of: GroupId,
    /// The configuration of its heirs.
    pub number: u64,
    /// Of which group the replica is that reports.
    pub from: GroupId,
    /// Where the part starts.
    pub offset: u64,
    /// The bytes.
    pub bytes: Bytes,
    /// The length of the whole.
    pub total: u64,
}

impl Heirs {
    /// Whether it has not begun as an heir of `group`, and is to.
    pub fn gathers(&self, group: GroupId) -> bool {
        self.gathering.contains_key(&group)
    }

    /// All reports on `group` together, if this node has begun as one of these heirs.
    fn handed_on(&self, group: GroupId, number: u64) -> Option<Bytes> {
        let begun = self.begun.get(&group).filter(|begun| begun.fence.config.number == number);
        begun.filter(|_| !self.silent).map(|begun| report_of_votes(&begun.votes))
    }
}

impl Gathering {
    /// The other heirs, who tell something once they have begun.
    fn heirs(&self) -> impl Iterator<Item = ProcessId> + '_ {
        let Config { group, members, .. } = &self.fence.config;
        members.iter().map(|node| group.of(*node))
    }

    /// Who tells it something.
    fn tellers(&self) -> Vec<ProcessId> {
        self.fence.reporters.iter().copied().chain(self.heirs()).collect()
    }

    /// The votes in all reports together, once they are complete, or were handed on, and none is
    /// damaged.
    fn votes(&self, early: bool) -> Option<BTreeMap<MessageId, Vote>> {
        let has = |process| self.parts.offset(process).is_none();
        let handed_on = self.heirs().any(has);
        if !early && !handed_on && !self.fence.reporters.iter().copied().all(has) {
            return None;
        }
        let mut all = BTreeMap::new();
        for bytes in self.parts.complete() {
            all.extend(votes_of_report(bytes)?);
        }
        Some(all)
    }
}

/// What the multicast is told of a lost group.
fn fence_of(lost: &LostRegion) -> Fence {
    let LostRegion { group, number, heirs, reporters, beside, .. } = lost;
    let config = Config { group: *group, number: *number, members: heirs.clone() };
    Fence { config, reporters: reporters.clone(), lost: beside.clone() }
}

/// The groups in which a node has replicas that begin with nothing: not those that it inherits.
pub(super) fn own_groups(topology: &Topology, me: NodeId) -> impl Iterator<Item = GroupId> + '_ {
    let inherits = move |group: &GroupId| {
        topology.lost().get(group).is_some_and(|lost| lost.heirs.contains(&me))
    };
    topology.groups_of(me).filter(move |group| !inherits(group))
}

impl Node {
    /// Groups may be lost: tells those of its replicas that do not know, and gathers reports on
    /// what it is to inherit.
    pub(super) fn learn_fences(&mut self, now: Time, out: &mut Outbox<Self>) {
        let topology = self.topology.clone();
        for lost in topology.lost().values() {
            let knows = |replica: &Replica| replica.multicast.fenced(lost.group);
            let news: Vec<_> = self
                .replicas
                .iter()
                .filter(|(_, replica)| knows(replica) < Some(lost.number))
                .map(|(group, _)| *group)
                .collect();
            for group in news {
                let command = Event::Command(Command::Fence(fence_of(lost)));
                self.step_multicast(now, group, command, out);
            }
            let begun = self.replicas.contains_key(&lost.group);
            if lost.heirs.contains(&self.me) && !lost.nodes.contains(&self.me) && !begun {
                self.heirs.gathering.entry(lost.group).or_insert_with(|| Gathering {
                    fence: fence_of(lost),
                    parts: Parts::default(),
                    asked: None,
                });
                self.gather(now, lost.group, out);
                out.timer(now + REPLICA_TICK, Timer::Replica(lost.group));
            }
        }
    }

    /// Its replica of `group` may have been sealed: reports on votes, too.
    pub(super) fn make_reports(&mut self, group: GroupId, out: &mut Outbox<Self>) {
        let Some(replica) = self.replicas.get_mut(&group) else { return };
        for (of, number, votes) in replica.reports_due() {
            replica.reported(of, number, votes.clone());
            out.persist(Record::VotesReport { of, number, by: group, votes });
        }
    }

    /// As an heir of `group` that has not begun: asks for what is missing, now and again.
    pub(super) fn gather(&mut self, now: Time, group: GroupId, out: &mut Outbox<Self>) {
        let Some(gathering) = self.heirs.gathering.get_mut(&group) else { return };
        if gathering.asked.is_none_or(|at| now.since(at) >= RETRY) {
            gathering.asked = Some(now);
            for process in gathering.tellers() {
                self.want_votes(now, group, process, out);
            }
        }
        self.begin(now, group, out); // Where there is nobody to ask.
    }

    /// Asks a reporter, or another heir, for what is missing of its report on `group`.
    fn want_votes(&mut self, now: Time, group: GroupId, of: ProcessId, out: &mut Outbox<Self>) {
        let Some(gathering) = self.heirs.gathering.get(&group) else { return };
        let Some(offset) = gathering.parts.offset(of) else { return };
        let number = gathering.fence.config.number;
        if of.node != self.me {
            let wanted = Message::VotesWanted { of: group, number, by: of.group, offset };
            out.send(of.node, wanted);
        } else if let Some(part) = self.votes_part(group, number, of.group, offset) {
            self.on_votes_part(now, of.node, part, out);
        }
    }

    /// A part of what our replica of `by` has reported on the votes of `of`, if it has; that of an
    /// heir is all reports together.
    pub(super) fn votes_part(
        &self,
        of: GroupId,
        number: u64,
        by: GroupId,
        offset: u64,
    ) -> Option<VotesPart> {
        let report = match by == of {
            true => self.heirs.handed_on(of, number)?,
            false => self.replicas.get(&by)?.report_on(of, number)?.clone(),
        };
        let bytes = Parts::part(&report, offset)?;
        let total = report.len() as u64;
        Some(VotesPart { of, number, from: by, offset, bytes, total })
    }

    /// A part of a report has come.
    pub(super) fn on_votes_part(
        &mut self,
        now: Time,
        node: NodeId,
        part: VotesPart,
        out: &mut Outbox<Self>,
    ) {
        let VotesPart { of, number, from, offset, bytes, total } = part;
        let process = from.of(node);
        let Some(gathering) = self.heirs.gathering.get_mut(&of) else { return };
        let counts =
            gathering.fence.config.number == number && gathering.tellers().contains(&process);
        if counts && gathering.parts.add(process, offset, &bytes, total) {
            self.want_votes(now, of, process, out);
            self.begin(now, of, out);
        }
    }

    /// As an heir that has all reports: begins.
    fn begin(&mut self, now: Time, group: GroupId, out: &mut Outbox<Self>) {
        let Some(gathering) = self.heirs.gathering.get(&group) else { return };
        let Some(votes) = gathering.votes(self.heirs.early) else { return };
        let inheritance = Inheritance { fence: gathering.fence.clone(), votes };
        out.persist(Record::Inherited(inheritance.clone()));
        self.inherits(inheritance);
        self.step_multicast(now, group, Event::Started, out);
        let others: Vec<_> = self.topology.present().filter(|node| *node != self.me).collect();
        for node in others.into_iter().filter(|node| !self.topology.is_lost(*node)) {
            out.send(node, Message::Begins(group));
        }
        // What was said to it before it was there is said again, by this node's replicas as well.
        self.all_step(now, &Event::Restarted(group.of(self.me)), out);
        self.learn_fences(now, out);
    }

    /// An heir begins, or has begun before this node was started anew.
    pub(super) fn inherits(&mut self, inheritance: Inheritance) {
        let Inheritance { fence, votes } = inheritance.clone();
        let group = fence.config.group;
        let mut replica = Replica::inheriting(&self.topology, self.me, fence, votes);
        replica.plant(self.mutation);
        self.replicas.insert(group, replica);
        self.heirs.gathering.remove(&group);
        self.heirs.begun.insert(group, inheritance);
    }

    /// What is to be kept of that in a checkpoint: with what heirs began, which comes before the
    /// states of their groups, and what was reported, which comes after them.
    pub(super) fn kept_of_heirs(&self) -> (Vec<Record>, Vec<Record>) {
        let begun = self.heirs.begun.values().cloned().map(Record::Inherited).collect();
        let reports = self.replicas.iter().flat_map(|(by, replica)| {
            let report = |(of, number, votes)| Record::VotesReport { of, number, by: *by, votes };
            replica.reports().map(report)
        });
        (begun, reports.collect())
    }

    /// Our replica of `group` lacks votes on `id` of these groups, of which this node has replicas,
    /// too: if they have ended the message, an heir ends it.
    pub(super) fn end_where_others_have(
        &mut self,
        id: MessageId,
        group: GroupId,
        of: &[GroupId],
    ) -> Vec<Wish> {
        let has_ended = |of: &GroupId| {
            let replica = self.replicas.get(of);
            replica.is_some_and(|replica| replica.own_vote(id).is_none() && replica.has_ended(id))
        };
        let mut wishes = Vec::new();
        if of.iter().any(has_ended)
            && let Some(replica) = self.replicas.get_mut(&group)
        {
            replica.end_inherited(id, &mut wishes);
        }
        wishes
    }

    /// The heirs of `group` go on, and the fence is open: the owner is told, once.
    pub(super) fn tell_in_force(&mut self, group: GroupId, out: &mut Outbox<Self>) {
        let open = self.topology.open_fence().filter(|lost| lost.group == group);
        let in_force = self.replicas.get(&group).and_then(Replica::in_force);
        if let (Some(lost), Some(number)) = (open, in_force)
            && number >= lost.number
            && self.told.insert(group, number) != Some(number)
        {
            out.output(Output::InForce { group, number });
        }
    }

    pub(super) fn plant_in_heirs(&mut self, mutation: Mutation) {
        self.mutation = mutation;
        self.heirs.early = mutation.is(Mutation::BeginsEarly);
        self.heirs.silent = mutation.is(Mutation::HandsOnNothing);
    }
}
