//! What a causal key holds, and what is done with it, as the replicas of Hermes understand it.
//!
//! Hermes holds the last update of a key with all that other regions need of it. Each change is an
//! RMW: the place of an update among those of its key is decided where the update is committed, and
//! an update of another region changes nothing where something later is held.

use bytes::Bytes;
use meridian_core::RegionId;
use meridian_eunomia::{Label, Order, Seen, Timestamp, Update};
use meridian_hermes::{Action, Modified, Modify};
use serde::{Deserialize, Serialize};
use std::ops::Deref;

/// What is done with a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change<M> {
    /// A change of a key that is of one region only.
    Local(M),
    /// An update of a causal key that is made here.
    Make(Make<M>),
    /// An update of a causal key that was made in another region.
    Merge(Update),
    /// As [`Change::Merge`], under a name; the answer is the update ([`noted`]). Something is
    /// committed also where what is held is later: so all replicas know that it is applied.
    Note(Update),
    /// The update that has this place has expired: no value is shown any more. Each region does so
    /// by its own clocks; nothing of it goes to others, so it defeats no update of theirs.
    Lapse(Order),
    /// As [`Change::Merge`], but that it replaces whatever is held: a planted bug.
    #[doc(hidden)]
    Replace(Update),
}

/// An update that is made here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Make<M> {
    /// Of this key.
    pub key: Bytes,
    /// In this region.
    pub region: RegionId,
    /// Its label.
    pub label: Label,
    /// The greatest [`Order::version`] that its session has seen.
    pub version: Timestamp,
    /// What is done.
    pub action: Action<M>,
    /// It does not look whether it depends on what it finds: a planted bug.
    #[doc(hidden)]
    pub blind: bool,
}

/// What has become of an update.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It has happened.
    Made {
        /// What is held now.
        update: Update,
        /// What an RMW answers.
        answer: Bytes,
    },
    /// It has changed nothing: it was a read.
    Kept {
        /// What an RMW answers.
        answer: Bytes,
        /// What is seen with what it has found.
        seen: Seen,
    },
    /// Nothing has happened: it would depend on what its label does not name.
    Behind {
        /// What is seen with what it has found.
        seen: Seen,
    },
}

/// As it is kept and sent.
pub(super) fn encode<T: Serialize>(value: &T) -> Bytes {
    postcard::to_stdvec(value).expect("writing to memory").into()
}

/// What [`encode`] wrote; `None` if it was something else.
pub(super) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    postcard::from_bytes(bytes).ok()
}

/// The update that a key holds, of what Hermes has.
pub fn held<B: Deref<Target = [u8]>>(found: Option<&B>) -> Option<Update> {
    found.and_then(|bytes| decode(bytes))
}

/// What a session has seen that has seen this.
pub fn seen_with(update: &Update) -> Seen {
    Seen { vector: update.label.vector, version: update.order.version }
}

impl<M: Modify> Make<M> {
    fn modify(&self, found: Option<&Bytes>) -> Modified {
        let held = held(found);
        let seen = held.as_ref().map(seen_with).unwrap_or_default();
        let (value, answer) = match &self.action {
            Action::Write(value) => (value.clone(), Bytes::new()),
            Action::Modify(modify) => {
                match modify.modify(held.as_ref().and_then(|held| held.value.as_ref())) {
                    Modified::Keep { answer } => {
                        return Modified::Keep { answer: encode(&Outcome::Kept { answer, seen }) };
                    }
                    Modified::Change { .. } if !self.blind && !self.depends_on(&seen) => {
                        return Modified::Keep { answer: encode(&Outcome::Behind { seen }) };
                    }
                    Modified::Change { value, answer } => (value, answer),
                }
            }
        };
        let order = held.map(|held| held.order).unwrap_or_default();
        let order = order.followed(self.version, self.region, self.label.ts);
        let (origin, label, key) = (self.region, self.label, self.key.clone());
        let update = Update { origin, label, key, value, order };
        let value = Some(encode(&update));
        Modified::Change { value, answer: encode(&Outcome::Made { update, answer }) }
    }

    /// Whether what is seen is among what the label depends on.
    fn depends_on(&self, seen: &Seen) -> bool {
        let mut known = self.label.vector;
        known[self.region] = self.label.dep;
        known.covers(&seen.vector)
    }
}

/// Holds what was made in another region, unless what is held is later.
fn merge(update: &Update, found: Option<&Bytes>, replaces: bool) -> Modified {
    let order = held(found).map(|held| held.order);
    if order.is_none_or(|order: Order| order < update.order || replaces) {
        Modified::Change { value: Some(encode(update)), answer: Bytes::new() }
    } else {
        Modified::Keep { answer: Bytes::new() }
    }
}

/// The same, and all replicas know of it.
fn note(update: &Update, found: Option<&Bytes>) -> Modified {
    let value = match merge(update, found, false) {
        Modified::Change { value, .. } => value,
        Modified::Keep { .. } => found.cloned(),
    };
    Modified::Change { value, answer: encode(update) }
}

/// The update of another region of which this is the answer ([`Change::Note`]).
pub(super) fn noted(answer: &Bytes) -> Option<Update> {
    decode(answer)
}

/// Where the update of such an answer was made.
pub(super) fn noted_origin(answer: &Bytes) -> Option<RegionId> {
    postcard::take_from_bytes(answer).ok().map(|(origin, _)| origin)
}

/// Takes its value from what is held, if that has this place.
fn lapse(order: Order, found: Option<&Bytes>) -> Modified {
    match held(found).filter(|held| held.order == order && held.value.is_some()) {
        Some(held) => {
            let value = Some(encode(&Update { value: None, ..held }));
            Modified::Change { value, answer: Bytes::new() }
        }
        None => Modified::Keep { answer: Bytes::new() },
    }
}

impl<M: Modify> Modify for Change<M> {
    fn modify(&self, found: Option<&Bytes>) -> Modified {
        match self {
            Change::Local(modify) => modify.modify(found),
            Change::Make(make) => make.modify(found),
            Change::Merge(update) => merge(update, found, false),
            Change::Note(update) => note(update, found),
            Change::Lapse(order) => lapse(*order, found),
            Change::Replace(update) => merge(update, found, true),
        }
    }

    fn bytes(&self) -> usize {
        let len = |value: &Option<Bytes>| value.as_ref().map_or(0, Bytes::len);
        match self {
            Change::Local(modify) => modify.bytes(),
            Change::Make(Make { action: Action::Write(value), .. }) => len(value),
            Change::Make(Make { action: Action::Modify(modify), .. }) => modify.bytes(),
            Change::Merge(update) | Change::Note(update) | Change::Replace(update) => {
                len(&update.value)
            }
            Change::Lapse(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(origin: u16, ts: u64) -> Update {
        let (ts, mut vector) = (Timestamp(ts), meridian_eunomia::Vector::default());
        let origin = RegionId(origin);
        vector[origin] = ts;
        let label = Label { ts, dep: Timestamp::ZERO, place: 0, vector };
        let order = Order { version: ts, region: origin.0, ts };
        let value = Some(Bytes::from_static(b"v"));
        Update { origin, label, key: Bytes::from_static(b"k"), value, order }
    }

    /// What was superseded when it was applied is committed, too, so that all replicas know of it.
    #[test]
    fn an_update_of_another_region_is_noted_whatever_is_held() {
        let (early, late) = (update(2, 5), update(1, 9));
        for (held, holds) in [(None, &early), (Some(&late), &late)] {
            let found = held.map(encode);
            let change: Change<NoRmw> = Change::Note(early.clone());
            let Modified::Change { value, answer } = change.modify(found.as_ref()) else {
                panic!("nobody would know that it is applied")
            };
            assert_eq!(super::held(value.as_ref()), Some(holds.clone()));
            assert_eq!(noted(&answer), Some(early.clone()));
            assert_eq!(noted_origin(&answer), Some(RegionId(2)));
        }
        let copied: Change<NoRmw> = Change::Merge(early);
        let kept = copied.modify(Some(&encode(&late)));
        assert!(matches!(kept, Modified::Keep { .. }), "{kept:?}");
        assert_eq!(noted_origin(&Bytes::new()), None);
    }

    /// No RMW is asked for here.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    enum NoRmw {}

    impl Modify for NoRmw {
        fn modify(&self, _: Option<&Bytes>) -> Modified {
            match *self {}
        }
    }
}
