//! A hash of a number that is the same in every build and on every machine.

/// Spreads numbers that are near each other: the finalizer of SplitMix64 (Steele, Lea and Flood,
/// 2014), a bijection.
pub fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
