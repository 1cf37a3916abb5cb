//! Clients on the port of members, and members that come and go, over real connections.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

use bytes::{Bytes, BytesMut};
use meridian_core::hello::{Caller, Hello, Lane, ServiceId, VERSION};
use meridian_core::{Event, GroupId, NodeId, Outbox, Process, ProcessId, Time, frame};
use meridian_runtime::wire::{FrameReader, WireError, decode};
use meridian_runtime::{Application, At, ConnectionId, Handle, Lanes, Listen, Options};
use meridian_runtime::{Storage, Worker};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::mpsc;

fn id(node: u16) -> ProcessId {
    ProcessId { group: GroupId(0), node: NodeId(node) }
}

/// Tells its owner what peers say; says what it is asked to.
#[derive(Debug)]
struct Gossip;

impl Process for Gossip {
    type Peer = ProcessId;
    type Message = String;
    type Record = ();
    type Command = (ProcessId, String);
    type Output = Result<(ProcessId, String), ProcessId>;
    type Timer = std::convert::Infallible;

    fn step(&mut self, _now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Command((to, text)) => out.send(to, text),
            Event::Message { from, message } => out.output(Ok((from, message))),
            Event::Restarted(peer) => out.output(Err(peer)),
            Event::Started | Event::Timer(_) | Event::Idle => {}
        }
    }

    fn replay(&mut self, (): ()) {}

    fn checkpoint(&self) -> Box<dyn Iterator<Item = ()> + Send> {
        Box::new(std::iter::empty())
    }
}

#[derive(Debug)]
enum Ask {
    Peers(BTreeMap<ProcessId, String>),
    Say(ProcessId, String),
    Stop,
}

/// Answers each number that a client asks for with so many bytes; 0 must not be asked for.
struct Bytewise {
    heard: mpsc::UnboundedSender<<Gossip as Process>::Output>,
    /// What is read as an answer beside numbers: why a connection ends.
    said: String,
    /// What came on connections without frames, where each line is a number.
    lines: BTreeMap<ConnectionId, Vec<u8>>,
}

impl Bytewise {
    fn new(heard: mpsc::UnboundedSender<<Gossip as Process>::Output>) -> Bytewise {
        Bytewise { heard, said: "because: ".into(), lines: BTreeMap::new() }
    }
}

impl Application<Gossip> for Bytewise {
    type Request = Ask;

    fn on_request(&mut self, at: &mut At<'_, Gossip>, ask: Ask) {
        match ask {
            Ask::Peers(peers) => at.set_peers(peers),
            Ask::Say(to, text) => at.command((to, text)),
            Ask::Stop => at.stop("enough".into()),
        }
    }

    fn on_output(&mut self, _: &mut At<'_, Gossip>, output: <Gossip as Process>::Output) {
        let _ = self.heard.send(output); // A test that has ended hears nothing.
    }

    fn serves_clients(&self, _service: meridian_core::hello::ServiceId) -> bool {
        true
    }

    fn on_asked(
        &mut self,
        at: &mut At<'_, Gossip>,
        client: ConnectionId,
        body: Bytes,
    ) -> Result<(), WireError> {
        for asked in decode::<Vec<u32>>(&body)? {
            if asked == 0 {
                return Err(WireError::Refused("nothing was asked for".into()));
            }
            at.answer(client, &Bytes::from(vec![7; asked as usize]));
        }
        Ok(())
    }

    fn on_bytes(&mut self, _: &mut At<'_, Gossip>, client: ConnectionId, bytes: &[u8]) {
        self.lines.entry(client).or_default().extend_from_slice(bytes);
    }

    fn on_next(
        &mut self,
        at: &mut At<'_, Gossip>,
        client: ConnectionId,
    ) -> Result<bool, WireError> {
        let kept = self.lines.entry(client).or_default();
        let Some(end) = kept.iter().position(|byte| *byte == b'\n') else { return Ok(false) };
        let line = String::from_utf8(kept.drain(..=end).collect()).unwrap();
        match line.trim() {
            "end" => at.end(client),
            "0" => {
                at.write(client, |out| out.extend_from_slice(b"nothing"));
                return Err(WireError::Refused("nothing was asked for".into()));
            }
            number => {
                let len: usize = number.parse().unwrap();
                at.write(client, |out| out.resize(out.len() + len, 7));
            }
        }
        Ok(true)
    }

    fn on_bad(&mut self, at: &mut At<'_, Gossip>, client: ConnectionId, why: &WireError) {
        if !self.lines.contains_key(&client) {
            at.answer(client, &format!("{}{why}", self.said));
        }
    }
}

struct Member {
    handle: Handle<Ask>,
    heard: mpsc::UnboundedReceiver<<Gossip as Process>::Output>,
}

impl Member {
    async fn join(worker: &Worker, node: u16, change: impl FnOnce(&mut Options)) -> Member {
        let mut options = Options::new("test", id(node), "127.0.0.1:0", BTreeMap::new());
        change(&mut options);
        let (tell, heard) = mpsc::unbounded_channel();
        let hosted = worker.host(options, Gossip, Bytewise::new(tell));
        Member { handle: hosted.await.unwrap(), heard }
    }

    async fn ask(&self, ask: Ask) {
        self.handle.request(ask).await.unwrap();
    }

    async fn say(&self, to: u16, text: &str) {
        self.ask(Ask::Say(id(to), text.into())).await;
    }

    async fn hears(&mut self, from: u16, text: &str) {
        let heard = self.heard.recv().await.unwrap();
        assert_eq!(heard, Ok((id(from), text.to_string())));
    }

    fn bad(&self) -> u64 {
        self.handle.counters().bad.load(Ordering::Relaxed)
    }
}

fn framed(body: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    frame::encode(&mut out, |into| into.extend_from_slice(body)).unwrap();
    out
}

fn hello(version: u16, cluster: &str) -> BytesMut {
    let caller = Caller::<ProcessId>::Client(ServiceId::MAIN);
    framed(&postcard::to_stdvec(&Hello { version, ..Hello::new(cluster, caller) }).unwrap())
}

async fn call(address: SocketAddr, first: &[u8]) -> (FrameReader, OwnedWriteHalf) {
    let (reader, mut writer) = TcpStream::connect(address).await.unwrap().into_split();
    writer.write_all(first).await.unwrap();
    (FrameReader::new(reader), writer)
}

/// The reason that is given to one who calls in this way.
async fn refusal(address: SocketAddr, first: &[u8]) -> String {
    let (mut reader, _writer) = call(address, first).await;
    let (refused, why): (u8, String) = reader.next().await.unwrap();
    assert_eq!(refused, 0);
    assert!(matches!(reader.fill().await, Err(WireError::Closed)));
    why
}

async fn connect(member: &Member) -> (FrameReader, OwnedWriteHalf) {
    let (mut reader, writer) = call(member.handle.address(), &hello(VERSION, "test")).await;
    assert_eq!(reader.next::<u8>().await.unwrap(), 2);
    (reader, writer)
}

#[tokio::test]
async fn all_that_is_asked_in_one_frame_is_answered_in_one() {
    let worker = Worker::start("clients").unwrap();
    let member = Member::join(&worker, 0, |_| ()).await;
    let (mut reader, mut writer) = connect(&member).await;
    let counters = member.handle.counters();
    let before = counters.writes.load(Ordering::Relaxed);
    let asked: Vec<u32> = (1..=1000).collect();
    writer.write_all(&framed(&postcard::to_stdvec(&asked).unwrap())).await.unwrap();
    let body = reader.next_body().await.unwrap();
    let mut rest = &body[..];
    for expected in asked {
        let (answer, after): (Bytes, _) = postcard::take_from_bytes(rest).unwrap();
        assert_eq!(answer.len(), expected as usize);
        rest = after;
    }
    assert!(rest.is_empty());
    // A socket may take it in pieces.
    assert!(counters.writes.load(Ordering::Relaxed) - before < 10);
    assert_eq!(member.bad(), 0);
}

/// Abuse 5: connections that say nothing keep nobody out, however many.
#[tokio::test]
async fn silent_connections_make_room_for_those_who_speak() {
    let worker = Worker::start("clients").unwrap();
    let member = Member::join(&worker, 0, |_| ()).await;
    let mut silent = Vec::new();
    for _ in 0..600 {
        silent.push(TcpStream::connect(member.handle.address()).await.unwrap());
    }
    connect(&member).await;
    // Twice 256 are the most, and the others have been closed.
    let mut byte = [0; 1];
    assert_eq!(silent[0].read(&mut byte).await.unwrap_or(0), 0, "the first has made room");
}

#[tokio::test]
async fn who_is_turned_away_is_told_why() {
    let worker = Worker::start("clients").unwrap();
    let member = Member::join(&worker, 0, |options| options.clients_max = 1).await;
    let address = member.handle.address();
    assert!(refusal(address, &hello(VERSION + 1, "test")).await.contains("speaks version"));
    assert!(refusal(address, &hello(VERSION, "other")).await.contains("\"other\""));
    assert!(refusal(address, &framed(&[])).await.contains("no hello"));
    let mut flipped = hello(VERSION, "test");
    *flipped.last_mut().unwrap() ^= 1;
    assert!(refusal(address, &flipped).await.contains("checksum"));
    assert!(refusal(address, &[7; 100]).await.contains("not a frame"));
    assert_eq!(member.bad(), 5);
    let (mut reader, mut writer) = connect(&member).await;
    assert!(refusal(address, &hello(VERSION, "test")).await.contains("1 clients are connected"));
    // What is bad later is told in the application's way, after what was answered before.
    writer.write_all(&framed(&postcard::to_stdvec(&vec![3u32, 0]).unwrap())).await.unwrap();
    let (bytes, why): (Bytes, String) = reader.next().await.unwrap();
    assert_eq!((bytes.len(), why.as_str()), (3, "because: nothing was asked for"));
    assert!(matches!(reader.fill().await, Err(WireError::Closed)));
    assert_eq!(member.bad(), 7);
    // Its place is free again.
    connect(&member).await;
}

#[tokio::test]
async fn a_client_that_takes_no_answers_costs_no_more_than_some_megabytes() {
    let worker = Worker::start("clients").unwrap();
    let member = Member::join(&worker, 0, |_| ()).await;
    let (mut reader, mut writer) = connect(&member).await;
    // It asks for a megabyte again and again, and reads nothing: it is not read any more.
    let frame = framed(&postcard::to_stdvec(&vec![1u32 << 20]).unwrap()).freeze();
    for _ in 0..30 {
        writer.write_all(&frame).await.unwrap();
    }
    // Others are served meanwhile.
    for _ in 0..3 {
        let (mut other, mut asks) = connect(&member).await;
        asks.write_all(&frame).await.unwrap();
        assert_eq!(other.next::<Bytes>().await.unwrap().len(), 1 << 20);
    }
    assert!(member.handle.counters().bytes.load(Ordering::Relaxed) < 30 << 20);
    for _ in 0..30 {
        assert_eq!(reader.next::<Bytes>().await.unwrap().len(), 1 << 20);
    }
    // One that asks for too much at once is left.
    let much = framed(&postcard::to_stdvec(&vec![1u32 << 20; 64]).unwrap());
    writer.write_all(&much).await.unwrap();
    let mut got = 0;
    while reader.next_body().await.is_ok() {
        got += 1;
    }
    assert!(got < 64, "{got}");
    connect(&member).await;
}

#[tokio::test]
async fn peers_come_go_and_move_while_members_run() {
    let worker = Worker::start("peers").unwrap();
    let (mut a, mut b) =
        (Member::join(&worker, 1, |_| ()).await, Member::join(&worker, 2, |_| ()).await);
    let at = |member: &Member| member.handle.address().to_string();
    // What is said to one who is no peer yet is lost, and the process hears so.
    a.say(2, "nobody").await;
    a.say(1, "to itself").await;
    a.hears(1, "to itself").await;
    a.ask(Ask::Peers(BTreeMap::from([(id(1), at(&a)), (id(2), at(&b))]))).await;
    assert_eq!(a.heard.recv().await.unwrap(), Err(id(2)));
    b.ask(Ask::Peers(BTreeMap::from([(id(1), at(&a))]))).await;
    a.say(2, "hello").await;
    b.hears(1, "hello").await;
    b.say(1, "hello").await;
    a.hears(2, "hello").await;
    // Another comes, whom the second calls.
    let mut c = Member::join(&worker, 3, |_| ()).await;
    c.ask(Ask::Peers(BTreeMap::from([(id(2), at(&b))]))).await;
    b.ask(Ask::Peers(BTreeMap::from([(id(3), at(&c))]))).await;
    b.say(3, "welcome").await;
    c.hears(2, "welcome").await;
    // The first is gone for the second, and comes back at once: what was under way may be lost.
    b.say(1, "lost").await;
    b.ask(Ask::Peers(BTreeMap::from([(id(3), at(&c)), (id(1), at(&a))]))).await;
    while a.heard.recv().await.unwrap() != Err(id(2)) {}
    a.say(2, "again").await;
    while b.heard.recv().await.unwrap() != Ok((id(1), "again".into())) {}
    // The third ends and starts elsewhere, without a memory of what it was told: as another.
    c.handle.close().await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let storage = Storage::directory(dir.path());
    let mut d = Member::join(&worker, 4, |options| options.storage = storage).await;
    d.ask(Ask::Peers(BTreeMap::from([(id(2), at(&b))]))).await;
    b.ask(Ask::Peers(BTreeMap::from([(id(4), at(&d))]))).await;
    b.say(4, "welcome").await;
    d.hears(2, "welcome").await;
    d.handle.close().await.unwrap();
    let storage = Storage::directory(dir.path());
    let mut d = Member::join(&worker, 4, |options| options.storage = storage).await;
    d.ask(Ask::Peers(BTreeMap::from([(id(2), at(&b))]))).await;
    b.ask(Ask::Peers(BTreeMap::from([(id(4), at(&d))]))).await;
    while b.heard.recv().await.unwrap() != Err(id(4)) {}
    b.say(4, "moved").await;
    while d.heard.recv().await.unwrap() != Ok((id(2), "moved".into())) {}
}

#[tokio::test]
async fn a_member_that_its_application_stops_is_gone() {
    let worker = Worker::start("stops").unwrap();
    let member = Member::join(&worker, 0, |_| ()).await;
    member.ask(Ask::Stop).await;
    while member.handle.request(Ask::Stop).await.is_ok() {}
    assert!(TcpStream::connect(member.handle.address()).await.is_err());
}

#[tokio::test]
async fn a_directory_of_another_is_refused() {
    let worker = Worker::start("owner").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let join = async |cluster: &str, node: u16, kind: &str| {
        let options = Options::new(cluster, id(node), "127.0.0.1:0", BTreeMap::new());
        let storage = Storage::directory(dir.path());
        let options = Options { storage, kind: kind.into(), ..options };
        let (heard, _) = mpsc::unbounded_channel();
        let handle = worker.host(options, Gossip, Bytewise::new(heard)).await;
        handle.map_err(|error| error.to_string())
    };
    let first = join("a", 1, "recovery FullSS").await.unwrap();
    assert!(join("a", 1, "recovery FullSS").await.unwrap_err().contains("in use"));
    first.close().await.unwrap();
    for (cluster, node, kind) in
        [("b", 1, "recovery FullSS"), ("a", 2, "recovery FullSS"), ("a", 1, "recovery ViewSS")]
    {
        let why = join(cluster, node, kind).await.unwrap_err();
        assert!(why.contains("is the directory of g0/n1 of cluster \"a\" with recovery"), "{why}");
    }
    join("a", 1, "recovery FullSS").await.unwrap().close().await.unwrap();
}

/// A server of two threads, each with a member; the second is called at the port of the first.
async fn server_of_two(node: u16) -> (Member, Member) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut lanes = Lanes::default();
    let arrivals = lanes.open(Lane(1), listener.local_addr().unwrap());
    let (main, second) = (Worker::start("main").unwrap(), Worker::start("second").unwrap());
    let first = Member::join(&main, node, |options| {
        (options.listen, options.lanes) = (Listen::Socket(listener), lanes);
    });
    let first = first.await;
    let second = Member::join(&second, node, |options| options.listen = Listen::Lane(arrivals));
    (first, second.await)
}

#[tokio::test]
async fn threads_of_one_server_are_called_at_one_port() {
    let (mut a, mut a1) = server_of_two(1).await;
    let (mut b, mut b1) = server_of_two(2).await;
    let at = |member: &Member| member.handle.address().to_string();
    assert_eq!((at(&a), at(&b)), (at(&a1), at(&b1)));
    let peers = BTreeMap::from([(id(1), at(&a)), (id(2), at(&b))]);
    for member in [&a, &a1, &b, &b1] {
        member.ask(Ask::Peers(peers.clone())).await;
    }
    a.say(2, "main").await;
    a1.say(2, "second").await;
    b1.hears(1, "second").await;
    b.hears(1, "main").await;
    b1.say(1, "second").await;
    b.say(1, "main").await;
    a.hears(2, "main").await;
    a1.hears(2, "second").await;
    // Clients find them by number, too.
    let hello = |lane| {
        let caller = Caller::<ProcessId>::Client(ServiceId::MAIN);
        framed(&postcard::to_stdvec(&Hello::new("test", caller).to_lane(Lane(lane))).unwrap())
    };
    let (mut reader, mut writer) = call(a.handle.address(), &hello(1)).await;
    assert_eq!(reader.next::<u8>().await.unwrap(), 2);
    writer.write_all(&framed(&postcard::to_stdvec(&vec![3u32]).unwrap())).await.unwrap();
    assert_eq!(reader.next::<Bytes>().await.unwrap().len(), 3);
    assert!(refusal(a.handle.address(), &hello(2)).await.contains("is not served here"));
    // One ends, and the other goes on.
    a1.handle.close().await.unwrap();
    assert!(refusal(a.handle.address(), &hello(1)).await.contains("is not served here"));
    a.say(2, "still here").await;
    b.hears(1, "still here").await;
}

#[tokio::test]
async fn clients_with_a_protocol_of_their_own_have_a_port_of_their_own() {
    let worker = Worker::start("plain").unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let member = Member::join(&worker, 0, |options| {
        options.plain = vec![(ServiceId::MAIN, listener)];
    });
    let member = member.await;
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(b"3\n4\n5").await.unwrap();
    let mut seven = [0; 7];
    client.read_exact(&mut seven).await.unwrap();
    client.write_all(b"000000\nend\n9\n").await.unwrap();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).await.unwrap();
    assert_eq!((seven, rest.len()), ([7; 7], 5_000_000));
    // What is no request ends the connection, after what was answered before.
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(b"1\n0\n1\n").await.unwrap();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"\x07nothing");
    assert_eq!(member.bad(), 1);
}

#[tokio::test]
async fn a_pipeline_is_answered_as_its_client_takes_answers() {
    let worker = Worker::start("plain").unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let member = Member::join(&worker, 0, |options| {
        options.plain = vec![(ServiceId::MAIN, listener)];
    });
    let member = member.await;
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(&b"1000000\n".repeat(200)).await.unwrap();
    // Others are served meanwhile.
    let mut other = TcpStream::connect(address).await.unwrap();
    other.write_all(b"1\n").await.unwrap();
    assert_eq!(other.read_u8().await.unwrap(), 7);
    assert!(member.handle.counters().bytes.load(Ordering::Relaxed) < 60 << 20);
    let mut all = vec![0; 200_000_000];
    client.read_exact(&mut all).await.unwrap();
    assert!(all.iter().all(|byte| *byte == 7));
}
