//! What each command is to a client that has a grant.

use super::*;
use crate::command::{Description, Flag, TABLE};
use crate::item::Moment;
use crate::resp::Requests;
use Class::{Changes, OfAll, OfNone, Reads};

/// What a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// It looks at its keys.
    Reads,
    /// It changes them.
    Changes,
    /// It tells of the keys of all.
    OfAll,
    /// It tells nothing of keys, or only of those of the grant.
    OfNone,
}

/// All commands, in the forms that are of different classes. `K` stands for a key.
const FORMS: &[(Class, &str)] = &[
    (Changes, "append K v"),
    (OfNone, "auth password"),
    (OfNone, "client id"),
    (OfNone, "client setname a"),
    (OfNone, "cluster keyslot else:1"),
    (OfNone, "command getkeys get else:1"),
    (OfNone, "config get *"),
    (OfAll, "dbsize"),
    (Changes, "decr K"),
    (Changes, "decrby K 2"),
    (Changes, "del K"),
    (Changes, "del own:1 K"),
    (OfNone, "echo else:1"),
    (Reads, "exists own:1 own:2 K"),
    (Changes, "expire K 1"),
    (Changes, "expireat K 1"),
    (Reads, "expiretime K"),
    (Reads, "get K"),
    (Changes, "getdel K"),
    (Reads, "getex K"),
    (Changes, "getex K persist"),
    (Changes, "getset K v"),
    (OfNone, "hello 3"),
    (Changes, "incr K"),
    (Changes, "incrby K 2"),
    (OfAll, "info"),
    (OfAll, "info server"),
    (Changes, "meridian.cas K v w"),
    (OfNone, "meridian.client 7"),
    (Changes, "meridian.once 1 set K v"),
    (Changes, "meridian.once 1 del K"),
    (OfNone, "meridian.session"),
    (OfNone, "meridian.session token 5"),
    (Reads, "meridian.settled 0 0 K"),
    (Reads, "meridian.watch key K"),
    (Reads, "meridian.watch prefix K"),
    (Reads, "mget own:1 K"),
    (Changes, "mset own:1 v K v"),
    (Changes, "persist K"),
    (Changes, "pexpire K 1"),
    (Changes, "pexpireat K 1"),
    (Reads, "pexpiretime K"),
    (OfNone, "ping"),
    (Changes, "psetex K 1 v"),
    (Reads, "pttl K"),
    (OfNone, "quit"),
    (OfNone, "reset"),
    (OfNone, "scan 0 match else:*"),
    (OfNone, "select 0"),
    (Changes, "set K v"),
    (Changes, "set K v nx get"),
    (Changes, "setex K 1 v"),
    (Changes, "setnx K v"),
    (Reads, "strlen K"),
    (Reads, "ttl K"),
    (Reads, "type K"),
    (Changes, "unlink K"),
];

/// A way to look at commands: [`Grant::check`], or one with a planted bug.
type Check = fn(&Grant, &Command<'_>) -> Result<(), Reply>;

fn grant(prefixes: &[&'static str], read_only: bool) -> Grant {
    let prefixes = prefixes.iter().map(|prefix| Bytes::from_static(prefix.as_bytes()));
    Grant { prefixes: prefixes.collect(), read_only }
}

/// Whether a client may ask for what a line says; if not, the error.
fn asked(check: Check, grant: &Grant, line: &str) -> Result<(), String> {
    let mut requests = Requests::default();
    requests.feed(format!("{line}\n").as_bytes());
    let request = requests.take().expect("a request").expect("a whole one");
    let command = Command::parse(&request, Moment(1_700_000_000_000));
    let command = command.unwrap_or_else(|error| panic!("{line}: {error:?}"));
    check(grant, &command).map_err(|error| match error {
        Reply::Error(why) => why.into_owned(),
        other => panic!("{line}: {other:?} is no error"),
    })
}

/// Where commands are not what their classes say.
fn faults(check: Check) -> Vec<String> {
    let (writes, reads) = (grant(&["own:", "b:"], false), grant(&["own:", "b:"], true));
    let mut faults = Vec::new();
    for (class, form) in FORMS {
        // Keys within the grant to who may write, and to who may not; keys of others to both.
        let expected = match class {
            Reads => [true, true, false],
            Changes => [true, false, false],
            OfAll => [false; 3],
            OfNone => [true; 3],
        };
        let lines = ["own:1", "b:", "else:1", "own"].map(|key| form.replace('K', key));
        let may = |grant, line: &String| asked(check, grant, line).is_ok();
        for own in &lines[..2] {
            if [may(&writes, own), may(&reads, own)] != expected[..2] {
                faults.push(own.clone());
            }
        }
        for other in &lines[2..] {
            if may(&writes, other) != expected[2] || may(&reads, other) != expected[2] {
                faults.push(other.clone());
            }
        }
    }
    faults
}

/// The commands of the table whose forms do not show what they do: there are none, or what the
/// table says of keys and of changes they do not say.
fn without_class(forms: &[(Class, &str)]) -> Vec<&'static str> {
    let lacks = |command: &&Description| {
        let of = forms.iter().filter(|(_, form)| form.split(' ').next() == Some(command.name));
        let classes: Vec<_> = of.map(|(class, _)| *class).collect();
        let (has_keys, changes) = (command.keys.first > 0, command.flags.contains(&Flag::Write));
        classes.is_empty()
            || has_keys && classes.contains(&OfNone)
            || changes != classes.contains(&Changes)
    };
    TABLE.iter().filter(lacks).map(|command| command.name).collect()
}

#[test]
fn each_command_of_the_table_has_a_class() {
    assert_eq!(without_class(FORMS), Vec::<&str>::new());
    for command in TABLE {
        let name = command.name;
        let others = FORMS.iter().copied().filter(|(_, form)| !form.starts_with(name));
        let others: Vec<_> = others.collect();
        assert!(without_class(&others).contains(&name), "nobody misses {name}");
    }
}

#[test]
fn a_command_is_refused_as_a_whole_by_the_class_that_it_has() {
    assert_eq!(faults(Grant::check), Vec::<String>::new());
}

#[test]
fn planted_bugs_of_the_check_are_found() {
    let first_key: Check = |grant, command| match command {
        Command::Many { each, .. } => grant.check_access(each[0].0, &each[0].1),
        command => grant.check(command),
    };
    assert!(faults(first_key).contains(&"mset own:1 v else:1 v".into()));
    let ignores_read_only: Check =
        |grant, command| Grant { read_only: false, ..grant.clone() }.check(command);
    assert!(faults(ignores_read_only).contains(&"meridian.once 1 set own:1 v".into()));
    let longer_too: Check = |grant, command| match command {
        Command::Watch(Watch::Prefix(prefix)) => {
            let within = grant.prefixes.iter().any(|of| of.starts_with(prefix));
            if within { Ok(()) } else { grant.check(command) }
        }
        command => grant.check(command),
    };
    assert_eq!(faults(longer_too), ["meridian.watch prefix own"]);
}

#[test]
fn without_prefixes_nothing_is_allowed() {
    for (_, form) in FORMS {
        assert!(asked(Grant::check, &Grant::default(), form).is_err(), "{form}");
    }
}

#[test]
fn an_error_names_the_key_and_what_to_do() {
    let tell = |line: &str| asked(Grant::check, &grant(&["own:", "b:"], false), line).unwrap_err();
    let why = "NOPERM no permission for key \"else:1\": the grant of this client has keys that \
               begin with \"own:\" or \"b:\"; an admin changes that with `meridian cluster allow \
               NAME --keys PREFIX`";
    assert_eq!(tell("mget own:1 else:1"), why);
    assert!(tell(&format!("get {}", "x".repeat(60_000))).len() < 400);
}
