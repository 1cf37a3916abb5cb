//! Abuse 4: whatever bytes come to whatever port, connections end and all else goes on.

use crate::harness::eventually;
use crate::intruder::{self, Line};
use crate::random::Random;
use crate::secured::{NODES, Port, Secured, framed};
use crate::tenancy::{Over, Tenancy, US, append, create, write};
use meridian_core::hello::ServiceId;
use meridian_core::{BlockId, ClientId, MessageId, Stamp, frame};
use meridian_fs::operation::{Changes, RenameMode, XattrMode};
use meridian_fs::types::{Data, Lock, LockFamily, LockOwner};
use meridian_fs::{CapStep, Place, Query, Update, Vector};
use meridian_host::api::{Request, RequestBody, SnapshotStep};
use meridian_keys::resp::answer::write_request;
use rustls::ClientConnection;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// What is drawn from; another seed is another test.
const SEED: u64 = 4;
/// Connections without a certificate, for each port of each node.
const STRANGERS: usize = 150;
/// Connections with one, for each node, and what is said on each.
const CLIENTS: usize = 80;
const FRAMES: usize = 12;
/// Numbers at which decoders may go wrong.
const EDGES: [u8; 6] = [0, 1, 0x7f, 0x80, 0xfe, 0xff];
/// How much more memory a node may need then, in KiB.
const GROWS_MAX_KIB: u64 = 256 << 10;
/// A connection that nobody has ended after that is stuck.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

#[test]
fn bytes_of_any_kind_end_their_connections_and_nothing_else() {
    let tenancy = Tenancy::start(&["--none"]);
    let all = &tenancy.all;
    let kept = all.room.path("mnt/us/other/kept");
    fs::write(&kept, vec![9; 300_000]).unwrap();
    let before = NODES.map(|node| resident_kib(all, node));
    let is_over = AtomicBool::new(false);
    let done = std::thread::scope(|scope| {
        let bystander = tenancy.bystander(scope, &is_over);
        let over = Over(&is_over);
        let mut random = Random::new(SEED);
        for node in NODES {
            strangers(all, node, &mut random);
            let heard = clients(&tenancy, node, &mut random);
            assert!(heard > CLIENTS, "much of it was understood: {heard} bytes were answered");
            askers_for_keys(all, node, &mut random);
        }
        drop(over);
        bystander.join().unwrap()
    });
    assert!(done > 0, "nobody was served meanwhile");
    all_is_as_before(&tenancy, &before);
    assert!(fs::read(&kept).unwrap() == vec![9; 300_000]);
    assert_eq!(fs::read_dir(kept.parent().unwrap()).unwrap().count(), 1);
    tenancy.end();
}

/// What a node's process takes of memory.
fn resident_kib(all: &Secured, node: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", all.servers[node].id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// No node has ended, panicked or grown, and each serves as before.
fn all_is_as_before(tenancy: &Tenancy, before: &[u64; 3]) {
    let all = &tenancy.all;
    for ((node, name), before) in NODES.into_iter().zip(["last-1", "last-2", "last-3"]).zip(before)
    {
        assert!(!all.log(node).contains("panicked"), "{}", all.log(node));
        let grown = resident_kib(all, node).saturating_sub(*before);
        assert!(grown < GROWS_MAX_KIB, "{node} has grown by {grown} KiB");
        // What a page of metrics says is from up to a second before.
        eventually(&format!("bad frames are counted at {node}"), || {
            all.metric(node, "meridian_bad_frames_total") >= CLIENTS as f64 / 4.0
        });
        let made = tenancy.update(u64::from(all.servers[node].id()), 1, create(tenancy.lab, name));
        tenancy.call(node).made(&made);
    }
    eventually("all is well", || all.status().status.success());
}

/// Says it, and waits until the node ends the connection; how much came.
fn until_its_end(mut stream: TcpStream, says: &[u8]) -> usize {
    stream.set_read_timeout(Some(ENDS_WITHIN)).unwrap();
    // The node may have ended it by then.
    let _ = stream.write_all(says).and_then(|()| stream.shutdown(Shutdown::Write));
    ended(&mut stream)
}

/// Reads to the end, which must come.
fn ended(from: &mut impl Read) -> usize {
    let (mut heard, mut piece) = (0, [0; 16 << 10]);
    loop {
        match from.read(&mut piece) {
            Ok(0) => return heard,
            Ok(len) => heard += len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                let waits = [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut];
                assert!(!waits.contains(&error.kind()), "the connection is stuck");
                return heard;
            }
        }
    }
}

/// Changes some bytes.
fn mutated(random: &mut Random, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len().max(1));
        match random.below(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = random.pick(&EDGES),
            2 => bytes.truncate(at),
            3 => {
                let some = random.below(40);
                bytes.splice(at..at, random.bytes(some));
            }
            4 => {
                let from = random.below(bytes.len().max(1));
                let piece = bytes[from..(from + 20).min(bytes.len())].to_vec();
                bytes.splice(at..at, piece);
            }
            _ => {
                let upto = (at + random.below(20)).min(bytes.len());
                bytes.drain(at.min(upto)..upto);
            }
        }
    }
    bytes
}

/// What a client says first to whoever speaks TLS.
fn client_hello() -> Vec<u8> {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(provider));
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(rustls::RootCertStore::empty());
    let name = "localhost".try_into().unwrap();
    let mut connection =
        ClientConnection::new(Arc::new(config.with_no_client_auth()), name).unwrap();
    let mut bytes = Vec::new();
    connection.write_tls(&mut bytes).unwrap();
    bytes
}

/// Noise, and what is almost right, at all ports.
fn strangers(all: &Secured, node: &str, random: &mut Random) {
    let words: [&[&str]; 2] = [&["PING"], &["SET", "key", "value"]];
    let mut plain = all.hello(ServiceId::MAIN);
    words.iter().for_each(|words| {
        write_request(words.iter().map(|word| word.as_bytes()), &mut plain);
    });
    let get = b"GET /metrics?of=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello".to_vec();
    let right = [client_hello(), plain, get];
    for port in [Port::Node, Port::Keys, Port::Metrics] {
        for _ in 0..STRANGERS {
            let says = match random.below(3) {
                0 => {
                    let len = random.below(4096);
                    random.bytes(len)
                }
                _ => {
                    let at = random.below(right.len());
                    mutated(random, &right[at])
                }
            };
            until_its_end(TcpStream::connect(all.port(port, node)).unwrap(), &says);
        }
    }
}

/// Says it to who is shown the certificate, and waits for the end; how much came.
fn says_as(at: SocketAddr, all: &Secured, certificate: &str, says: &[u8]) -> usize {
    let mut line: Line = intruder::connect(at, Some(&all.issued(certificate))).unwrap();
    line.sock.set_read_timeout(Some(ENDS_WITHIN)).unwrap();
    // The node may have ended it by then.
    let _ = line.write_all(says).and_then(|()| {
        line.conn.send_close_notify();
        line.flush().and_then(|()| line.sock.shutdown(Shutdown::Write))
    });
    ended(&mut line)
}

/// Requests of the tenant, of which some bytes are changed; how much was answered.
fn clients(tenancy: &Tenancy, node: &'static str, random: &mut Random) -> usize {
    let all = &tenancy.all;
    let mut program = tenancy.call(node);
    let file = program.made(&tenancy.update(random.next() % 1000, 1, create(tenancy.lab, node)));
    let mut heard = 0;
    for _ in 0..CLIENTS {
        let mut says = all.hello(ServiceId::MAIN);
        for number in 0..FRAMES {
            let session = 2000 + random.next() % (1 << 20);
            let bodies = corpus(tenancy, session, file);
            let body = &bodies[random.below(bodies.len())];
            let right = framed(&Request { id: number as u64, body: body.clone() });
            match random.below(10) {
                0 => says.extend(mutated(random, &right)),
                1 => says.extend(&right),
                _ => says.extend(reframed(&mutated(random, &right[frame::HEADER_LEN..]))),
            }
        }
        heard += says_as(all.port(Port::Node, node), all, "lab", &says);
    }
    heard
}

/// A frame whose length and checksum are right.
fn reframed(body: &[u8]) -> Vec<u8> {
    let mut bytes = bytes::BytesMut::new();
    frame::encode(&mut bytes, |into| into.extend_from_slice(body)).unwrap();
    bytes.to_vec()
}

/// Something of each kind that a client may ask.
fn corpus(tenancy: &Tenancy, session: u64, file: Place) -> Vec<RequestBody> {
    let (lab, partition, client) = (tenancy.lab, US, ClientId(session));
    let block = BlockId::named(US, 1 << 40, session);
    let owner = LockOwner { client, owner: 1 };
    let (family, end) = (LockFamily::Posix, u64::MAX);
    let lock = Lock { owner, family, start: 0, end, exclusive: true, pid: 1 };
    let changes = Changes { mode: Some(0o640), size: Some(7), ..Changes::default() };
    let updates = [
        create(lab, "another"),
        append(file, b"some text"),
        write(file, 100, Data::Block { block, start: 0 }),
        Update::Link { target: file, parent: lab, name: "link".into() },
        Update::Unlink { parent: lab, name: "link".into(), child: file, keep_for: Some(client) },
        rename(lab, file),
        Update::SetAttributes { inode: file, changes },
        Update::Extend { inode: file, size: 1 << 20 },
        Update::PunchHole { inode: file, offset: 3, len: 5 },
        Update::SetXattr {
            inode: file,
            name: "user.a".into(),
            value: "value".into(),
            mode: XattrMode::Any,
            drops_set_gid: false,
        },
        Update::Lock { inode: file, lock, ticket: None },
        Update::Unlock { inode: file, owner, family, start: 0, end },
        Update::Hold { client, partition, inodes: vec![file.ino] },
        Update::Forget { client, partition, inodes: vec![file.ino] },
        Update::Renew { client, partition },
        Update::Caps { client, partition, step: CapStep::Grant(vec![file.ino]) },
    ];
    let queries = [
        Query::Lookup { parent: lab, name: "us-1".into() },
        Query::Attributes { inode: file },
        Query::Directory { inode: lab, after: "".into(), limit: 100 },
        Query::Contents { inode: file, offset: 0, len: 1 << 20 },
        Query::Xattrs { inode: file },
        Query::LockInTheWay { inode: file, lock },
        Query::Totals { partition },
        Query::Waits { partition },
    ];
    let vector = Vector::default();
    let of = MessageId { client, sequence: 1 };
    let (group, name, at) = (US, session, Stamp(1));
    let mut all = vec![
        RequestBody::PutBlock { block, data: vec![1; 100].into() },
        RequestBody::GetBlock { block, offset: 0, len: 100 },
        RequestBody::Discard { blocks: vec![block] },
        RequestBody::ListBlocks { after: Some(block) },
        RequestBody::Status,
        RequestBody::Scrub,
        RequestBody::Steps { of },
        RequestBody::Recalls { group, by: client },
        RequestBody::Snapshot { group, name, step: SnapshotStep::Keep },
        RequestBody::Snapshot { group, name, step: SnapshotStep::Look { at, queries: Vec::new() } },
    ];
    for update in updates {
        let body = tenancy.update(session, 1, update);
        if let RequestBody::Update { group, start } = body.clone() {
            let queries = queries.to_vec();
            all.push(RequestBody::UpdateAlong { group, start, queries });
        }
        all.push(body);
    }
    let read = |query| RequestBody::Read { vector: vector.clone(), by: client, query };
    let along = |query| RequestBody::ReadAlong { vector: vector.clone(), by: client, query };
    all.extend(queries.iter().cloned().map(along));
    all.extend(queries.into_iter().map(read));
    all
}

fn rename(lab: Place, moved: Place) -> Update {
    Update::Rename {
        from: lab,
        from_name: "another".into(),
        to: lab,
        to_name: "renamed".into(),
        moved,
        replaced: None,
        mode: RenameMode::Replace,
        ancestors: vec![lab],
        keep_for: None,
        whiteout: None,
    }
}

/// Requests for keys, of which some bytes are changed.
fn askers_for_keys(all: &Secured, node: &str, random: &mut Random) {
    let right: [&[&str]; 8] = [
        &["SET", "fuzzed", "value", "EX", "100"],
        &["GET", "fuzzed"],
        &["MERIDIAN.CLIENT", "12345678901234567890"],
        &["MERIDIAN.ONCE", "1", "INCR", "fuzzed-count"],
        &["MERIDIAN.CAS", "fuzzed", "value", "other"],
        &["SCAN", "0", "MATCH", "f*", "COUNT", "10"],
        &["HELLO", "3"],
        &["MGET", "fuzzed", "fuzzed-1", "fuzzed-2"],
    ];
    for _ in 0..CLIENTS {
        let mut says = Vec::new();
        for _ in 0..FRAMES {
            let mut request = Vec::new();
            let words = random.pick(&right);
            write_request(words.iter().map(|word| word.as_bytes()), &mut request);
            says.extend(if random.below(4) == 0 { request } else { mutated(random, &request) });
        }
        says_as(all.port(Port::Keys, node), all, "client", &says);
    }
}
