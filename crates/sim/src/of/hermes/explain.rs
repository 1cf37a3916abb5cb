//! Why an update became Valid where and when it did: who sent its INV, when each replica held it
//! and acknowledged it, when it was committed and who was told so, and what took its place.

use super::node::{Message, Node};
use super::words::{Words, of_place};
use crate::explain::{Inquiry, Moment, OTHERS_MAX, line};
use crate::trace::Teller;
use crate::trial::{Stage, Subject};
use crate::words::{of_key, of_node};
use crate::world::{Happened, Watcher, What};
use meridian_core::{NodeId, Time};
use meridian_hermes::Body;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::str::FromStr;

/// The name of an update: its key and its place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    key: String,
    /// With the key.
    place: String,
}

impl FromStr for Name {
    type Err = String;

    fn from_str(words: &str) -> Result<Name, String> {
        match words.split_once('@') {
            Some((key, at)) if !key.is_empty() && !at.is_empty() => {
                Ok(Name { key: key.into(), place: words.into() })
            }
            _ => Err(format!("`{words}` is no update: it is named as k3@4.1 is")),
        }
    }
}

/// The update at one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// When the replica held it first.
    pub held: Moment,
    /// When it was Valid there.
    pub valid: Option<Moment>,
    /// What took its place, and when.
    pub replaced: Option<(String, Moment)>,
}

/// All that happened to an update in a run.
#[derive(Debug)]
pub struct Explanation {
    name: Name,
    words: Words,
    /// When each replica sent its INV first: the coordinator, and who replays it.
    pub invalidated: BTreeMap<NodeId, Moment>,
    /// When each replica sent its ACK first, and to whom.
    pub acknowledged: BTreeMap<(NodeId, NodeId), Moment>,
    /// When each replica sent its VAL first.
    pub validated: BTreeMap<NodeId, Moment>,
    /// The update at each replica that holds it or did.
    pub held: BTreeMap<NodeId, Held>,
    /// What each replica steps with.
    now: BTreeMap<NodeId, Moment>,
    /// Some updates of the run.
    others: BTreeSet<String>,
}

impl Explanation {
    /// Of this update; to be told of all events.
    pub fn new(name: Name) -> Self {
        Explanation {
            name,
            words: Words::default(),
            invalidated: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            validated: BTreeMap::new(),
            held: BTreeMap::new(),
            now: BTreeMap::new(),
            others: BTreeSet::new(),
        }
    }

    /// Something is sent that is about the update.
    fn on_sent(&mut self, (from, to): (NodeId, NodeId), body: &Body, moment: Moment) {
        match body {
            Body::Inv(_) | Body::Invs { .. } => {
                self.invalidated.entry(from).or_insert(moment);
            }
            Body::Ack { .. } | Body::Acks(_) => {
                self.acknowledged.entry((from, to)).or_insert(moment);
            }
            Body::Val { .. } | Body::Vals(_) => {
                self.validated.entry(from).or_insert(moment);
            }
            _ => {}
        }
    }
}

impl Watcher<Node> for Explanation {
    fn happened(&mut self, event: &Happened<'_, Node>) {
        let about = self.words.about(event);
        let (at, moment) = (event.at, Moment::of(event, &self.words));
        let is_about = about.contains(&self.name.place);
        if self.others.len() < OTHERS_MAX {
            self.others.extend(about.into_iter().filter(|name| name.contains('@')));
        }
        if let Some((true, way, Message::Replica(message))) = event.said()
            && is_about
        {
            return self.on_sent((way.from, way.to), &message.body, moment);
        }
        match event.what {
            What::Event(_) => drop(self.now.insert(at, moment)),
            // What the replica held is lost, unless its disk has it.
            What::Words(_) if event.kind == "crash" => {
                self.now.remove(&at);
                self.held.remove(&at);
            }
            _ => {}
        }
    }

    fn stepped(&mut self, at: NodeId, process: &Node, _now: Time) {
        let Some(cause) = self.now.get(&at) else { return };
        let mut entries = process.replica().entries();
        let found = entries.find(|(key, ..)| of_key(key) == self.name.key);
        let found = found.map(|(_, ts, _, valid)| (of_place(&self.name.key, ts), valid));
        let Some((place, valid)) = found else { return };
        if place != self.name.place {
            if let Some(held) = self.held.get_mut(&at) {
                held.replaced.get_or_insert_with(|| (place, cause.clone()));
            }
            return;
        }
        let new = || Held { held: cause.clone(), valid: None, replaced: None };
        let held = self.held.entry(at).or_insert_with(new);
        if valid {
            held.valid.get_or_insert_with(|| cause.clone());
        }
    }
}

impl<S: Subject<Process = Node>> Inquiry<S> for Explanation {
    type Name = Name;

    fn about(name: Name) -> Self {
        Explanation::new(name)
    }

    fn found(&self, _stage: &Stage<S>) -> Result<String, Vec<String>> {
        self.text().ok_or_else(|| self.others.iter().take(OTHERS_MAX).cloned().collect())
    }
}

impl Explanation {
    /// Who coordinates the update: who sent its INV first.
    pub fn coordinator(&self) -> Option<NodeId> {
        let first = self.invalidated.iter().min_by_key(|(_, moment)| moment.number)?;
        Some(*first.0)
    }

    /// Whose ACK came to the coordinator last before it knew the update to be committed.
    pub fn last_acknowledged(&self) -> Option<NodeId> {
        let coordinator = self.coordinator()?;
        let committed = self.held.get(&coordinator)?.valid.as_ref()?;
        let acks = self.acknowledged.iter();
        let acks = acks.filter(|((from, to), _)| *to == coordinator && *from != coordinator);
        let acks = acks.filter(|(_, moment)| moment.number <= committed.number);
        acks.max_by_key(|(_, moment)| moment.number).map(|((from, _), _)| *from)
    }

    /// What is known of the update, for people; `None` if no replica held it.
    pub fn text(&self) -> Option<String> {
        if self.held.is_empty() && self.invalidated.is_empty() {
            return None;
        }
        let mut text = format!("{}\n", self.name.place);
        let coordinator = self.coordinator();
        for (from, moment) in &self.invalidated {
            let how = if Some(*from) == coordinator { "sends INV" } else { "replays it" };
            let _ = writeln!(text, "\n{} {how}: {}", of_node(*from), moment.text());
            let acks = self.acknowledged.iter().filter(|((_, to), _)| to == from);
            for ((by, _), moment) in acks {
                let _ = writeln!(text, "  {} sends ACK: {}", of_node(*by), moment.text());
            }
            if let Some(moment) = self.validated.get(from) {
                let _ = writeln!(text, "  {} sends VAL: {}", of_node(*from), moment.text());
            }
        }
        for (at, held) in &self.held {
            held.write(*at, &mut text);
            if Some(*at) == coordinator
                && let Some(last) = self.last_acknowledged()
            {
                let told = format!("the ACK of {}", of_node(last));
                line(&mut text, "it waited last for", told);
            }
        }
        Some(text.trim_end().into())
    }
}

impl Held {
    fn write(&self, at: NodeId, text: &mut String) {
        let _ = writeln!(text, "\n{}", of_node(at));
        line(text, "holds it", self.held.text());
        let valid = match (&self.valid, &self.replaced) {
            (Some(moment), _) => moment.text(),
            (None, Some(_)) => "not before it was replaced, as far as is seen".into(),
            (None, None) => "not yet".into(),
        };
        line(text, "is Valid", valid);
        if let Some((place, moment)) = &self.replaced {
            line(text, "is replaced by", format!("{place}, {}", moment.text()));
        }
    }
}
