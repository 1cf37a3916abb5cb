//! Three replicas end, all at once, and start again on their directories: nothing is lost.
//!
//! `cargo run -p meridian-replication --example restart`

use meridian_replication::{
    Bytes, Client, ClientError, Consistency, MemberError, NodeId, Options, Replica, Service,
    Storage,
};
use std::collections::BTreeMap;
use std::error::Error;

/// Counts, by numbers in decimal.
#[derive(Clone, Default)]
struct Counter(u64);

impl Service for Counter {
    fn execute(&mut self, request: &Bytes) -> Bytes {
        let more = str::from_utf8(request).ok().and_then(|text| text.parse::<u64>().ok());
        self.0 += more.unwrap_or_default();
        self.query(&[])
    }
    fn query(&self, _: &[u8]) -> Bytes {
        self.0.to_string().into()
    }
    fn snapshot(&self) -> Bytes {
        self.query(&[])
    }
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
        let text = str::from_utf8(snapshot).map_err(|error| error.to_string())?;
        self.0 = text.parse().map_err(|error| format!("{text}: {error}"))?;
        Ok(())
    }
}

async fn start(all: Vec<Options>) -> Result<Vec<Replica<Counter>>, MemberError> {
    let mut replicas = Vec::new();
    for options in all {
        replicas.push(Replica::start(options, Counter::default()).await?);
    }
    Ok(replicas)
}

async fn connect(members: &BTreeMap<NodeId, String>) -> Result<Client, ClientError> {
    Client::connect("count", members.values()).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let data = tempfile::tempdir()?;
    let storage = |me: NodeId| Storage::directory(data.path().join(me.0.to_string()));
    let first = Options::on_this_machine("count", 3, storage)?;
    let members = first[0].members.clone();
    let replicas = start(first).await?;
    let mut client = connect(&members).await?;
    for _ in 0..100 {
        client.execute("1").await?;
    }
    // Each has written all that it voted for before anybody heard of the vote, so that an end
    // without a farewell would lose no more than this.
    for replica in replicas {
        replica.close().await?;
    }

    // They start at the addresses that they had: those are a part of what they have agreed on.
    let again = members.keys().map(|me| Options::new("count", *me, members.clone(), storage(*me)));
    let replicas = start(again.collect()).await?;
    let client = connect(&members).await?;
    let count = client.read("", Consistency::Linearizable).await?;
    println!("after all have started again the count is {count:?}");
    assert_eq!(count, "100");

    // A directory is one replica's, and in use by one process at a time.
    let again = Options::on_this_machine("count", 3, |_| storage(NodeId(0)))?.remove(0);
    match Replica::start(again, Counter::default()).await {
        Err(MemberError::Log(why)) => println!("refused: {why}"),
        Err(error) => return Err(error.into()),
        Ok(_) => return Err("two replicas on one directory".into()),
    }
    for replica in replicas {
        replica.close().await?;
    }
    Ok(())
}

#[test]
fn it_runs() {
    main().unwrap();
}
