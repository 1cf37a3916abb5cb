//! Why an update became visible in each other region where and when it did: when its source made
//! it, whose promises the service waited for, when its label was sent there, which dependency the
//! receiver waited for, and when its data was there.
//!
//! What is told is read from the processes after each of their steps; they do not go by it. A
//! process that goes on though something stands against it is seen to: see
//! [`Stability::contradiction`] and [`Reception::contradiction`].

mod text;

use super::parts::Parts;
use crate::explain::{Inquiry, Moment, OTHERS_MAX};
use crate::trace::Teller;
use crate::trial::{Stage, Subject};
use crate::world::{Happened, Watcher, What};
use meridian_core::{RegionId, Time};
use meridian_eunomia::receiver::{Missing, Obstacles};
use meridian_eunomia::{
    Inbox, Label, Message, REGIONS_MAX, Receiver, Replica, Source, Stabilizer, Timestamp,
};
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

/// The name of an update: the timestamp of its label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(pub Timestamp);

impl FromStr for Name {
    type Err = String;

    fn from_str(words: &str) -> Result<Name, String> {
        let wrong = |_| format!("`{words}` is no update: it is named by its label, as 812345344");
        words.parse().map(|ts| Name(Timestamp(ts))).map_err(wrong)
    }
}

/// The update at its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Making<A> {
    /// The process that has the source.
    pub at: A,
    /// When the update got its timestamp.
    pub begun: Moment,
    /// When it had happened.
    pub committed: Option<Moment>,
    /// When the source knew no more of it, as it has not happened; or not yet, as of a crash.
    pub dropped: Option<Moment>,
}

/// An earlier update that was in flight at a source, which promises nothing above it then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flight {
    /// The first one.
    pub first: Timestamp,
    /// Until when there was one.
    pub until: Option<Moment>,
}

/// A promise that a replica of the service waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// What the source had promised last before it promised enough.
    pub last: Option<Timestamp>,
    /// When it had promised enough.
    pub until: Option<Moment>,
}

/// The label at a replica of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stability {
    /// When the replica had it.
    pub heard: Moment,
    /// The sources that had not promised as much then (Eunomia, `PartitionTime`).
    pub promises: BTreeMap<u16, Promise>,
    /// When the label was stable.
    pub stable: Option<Moment>,
    /// The sources that had not promised as much when it was.
    wrong: Vec<u16>,
}

impl Stability {
    fn new(heard: Moment) -> Stability {
        Stability { heard, promises: BTreeMap::new(), stable: None, wrong: Vec::new() }
    }

    /// The source whose promise was the last one.
    pub fn held_back(&self) -> Option<u16> {
        let until = |promise: &Promise| number_of(promise.until.as_ref());
        let last = self.promises.iter().max_by_key(|(_, promise)| until(promise));
        last.map(|(source, _)| *source)
    }

    /// A source for whose promise the replica did not wait: then the replica is wrong, or what is
    /// told of it.
    pub fn contradiction(&self) -> Option<u16> {
        self.wrong.first().copied()
    }

    fn look(&mut self, stabilizer: &Stabilizer, ts: Timestamp, cause: &Moment) {
        if self.stable.is_some() {
            return;
        }
        let behind = stabilizer.behind(ts);
        for (source, promise) in &mut self.promises {
            if !behind.contains_key(source) {
                promise.until.get_or_insert_with(|| cause.clone());
            }
        }
        for (source, last) in &behind {
            self.promises.insert(*source, Promise { last: *last, until: None });
        }
        if stabilizer.stable_time() >= ts {
            self.stable = Some(cause.clone());
            self.wrong = behind.into_keys().collect();
        }
    }
}

/// Something that the update depends on, and that was not applied when its label came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// What.
    pub missing: Missing,
    /// When it was applied.
    pub until: Option<Moment>,
}

/// The label at a receiver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reception {
    /// When the receiver had it.
    pub received: Option<Moment>,
    /// What was missing then.
    pub waits: Vec<Wait>,
    /// When the receiver asked for the update to be applied.
    pub asked: Option<Moment>,
    /// When it knew this one and all before to be applied.
    pub reached: Option<Moment>,
    /// What was missing when it asked.
    wrong: Vec<Missing>,
}

impl Reception {
    /// A dependency that the receiver did not wait for: then it is wrong, or what is told of it.
    pub fn contradiction(&self) -> Option<Missing> {
        self.wrong.first().copied()
    }

    /// What was missing last.
    fn last(&self) -> Option<Missing> {
        let last = self.waits.iter().max_by_key(|wait| number_of(wait.until.as_ref()));
        last.map(|wait| wait.missing)
    }

    fn look(&mut self, obstacles: Option<Obstacles>, is_reached: bool, cause: &Moment) {
        let has_label = obstacles.is_some();
        let (asked, missing) = obstacles.map(|all| (all.asked, all.missing)).unwrap_or_default();
        if has_label && self.received.is_none() {
            self.received = Some(cause.clone());
            let wait = |missing: &Missing| Wait { missing: *missing, until: None };
            self.waits = missing.iter().map(wait).collect();
        }
        for wait in &mut self.waits {
            if !missing.iter().any(|missing| missing.region == wait.missing.region) {
                wait.until.get_or_insert_with(|| cause.clone());
            }
        }
        if asked && self.asked.is_none() {
            (self.asked, self.wrong) = (Some(cause.clone()), missing);
        }
        if is_reached {
            self.reached.get_or_insert_with(|| cause.clone());
        }
    }
}

/// The update where it is applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Application {
    /// When its data had come, if it was applied later.
    pub data: Option<Moment>,
    /// When it was to be applied, if its data had not come.
    pub wanted: Option<Moment>,
    /// When it was applied.
    pub applied: Option<Moment>,
    /// When that was durable, so that reads tell it, and whether its key has changed.
    pub shown: Option<(Moment, bool)>,
}

/// What a region waited for last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The label, which waited for nothing but its way.
    Label,
    /// The promise of this source, at the replica of the service that sent the label.
    Promise(u16),
    /// What the update depends on.
    Dependency(Missing),
    /// Its data.
    Data,
}

/// All that happened to an update of one region.
#[derive(Clone, Debug)]
pub struct Story<A> {
    /// At its source.
    pub making: Option<Making<A>>,
    /// Its label.
    pub label: Option<Label>,
    /// Earlier updates in flight, by the processes that have the sources: the last ones.
    pub flights: BTreeMap<A, Flight>,
    /// At replicas of the service.
    pub services: BTreeMap<A, Stability>,
    /// When its label was sent first from a replica of the service to a receiver.
    pub shipped: BTreeMap<(A, A), Moment>,
    /// At receivers.
    pub receptions: BTreeMap<A, Reception>,
    /// Where it is applied.
    pub applications: BTreeMap<A, Application>,
}

impl<A> Default for Story<A> {
    fn default() -> Self {
        Story {
            making: None,
            label: None,
            flights: BTreeMap::new(),
            services: BTreeMap::new(),
            shipped: BTreeMap::new(),
            receptions: BTreeMap::new(),
            applications: BTreeMap::new(),
        }
    }
}

/// All that happened to an update in a run.
pub struct Explanation<P: Parts> {
    ts: Timestamp,
    words: Box<dyn Teller<P>>,
    /// By the region where it was made: now and then two have one with the same timestamp.
    pub stories: BTreeMap<RegionId, Story<P::Peer>>,
    /// Where processes are.
    regions: BTreeMap<P::Peer, RegionId>,
    /// What each steps with.
    now: BTreeMap<P::Peer, Moment>,
    /// Some updates of the run.
    others: BTreeSet<Timestamp>,
}

impl<P: Parts> Explanation<P> {
    /// Of this update, in these words; to be told of all events.
    pub fn new(name: Name, words: Box<dyn Teller<P>>) -> Self {
        Explanation {
            ts: name.0,
            words,
            stories: BTreeMap::new(),
            regions: BTreeMap::new(),
            now: BTreeMap::new(),
            others: BTreeSet::new(),
        }
    }

    fn story(&mut self, origin: RegionId) -> &mut Story<P::Peer> {
        self.stories.entry(origin).or_default()
    }

    fn look_at_source(&mut self, at: P::Peer, region: RegionId, source: &Source, cause: &Moment) {
        let ts = self.ts;
        if self.others.len() < OTHERS_MAX {
            self.others.extend(source.outbox().take(OTHERS_MAX).map(|(_, label)| label.ts));
        }
        let is_open = source.in_flight().any(|open| open == ts);
        let label = source.outbox().map(|(_, label)| *label).find(|label| label.ts == ts);
        if is_open || label.is_some() {
            let (begun, committed, dropped) = (cause.clone(), None, None);
            let new = || Making { at, begun, committed, dropped };
            self.story(region).making.get_or_insert_with(new);
        }
        let Some(story) = self.stories.get_mut(&region) else { return };
        story.label = story.label.or(label);
        if let Some(making) = story.making.as_mut().filter(|making| making.at == at) {
            if label.is_some() {
                making.committed.get_or_insert_with(|| cause.clone());
            } else if !is_open && making.committed.is_none() {
                making.dropped.get_or_insert_with(|| cause.clone());
            }
        }
        if let Some(first) = source.in_flight().next().filter(|first| *first < ts) {
            story.flights.insert(at, Flight { first, until: None });
        } else if let Some(flight) = story.flights.get_mut(&at) {
            flight.until.get_or_insert_with(|| cause.clone());
        }
    }

    fn look_at_service(&mut self, at: P::Peer, region: RegionId, of: &Replica, cause: &Moment) {
        let (ts, stabilizer) = (self.ts, of.stabilizer());
        let is_known = |story: &Story<_>| story.services.contains_key(&at);
        if stabilizer.keeps(ts) || self.stories.get(&region).is_some_and(is_known) {
            let new = || Stability::new(cause.clone());
            let known = self.story(region).services.entry(at).or_insert_with(new);
            known.look(stabilizer, ts, cause);
        }
    }

    fn look_at_receiver(&mut self, at: P::Peer, region: RegionId, of: &Receiver, cause: &Moment) {
        let ts = self.ts;
        for origin in others_of(region) {
            let (obstacles, is_reached) = (of.obstacles(origin, ts), of.site_time(origin) >= ts);
            // Site times pass any point, also where nobody has made something then.
            let is_known = |story: &Story<_>| is_reached || story.receptions.contains_key(&at);
            if obstacles.is_some() || self.stories.get(&origin).is_some_and(is_known) {
                let story = self.story(origin);
                story.label = story.label.or(obstacles.as_ref().map(|all| all.label));
                story.receptions.entry(at).or_default().look(obstacles, is_reached, cause);
            }
        }
    }

    fn look_at_inbox(&mut self, at: P::Peer, region: RegionId, inbox: &Inbox, cause: &Moment) {
        let ts = self.ts;
        for origin in others_of(region) {
            let name = (origin, ts);
            let seen = [inbox.has_data(&name), inbox.wants(&name), inbox.has_applied(&name)];
            if seen.contains(&true) {
                let known = self.story(origin).applications.entry(at).or_default();
                let noted = [&mut known.data, &mut known.wanted, &mut known.applied];
                for (_, moment) in seen.into_iter().zip(noted).filter(|(is_seen, _)| *is_seen) {
                    moment.get_or_insert_with(|| cause.clone());
                }
            }
        }
    }

    /// What a process knew that had not come to its end is lost, unless its disk has it: it is
    /// looked at again.
    fn on_crash(&mut self, at: P::Peer) {
        self.now.remove(&at);
        for story in self.stories.values_mut() {
            story.services.retain(|of, known| *of != at || known.stable.is_some());
            story.receptions.retain(|of, known| *of != at || known.reached.is_some());
            story.applications.retain(|of, known| *of != at || known.shown.is_some());
        }
    }
}

/// The number of an event, behind all others if it has not come.
fn number_of(moment: Option<&Moment>) -> u64 {
    moment.map_or(u64::MAX, |moment| moment.number)
}

fn others_of(region: RegionId) -> impl Iterator<Item = RegionId> {
    (0..REGIONS_MAX as u16).map(RegionId).filter(move |other| *other != region)
}

impl<P: Parts> Watcher<P> for Explanation<P> {
    fn happened(&mut self, event: &Happened<'_, P>) {
        self.words.about(event); // The words of later events may need it.
        let at = event.at;
        match event.what {
            What::Event(_) => drop(self.now.insert(at, Moment::of(event, &*self.words))),
            What::Message(message) => {
                let Some(Message::Stream { labels, .. }) = P::said(message) else { return };
                let Some(region) = self.regions.get(&at).copied() else { return };
                if labels.iter().any(|label| label.ts == self.ts) {
                    let way = event.way();
                    let moment = Moment::of(event, &*self.words);
                    self.story(region).shipped.entry((way.from, way.to)).or_insert(moment);
                }
            }
            What::Output(output) => {
                let Some((origin, ts, changed)) = P::applied(output) else { return };
                if ts == self.ts {
                    let shown = (Moment::of(event, &*self.words), changed);
                    let known = self.story(origin).applications.entry(at).or_default();
                    known.shown.get_or_insert(shown);
                }
            }
            What::Words(_) if event.kind == "crash" => self.on_crash(at),
            _ => {}
        }
    }

    fn stepped(&mut self, at: P::Peer, process: &P, _now: Time) {
        let region = process.region(at);
        self.regions.insert(at, region);
        let Some(cause) = self.now.get(&at).cloned() else { return };
        if let Some(source) = process.source() {
            self.look_at_source(at, region, source, &cause);
        }
        if let Some(service) = process.service() {
            self.look_at_service(at, region, service, &cause);
        }
        if let Some(receiver) = process.receiver() {
            self.look_at_receiver(at, region, receiver, &cause);
        }
        if let Some(inbox) = process.inbox() {
            self.look_at_inbox(at, region, inbox, &cause);
        }
    }
}

impl<S: Subject<Process: Parts>> Inquiry<S> for Explanation<S::Process> {
    type Name = Name;

    fn about(name: Name) -> Self {
        Explanation::new(name, S::teller())
    }

    fn found(&self, _stage: &Stage<S>) -> Result<String, Vec<String>> {
        let some = || self.others.iter().take(OTHERS_MAX).map(|ts| ts.0.to_string()).collect();
        self.text().ok_or_else(some)
    }
}

impl<P: Parts> Explanation<P> {
    fn is_in(&self, at: P::Peer, region: RegionId) -> bool {
        self.regions.get(&at) == Some(&region)
    }

    /// What a region waited for last before it showed what another one has made, or waits for;
    /// `None` if it has not got the label.
    pub fn last(&self, origin: RegionId, region: RegionId) -> Option<Cause> {
        let story = self.stories.get(&origin)?;
        let receptions = story.receptions.iter().filter(|(at, _)| self.is_in(**at, region));
        let received = receptions.filter(|(_, known)| known.received.is_some());
        let (at, known) = received.min_by_key(|(_, known)| number_of(known.received.as_ref()))?;
        let mut applications = story.applications.iter();
        if applications.any(|(at, known)| self.is_in(*at, region) && known.wanted.is_some()) {
            return Some(Cause::Data);
        }
        if let Some(missing) = known.last() {
            return Some(Cause::Dependency(missing));
        }
        let shipped = story.shipped.iter().filter(|((_, to), _)| to == at);
        let first = shipped.min_by_key(|(_, moment)| moment.number);
        let service = first.and_then(|((from, _), _)| story.services.get(from));
        let promise = service.and_then(Stability::held_back);
        Some(promise.map_or(Cause::Label, Cause::Promise))
    }

    /// When a region showed it first, and whether its key has changed.
    fn shown(&self, story: &Story<P::Peer>, region: RegionId) -> Option<(Moment, bool)> {
        let applications = story.applications.iter().filter(|(at, _)| self.is_in(**at, region));
        let shown = applications.filter_map(|(_, known)| known.shown.as_ref());
        shown.min_by_key(|(moment, _)| moment.number).cloned()
    }
}
