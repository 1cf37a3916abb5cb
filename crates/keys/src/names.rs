//! Names of clients whose requests are made once: the minute in which they were drawn, and chance.
//! So replicas know which names nobody uses any more, and need not keep what those were answered.

use crate::item::Moment;
use meridian_core::ClientId;

/// Minutes from 1970 to 2020, from where names count.
const FIRST_MINUTE: u64 = 26_297_280;
/// So many bits of a name are chance: with a million clients a minute, two have the same name once
/// in two minutes; with a thousand once in five years.
const CHANCE_BITS: u32 = 40;
/// A name is for a connection that is made within so many minutes of it, before or after, as clocks
/// differ.
const FRESH_MINUTES: u64 = 60;
/// What a client was answered is kept for so many minutes after its name was drawn.
const KEPT_MINUTES: u64 = 24 * 60;

fn minute_of(now: Moment) -> u64 {
    (now.0 / 60_000).saturating_sub(FIRST_MINUTE)
}

/// A new name.
pub fn draw(now: Moment, random: u64) -> ClientId {
    ClientId(minute_of(now) << CHANCE_BITS | random >> (u64::BITS - CHANCE_BITS))
}

/// Whether a connection may be given this name now.
pub fn is_fresh(client: ClientId, now: Moment) -> bool {
    minute_of(now).abs_diff(client.0 >> CHANCE_BITS) <= FRESH_MINUTES
}

/// Nobody uses a name before this one any more.
pub fn oldest(now: Moment) -> ClientId {
    ClientId(minute_of(now).saturating_sub(KEPT_MINUTES) << CHANCE_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_fresh_for_a_while_and_kept_for_longer() {
        let at = |minute: u64| Moment((FIRST_MINUTE + minute) * 60_000);
        let name = draw(at(10_000), u64::MAX);
        assert!(is_fresh(name, at(10_000)) && is_fresh(name, at(10_060)));
        assert!(is_fresh(name, at(9_940)) && !is_fresh(name, at(10_061)));
        assert!(oldest(at(10_000 + KEPT_MINUTES)) <= name);
        assert!(oldest(at(10_001 + KEPT_MINUTES)) > name);
        assert!(!is_fresh(ClientId(u64::MAX), at(10_000)));
    }
}
