//! Numbers that nobody else draws, for the names of clients and of blocks.

use meridian_core::ClientId;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha12Rng;
use std::io::Read;
use std::sync::{Mutex, PoisonError};

/// A generator seeded from the operating system.
#[derive(Debug)]
pub(crate) struct Random(Mutex<ChaCha12Rng>);

impl Random {
    /// A fresh one.
    ///
    /// # Errors
    /// If the operating system gives no seed.
    pub(crate) fn new() -> std::io::Result<Random> {
        let mut seed = [0; 32];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut seed)?;
        Ok(Random(Mutex::new(ChaCha12Rng::from_seed(seed))))
    }

    /// A number.
    pub(crate) fn number(&self) -> u64 {
        self.next()
    }

    fn next(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).next_u64()
    }

    pub(crate) fn client(&self) -> ClientId {
        ClientId(self.next())
    }
}
