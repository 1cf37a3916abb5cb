//! Clients that are told of changes.

use super::*;

fn change(key: &str, value: Option<&str>) -> String {
    let value = value.map_or("$-1\r\n".into(), |v| format!("${}\r\n{v}\r\n", v.len()));
    format!("*3\r\n$6\r\nchange\r\n${}\r\n{key}\r\n{value}", key.len())
}

#[test]
fn a_watcher_is_told_what_there_is_and_each_change() {
    for shards in [1, 3] {
        let mut net = Net::of(shards);
        net.ask(0, "set user:1 a\nset other x\n");
        assert_eq!(net.ask(1, "meridian.watch prefix user:\n"), "+OK\r\n");
        let mut told = String::new();
        for _ in 0..4 {
            told += &net.look_again(1, Time(0));
        }
        assert_eq!(told, change("user:1", Some("a")));
        net.ask(0, "set user:2 b\nset other y\ndel user:1\n");
        let mut told = net.look_again(1, Time(0));
        told += &net.look_again(1, Time(0));
        assert_eq!(told.len(), change("user:2", Some("b")).len() + change("user:1", None).len());
        assert!(told.contains(&change("user:1", None)), "{told}");
    }
}

#[test]
fn a_key_that_is_not_there_is_told_to_who_watches_it_alone() {
    let mut net = Net::of(2);
    assert_eq!(net.ask(1, "hello 3\nmeridian.watch key k\n").matches("+OK").count(), 1);
    let told = net.look_again(1, Time(0)) + &net.look_again(1, Time(0));
    assert_eq!(told, ">3\r\n$6\r\nchange\r\n$1\r\nk\r\n_\r\n");
    assert!(net.say(1, "get k\n").starts_with("-ERR this connection watches"));
    assert_eq!(net.say(1, "ping\n"), "+PONG\r\n");
}

/// What is told to a client that takes nothing is bounded by its keys: the last value is told.
#[test]
fn a_slow_watcher_skips_values_that_were_replaced() {
    for shards in [1, 2] {
        let mut net = Net::of(shards);
        net.ask(1, "meridian.watch prefix \"\"\n");
        net.look_again(1, Time(0));
        let long = "x".repeat(2_000);
        net.papers[shards].stuffed = true;
        let mut told = String::new();
        for number in 0..1_000 {
            net.ask(0, &format!("set k {number}{long}\n"));
            told += &net.look_again(1, Time(0));
        }
        assert!(told.len() > watch::SENT_MAX / 2 && told.len() < watch::SENT_MAX * 2);
        assert!(net.desks[shards].due().is_some(), "it is looked at again");
        net.papers[shards].stuffed = false;
        let mut told = String::new();
        for _ in 0..3 {
            told += &net.look_again(1, Time(20_000_000));
        }
        assert!(told.contains("\r\n999x") && told.len() < 10_000, "{} bytes", told.len());
    }
}

#[test]
fn a_watcher_that_goes_leaves_nothing_behind() {
    let mut net = Net::of(2);
    net.ask(1, "meridian.watch prefix \"\"\n");
    net.look_again(1, Time(0));
    assert!(net.desks[2].watchers.len() == 1 && net.desks[3].watchers.len() == 1);
    net.desks[2].disconnect(7, &mut net.papers[2]);
    net.run();
    assert!(net.desks[2].watchers.len() == 0 && net.desks[3].watchers.len() == 0);
    net.ask(0, "set a 1\nset b 2\n");
    assert_eq!(net.look_again(1, Time(0)), "");
}
