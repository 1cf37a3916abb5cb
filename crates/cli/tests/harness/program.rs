//! Programs that use files of a mount, each a process of its own.

#![allow(clippy::unwrap_used, dead_code)] // Part of tests, which use different parts.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A Python program that is spoken to in lines.
pub struct Program {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// What all of them begin with: `tell` says a line, `hear` waits for one, `errno` says how a call
/// ends.
const BEGIN: &str = "
import fcntl, os, sys
def tell(*words): print(*words, flush=True)
def hear(): sys.stdin.readline()
def errno(call, *args):
    try:
        call(*args)
        return 0
    except OSError as error:
        return error.errno
files = [os.open(path, os.O_RDWR) for path in sys.argv[1:]]
";

impl Program {
    /// Starts a script, which has these files open.
    pub fn start(script: &str, files: &[&Path]) -> Program {
        Program::start_in(Path::new("."), script, files)
    }

    /// The same, in that directory.
    pub fn start_in(dir: &Path, script: &str, files: &[&Path]) -> Program {
        let mut python = Command::new("python3");
        python.arg("-c").arg(format!("{BEGIN}{script}")).args(files).current_dir(dir);
        let mut child = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Program { child, to, from: BufReader::new(from) }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it says.
    pub fn hear(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        line.trim().to_string()
    }

    /// Lets it go on that waits for a line.
    pub fn tell(&mut self) {
        self.to.write_all(b"\n").unwrap();
    }

    /// Waits for its end.
    pub fn end(mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill(); // Refused if it has ended.
        let _ = self.child.wait();
    }
}
