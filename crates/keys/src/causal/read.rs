//! Reads of one key, and of several at one moment.
//!
//! A replica that has several keys Valid at one moment shows a causal snapshot of them. What a
//! value depends on was committed before it was made, or before it was taken from another region.
//! So all live replicas had acknowledged it, and the key of that has it here, or something later.

use super::change::{held, seen_with};
use super::message::{Found, Output};
use super::mutation::Mutation;
use super::node::{Asked, Causal};
use bytes::Bytes;
use meridian_core::{Event, Outbox, Time};
use meridian_hermes::{self as hermes, Answer, Modify, Refusal};
use std::ops::Deref;

/// So often several keys are looked at anew at most because one of them was being changed.
const LOOKS_MAX: u32 = 256;

/// A read of several keys at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Reading {
    pub token: u64,
    pub keys: Vec<Bytes>,
    /// What was read of each when it was looked at last.
    pub found: Vec<Option<Found>>,
}

impl<M: Modify> Causal<M> {
    /// What a key has, if that may be said now: see [`hermes::Hermes::read`], also for the clock.
    pub fn read(&self, now: Time, key: &Bytes) -> Option<Found> {
        let (reads, _) = self.receiver.serves();
        self.replica.read(now, key).filter(|_| reads).map(shown)
    }

    /// The last value of a key that is known here, committed or not, and its place.
    pub fn latest(&self, key: &Bytes) -> Found {
        shown(self.replica.latest(key))
    }

    /// A read: at once, if the replica may answer.
    pub(super) fn on_read(&mut self, now: Time, token: u64, key: Bytes, out: &mut Outbox<Self>) {
        if !self.receiver.serves().0 {
            return self.deny(token, out);
        }
        if let Some(found) = self.read(now, &key) {
            let until = self.replica.lease();
            return out.output(Output::Value { token, found, until });
        }
        let token = self.ask(Asked::Read(token));
        self.step_replica(now, Event::Command(hermes::Command::Read { token, key }), out);
    }

    pub(super) fn on_value(&mut self, token: u64, answer: Answer, out: &mut Outbox<Self>) {
        out.output(match answer {
            Answer::Value { value, until } => {
                Output::Value { token, found: shown(value.as_ref()), until }
            }
            other => refused(token, &other),
        });
    }

    /// Looks at all keys; if one is being changed, again when it is Valid.
    pub(super) fn read_all(
        &mut self,
        now: Time,
        mut reading: Reading,
        looks: u32,
        out: &mut Outbox<Self>,
    ) {
        if !self.receiver.serves().0 {
            return self.deny(reading.token, out);
        }
        let apart = self.mutation.is(Mutation::ReadsApart);
        for (key, found) in reading.keys.iter().zip(&mut reading.found) {
            if found.is_none() || !apart {
                *found = self.read(now, key);
            }
        }
        let token = reading.token;
        let Some(open) = reading.found.iter().position(Option::is_none) else {
            let (found, until) = (reading.found.into_iter().flatten(), self.replica.lease());
            return out.output(Output::Values { token, found: found.collect(), until });
        };
        if looks >= LOOKS_MAX {
            return out.output(Output::Aborted { token });
        }
        let key = reading.keys[open].clone();
        let token = self.ask(Asked::ReadAll(Box::new(reading), looks + 1));
        self.step_replica(now, Event::Command(hermes::Command::Read { token, key }), out);
    }

    /// The key that was being changed is Valid.
    pub(super) fn on_looked(
        &mut self,
        now: Time,
        (reading, looks): (Reading, u32),
        answer: Answer,
        out: &mut Outbox<Self>,
    ) {
        match answer {
            Answer::Value { .. } => self.read_all(now, reading, looks, out),
            other => out.output(refused(reading.token, &other)),
        }
    }

    pub(super) fn on_lapsed(&mut self, token: u64, answer: &Answer, out: &mut Outbox<Self>) {
        out.output(match answer {
            Answer::Modified(_) | Answer::Kept { .. } | Answer::Aborted => Output::Lapsed { token },
            other => refused(token, other),
        });
    }
}

/// What is told if nothing was read.
fn refused(token: u64, answer: &Answer) -> Output {
    match answer {
        Answer::Refused(refusal) => Output::Refused { token, refusal: *refusal },
        _ => Output::Refused { token, refusal: Refusal::NotServing },
    }
}

/// What a session is shown of what Hermes has.
fn shown<B: Deref<Target = [u8]>>(found: Option<&B>) -> Found {
    held(found).map_or_else(Found::default, |update| {
        let (seen, order) = (seen_with(&update), update.order);
        Found { value: update.value, seen, order }
    })
}
