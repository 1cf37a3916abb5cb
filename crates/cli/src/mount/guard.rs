//! `meridian-guard`, which each mount starts beside itself: the same program under that name.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// What it is called.
const NAME: &str = "meridian-guard";

/// Guards a mount if the program was called by that name.
pub fn called() -> Option<ExitCode> {
    let is_meant = std::env::args_os().next()? == NAME;
    // Nobody would hear why it cannot.
    is_meant.then(|| meridian_mount::guard::run().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS))
}

/// Calls it: the program that runs, also if there is another at its path by now.
pub fn command() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(NAME);
    command
}
