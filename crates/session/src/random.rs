//! What a session draws.

use meridian_core::mix;

/// Numbers for names, from a seed.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    seed: u64,
    drawn: u64,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random { seed, drawn: 0 }
    }

    /// Another number; no two of one seed are equal.
    pub(crate) fn next(&mut self) -> u64 {
        self.drawn += 1;
        // The inner call spreads the seeds of two clients, so that their numbers do not overlap.
        mix(mix(self.seed) ^ self.drawn)
    }
}
