//! What was done lately for which message, and when: for who asks where the time of one update went
//! (decision 92).
//!
//! A node notes each step as it sees it anyway, in a ring: a few words of memory are written, and
//! nothing is counted, sent or kept on disk. ACKs cover all of `T` up to a length, so one step
//! stands for all messages before it; what they mean for one message is found when somebody asks.

use crate::mutation::Mutation;
use meridian_core::{GroupId, MessageId, NodeId, ProcessId, Time};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// So many steps are kept: those of a thousand updates, in a MiB.
const KEPT: usize = 1 << 14;
/// So many steps of one message are told: a group of a hundred members fits.
const TOLD_MAX: usize = 1024;

/// What a step is. Words of the thesis are those of `docs/multicast.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// The client asked that process. This and `Answered` are steps of clients, the others of
    /// nodes.
    Asked,
    /// A client's request came.
    Requested,
    /// START came from that process.
    Started,
    /// The primary appended the message to `T`, with the timestamp that it proposes, and has sent
    /// it to its followers and to other groups.
    Proposed,
    /// A follower appended what its primary proposed.
    Appended,
    /// What was appended is durable, and ACK leaves.
    Acknowledged,
    /// An ACK of that process came.
    AckHeard,
    /// The timestamp came that the primary of another group proposes.
    ProposalHeard,
    /// As primary: a quorum has acknowledged, which other groups are told.
    Decided,
    /// The primary of another group told that a quorum there has acknowledged.
    DecidedHeard,
    /// Our primary told which timestamp another group has decided.
    Relayed,
    /// The final timestamp is known.
    Final,
    /// It was its turn: the message was delivered.
    Delivered,
    /// The partition has voted.
    Voted,
    /// Its vote leaves for that process.
    VoteSent,
    /// The vote of that process's partition came.
    VoteHeard,
    /// That process asked for our partition's vote.
    VoteWanted,
    /// The update was executed, or refused, as all votes were known.
    Applied,
    /// What it rests on is durable, and the reply leaves for the client.
    Replied,
    /// That process's reply came.
    Answered,
}

/// Something that was done for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Step {
    /// When, by the clock of who did it.
    pub at: Time,
    /// What.
    pub what: What,
    /// By whose replica, or asked of which group; none of what a node does as a whole.
    pub group: Option<GroupId>,
    /// The other process that it has to do with.
    pub with: Option<ProcessId>,
}

/// What a node tells of one message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Its clock as it answers.
    pub now: Time,
    /// Steps before that are forgotten; none if all are known since its start.
    pub since: Option<Time>,
    /// What it has done, in order.
    pub steps: Vec<Step>,
}

/// A step, as it is kept.
#[derive(Clone, Copy, Debug)]
struct Noted {
    step: Step,
    of: Of,
}

/// What a step is about.
#[derive(Clone, Copy, Debug)]
enum Of {
    Message(MessageId),
    /// The message, which stands there in the `T` of the group of `step.with`.
    Placed(MessageId, u64),
    /// All of the `T` of the group of `step.with` up to there.
    UpTo(u64),
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Steps {
    ring: VecDeque<Noted>,
    /// How far ACKs went that were noted last, by what they are, at whose replica, and from whom.
    reached: Vec<(What, Option<GroupId>, ProcessId, u64)>,
    since: Option<Time>,
    mutation: Mutation,
}

impl Steps {
    /// With a planted bug.
    pub(crate) fn plant(&mut self, mutation: Mutation) {
        self.mutation = mutation;
    }

    /// Notes a step of a message.
    pub fn note(&mut self, id: MessageId, step: Step) {
        let mut of = id;
        if step.what == What::VoteHeard && self.mutation.is(Mutation::MissesSteps) {
            return;
        }
        if step.what == What::Applied && self.mutation.is(Mutation::MisnamesSteps) {
            of.sequence += 1;
        }
        self.push(step, Of::Message(of));
    }

    /// Notes a step of a message that stands at `index` in the `T` of the group of `step.with`.
    pub(crate) fn note_placed(&mut self, id: MessageId, index: u64, step: Step) {
        self.push(step, Of::Placed(id, index));
    }

    /// Notes a step of all messages that stand before `len` in the `T` of `with`, unless it was
    /// noted before.
    pub(crate) fn note_up_to(&mut self, len: u64, step: Step) {
        let Some(with) = step.with else { return };
        let mut reached = self.reached.iter_mut();
        match reached.find(|of| (of.0, of.1, of.2) == (step.what, step.group, with)) {
            Some(known) if known.3 == len => return,
            Some(known) => known.3 = len,
            None => self.reached.push((step.what, step.group, with, len)),
        }
        self.push(step, Of::UpTo(len));
    }

    fn push(&mut self, step: Step, of: Of) {
        if self.ring.len() >= KEPT {
            self.since = self.ring.pop_front().map(|oldest| oldest.step.at);
        }
        self.ring.push_back(Noted { step, of });
    }

    /// What was done for a message, in order.
    pub fn report(&self, now: Time, id: MessageId) -> Report {
        // Where it stands: at whose replica that is known, in the `T` of which group.
        let mut places: Vec<(Option<GroupId>, GroupId, u64)> = Vec::new();
        let mut reached: Vec<(What, Option<GroupId>, Option<ProcessId>)> = Vec::new();
        let mut steps = Vec::new();
        for Noted { step, of } in &self.ring {
            let group = step.with.map(|with| with.group);
            let is_of = match *of {
                Of::Message(of) => of == id,
                Of::Placed(of, index) if of == id => {
                    let place = group.map(|group| (step.group, group, index));
                    places.extend(place.filter(|place| !places.contains(place)));
                    true
                }
                Of::Placed(..) => false,
                Of::UpTo(len) => {
                    let first = (step.what, step.group, step.with);
                    let covers = |(at, of, index): &(Option<GroupId>, GroupId, u64)| {
                        *at == step.group && Some(*of) == group && *index < len
                    };
                    let counts = places.iter().any(covers) && !reached.contains(&first);
                    reached.extend(counts.then_some(first));
                    counts
                }
            };
            if is_of && steps.len() < TOLD_MAX {
                steps.push(*step);
            }
        }
        steps.sort_by_key(|step| step.at); // A final timestamp is noted with the delivery.
        Report { now, since: self.since, steps }
    }
}

impl Step {
    /// Of a replica, or about a group, and about no other process.
    pub fn of(at: Time, what: What, group: impl Into<Option<GroupId>>) -> Step {
        Step { at, what, group: group.into(), with: None }
    }

    /// The same, which has to do with another process.
    pub fn with(self, group: GroupId, node: NodeId) -> Step {
        Step { with: Some(group.of(node)), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_core::ClientId;

    const US: GroupId = GroupId(1);
    const EU: GroupId = GroupId(2);

    fn id(sequence: u64) -> MessageId {
        MessageId { client: ClientId(7), sequence }
    }

    fn whats(steps: &Steps, sequence: u64) -> Vec<(u64, What)> {
        let report = steps.report(Time(99), id(sequence));
        report.steps.iter().map(|step| (step.at.0, step.what)).collect()
    }

    #[test]
    fn an_ack_is_a_step_of_all_that_it_covers_once() {
        let mut steps = Steps::default();
        let step = |at, what| Step::of(Time(at), what, US);
        steps.note(id(1), step(1, What::Requested));
        for (at, index) in [(2, 10), (3, 11)] {
            let proposed = step(at, What::Proposed).with(US, NodeId(0));
            steps.note_placed(id(at - 1), index, proposed);
        }
        let heard = step(4, What::ProposalHeard).with(EU, NodeId(3));
        steps.note_placed(id(1), 40, heard);
        for (at, len) in [(5, 10), (6, 11), (7, 11), (8, 12), (9, 13)] {
            steps.note_up_to(len, step(at, What::AckHeard).with(US, NodeId(1)));
        }
        steps.note_up_to(41, step(10, What::DecidedHeard).with(EU, NodeId(3)));
        let first = [
            (1, What::Requested),
            (2, What::Proposed),
            (4, What::ProposalHeard),
            (6, What::AckHeard),
            (10, What::DecidedHeard),
        ];
        assert_eq!(whats(&steps, 1), first);
        assert_eq!(whats(&steps, 2), [(3, What::Proposed), (8, What::AckHeard)]);
        assert_eq!(whats(&steps, 3), []);
        let held = steps.ring.len();
        steps.note_up_to(41, step(11, What::DecidedHeard).with(EU, NodeId(3)));
        assert_eq!(steps.ring.len(), held, "nothing is new");
    }

    #[test]
    fn the_ring_is_bounded_and_says_since_when_it_knows() {
        let mut steps = Steps::default();
        assert_eq!(steps.report(Time(9), id(1)).since, None);
        for at in 0..KEPT as u64 + 3 {
            steps.note(id(at), Step::of(Time(at), What::Applied, US));
        }
        assert_eq!(steps.ring.len(), KEPT);
        assert_eq!(
            steps.report(Time(9), id(2)),
            Report { now: Time(9), since: Some(Time(2)), steps: vec![] }
        );
        assert_eq!(whats(&steps, 3), [(3, What::Applied)]);
        (0..2 * TOLD_MAX).for_each(|_| steps.note(id(1), Step::of(Time(1), What::Started, US)));
        assert_eq!(steps.report(Time(9), id(1)).steps.len(), TOLD_MAX);
        assert!(size_of::<Noted>() <= 64, "{}", size_of::<Noted>());
    }
}
