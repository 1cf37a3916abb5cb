//! By which feature level a cluster goes, and which its nodes speak (decision 96).

use meridian_core::level::Level;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A part of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Levels {
    /// The cluster goes by it. It never falls.
    #[serde(default)]
    pub now: Level,
    /// It is not to rise above this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<Level>,
    /// The highest that the program of each node speaks, as it has reported; [`Level::FIRST`] for
    /// one that has not.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub spoken: BTreeMap<String, Level>,
}

impl Levels {
    /// Those of a new cluster all of whose nodes run one program.
    pub fn of_new<'a>(newest: Level, nodes: impl Iterator<Item = &'a String>) -> Levels {
        let spoken = nodes.map(|node| (node.clone(), newest)).collect();
        Levels { now: newest, at_most: None, spoken }
    }

    pub(crate) fn is_default(&self) -> bool {
        *self == Levels::default()
    }

    /// The highest that a node speaks.
    pub fn of(&self, node: &str) -> Level {
        self.spoken.get(node).copied().unwrap_or_default()
    }

    /// The highest that all of `nodes` speak.
    pub fn of_all<'a>(&self, nodes: impl Iterator<Item = &'a str>) -> Level {
        nodes.map(|node| self.of(node)).min().unwrap_or_default()
    }

    /// Rises to the highest that all of `nodes` speak, if it may; `early`: that one speaks.
    pub(crate) fn rise<'a>(&mut self, nodes: impl Iterator<Item = &'a str>, early: bool) {
        let spoken = match early {
            true => nodes.map(|node| self.of(node)).max().unwrap_or_default(),
            false => self.of_all(nodes),
        };
        let to = self.at_most.map_or(spoken, |at_most| spoken.min(at_most));
        self.now = self.now.max(to);
    }
}
