//! Keys of several shards.

use super::*;

/// A key of that shard, of several.
fn key_of(wanted: usize, shards: usize, number: usize) -> String {
    let keys = (0..).map(|tail| format!("k{number}.{tail}"));
    let mut of_shard =
        keys.filter(|key| crate::slots::shard_of(key.as_bytes(), shards) == shard(wanted));
    of_shard.next().expect("there are many")
}

#[test]
fn keys_of_all_shards_are_read_and_written_on_one_connection() {
    let mut net = Net::of(3);
    let keys = [0, 1, 2].map(|of| key_of(of, 3, 0));
    for key in &keys {
        assert_eq!(net.ask(0, &format!("set {key} {key}\n")), "+OK\r\n");
        let expected = format!("${}\r\n{key}\r\n", key.len());
        for node in 0..3 {
            assert_eq!(net.ask(node, &format!("get {key}\n")), expected);
        }
    }
    let all = keys.join(" ");
    assert_eq!(net.ask(1, &format!("exists {all}\n")), ":3\r\n");
    assert_eq!(net.ask(2, &format!("del {all}\n")), ":3\r\n");
    assert_eq!(net.ask(2, &format!("cluster keyslot {{x}}{all}\n")).matches("ERR").count(), 1);
    assert_eq!(net.ask(2, "cluster keyslot somekey\n"), ":11058\r\n");
}

#[test]
fn a_walk_goes_through_all_shards() {
    let mut net = Net::of(3);
    for number in 0..9 {
        net.ask(0, &format!("set {} v\n", key_of(number % 3, 3, number)));
    }
    let (mut cursor, mut seen) = ("0".to_string(), 0);
    loop {
        let page = net.ask(1, &format!("scan {cursor} count 2\n"));
        seen += page.matches("\r\nk").count();
        cursor = page.lines().nth(2).expect("a cursor").to_string();
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(seen, 9);
    assert_eq!(net.ask(1, "scan 99999999999\n"), "*2\r\n$1\r\n0\r\n*0\r\n");
    net.papers[0].elsewhere = Held { keys: 6, bytes: 60 };
    assert_eq!(net.say(0, "dbsize\n"), ":9\r\n");
}

#[test]
fn what_other_shards_hold_counts_for_the_limit() {
    let mut net = Net::of(2);
    net.papers[0].elsewhere = Held { keys: 1, bytes: BYTES_MAX };
    assert!(net.ask(0, "set k v\n").starts_with("-OOM"));
}

/// Requests of one connection on some keys, all at once, while desks and replicas hear each other
/// in any order; what a single thread would have answered; and what was.
fn pipeline(seed: u64, overtakes: bool) -> (String, String) {
    let mut net = Net::of(3);
    (net.draws, net.overtakes) = (Some(seed), overtakes);
    let (mut draw, mut asked, mut expected) = (seed, String::new(), String::new());
    let mut values = [0u64; 6];
    for _ in 0..40 {
        draw = mix(draw);
        let which = usize::try_from(draw >> 8 & 7).expect("small") % 6;
        let key = key_of(which % 3, 3, which);
        let value = &mut values[which];
        match draw % 3 {
            0 => {
                *value = draw >> 32;
                asked += &format!("set {key} {value}\n");
                expected += "+OK\r\n";
            }
            1 => {
                *value += 1;
                asked += &format!("incr {key}\n");
                expected += &format!(":{value}\r\n");
            }
            _ => {
                let text = value.to_string();
                asked += &format!("incrby {key} 0\nget {key}\n");
                expected += &format!(":{text}\r\n${}\r\n{text}\r\n", text.len());
            }
        }
    }
    let answered = net.ask(0, &asked);
    assert!(net.desks.iter().all(|desk| desk.tasks.is_empty()), "seed {seed}");
    (expected, answered)
}

#[test]
fn a_pipeline_over_several_shards_is_answered_in_order_and_done_in_order() {
    for seed in 0..60 {
        let (expected, answered) = pipeline(seed, false);
        assert_eq!(answered, expected, "seed {seed}");
    }
}

#[test]
fn messages_between_desks_that_overtake_are_noticed() {
    let differs = |seed| {
        let (expected, answered) = pipeline(seed, true);
        answered != expected
    };
    assert!((0..60).any(differs));
}
