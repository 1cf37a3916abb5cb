//! What servers let clients do that may not do all, in a cluster that speaks TLS: below a
//! directory, root as nobody, some users, only to read, and not at all any more.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[allow(dead_code)] // Other tests use the rest of it.
mod harness;
#[path = "../../transport/tests/intruder/mod.rs"]
mod intruder;
#[path = "harness/secured.rs"]
mod secured;

use harness::{eventually, kill};
use meridian_client::{Client, ClientOptions, Files as Tree};
use meridian_core::hello::ServiceId;
use meridian_fs::{Ino, Place};
use meridian_transport::{Credentials, Files, Security};
use secured::{Port, Secured, well};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

const NOBODY: u32 = 65_534;

/// The number of an error.
fn errno<T>(result: io::Result<T>) -> i32 {
    result.map(drop).unwrap_err().raw_os_error().unwrap()
}

fn write(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    file.write_all(b"text")?;
    file.sync_all()
}

/// Makes it as a machine does that may do all.
fn made(path: &Path, uid: u32, mode: u32) {
    write(path).unwrap();
    chown(path, Some(uid), Some(uid)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn clients_do_what_they_are_granted_and_no_more() {
    let mut all = Secured::start();
    let trusted = all.mount("client", "mnt");
    for name in ["lab", "guest"] {
        well(&all.room, &["certify", name, "--role", "client"]);
    }
    let secret = prepare(&all);
    nonsense_is_refused(&all);
    all.changed(&["allow", "lab", "--below", "/us/lab", "--uid", "1000"]);
    let lab = all.mount("lab", "lab");
    a_mount_shows_one_directory(&all);
    root_is_nobody_and_others_are_kept_out(&all);
    numbers_and_keys_are_of_no_use(&all, secret);
    a_backup_would_show_all(&all);
    all.changed(&["allow", "lab", "--below", "/us/lab", "--read-only"]);
    assert_eq!(errno(write(&all.room.path("lab/new"))), libc::EROFS);
    assert_eq!(fs::read(all.room.path("lab/plain")).unwrap(), b"text");
    let listed = well(&all.room, &["cluster", "grants", "--cluster", "cluster.json"]);
    assert!(listed.contains("/us/lab") && listed.contains("revoked: nobody"), "{listed}");
    all.changed(&["allow", "lab", "--all"]);
    write(&all.room.path("lab/new")).unwrap();
    lab.stop();
    trusted.stop();
    who_is_revoked_is_gone(&mut all);
    all.stop();
}

/// Two directories of which one has a quota; the number of a file in the other.
fn prepare(all: &Secured) -> u64 {
    for name in ["lab", "other"] {
        let path = all.room.path("mnt/us").join(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    well(&all.room, &["fs", "quota", "mnt/us/lab", "--none"]);
    let secret = all.room.path("mnt/us/other/secret");
    made(&secret, 1000, 0o666);
    fs::metadata(secret).unwrap().ino()
}

fn a_backup_would_show_all(all: &Secured) {
    let shown = ["--cluster", "cluster.json", "--tls-certificate", "tls/lab.pem"];
    let ended = all.room.run(&[&["backup", "/us/lab", "stolen"], &shown[..]].concat());
    assert!(!ended.status.success() && ended.stderr.contains("not authorized"), "{ended:?}");
    assert!(!all.room.path("stolen").exists());
}

/// Abuse 14.
fn nonsense_is_refused(all: &Secured) {
    let bad: [(&[&str], &str); 10] = [
        (&["allow", "lab", "--below", "/us/other"], "no quota of its own"),
        (&["allow", "lab", "--below", "/us/nothing"], "no such file"),
        (&["allow", "lab", "--below", "/us/other/secret"], "not a directory"),
        (&["allow", "lab", "--root", "--uid", "5"], "leave --uid"),
        (&["allow", "lab", "--uid", "0"], "say --root"),
        (&["allow", "two words"], "not the name of a client"),
        (&["allow", "lab", "--keys", ""], "the empty prefix"),
        (&["allow", "lab", "--keys", "lab:", "--all"], "cannot be used with"),
        (&["revoke", "lab"], "ROLE/NAME"),
        (&["revoke", "admin/admin"], "show another"),
    ];
    for (args, why) in bad {
        let ended = all.cluster(args);
        assert!(!ended.status.success() && ended.stderr.contains(why), "{args:?}: {ended:?}");
    }
    let ended = all.cluster(&["allow", "lab", "--tls-certificate", "tls/client.pem"]);
    assert!(ended.stderr.contains("may look at the cluster and not change it"), "{ended:?}");
    let shown = well(&all.room, &["cluster", "grants", "--json", "--cluster", "cluster.json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["clients"].as_array().unwrap().len(), 0);
}

/// Abuse 7.
fn a_mount_shows_one_directory(all: &Secured) {
    let (lab, whole) = (all.room.path("lab"), all.room.path("mnt/us/lab"));
    assert_eq!(fs::read_dir(&lab).unwrap().count(), 0);
    for dir in ["a", "a/b", "c"] {
        fs::create_dir(lab.join(dir)).unwrap();
    }
    write(&lab.join("a/b/file")).unwrap();
    fs::rename(lab.join("a/b"), lab.join("c/b")).unwrap();
    fs::rename(lab.join("c"), lab.join("a/c")).unwrap();
    fs::hard_link(lab.join("a/c/b/file"), lab.join("link")).unwrap();
    assert_eq!(fs::read(whole.join("link")).unwrap(), b"text");
    fs::rename(lab.join("link"), lab.join("plain")).unwrap();
    assert_eq!(fs::read(lab.join("plain")).unwrap(), b"text");
    let into_itself = fs::rename(lab.join("a"), lab.join("a/c/inner"));
    assert_eq!(errno(into_itself), libc::EINVAL);
    let bytes: Vec<u8> = (0..3 << 20).map(|at: u32| (at / 251) as u8).collect();
    fs::write(lab.join("long"), &bytes).unwrap();
    File::open(lab.join("long")).unwrap().sync_all().unwrap();
    assert!(fs::read(whole.join("long")).unwrap() == bytes);
    fs::remove_file(lab.join("long")).unwrap();
}

/// Abuse 8 and 9.
fn root_is_nobody_and_others_are_kept_out(all: &Secured) {
    let (lab, whole) = (all.room.path("lab"), all.room.path("mnt/us/lab"));
    let plain = fs::metadata(lab.join("plain")).unwrap();
    assert_eq!((plain.uid(), plain.gid()), (NOBODY, NOBODY));
    for (name, uid, mode) in [("own", 1000, 0o600), ("foreign", 2000, 0o600), ("seen", 2000, 0o644)]
    {
        made(&whole.join(name), uid, mode);
    }
    assert_eq!(fs::read(lab.join("own")).unwrap(), b"text");
    assert_eq!(fs::read(lab.join("seen")).unwrap(), b"text");
    assert_eq!(errno(fs::read(lab.join("foreign"))), libc::EACCES);
    assert_eq!(errno(write(&lab.join("seen"))), libc::EACCES);
    assert_eq!(errno(chown(lab.join("plain"), Some(0), Some(0))), libc::EPERM);
    assert_eq!(errno(chown(lab.join("plain"), Some(2000), None)), libc::EPERM);
    let mode = fs::Permissions::from_mode(0o4777);
    assert_eq!(errno(fs::set_permissions(lab.join("foreign"), mode)), libc::EPERM);
    let device = rustix::fs::mknodat(
        rustix::fs::CWD,
        lab.join("device"),
        rustix::fs::FileType::BlockDevice,
        rustix::fs::Mode::from_raw_mode(0o666),
        rustix::fs::makedev(8, 1),
    );
    assert_eq!(device, Err(rustix::io::Errno::PERM));
    let trusted =
        rustix::fs::setxattr(lab.join("plain"), "trusted.a", b"v", rustix::fs::XattrFlags::empty());
    assert_eq!(trusted, Err(rustix::io::Errno::PERM));
}

fn certificate(all: &Secured, name: &str) -> Security {
    let path = |of: String| -> PathBuf { all.room.path("tls").join(of) };
    let authority = path("ca.pem".into());
    let (certificate, key) = (path(format!("{name}.pem")), path(format!("{name}.key")));
    let files = Files { authority, certificate, key };
    Security::tls(Credentials::open(files, &all.authority().0).unwrap())
}

/// Abuse 11, and the port of the keys.
fn numbers_and_keys_are_of_no_use(all: &Secured, secret: u64) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let file = all.room.path("cluster.json");
    let options = |name| {
        let security = certificate(all, name);
        // It takes itself for one that may do all.
        ClientOptions { security, root: Place::ROOT, ..ClientOptions::new("us") }
    };
    runtime.block_on(async {
        let files = |name| Tree::new(Client::open(&file, &options(name)).unwrap());
        assert!(files("client").attributes(Ino(secret)).await.is_ok());
        let hostile = files("lab");
        let denied = hostile.attributes(Ino(secret)).await.unwrap_err();
        assert_eq!(denied.errno(), libc::EACCES);
        let denied = hostile.resolve("/us").await.unwrap_err();
        assert_eq!(denied.errno(), libc::EACCES);
    });
    let at = all.port(Port::Keys, "us-1").to_string();
    let kv = |name: &str| {
        let certificate = format!("tls/{name}.pem");
        let of = ["--at", &at, "--cluster", "cluster.json", "--tls-certificate", &certificate];
        all.room.run(&[&["kv", "set", "color", "blue"], &of[..]].concat())
    };
    eventually("keys are there for others", || kv("client").status.success());
    let before = all.refused("us-1");
    assert!(!kv("lab").status.success());
    eventually("it is counted", || all.refused("us-1") > before);
}

/// What a guest says first at a port.
fn said(all: &Secured, port: Port) -> Vec<u8> {
    match port {
        Port::Keys => b"*1\r\n$4\r\nPING\r\n".to_vec(),
        _ => all.hello(ServiceId::MAIN),
    }
}

/// Decision 94: connections that are open end, new ones are refused and counted, and that stays so
/// when a node starts anew.
fn who_is_revoked_is_gone(all: &mut Secured) {
    let guest = all.issued("guest");
    let open = [Port::Node, Port::Keys].map(|port| {
        let (at, says, guest) = (all.port(port, "us-1"), said(all, port), guest.clone());
        let (hears, heard) = channel();
        let listens = move || {
            intruder::listen(at, Some(&guest), &says, |piece| hears.send(piece.to_vec()).unwrap())
        };
        (std::thread::spawn(listens), heard)
    });
    for (_, heard) in &open {
        heard.recv().expect("it is answered, and stays");
    }
    all.changed(&["revoke", "client/guest"]);
    for (listens, _) in open {
        let ended = listens.join().unwrap();
        let waits = ended.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        assert!(!waits, "the connection is still open");
    }
    let refused = |all: &Secured| {
        for port in [Port::Node, Port::Keys] {
            let before = all.refused("us-1");
            let heard = intruder::call(all.port(port, "us-1"), Some(&guest), &said(all, port));
            assert!(heard.as_ref().map_or(true, Vec::is_empty), "{heard:?}");
            eventually("it is counted", || all.refused("us-1") > before);
        }
    };
    refused(all);
    let mut server = all.servers.remove("us-1").unwrap();
    kill(i32::try_from(server.id()).unwrap(), libc::SIGTERM);
    assert!(server.wait().unwrap().success());
    all.serve("us-1", "us-1.machine/us-1");
    eventually("it is there again", || all.status().status.success());
    refused(all);
    let listed = well(&all.room, &["cluster", "grants", "--cluster", "cluster.json"]);
    assert!(listed.contains("revoked: client/guest"), "{listed}");
}
