//! Which key is asked for next.

use rand::{Rng, RngExt};
use serde::Serialize;

/// How requests spread over the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distribution {
    /// All keys alike
    Uniform,
    /// By Zipf's law with exponent 0.99, as in YCSB: of 100000 keys one has 8 % of all requests
    Zipfian,
}

/// The exponent of [`Distribution::Zipfian`] (Hermes, section 6.2).
const THETA: f64 = 0.99;

/// Draws numbers below some count.
#[derive(Clone, Debug)]
pub enum Draw {
    Uniform(u32),
    Zipfian(Zipfian),
}

/// After Gray et al. 1994, as YCSB has it.
#[derive(Clone, Debug)]
pub struct Zipfian {
    count: f64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Draw {
    /// Of so many numbers, at least one.
    pub fn new(distribution: Distribution, count: u32) -> Draw {
        match distribution {
            Distribution::Uniform => Draw::Uniform(count),
            Distribution::Zipfian => Draw::Zipfian(Zipfian::new(count)),
        }
    }

    /// The next one; with Zipf's law 0 is the most frequent.
    pub fn next(&self, random: &mut impl Rng) -> u32 {
        match self {
            Draw::Uniform(count) => random.random_range(0..*count),
            Draw::Zipfian(zipfian) => zipfian.at(random.random()),
        }
    }
}

impl Zipfian {
    fn new(count: u32) -> Zipfian {
        let zeta = |count: u32| (1..=count).map(|n| f64::from(n).powf(-THETA)).sum::<f64>();
        let (all, two) = (zeta(count), zeta(count.min(2)));
        let eta = (1.0 - (2.0 / f64::from(count)).powf(1.0 - THETA)) / (1.0 - two / all);
        Zipfian { count: count.into(), zeta: all, alpha: 1.0 / (1.0 - THETA), eta }
    }

    /// What belongs to a point between 0 and 1.
    fn at(&self, point: f64) -> u32 {
        let mass = point * self.zeta;
        if mass < 1.0 || self.count < 2.0 {
            0
        } else if mass < 1.0 + 0.5f64.powf(THETA) {
            1
        } else {
            let rank = self.count * (self.eta * point - self.eta + 1.0).powf(self.alpha);
            rank.min(self.count - 1.0) as u32
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn each_number_comes_as_often_as_it_should() {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut counts = |distribution| {
            let draw = Draw::new(distribution, 1000);
            let mut counts = vec![0u32; 1000];
            (0..200_000).for_each(|_| counts[draw.next(&mut random) as usize] += 1);
            counts
        };
        let even = counts(Distribution::Uniform);
        assert!(even.iter().all(|count| (100..300).contains(count)), "{even:?}");
        let zipf = counts(Distribution::Zipfian);
        // The n-th comes n^0.99 times as seldom as the first, which comes once in 7.9.
        assert!((24_000..27_000).contains(&zipf[0]), "{}", zipf[0]);
        assert!((12_000..14_000).contains(&zipf[1]), "{}", zipf[1]);
        let tenth: u32 = zipf[8..12].iter().sum();
        assert!((8_000..12_000).contains(&tenth), "{tenth}");
        assert!(zipf[500..].iter().sum::<u32>() > 10_000);
    }

    #[test]
    fn one_key_is_drawn_always() {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        for distribution in [Distribution::Uniform, Distribution::Zipfian] {
            let draw = Draw::new(distribution, 1);
            assert!((0..100).all(|_| draw.next(&mut random) == 0));
        }
    }
}
