//! Keys of all regions in a demo: three regions of real processes, of which some are cut off or
//! killed, and sessions that move between them.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[path = "harness/clients.rs"]
#[allow(dead_code)] // Not every test needs all of it.
mod clients;
#[allow(dead_code)] // Not every test needs all of it.
mod harness;
#[path = "harness/regions.rs"]
#[allow(dead_code)] // Not every test needs all of it.
mod regions;

use harness::{Room, Running, eventually, kill};
use meridian_keys::resp::answer::Answered;
use regions::{NODES, Regions, Session};
use std::fs::File;
use std::process::{Child, Stdio};

#[test]
fn keys_come_to_all_regions_and_sessions_move_with_what_they_saw() {
    let regions = Regions::start(2, &[]);
    let (mut a, mut b, mut c) =
        (regions.session(0, 0), regions.session(1, 1), regions.session(2, 0));
    a.set("causal:x", "1");
    a.set("x", "of region a");
    assert_eq!(regions.session(0, 1).get("causal:x").as_deref(), Some("1"), "linearizable there");
    // The other region has it as soon as the session goes on there, for any number of times.
    for round in 0..20 {
        let (key, value) = (format!("causal:{}", round % 3), round.to_string());
        a.set(&key, &value);
        assert_eq!(b.ask(&["MERIDIAN.SESSION", &a.token()]), Answered::Line("OK".into()));
        assert_eq!(b.get(&key).as_deref(), Some(value.as_str()));
        b.set("causal:reply", &value);
        assert_eq!(c.ask(&["MERIDIAN.SESSION", &b.token()]), Answered::Line("OK".into()));
        assert_eq!(c.get("causal:reply").as_deref(), Some(value.as_str()));
        assert_eq!(c.get(&key).as_deref(), Some(value.as_str()), "what the reply was to");
    }
    assert_eq!(b.get("x"), None, "other keys are of their region");
    // Changes of all kinds, through the commands of Redis and our own.
    assert_eq!(c.ask(&["INCR", "causal:n"]), Answered::Integer(1));
    assert_eq!(c.ask(&["APPEND", "causal:n", "0"]), Answered::Integer(2));
    assert_eq!(c.ask(&["SET", "causal:n", "7", "NX"]), Answered::Null);
    let set = ["SET", "causal:n", "7", "XX", "GET"];
    assert_eq!(c.ask(&set), Answered::Bulk("10".into()));
    let all = ["MGET", "causal:n", "causal:none", "causal:x"];
    let found = [Answered::Bulk("7".into()), Answered::Null, Answered::Bulk("1".into())];
    assert_eq!(c.ask(&all), Answered::Array(found.into()));
    assert_eq!(c.ask(&["DEL", "causal:n", "causal:x"]), Answered::Integer(2));
    assert_eq!(a.ask(&["MERIDIAN.SESSION", &c.token()]), Answered::Line("OK".into()));
    assert_eq!(a.ask(&["EXISTS", "causal:n", "causal:x", "causal:0"]), Answered::Integer(1));
    let refused = |answer: Answered, word: &str| {
        assert!(matches!(&answer, Answered::Error(why) if why.starts_with(word)), "{answer:?}");
    };
    refused(a.ask(&["MGET", "causal:0", "x"]), "CROSSSLOT");
    refused(a.ask(&["MERIDIAN.SESSION", "m1-00"]), "ERR this is no token");
    refused(a.ask(&["MERIDIAN.ONCE", "1", "SET", "causal:0", "v"]), "NOTONCE");
    let at = format!("127.0.0.1:{}", regions.first + 4);
    assert!(regions.room.run(&["kv", "set", "causal:kv", "v", "--at", &at]).status.success());
    eventually("it comes to another region", || b.get("causal:kv").as_deref() == Some("v"));
    a.set("causal:gone", "soon");
    assert_eq!(a.ask(&["PEXPIRE", "causal:gone", "300"]), Answered::Integer(1));
    eventually("it expires in a", || a.get("causal:gone").is_none());
    eventually("it expires in b", || b.get("causal:gone").is_none());
    let status = regions.room.status();
    let pairs = status["causal"].as_array().unwrap();
    assert_eq!(pairs.len(), 6, "{pairs:?}");
    assert!(pairs.iter().all(|pair| pair["lag_ms"].as_u64().unwrap() < 60_000), "{pairs:?}");
    let lag = regions.room.run(&["kv", "lag"]);
    assert!(lag.status.success() && lag.stdout.matches(" UTC").count() == 12, "{lag:?}");
    regions.stop();
}

#[test]
fn a_region_that_is_cut_off_goes_on_and_all_converge_when_it_is_back() {
    let regions = Regions::start(2, &[]);
    let (mut a, mut b, mut c) =
        (regions.session(0, 0), regions.session(1, 0), regions.session(2, 1));
    a.set("causal:x", "before");
    eventually("all have it", || [&mut b, &mut c].iter_mut().all(|s| s.get("causal:x").is_some()));
    let away = regions.pids("c");
    away.iter().for_each(|pid| kill(*pid, libc::SIGSTOP));
    for (round, session) in [(0, 0), (1, 1), (2, 0)] {
        let session = [&mut a, &mut b].into_iter().nth(session).unwrap();
        assert!(matches!(session.ask(&["INCR", "causal:n"]), Answered::Integer(1..)), "{round}");
    }
    a.set("causal:x", "from a");
    let token = a.token();
    assert_eq!(b.ask(&["MERIDIAN.SESSION", &token]), Answered::Line("OK".into()));
    assert_eq!(b.get("causal:x").as_deref(), Some("from a"), "the others go on");
    let queue = regions.room.run(&["kv", "lag", "--json"]);
    let lag: serde_json::Value = serde_json::from_str(&queue.stdout).unwrap();
    let kept = |pair: &&serde_json::Value| pair["from"] == "a" && pair["to"] == "b";
    let kept = lag.as_array().unwrap().iter().find(kept).unwrap()["outstanding"].as_u64();
    assert!(kept.unwrap() > 0, "what c lacks is kept: {lag}");
    away.iter().for_each(|pid| kill(*pid, libc::SIGCONT));
    // And now a region that the others cannot hear, while it writes: all but itself are stopped.
    eventually("it is back", || c.get("causal:x").as_deref() == Some("from a"));
    let others = [regions.pids("a"), regions.pids("b")].concat();
    others.iter().for_each(|pid| kill(*pid, libc::SIGSTOP));
    c.set("causal:x", "from c alone");
    assert!(matches!(c.ask(&["INCR", "causal:m"]), Answered::Integer(1)));
    let own = c.token();
    assert_eq!(c.ask(&["MERIDIAN.SESSION", &own]), Answered::Line("OK".into()), "it has all of it");
    others.iter().for_each(|pid| kill(*pid, libc::SIGCONT));
    eventually("all have what it wrote", || {
        [&mut a, &mut b].iter_mut().all(|s| s.get("causal:x").as_deref() == Some("from c alone"))
    });
    regions.stop();
}

/// Updates of the same keys in all regions at once, while a node is killed and started again.
#[test]
fn concurrent_updates_converge_though_a_node_is_killed() {
    let regions = Regions::start(3, &["--keys-durability", "disk"]);
    let port = regions.first;
    let workers: Vec<_> = (0..2)
        .map(|region: u16| {
            let mut session = regions.session(region, 0);
            std::thread::spawn(move || {
                for round in 0..60 {
                    session.set("causal:last", &format!("{region} {round}"));
                    let sum = session.ask(&["INCR", "causal:sum"]);
                    assert!(matches!(sum, Answered::Integer(1..)), "{sum:?}");
                }
            })
        })
        .collect();
    // A group begins with all its nodes.
    assert_eq!(regions.session(1, 1).get("causal:none"), None);
    let victim = regions.room.pid_of("b-2");
    kill(victim, libc::SIGKILL);
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    let mut server = start_again(&regions.room, "b-2", port + 4);
    let sum = |session: &mut Session| (session.get("causal:last"), session.get("causal:sum"));
    eventually("all nodes hold the same", || {
        let held: Vec<_> =
            (0..NODES).map(|node| sum(&mut regions.session(node / 3, node % 3))).collect();
        held.iter().all(|other| *other == held[0])
    });
    let mut session = regions.session(1, 1);
    let (_, total) = sum(&mut session);
    let total: i64 = total.unwrap().parse().unwrap();
    assert!((60..=120).contains(&total), "{total}: of concurrent counts one may be lost");
    regions.demo.stop();
    kill(i32::try_from(server.id()).unwrap(), libc::SIGTERM);
    server.wait().unwrap();
    regions.room.assert_clean();
}

fn start_again(room: &Room, node: &str, port: u16) -> Child {
    let dir = room.path("data").join(node);
    let address = format!("127.0.0.1:{port}");
    let args = ["server", "--dir", dir.to_str().unwrap(), "--keys", &address];
    let log = File::options().append(true).open(dir.join("server.log")).unwrap();
    room.meridian(&args).stdout(Stdio::null()).stderr(log).spawn().unwrap()
}

/// Nodes come and go in both regions. Who comes has all keys and is a source, who goes is none any
/// more, and what each has acknowledged is everywhere, also after a start of all.
#[test]
fn keys_of_all_regions_follow_the_nodes() {
    let regions = Regions::start(3, &["--keys-durability", "disk"]);
    let cluster = |args: &[&str]| {
        let told = regions.room.run(&[&["cluster"], args].concat());
        assert!(told.status.success(), "{args:?}: {}", told.stderr);
    };
    let mut written = Vec::new();
    let mut write = |number: u16| {
        let mut session = regions.session_at(number);
        let key = format!("causal:{}", written.len());
        session.set(&key, &number.to_string());
        written.push((key, number.to_string(), session.token()));
    };
    (0..NODES).for_each(&mut write);
    cluster(&["add-node", "--region", "a"]);
    write(NODES); // It serves as soon as it may.
    cluster(&["remove-node", "a-1"]);
    cluster(&["add-node", "--region", "b"]);
    write(NODES + 1);
    write(4);
    // One that has gone down for good is removed, too; what it acknowledged is not lost.
    kill(regions.room.pid_of("b-2"), libc::SIGKILL);
    cluster(&["remove-node", "b-2"]);
    for number in [1, 3, 5, NODES, NODES + 1] {
        write(number);
    }
    let read = |regions: &Regions| {
        for number in [1, 2, 3, 5, NODES, NODES + 1] {
            let mut session = regions.session_at(number);
            for (key, value, token) in &written {
                session.take(token);
                assert_eq!(session.get(key).as_ref(), Some(value), "{key} at {number}");
            }
        }
    };
    read(&regions);
    let Regions { nodes, room, demo, first } = regions;
    demo.stop();
    let port = first.to_string();
    let args = ["demo", "--mount", "mnt", "--data", "data", "--keys-port", &port];
    let demo = Running::start(room.meridian(&args), room.mount());
    let regions = Regions { nodes, room, demo, first };
    read(&regions);
    regions.stop();
}

/// A region comes while others have keys: it copies them, serves, and what it has made is in the
/// others when it has gone.
#[test]
fn a_region_comes_and_goes_with_its_keys() {
    let regions = Regions::start(2, &[]);
    let (mut a, mut b) = (regions.session(0, 0), regions.session(1, 1));
    for number in 0..50 {
        a.set(&format!("causal:{number}"), "of a");
    }
    let seen = a.token();
    let cluster = |args: &[&str]| {
        let told = regions.room.run(&[&["cluster"], args].concat());
        assert!(told.status.success(), "{args:?}: {}", told.stderr);
    };
    cluster(&["add-region", "d"]);
    let mut d = regions.session_at(NODES);
    eventually("the region serves", || {
        d.0.ask(&["GET", "causal:0"]).unwrap() == Answered::Bulk("of a".into())
    });
    for number in 0..50 {
        assert_eq!(d.get(&format!("causal:{number}")).as_deref(), Some("of a"), "{number}");
    }
    d.take(&seen);
    d.set("causal:of-d", "1");
    d.set("x", "of its own");
    let made = d.token();
    b.take(&made);
    assert_eq!(b.get("causal:of-d").as_deref(), Some("1"));
    assert_eq!(b.get("x"), None, "other keys are of their region");
    a.set("causal:later", "2");
    let later = a.token();
    d.take(&later);
    assert_eq!(d.get("causal:later").as_deref(), Some("2"), "it follows the others");

    d.set("causal:of-d", "3");
    cluster(&["remove-region", "d"]);
    let mut c = regions.session(2, 0);
    for session in [&mut a, &mut b, &mut c] {
        assert_eq!(session.get("causal:of-d").as_deref(), Some("3"), "nothing of it is lost");
        session.take(&made);
    }
    let status = regions.room.run(&["status"]);
    assert!(status.status.success(), "{status:?}");
    regions.stop();
}
