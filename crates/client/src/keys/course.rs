//! Which node a line asks, and when another: what is decided, without sockets.
//!
//! A change has a name, so that it can be asked again. While a node may still carry it out, only
//! that node is asked; another is when it says that nothing more comes of it (`MERIDIAN.SETTLED`).

use std::time::Duration;

/// How long it waits before it asks another node, after each failure longer.
const PAUSE: Duration = Duration::from_millis(5);
/// It waits no longer than this.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// The node that a connection is with, when it was named there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    /// Its number.
    pub node: i64,
    /// It was live in this epoch.
    pub epoch: i64,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Change,
}

/// What a line does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Connects with the node at this place of the list.
    Connect(usize),
    /// Says whose requests come.
    Name,
    /// Asks whether nothing more comes of what that node was asked.
    Settle(Host),
    /// Asks.
    Ask,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is connected.
    Connected,
    /// The node tells who it is.
    Named(Host),
    /// Whether nothing more comes of it.
    Settled(bool),
    /// It is answered: that was all.
    Answered,
    /// The node has not done it, nor will.
    Refused,
    /// The node has done it, will, or will not.
    Unknown,
    /// The connection is gone, or the node silent.
    Broken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    None,
    Open,
    Named(Host),
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Course {
    nodes: usize,
    /// The place of the node that is asked now.
    at: usize,
    link: Link,
    /// Who may still carry out the change that is asked for.
    doubt: Option<Host>,
    /// The change that is asked for may have been made by a node that was asked before.
    tried: bool,
    failures: u32,
    connections: u64,
}

impl Course {
    /// Of so many nodes; the one at `first` is asked first.
    pub fn new(nodes: usize, first: usize) -> Course {
        Course {
            nodes,
            at: first % nodes,
            link: Link::None,
            doubt: None,
            tried: false,
            failures: 0,
            connections: 0,
        }
    }

    /// Another request begins.
    pub fn begin(&mut self) {
        self.tried = false;
    }

    /// What is to be done next for such a request.
    pub fn next(&self, kind: Kind) -> Step {
        match (self.link, kind, self.doubt) {
            (Link::None, _, _) => Step::Connect(self.at),
            (_, Kind::Read, _) => Step::Ask,
            (Link::Open, Kind::Change, _) => Step::Name,
            (Link::Named(_), Kind::Change, Some(doubt)) => Step::Settle(doubt),
            (Link::Named(_), Kind::Change, None) => Step::Ask,
        }
    }

    /// What came of a step; after how long to go on.
    pub fn on(&mut self, step: Step, kind: Kind, outcome: Outcome) -> Duration {
        match outcome {
            Outcome::Connected => {
                self.link = Link::Open;
                self.connections += 1;
            }
            Outcome::Named(host) => self.link = Link::Named(host),
            Outcome::Settled(true) => self.doubt = None,
            Outcome::Answered => self.failures = 0,
            Outcome::Broken | Outcome::Unknown => {
                if let (Step::Ask, Kind::Change, Link::Named(host)) = (step, kind, self.link) {
                    (self.doubt, self.tried) = (Some(host), true);
                }
                return self.turn();
            }
            Outcome::Settled(false) | Outcome::Refused => return self.turn(),
        }
        Duration::ZERO
    }

    /// Asks the next node, after a while if all were asked.
    fn turn(&mut self) -> Duration {
        (self.at, self.link) = ((self.at + 1) % self.nodes, Link::None);
        self.failures += 1;
        let rounds = self.failures / u32::try_from(self.nodes).unwrap_or(u32::MAX);
        PAUSE.saturating_mul(rounds.saturating_mul(rounds)).min(PAUSE_MAX)
    }

    /// The connection is not used any more.
    pub fn leave(&mut self) {
        self.link = Link::None;
    }

    /// So often it was connected.
    pub fn connections(&self) -> u64 {
        self.connections
    }

    /// Whether the connection is to be kept.
    pub fn is_connected(&self) -> bool {
        self.link != Link::None
    }

    /// Whether the change that is asked for was asked for before without an answer. It may have
    /// been made then, also if nothing more comes of it.
    pub fn was_tried(&self) -> bool {
        self.tried
    }

    /// Whether a change may still be carried out by a node that was asked for it.
    pub fn is_in_doubt(&self) -> bool {
        self.doubt.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Host = Host { node: 0, epoch: 1 };
    const B: Host = Host { node: 1, epoch: 2 };

    /// Goes so far, each time with that outcome; the steps.
    fn run(course: &mut Course, kind: Kind, outcomes: &[Outcome]) -> Vec<Step> {
        let mut steps = Vec::new();
        for outcome in outcomes {
            let step = course.next(kind);
            steps.push(step);
            course.on(step, kind, *outcome);
        }
        steps
    }

    #[test]
    fn a_change_whose_end_is_not_known_is_asked_elsewhere_when_it_is_settled() {
        use Outcome::{Answered, Broken, Connected, Named, Settled};
        let mut course = Course::new(2, 0);
        let outcomes = [
            Connected,
            Named(A),
            Broken, // When it was asked.
            Connected,
            Named(B),
            Settled(false),
            Broken, // It does not come back.
            Connected,
            Named(B),
            Settled(true),
            Answered,
        ];
        let steps = run(&mut course, Kind::Change, &outcomes);
        let expected = [
            Step::Connect(0),
            Step::Name,
            Step::Ask,
            Step::Connect(1),
            Step::Name,
            Step::Settle(A),
            Step::Connect(0),
            Step::Connect(1),
            Step::Name,
            Step::Settle(A),
            Step::Ask,
        ];
        assert_eq!(steps, expected);
        assert!(course.was_tried() && !course.is_in_doubt(), "it may have been made by A");
        course.begin();
        assert!(!course.was_tried());
        assert_eq!(course.next(Kind::Change), Step::Ask, "the next change");
    }

    #[test]
    fn a_node_that_breaks_while_it_is_asked_whether_is_in_no_doubt() {
        use Outcome::{Broken, Connected, Named};
        let mut course = Course::new(2, 0);
        let outcomes = [Connected, Named(A), Broken, Connected, Named(B), Broken];
        run(&mut course, Kind::Change, &outcomes);
        run(&mut course, Kind::Change, &[Connected, Named(A)]);
        assert_eq!(course.next(Kind::Change), Step::Settle(A), "it was not asked of B");
    }

    #[test]
    fn what_was_refused_and_reads_leave_no_doubt() {
        use Outcome::{Broken, Connected, Named, Refused};
        let mut course = Course::new(2, 1);
        run(&mut course, Kind::Change, &[Connected, Named(B), Refused, Connected, Named(A)]);
        assert_eq!(course.next(Kind::Change), Step::Ask);
        course.on(Step::Ask, Kind::Read, Broken);
        assert!(!course.is_in_doubt() && !course.is_connected());
    }

    #[test]
    fn pauses_grow_when_all_nodes_were_asked() {
        let mut course = Course::new(2, 0);
        let mut pauses = (0..100).map(|_| course.on(Step::Connect(0), Kind::Read, Outcome::Broken));
        assert_eq!(pauses.next(), Some(Duration::ZERO), "another node at once");
        assert_eq!(pauses.last(), Some(PAUSE_MAX));
    }
}
