//! A trial of a service: what is drawn, the run, the end.

use super::alone::{Alone, Ask};
use super::clients::{Clients, Draw};
use super::{Replica, process};
use crate::faults::Faults;
use crate::lossy::{Loss, Lossy};
use crate::of::paxos::trial as paxos;
use crate::of::paxos::words::Words;
use crate::trace::Teller;
use crate::trial::{Counts, Made, Stage, Subject, Violation};
use crate::world::{Random, Setup, World};
use meridian_core::{NodeId, ProcessId};
use meridian_paxos::{ClientIds, Command, Options, Paxos, Recovery, Routing, Service, Status};
use rand::{RngExt, SeedableRng};
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

/// The longest request that clients may draw, in bytes.
pub const REQUEST_BYTES_MAX: usize = 64 << 10;
/// How many requests and questions each client has after the faults.
const AFTERWARDS: u32 = 2;

/// A service, and what its clients ask. What is `None` is drawn from the seed.
#[derive(Clone)]
pub struct Trial<S> {
    service: S,
    draw: Draw,
    /// How many replicas there are.
    pub replicas: Option<u16>,
    /// How many clients there are. More than a few at a time, and the checker takes long.
    pub clients: Option<usize>,
    /// What may go wrong.
    pub faults: Option<Faults>,
    /// How bad the network is.
    pub loss: Option<Loss>,
}

impl<S: Service> Trial<S> {
    /// Of this service, as it begins; `ask` draws what a client asks next, of at most
    /// [`REQUEST_BYTES_MAX`] bytes.
    pub fn new(service: S, ask: impl Fn(&mut Random) -> Ask + 'static) -> Trial<S> {
        let draw = Rc::new(ask);
        Trial { service, draw, replicas: None, clients: None, faults: None, loss: None }
    }
}

/// What a trial was, once all is drawn.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// How many replicas there are.
    pub replicas: u16,
    /// How many clients there are.
    pub clients: usize,
    /// How replicas behave.
    pub options: Options,
    /// What may go wrong.
    pub faults: Faults,
    /// How bad the network is.
    pub loss: Loss,
}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

type Cluster<S> = World<Replica<S>, Clients<S>>;

fn setup<S: Service>(
    seed: u64,
    service: S,
    drawn: &Drawn,
    loss: Rc<Cell<Loss>>,
) -> Setup<Replica<S>> {
    let nodes: Vec<_> = (0..drawn.replicas).map(NodeId).collect();
    let (peers, options) =
        (nodes.iter().map(|node| process(*node)).collect(), drawn.options.clone());
    let mut starts = 0;
    let make = move |me: ProcessId| {
        starts += 1;
        let seed = (seed << 20) + starts;
        let members = paxos::configuration(&nodes);
        let paxos = Paxos::new(me, members, options.clone(), service.clone(), seed);
        // Who is full reads no clients.
        let refuses = |paxos: &Paxos<S>, command: &Command| {
            matches!(command, Command::Request(_)) && paxos.is_full()
        };
        Lossy::new(paxos, loss.clone(), seed).refusing(refuses)
    };
    Setup { faults: drawn.faults.clone(), ..Setup::lan(peers, make) }
}

impl<S: Service> Subject for Trial<S> {
    type Process = Replica<S>;
    type Owner = Clients<S>;
    type Drawn = Drawn;
    /// How bad the network is now.
    type Operator = Rc<Cell<Loss>>;

    const FAULTS: Duration = Duration::from_millis(2500);
    const HEALING: Duration = Duration::from_secs(30);

    fn draw(&self, seed: u64) -> Drawn {
        // All is drawn whether it is given or not, so that the rest is the same.
        let random = &mut Random::seed_from_u64(seed ^ 0x5e1f);
        let routing = if random.random() { Routing::Redirect } else { Routing::Forward };
        let options = paxos::drawn_options(random, Recovery::FullSs, routing, false);
        let options = Options {
            request_bytes_max: REQUEST_BYTES_MAX,
            queue_bytes_max: 4 * REQUEST_BYTES_MAX,
            log_bytes_max: 64 * REQUEST_BYTES_MAX,
            client_ids: ClientIds::Counted,
            clients_max: 1000,
            ..options
        };
        let (faults, loss) = (paxos::drawn_faults(random), paxos::drawn_loss(random));
        let (replicas, clients) = (3 + 2 * random.random_range(0..2), random.random_range(2..5));
        Drawn {
            replicas: self.replicas.unwrap_or(replicas),
            clients: self.clients.unwrap_or(clients),
            options,
            faults: self.faults.clone().unwrap_or(faults),
            loss: self.loss.unwrap_or(loss),
        }
    }

    fn make(&self, seed: u64, drawn: &Drawn) -> Made<Self> {
        let loss = Rc::new(Cell::new(drawn.loss));
        let nodes = (0..drawn.replicas).map(NodeId).collect();
        let (alone, random) = (Alone(self.service.clone()), Random::seed_from_u64(seed ^ 0xa5c));
        let owner = Clients::new(alone, self.draw.clone(), nodes, drawn.clients, random);
        let setup = setup(seed, self.service.clone(), drawn, loss.clone());
        Made { setup, owner, operator: loss }
    }

    fn heal(stage: &mut Stage<Self>) {
        stage.world.heal();
        stage.operator.set(Loss::default());
        stage.world.owner.end_after(AFTERWARDS);
    }

    /// Whether all is answered, and all replicas have executed the same.
    fn is_quiet(world: &Cluster<S>) -> bool {
        let all: Vec<_> = world.processes().map(|(_, replica)| replica.inner.status()).collect();
        let Some(leader) = all.iter().find(|status| status.leading) else { return false };
        let level = |status: &Status| {
            let same = (status.executed, status.position) == (leader.executed, leader.position);
            status.active && same
        };
        world.owner.is_done() && leader.under_way == 0 && all.iter().all(level)
    }

    fn judge(stage: &mut Stage<Self>) -> Result<(), Violation> {
        let mut states = stage.world.processes().map(|(peer, replica)| {
            let service = replica.inner.service();
            (peer, service.snapshot())
        });
        let (first, state) = states.next().expect("there are replicas");
        if let Some((other, differs)) = states.find(|(_, other)| *other != state) {
            let (a, b) = (state.len(), differs.len());
            return Err(format!(
                "equal replicas: the snapshots of {first} ({a} bytes) and {other} ({b} bytes) \
                 differ after the same requests"
            ));
        }
        stage.world.owner.judge()
    }

    fn describe(world: &Cluster<S>) -> String {
        let mut text = format!("clients wait for {}", world.owner.unanswered());
        for (peer, replica) in world.processes() {
            let Status { view, leading, active, executed, .. } = replica.inner.status();
            text += &format!("\n{peer}: {view} leading {leading}, active {active}, {executed:?}");
        }
        text
    }

    fn teller() -> Box<dyn Teller<Replica<S>>> {
        Box::new(Words)
    }

    fn counts(world: &Cluster<S>) -> Counts {
        world.owner.counts.clone()
    }
}
