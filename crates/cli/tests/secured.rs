//! A cluster that speaks TLS, from `meridian init` on: who is let in, and who is not.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[path = "harness/secured.rs"]
mod cluster;
#[allow(dead_code)] // Other tests use the rest of it.
mod harness;
#[path = "../../transport/tests/intruder/mod.rs"]
mod intruder;

use bytes::BytesMut;
use cluster::{NODES, Port, Secured, ask, ask_plainly, framed, well};
use harness::{Ended, Running, eventually, finish, ports_in_a_row};
use meridian_core::hello::{Answer, Caller, Hello, Identity, Lane, ServiceId};
use meridian_core::principal::{Principal, Role};
use meridian_core::standing::Standing;
use meridian_core::{NodeId, frame};
use meridian_transport::Authority;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// A hello of a node that claims to be that one, in a frame.
fn claim(cluster: &str, lane: Lane, (from, to): (u16, u16)) -> Vec<u8> {
    let identity = Identity {
        from: NodeId(from),
        to: NodeId(to),
        durable: true,
        standing: Standing::default(),
        known: None,
    };
    framed(&Hello::new(cluster, Caller::Member(identity)).to_lane(lane))
}

/// The first that a node has answered.
fn answer(heard: Vec<u8>) -> Answer<NodeId> {
    let mut heard = BytesMut::from(&heard[..]);
    postcard::from_bytes(&frame::decode(&mut heard).unwrap().expect("an answer")).unwrap()
}

#[test]
fn a_cluster_is_secured_from_its_first_day_on() {
    let mut all = Secured::start();
    keys_are_for_their_owner(&all);
    files_and_keys_are_there_for_clients(&all);
    strangers_are_refused(&all);
    clients_with_grants_have_their_keys_and_no_others(&all);
    nobody_speaks_for_a_node_but_itself(&all);
    only_an_admin_changes_the_cluster(&all);
    who_watches_shows_a_certificate(&all);
    a_mount_is_watched(&all);
    a_certificate_is_renewed_while_all_runs(&all);
    a_node_comes_later(&mut all);
    eventually("all is well at the end", || all.status().status.success());
    all.stop();
}

fn keys_are_for_their_owner(all: &Secured) {
    let dir = all.room.path("tls");
    assert_eq!(mode(&dir), 0o700);
    for entry in fs::read_dir(&dir).unwrap() {
        assert_eq!(mode(&entry.unwrap().path()), 0o600);
    }
    let brought = fs::read_dir(all.room.path("us-1.machine/tls")).unwrap().count();
    assert_eq!(brought, 3, "ca.pem, us-1.pem and us-1.key, and not the authority's key");
    let open = dir.join("client.key");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    let ended = all.status();
    assert!(!ended.status.success() && ended.stderr.contains("chmod 600"), "{ended:?}");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o600)).unwrap();
    fs::copy(all.room.path("cluster.json"), all.room.path("run/cluster.json")).unwrap();
    let ended = all.room.run(&["status", "--cluster", "run/cluster.json"]);
    assert!(!ended.status.success() && ended.stderr.contains("no certificate"), "{ended:?}");
}

fn files_and_keys_are_there_for_clients(all: &Secured) {
    let args = ["mount", "--cluster", "cluster.json", "--region", "us", "mnt"];
    let mount = Running::start(all.room.meridian(&args), all.room.mount());
    let path = all.room.path("mnt/us/file");
    let bytes: Vec<u8> = (0..9 << 20).map(|at: u32| (at / 251) as u8).collect();
    fs::write(&path, &bytes).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    assert!(fs::read(&path).unwrap() == bytes);
    let placed = well(&all.room, &["fs", "where", "mnt/us/file"]);
    assert!(placed.contains("placed    us"), "{placed}");
    mount.stop();
    let at = all.port(Port::Keys, "us-1").to_string();
    let kv = |words: &[&str]| {
        all.room.run(&[&["kv"], words, &["--at", &at, "--cluster", "cluster.json"]].concat())
    };
    eventually("a key is set", || kv(&["set", "color", "blue"]).status.success());
    assert_eq!(kv(&["get", "color"]).stdout.trim(), "blue");
    let mut plain = TcpStream::connect(all.port(Port::Keys, "us-1")).unwrap();
    plain.write_all(b"*1\r\n$4\r\nPING\r\n").unwrap();
    let mut heard = Vec::new();
    let _ = plain.read_to_end(&mut heard); // A reset is an end, too.
    assert!(!heard.windows(4).any(|four| four == b"PONG"), "{heard:?}");
}

/// A connection to the keys of a node that stays.
struct Talk(BufReader<intruder::Line>);

impl Talk {
    /// With the certificate of that name.
    fn new(all: &Secured, name: &str) -> Talk {
        let line = intruder::connect(all.port(Port::Keys, "us-1"), Some(&all.issued(name)));
        Talk(BufReader::new(line.unwrap()))
    }

    /// The next line; an empty one at the end.
    fn hears(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        Ok(line.trim_end().into())
    }

    /// The first line of the answer to a line.
    fn ask(&mut self, line: &str) -> io::Result<String> {
        self.0.get_mut().write_all(format!("{line}\r\n").as_bytes())?;
        self.hears()
    }

    /// The same of a connection that is open: an answer of one line.
    fn says(&mut self, line: &str) -> String {
        self.ask(line).unwrap()
    }

    fn refuses(&mut self, line: &str) -> bool {
        self.says(line).starts_with("-NOPERM ")
    }
}

/// Decision 93. Abuse 17.
fn clients_with_grants_have_their_keys_and_no_others(all: &Secured) {
    for name in ["tenant", "reader"] {
        well(&all.room, &["certify", name, "--role", "client"]);
    }
    all.changed(&["allow", "tenant", "--keys", "t:", "--keys", "shared:"]);
    all.changed(&["allow", "reader", "--keys", "t:", "--read-only"]);
    let [mut trusted, mut tenant, mut reader] =
        ["client", "tenant", "reader"].map(|name| Talk::new(all, name));
    eventually("keys are served", || trusted.says("SET other 1") == "+OK");
    for client in [&mut tenant, &mut reader] {
        eventually("the grant counts", || client.refuses("STRLEN other"));
    }
    assert_eq!(tenant.says("MSET t:1 v shared:1 v"), "+OK");
    let refused = [
        "SET other 22",
        "MSET t:1 long other 22",
        "DEL t:1 other",
        "MGET t:1 other",
        "MERIDIAN.ONCE 1 SET other 22",
        "MERIDIAN.WATCH PREFIX t",
        "MERIDIAN.WATCH KEY other",
        "DBSIZE",
        "INFO",
    ];
    for line in refused {
        assert!(tenant.refuses(line), "{line}");
    }
    let why = tenant.says("STRLEN other");
    assert!(why.contains("\"other\"") && why.contains("allow NAME --keys PREFIX"), "{why}");
    for key in ["other", "t:1", "shared:1"] {
        assert_eq!(trusted.says(&format!("STRLEN {key}")), ":1", "{key}: nothing was done");
    }
    assert_eq!(tenant.says("PING"), "+PONG");
    let at = all.port(Port::Keys, "us-1").to_string();
    let shown = ["--cluster", "cluster.json", "--tls-certificate", "tls/tenant.pem"];
    let keys = well(&all.room, &[&["kv", "scan", "--at", &at], &shown[..]].concat());
    let mut keys: Vec<_> = keys.lines().collect();
    keys.sort_unstable();
    assert_eq!(keys, ["shared:1", "t:1"]);
    let ended = all.room.run(&[&["kv", "watch", "other", "--at", &at], &shown[..]].concat());
    assert!(!ended.status.success() && ended.stderr.contains("NOPERM"), "{ended:?}");
    assert_eq!(reader.says("STRLEN t:1"), ":1");
    assert!(reader.refuses("SET t:1 long") && reader.refuses("STRLEN shared:1"));
    let listed = well(&all.room, &["cluster", "grants", "--cluster", "cluster.json"]);
    assert!(listed.contains("\"shared:\" \"t:\""), "{listed}");
    grants_change_while_connections_are_open(all, (&mut tenant, &mut reader));
}

fn grants_change_while_connections_are_open(
    all: &Secured,
    (tenant, reader): (&mut Talk, &mut Talk),
) {
    let mut watcher = Talk::new(all, "tenant");
    assert_eq!(watcher.says("MERIDIAN.WATCH KEY t:none"), "+OK");
    all.changed(&["allow", "tenant", "--keys", "shared:"]);
    eventually("the grant has become less", || tenant.refuses("STRLEN t:1"));
    assert_eq!(tenant.says("STRLEN shared:1"), ":1");
    let mut told = std::iter::repeat_with(|| watcher.hears().unwrap()).take(20);
    let told = told.find(|line| line.starts_with("-NOPERM"));
    assert!(told.as_ref().is_some_and(|why| why.contains("\"t:none\"")), "{told:?}");
    assert!(watcher.hears().map_or(true, |line| line.is_empty()), "it is told no more");
    all.changed(&["allow", "reader", "--keys", "t:"]);
    eventually("who only read may write", || reader.says("SET t:1 long") == "+OK");
    all.changed(&["allow", "tenant", "--read-only"]);
    eventually("without keys there are no connections", || {
        tenant.ask("PING").map_or(true, |answer| answer.is_empty())
    });
    for name in ["tenant", "reader"] {
        all.changed(&["allow", name, "--all"]);
    }
    let mut free = Talk::new(all, "tenant");
    eventually("all keys are there again", || free.says("STRLEN other") == ":1");
}

/// Abuse 1.
fn strangers_are_refused(all: &Secured) {
    let (cluster, authority) = all.authority();
    let issue = |cluster: &str, until| {
        let (cluster, name) = (cluster.into(), "mallory".into());
        authority.issue_for(&Principal { cluster, role: Role::Client, name }, until).unwrap()
    };
    let (other, itself) = Authority::new(&cluster).unwrap();
    let (past, future) = (SystemTime::now() - DAY, SystemTime::now() + DAY);
    let shown = [
        None,
        Some(issue(&cluster, past)),
        Some(issue("8", future)),
        Some(other.issue(Role::Node, "us-2", DAY).unwrap()),
        Some(itself),
    ];
    let hello = all.hello(ServiceId::MAIN);
    for port in [Port::Node, Port::Keys, Port::Metrics] {
        let before = all.refused("us-1");
        for issued in &shown {
            let heard = intruder::call(all.port(port, "us-1"), issued.as_ref(), &hello);
            assert!(heard.is_err(), "{heard:?}");
        }
        eventually("each is counted", || all.refused("us-1") - before >= shown.len() as f64);
    }
    let mut plain = TcpStream::connect(all.port(Port::Node, "us-1")).unwrap();
    plain.write_all(&hello).unwrap();
    let mut heard = Vec::new();
    let _ = plain.read_to_end(&mut heard); // A reset is an end, too.
    assert!(heard.len() < 16, "an alert and no answer: {heard:?}");
    let lines = all.log("us-1").lines().filter(|line| line.contains("not authorized")).count();
    assert!((1..=3).contains(&lines), "one for each port, however many came: {lines}");
}

/// Abuse 2.
fn nobody_speaks_for_a_node_but_itself(all: &Secured) {
    let (cluster, _) = all.authority();
    let calls = |shown: &str, lane: Lane, from: u16| {
        let claim = claim(&cluster, lane, (from, 2));
        answer(
            intruder::call(all.port(Port::Node, "us-3"), Some(&all.issued(shown)), &claim).unwrap(),
        )
    };
    // The thread of the keys' only shard has connections of its own.
    for lane in [Lane::MAIN, Lane(1 << 8)] {
        for (shown, who) in
            [("client", "client client"), ("admin", "admin admin"), ("us-1", "node us-1")]
        {
            let before = all.refused("us-3");
            let answer = calls(shown, lane, 1);
            let why = format!("not authorized: {who} cannot speak for us-2");
            assert_eq!(answer, Answer::Refused(why), "{shown} at {lane:?}");
            eventually("it is counted", || all.refused("us-3") > before);
        }
    }
    eventually("the node has its connections again", || all.status().status.success());
}

fn only_an_admin_changes_the_cluster(all: &Secured) {
    let remove = |certificate: &str| {
        let shown = format!("tls/{certificate}.pem");
        let args = ["cluster", "keep-node", "us-3", "--cluster", "cluster.json"];
        all.room.run(&[&args[..], &["--tls-certificate", &shown]].concat())
    };
    let ended = remove("client");
    let why = "client client may look at the cluster and not change it";
    assert!(!ended.status.success() && ended.stderr.contains(why), "{ended:?}");
    let ended = remove("admin");
    assert!(!ended.stderr.contains("not authorized"), "{ended:?}");
    well(&all.room, &["cluster", "show", "--cluster", "cluster.json"]);
}

/// What curl says of a port for who watches, if it insists on who is there.
fn curl(all: &Secured, (at, host): (SocketAddr, &str), shown: &str, path: &str) -> Ended {
    let mut curl = Command::new("curl");
    let tls = |file: String| all.room.path("tls").join(file);
    curl.arg("-sSf").arg("--cacert").arg(tls("ca.pem".into()));
    curl.arg("--cert").arg(tls(format!("{shown}.pem")));
    curl.arg("--key").arg(tls(format!("{shown}.key")));
    curl.arg("--connect-to").arg(format!("::{at}")).arg(format!("https://{host}{path}"));
    finish(curl)
}

/// Decision 109. Abuse 16.
fn who_watches_shows_a_certificate(all: &Secured) {
    well(&all.room, &["certify", "visitor", "--role", "watcher"]);
    let at = |node: &str| all.port(Port::Metrics, node);
    let shows = |name: &str, path: &str| ask(at("us-1"), Some(&all.issued(name)), path);
    for name in ["watcher", "visitor", "admin", "us-2"] {
        for path in ["/metrics", "/healthz", "/status.json", "/"] {
            let heard = shows(name, path).unwrap();
            assert!(heard.starts_with("HTTP/1.1 200"), "{name} {path}: {heard}");
        }
    }
    let before = all.refused("us-1");
    let heard = shows("client", "/status.json").unwrap();
    assert!(heard.starts_with("HTTP/1.1 403") && heard.contains("no watcher"), "{heard}");
    let heard = ask_plainly(at("us-1"), "/metrics").unwrap();
    assert!(heard.starts_with("HTTP/1.1 400") && heard.contains("HTTPS"), "{heard}");
    // It has no business elsewhere.
    for port in [Port::Node, Port::Keys] {
        let says = all.hello(ServiceId::MAIN);
        let heard = intruder::call(all.port(port, "us-1"), Some(&all.issued("visitor")), &says);
        assert!(heard.as_ref().map_or(true, Vec::is_empty), "{heard:?}");
    }
    eventually("each is counted", || all.refused("us-1") - before >= 4.0);
    let ended = all.cluster(&["show", "--tls-certificate", "tls/watcher.pem"]);
    assert!(!ended.status.success() && ended.stderr.contains("of a watcher"), "{ended:?}");
    for host in ["us-2", "localhost"] {
        let ended = curl(all, (at("us-2"), host), "watcher", "/healthz");
        assert!(ended.status.success() && ended.stdout.starts_with("serves: "), "{ended:?}");
    }
    let ended = curl(all, (at("us-2"), "us-1"), "watcher", "/healthz");
    assert!(!ended.status.success(), "us-2 is not us-1: {ended:?}");
    all.changed(&["revoke", "watcher/visitor"]);
    for node in NODES {
        eventually("who is revoked is shut out", || {
            let heard = ask(at(node), Some(&all.issued("visitor")), "/metrics");
            heard.map_or(true, |heard| heard.is_empty())
        });
        assert!(all.metric(node, "meridian_up") > 0.0);
    }
}

/// A mount shows a client's certificate to who asks how it is, if that is good for it.
fn a_mount_is_watched(all: &Secured) {
    let at = SocketAddr::from(([127, 0, 0, 1], ports_in_a_row(1)));
    let address = at.to_string();
    let mount = |name: &str| {
        let certificate = format!("tls/{name}.pem");
        let args = ["mount", "--cluster", "cluster.json", "--region", "us", "watched"];
        let watched = ["--metrics-address", &address, "--tls-certificate", &certificate];
        all.room.meridian(&[&args[..], &watched[..]].concat())
    };
    let bad = [["us-1", "--role", "node"], ["boss", "--role", "admin"]];
    for args in bad.into_iter().chain([["localhost", "--role", "client"]]) {
        let ended = all.room.run(&[&["certify"], &args[..], &["--watched"]].concat());
        assert!(
            !ended.status.success() && ended.stderr.contains("clients that mount"),
            "{ended:?}"
        );
    }
    let ended = finish(mount("client"));
    assert!(!ended.status.success() && ended.stderr.contains("--watched"), "{ended:?}");
    for name in ["alice", "bob"] {
        well(&all.room, &["certify", name, "--role", "client", "--watched"]);
    }
    let mount = Running::start(mount("alice"), all.room.path("watched"));
    for name in ["alice", "watcher"] {
        eventually("it says that a node serves", || {
            curl(all, (at, "alice"), name, "/healthz").stdout.contains(" serves: ")
        });
    }
    let heard = ask(at, Some(&all.issued("bob")), "/metrics").unwrap();
    assert!(heard.starts_with("HTTP/1.1 403"), "another client: {heard}");
    assert!(ask(at, None, "/metrics").is_err());
    mount.stop();
}

/// A certificate is told of before its end, until it is renewed.
fn a_certificate_is_renewed_while_all_runs(all: &Secured) {
    let args = ["certify", "us-1", "--role", "node", "--out", "us-1.machine/tls"];
    well(&all.room, &[&args[..], &["--days", "13"]].concat());
    eventually("its end is told", || {
        let ended = all.status();
        let said = "Something is wrong, and all can be read and written: us-1 has a certificate \
                    that ends on 20";
        ended.status.code() == Some(1) && ended.stdout.starts_with(said)
    });
    let ends = || all.metric("us-1", "meridian_certificate_ends_timestamp_seconds{of=\"own\"}");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    let day = DAY.as_secs_f64();
    eventually("its end is a value", || ends() > now + 12.0 * day && ends() < now + 13.1 * day);
    let before = all.log("us-1").matches("a renewed certificate is used").count();
    well(&all.room, &args);
    let ended = all.room.run(&["certify", "us-1", "--role", "client"]);
    assert!(!ended.status.success() && ended.stderr.contains("us-1 is a node"), "{ended:?}");
    eventually("new connections are shown the new one", || {
        all.status().status.success()
            && all.log("us-1").matches("a renewed certificate is used").count() > before
    });
    let renewed = fs::read(all.room.path("us-1.machine/tls/us-1.pem")).unwrap();
    let renewed = CertificateDer::from_pem_slice(&renewed).unwrap();
    let at = all.port(Port::Metrics, "us-1");
    let mut line = intruder::connect(at, Some(&all.issued("watcher"))).unwrap();
    line.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").unwrap();
    let mut heard = String::new();
    line.read_to_string(&mut heard).unwrap();
    assert!(heard.starts_with("HTTP/1.1 200"), "{heard}");
    assert_eq!(line.conn.peer_certificates().unwrap()[0], renewed, "who watches is shown it, too");
}

fn a_node_comes_later(all: &mut Secured) {
    let address = all.port(Port::Node, "us-4").to_string();
    let args = ["cluster", "add-node", "--region", "us", "--address", &address];
    let args = [&args[..], &["--cluster", "cluster.json"]].concat();
    let add = all.room.meridian(&args);
    let added = std::thread::spawn(move || finish(add));
    eventually("the cluster file names the new node", || {
        fs::read_to_string(all.room.path("cluster.json")).unwrap().contains("us-4")
            && all.room.path("us-4/node.json").exists()
    });
    well(&all.room, &["certify", "us-4", "--role", "node"]);
    all.serve_with("us-4", "us-4", &["--insecure-metrics"]);
    let ended = added.join().unwrap();
    assert!(ended.status.success(), "{ended:?}\n{}", all.log("us-4"));
    assert!(ended.stderr.contains("meridian certify us-4"), "{ended:?}");
    eventually("in plain text it tells anybody, if that was said", || {
        ask_plainly(all.port(Port::Metrics, "us-4"), "/healthz").unwrap().contains("serves: ")
    });
}
