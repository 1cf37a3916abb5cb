//! The path of one update as a line of time over the client and the nodes: what each has noted,
//! brought to one clock (decision 92).
//!
//! Clocks of machines differ. A node tells its clock as it answers, so its time is known at the
//! asker to half of the round trip. That is narrowed by what must be: nothing is heard before it
//! was sent. What still contradicts that, as clocks run unevenly, is drawn at the moment of its
//! cause.

use meridian_core::{GroupId, NodeId, ProcessId, Time};
use meridian_host::steps::{Report, Step, What};

/// Clocks are moved so often at most: once for each node on a way from the client.
const ROUNDS: usize = 16;

/// What a node has told, and when it was asked by the asker's clock.
#[derive(Clone, Debug)]
pub struct Told {
    /// Who.
    pub node: NodeId,
    /// When it was asked.
    pub asked: Time,
    /// When its answer came.
    pub answered: Time,
    /// The answer.
    pub report: Report,
}

/// A step on the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// When, by the asker's clock, in nanoseconds; before 0 if the asker began later.
    pub at_ns: i64,
    /// By so much that may be wrong, to either side.
    pub within_ns: u64,
    /// Who did it; none if it was the client.
    pub node: Option<NodeId>,
    /// What.
    pub step: Step,
}

/// How far a clock is from the asker's.
#[derive(Clone, Copy, Debug)]
struct Clock {
    ahead_ns: i64,
    within_ns: i64,
}

impl Clock {
    fn of(told: &Told) -> Clock {
        let trip = told.answered.since(told.asked).as_nanos();
        let within_ns = i64::try_from(trip / 2).unwrap_or(i64::MAX / 4);
        let middle = told.asked.0.wrapping_add_signed(within_ns);
        Clock { ahead_ns: middle.wrapping_sub(told.report.now.0) as i64, within_ns }
    }
}

/// All that is known, the first step first; what follows from each other in that order.
pub fn timeline(own: &[Step], told: &[Told]) -> Vec<Point> {
    let point = |node, clock: Clock| {
        move |step: &Step| Point {
            at_ns: step.at.0.wrapping_add_signed(clock.ahead_ns) as i64,
            within_ns: clock.within_ns.unsigned_abs(),
            node,
            step: *step,
        }
    };
    let exact = Clock { ahead_ns: 0, within_ns: 0 };
    let mut points: Vec<Point> = own.iter().map(point(None, exact)).collect();
    for told in told {
        points.extend(told.report.steps.iter().map(point(Some(told.node), Clock::of(told))));
    }
    let causes: Vec<Option<usize>> = (0..points.len()).map(|at| cause(&points, at)).collect();
    narrow(&mut points, &causes);
    for (at, cause) in causes.iter().enumerate() {
        if let Some(cause) = cause {
            points[at].at_ns = points[at].at_ns.max(points[*cause].at_ns);
        }
    }
    points.sort_by_key(|point| (point.at_ns, order(point)));
    points
}

/// Moves clocks within what is known of them until nothing comes before its cause, as far as that
/// goes.
fn narrow(points: &mut [Point], causes: &[Option<usize>]) {
    let mut moved: std::collections::BTreeMap<NodeId, i64> = Default::default();
    for _ in 0..ROUNDS {
        let mut is_narrow = true;
        for (at, cause) in causes.iter().enumerate() {
            let Some(cause) = *cause else { continue };
            let early = points[cause].at_ns - points[at].at_ns;
            // The later one is moved on, or, if it is the client, the earlier one back.
            let (point, by) = match points[at].node {
                _ if early <= 0 => continue,
                Some(_) => (points[at], early),
                None => (points[cause], -early),
            };
            let Some(node) = point.node else { continue };
            let within = i64::try_from(point.within_ns);
            let within = within.unwrap_or(i64::MAX / 4);
            let before = moved.entry(node).or_default();
            let after = (*before + by).clamp(-within, within);
            let by = after - std::mem::replace(before, after);
            is_narrow &= by == 0;
            let of_node = points.iter_mut().filter(|point| point.node == Some(node));
            of_node.for_each(|point| point.at_ns += by);
        }
        if is_narrow {
            return;
        }
    }
}

/// What was sent stands before what was heard at the same moment; else in the order in which steps
/// follow each other.
fn order(point: &Point) -> (What, Option<NodeId>) {
    (point.step.what, point.node)
}

/// Where that was sent which this step has heard, if somebody tells of it: of several times the
/// last before it, or else the first.
pub fn cause(points: &[Point], of: usize) -> Option<usize> {
    let Point { node, step, at_ns, .. } = points[of];
    let sent = |by: Option<NodeId>, what: What, fits: &dyn Fn(&Step) -> bool| {
        let is = |point: &Point| point.node == by && point.step.what == what && fits(&point.step);
        let all = || points.iter().enumerate().filter(|(_, point)| is(point)).map(|(at, _)| at);
        let before = all().filter(|at| points[*at].at_ns <= at_ns);
        before
            .max_by_key(|at| points[*at].at_ns)
            .or_else(|| all().min_by_key(|at| points[*at].at_ns))
    };
    let of_group = |group: Option<GroupId>| move |step: &Step| step.group == group;
    let here = |step: &Step| node.is_some_and(|node| step.with.is_some_and(|to| to.node == node));
    let with: Option<ProcessId> = step.with;
    let (by, theirs) = (with.map(|with| with.node), with.map(|with| with.group));
    match step.what {
        What::Requested => {
            sent(None, What::Asked, &|asked| asked.group == step.group && here(asked))
        }
        What::ProposalHeard => sent(by, What::Proposed, &of_group(theirs)),
        What::AckHeard => sent(by, What::Acknowledged, &of_group(theirs)),
        What::DecidedHeard => sent(by, What::Decided, &of_group(theirs)),
        What::VoteHeard => {
            let to_here = |sent: &Step| sent.group == theirs && here(sent);
            sent(by, What::VoteSent, &to_here)
        }
        What::Answered => sent(by, What::Replied, &|_| true),
        What::Appended => {
            let is =
                |point: &Point| point.step.what == What::Proposed && point.step.group == step.group;
            points.iter().position(is)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_core::{ClientId, MessageId};
    use meridian_host::steps::Steps;

    const US: GroupId = GroupId(1);
    const MS: u64 = 1_000_000;

    fn told(node: u16, ahead: i64, trip: (u64, u64), steps: &[(u64, Step)]) -> Told {
        let id = MessageId { client: ClientId(1), sequence: 1 };
        let mut noted = Steps::default();
        let clock = |at: u64| Time((at * MS).wrapping_add_signed(ahead * MS as i64));
        for (at, step) in steps {
            noted.note(id, Step { at: clock(*at), ..*step });
        }
        let (asked, answered) = (Time(1000 * MS), Time((1000 + trip.0 + trip.1) * MS));
        let report = noted.report(clock(1000 + trip.0), id);
        Told { node: NodeId(node), asked, answered, report }
    }

    fn step(what: What) -> Step {
        Step::of(Time(0), what, US)
    }

    #[test]
    fn clocks_that_are_hours_apart_give_one_line() {
        let own = [
            Step { at: Time(5 * MS), ..step(What::Asked).with(US, NodeId(0)) },
            Step { at: Time(45 * MS), ..step(What::Answered).with(US, NodeId(0)) },
        ];
        let first = [
            (6, step(What::Requested)),
            (6, step(What::Proposed)),
            (40, step(What::AckHeard).with(US, NodeId(1))),
            (44, step(What::Replied)),
        ];
        let second = [(20, step(What::Appended)), (25, step(What::Acknowledged))];
        // The way back from the second takes all of its round trip: its clock seems 10 ms fast.
        let all = [told(0, 3_600_000, (1, 1), &first), told(1, -7_200_000, (0, 20), &second)];
        let line = timeline(&own, &all);
        let seen: Vec<_> =
            line.iter().map(|point| (point.at_ns / MS as i64, point.step.what)).collect();
        let expected = [
            (5, What::Asked),
            (6, What::Requested),
            (6, What::Proposed),
            (30, What::Appended),
            (35, What::Acknowledged),
            (40, What::AckHeard),
            (44, What::Replied),
            (45, What::Answered),
        ];
        assert_eq!(seen, expected);
        assert_eq!(line[3].within_ns, 10 * MS);
    }

    #[test]
    fn what_is_heard_before_it_is_sent_moves_the_clock_or_is_drawn_at_its_cause() {
        let proposed = [(10, step(What::Proposed))];
        let follower = [(12, step(What::Appended)), (13, step(What::Acknowledged))];
        // All of the way there: the follower seems to be 5 ms early, which is within 5 ms.
        let all = [told(0, 0, (0, 0), &proposed), told(1, 0, (10, 0), &follower)];
        let line = timeline(&[], &all);
        let seen: Vec<_> =
            line.iter().map(|point| (point.at_ns / MS as i64, point.step.what)).collect();
        assert_eq!(seen, [(10, What::Proposed), (10, What::Appended), (11, What::Acknowledged)]);
        // A clock that has jumped since: nothing is heard before it is sent all the same.
        let jumped = [(2, step(What::Appended)), (13, step(What::Acknowledged))];
        let line = timeline(&[], &[told(0, 0, (0, 0), &proposed), told(1, 0, (1, 1), &jumped)]);
        let seen: Vec<_> = line.iter().map(|point| point.step.what).collect();
        assert_eq!(seen, [What::Proposed, What::Appended, What::Acknowledged]);
        assert!(line.is_sorted_by_key(|point| point.at_ns));
    }
}
