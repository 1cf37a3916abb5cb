//! Requests mean what the command's description says.

use super::*;
use crate::access::{Answer, Condition, ExpireCondition, Expiry, Modify, Read, Unit};
use crate::item::Item;
use crate::resp::Requests;

const NOW: Moment = Moment(1_700_000_000_000);

/// What a line of words asks for, or the error; both as text, since they borrow the line.
fn parsed(line: &str) -> Result<String, String> {
    let mut requests = Requests::default();
    requests.feed(line.as_bytes());
    requests.feed(b"\n");
    let request = requests.take().expect("a request").expect("a whole one");
    match Command::parse(&request, NOW) {
        Ok(command) => Ok(format!("{command:?}")),
        Err(Reply::Error(why)) => Err(why.into_owned()),
        Err(reply) => panic!("{line}: {reply:?} is no error"),
    }
}

fn access(line: &str, expected: Access) {
    let command = Command::One { key: b"k", access: expected };
    assert_eq!(parsed(line), Ok(format!("{command:?}")), "{line}");
}

fn set(expiry: Expiry, condition: Condition, answer: Answer) -> Access {
    Access::Modify(Modify::Set { data: "v".into(), expiry, condition, answer })
}

#[test]
fn the_table_is_in_order_and_each_command_takes_its_least_arguments() {
    assert!(TABLE.is_sorted_by(|one, next| one.name < next.name));
    for command in TABLE {
        assert!(table::find(command.name.to_uppercase().as_bytes()).is_some(), "{}", command.name);
        assert!(command.takes(usize::from(command.arity.unsigned_abs())), "{}", command.name);
        assert!(!command.takes(0), "{}", command.name);
    }
    assert!(table::find(b"ge").is_none() && table::find(b"gett").is_none());
}

#[test]
fn a_command_names_a_bounded_number_of_keys() {
    for (command, words) in [("mget", 1), ("del", 1), ("exists", 1), ("unlink", 1), ("mset", 2)] {
        let of = |keys: usize| parsed(&format!("{command}{}", " k".repeat(keys * words)));
        assert!(of(KEYS_MAX).is_ok(), "{command}");
        assert!(of(KEYS_MAX + 1).unwrap_err().starts_with("ERR too many keys"), "{command}");
    }
}

#[test]
fn reads_are_read() {
    access("GET k", Access::Read(Read::Get));
    access("strlen k", Access::Read(Read::Length));
    access("Type k", Access::Read(Read::Type));
    access("ttl k", Access::Read(Read::TimeLeft(Unit::Seconds)));
    access("pttl k", Access::Read(Read::TimeLeft(Unit::Milliseconds)));
    access("expiretime k", Access::Read(Read::Expires(Unit::Seconds)));
    access("getex k", Access::Read(Read::Get));
}

#[test]
fn a_plain_set_needs_not_know_what_there_was() {
    access("set k v", Access::Write(Item::new("v")));
    let later = Some(Moment(NOW.0 + 7_000));
    access("set k v ex 7", Access::Write(Item { expires: later, ..Item::new("v") }));
    access("setex k 7 v", Access::Write(Item { expires: later, ..Item::new("v") }));
    access("psetex k 7000 v", Access::Write(Item { expires: later, ..Item::new("v") }));
    access(
        "set k v exat 9",
        Access::Write(Item { expires: Some(Moment(9_000)), ..Item::new("v") }),
    );
}

#[test]
fn a_set_with_conditions_does() {
    use Answer::{Count, Done, Previous};
    use Condition::{Absent, Always, Equals, Present};
    access("set k v nx", set(Expiry::Never, Absent, Done));
    access("set k v XX GET", set(Expiry::Never, Present, Previous));
    access("set k v ifeq old", set(Expiry::Never, Equals("old".into()), Done));
    access("set k v keepttl", set(Expiry::Kept, Always, Done));
    access("set k v px 5 nx", set(Expiry::At(Moment(NOW.0 + 5)), Absent, Done));
    access("setnx k v", set(Expiry::Never, Absent, Count));
    access("getset k v", set(Expiry::Never, Always, Previous));
    access("meridian.cas k old v", set(Expiry::Never, Equals("old".into()), Count));
}

#[test]
fn changes_are_read() {
    access("incr k", Access::Modify(Modify::Add(1)));
    access("decr k", Access::Modify(Modify::Add(-1)));
    access("incrby k -5", Access::Modify(Modify::Add(-5)));
    access("decrby k -5", Access::Modify(Modify::Add(5)));
    access("append k v", Access::Modify(Modify::Append("v".into())));
    access("getdel k", Access::Modify(Modify::Take));
    access("getex k persist", Access::Modify(Modify::GetAndExpire(Expiry::Never)));
    access("persist k", Access::Modify(Modify::Persist));
    let at = |at, condition| Access::Modify(Modify::ExpireAt(Moment(at), condition));
    access("expire k 2 gt", at(NOW.0 + 2_000, ExpireCondition::Later));
    access("pexpire k -2", at(NOW.0 - 2, ExpireCondition::Always));
    access("expireat k 2 nx", at(2_000, ExpireCondition::None));
    access("pexpireat k -2", at(0, ExpireCondition::Always));
}

#[test]
fn several_keys_are_several_accesses() {
    let read = |key: &'static str| (key.as_bytes(), Access::Read(Read::Get));
    let mget = Command::Many { each: vec![read("a"), read("b")], combined: Combined::List };
    assert_eq!(parsed("mget a b"), Ok(format!("{mget:?}")));
    let write = |key: &'static str| (key.as_bytes(), Access::Write(Item::new("v")));
    let mset = Command::Many { each: vec![write("a"), write("b")], combined: Combined::Done };
    assert_eq!(parsed("mset a v b v"), Ok(format!("{mset:?}")));
    let remove = (&b"a"[..], Access::Modify(Modify::Remove));
    let del = Command::Many { each: vec![remove], combined: Combined::Sum };
    assert_eq!(parsed("unlink a"), Ok(format!("{del:?}")));
}

#[test]
fn answers_of_several_keys_become_one() {
    let numbers = || vec![Reply::Integer(1), Reply::Integer(0), Reply::Integer(1)];
    assert_eq!(Combined::Sum.combine(numbers()), Reply::Integer(2));
    assert_eq!(Combined::List.combine(numbers()), Reply::Array(numbers()));
    assert_eq!(Combined::Done.combine(vec![Reply::OK, Reply::OK]), Reply::OK);
    let failed = vec![Reply::Integer(1), Reply::error("no")];
    for combined in [Combined::Sum, Combined::List, Combined::Done] {
        assert_eq!(combined.combine(failed.clone()), Reply::error("no"));
    }
}

#[test]
fn a_scan_has_its_options() {
    let scan = Scan { cursor: 9, pattern: Some(Bytes::from("a*")), count: 100, none: true };
    let line = "scan 9 MATCH a* COUNT 100 TYPE list";
    assert_eq!(parsed(line), Ok(format!("{:?}", Command::Scan(scan))));
    assert_eq!(parsed("scan -1"), Err("ERR invalid cursor".into()));
    assert_eq!(parsed("scan 0 COUNT 0"), Err("ERR syntax error".into()));
}

#[test]
fn what_is_not_in_order_is_an_error_that_says_so() {
    let cases = [
        ("nosuch", "ERR unknown command 'nosuch'"),
        ("nosuch a b", "ERR unknown command 'nosuch', with arguments that begin with 'a'"),
        ("get", "ERR wrong number of arguments for 'get' command"),
        ("get a b", "ERR wrong number of arguments for 'get' command"),
        ("mset a b c", "ERR wrong number of arguments for 'mset' command"),
        ("set k v nx xx", "ERR syntax error"),
        ("set k v ex", "ERR syntax error"),
        ("set k v ex 1 px 1", "ERR syntax error"),
        ("set k v ex 1 keepttl", "ERR syntax error"),
        ("set k v ex x", "ERR value is not an integer or out of range"),
        ("set k v ex 0", "ERR invalid expire time in 'set' command"),
        ("set k v ex 9223372036854775807", "ERR invalid expire time in 'set' command"),
        ("incrby k 1.5", "ERR value is not an integer or out of range"),
        ("decrby k -9223372036854775808", "ERR decrement would overflow"),
        ("expire k 1 yy", "ERR syntax error"),
        ("expire k 9223372036854775807", "ERR invalid expire time in 'expire' command"),
        ("config set a b", "ERR unknown subcommand or wrong number of arguments for 'config set'"),
        ("hello x", "ERR Protocol version is not an integer or out of range"),
        ("hello 3 auth user", "ERR syntax error"),
    ];
    for (line, error) in cases {
        assert_eq!(parsed(line), Err(error.into()), "{line}");
    }
    let long = format!("get {}", "k".repeat(KEY_MAX));
    assert!(parsed(&long[..4 + KEY_MAX - 10]).is_ok());
}

#[test]
fn a_key_has_a_greatest_length() {
    let mut requests = Requests::default();
    let key = "k".repeat(KEY_MAX + 1);
    requests.feed(format!("*2\r\n$3\r\nget\r\n${}\r\n{key}\r\n", key.len()).as_bytes());
    let request = requests.take().expect("a request").expect("a whole one");
    assert!(Command::parse(&request, NOW).is_err());
}

#[test]
fn a_long_unknown_name_is_not_quoted_whole() {
    let error = parsed(&format!("{} {}", "x".repeat(5_000), "y".repeat(5_000)));
    assert!(error.is_err_and(|error| error.len() < 400));
}

#[test]
fn only_what_can_grow_is_refused_without_memory() {
    let grows = |line: &str| {
        let mut requests = Requests::default();
        requests.feed(format!("{line}\n").as_bytes());
        let request = requests.take().expect("a request").expect("a whole one");
        Command::parse(&request, NOW).expect("a command").grows()
    };
    for line in ["set k v", "mset k v", "incr k", "append k v", "set k v nx"] {
        assert!(grows(line), "{line}");
    }
    for line in ["get k", "del k", "getdel k", "expire k 1", "persist k", "scan 0", "ping"] {
        assert!(!grows(line), "{line}");
    }
}

#[test]
fn commands_describe_themselves() {
    let Reply::Array(all) = describe(&Describe::All) else { panic!("no array") };
    assert_eq!(describe(&Describe::Count), Reply::Integer(all.len().try_into().expect("few")));
    let Reply::Array(some) = describe(&Describe::Info(vec![b"GET", b"nosuch"])) else {
        panic!("no array")
    };
    let Reply::Array(get) = &some[0] else { panic!("no array") };
    assert_eq!(get[..2], [Reply::bulk("get"), Reply::Integer(2)]);
    assert_eq!((get.len(), &some[1]), (10, &Reply::Null));
    let Reply::Map(docs) = describe(&Describe::Docs(vec![b"nosuch", b"set"])) else {
        panic!("no map")
    };
    assert_eq!((docs.len(), &docs[0].0), (1, &Reply::bulk("set")));
}

#[test]
fn the_keys_of_a_request_are_named() {
    let keys = |request: &[&'static str]| {
        describe(&Describe::Keys(request.iter().map(|word| word.as_bytes()).collect()))
    };
    let found =
        |keys: &[&'static str]| Reply::Array(keys.iter().map(|key| Reply::bulk(key)).collect());
    assert_eq!(keys(&["get", "a"]), found(&["a"]));
    assert_eq!(keys(&["mset", "a", "1", "b", "2"]), found(&["a", "b"]));
    assert_eq!(keys(&["del", "a", "b", "c"]), found(&["a", "b", "c"]));
    assert_eq!(keys(&["set", "a", "b", "nx"]), found(&["a"]));
    for request in [&["ping"][..], &["nosuch", "a"], &["get"]] {
        assert!(keys(request).is_error(), "{request:?}");
    }
}

#[test]
fn a_change_with_a_name_is_of_one_key() {
    let once =
        |access: Access| Ok(format!("{:?}", Command::Once { sequence: 7, key: b"k", access }));
    assert_eq!(parsed("MERIDIAN.ONCE 7 incr k"), once(Access::Modify(Modify::Add(1))));
    assert_eq!(parsed("MERIDIAN.ONCE 7 del k"), once(Access::Modify(Modify::Remove)));
    assert_eq!(parsed("MERIDIAN.ONCE 7 set k v"), once(Access::Write(Item::new("v"))));
    for wrong in ["7 get k", "7 del k j", "7 exists k", "7 ping", "x incr k", "7 meridian.once 8 x"]
    {
        assert!(parsed(&format!("MERIDIAN.ONCE {wrong}")).is_err(), "{wrong}");
    }
}
