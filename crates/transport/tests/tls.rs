//! Who may connect with whom, and what goes over a connection.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

mod intruder;

use bytes::Bytes;
use meridian_core::principal::{Principal, Role, Speaker};
use meridian_transport::{
    Authority, Credentials, CredentialsError, Ends, Files, Issued, Outbound, Refusal, Security,
};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

const DAY: Duration = Duration::from_secs(24 * 3600);
const LIMIT: Duration = Duration::from_secs(20);

/// A folder with the files of one principal.
struct Kept {
    dir: tempfile::TempDir,
}

impl Kept {
    fn new(authority: &str, issued: &Issued) -> Kept {
        let kept = Kept { dir: tempfile::tempdir().unwrap() };
        fs::write(kept.dir.path().join("ca.pem"), authority).unwrap();
        kept.put(issued);
        kept
    }

    /// Replaces the certificate and its key.
    fn put(&self, issued: &Issued) {
        let key = self.dir.path().join("own.key");
        fs::write(self.dir.path().join("new.key"), &issued.key).unwrap();
        chmod(&self.dir.path().join("new.key"), 0o600);
        fs::rename(self.dir.path().join("new.key"), key).unwrap();
        fs::write(self.dir.path().join("new.pem"), &issued.certificate).unwrap();
        fs::rename(self.dir.path().join("new.pem"), self.dir.path().join("own.pem")).unwrap();
    }

    fn files(&self) -> Files {
        let path = |name: &str| self.dir.path().join(name);
        Files { authority: path("ca.pem"), certificate: path("own.pem"), key: path("own.key") }
    }

    fn security(&self) -> Security {
        Security::tls(Credentials::open(self.files(), "7").unwrap())
    }
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

struct Setup {
    authority: Authority,
    issued: Issued,
}

impl Setup {
    fn new(cluster: &str) -> Setup {
        let (authority, issued) = Authority::new(cluster).unwrap();
        Setup { authority, issued }
    }

    fn kept(&self, role: Role, name: &str) -> Kept {
        Kept::new(&self.issued.certificate, &self.authority.issue(role, name, DAY).unwrap())
    }
}

/// What both ends make of a connection: at the server who has called, at the client whether it has
/// heard a byte.
async fn meet(
    server: &Security,
    client: &Security,
) -> (Result<Speaker, Refusal>, io::Result<Speaker>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let taken = async {
        let (tcp, _) = listener.accept().await.unwrap();
        let stream = server.accept(tcp).await?;
        let speaker = stream.speaker().clone();
        stream.into_split().1.write_all(b"!").await?;
        Ok(speaker)
    };
    let called = async {
        let stream = client.connect(&address).await?;
        let speaker = stream.speaker().clone();
        // The client of TLS 1.3 learns with the first byte whether it was accepted.
        let (mut reader, _writer) = stream.into_split();
        reader.read_exact(&mut [0; 1]).await?;
        Ok(speaker)
    };
    timeout(LIMIT, async { tokio::join!(taken, called) }).await.unwrap()
}

/// A program of somebody else calls and shows this; what the server makes of it. The program hears
/// no more than an alert, or that the connection is gone.
async fn intrude(server: &Security, shown: Option<&Issued>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shown = shown.cloned();
    let call = move || intruder::call(address, shown.as_ref(), b"hello").unwrap_err();
    let program = tokio::task::spawn_blocking(call);
    let (tcp, _) = listener.accept().await.unwrap();
    let refused = timeout(LIMIT, server.accept(tcp)).await.unwrap().unwrap_err();
    program.await.unwrap();
    refused.to_string()
}

#[tokio::test]
async fn until_when_certificates_count_is_told_by_both_ends() {
    let setup = Setup::new("7");
    let own: Principal = "meridian://7/node/us-1".parse().unwrap();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let until = now + 7 * DAY.as_secs();
    let end = SystemTime::UNIX_EPOCH + Duration::from_secs(until);
    let issued = setup.authority.issue_for(&own, end).unwrap();
    let server = Kept::new(&setup.issued.certificate, &issued);
    let ends = server.security().ends();
    assert_eq!(ends.own, Some(until));
    let authority = ends.authority.unwrap();
    assert!(authority > now + 7000 * DAY.as_secs() && authority < now + 7400 * DAY.as_secs());

    let client = setup.kept(Role::Client, "ann").security();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let security = server.security();
    let taken = async { security.accept(listener.accept().await.unwrap().0).await };
    let both = async { tokio::join!(taken, client.connect(&address)) };
    let (taken, called) = timeout(LIMIT, both).await.unwrap();
    assert_eq!(called.unwrap().speaks_until(), Some(until));
    assert_eq!(taken.unwrap().speaks_until(), client.ends().own);
    assert_eq!(Security::default().ends(), Ends::default(), "nobody shows anything");
}

fn named(uri: &str) -> Speaker {
    Speaker::Known(Arc::new(uri.parse().unwrap()))
}

#[tokio::test]
async fn both_ends_know_who_the_other_is_before_anything_is_said() {
    let setup = Setup::new("7");
    let (node, client) = (setup.kept(Role::Node, "us-1"), setup.kept(Role::Client, "alice"));
    let (caller, called) = meet(&node.security(), &client.security()).await;
    assert_eq!(caller.unwrap(), named("meridian://7/client/alice"));
    assert_eq!(called.unwrap(), named("meridian://7/node/us-1"));
}

/// Abuse 1: none, expired, self-signed, of another authority, of another cluster.
#[tokio::test]
async fn who_has_no_certificate_of_the_cluster_is_refused_before_it_says_anything() {
    let (setup, other) = (Setup::new("7"), Setup::new("7"));
    let node = setup.kept(Role::Node, "us-1").security();
    let refused = async |shown: Option<&Issued>, why: &str| {
        let told = intrude(&node, shown).await;
        assert!(told.contains("not authorized") && told.contains(why), "{why}: {told}");
    };
    let issue = |cluster: &str, until| {
        let (cluster, name) = (cluster.into(), "alice".into());
        let principal = Principal { cluster, role: Role::Client, name };
        setup.authority.issue_for(&principal, until).unwrap()
    };
    let (past, future) = (SystemTime::now() - DAY, SystemTime::now() + DAY);
    refused(None, "no certificate").await;
    refused(Some(&issue("7", past)), "expired").await;
    refused(Some(&issue("8", future)), "not of cluster 7").await;
    let alone = other.authority.issue(Role::Client, "alice", DAY).unwrap();
    refused(Some(&alone), "another authority").await;
    refused(Some(&other.issued), "CaUsedAsEndEntity").await; // It has signed itself.
    let (caller, _) = meet(&node, &setup.kept(Role::Client, "alice").security()).await;
    assert!(caller.is_ok(), "others go on");
}

#[tokio::test]
async fn who_speaks_no_tls_is_refused() {
    let node = Setup::new("7").kept(Role::Node, "us-1").security();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut plain = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    plain.write_all(b"a hello of plain text, which is long enough").await.unwrap();
    let (tcp, _) = listener.accept().await.unwrap();
    let refused = timeout(LIMIT, node.accept(tcp)).await.unwrap().unwrap_err();
    assert!(refused.to_string().contains("does not speak TLS"), "{refused}");
}

/// Whom a client would trust with its data is a node of its cluster, whatever else listens there.
#[tokio::test]
async fn a_caller_speaks_with_nodes_of_its_cluster_only() {
    let (setup, other) = (Setup::new("7"), Setup::new("7"));
    let client = setup.kept(Role::Client, "alice").security();
    let foreign = other.kept(Role::Node, "us-1").security();
    let (_, called) = meet(&foreign, &client).await;
    let error = called.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
    let listens = setup.kept(Role::Client, "mallory").security();
    let (caller, called) = meet(&listens, &client).await;
    assert!(caller.unwrap_err().to_string().contains("no certificate of a node"));
    assert!(called.is_err());
}

/// All bytes arrive in order, however little the socket takes at once.
#[tokio::test]
async fn a_write_that_would_block_is_repeated_and_nothing_is_lost() {
    const LEN: usize = 24 << 20;
    let setup = Setup::new("7");
    let (node, client) = (setup.kept(Role::Node, "us-1"), setup.kept(Role::Client, "alice"));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let bytes: Vec<u8> = (0..LEN).map(|at| (at * 31 + at / 257) as u8).collect();
    let write = async {
        let (tcp, _) = listener.accept().await.unwrap();
        let (_reader, writer) = node.security().accept(tcp).await.unwrap().into_split();
        let ((mut rest, pieces), mut blocked) = (bytes.split_at(LEN / 2), 0);
        let (mut out, mut pieces) = (Outbound::new(), pieces.chunks(LEN / 99));
        while !rest.is_empty() {
            match writer.try_write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    blocked += 1;
                    writer.writable().await.unwrap();
                }
                Err(error) => panic!("{error}"),
            }
        }
        // Some in pieces, to which others come while it blocks.
        while pieces.len() > 0 || !out.is_empty() {
            if let Some(piece) = pieces.next() {
                out.write_to(|last| last.extend_from_slice(&piece[..9]));
                out.push(Bytes::copy_from_slice(&piece[9..]));
            }
            match out.write(&writer) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    blocked += 1;
                    writer.writable().await.unwrap();
                }
                Err(error) => panic!("{error}"),
            }
        }
        blocked
    };
    let read = async {
        let stream = client.security().connect(&address).await.unwrap();
        let (mut reader, _writer) = stream.into_split();
        let mut read = Vec::new();
        reader.read_to_end(&mut read).await.unwrap();
        read
    };
    let (blocked, read) = timeout(LIMIT, async { tokio::join!(write, read) }).await.unwrap();
    assert!(read == bytes, "{} bytes", read.len());
    assert!(blocked > 0, "the test has never filled the socket");
}

/// A connection can go on in another thread, with what has come already.
#[tokio::test]
async fn a_connection_is_handed_over_with_who_is_at_the_other_end() {
    let setup = Setup::new("7");
    let (node, client) = (setup.kept(Role::Node, "us-1"), setup.kept(Role::Client, "alice"));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let answer = async {
        let (tcp, _) = listener.accept().await.unwrap();
        let (mut reader, writer) = node.security().accept(tcp).await.unwrap().into_split();
        reader.read_exact(&mut [0; 2]).await.unwrap();
        let detached = reader.reunite(writer).unwrap().detach().unwrap();
        let elsewhere = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let (mut reader, mut writer) = detached.attach().unwrap().into_split();
                let mut rest = [0; 3];
                reader.read_exact(&mut rest).await.unwrap();
                writer.write_all(&rest).await.unwrap();
                reader.speaker().clone()
            })
        });
        tokio::task::spawn_blocking(move || elsewhere.join().unwrap()).await.unwrap()
    };
    let ask = async {
        let stream = client.security().connect(&address).await.unwrap();
        let (mut reader, mut writer) = stream.into_split();
        writer.write_all(b"hello").await.unwrap();
        let mut heard = [0; 3];
        reader.read_exact(&mut heard).await.unwrap();
        heard
    };
    let (speaker, heard) = timeout(LIMIT, async { tokio::join!(answer, ask) }).await.unwrap();
    assert_eq!((speaker, &heard), (named("meridian://7/client/alice"), b"llo"));
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_on_new_connections() {
    let setup = Setup::new("7");
    let soon = SystemTime::now() + Duration::from_secs(4);
    let principal = "meridian://7/node/us-1".parse().unwrap();
    let node =
        Kept::new(&setup.issued.certificate, &setup.authority.issue_for(&principal, soon).unwrap());
    let (security, client) = (node.security(), setup.kept(Role::Client, "alice").security());
    meet(&security, &client).await.1.unwrap();
    // Of another: it stays what it was.
    node.put(&setup.authority.issue(Role::Node, "us-2", DAY).unwrap());
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(meet(&security, &client).await.1.unwrap(), named("meridian://7/node/us-1"));
    node.put(&setup.authority.issue(Role::Node, "us-1", DAY).unwrap());
    let renewed = async {
        // The first has run out by now, so that this one is accepted shows that it is another.
        tokio::time::sleep_until(tokio::time::Instant::now() + Duration::from_secs(4)).await;
        meet(&security, &client).await.1
    };
    assert_eq!(renewed.await.unwrap(), named("meridian://7/node/us-1"));
}

#[test]
fn files_that_cannot_be_used_are_refused_with_the_cause() {
    let (setup, other) = (Setup::new("7"), Setup::new("7"));
    let kept = setup.kept(Role::Node, "us-1");
    let why = |kept: &Kept, cluster: &str| {
        Credentials::open(kept.files(), cluster).unwrap_err().to_string()
    };
    chmod(&kept.files().key, 0o640);
    let error = Credentials::open(kept.files(), "7").unwrap_err();
    assert!(matches!(error, CredentialsError::Open { mode: 0o640, .. }), "{error}");
    assert!(error.to_string().contains("chmod 600"), "{error}");
    chmod(&kept.files().key, 0o600);
    assert!(why(&kept, "8").contains("not of cluster 8"), "{}", why(&kept, "8"));
    fs::write(kept.files().authority, &other.issued.certificate).unwrap();
    assert!(why(&kept, "7").contains("another authority"), "{}", why(&kept, "7"));
    fs::write(kept.files().authority, "nothing").unwrap();
    assert!(why(&kept, "7").contains("ca.pem: there is no certificate"), "{}", why(&kept, "7"));
    let mixed = setup.kept(Role::Node, "us-1");
    let issued = setup.authority.issue(Role::Node, "us-1", DAY).unwrap();
    fs::write(mixed.files().certificate, issued.certificate).unwrap();
    assert!(why(&mixed, "7").contains("does not fit"), "{}", why(&mixed, "7"));
    let past = SystemTime::now() - DAY;
    let principal = "meridian://7/node/us-1".parse().unwrap();
    let issued = setup.authority.issue_for(&principal, past).unwrap();
    let expired = Kept::new(&setup.issued.certificate, &issued);
    assert!(why(&expired, "7").contains("has expired"), "{}", why(&expired, "7"));
    fs::remove_file(mixed.files().certificate).unwrap();
    assert!(why(&mixed, "7").contains("own.pem"), "{}", why(&mixed, "7"));
}

/// Decision 109: who only watches has no business at ports of those who use the cluster.
#[tokio::test]
async fn a_watcher_is_let_in_only_where_that_is_asked_for() {
    let setup = Setup::new("7");
    let node = setup.kept(Role::Node, "us-1").security();
    let watcher = setup.kept(Role::Watcher, "prometheus").security();
    let (caller, called) = meet(&node, &watcher).await;
    let refused = caller.unwrap_err().to_string();
    assert_eq!(refused, "not authorized: watcher prometheus only watches");
    assert!(called.is_err());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let taken = async { node.accept_any(listener.accept().await.unwrap().0).await };
    let (taken, _called) = tokio::join!(taken, watcher.connect(&address));
    assert_eq!(*taken.unwrap().speaker(), named("meridian://7/watcher/prometheus"));
}

/// A mount that is watched is called by programs, and is no node for all that.
#[tokio::test]
async fn only_nodes_and_watched_clients_may_be_called() {
    let setup = Setup::new("7");
    let roles = [(Role::Node, true), (Role::Client, false), (Role::Admin, false)];
    for (role, may) in roles.into_iter().chain([(Role::Watcher, false)]) {
        assert_eq!(setup.kept(role, "a").security().may_accept(), may, "{role:?}");
    }
    let issued = setup.authority.issue_watched("alice", DAY).unwrap();
    let alice = Kept::new(&setup.issued.certificate, &issued).security();
    assert!(alice.may_accept());
    let (caller, called) = meet(&alice, &setup.kept(Role::Client, "bob").security()).await;
    assert!(called.unwrap_err().to_string().contains("which is no node"));
    assert!(caller.is_err());
    let (caller, _) = meet(&setup.kept(Role::Node, "us-1").security(), &alice).await;
    assert_eq!(caller.unwrap(), named("meridian://7/client/alice"));
}

/// The key alone is enough to sign later, for a node or a client that comes then.
#[tokio::test]
async fn an_authority_goes_on_with_its_key() {
    let setup = Setup::new("7");
    let later = Authority::with_key("7", &setup.issued.key).unwrap();
    let issued = later.issue(Role::Client, "bob", DAY).unwrap();
    let bob = Kept::new(&setup.issued.certificate, &issued);
    let node = setup.kept(Role::Node, "us-1").security();
    let (caller, _) = meet(&node, &bob.security()).await;
    assert_eq!(caller.unwrap(), named("meridian://7/client/bob"));
}

/// Decision 94: connections that are open end, at both halves, and new ones are refused; others go
/// on, and so does who is shut out only at another door.
#[tokio::test]
async fn who_is_shut_out_is_gone_at_once() {
    let setup = Setup::new("7");
    let server = setup.kept(Role::Node, "us-1").security();
    let client = |name| setup.kept(Role::Client, name).security();
    let (bad, good, other) = (client("bad"), client("good"), server.another_door());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut open = Vec::new();
    for security in [&bad, &good] {
        let taken = async { server.accept(listener.accept().await.unwrap().0).await.unwrap() };
        let (taken, called) = tokio::join!(taken, security.connect(&address));
        open.push((taken.into_split(), called.unwrap()));
    }
    let ((mut good_reader, _), good_end) = open.pop().unwrap();
    let ((mut reader, writer), bad_end) = open.pop().unwrap();
    let waits = tokio::spawn(async move { reader.read_exact(&mut [0; 1]).await });
    tokio::task::yield_now().await;
    let names: std::collections::BTreeSet<_> = ["client/bad".to_string()].into();
    assert_eq!(server.shut_out(names.clone()), 1);
    let ended = timeout(LIMIT, waits).await.unwrap().unwrap();
    assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    assert_eq!(writer.try_write(b"!").unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    drop((writer, bad_end));
    let refused = meet(&server, &bad).await.0.unwrap_err().to_string();
    assert!(refused.contains("client bad is shut out here"), "{refused}");
    assert!(meet(&server, &good).await.0.is_ok());
    assert!(meet(&other, &bad).await.0.is_ok(), "the other door has a list of its own");
    good_end.into_split().1.write_all(b"!").await.unwrap();
    timeout(LIMIT, good_reader.read_exact(&mut [0; 1])).await.unwrap().unwrap();
    server.shut_out(Default::default());
    assert!(meet(&server, &bad).await.0.is_ok(), "nobody is shut out any more");
}
