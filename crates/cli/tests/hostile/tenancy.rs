//! A cluster with a tenant that has one directory, somebody else beside it, and a program of the
//! tenant that asks nodes for whatever it likes.

use crate::harness::Running;
use crate::intruder::{self, Line};
use crate::secured::{Port, Secured, framed, well};
use bytes::BytesMut;
use meridian_client::connection::decode;
use meridian_core::hello::{Answer, ServiceId};
use meridian_core::{ClientId, GroupId, MessageId, NodeId, Stamp};
use meridian_fs::operation::{NewNode, Piece, WriteAt};
use meridian_fs::types::{Data, Extent};
use meridian_fs::{Done, FsError, Ino, Kind, Place, Query, Timestamp, Update, Vector};
use meridian_host::api::{Reply, ReplyBody, Request, RequestBody};
use meridian_host::sessions;
use meridian_host::update::{Change, Payload};
use serde::de::DeserializeOwned;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// The group of the only region.
pub const US: GroupId = GroupId(1);
/// The only user as whom the tenant may act.
pub const USER: u32 = 1000;
/// Whoever means no harm waits no longer than that for a file that is made, synced, read and
/// removed: all share two cores.
const WAITS_MAX: Duration = Duration::from_secs(30);

/// The client `lab` may work below `/us/lab`; all else belongs to who has mounted `mnt`.
pub struct Tenancy {
    pub all: Secured,
    /// The tenant's directory, which has a quota.
    pub lab: Place,
    trusted: Running,
}

impl Tenancy {
    /// With such a quota.
    pub fn start(quota: &[&str]) -> Tenancy {
        let all = Secured::start();
        let trusted = all.mount("client", "mnt");
        well(&all.room, &["certify", "lab", "--role", "client"]);
        for name in ["lab", "other"] {
            let path = all.room.path("mnt/us").join(name);
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        }
        well(&all.room, &[&["fs", "quota", "mnt/us/lab"], quota].concat());
        all.changed(&["allow", "lab", "--below", "/us/lab", "--uid", &USER.to_string()]);
        let lab = place(&all.room.path("mnt/us/lab"));
        Tenancy { all, lab, trusted }
    }

    /// A program of the tenant that is connected to that node.
    pub fn call(&self, node: &str) -> Program {
        Program::call(&self.all, self.all.port(Port::Node, node), "lab")
    }

    /// The tenant's update of that number in the session that is drawn as `session`.
    pub fn update(&self, session: u64, sequence: u64, update: Update) -> RequestBody {
        let change = Change { quotas: vec![self.lab], ..Change::new(TIME, update) };
        let id = MessageId { client: sessions::name(session << 32, &[US]), sequence };
        let start = Payload::of(Vector::default(), change).into_start(id, 1, &[US]);
        RequestBody::Update { group: US, start }
    }

    /// Somebody else, who makes files until the test is over.
    pub fn bystander<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        is_over: &'s AtomicBool,
    ) -> ScopedJoinHandle<'s, usize> {
        let path = self.all.room.path("mnt/us/other/busy");
        scope.spawn(move || {
            let mut done = 0;
            while !is_over.load(Ordering::Relaxed) {
                let begun = Instant::now();
                let bytes = vec![done as u8; 20_000];
                let mut file = File::create_new(&path).unwrap();
                file.write_all(&bytes).and(file.sync_all()).unwrap();
                assert!(fs::read(&path).unwrap() == bytes);
                fs::remove_file(&path).unwrap();
                assert!(begun.elapsed() < WAITS_MAX, "{:?}", begun.elapsed());
                done += 1;
            }
            done
        })
    }

    /// Ends all, and all must go well.
    pub fn end(self) {
        self.trusted.stop();
        self.all.stop();
    }
}

/// Ends the bystander's work also when a check fails.
pub struct Over<'a>(pub &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What `stat` shows of what the tenant's program does.
const TIME: Timestamp = Timestamp { seconds: 1, nanos: 0 };

/// The inode that a path of a mount leads to.
pub fn place(path: &Path) -> Place {
    Place { ino: Ino(fs::metadata(path).unwrap().ino()), partition: US }
}

/// A new file of the tenant.
pub fn create(parent: Place, name: &'static str) -> Update {
    let node = NewNode { uid: USER, gid: USER, ..NewNode::new(Kind::File, 0o644) };
    Update::Create { parent, name: name.into(), node }
}

/// Adds these bytes to the end of a file.
pub fn append(inode: Place, text: &'static [u8]) -> Update {
    write(inode, text.len() as u32, Data::Inline(text.into()))
}

/// Adds so many bytes, which lie there.
pub fn write(inode: Place, len: u32, data: Data) -> Update {
    let pieces = vec![Piece { offset: 0, extent: Extent { len, data } }];
    Update::Write { inode, at: WriteAt::End, pieces }
}

/// How an update ended, and what its client has now seen.
pub type Ended = ((MessageId, Stamp, Result<Done, FsError>), Vector);

/// A program that is connected to a node.
pub struct Program {
    line: Line,
    heard: BytesMut,
    asked: u64,
}

impl Program {
    /// Calls, with that certificate.
    pub fn call(all: &Secured, address: SocketAddr, certificate: &str) -> Program {
        let line = intruder::connect(address, Some(&all.issued(certificate))).unwrap();
        let mut program = Program { line, heard: BytesMut::new(), asked: 0 };
        program.say(&all.hello(ServiceId::MAIN));
        assert_eq!(program.hear::<Answer<NodeId>>(), Answer::Client);
        program
    }

    pub fn say(&mut self, bytes: &[u8]) {
        self.line.write_all(bytes).unwrap();
    }

    /// The next that comes.
    pub fn hear<T: DeserializeOwned>(&mut self) -> T {
        loop {
            if let Some(message) = decode(&mut self.heard).unwrap() {
                return message;
            }
            let mut piece = [0; 16 << 10];
            let len = self.line.read(&mut piece).unwrap();
            assert!(len > 0, "the node ends the connection");
            self.heard.extend_from_slice(&piece[..len]);
        }
    }

    /// Asks, and waits for the answer.
    pub fn ask(&mut self, body: &RequestBody) -> ReplyBody {
        self.asked += 1;
        let request = Request { id: self.asked, body: body.clone() };
        self.say(&framed(&request));
        let reply: Reply = self.hear();
        assert_eq!(reply.id, self.asked);
        reply.body
    }

    /// The same of an update.
    pub fn done(&mut self, body: &RequestBody) -> Ended {
        match self.ask(body) {
            ReplyBody::Updated { id, ts, vector, result, .. } => ((id, ts, result), vector),
            other => panic!("{body:?}: {other:?}"),
        }
    }

    /// Makes something; what it is.
    pub fn made(&mut self, body: &RequestBody) -> Place {
        match self.done(body).0.2 {
            Ok(Done::Attributes(made)) => made.place,
            other => panic!("{body:?}: {other:?}"),
        }
    }

    /// The answer of the node's replica, once that has all of this.
    pub fn read(&mut self, vector: &Vector, query: Query) -> ReplyBody {
        self.ask(&RequestBody::Read { vector: vector.clone(), by: ClientId(0), query })
    }
}
