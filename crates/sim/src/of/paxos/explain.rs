//! Why a request was executed where and when it was: in which instances leaders proposed it, who
//! accepted these, when each replica knew the decision, and which earlier instance it then waited
//! for.

use super::words::Words;
use crate::explain::{Inquiry, Moment, OTHERS_MAX, line};
use crate::lossy::Lossy;
use crate::trial::{Stage, Subject};
use crate::words::{list, of_node};
use crate::world::{Happened, Watcher, What};
use meridian_core::{MessageId, ProcessId, Time};
use meridian_paxos::{Batch, Command, Instance, Message, Output, Paxos, Service, View};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// The request in an instance and a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// Who proposed it.
    pub leader: ProcessId,
    /// When PROPOSE was sent first.
    pub proposed: Moment,
    /// When each other replica sent ACCEPT first; with disks, its vote was durable then.
    pub accepted: BTreeMap<ProcessId, Moment>,
}

/// The decision of an instance that has the request, at one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// When the replica knew it.
    pub decided: Moment,
    /// Earlier instances that it had not executed, and did not know the decision of, then.
    pub before: Vec<Instance>,
    /// The first of them that was missing at the last look: what the execution waited for last.
    pub last: Option<Instance>,
    /// When the replica had executed the instance.
    pub executed: Option<Moment>,
}

impl Place {
    /// The replica executed the instance as it learned the decision, while an earlier one was
    /// missing: then the replica is wrong, or what is told of it.
    pub fn contradiction(&self) -> Option<Instance> {
        let at_once = self.executed.as_ref() == Some(&self.decided);
        self.before.first().copied().filter(|_| at_once)
    }
}

/// All that happened to a request in a run.
#[derive(Debug)]
pub struct Explanation {
    request: MessageId,
    words: Words,
    /// When each replica was asked first.
    pub asked: BTreeMap<ProcessId, Moment>,
    /// What was proposed.
    pub proposals: BTreeMap<(Instance, View), Proposal>,
    /// The decisions that have the request, by replica.
    pub places: BTreeMap<ProcessId, BTreeMap<Instance, Place>>,
    /// When each replica answered first, and what.
    pub answered: BTreeMap<ProcessId, Moment>,
    /// What each replica steps with.
    now: BTreeMap<ProcessId, Moment>,
    /// How far each has executed.
    executed: BTreeMap<ProcessId, Instance>,
    /// Some requests of the run.
    others: BTreeSet<MessageId>,
}

impl Explanation {
    /// Of this request; to be told of all events.
    pub fn new(request: MessageId) -> Self {
        Explanation {
            request,
            words: Words,
            asked: BTreeMap::new(),
            proposals: BTreeMap::new(),
            places: BTreeMap::new(),
            answered: BTreeMap::new(),
            now: BTreeMap::new(),
            executed: BTreeMap::new(),
            others: BTreeSet::new(),
        }
    }

    fn is_in(&self, batch: &Batch) -> bool {
        batch.requests().any(|request| {
            let (client, sequence) = (request.client, request.sequence);
            self.request == MessageId { client, sequence }
        })
    }

    fn on_message(&mut self, from: ProcessId, message: &Message, moment: Moment) {
        match message {
            Message::Propose(propose) if self.is_in(&propose.batch) => {
                let at = (propose.instance, propose.view);
                let accepted = BTreeMap::new();
                let proposal = Proposal { leader: from, proposed: moment, accepted };
                self.proposals.entry(at).or_insert(proposal);
            }
            Message::Accept(accept) => {
                let at = (accept.instance, accept.view);
                if let Some(proposal) = self.proposals.get_mut(&at) {
                    proposal.accepted.entry(from).or_insert(moment);
                }
            }
            _ => {}
        }
    }

    fn on_asked(&mut self, at: ProcessId, command: &Command, moment: Moment) {
        let Command::Request(request) = command else { return };
        let name = MessageId { client: request.client, sequence: request.sequence };
        if name == self.request {
            self.asked.entry(at).or_insert(moment);
        } else if self.others.len() < OTHERS_MAX {
            self.others.insert(name);
        }
    }
}

impl<S: Service> Watcher<Lossy<Paxos<S>>> for Explanation {
    fn happened(&mut self, event: &Happened<'_, Lossy<Paxos<S>>>) {
        let (at, moment) = (event.at, Moment::of(event, &self.words));
        if let Some(command) = event.asked() {
            self.on_asked(at, command, moment.clone());
        }
        match event.what {
            What::Event(_) => drop(self.now.insert(at, moment)),
            What::Message(message) => self.on_message(at, message, moment),
            What::Output(Output::Reply { client, sequence, .. }) => {
                let name = MessageId { client: *client, sequence: *sequence };
                if name == self.request {
                    self.answered.entry(at).or_insert(moment);
                }
            }
            // What the replica knew is lost, unless its disk has it: it says so again.
            What::Words(_) if event.kind == "crash" => {
                self.now.remove(&at);
                self.executed.remove(&at);
                if let Some(places) = self.places.get_mut(&at) {
                    places.retain(|_, place| place.executed.is_some());
                }
            }
            _ => {}
        }
    }

    fn stepped(&mut self, at: ProcessId, process: &Lossy<Paxos<S>>, _now: Time) {
        let Some(cause) = self.now.get(&at).cloned() else { return };
        let (paxos, executed) = (&process.inner, process.inner.status().executed);
        let earlier = self.executed.insert(at, executed).unwrap_or(executed);
        let mut places = self.places.remove(&at).unwrap_or_default();
        let new = paxos.decisions().filter(|(instance, _)| !places.contains_key(instance));
        let new: Vec<_> = new.filter(|(_, batch)| self.is_in(batch)).map(|(new, _)| new).collect();
        for instance in new {
            let known: BTreeSet<_> = paxos.decisions().map(|(instance, _)| instance).collect();
            let first = earlier.max(paxos.log_base());
            let before = (first.0..instance.0).map(Instance);
            let before = before.filter(|before| !known.contains(before)).collect();
            let decided = cause.clone();
            places.insert(instance, Place { decided, before, last: None, executed: None });
        }
        for (instance, place) in places.iter_mut().filter(|(_, place)| place.executed.is_none()) {
            match executed > *instance {
                true => place.executed = Some(cause.clone()),
                false => place.last = Some(executed),
            }
        }
        if !places.is_empty() {
            self.places.insert(at, places);
        }
    }
}

impl<R: Service, S: Subject<Process = Lossy<Paxos<R>>>> Inquiry<S> for Explanation {
    type Name = MessageId;

    fn about(name: MessageId) -> Self {
        Explanation::new(name)
    }

    fn found(&self, _stage: &Stage<S>) -> Result<String, Vec<String>> {
        let some = || self.others.iter().map(ToString::to_string).collect();
        self.text().ok_or_else(some)
    }
}

impl Explanation {
    /// Who was the first to know the decision of an instance that has the request.
    fn first_to_know(&self, instance: Instance) -> Option<(ProcessId, &Moment)> {
        let at = |(at, places): (&ProcessId, &BTreeMap<_, Place>)| {
            Some((*at, places.get(&instance)?.decided.number))
        };
        let (first, _) = self.places.iter().filter_map(at).min_by_key(|(_, number)| *number)?;
        Some((first, &self.places[&first][&instance].decided))
    }

    /// What is known of the request, for people; `None` if nobody asked for it.
    pub fn text(&self) -> Option<String> {
        let (at, first) = self.asked.iter().min_by_key(|(_, moment)| moment.number)?;
        let others = self.asked.len() - 1;
        let others = if others > 0 { format!("; {others} others later") } else { String::new() };
        let mut text = format!("{}, asked of {}", self.request, of_node(at.node));
        let _ = writeln!(text, "{others}: {}", first.text());
        for ((instance, view), proposal) in &self.proposals {
            proposal.write((*instance, *view), &mut text);
        }
        let decided: BTreeSet<_> = self.places.values().flat_map(BTreeMap::keys).collect();
        for instance in &decided {
            if let Some((first, moment)) = self.first_to_know(**instance) {
                let (number, first) = (instance.0, of_node(first.node));
                let _ = writeln!(
                    text,
                    "\ninstance {number} is decided, as {first} is the first to know"
                );
                let _ = writeln!(text, "  {}", moment.text());
            }
        }
        if decided.is_empty() {
            text += "\nno replica knows it decided\n";
        }
        for (at, places) in &self.places {
            places.iter().for_each(|(instance, place)| place.write(*at, *instance, &mut text));
        }
        text += if self.answered.is_empty() { "\nnobody answers\n" } else { "\n" };
        for (at, moment) in &self.answered {
            let _ = writeln!(text, "{} answers: {}", of_node(at.node), moment.text());
        }
        Some(text.trim_end().into())
    }
}

impl Proposal {
    fn write(&self, (instance, view): (Instance, View), text: &mut String) {
        let (leader, first) = (of_node(self.leader.node), self.proposed.text());
        let _ =
            writeln!(text, "\n{leader} proposes it in instance {} and {view}: {first}", instance.0);
        for (at, moment) in &self.accepted {
            let _ = writeln!(text, "  {} accepts: {}", of_node(at.node), moment.text());
        }
        if self.accepted.is_empty() {
            text.push_str("  no other accepts\n");
        }
    }
}

impl Place {
    fn write(&self, at: ProcessId, instance: Instance, text: &mut String) {
        let _ = writeln!(text, "\n{} and instance {}", of_node(at.node), instance.0);
        let mut line = |what, told: String| line(text, what, told);
        line("knows the decision", self.decided.text());
        if !self.before.is_empty() {
            line("decisions were missing of", list(self.before.iter().map(|one| one.0)));
        }
        match &self.executed {
            Some(moment) if *moment == self.decided => line("executes it", "at once".into()),
            Some(moment) => line("executes it", moment.text()),
            None => line("executes it", "not yet".into()),
        }
        if let Some(last) = self.last {
            line("it waited last for", format!("the decision of instance {}", last.0));
        }
        if let Some(missing) = self.contradiction() {
            line("which is wrong", format!("it does not know the decision of {}", missing.0));
        }
    }
}
