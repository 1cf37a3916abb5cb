//! Links without an order, in a search: what arrives in which order is counted by hand here.

use meridian_core::{Event, Outbox, Process, Time};
use meridian_sim::explore::{Begun, Disorder, Found, Input, Model, Options, Set, search};

/// One sends three messages to the other, which keeps them as they come.
#[derive(Clone, Debug, PartialEq, Hash)]
struct Notes(Vec<u8>);

impl Process for Notes {
    type Peer = u8;
    type Message = u8;
    type Record = ();
    type Command = ();
    type Output = ();
    type Timer = ();

    fn step(&mut self, _: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Command(()) => (1..=3).for_each(|message| out.send(1, message)),
            Event::Message { message, .. } => self.0.push(message),
            _ => {}
        }
    }

    fn replay(&mut self, (): ()) {}

    fn checkpoint(&self) -> Box<dyn Iterator<Item = ()> + Send> {
        Box::new(std::iter::empty())
    }
}

/// What must not come.
struct Case(&'static [u8]);

impl Model for Case {
    type Process = Notes;
    type Observed = ();

    fn processes(&self) -> Vec<Begun<Notes>> {
        let begun = |peer| Begun { peer, process: Notes(Vec::new()), disk: Vec::new() };
        [0, 1].map(begun).into()
    }

    fn now(&self) -> Time {
        Time(0)
    }

    fn timer(&self) -> Event<Notes> {
        Event::Timer(())
    }

    fn inputs(&self) -> Vec<Input<Notes>> {
        let event = Event::Command(());
        vec![Input { at: 0, event, cause: 0, after: None, after_crash: false }]
    }

    fn observe(&self, (): &mut (), _: usize, _: Set, _: &Notes, _: &[()]) {}

    fn violated(&self, (): &(), up: &[&Notes]) -> Option<&'static str> {
        (up[1].0 == self.0).then_some("unwanted")
    }

    fn is_goal(&self, (): &(), up: &[&Notes]) -> bool {
        up[1].0.len() == 3
    }

    fn restarted(&self, _: usize) -> Notes {
        unreachable!("nobody crashes")
    }
}

fn all(repeated: u8, overtakes: Option<u8>, unwanted: &'static [u8]) -> Found {
    let disorder = Some(Disorder { repeated, overtakes });
    search(&Case(unwanted), Options { disorder, reduced: false, ..Options::default() })
}

const NOTHING: &[u8] = &[0];

#[test]
fn all_orders_are_met() {
    let fifo = search(&Case(NOTHING), Options::default());
    assert_eq!(fifo.ends.len(), 1);
    assert_eq!(all(0, None, NOTHING).ends.len(), 6, "3!");
    assert_eq!(all(1, None, NOTHING).ends.len(), 6 + 3 * 12, "and one of them twice: 4! / 2! each");
    for order in [[3, 2, 1], [2, 3, 1], [3, 1, 2]] {
        assert!(all(0, None, Box::leak(Box::new(order))).violated.is_some(), "{order:?}");
    }
}

#[test]
fn a_bound_counts_messages_that_come_before_earlier_ones() {
    assert_eq!(all(0, Some(0), NOTHING).ends.len(), 1);
    assert_eq!(all(0, Some(1), NOTHING).ends.len(), 4, "123, 213, 312, 132");
    assert_eq!(all(0, Some(2), NOTHING).ends.len(), 6);
    assert!(all(0, Some(1), &[3, 2, 1]).violated.is_none(), "that takes two");
    assert!(all(0, Some(2), &[3, 2, 1]).violated.is_some());
    assert_eq!(all(1, Some(u8::MAX), NOTHING).ends, all(1, None, NOTHING).ends);
}
