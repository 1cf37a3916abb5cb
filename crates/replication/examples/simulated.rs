//! One's own service under the simulator: crashes, netsplits and a bad network in virtual time,
//! and a judgement. Then the same service with a bug.
//!
//! `cargo run -p meridian-replication --features simulator --example simulated`

use meridian_replication::simulator::{Ask, RngExt, Trial, first_failure, trials_hold};
use meridian_replication::{Bytes, Service};
use std::collections::BTreeMap;

/// Accounts, by number. A request moves money: from, to, how much, one byte each. The reply is
/// what the first has left.
#[derive(Clone, Default)]
struct Bank {
    accounts: BTreeMap<u8, u64>,
    /// The bug: who had nothing when a snapshot was made has a hundred again.
    generous: bool,
}

impl Service for Bank {
    fn execute(&mut self, request: &Bytes) -> Bytes {
        let [from, to, amount] = request[..] else { return Bytes::new() };
        let left = self.accounts.entry(from).or_insert(100);
        if *left >= u64::from(amount) {
            *left -= u64::from(amount);
            *self.accounts.entry(to).or_insert(100) += u64::from(amount);
        }
        self.query(&[from])
    }
    fn query(&self, account: &[u8]) -> Bytes {
        self.accounts.get(&account[0]).copied().unwrap_or(100).to_string().into()
    }
    fn snapshot(&self) -> Bytes {
        let kept = self.accounts.iter().filter(|(_, left)| !self.generous || **left > 0);
        let kept: Vec<_> = kept.collect();
        postcard::to_stdvec(&kept).expect("writing to memory").into()
    }
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
        let kept: Vec<(u8, u64)> =
            postcard::from_bytes(snapshot).map_err(|error| error.to_string())?;
        self.accounts = kept.into_iter().collect();
        Ok(())
    }
}

/// What clients ask: drawn from the seed, as all else that happens.
fn trial(generous: bool) -> Trial<Bank> {
    Trial::new(Bank { generous, ..Bank::default() }, |random| {
        let mut account = || random.random_range(0..3u8);
        let (from, to) = (account(), account());
        match random.random_range(0..4) {
            0 => Ask::Query(Bytes::copy_from_slice(&[from])),
            _ => Ask::Execute(Bytes::copy_from_slice(&[from, to, random.random_range(1..90)])),
        }
    })
}

fn main() {
    // Panics with the seed if answers are not those of one bank, replicas differ, or one waits.
    let counts = trials_hold(0..20, &trial(false));
    println!("20 seeds hold: {counts:?}");
    let found = first_failure(0..200, &trial(true)).expect("the bug is found");
    println!("with the bug, {found}");
}

#[test]
fn it_runs() {
    main();
}
