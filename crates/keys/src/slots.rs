//! Which shard has a key: Redis Cluster's hash slots, in equal ranges.

/// So many hash slots there are.
pub const SLOTS: u16 = 1 << 14;

/// So many shards at most: more threads than this have the same connections, clients and leases to
/// care for.
pub const SHARDS_MAX: usize = 64;

/// Names a shard of the keys: one thread of each node has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard(pub u8);

/// CRC16 as XMODEM computes it, by bytes.
const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = ((byte as u16) << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// The part of a key that is hashed: what is between the first `{` and the next `}`, if that is
/// anything. So clients can put several keys into one slot.
fn hashed(key: &[u8]) -> &[u8] {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let len = rest.iter().position(|byte| *byte == b'}').filter(|len| *len > 0)?;
        Some(&rest[..len])
    });
    tag.unwrap_or(key)
}

/// The hash slot of a key.
pub fn slot_of(key: &[u8]) -> u16 {
    let step = |crc: u16, byte: &u8| crc << 8 ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)];
    hashed(key).iter().fold(0, step) % SLOTS
}

/// The shard that has a key, of so many.
pub fn shard_of(key: &[u8], shards: usize) -> Shard {
    if shards == 1 {
        return Shard(0);
    }
    let shard = usize::from(slot_of(key)) * shards / usize::from(SLOTS);
    Shard(u8::try_from(shard).expect("SHARDS_MAX is less"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `CLUSTER KEYSLOT` of Redis 7 answers.
    #[test]
    fn slots_are_those_of_redis_cluster() {
        let known = [("foo", 12182), ("somekey", 11058), ("foo{hash_tag}", 2515), ("", 0)];
        for (key, slot) in known {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
        assert_eq!(slot_of(b"bar{hash_tag}"), slot_of(b"hash_tag"));
        assert_eq!(slot_of(b"{}tail"), 0x3fff & crc_by_bits(b"{}tail"));
    }

    fn crc_by_bits(bytes: &[u8]) -> u16 {
        bytes.iter().fold(0u16, |crc, byte| {
            (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
            })
        })
    }

    #[test]
    fn each_shard_has_about_as_many_keys() {
        for shards in [1, 2, 3, SHARDS_MAX] {
            let mut counts = vec![0; shards];
            for number in 0..10_000 {
                counts[usize::from(shard_of(format!("key:{number}").as_bytes(), shards).0)] += 1;
            }
            let fair = 10_000 / shards;
            assert!(counts.iter().all(|count| *count > fair / 2), "{counts:?}");
        }
    }
}
