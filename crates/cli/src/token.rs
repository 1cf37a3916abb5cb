//! `meridian fs token` and `meridian fs after`: what programs have seen in a mount, handed over.

use crate::mount::duration_of;
use crate::output;
use anyhow::bail;
use clap::Args;
use meridian_mount::token::{AskError, take_token, token_of};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `meridian fs token`.
#[derive(Debug, Args)]
pub struct TokenArgs {
    /// Anything in the mount that you may read
    #[arg(default_value = ".")]
    path: PathBuf,
}

/// `meridian fs after`.
#[derive(Debug, Args)]
pub struct AfterArgs {
    /// What `meridian fs token` or MERIDIAN.SESSION printed
    token: String,
    /// Anything in the mount that you may read
    #[arg(default_value = ".")]
    path: PathBuf,
    /// How long it waits at most, as 500ms, 5s or 2m; no longer than 10m
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = wait)]
    wait: Duration,
}

fn wait(text: &str) -> Result<Duration, String> {
    duration_of(text).ok_or_else(|| format!("{text} is no duration, as 5s"))
}

/// Runs `meridian fs token`.
///
/// # Errors
/// If the path is in no mount, or what was written there cannot be stored.
pub fn tell(args: &TokenArgs) -> anyhow::Result<()> {
    output::print(&token_of(&args.path).map_err(|error| not_asked(&args.path, error))?)
}

/// Runs `meridian fs after`.
///
/// # Errors
/// If the path is in no mount, the token is none, or time is up.
pub fn take(args: &AfterArgs) -> anyhow::Result<()> {
    if args.token.contains(char::is_whitespace) {
        bail!("{:?} is no token: MERIDIAN.SESSION and `meridian fs token` print one", args.token);
    }
    take_token(&args.path, &args.token, args.wait).map_err(|error| not_asked(&args.path, error))
}

fn not_asked(path: &Path, error: AskError) -> anyhow::Error {
    match error {
        AskError::Refused(why) => anyhow::anyhow!("{why}"),
        AskError::System(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOTTY | Errno::NXIO) => anyhow::anyhow!(
                "{} is not a file or directory in a Meridian mount, or its mount is older than \
                 this command",
                path.display()
            ),
            _ => anyhow::anyhow!("{}: {error}", path.display()),
        },
    }
}
