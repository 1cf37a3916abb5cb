//! What is known of an update, for people.

use super::{Application, Cause, Explanation, Making, Reception, Stability, Story};
use crate::explain::{Moment, line};
use crate::of::eunomia::parts::Parts;
use crate::of::eunomia::words::{of_region, of_ts, of_vector};
use crate::words::list;
use meridian_core::RegionId;
use meridian_eunomia::receiver::Missing;
use meridian_eunomia::{Label, REGIONS_MAX, Timestamp};
use std::collections::BTreeSet;
use std::fmt::Write;

/// The moment, unless it is that of what came before.
fn after(moment: &Moment, before: Option<&Moment>) -> String {
    let is_same = before.is_some_and(|before| before.number == moment.number);
    if is_same { "at once".into() } else { moment.text() }
}

/// That of what may not have come.
fn may_be(moment: Option<&Moment>, before: Option<&Moment>) -> String {
    moment.map_or("not yet".into(), |moment| after(moment, before))
}

/// All of a region up to a point.
fn of_point(region: RegionId, upto: Timestamp) -> String {
    format!("{} of {}", of_ts(upto), of_region(region))
}

fn of_missing(missing: &Missing) -> String {
    let Missing { region, upto, first } = missing;
    let why = match first {
        None => "which had not come".into(),
        Some(first) if first == upto => "which had come, and was not applied".into(),
        Some(first) => format!("behind {}, which was not applied", of_ts(*first)),
    };
    format!("{}, {why}", of_point(*region, *upto))
}

/// What an update of a region depends on.
fn of_dependencies(origin: RegionId, label: &Label) -> String {
    let upto = |region| if region == origin { label.dep } else { label.vector[region] };
    let all = (0..REGIONS_MAX as u16).map(RegionId).map(|region| (region, upto(region)));
    let some = all.filter(|(_, upto)| *upto > Timestamp::ZERO);
    list(some.map(|(region, upto)| of_point(region, upto)))
}

impl<P: Parts> Explanation<P> {
    /// What is known of the update; `None` if nobody has made it.
    pub fn text(&self) -> Option<String> {
        let stories = self.stories.iter().map(|(origin, story)| self.tell(*origin, story));
        let all: Vec<_> = stories.collect();
        (!all.is_empty()).then(|| all.join("\n\n"))
    }

    /// The name of a process, which tells its region.
    fn place(&self, at: P::Peer) -> String {
        let name = self.words.name(at);
        let region = self.regions.get(&at).map(|region| of_region(*region)).unwrap_or_default();
        if name.starts_with(&region) { name } else { format!("{name} of {region}") }
    }

    fn name_of_source(&self, origin: RegionId, source: u16) -> String {
        self.words.name(P::at_source(origin, source))
    }

    fn tell(&self, origin: RegionId, story: &Story<P::Peer>) -> String {
        let mut text = format!("{}\n", of_point(origin, self.ts));
        if let Some(making) = &story.making {
            let _ = writeln!(text, "\n{}", self.place(making.at));
            making.write(&mut text);
        }
        if let Some(label) = &story.label {
            line(&mut text, "it depends on", of_dependencies(origin, label));
            line(&mut text, "its vector is", of_vector(&label.vector));
        }
        if story.label.is_none() && story.services.is_empty() {
            return text + "\nnobody else hears of it";
        }
        for (at, known) in &story.services {
            let _ = writeln!(text, "\n{}", self.place(*at));
            self.write_service((origin, *at), known, story, &mut text);
        }
        for (at, known) in &story.receptions {
            let _ = writeln!(text, "\n{}", self.place(*at));
            known.write(&mut text);
        }
        for (at, known) in &story.applications {
            let _ = writeln!(text, "\n{}", self.place(*at));
            known.write(&mut text);
        }
        let regions: BTreeSet<_> = self.regions.values().filter(|at| **at != origin).collect();
        text.push('\n');
        for region in regions {
            let _ = writeln!(text, "{}", self.sum_up(origin, *region, story));
        }
        text.trim_end().into()
    }

    fn write_service(
        &self,
        (origin, at): (RegionId, P::Peer),
        known: &Stability,
        story: &Story<P::Peer>,
        text: &mut String,
    ) {
        line(text, "has its label", known.heard.text());
        for (source, promise) in &known.promises {
            let flight = story.flights.get(&P::at_source(origin, *source));
            let flight = flight.map(|flight| {
                let until = may_be(flight.until.as_ref(), None);
                format!("; {} was in flight there, until: {until}", of_ts(flight.first))
            });
            let last = promise.last.map_or("nothing".into(), of_ts);
            let (until, flight) =
                (may_be(promise.until.as_ref(), None), flight.unwrap_or_default());
            let waits = format!("waits for {}", self.name_of_source(origin, *source));
            line(text, &waits, format!("it had promised {last}, and enough: {until}{flight}"));
        }
        line(text, "finds it stable", may_be(known.stable.as_ref(), Some(&known.heard)));
        if let Some(source) = known.contradiction() {
            let name = self.name_of_source(origin, source);
            line(text, "which is wrong", format!("{name} has not promised as much"));
        }
        for ((_, to), moment) in story.shipped.iter().filter(|((from, _), _)| *from == at) {
            let sends = format!("sends it to {}", self.words.name(*to));
            line(text, &sends, after(moment, known.stable.as_ref()));
        }
        if let Some(source) = known.held_back() {
            let name = self.name_of_source(origin, source);
            line(text, "it waited last for", format!("the promise of {name}"));
        }
    }

    /// When a region shows it, and why then, in a sentence.
    fn sum_up(&self, origin: RegionId, region: RegionId, story: &Story<P::Peer>) -> String {
        let waited = self.last(origin, region).map(|cause| match cause {
            Cause::Label => "its label, which waited for nothing but its way".into(),
            Cause::Promise(source) => {
                format!("the promise of {}", self.name_of_source(origin, source))
            }
            Cause::Dependency(missing) => of_missing(&missing),
            Cause::Data => "its data".into(),
        });
        let name = of_region(region);
        let Some((moment, changed)) = self.shown(story, region) else {
            let reached = story.receptions.iter().filter(|(at, _)| self.is_in(**at, region));
            let reached = reached.filter_map(|(_, known)| known.reached.as_ref());
            let reached = reached.min_by_key(|moment| moment.number);
            return match (reached, waited) {
                (Some(moment), _) => format!(
                    "{name} has not applied it, and needs not: others say so, or it has copied \
                     what came of it: {}",
                    moment.text()
                ),
                (None, Some(waited)) => format!("{name} does not show it: it waits for {waited}"),
                (None, None) => format!("{name} does not show it: it has not got its label"),
            };
        };
        let made = story.making.as_ref().and_then(|making| making.committed.as_ref());
        let late = made.map(|made| {
            let ms = moment.at.0.saturating_sub(made.at.0) as f64 / 1e6;
            format!(", {ms:.3} ms after it was committed")
        });
        let (ms, late) = (moment.at.0 as f64 / 1e6, late.unwrap_or_default());
        let what = if changed { "shows it" } else { "holds the same, or something later," };
        let waited = waited.map(|waited| format!(": it waited last for {waited}"));
        format!("{name} {what} from {ms:.3} ms on{late}{}", waited.unwrap_or_default())
    }
}

impl<A> Making<A> {
    fn write(&self, text: &mut String) {
        line(text, "begins it", self.begun.text());
        match (&self.committed, &self.dropped) {
            (Some(moment), _) => line(text, "has committed it", after(moment, Some(&self.begun))),
            (None, Some(moment)) => line(text, "does not commit it", moment.text()),
            (None, None) => line(text, "has committed it", "not yet"),
        }
    }
}

impl Reception {
    fn write(&self, text: &mut String) {
        if let Some(received) = &self.received {
            line(text, "has its label", received.text());
        }
        for wait in &self.waits {
            let (what, until) = (of_missing(&wait.missing), may_be(wait.until.as_ref(), None));
            let waits = format!("waits for {}", of_region(wait.missing.region));
            line(text, &waits, format!("{what}; applied: {until}"));
        }
        if let Some(asked) = &self.asked {
            line(text, "asks for it", after(asked, self.received.as_ref()));
        }
        if let Some(missing) = self.contradiction() {
            line(text, "which is wrong", of_missing(&missing));
        }
        line(text, "has all up to it", may_be(self.reached.as_ref(), None));
        if let Some(missing) = self.last() {
            line(text, "it waited last for", of_point(missing.region, missing.upto));
        }
    }
}

impl Application {
    fn write(&self, text: &mut String) {
        if let Some(wanted) = &self.wanted {
            line(text, "is to apply it", wanted.text());
        }
        let with = self.wanted.as_ref().and(self.applied.as_ref());
        let data = self.data.as_ref().or(with);
        line(text, "has its data", may_be(data, None));
        line(text, "has applied it", may_be(self.applied.as_ref(), data));
        if let Some((moment, changed)) = &self.shown {
            let what = if *changed { "shows it" } else { "holds the same, or later" };
            line(text, what, after(moment, self.applied.as_ref()));
        }
        if self.wanted.is_some() {
            line(text, "it waited last for", "its data");
        }
    }
}
