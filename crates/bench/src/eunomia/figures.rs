//! `meridian bench eunomia figures`: Figures 4.2 to 4.8 of the Eunomia thesis, and how what was
//! measured stands to what the thesis has.
//!
//! | module | what |
//! | --- | --- |
//! | `service` | Figures 4.2 to 4.4: the service beside a sequencer, and replicas that stop |
//! | `regions` | Figures 4.5 to 4.8: stores of three regions |
//! | `bars` | what is asked, and whether it is met |

mod bars;
mod regions;
mod service;

use crate::harness::figures::{Drawing, Folder};
use clap::Args;
use std::process::ExitCode;

/// What is measured, by the figure that it is drawn as.
const ALL: [&str; 6] = ["4.2", "4.3", "4.4", "4.5", "4.6", "4.8"];

/// What to draw.
#[derive(Debug, Args)]
pub struct FiguresArgs {
    #[command(flatten)]
    folder: Folder,
    /// Shorter measurements: 6 minutes in place of 12
    #[arg(long)]
    quick: bool,
    /// Only these: 4.2, 4.3, 4.4, 4.5, 4.6 (with 4.7), 4.8
    #[arg(long, value_name = "FIGURE", value_delimiter = ',', value_parser = ALL)]
    only: Vec<String>,
    /// How many updates a partition waits for at a time, with the sequencer
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: u32,
}

/// Runs `meridian bench eunomia figures`.
///
/// # Errors
/// If something cannot be measured, or the folder cannot be written.
pub fn run(args: &FiguresArgs) -> anyhow::Result<ExitCode> {
    let is_wanted = |name: &&str| args.only.is_empty() || args.only.iter().any(|one| one == name);
    let wanted: Vec<&str> = ALL.into_iter().filter(is_wanted).collect();
    let points = |name: &&str| match *name {
        "4.2" | "4.3" | "4.4" => service::points(name),
        name => regions::points(name),
    };
    let mut drawing = Drawing::begin(&args.folder, args.quick, wanted.iter().map(points).sum())?;
    let mut all = Vec::new();
    for name in wanted {
        all.extend(match name {
            "4.2" | "4.3" | "4.4" => service::figure(&mut drawing, name, args.clients)?,
            name => regions::figure(&mut drawing, name)?,
        });
    }
    bars::print(&all)?;
    drawing.end()
}
