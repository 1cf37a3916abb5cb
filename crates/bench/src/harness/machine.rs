//! On which machine, and of which build, something was measured.

use meridian_terminal::note;
use serde::Serialize;
use std::fmt;
use std::path::Path;
use std::process::Command;

/// The machine before a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    cores: usize,
    /// Processes that ran or waited for a core, on average over the last minute.
    load_average: f64,
    /// The commit of the repository in which the program lies; a `+` says that files were changed.
    commit: Option<String>,
}

impl Machine {
    /// This machine, now.
    pub fn look() -> Machine {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load_average = load.split(' ').next().and_then(|first| first.parse().ok());
        let program = std::env::current_exe().ok();
        Machine {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            load_average: load_average.unwrap_or_default(),
            commit: program.as_deref().and_then(Path::parent).and_then(commit_at),
        }
    }

    /// The same, with a warning for people if others use the machine.
    pub fn look_and_warn() -> Machine {
        let machine = Machine::look();
        if machine.load_average > machine.cores as f64 / 2.0 {
            note!(
                "meridian: the machine is busy (load {:.1} on {} cores): what is measured now is \
                 slower than it could be",
                machine.load_average,
                machine.cores
            );
        }
        machine
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cores, load {:.1} at the start", self.cores, self.load_average)?;
        match &self.commit {
            Some(commit) => write!(f, ", commit {commit}"),
            None => write!(f, ", version {}", env!("CARGO_PKG_VERSION")),
        }
    }
}

fn commit_at(dir: &Path) -> Option<String> {
    let git = |args: &[&str]| {
        let output = Command::new("git").arg("-C").arg(dir).args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let commit = git(&["rev-parse", "--short", "HEAD"])?;
    let changed = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(if changed { commit + "+" } else { commit })
}
