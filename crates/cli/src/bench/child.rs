//! Replicas in processes of their own: lines of JSON on standard input and output.

use crate::children::die_with_parent;
use crate::output;
use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use tokio::sync::mpsc;

/// A replica's process, as its parent has it. It is killed when this is dropped.
pub struct Running {
    pub child: Child,
    /// `None` once it was closed, which asks it to end.
    pub input: Option<ChildStdin>,
}

impl Running {
    /// Starts this program with these arguments; also what it says.
    ///
    /// Call it on the main thread: the process dies with the thread that started it.
    pub fn start(args: &[&str]) -> anyhow::Result<(Running, Lines<BufReader<ChildStdout>>)> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.process_group(0); // Ctrl-C is for the parent alone.
        die_with_parent(&mut command, Signal::KILL);
        let mut child = command.spawn().context("cannot start a replica")?;
        let (input, said) = (child.stdin.take(), child.stdout.take());
        let said = BufReader::new(said.context("its output is ours")?).lines();
        Ok((Running { child, input }, said))
    }

    /// Asks it for something.
    pub fn ask(&mut self, ask: &impl Serialize) -> anyhow::Result<()> {
        let line = serde_json::to_string(ask)?;
        let input = self.input.as_mut().context("it is closed")?;
        writeln!(input, "{line}").context("it has ended")
    }

    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let raw = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // Nobody else can have this number: we have not waited for the process.
        kill_process(raw.context("no process number")?, signal).context("cannot send a signal")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill(); // It has ended by itself.
        let _ = self.child.wait();
    }
}

/// What comes on standard input, until it ends.
pub fn asks<A: DeserializeOwned + Send + 'static>() -> mpsc::UnboundedReceiver<A> {
    let (send, asks) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let lines = std::io::stdin().lock().lines().map_while(Result::ok);
        let asked = lines.map_while(|line| serde_json::from_str(&line).ok());
        asked.map_while(|ask| send.send(ask).ok()).for_each(drop);
    });
    asks
}

/// Tells the parent.
pub fn say(said: &impl Serialize) -> anyhow::Result<()> {
    output::print(&serde_json::to_string(said)?)
}
