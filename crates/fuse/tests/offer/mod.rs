//! Has the kernel offer rings of `io_uring`, or none, while a test mounts.
#![allow(dead_code)] // Not every test needs all of it.

use std::fs::File;
use std::io::{Read, Write};

/// Where the kernel says whether it offers rings to whoever mounts from now on.
const OFFER: &str = "/sys/module/fuse/parameters/enable_uring";

/// While it lives the kernel offers rings, or none; then all is as it was. Whoever else mounts
/// meanwhile meets the same; others who make an offer wait.
pub struct Offer {
    file: File,
    before: String,
}

impl Offer {
    /// `None` if the kernel has no rings, or this process may not say so.
    pub fn made() -> Option<Offer> {
        Offer::says(b"Y")
    }

    /// The same, and there are none as long as it lives.
    pub fn withheld() -> Option<Offer> {
        Offer::says(b"N")
    }

    fn says(word: &[u8]) -> Option<Offer> {
        let mut file = File::options().read(true).write(true).open(OFFER).ok()?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let mut before = String::new();
        file.read_to_string(&mut before).unwrap();
        file.write_all(word).unwrap();
        Some(Offer { file, before })
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.file.write_all(self.before.as_bytes()).unwrap();
    }
}
