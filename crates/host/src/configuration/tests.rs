use super::*;
use meridian_cluster::topology::{CLUSTER_FORMAT, ClusterFile, NodeEntry};
use meridian_core::Effect;
use std::collections::{BTreeMap, VecDeque};

pub(crate) const US_1: NodeId = NodeId(0);
const US_2: NodeId = NodeId(1);
const SECOND: Duration = Duration::from_secs(1);

/// Two nodes, of which the first keeps the configuration.
pub(crate) fn file() -> ClusterFile {
    let entry = |name: &str| NodeEntry {
        name: name.into(),
        region: "us".into(),
        pid: None,
        address: format!("{name}:1"),
        groups: vec!["global".into(), "us".into()],
        draining: None,
    };
    let mut file = ClusterFile {
        insecure_plain_text: true,
        format: CLUSTER_FORMAT,
        created_ms: 0,
        cluster: 1,
        nodes: ["us-1", "us-2"].map(entry).into(),
        rtt_ms: BTreeMap::new(),
        order: Default::default(),
        configuration: Default::default(),
    };
    file.configuration.version = 1;
    file.configuration.replicas = BTreeSet::from(["us-1".into()]);
    file
}

/// The replicas of all nodes, and a network that is quick.
struct World {
    now: Time,
    replicas: BTreeMap<NodeId, ConfigurationReplica>,
    disks: BTreeMap<NodeId, Vec<Record>>,
    messages: VecDeque<(NodeId, NodeId, Message)>,
    timers: BTreeMap<(Time, u64), (NodeId, Timer)>,
    set: u64,
}

impl World {
    fn new() -> World {
        let topology = Arc::new(Topology::new(&file()).unwrap());
        let replica = |node| (node, ConfigurationReplica::new(topology.clone(), node));
        let mut world = World {
            now: Time(1),
            replicas: topology.node_ids().map(replica).collect(),
            disks: topology.node_ids().map(|node| (node, Vec::new())).collect(),
            messages: VecDeque::new(),
            timers: BTreeMap::new(),
            set: 0,
        };
        topology.node_ids().for_each(|node| world.step(node, Event::Started));
        world
    }

    fn step(&mut self, at: NodeId, event: Event<ConfigurationReplica>) {
        let mut out = Outbox::new();
        let replica = self.replicas.get_mut(&at).unwrap();
        replica.step(self.now, event, &mut out);
        replica.step(self.now, Event::Idle, &mut out);
        for effect in out.drain() {
            match effect {
                Effect::Send { to, message } => self.messages.push_back((at, to, message)),
                Effect::Persist(record) | Effect::Note(record) => {
                    self.disks.get_mut(&at).unwrap().push(record);
                }
                Effect::Timer { at: due, timer } => {
                    self.set += 1;
                    self.timers.insert((due, self.set), (at, timer));
                }
                Effect::Output(_) => {}
            }
        }
    }

    fn run_for(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            while let Some((from, to, message)) = self.messages.pop_front() {
                self.step(to, Event::Message { from, message });
            }
            match self.timers.first_entry().filter(|first| first.key().0 <= end) {
                Some(first) => {
                    self.now = first.key().0;
                    let (node, timer) = first.remove();
                    self.step(node, Event::Timer(timer));
                }
                None => break,
            }
        }
        self.now = end;
    }

    /// The service of the replica at `node` is asked for a change, and does that.
    fn change(&mut self, node: NodeId, request: &Request) {
        let client = ClientId(u64::MAX - self.set);
        let command = paxos::Command::execute(client, 1, encode(request));
        self.step(node, Event::Command(Command::Service(command)));
        self.run_for(SECOND);
    }

    /// What the replica at `node` has executed.
    fn file(&self, node: NodeId) -> &ClusterFile {
        self.replicas[&node].paxos().unwrap().service().file().unwrap()
    }

    fn configure(&mut self, node: NodeId, file: &ClusterFile) {
        let topology = Arc::new(Topology::new(file).unwrap());
        self.step(node, Event::Command(Command::Configured(topology)));
    }

    /// us-1 is to be removed, and both have learned that us-2 keeps the configuration then.
    fn begin_to_replace(&mut self) -> ClusterFile {
        self.run_for(SECOND * 5);
        self.change(US_1, &Request::Initialise(serde_json::to_string(&file()).unwrap()));
        let up = BTreeSet::from(["us-1".to_string(), "us-2".to_string()]);
        let keeper = Some("us-2".into());
        let (name, reason) = ("us-1".to_string(), Some("it is a test".to_string()));
        self.change(US_1, &Request::RemoveNode { name, up, keeper, reason });
        let named = self.file(US_1).clone();
        assert_eq!(named.configuration.joining, BTreeSet::from(["us-2".into()]));
        self.configure(US_1, &named);
        self.configure(US_2, &named);
        named
    }

    /// What is found at `node` when it starts again with the configuration of its first start.
    fn restarted(&self, node: NodeId) -> ConfigurationReplica {
        let topology = Arc::new(Topology::new(&file()).unwrap());
        let mut again = ConfigurationReplica::new(topology, node);
        self.disks[&node].iter().cloned().for_each(|record| again.replay(record));
        again
    }
}

#[test]
fn the_only_replica_goes_on_until_another_takes_part() {
    let mut world = World::new();
    let named = world.begin_to_replace();
    assert!(world.replicas[&US_2].paxos().is_some(), "it begins");
    assert_eq!(world.replicas[&US_2].status().unwrap().members, BTreeSet::from([US_1]));
    world.run_for(SECOND * 20);
    let status = world.replicas[&US_2].status().unwrap();
    assert_eq!((status.leads, status.members), (true, BTreeSet::from([US_2])));
    let done = world.file(US_2).clone();
    assert!(done.configuration.joining.is_empty(), "{done:?}");
    assert!(world.replicas[&US_1].paxos().is_some(), "it does not know yet");
    world.configure(US_1, &done);
    assert!(world.replicas[&US_1].paxos().is_none());
    world.configure(US_1, &named);
    assert!(world.replicas[&US_1].paxos().is_none(), "what is older counts no more");
    world.change(US_2, &Request::SetRtt(BTreeMap::new()));
    assert_eq!(world.file(US_2), &done);
}

/// K1.
#[test]
fn a_replica_that_has_ended_never_begins_again() {
    let mut world = World::new();
    world.begin_to_replace();
    world.run_for(SECOND * 20);
    let done = world.file(US_2).clone();
    world.configure(US_1, &done);
    let mut again = world.restarted(US_1);
    let mut out = Outbox::new();
    again.step(world.now, Event::Started, &mut out);
    assert!(again.paxos().is_none() && out.is_empty());
    let kept: Vec<_> = again.checkpoint().collect();
    assert_eq!(kept, [Record::Ended]);
}

#[test]
fn a_replica_is_found_on_disk_whatever_the_cluster_file_says() {
    let mut world = World::new();
    let named = world.begin_to_replace();
    world.run_for(SECOND * 20);
    let mut again = world.restarted(US_2);
    let executed = world.replicas[&US_2].paxos().unwrap().service();
    assert_eq!(again.paxos().unwrap().service(), executed);
    let mut out = Outbox::new();
    again.step(world.now, Event::Started, &mut out);
    // It is named later than that says.
    let mut before = file();
    before.configuration.version = named.configuration.version - 1;
    let topology = Arc::new(Topology::new(&before).unwrap());
    again.step(world.now, Event::Command(Command::Configured(topology.clone())), &mut out);
    assert!(again.paxos().is_some());
    let mut whole = ConfigurationReplica::new(topology, US_2);
    again.checkpoint().for_each(|record| whole.replay(record));
    assert_eq!(whole.paxos().unwrap().service(), again.paxos().unwrap().service());
}

#[test]
fn who_keeps_no_configuration_sends_its_clients_elsewhere() {
    let mut world = World::new();
    let mut out = Outbox::new();
    let replica = world.replicas.get_mut(&US_2).unwrap();
    let (token, question, consistency) = (7, bytes::Bytes::new(), paxos::Consistency::Stale);
    let read = paxos::Command::Read { token, question, consistency };
    replica.step(world.now, Event::Command(Command::Service(read)), &mut out);
    let told: Vec<_> = out.drain().map(|effect| format!("{effect:?}")).collect();
    assert_eq!(told, ["Output(Read { token: 7, answer: Redirect(None) })"]);
}
