//! Clients that have a grant.

use super::*;

fn grant(prefixes: &[&'static str], read_only: bool) -> Option<Arc<Grant>> {
    let prefixes = prefixes.iter().map(|prefix| Bytes::from_static(prefix.as_bytes())).collect();
    Some(Arc::new(Grant { prefixes, read_only }))
}

/// The client of a node may do that from now on; all, if it is none.
fn allow(net: &mut Net, node: usize, grant: Option<Arc<Grant>>) {
    let place = node * net.shards;
    net.papers[place].grants = grant.into_iter().map(|grant| (7, grant)).collect();
    net.desks[place].on_grants(&mut net.papers[place]);
}

fn is_refused(answer: &str) -> bool {
    answer.starts_with("-NOPERM ") && answer.matches("\r\n").count() == 1
}

#[test]
fn a_command_with_a_key_of_others_is_refused_before_anything_is_done() {
    for shards in [1, 3] {
        let mut net = Net::of(shards);
        net.ask(0, "set else:1 x\n");
        allow(&mut net, 1, grant(&["a:", "b:"], false));
        assert_eq!(net.ask(1, "mset a:1 v b:1 w\nget a:1\n"), "+OK\r\n$1\r\nv\r\n");
        let refused = [
            "get else:1",
            "set else:1 y",
            "mset a:1 new b:1 new else:1 y",
            "del a:1 else:1",
            "exists a:1 else:1",
            "meridian.watch prefix a",
            "dbsize",
            "info",
        ];
        for line in refused {
            let answer = net.say(1, &format!("{line}\n"));
            assert!(is_refused(&answer), "{line}: {answer}");
            net.collect();
            assert!(net.coming.is_empty(), "{line}: something was begun");
        }
        assert!(is_refused(&net.say(1, "meridian.once 1 set else:1 y\n")));
        assert_eq!(net.ask(0, "mget a:1 else:1\n"), "*2\r\n$1\r\nv\r\n$1\r\nx\r\n");
        assert_eq!(net.say(1, "ping\n"), "+PONG\r\n");
    }
}

/// Replies keep their order, also those of requests that are refused at once.
#[test]
fn what_is_refused_is_answered_in_its_place() {
    let mut net = Net::of(3);
    allow(&mut net, 0, grant(&["a:"], false));
    let answers = net.ask(0, "set a:1 v\nget else:1\nstrlen a:1\n");
    let lines: Vec<_> = answers.lines().collect();
    assert!(lines.len() == 3 && lines[0] == "+OK" && lines[2] == ":1", "{answers}");
    assert!(lines[1].starts_with("-NOPERM "), "{answers}");
}

#[test]
fn a_walk_shows_the_keys_of_the_grant_and_no_others() {
    let mut net = Net::of(3);
    for number in 0..10 {
        net.ask(0, &format!("set own:{number} v\nset else:{number} v\n"));
    }
    let walk = |net: &mut Net| {
        let (mut cursor, mut seen) = ("0".to_string(), BTreeSet::new());
        loop {
            let page = net.ask(1, &format!("scan {cursor} count 3\n"));
            let keys = page.lines().filter(|line| line.contains(':') && !line.starts_with(':'));
            seen.extend(keys.map(String::from));
            cursor = page.lines().nth(2).expect("a cursor").to_string();
            if cursor == "0" {
                return seen;
            }
        }
    };
    assert_eq!(walk(&mut net).len(), 20, "who may do all sees all");
    allow(&mut net, 1, grant(&["own:", "none:"], true));
    let own: BTreeSet<_> = (0..10).map(|number| format!("own:{number}")).collect();
    assert_eq!(walk(&mut net), own);
}

#[test]
fn the_grant_of_the_moment_counts_for_each_request() {
    let mut net = Net::of(3);
    assert_eq!(net.ask(0, "set a:1 v\nset b:1 v\n"), "+OK\r\n+OK\r\n");
    allow(&mut net, 0, grant(&["a:"], false));
    assert_eq!(net.ask(0, "set a:1 vv\n"), "+OK\r\n");
    assert!(is_refused(&net.say(0, "get b:1\n")));
    allow(&mut net, 0, grant(&["b:"], true));
    assert!(is_refused(&net.say(0, "get a:1\n")));
    assert!(is_refused(&net.say(0, "set b:1 vv\n")));
    assert_eq!(net.ask(0, "strlen b:1\n"), ":1\r\n");
    allow(&mut net, 0, grant(&[], false));
    assert!(is_refused(&net.say(0, "ping\n")));
    allow(&mut net, 0, None);
    assert_eq!(net.ask(0, "mget a:1 b:1\n"), "*2\r\n$2\r\nvv\r\n$1\r\nv\r\n");
}

#[test]
fn who_watches_what_it_may_not_see_any_more_ends() {
    let mut net = Net::of(3);
    allow(&mut net, 1, grant(&["user:"], true));
    assert_eq!(net.ask(1, "meridian.watch prefix user:1\n"), "+OK\r\n");
    net.ask(0, "set user:1 a\n");
    let told: String = (0..4).map(|_| net.look_again(1, Time(0))).collect();
    assert!(told.contains("user:1"), "{told}");
    allow(&mut net, 1, grant(&["user:1", "x:"], true));
    assert!(net.papers[3].ended.is_empty() && net.answered(1).is_empty(), "it may see that");
    allow(&mut net, 1, grant(&["user:12", "x:"], true));
    assert!(is_refused(&net.answered(1)));
    assert_eq!(net.papers[3].ended, [7]);
    net.ask(0, "set user:1 b\n");
    assert!((0..4).all(|_| net.look_again(1, Time(0)).is_empty()), "nothing more is told");
}

/// The name of a causal key is looked at as a whole, before it goes to the thread of those.
#[test]
fn causal_keys_are_within_the_grant_or_not_as_others_are() {
    let mut net = Net::new();
    let seat = Seat { shard: shard(0), shards: 1 };
    net.desks[0] = Desk::new(seat, BYTES_MAX).with_causal(Some("all:".into()));
    net.desks[0].connect(7);
    allow(&mut net, 0, grant(&["all:own:", "own:"], false));
    for line in ["get all:else\n", "mget all:own:1 all:else\n", "set all:own v\n"] {
        assert!(is_refused(&net.say(0, line)), "{line}");
        assert!(net.papers[0].passed.is_empty(), "{line}");
    }
    net.feed(0, b"get all:own:1\nscan 4294967296\n");
    let passed = &net.papers[0].passed[..];
    let [(Shard(1), Passed::Causal(..)), (Shard(1), Passed::Walk(_, walk))] = passed else {
        panic!("{passed:?}");
    };
    assert_eq!(walk.grant, grant(&["all:own:", "own:"], false), "what is shown is filtered there");
}
