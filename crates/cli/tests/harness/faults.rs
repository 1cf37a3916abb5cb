//! Faults of a cluster, one after the other, while a crowd uses its files.

#![allow(clippy::unwrap_used)] // Part of tests.

use crate::crowd::Crowd;
use crate::fsx::close;
use crate::harness::{eventually, eventually_within};
use crate::lab::{Lab, REGIONS};
use crate::random::Random;
use crate::weather::{Fault, Weather};
use std::fs::{self, File};
use std::io::Write;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a region is cut off at least: some seconds longer than it takes until that is known.
const CUT: Duration = Duration::from_secs(6);
/// How long files are moved between placements while a region is dark.
const DARK: Duration = Duration::from_secs(2);
/// How long the mount that waits for ten seconds for regions which are cut off may take to say so,
/// on a machine that may be busy.
const FAIL_MAX: Duration = Duration::from_secs(20);
/// More than a disk keeps for what is short.
const LARGE: usize = 1 << 20;
/// What the second full disk has left: a segment of the log, without which the group would wait,
/// and too little for anything else (decision 44).
const LOG: u64 = 48 << 20;
/// How long a full disk, or one that is not full any more, may stay unnoticed: nodes look once a
/// second, and what waits for the log is tried again soon.
const FULL_MAX: Duration = Duration::from_secs(30);
/// What a server ends with whose directory is none of a node.
const NO_NODE: i32 = 2;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A node of each region is killed.
    Kill,
    /// A node of each region is stopped, and goes on.
    Pause,
    /// A region is cut off from the others.
    Cut,
    /// All nodes of a region are killed.
    Dark,
    /// All nodes of all regions are killed.
    Blackout,
    /// The disk of a node is full, then those of two nodes of its region.
    Full,
    /// The disk of a node comes back empty.
    Wiped,
}

/// All of them, in the order in which the short test has them.
pub const KINDS: [Kind; 7] =
    [Kind::Kill, Kind::Pause, Kind::Cut, Kind::Full, Kind::Dark, Kind::Wiped, Kind::Blackout];

/// What is done to a cluster, and to whom.
pub struct Faults<'a> {
    pub lab: &'a mut Lab,
    pub weather: Arc<Weather>,
    pub crowd: &'a Crowd,
    pub random: Random,
}

impl Faults<'_> {
    /// Has a fault of this kind happen, and be over.
    pub fn one(&mut self, kind: Kind) {
        match kind {
            Kind::Kill | Kind::Pause => self.nodes(kind),
            Kind::Cut => self.cut(),
            Kind::Dark => self.dark(),
            Kind::Blackout => self.blackout(),
            Kind::Full => self.full(),
            Kind::Wiped => self.wiped(),
        }
        let took = self.crowd.go_on(&[]);
        eventually("all nodes are there again", || self.lab.all_are_there());
        self.lab.tell(&format!("all go on after {took:.1?}, and all nodes are there"));
    }

    /// One node of each region, so that each group has a quorum: nobody may notice.
    fn nodes(&mut self, kind: Kind) {
        let mut down = Vec::new();
        for region in REGIONS {
            let nodes = self.lab.nodes_of(region);
            down.push(nodes[self.random.below(nodes.len())].clone());
        }
        self.lab.tell(&format!("{kind:?}: {down:?}"));
        match kind {
            Kind::Kill => self.lab.kill(&down),
            _ => down.iter().for_each(|node| self.lab.signal(node, libc::SIGSTOP)),
        }
        let least = Instant::now() + Duration::from_millis(200 + self.random.below(1500) as u64);
        let took = self.crowd.go_on(&[]);
        self.lab.tell(&format!("with nodes down all went on within {took:.1?}"));
        std::thread::sleep(least.saturating_duration_since(Instant::now()));
        for node in &down {
            match kind {
                Kind::Kill => self.lab.start(node),
                _ => self.lab.signal(node, libc::SIGCONT),
            }
        }
    }

    fn cut(&mut self) {
        let region = self.random.pick(&REGIONS);
        self.lab.tell(&format!("Cut: {region}"));
        let (fault, until) = (Fault::Cut(region), Instant::now() + CUT);
        self.crowd.hold(true);
        self.weather.begin(fault);
        self.lab.cut(region);
        let refusal = self.refusal(region);
        let took = self.crowd.go_on(&[fault]);
        self.lab.tell(&format!("whom that does not concern went on within {took:.1?}"));
        self.entangle();
        let (error, took) = refusal.join().unwrap();
        self.lab.tell(&format!("in eu, what the cut is between cannot be made, after {took:.1?}"));
        let promised = [libc::ETIMEDOUT, libc::EHOSTUNREACH].map(Some);
        assert!(promised.contains(&error) && took < FAIL_MAX, "{error:?} after {took:?}");
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        self.lab.heal(region);
        self.weather.end(fault);
        self.weather.end(Fault::Entangled);
        self.lab.tell(&format!("{region} can be reached again"));
    }

    /// Now files are moved between placements, too, and others may have to wait for them.
    fn entangle(&self) {
        self.weather.begin(Fault::Entangled);
        self.crowd.hold(false);
    }

    /// What the mount that waits for the shortest time says of a new file that it cannot reach.
    fn refusal(&self, cut: &str) -> JoinHandle<(Option<i32>, Duration)> {
        let other = if cut == "eu" { "us" } else { cut };
        let path = self.lab.mount("eu").join(other).join("refused");
        std::thread::spawn(move || {
            let (begun, made) = (Instant::now(), File::create(path));
            (made.err().and_then(|error| error.raw_os_error()), begun.elapsed())
        })
    }

    fn dark(&mut self) {
        let region = self.random.pick(&REGIONS);
        let nodes = self.lab.nodes_of(region);
        self.lab.tell(&format!("Dark: {nodes:?}"));
        self.crowd.hold(true);
        self.weather.begin(Fault::Dark(region));
        self.lab.kill(&nodes);
        let took = self.crowd.go_on(&[Fault::Dark(region)]);
        self.lab.tell(&format!("whom that does not concern went on within {took:.1?}"));
        self.entangle();
        std::thread::sleep(DARK);
        nodes.iter().for_each(|node| self.lab.start(node));
        self.weather.end(Fault::Dark(region));
        self.weather.end(Fault::Entangled);
    }

    fn blackout(&mut self) {
        let nodes: Vec<_> = self.lab.nodes.iter().map(|node| node.name.clone()).collect();
        self.lab.tell("Blackout: all nodes");
        self.weather.begin(Fault::Blackout);
        self.lab.kill(&nodes);
        nodes.iter().for_each(|node| self.lab.start(node));
        self.weather.end(Fault::Blackout);
    }

    /// With one full disk nobody may notice. With two the region refuses what needs room, and then
    /// takes it again.
    fn full(&mut self) {
        let region = self.random.pick(&REGIONS);
        let nodes = self.lab.nodes_of(region);
        let (one, two) = (&nodes[0], &nodes[1 + self.random.below(nodes.len() - 1)]);
        self.lab.tell(&format!("Full: {one}"));
        self.lab.fill_disk(one, 0);
        let took = self.crowd.go_on(&[]);
        self.lab.tell(&format!("all went on within {took:.1?}; now {two}, too"));
        self.weather.begin(Fault::Full(region));
        self.lab.fill_disk(two, LOG);
        let path = self.lab.mount(region).join(region).join("large");
        let large = || {
            let mut file = File::create(&path)?;
            file.write_all(&[7; LARGE])?;
            close(file)
        };
        let refused = || match large() {
            Ok(()) => false,
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
                true
            }
        };
        eventually_within(FULL_MAX, "it is refused what needs room", refused);
        let took = self.crowd.go_on(&[]);
        self.lab.tell(&format!("{region} refuses a large file, and all went on within {took:.1?}"));
        [one, two].iter().for_each(|node| self.lab.relieve_disk(node));
        eventually_within(FULL_MAX, "there is room again", || large().is_ok());
        self.weather.end(Fault::Full(region));
        self.lab.tell(&format!("{region} takes it again"));
        fs::remove_file(&path).unwrap();
    }

    /// A node that has forgotten what it promised does not come back. It is removed, another is
    /// added, and nobody may notice.
    fn wiped(&mut self) {
        let region = self.random.pick(&REGIONS);
        let nodes = self.lab.nodes_of(region);
        let node = &nodes[self.random.below(nodes.len())];
        self.lab.tell(&format!("Wiped: {node}"));
        self.lab.kill(std::slice::from_ref(node));
        self.lab.remove_disk(node);
        self.lab.insert_disk(node);
        self.lab.start(node);
        assert_eq!(self.lab.ended(node), NO_NODE, "{node} is started with nothing");
        self.lab.prepare(node);
        self.lab.start(node);
        let ended = self.lab.ended(node);
        assert_eq!(ended, i32::from(meridian_node::FORGOT_CODE), "{node} has forgotten all");
        self.crowd.go_on(&[]);
        self.lab.remove_node(node);
        let took = self.crowd.go_on(&[]);
        self.lab.tell(&format!("{node} is removed; all went on within {took:.1?}"));
        self.lab.remove_disk(node);
        let added = self.lab.add_node(region);
        self.lab.tell(&format!("{added} is added"));
    }
}
