//! A process that consists of other processes.
//!
//! The outer process steps an inner one with an [`Outbox`] of the inner one's own, and then lets
//! its own outbox take over what lies there ([`Outbox::absorb`]). An [`Embedding`] says how the
//! inner one's peers, messages, records and timers look from outside. So the order of effects,
//! and with it the durability rule, is kept in one place; and a timer comes back to the process
//! that set it, because [`Process::Timer`] of the outer one names the inner one.

use crate::process::{Effect, Event, Outbox, Process};

/// How what an inner process asks for is asked for by the outer one.
pub trait Embedding<Inner: Process, Outer: Process> {
    /// A message of the inner process to one of its peers.
    fn message(
        &mut self,
        to: Inner::Peer,
        message: Inner::Message,
    ) -> (Outer::Peer, Outer::Message);

    /// A record of the inner process.
    fn record(&mut self, record: Inner::Record) -> Outer::Record;

    /// A timer of the inner process.
    fn timer(&mut self, timer: Inner::Timer) -> Outer::Timer;

    /// The outer process is the owner of the inner one: it is told this, and may ask for effects
    /// of its own, which come where the output would have come.
    fn output(&mut self, output: Inner::Output, out: &mut Outbox<Outer>);
}

/// The embedding of a process that differs from the outer one in nothing that is seen outside.
#[derive(Clone, Copy, Debug)]
pub struct Same;

impl<Inner, Outer> Embedding<Inner, Outer> for Same
where
    Inner: Process,
    Outer: Process<
            Peer = Inner::Peer,
            Message = Inner::Message,
            Record = Inner::Record,
            Output = Inner::Output,
            Timer = Inner::Timer,
        >,
{
    fn message(
        &mut self,
        to: Inner::Peer,
        message: Inner::Message,
    ) -> (Inner::Peer, Inner::Message) {
        (to, message)
    }

    fn record(&mut self, record: Inner::Record) -> Inner::Record {
        record
    }

    fn timer(&mut self, timer: Inner::Timer) -> Inner::Timer {
        timer
    }

    fn output(&mut self, output: Inner::Output, out: &mut Outbox<Outer>) {
        out.output(output);
    }
}

impl<Outer: Process> Outbox<Outer> {
    /// Takes over, in order, all that an inner process asked for; `inner` is empty afterwards.
    pub fn absorb<Inner: Process>(
        &mut self,
        inner: &mut Outbox<Inner>,
        embedding: &mut impl Embedding<Inner, Outer>,
    ) {
        for effect in inner.drain() {
            match effect {
                Effect::Send { to, message } => {
                    let (to, message) = embedding.message(to, message);
                    self.send(to, message);
                }
                Effect::Persist(record) => self.persist(embedding.record(record)),
                Effect::Note(record) => self.note(embedding.record(record)),
                Effect::Output(output) => embedding.output(output, self),
                Effect::Timer { at, timer } => self.timer(at, embedding.timer(timer)),
            }
        }
    }
}

impl<Outer: Process> Event<Outer> {
    /// The event for an inner process that has the same peers, messages and commands. Its timers
    /// may differ: `timer` tells which of them this one is; without one, nothing happens.
    pub fn inward<Inner>(
        self,
        timer: impl FnOnce(Outer::Timer) -> Option<Inner::Timer>,
    ) -> Option<Event<Inner>>
    where
        Inner: Process<Peer = Outer::Peer, Message = Outer::Message, Command = Outer::Command>,
    {
        Some(match self {
            Event::Started => Event::Started,
            Event::Message { from, message } => Event::Message { from, message },
            Event::Command(command) => Event::Command(command),
            Event::Timer(set) => Event::Timer(timer(set)?),
            Event::Restarted(peer) => Event::Restarted(peer),
            Event::Idle => Event::Idle,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Time;
    use std::time::Duration;

    /// Asks for one effect of each kind, and counts how often its timer fired.
    #[derive(Clone, Debug, Default)]
    struct Inner {
        fired: u32,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    struct Alarm;

    impl Process for Inner {
        type Peer = u8;
        type Message = &'static str;
        type Record = u32;
        type Command = ();
        type Output = &'static str;
        type Timer = Alarm;

        fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
            match event {
                Event::Timer(Alarm) => self.fired += 1,
                _ => {
                    out.note(1);
                    out.send(7, "before");
                    out.persist(2);
                    out.output("after");
                    out.timer(now + Duration::from_secs(1), Alarm);
                }
            }
        }

        fn replay(&mut self, _: u32) {}

        fn checkpoint(&self) -> Box<dyn Iterator<Item = u32> + Send> {
            Box::new(std::iter::empty())
        }
    }

    /// Two inner processes, told apart by their place.
    #[derive(Clone, Debug, Default)]
    struct Pair([Inner; 2]);

    struct Place(usize);

    impl Embedding<Inner, Pair> for Place {
        fn message(&mut self, to: u8, message: &'static str) -> (u8, (usize, &'static str)) {
            (to, (self.0, message))
        }

        fn record(&mut self, record: u32) -> (usize, u32) {
            (self.0, record)
        }

        fn timer(&mut self, timer: Alarm) -> (usize, Alarm) {
            (self.0, timer)
        }

        fn output(&mut self, output: &'static str, out: &mut Outbox<Pair>) {
            out.send(0, (self.0, "of its own"));
            out.output((self.0, output));
        }
    }

    impl Process for Pair {
        type Peer = u8;
        type Message = (usize, &'static str);
        type Record = (usize, u32);
        type Command = usize;
        type Output = (usize, &'static str);
        type Timer = (usize, Alarm);

        fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
            let (place, event) = match event {
                Event::Timer((place, alarm)) => (place, Event::Timer(alarm)),
                Event::Command(place) => (place, Event::Command(())),
                _ => return,
            };
            let mut inner = Outbox::new();
            self.0[place].step(now, event, &mut inner);
            out.absorb(&mut inner, &mut Place(place));
        }

        fn replay(&mut self, _: (usize, u32)) {}

        fn checkpoint(&self) -> Box<dyn Iterator<Item = (usize, u32)> + Send> {
            Box::new(std::iter::empty())
        }
    }

    #[test]
    fn effects_keep_their_order_and_name_the_inner_process() {
        let (mut pair, mut out) = (Pair::default(), Outbox::new());
        pair.step(Time(5), Event::Command(1), &mut out);
        let effects: Vec<_> = out.drain().map(|effect| format!("{effect:?}")).collect();
        let at = Time(1_000_000_005);
        let expected: Vec<Effect<Pair>> = vec![
            Effect::Note((1, 1)),
            Effect::Send { to: 7, message: (1, "before") },
            Effect::Persist((1, 2)),
            Effect::Send { to: 0, message: (1, "of its own") },
            Effect::Output((1, "after")),
            Effect::Timer { at, timer: (1, Alarm) },
        ];
        let expected: Vec<_> = expected.iter().map(|effect| format!("{effect:?}")).collect();
        assert_eq!(effects, expected);
    }

    #[test]
    fn a_timer_fires_at_the_process_that_set_it() {
        let (mut pair, mut out) = (Pair::default(), Outbox::new());
        pair.step(Time(0), Event::Command(0), &mut out);
        pair.step(Time(0), Event::Command(1), &mut out);
        let timers: Vec<_> = out
            .drain()
            .filter_map(|effect| match effect {
                Effect::Timer { timer, .. } => Some(timer),
                _ => None,
            })
            .collect();
        assert_eq!(timers, [(0, Alarm), (1, Alarm)]);
        pair.step(Time(1), Event::Timer(timers[1]), &mut out);
        assert_eq!((pair.0[0].fired, pair.0[1].fired), (0, 1));
    }
}
