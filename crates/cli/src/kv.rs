//! `meridian kv`: keys, from the command line.

use crate::certificates::{Shown, TlsArgs};
use crate::cluster::Of;
use crate::{cluster, init};
use anyhow::Context;
use clap::{Args, Subcommand};
use meridian_client::keys::{Change, Keys, KeysError, KeysOptions, Watched};
use meridian_terminal::note;
use meridian_transport::Security;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// How long a command may take: a change of the members of a region, with much to spare.
const PATIENCE: Duration = Duration::from_secs(3);

/// Reads and changes keys
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Keys are linearizable within a region; each region has its own, kept by all nodes of the region.
Those that begin with causal: all regions have: see meridian demo --help. Any node of a region
answers: those of `meridian demo` at port 7400 and the next ones, in the order of its
table. If one does not answer, the next of those that --at names is asked; a change is
made once all the same. Clients of Redis can be used as well: redis-cli -p 7400.

Examples:
  meridian kv set color blue
  meridian kv get color
  meridian kv cas color blue green     changes it if it is blue
  meridian kv watch 'co*'              prints what keys have, and each change
  meridian kv --at 127.0.0.1:7401,127.0.0.1:7402 get color

Each takes about a millisecond. Exit status 1 if there is no such key, a condition does not hold, or
no node answers.")]
pub enum KvCommand {
    /// Print the value of a key
    Get {
        /// The key
        key: String,
        #[command(flatten)]
        at: At,
    },
    /// Give a key a value
    Set {
        /// The key
        key: String,
        /// The value; - reads it from standard input
        value: String,
        /// The key is gone after so many seconds
        #[arg(long, value_name = "SECONDS")]
        expire: Option<u64>,
        #[command(flatten)]
        at: At,
    },
    /// Give a key a value if it has the expected one
    Cas {
        /// The key
        key: String,
        /// What it must have
        expected: String,
        /// What it has then
        new: String,
        #[command(flatten)]
        at: At,
    },
    /// Remove keys
    Del {
        /// The keys
        #[arg(required = true)]
        keys: Vec<String>,
        #[command(flatten)]
        at: At,
    },
    /// Print the keys that there are
    Scan {
        /// Only keys that match it, as in user:*
        #[arg(default_value = "*")]
        pattern: String,
        #[command(flatten)]
        at: At,
    },
    /// Print how far each region is with the causal keys of each other
    #[command(after_help = "\
The same as meridian status tells of causal keys: see there. Exit status 1 if a node does not
answer, or none has causal keys.

Examples:
  meridian kv lag
  meridian kv lag --json")]
    Lag {
        #[command(flatten)]
        of: Of,
    },
    /// Print what a key has, or keys have, and each change as it is made
    #[command(after_help = "\
Each line is \"set KEY VALUE\" or \"del KEY\", with bytes that are no text as in \\x00. Each value
is printed when the node that is asked has it, in the key's order; one that was replaced before it
could be printed may be left out. If the node goes, the next is asked, and begins with what there is
then. It ends with Ctrl-C.

Examples:
  meridian kv watch color
  meridian kv watch 'user:*'           all keys that begin so")]
    Watch {
        /// The key, or what keys begin with and a *
        subject: String,
        #[command(flatten)]
        at: At,
    },
}

/// Whom to ask.
#[derive(Debug, Args)]
pub struct At {
    /// Addresses of nodes of a region for clients of keys; the next one is asked if one does not
    /// answer
    #[arg(
        long,
        value_name = "HOST:PORT,...",
        value_delimiter = ',',
        default_value = "127.0.0.1:7400"
    )]
    at: Vec<String>,
    /// The cluster of these nodes: how it is called says what certificates to show
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
    /// Speak plain text also with other machines, where whoever is in between can read and change
    /// all; with this machine itself it is spoken anyhow unless a cluster or certificate is named
    #[arg(long, conflicts_with_all = ["cluster", "tls_certificate"])]
    insecure_plain_text: bool,
    #[command(flatten)]
    tls: TlsArgs,
}

impl At {
    fn keys(&self) -> anyhow::Result<Keys> {
        let (timeout, security) = (PATIENCE, self.security()?);
        Ok(Keys::new(KeysOptions { timeout, security, ..KeysOptions::new(self.at.clone()) })?)
    }

    fn security(&self) -> anyhow::Result<Security> {
        let is_local = |at: &String| init::is_loopback(at);
        if self.insecure_plain_text {
            return Ok(Security::InsecurePlainText);
        }
        if self.cluster.is_none() && !self.tls.is_given() && self.at.iter().all(is_local) {
            return Ok(Security::InsecurePlainText);
        }
        let path = cluster::named_or_last(self.cluster.as_deref())
            .context("what certificate to show? Say --cluster, or --insecure-plain-text")?;
        let (_, file) = cluster::read(&path)?;
        self.tls.security(&path, &file, Shown::Client)
    }
}

/// Runs `meridian kv`.
///
/// # Errors
/// If no node answers, or it refuses.
pub fn run(command: &KvCommand) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(carry_out(command)).map_err(explained)
}

/// Says what to do if nobody answers.
fn explained(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<KeysError>() {
        Some(KeysError::Unreachable { .. }) => anyhow::anyhow!(
            "{error}; is a demo running? Its table shows where clients of keys call; name \
             one with --at"
        ),
        _ => error,
    }
}

async fn carry_out(command: &KvCommand) -> anyhow::Result<ExitCode> {
    let done = |done: bool| if done { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    match command {
        KvCommand::Get { key, at } => {
            let value = at.keys()?.get(key).await?;
            if let Some(value) = &value {
                print(&[value])?;
            }
            Ok(done(value.is_some()))
        }
        KvCommand::Set { key, value, expire, at } => {
            let (keys, value) = (at.keys()?, given(value)?);
            match expire {
                None => keys.set(key, value).await?,
                Some(left) => keys.set_for(key, value, Duration::from_secs(*left)).await?,
            }
            Ok(ExitCode::SUCCESS)
        }
        KvCommand::Cas { key, expected, new, at } => {
            Ok(done(at.keys()?.cas(key, expected, new).await?))
        }
        KvCommand::Del { keys, at } => {
            let (client, mut removed) = (at.keys()?, 0);
            for key in keys {
                removed += u32::from(client.remove(key).await?);
            }
            print(&[removed.to_string().as_bytes()])?;
            Ok(ExitCode::SUCCESS)
        }
        KvCommand::Scan { pattern, at } => {
            let mut scan = at.keys()?.scan(pattern);
            while let Some(page) = scan.next().await? {
                print(&page)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        KvCommand::Lag { of } => Ok(done(crate::status::lag(of).await?)),
        KvCommand::Watch { subject, at } => watch(subject, &at.keys()?).await,
    }
}

async fn watch(subject: &str, keys: &Keys) -> anyhow::Result<ExitCode> {
    let watched = match subject.strip_suffix('*') {
        Some(prefix) => Watched::prefix(prefix),
        None => Watched::key(subject),
    };
    let (mut watch, mut begun) = (keys.watch(watched), 0u64);
    loop {
        let line = match watch.next().await? {
            Change::Began => {
                begun += 1;
                if begun > 1 {
                    note!("a node begins anew, with what there is now");
                }
                continue;
            }
            Change::Away { why } => {
                note!("no node answers: {why}; --at says whom to ask; going on until one does");
                continue;
            }
            Change::Set(key, value) => format!("set {} {}", shown(&key), shown(&value)),
            Change::Removed(key) => format!("del {}", shown(&key)),
        };
        match writeln!(io::stdout(), "{line}").and_then(|()| io::stdout().flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                return Ok(ExitCode::SUCCESS);
            }
            result => result.context("cannot print")?,
        }
    }
}

/// Text as it is, other bytes by their numbers.
fn shown(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains(char::is_control) => text.into(),
        _ => bytes.escape_ascii().to_string(),
    }
}

fn given(value: &str) -> anyhow::Result<Vec<u8>> {
    if value != "-" {
        return Ok(value.as_bytes().to_vec());
    }
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes).context("cannot read the value")?;
    Ok(bytes)
}

fn print<L: AsRef<[u8]>>(lines: &[L]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    for line in lines {
        out.write_all(line.as_ref()).and_then(|()| out.write_all(b"\n")).context("cannot print")?;
    }
    Ok(())
}
