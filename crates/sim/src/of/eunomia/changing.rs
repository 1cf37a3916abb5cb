//! Regions that join, leave and are lost: what is planned, who decides it, and how processes hear.

use super::Member;
use crate::world::{Random, Stimulus};
use meridian_core::{RegionId, Time};
use meridian_eunomia::member::Command;
use meridian_eunomia::registry::Denied;
use meridian_eunomia::{Mutation, Peer, Regions, Registry, Standing, Topology, Word};
use rand::RngExt;
use rand::seq::IteratorRandom;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// So many changes at most.
const CHANGES_MAX: usize = 5;
/// So often the configuration tells those that have not answered.
const TELLS: Duration = Duration::from_millis(20);
/// A word travels for so long at most.
const TRAVELS: Duration = Duration::from_millis(120);

/// What happens to some region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// One joins that was never there.
    Join,
    /// One that serves leaves.
    Leave,
    /// One that is there is lost, or seems to be: it goes on until it hears of that.
    Lose,
}

/// What happens when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// So many of the regions are not there at first.
    pub later: u16,
    /// In any order.
    pub changes: Vec<(Duration, Change)>,
}

impl Plan {
    /// Nothing changes, or regions do.
    pub fn drawn(random: &mut Random, span: Duration) -> Plan {
        let changes = random.random_range(1..=CHANGES_MAX);
        let micros = span.as_micros() as u64;
        let mut change = || {
            let kind = [Change::Join, Change::Leave, Change::Lose, Change::Lose];
            let kind = kind[random.random_range(0..kind.len())];
            (Duration::from_micros(random.random_range(0..micros)), kind)
        };
        let changes: Vec<_> = (0..changes).map(|_| change()).collect();
        let later = random.random_range(1..=2);
        let changes = if random.random_bool(0.5) { changes } else { Vec::new() };
        Plan { later: if changes.is_empty() { 0 } else { later }, changes }
    }
}

/// The configuration of the regions: it decides, and tells all processes.
#[derive(Clone, Debug)]
pub struct Configuration {
    registry: Registry,
    plan: Plan,
    random: Random,
    /// When the last command to a process arrives: the next one goes later.
    told: BTreeMap<Peer, Time>,
    /// Processes that have started since they were told.
    started: BTreeSet<Peer>,
    lost: BTreeSet<RegionId>,
}

impl Configuration {
    /// The first regions serve.
    pub fn new(
        random: Random,
        topology: Arc<Topology>,
        plan: Plan,
        mutation: Mutation,
    ) -> Configuration {
        let first = Configuration::first(&topology, &plan);
        Configuration {
            registry: Registry::new(topology.peers(), first).with_mutation(mutation),
            plan,
            random,
            told: BTreeMap::new(),
            started: BTreeSet::new(),
            lost: BTreeSet::new(),
        }
    }

    /// The regions as all processes know them at first.
    pub fn first(topology: &Topology, plan: &Plan) -> Regions {
        let mut standings = vec![Standing::Serves; topology.regions().count()];
        let serving = standings.len() - usize::from(plan.later);
        standings[serving..].fill(Standing::Absent);
        Regions::first(standings)
    }

    /// The regions in the last epoch.
    pub fn regions(&self) -> &Arc<Regions> {
        self.registry.regions()
    }

    /// Whether nothing is under way.
    pub fn is_settled(&self) -> bool {
        self.registry.is_settled()
    }

    /// Whether a region was removed by force.
    pub fn is_lost(&self, region: RegionId) -> bool {
        self.lost.contains(&region)
    }

    /// Those that serve.
    pub fn serving(&self) -> Vec<RegionId> {
        let regions = self.registry.regions();
        regions.there().filter(|region| regions.writes(*region)).collect()
    }

    /// When it does something: by turns, and with each change of the plan.
    pub fn begin(&self) -> Vec<Duration> {
        self.plan.changes.iter().map(|(at, _)| *at).collect()
    }

    /// A change of the plan: what has happened.
    pub fn change(&mut self, number: usize) -> &'static str {
        let regions = self.regions().clone();
        let all = |wanted: &dyn Fn(&RegionId) -> bool| -> Vec<RegionId> {
            (0..regions.standings().len() as u16).map(RegionId).filter(wanted).collect()
        };
        let serving = all(&|region| regions.writes(*region));
        let done = match self.plan.changes[number].1 {
            Change::Join => {
                let absent = all(&|region| *regions.standing(*region) == Standing::Absent);
                let from = serving.into_iter().choose(&mut self.random);
                let pair = absent.first().copied().zip(from);
                pair.map(|(region, from)| (self.registry.join(region, from), "joins"))
            }
            Change::Leave => {
                let region = serving.into_iter().choose(&mut self.random);
                region.map(|region| (self.registry.leave(region), "leaves"))
            }
            Change::Lose => {
                let there = all(&|region| regions.is_there(*region));
                let region = there.into_iter().choose(&mut self.random);
                let what = if regions.is_open() { "losses at once" } else { "losses" };
                region.map(|region| (self.lose(region), what))
            }
        };
        match done {
            Some((Ok(()), what)) => what,
            Some((Err(_), _)) | None => "denied",
        }
    }

    fn lose(&mut self, region: RegionId) -> Result<(), Denied> {
        let joins = self.regions().joins(region);
        self.registry.lose(region)?;
        if !joins {
            self.lost.insert(region);
        }
        Ok(())
    }

    /// A process has said this.
    pub fn hear(&mut self, from: Peer, word: Word) {
        self.registry.hear(from, word);
    }

    /// A process runs, and may not remember what it was told.
    pub fn started(&mut self, at: Peer) {
        self.started.insert(at);
    }

    /// Tells those that it waits for, each at its own time, and in order; and says when it does so
    /// again.
    pub fn tell(&mut self, now: Time) -> (Vec<Stimulus<Member>>, Duration) {
        let mut awaited: BTreeSet<_> = self.registry.awaited().into_iter().collect();
        awaited.append(&mut self.started);
        let mut stimuli = Vec::new();
        for to in awaited {
            let arrives = self.told.get(&to).copied().unwrap_or_default();
            if arrives >= now && arrives > Time(0) {
                self.started.insert(to);
                continue;
            }
            let most = TRAVELS.as_micros() as u64;
            let after = Duration::from_micros(self.random.random_range(0..most));
            self.told.insert(to, now + after);
            let command = Command::Regions(self.registry.regions().clone());
            stimuli.push(Stimulus::Command { to, command, after });
        }
        (stimuli, TELLS)
    }
}
