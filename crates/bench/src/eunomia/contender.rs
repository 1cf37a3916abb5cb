//! What is compared, as the bench sees it.

use super::parts::{Arrived, Part};
use meridian_baselines::sequencer::{self, Sequencer};
use meridian_runtime::Networked;
use serde::Serialize;

/// What orders updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Service {
    /// The service of Eunomia: batches of labels, behind the back of clients
    Eunomia,
    /// A sequencer that each update asks before it is answered; several replicas are a chain
    Sequencer,
}

impl Service {
    /// What it is called in tables and figures.
    pub fn title(self) -> &'static str {
        match self {
            Service::Eunomia => "Eunomia",
            Service::Sequencer => "sequencer",
        }
    }
}

/// How the bench asks a process.
pub trait Contender: Networked + Send {
    /// What a process is asked first, so that this many updates are under way.
    fn begin(clients: u32) -> Vec<Self::Command>;

    /// How many updates are ordered, and what is asked next.
    fn ordered(output: Self::Output) -> (u64, Option<Self::Command>);
}

impl Contender for Part {
    fn begin(_: u32) -> Vec<Self::Command> {
        Vec::new() // Sources update by themselves.
    }

    fn ordered(Arrived(labels): Arrived) -> (u64, Option<Self::Command>) {
        (labels, None)
    }
}

impl Contender for Sequencer {
    fn begin(clients: u32) -> Vec<sequencer::Ask> {
        (0..clients).map(|token| sequencer::Ask { token: token.into() }).collect()
    }

    fn ordered(output: sequencer::Numbered) -> (u64, Option<sequencer::Ask>) {
        (1, Some(sequencer::Ask { token: output.token }))
    }
}
