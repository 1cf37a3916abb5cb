//! The clients: each asks, waits for the reply, and asks again.

use super::replica::CLUSTER;
use anyhow::Context;
use bytes::Bytes;
use hdrhistogram::Histogram;
use meridian_runtime::smr::{Client, ClientError};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::{JoinSet, LocalSet};

/// The longest latency that is told apart, in nanoseconds.
const LATENCY_MAX_NS: u64 = 600_000_000_000;

/// What is measured.
pub struct Measure {
    /// While this is set, requests count that are answered.
    counts: Cell<bool>,
    over: Cell<bool>,
    pub latency_ns: RefCell<Histogram<u64>>,
}

impl Measure {
    fn new() -> anyhow::Result<Rc<Measure>> {
        let latency_ns = RefCell::new(Histogram::new_with_bounds(1000, LATENCY_MAX_NS, 3)?);
        Ok(Rc::new(Measure { counts: Cell::new(false), over: Cell::new(false), latency_ns }))
    }
}

/// How much is asked.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub clients: usize,
    pub connections: usize,
    pub size: usize,
}

async fn ask(mut client: Client, payload: Bytes, measure: Rc<Measure>) -> Result<(), ClientError> {
    while !measure.over.get() {
        let begin = Instant::now();
        client.execute(payload.clone()).await?;
        if measure.counts.get() {
            let took = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
            measure.latency_ns.borrow_mut().saturating_record(took);
        }
    }
    Ok(())
}

/// Loads a service for so long, after a while that does not count. `at` is called at the begin and the end of what
/// counts. Gives the latencies of the requests, and how long it took.
pub fn run(
    addresses: &[String],
    load: Load,
    (warm_up, length): (Duration, Duration),
    mut at: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<(Histogram<u64>, Duration)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let measure = Measure::new()?;
        let payload = Bytes::from(vec![b'x'; load.size]);
        let mut asking = JoinSet::new();
        for connection in 0..load.connections {
            let client = Client::connect(CLUSTER, addresses).await.context("cannot connect")?;
            let share = (connection..load.clients).step_by(load.connections);
            share.for_each(|_| {
                asking.spawn_local(ask(client.clone(), payload.clone(), measure.clone()));
            });
        }
        tokio::time::sleep(warm_up).await;
        at()?;
        measure.counts.set(true);
        let begin = Instant::now();
        let ended = tokio::time::timeout(length, async {
            match asking.join_next().await {
                Some(Ok(Err(error))) => Err(error.into()),
                Some(Err(error)) => Err(anyhow::Error::from(error)),
                Some(Ok(Ok(()))) | None => Ok(()),
            }
        });
        if let Ok(ended) = ended.await {
            ended.context("a request has failed")?;
        }
        measure.counts.set(false);
        let took = begin.elapsed();
        at()?;
        measure.over.set(true);
        while let Some(ended) = asking.join_next().await {
            ended?.context("a request has failed")?;
        }
        let latency_ns = measure.latency_ns.borrow().clone();
        Ok((latency_ns, took))
    })
}
