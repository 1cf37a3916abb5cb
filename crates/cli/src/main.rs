//! The `meridian` command.
//!
//! Nothing is decided here: each command reads its arguments, calls the crate that does the work,
//! and prints. Errors become one line on standard error and exit status 1; wrong usage is status 2.

mod backup;
mod certificates;
mod children;
mod cluster;
mod configuration;
mod data;
mod demo;
mod doctor;
mod drill;
mod durability;
mod explain;
mod fs;
mod init;
mod kv;
mod last;
mod lock;
mod log_options;
mod manual;
mod mount;
mod nodes;
mod options_file;
mod prepare;
mod quota;
mod salvage;
mod scrub;
mod server;
#[cfg(feature = "lab")]
mod sim;
mod status;
mod timeline;
mod token;
mod trace;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use meridian_terminal::{note, output, signals};
use std::process::ExitCode;

/// Messages are many small allocations made on one thread and freed on the same: a quarter of the
/// time of `bench multicast` went there with the C library's. Not with huge pages, of which a few
/// live bytes keep two megabytes.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Meridian: one file system over several regions
#[derive(Debug, Parser)]
#[command(
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
#[command(after_help = "\
Start here:
  meridian demo                        three regions of three nodes on this machine, in ./meridian
then in another terminal:
  cp -a /usr/include meridian/us       files placed in region us
  meridian status                      who leads what
  meridian cluster add-node --region us  one more node, while programs go on
  meridian fs where meridian/us        where a path is placed
  meridian bench fs meridian/us        how fast it is
On machines of your own: meridian init --help")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a whole cluster on this machine and mount it
    Demo(demo::DemoArgs),
    /// Write the file of a new cluster
    Init(init::InitArgs),
    /// Make a certificate for a node, a client, an admin or a watcher
    Certify(certificates::CertifyArgs),
    /// Make the folder of a node on its machine
    Prepare(prepare::PrepareArgs),
    /// Run one node
    Server(server::ServerArgs),
    /// Mount a cluster that runs
    Mount(mount::MountArgs),
    /// Look whether this machine is fit for a node or a mount
    Doctor(doctor::DoctorArgs),
    /// Tell how nodes and groups are
    Status(status::StatusArgs),
    /// Tell how a command on files would be executed, by whom, and how long that takes
    Explain(explain::ExplainArgs),
    /// Tell which trees can be changed while a region is cut off; in a demo, try it
    #[command(subcommand)]
    Drill(drill::DrillCommand),
    /// Run a command, and tell what it has a mount ask of nodes and how long that takes
    Trace(trace::TraceArgs),
    /// Tell where the time of one update went, over its client and the nodes
    Timeline(timeline::TimelineArgs),
    /// Show or change which nodes a cluster has
    #[command(subcommand)]
    Cluster(nodes::ClusterCommand),
    /// Go on without a region that is lost for good
    #[command(subcommand)]
    Region(nodes::RegionCommand),
    /// Tell or change where paths of a mount are placed; hand over what was seen in it
    #[command(subcommand)]
    Fs(fs::FsCommand),
    /// Save a directory of the tree, as it is at one moment in all regions
    Backup(backup::BackupArgs),
    /// Put a backup into a new or empty directory
    Restore(backup::RestoreArgs),
    /// List or copy what a node had that does not come back
    Salvage(salvage::SalvageArgs),
    /// Read and change keys
    #[command(subcommand)]
    Kv(kv::KvCommand),
    /// Print what a shell needs to complete commands
    Completions(manual::CompletionsArgs),
    /// Write pages for `man`, one for each command
    Man(manual::ManArgs),
    /// Measure a directory, in a mount or not, or a multicast protocol
    #[cfg(feature = "lab")]
    #[command(subcommand)]
    Bench(meridian_bench::BenchCommand),
    /// Simulate the protocols, and look for what they must not do
    #[cfg(feature = "lab")]
    #[command(subcommand)]
    Sim(sim::SimCommand),
}

fn main() -> ExitCode {
    if let Some(code) = mount::guard::called().or_else(mount::helper::called) {
        return code;
    }
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let of_command = matches.subcommand().map(|(_, matches)| matches).unwrap_or(&matches);
    let result = match &cli.command {
        Command::Demo(args) => demo::run(args),
        Command::Init(args) => init::run(args),
        Command::Certify(args) => certificates::run(args),
        Command::Prepare(args) => prepare::run(args),
        Command::Server(args) => server::run(args, of_command),
        Command::Mount(args) => mount::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Status(args) => status::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Drill(command) => drill::run(command),
        Command::Trace(args) => trace::run(args),
        Command::Timeline(args) => timeline::run(args),
        Command::Cluster(command) => nodes::run(command),
        Command::Region(command) => nodes::run_region(command),
        Command::Fs(command) => fs::run(command),
        Command::Backup(args) => backup::run(args).map(|()| ExitCode::SUCCESS),
        Command::Restore(args) => backup::restore(args).map(|()| ExitCode::SUCCESS),
        Command::Salvage(args) => salvage::run(args),
        Command::Kv(command) => kv::run(command),
        Command::Completions(args) => manual::completions(args),
        Command::Man(args) => manual::pages(args),
        #[cfg(feature = "lab")]
        Command::Bench(command) => meridian_bench::run(command),
        #[cfg(feature = "lab")]
        Command::Sim(command) => sim::run(command),
    };
    result.unwrap_or_else(|error| {
        note!("meridian: {}", output::one_line(&error));
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    /// What people read who run a cluster.
    #[cfg(feature = "lab")]
    const PAGES: [&str; 7] = [
        "README.md",
        "docs/tour.md",
        "docs/setup.md",
        "docs/security.md",
        "docs/day-two.md",
        "docs/breaks.md",
        "docs/metrics.md",
    ];

    /// The calls of this program in what a shell is given, without comments.
    #[cfg(feature = "lab")]
    fn calls(text: &str) -> Vec<String> {
        let lines = text.replace("\\\n", " ");
        let lines = lines.lines().filter_map(|line| line.split(" #").next()).map(String::from);
        let calls = lines.flat_map(|line| {
            let parts = line.split(['&', '|', ';']).map(|part| part.trim());
            let parts = parts.map(|part| part.trim_start_matches("target/release/").to_string());
            parts.filter(|part| part.starts_with("meridian ")).collect::<Vec<_>>()
        });
        calls.collect()
    }

    /// The calls in a page, of its blocks, which must be whole, and in its text, where values may
    /// be left out or stand for others; how many there are, and which of them would be refused.
    #[cfg(feature = "lab")]
    fn refused(page: &str) -> (usize, Vec<String>) {
        use clap::error::ErrorKind;
        let (mut count, mut refused) = (0, Vec::new());
        let mut judge = |calls: Vec<String>, must_be_whole: bool| {
            for call in calls {
                let words = call.split_whitespace().map(|word| word.trim_matches(['\'', '"']));
                let fits = match Cli::try_parse_from(words).map_err(|error| error.kind()) {
                    Ok(_) | Err(ErrorKind::DisplayHelp) => true,
                    Err(ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand) => false,
                    Err(ErrorKind::ArgumentConflict) => false,
                    Err(_) => !must_be_whole,
                };
                count += 1;
                refused.extend((!fits).then_some(call));
            }
        };
        for (at, part) in page.split("```").enumerate() {
            match at % 2 {
                0 => part.split('`').skip(1).step_by(2).for_each(|code| {
                    judge(calls(&code.replace('\n', " ")), false);
                }),
                _ => judge(calls(part), true),
            }
        }
        (count, refused)
    }

    #[cfg(feature = "lab")]
    #[test]
    fn the_commands_in_the_documents_are_understood() {
        let mut all = 0;
        for name in PAGES {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
            let (count, refused) = refused(&std::fs::read_to_string(path).unwrap());
            assert!(refused.is_empty(), "{name} has commands that there are not: {refused:#?}");
            all += count;
        }
        assert!(all > 100, "{all} commands were found");
        let planted = "`meridian status --whole`, `meridian cluster\nlevel --at-most N` and\n```sh\n\
                       cd x && meridian cluster remove-node # which?\nmeridian status \\\n  --json\n```\n";
        let expected = ["meridian status --whole", "meridian cluster remove-node"];
        assert_eq!(refused(planted), (4, expected.map(String::from).to_vec()));
    }
}
