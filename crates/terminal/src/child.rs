//! Processes that end with the one that started them.

use rustix::process::Signal;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Lets the kernel send `signal` to the command when the thread that spawns it ends.
pub fn die_with_parent(command: &mut Command, signal: Signal) {
    let parent = rustix::process::getpid();
    let ask = move || {
        rustix::process::set_parent_process_death_signal(Some(signal))?;
        if rustix::process::getppid() != Some(parent) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH)); // It ended before we could ask.
        }
        Ok(())
    };
    // SAFETY: the closure makes two system calls and takes no lock that another thread of the
    // forked process could have held, nor does it allocate.
    unsafe { command.pre_exec(ask) };
}
