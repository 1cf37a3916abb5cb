//! Which errors programs may see, as faults are in force.

#![allow(clippy::unwrap_used)] // Part of tests.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The partition that all regions hold.
pub const GLOBAL: &str = "global";
/// For how long after a cut a mount or a node may not know that it is over: they look once a
/// second, on a machine that may stand still for some seconds.
const AFTER: Duration = Duration::from_secs(20);
/// What is answered when the mount was killed; the last of what was on its way into a ring.
const GONE: [i32; 3] = [libc::ECONNABORTED, libc::ENOTCONN, libc::ECANCELED];

/// A fault that programs may notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The region is cut off from the others.
    Cut(&'static str),
    /// All nodes of the region are down.
    Dark(&'static str),
    /// All nodes of all regions are down.
    Blackout,
    /// Nodes of the region have full disks, so many that they refuse.
    Full(&'static str),
    /// Updates of several partitions wait for a region that is out of reach. What was sent in their
    /// shards before that was known waits with them, and what touches the same as that
    /// (decisions 18 and 23).
    Entangled,
    /// The mounts are killed.
    Gone,
}

#[derive(Debug)]
struct Spell {
    fault: Fault,
    until: Option<Instant>,
}

/// The faults that were and are in force.
#[derive(Debug, Default)]
pub struct Weather {
    spells: Mutex<Vec<Spell>>,
}

/// Where a program stands: its mounts, and the partitions that its files are in.
#[derive(Clone, Debug)]
pub struct View {
    pub weather: Arc<Weather>,
    /// The regions of its mounts.
    pub regions: Vec<&'static str>,
    pub needs: Vec<&'static str>,
}

impl Weather {
    pub fn begin(&self, fault: Fault) {
        let spell = Spell { fault, until: None };
        self.spells.lock().unwrap().push(spell);
    }

    pub fn end(&self, fault: Fault) {
        let mut spells = self.spells.lock().unwrap();
        let is_it = |spell: &&mut Spell| spell.fault == fault && spell.until.is_none();
        spells.iter_mut().find(is_it).unwrap().until = Some(Instant::now());
    }
}

impl View {
    /// Whether a fault keeps the program from going on.
    pub fn is_held_up_by(&self, fault: Fault) -> bool {
        let needs = |region| self.needs.contains(&region);
        match fault {
            // What is left outside is a majority of all nodes; what is inside is none.
            Fault::Cut(region) if self.regions.contains(&region) => {
                self.needs != [region] || self.regions != [region]
            }
            // Of all regions' nodes those that are not full are enough.
            Fault::Cut(region) | Fault::Dark(region) | Fault::Full(region) => needs(region),
            Fault::Blackout | Fault::Entangled | Fault::Gone => true,
        }
    }

    /// Whether the mount was killed.
    pub fn is_gone(&self, error: &io::Error) -> bool {
        GONE.iter().any(|code| error.raw_os_error() == Some(*code))
    }

    /// Whether an error that is told now, of something that began at `since`, is promised by a
    /// fault that was in force meanwhile.
    pub fn excuses(&self, error: &io::Error, since: Instant) -> bool {
        let Some(code) = error.raw_os_error() else { return false };
        let spells = self.weather.spells.lock().unwrap();
        spells.iter().any(|spell| {
            let errors: &[i32] = match spell.fault {
                Fault::Cut(_) | Fault::Dark(_) | Fault::Blackout | Fault::Entangled => {
                    &[libc::ETIMEDOUT, libc::EHOSTUNREACH]
                }
                Fault::Full(_) => &[libc::ENOSPC],
                Fault::Gone => &GONE,
            };
            let in_force = spell.until.is_none_or(|until| since <= until + AFTER);
            in_force && errors.contains(&code) && self.is_held_up_by(spell.fault)
        })
    }
}

#[test]
fn only_a_fault_that_concerns_a_program_excuses_an_error() {
    let weather = Arc::new(Weather::default());
    let view = |region, needs: &[&'static str]| View {
        weather: Arc::clone(&weather),
        regions: vec![region],
        needs: needs.to_vec(),
    };
    let timed_out = io::Error::from_raw_os_error(libc::ETIMEDOUT);
    let full = io::Error::from_raw_os_error(libc::ENOSPC);
    let begun = Instant::now();
    let views = [view("us", &["us"]), view("us", &["us", "eu"]), view("eu", &[GLOBAL])];
    let of = |error| views.each_ref().map(|view| view.excuses(error, begun));
    assert_eq!(of(&timed_out), [false; 3]);
    weather.begin(Fault::Cut("eu"));
    assert_eq!((of(&timed_out), of(&full)), ([false, true, true], [false; 3]));
    weather.end(Fault::Cut("eu"));
    weather.begin(Fault::Full("us"));
    assert_eq!((of(&timed_out), of(&full)), ([false, true, true], [true, true, false]));
    let later = begun + AFTER + Duration::from_secs(1);
    assert!(!views[1].excuses(&timed_out, later), "the cut is over");
    weather.begin(Fault::Blackout);
    assert_eq!(of(&timed_out), [true; 3]);
}
