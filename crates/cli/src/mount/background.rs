//! A mount that goes on when the command has returned.

use super::{MountArgs, absolute};
use anyhow::{Context, bail};
use meridian_terminal::log;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Starts a process that mounts, and waits until it has, or has failed. Tells where it is, and how
/// it is ended.
///
/// # Errors
/// What that process says if it fails.
pub fn start(args: &MountArgs, cluster: &Path) -> anyhow::Result<String> {
    let dir = absolute(&args.dir)?;
    let path = log_of(&dir)?;
    let file = fs::File::create(&path).with_context(|| path.display().to_string())?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["mount", "--foreground", "--region", &args.region, "--cluster"]).arg(cluster);
    command.args(args.tls.words()).arg(args.log.word());
    let watched = args.metrics_address.iter().flat_map(|at| ["--metrics-address", at]);
    command.args(watched).args(args.insecure_metrics.then_some("--insecure-metrics"));
    command.args(args.how.asks_always().then_some("--ask-always"));
    let (access, on_cut, durability) = args.how.words();
    command.arg("--on-cut").arg(on_cut.to_string());
    command.arg("--durability").arg(durability.to_string());
    command.arg("-o").arg(access.to_string()).arg("--source").arg(&args.source);
    command.arg("--").arg(&dir).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file);
    // Ctrl-C is for who waits, and a shell that ends takes only its own group along.
    let mut child = command.process_group(0).spawn().context("cannot start the mount")?;
    let mut said = String::new();
    let stdout = child.stdout.take().expect("it is piped");
    BufReader::new(stdout).read_line(&mut said)?;
    if said.is_empty() {
        let status = child.wait()?;
        let why = fs::read_to_string(&path).unwrap_or_default();
        let _ = fs::remove_file(&path); // All that it tells is said here.
        let why: Vec<_> = why.trim().lines().map(log::message).collect();
        match why.join("\n").as_str() {
            "" => bail!("the mount ended before it had begun: {status}"),
            why => bail!("{}", why.strip_prefix("meridian: ").unwrap_or(why)),
        }
    }
    Ok(format!(
        "mounted at {} in region {}; `umount {0}` ends it, {} has what it says",
        dir.display(),
        args.region,
        path.display()
    ))
}

/// The file for what a mount says: one for each directory.
fn log_of(dir: &Path) -> anyhow::Result<PathBuf> {
    let folder = crate::last::folder().unwrap_or_else(|| PathBuf::from("/run/meridian"));
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut name = b"mount".to_vec();
    name.extend(dir.as_os_str().as_bytes().iter().map(|byte| match byte {
        b'/' => b'-',
        byte => *byte,
    }));
    name.extend(b".log");
    Ok(folder.join(OsStr::from_bytes(&name)))
}
