//! `meridian bench eunomia`: how many updates the service of a region orders, beside a sequencer
//! (Eunomia, section 4.1), and what stores of several regions answer and show (section 4.2); over
//! TCP inside this process.
//!
//! | module | what |
//! | --- | --- |
//! | `contender` | both services, as the bench sees them |
//! | `parts` | the service of Eunomia, its sources, and a receiver |
//! | `cluster` | all started, loaded, stopped |
//! | `regions` | stores of three regions |
//! | `figures` | the figures of the thesis, and the bars that it sets |

mod cluster;
mod contender;
mod figures;
mod parts;
mod regions;

use crate::harness::Machine;
use anyhow::ensure;
use clap::{Args, Subcommand};
use cluster::{Outcome, Setup};
use contender::Service;
use meridian_terminal::{note, output};
use serde::Serialize;
use std::process::ExitCode;
use std::time::Duration;

/// So much of a run is warming up: a fifth of it, at most this.
const WARM_UP_MAX: Duration = Duration::from_secs(1);
/// What else can be done.
#[derive(Debug, Subcommand)]
pub enum EunomiaCommand {
    /// Measure stores of three regions, as far apart as in the thesis: Eunomia, GentleRain, Cure,
    /// and no order
    Regions(regions::RegionsArgs),
    /// Measure and draw what Figures 4.2 to 4.8 of the Eunomia thesis show, as SVG, and judge it by
    /// what the thesis has; 12 min
    Figures(figures::FiguresArgs),
}

/// How to measure.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct EunomiaArgs {
    #[command(subcommand)]
    command: Option<EunomiaCommand>,
    /// The services, one after the other
    #[arg(long, value_enum, value_delimiter = ',', default_value = "eunomia,sequencer")]
    service: Vec<Service>,
    /// How many partitions update; several numbers are measured one after the other
    #[arg(long, value_delimiter = ',', default_value = "60",
          value_parser = clap::value_parser!(u16).range(1..=500))]
    partitions: Vec<u16>,
    /// How many replicas each service has; several numbers are measured one after the other
    #[arg(long, value_delimiter = ',', default_value = "1",
          value_parser = clap::value_parser!(u16).range(1..=7))]
    replicas: Vec<u16>,
    /// How many updates a partition waits for at a time, with the sequencer
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: u32,
    /// How many updates of a partition may be on their way to other regions, with Eunomia
    #[arg(long, default_value_t = 8192,
          value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    outstanding: u32,
    /// For how many seconds each is measured
    #[arg(long, default_value_t = 3.0, value_parser = crate::harness::positive_seconds)]
    seconds: f64,
    /// Print JSON instead of a table, a line for each run
    #[arg(long)]
    json: bool,
}

/// The figures of a run.
#[derive(Debug, Serialize)]
struct Figures<'a> {
    machine: &'a Machine,
    #[serde(flatten)]
    setup: &'a Setup,
    updates_per_second: f64,
    /// Of the replica that uses most.
    service_cpu_us_per_update: f64,
    /// What that replica could do with a processor of its own.
    updates_per_cpu_second: f64,
    all_cpu_us_per_update: f64,
}

impl Figures<'_> {
    fn of<'a>(machine: &'a Machine, setup: &'a Setup, outcome: &Outcome) -> Figures<'a> {
        let updates = outcome.updates.max(1) as f64;
        let busiest = outcome.service_cpu.iter().max().copied().unwrap_or_default().as_secs_f64();
        Figures {
            machine,
            setup,
            updates_per_second: outcome.updates as f64 / outcome.length.as_secs_f64(),
            service_cpu_us_per_update: busiest * 1e6 / updates,
            updates_per_cpu_second: updates / busiest.max(1e-9),
            all_cpu_us_per_update: outcome.cpu.as_secs_f64() * 1e6 / updates,
        }
    }

    fn row(&self) -> Vec<String> {
        let Setup { service, replicas, partitions, .. } = self.setup;
        vec![
            service.title().into(),
            replicas.to_string(),
            partitions.to_string(),
            format!("{:.0}", self.updates_per_second),
            format!("{:.0}", self.updates_per_cpu_second),
            format!("{:.3}", self.service_cpu_us_per_update),
            format!("{:.3}", self.all_cpu_us_per_update),
        ]
    }
}

impl EunomiaArgs {
    fn setups(&self) -> Vec<Setup> {
        let length = Duration::from_secs_f64(self.seconds);
        let mut setups = Vec::new();
        for replicas in &self.replicas {
            for partitions in &self.partitions {
                setups.extend(self.service.iter().map(|service| Setup {
                    service: *service,
                    replicas: *replicas,
                    partitions: *partitions,
                    clients: self.clients,
                    outstanding: self.outstanding,
                    stops: 0,
                    warm_up: (length / 5).min(WARM_UP_MAX),
                    length,
                }));
            }
        }
        setups
    }
}

/// Runs `meridian bench eunomia`.
///
/// # Errors
/// If something cannot be measured.
pub fn run(args: &EunomiaArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        Some(EunomiaCommand::Regions(args)) => return regions::run(args),
        Some(EunomiaCommand::Figures(args)) => return figures::run(args),
        None => {}
    }
    let machine = Machine::look_and_warn();
    let mut rows = Vec::new();
    for setup in args.setups() {
        let outcome = cluster::run(setup.clone(), |_, _| ())?;
        ensure!(outcome.updates > 0, "no update was ordered");
        let figures = Figures::of(&machine, &setup, &outcome);
        if args.json {
            output::print(&serde_json::to_string(&figures)?)?;
        } else {
            note!("{}: {:.0} updates/s", setup.service.title(), figures.updates_per_second);
            rows.push(figures.row());
        }
    }
    if !args.json {
        let head = ["service", "replicas", "partitions", "updates/s", "per CPU second"];
        let cpu = ["CPU us of it", "of all"];
        output::print(&output::table(&[&head[..], &cpu[..]].concat(), rows))?;
        output::print(&machine.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}
