//! The replicas' processes: started, asked, closed.

use super::replica::{Ask, Said, Setup, Tally};
use crate::children::die_with_parent;
use anyhow::{Context, bail};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A replica's process. It is killed when this is dropped.
struct Process {
    child: Child,
    input: Option<ChildStdin>,
    said: Lines<BufReader<ChildStdout>>,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill(); // It has ended by itself.
        let _ = self.child.wait();
    }
}

impl Process {
    fn start() -> anyhow::Result<Process> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(program);
        command
            .args(["bench", "paxos", "replica"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0); // Ctrl-C is for the parent alone.
        die_with_parent(&mut command, Signal::KILL);
        let mut child = command.spawn().context("cannot start a replica")?;
        let input = child.stdin.take();
        let said = BufReader::new(child.stdout.take().context("its output is ours")?).lines();
        Ok(Process { child, input, said })
    }

    fn ask(&mut self, ask: &Ask) -> anyhow::Result<()> {
        let input = self.input.as_mut().context("it is closed")?;
        writeln!(input, "{}", serde_json::to_string(ask)?).context("a replica has ended")
    }

    fn hear(&mut self) -> anyhow::Result<Said> {
        let line = self.said.next().context("a replica has ended")??;
        match serde_json::from_str(&line)? {
            Said::Failed(why) => bail!("a replica: {why}"),
            said => Ok(said),
        }
    }
}

/// The replicas of one service.
pub struct Cluster {
    processes: Vec<Process>,
    /// Where they listen.
    pub addresses: Vec<String>,
}

impl Cluster {
    /// Starts them. They die with this program.
    ///
    /// Call it on the main thread: the processes die with the thread that started them.
    pub fn start(setups: Vec<Setup>) -> anyhow::Result<Cluster> {
        let (mut processes, mut addresses) = (Vec::new(), Vec::new());
        for setup in setups {
            let mut process = Process::start()?;
            process.ask(&Ask::Be(setup))?;
            match process.hear()? {
                Said::Listening(address) => addresses.push(address),
                said => bail!("a replica says {said:?} at first"),
            }
            processes.push(process);
        }
        for process in &mut processes {
            process.ask(&Ask::Start(addresses.clone()))?;
        }
        for process in &mut processes {
            process.hear()?;
        }
        Ok(Cluster { processes, addresses })
    }

    /// How far each replica is.
    pub fn tallies(&mut self) -> anyhow::Result<Vec<Tally>> {
        self.processes.iter_mut().try_for_each(|process| process.ask(&Ask::Tell))?;
        let tally = |process: &mut Process| match process.hear()? {
            Said::Tally(tally) => Ok(tally),
            said => bail!("a replica says {said:?} when asked how far it is"),
        };
        self.processes.iter_mut().map(tally).collect()
    }

    /// Closes all replicas.
    pub fn close(mut self) -> anyhow::Result<()> {
        self.processes.iter_mut().for_each(|process| drop(process.input.take()));
        for process in &mut self.processes {
            let status = process.child.wait()?;
            if !status.success() {
                bail!("a replica did not close well: {status}");
            }
        }
        Ok(())
    }
}
