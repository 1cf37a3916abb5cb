//! How far members are from each other: the scenarios of the thesis (Table 4.1), or ones of the
//! user's.

use clap::ValueEnum;
use meridian_runtime::Delay;
use serde::Serialize;
use std::str::FromStr;
use std::time::Duration;

/// The standard deviation of the ways of the thesis's scenarios, in percent (section 4.5.4).
const JITTER_PERCENT: f64 = 5.0;

/// A scenario of the thesis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// No distance but the real one
    Lan,
    /// Three regions, each with one replica of every group; all first replicas in the same one
    WanColocated,
    /// Each group in a region of its own, with three datacenters
    WanDistributed,
}

impl Layout {
    /// What it is called in figures.
    pub fn title(self) -> &'static str {
        match self {
            Layout::Lan => "LAN",
            Layout::WanColocated => "WAN with colocated leaders",
            Layout::WanDistributed => "WAN with distributed leaders",
        }
    }

    /// The round trips of Table 4.1.
    pub fn distances(self) -> Distances {
        let rules = match self {
            Layout::Lan => Vec::new(),
            Layout::WanColocated => vec![
                Rule { between: Between::TwoReplicas(0, 1), rtt_ms: 60.0 },
                Rule { between: Between::TwoReplicas(1, 2), rtt_ms: 76.0 },
                Rule { between: Between::TwoReplicas(0, 2), rtt_ms: 130.0 },
            ],
            Layout::WanDistributed => vec![
                Rule { between: Between::Groups, rtt_ms: 90.0 },
                Rule { between: Between::Replicas, rtt_ms: 30.0 },
            ],
        };
        Distances { rules, jitter_percent: JITTER_PERCENT }
    }
}

/// A member's place: its group, and the how manyth of it it is.
pub type Place = (u16, u16);

/// Whom a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Between {
    /// Members of two groups.
    Groups,
    /// Members of these two groups.
    TwoGroups(u16, u16),
    /// Members of one group.
    Replicas,
    /// The members with these two numbers, of one group or of two.
    TwoReplicas(u16, u16),
}

/// One round trip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    between: Between,
    rtt_ms: f64,
}

/// All round trips.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Distances {
    /// Of those that speak of two members the longest counts.
    pub rules: Vec<Rule>,
    /// The standard deviation of a way.
    pub jitter_percent: f64,
}

impl Distances {
    /// The way from one to another.
    pub fn delay(&self, a: Place, b: Place) -> Delay {
        let pair = |x: u16, y: u16, a: u16, b: u16| (x, y) == (a, b) || (y, x) == (a, b);
        let longest = self.rules.iter().filter(|rule| match rule.between {
            Between::Groups => a.0 != b.0,
            Between::TwoGroups(x, y) => pair(x, y, a.0, b.0),
            Between::Replicas => a.0 == b.0 && a.1 != b.1,
            Between::TwoReplicas(x, y) => pair(x, y, a.1, b.1),
        });
        let rtt_ms = longest.map(|rule| rule.rtt_ms).fold(0.0, f64::max);
        Delay {
            one_way: Duration::from_secs_f64(rtt_ms / 2000.0),
            jitter_percent: self.jitter_percent,
        }
    }

    /// The longest round trip inside a group of so many.
    pub fn inside(&self, replicas: u16) -> Duration {
        let pairs = (0..replicas).flat_map(|a| (0..a).map(move |b| ((0, a), (0, b))));
        pairs.map(|(a, b)| self.delay(a, b).one_way * 2).max().unwrap_or_default()
    }

    /// The longest round trip.
    pub fn longest(&self) -> Duration {
        let rtt_ms = self.rules.iter().map(|rule| rule.rtt_ms).fold(0.0, f64::max);
        Duration::from_secs_f64(rtt_ms / 1000.0)
    }
}

impl FromStr for Rule {
    type Err = String;

    /// `g=90`, `r=30`, `g0-g3=120` or `r0-r1=60`.
    fn from_str(text: &str) -> Result<Rule, String> {
        let wrong = || format!("{text:?} is not like g=90, r=30, g0-g3=120 or r0-r1=60");
        let (whom, ms) = text.split_once('=').ok_or_else(wrong)?;
        let rtt_ms = ms.parse::<f64>().ok().filter(|ms| (0.0..=60_000.0).contains(ms));
        let rtt_ms = rtt_ms.ok_or_else(wrong)?;
        let number = |text: &str, kind: char| text.strip_prefix(kind)?.parse::<u16>().ok();
        let between = match whom.split_once('-') {
            None if whom == "g" => Between::Groups,
            None if whom == "r" => Between::Replicas,
            None => return Err(wrong()),
            Some((a, b)) => {
                match (number(a, 'g'), number(b, 'g'), number(a, 'r'), number(b, 'r')) {
                    (Some(a), Some(b), _, _) => Between::TwoGroups(a, b),
                    (_, _, Some(a), Some(b)) => Between::TwoReplicas(a, b),
                    _ => return Err(wrong()),
                }
            }
        };
        Ok(Rule { between, rtt_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_way_us(distances: &Distances, a: Place, b: Place) -> u128 {
        let there = distances.delay(a, b).one_way.as_micros();
        assert_eq!(there, distances.delay(b, a).one_way.as_micros());
        there
    }

    #[test]
    fn the_layouts_are_those_of_table_4_1() {
        let lan = Layout::Lan.distances();
        assert_eq!(one_way_us(&lan, (0, 0), (7, 2)), 0);
        let colocated = Layout::WanColocated.distances();
        assert_eq!(one_way_us(&colocated, (0, 0), (7, 0)), 0);
        assert_eq!(one_way_us(&colocated, (0, 0), (0, 1)), 30_000);
        assert_eq!(one_way_us(&colocated, (0, 2), (5, 0)), 65_000);
        let distributed = Layout::WanDistributed.distances();
        assert_eq!(one_way_us(&distributed, (0, 0), (0, 2)), 15_000);
        assert_eq!(one_way_us(&distributed, (3, 0), (4, 2)), 45_000);
        let inside = [lan, colocated, distributed].map(|distances| distances.inside(3).as_millis());
        assert_eq!(inside, [0, 130, 30]);
    }

    #[test]
    fn rules_are_read() {
        let rules = ["g=90", "r=30", "g0-g3=120", "r1-r2=7.5"].map(|text| text.parse().unwrap());
        let distances = Distances { rules: rules.to_vec(), jitter_percent: 0.0 };
        assert_eq!(one_way_us(&distances, (0, 0), (3, 0)), 60_000);
        assert_eq!(one_way_us(&distances, (1, 0), (2, 0)), 45_000);
        assert_eq!(one_way_us(&distances, (1, 1), (1, 2)), 15_000);
        assert_eq!(distances.longest(), Duration::from_millis(120));
        for bad in ["", "g", "g=x", "g0=1", "g0-r1=3", "r=-1"] {
            assert!(bad.parse::<Rule>().is_err(), "{bad}");
        }
    }
}
