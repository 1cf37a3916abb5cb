//! `meridian bench`: how fast protocols and directories are, and whether they stay so.
//!
//! | module | what |
//! | --- | --- |
//! | `harness` | what all benches share |
//! | `multicast` | multicast protocols over TCP |
//! | `paxos` | a replicated service over TCP |
//! | `kv` | replicated keys: Hermes, CRAQ and ZAB |
//! | `eunomia` | the service that orders a region's updates, and a sequencer |
//! | `fs` | POSIX calls on a directory, or on a demo of its own |
//!
//! Another protocol brings its arguments and up to four things that the harness asks for:
//! - a `processes::Program`: what its replicas are, are asked and say, each in its own process;
//! - a `phases::Subject`: what happens when the warm-up, a measured part and the end begin;
//! - a `soak::Subject`: what is completed, and whether the replica that was away has all again;
//! - its figures: which points are measured, and which curves they make (`figures::Drawing`).
//!
//! Deliberately absent: anything that a server or a mount needs. The command can be built without
//! this crate, plotters and the baselines: `cargo build --no-default-features`.
#![forbid(unsafe_code)]

mod dissemination;
mod eunomia;
mod fs;
mod harness;
mod kv;
mod multicast;
mod paxos;

use clap::Subcommand;
use meridian_terminal::output;
use std::path::PathBuf;
use std::process::ExitCode;

pub use dissemination::DisseminationArg;

/// What can be measured.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Small reads, writes and creations by many threads: latencies, and what each costs; 20 s
    #[command(after_help = "\
Each thread has a folder of its own below DIR; all of it is removed at the end. The operations are
  read      1 KB after 1 KB of a 10 KB file, from its start again at its end
  write     1 KB after 1 KB at the end of a file, each followed by fdatasync: the paper's write is
            durable when it returns
  create    an empty file, by open(O_CREAT|O_EXCL) and close
  create1k  the same with 1 KB written and fdatasync before the close
A local file system need not make a creation durable, Meridian does: mind that when comparing.
The kernel may answer reads from its cache; --direct opens with O_DIRECT, as the paper does it.

Without DIR a demo is started, and a second table tells the CPU time and the context switches of
an operation over all processes. With --against BINARY two builds are compared, each in demos of
its own that follow each other: medians of the rounds, and the ratio of this build to the other.

Examples:
  meridian bench fs meridian/us
  meridian bench fs --only create --threads 1,8,16
  meridian bench fs --only create --threads 1,8 --against /tmp/before/meridian --rounds 5
  meridian bench fs /tmp --json")]
    Fs(fs::FsArgs),
    /// Replicated keys by Hermes, CRAQ and ZAB, over TCP inside this process; 12 s
    #[command(after_help = "\
Each replica has clients of its own, on its thread and without sockets; replicas speak over TCP on
127.0.0.1. All keys are written first. The latency of a request is the time from the moment when
its client could ask, whether or not its replica had time then, to the answer. Nothing fails here,
and no member changes. Reads of ZAB may be old: it promises less than the two others. At the end
all replicas must hold the same, or the command fails.

Examples:
  meridian bench kv                                        12 s: 3 protocols with 5 % writes
  meridian bench kv --writes 0,1,5,20,50,100               70 s
  meridian bench kv --distribution zipfian --replicas 5
  meridian bench kv --clients 8 --pipeline 16              clients that ask for 16 at once
  meridian bench kv --json | jq .writes.p99_us
  meridian bench kv local                                  reads of one core, without any network")]
    Kv(kv::KvArgs),
    /// How many updates Eunomia orders, and a sequencer; stores of three regions; over TCP inside
    /// this process; 8 s
    #[command(after_help = "\
Partitions update as fast as they may, and do nothing else: what is measured is the service alone.
With Eunomia they send the labels of 2 ms at a time, behind the back of clients; an update counts
when its label has come to another region. With the sequencer each partition waits for the number of
an update before it begins the next; several replicas are a chain. Replicas have a thread each, all
else shares another: where there are fewer cores, look at what a replica does in a second of its
processor time.

`regions` measures whole stores: three regions, 80, 80 and 160 ms apart and back as in the thesis,
whose sessions read and update keys over connections of their own. Each protocol takes some 6 s, of
which 3 are measured. Beside what sessions are answered it tells how much later than the way between
two regions takes updates of one are seen in the other.

Examples:
  meridian bench eunomia                                      8 s
  meridian bench eunomia --partitions 15,30,45,60,75 --replicas 1,3
  meridian bench eunomia --service sequencer --clients 64     partitions with many clients
  meridian bench eunomia regions                              24 s: 10 % updates, 4 protocols
  meridian bench eunomia regions --updates 1,10,25,50 --distribution uniform,zipfian --json
  meridian bench eunomia regions --think-ms 20 --sessions 64  the delay without queues
  meridian bench eunomia figures --out figures")]
    Eunomia(eunomia::EunomiaArgs),
    /// The page that shows all figures in a folder, and a PDF of each; a second
    #[command(after_help = "\
Figures are what these commands draw with --out; they write the page and the PDFs themselves. This
one is for folders from before, or into which files were copied. It measures nothing.

Example:
  meridian bench figures docs/figures")]
    Figures {
        /// The folder that the figures lie in
        dir: PathBuf,
    },
    /// Messages to several groups, over TCP inside this process; 6 s
    #[command(after_help = "\
All members run in this process and speak over TCP on 127.0.0.1; one client is with each. The
latency of a client's message is the time from sending it to its delivery at the client's own
replica. At the end all replicas of a group must have delivered the same sequence, or the command
fails.

Examples:
  meridian bench multicast
  meridian bench multicast --dest 4 --outstanding 64 --protocol primcast-hc
  meridian bench multicast --layout wan-distributed --seconds 20
  meridian bench multicast --rtt g=90,r=5 --cut 2 --seconds 15")]
    Multicast(multicast::MulticastArgs),
    /// Requests to a replicated service, over TCP: each replica a process of its own; 6 s
    #[command(after_help = "\
The replicas run on 127.0.0.1, each in a process of its own with a directory of its own; the
clients are in this process, each with one request in flight, and ask the leader. The service
answers 8 bytes. At the end all replicas must have given the same replies, or the command fails.

Examples:
  meridian bench paxos
  meridian bench paxos --mode crash-stop --clients 1500
  meridian bench paxos --rtt 100 --wnd 20 --clients 1200
  meridian bench paxos figures --out figures")]
    Paxos(paxos::PaxosArgs),
}

/// Runs `meridian bench`.
///
/// # Errors
/// If something cannot be measured, or replicas contradict each other.
pub fn run(command: &BenchCommand) -> anyhow::Result<ExitCode> {
    match command {
        BenchCommand::Fs(args) => fs::run(args),
        BenchCommand::Kv(args) => kv::run(args),
        BenchCommand::Eunomia(args) => eunomia::run(args),
        BenchCommand::Figures { dir } => {
            let count = harness::page::write_all(dir)?;
            output::print(&format!("{count} figures are in {}", dir.display()))?;
            Ok(ExitCode::SUCCESS)
        }
        BenchCommand::Multicast(args) => multicast::run(args),
        BenchCommand::Paxos(args) => paxos::run(args),
    }
}
