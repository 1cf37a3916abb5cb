//! `meridian kv`: keys, from the command line. Speaks RESP, as any client of keys does.

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use meridian_keys::resp::answer::{self, Answered};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::Duration;

/// How long a server may take to answer: a change of its members, with much to spare.
const PATIENCE: Duration = Duration::from_secs(10);
/// So many keys are asked for at a time.
const SCANNED: &str = "1000";

/// Reads and changes keys
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Keys are linearizable within a region; each region has its own. They are kept in memory, by all
nodes of the region. Any of these answers: those of `meridian demo` at port 7400 and the next ones,
in the order of its table. Clients of Redis can be used as well: redis-cli -p 7400.

Examples:
  meridian kv set color blue
  meridian kv get color
  meridian kv cas color blue green     changes it if it is blue
  meridian kv --at 127.0.0.1:7401 get color

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
}

/// Whom to ask.
#[derive(Debug, Args)]
pub struct At {
    /// A node's address for clients of keys
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7400")]
    at: String,
}

/// Runs `meridian kv`.
///
/// # Errors
/// If no node answers, or it refuses.
pub fn run(command: &KvCommand) -> anyhow::Result<ExitCode> {
    match command {
        KvCommand::Get { key, at } => match at.ask(&[b"GET", key.as_bytes()])? {
            Answered::Bulk(value) => {
                print(&[&value])?;
                Ok(ExitCode::SUCCESS)
            }
            Answered::Null => Ok(ExitCode::FAILURE),
            other => bail!("{} answers {other:?} to GET", at.at),
        },
        KvCommand::Set { key, value, expire, at } => {
            let value = given(value)?;
            let mut words = vec![&b"SET"[..], key.as_bytes(), &value];
            let seconds = expire.map(|seconds| seconds.to_string());
            if let Some(seconds) = &seconds {
                words.extend([&b"EX"[..], seconds.as_bytes()]);
            }
            at.ask(&words)?;
            Ok(ExitCode::SUCCESS)
        }
        KvCommand::Cas { key, expected, new, at } => {
            let words = [b"MERIDIAN.CAS", key.as_bytes(), expected.as_bytes(), new.as_bytes()];
            let is_set = at.ask(&words)? == Answered::Integer(1);
            Ok(if is_set { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        KvCommand::Del { keys, at } => {
            let words = [&b"DEL"[..]].into_iter().chain(keys.iter().map(|key| key.as_bytes()));
            match at.ask(&words.collect::<Vec<_>>())? {
                Answered::Integer(removed) => print(&[removed.to_string().as_bytes()])?,
                other => bail!("{} answers {other:?} to DEL", at.at),
            }
            Ok(ExitCode::SUCCESS)
        }
        KvCommand::Scan { pattern, at } => scan(pattern, at),
    }
}

fn scan(pattern: &str, at: &At) -> anyhow::Result<ExitCode> {
    let (mut connection, mut cursor) = (at.connect()?, b"0".to_vec());
    loop {
        let words =
            [b"SCAN", &cursor[..], b"MATCH", pattern.as_bytes(), b"COUNT", SCANNED.as_bytes()];
        let Answered::Array(answer) = connection.ask(&words)? else {
            bail!("{} answers no array to SCAN", at.at);
        };
        let [Answered::Bulk(next), Answered::Array(keys)] = &answer[..] else {
            bail!("{} answers {answer:?} to SCAN", at.at);
        };
        for key in keys {
            let Answered::Bulk(key) = key else { bail!("{} names {key:?} as a key", at.at) };
            print(&[key])?;
        }
        cursor = next.to_vec();
        if cursor == b"0" {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn given(value: &str) -> anyhow::Result<Vec<u8>> {
    if value != "-" {
        return Ok(value.as_bytes().to_vec());
    }
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes).context("cannot read the value")?;
    Ok(bytes)
}

fn print(lines: &[&[u8]]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for line in lines {
        out.write_all(line).and_then(|()| out.write_all(b"\n")).context("cannot print")?;
    }
    Ok(())
}

impl At {
    fn connect(&self) -> anyhow::Result<Connection> {
        let refused = || {
            format!(
                "no node answers at {}: is a demo running? Its table shows where clients of \
                 keys call; name one with --at",
                self.at
            )
        };
        let socket = TcpStream::connect(&self.at).with_context(refused)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_nodelay(true)?;
        Ok(Connection { socket, read: Vec::new(), at: self.at.clone() })
    }

    fn ask(&self, words: &[&[u8]]) -> anyhow::Result<Answered> {
        self.connect()?.ask(words)
    }
}

struct Connection {
    socket: TcpStream,
    read: Vec<u8>,
    at: String,
}

impl Connection {
    fn ask(&mut self, words: &[&[u8]]) -> anyhow::Result<Answered> {
        let mut request = Vec::new();
        answer::write_request(words.iter().copied(), &mut request);
        let silent = || format!("{} does not answer", self.at);
        self.socket.write_all(&request).with_context(silent)?;
        let mut buffer = vec![0; 64 << 10];
        loop {
            if let Some((answer, len)) = answer::read(&self.read)? {
                self.read.drain(..len);
                if let Answered::Error(why) = answer {
                    bail!("{} refuses: {why}", self.at);
                }
                return Ok(answer);
            }
            let len = self.socket.read(&mut buffer).with_context(silent)?;
            ensure!(len > 0, "{} has closed the connection", self.at);
            self.read.extend_from_slice(&buffer[..len]);
        }
    }
}
