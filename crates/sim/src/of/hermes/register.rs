//! What a key is to a client: a value or none, written, deleted, appended to, swapped.

use crate::checkers::linearizable::Specification;
use bytes::Bytes;
use meridian_hermes::{Action, Answer, Modified, Modify};

/// An RMW.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// Adds to the end; answers what there is then.
    Append(Bytes),
    /// If the value is the first, it becomes the second; answers whether it did.
    Swap(Option<Bytes>, Option<Bytes>),
}

/// What a swap answers.
pub const SWAPPED: Bytes = Bytes::from_static(b"yes");
const KEPT: Bytes = Bytes::from_static(b"no");

impl Modify for Change {
    fn modify(&self, found: Option<&Bytes>) -> Modified {
        match self {
            Change::Append(more) => {
                let found = found.map_or(&[][..], |found| found);
                let value = Bytes::from([found, more].concat());
                Modified::Change { value: Some(value.clone()), answer: value }
            }
            Change::Swap(old, new) if old.as_ref() == found => {
                Modified::Change { value: new.clone(), answer: SWAPPED }
            }
            Change::Swap(..) => Modified::Keep { answer: KEPT },
        }
    }
}

/// What a client asks of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// To read it.
    Read,
    /// To change it.
    Update(Action<Change>),
}

/// What a client knows afterwards.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The value.
    Value(Option<Bytes>),
    /// That it is done.
    Done,
    /// What the RMW answered.
    Answer(Bytes),
}

/// What an answer of a replica tells of the key; `None` if the operation has not happened, nor
/// will. Whether it is known at all is not asked here.
pub fn outcome(answer: &Answer) -> Option<Outcome> {
    match answer {
        Answer::Value { value, .. } => Some(Outcome::Value(value.clone())),
        Answer::Written => Some(Outcome::Done),
        Answer::Modified(answer) | Answer::Kept { answer, .. } => {
            Some(Outcome::Answer(answer.clone()))
        }
        Answer::Aborted | Answer::Refused(_) | Answer::Unknown => None,
    }
}

/// A key.
pub struct Key;

impl Specification for Key {
    type State = Option<Bytes>;
    type Operation = Operation;
    type Outcome = Outcome;

    fn initial(&self) -> Option<Bytes> {
        None
    }

    fn apply(&self, state: &Option<Bytes>, operation: &Operation) -> (Option<Bytes>, Outcome) {
        match operation {
            Operation::Read => (state.clone(), Outcome::Value(state.clone())),
            Operation::Update(Action::Write(value)) => (value.clone(), Outcome::Done),
            Operation::Update(Action::Modify(change)) => match change.modify(state.as_ref()) {
                Modified::Change { value, answer } => (value, Outcome::Answer(answer)),
                Modified::Keep { answer } => (state.clone(), Outcome::Answer(answer)),
            },
        }
    }

    fn changes_nothing(&self, operation: &Operation, outcome: &Outcome) -> bool {
        match operation {
            Operation::Read => true,
            Operation::Update(Action::Write(_)) => false,
            Operation::Update(Action::Modify(_)) => *outcome == Outcome::Answer(KEPT),
        }
    }
}
