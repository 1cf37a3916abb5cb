//! A map on three replicas over TCP. One is killed; the map goes on.
//!
//! `cargo run -p meridian-replication --example service`

use meridian_replication::{Bytes, Client, Consistency, Options, Replica, Service, Storage};
use std::{collections::BTreeMap, error::Error};

/// A request is `word=meaning`, the reply what it meant before. A question is a word.
#[derive(Clone, Default)]
struct Map(BTreeMap<String, String>);

impl Service for Map {
    fn execute(&mut self, request: &Bytes) -> Bytes {
        let request = String::from_utf8_lossy(request);
        let (word, meaning) = request.split_once('=').unwrap_or((&request, ""));
        self.0.insert(word.into(), meaning.into()).unwrap_or_default().into()
    }
    fn query(&self, word: &[u8]) -> Bytes {
        self.0.get(&*String::from_utf8_lossy(word)).cloned().unwrap_or_default().into()
    }
    fn snapshot(&self) -> Bytes {
        postcard::to_stdvec(&self.0).expect("writing to memory").into()
    }
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
        self.0 = postcard::from_bytes(snapshot).map_err(|error| error.to_string())?;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let data = tempfile::tempdir()?;
    let storage = |me| Storage::directory(data.path().join(format!("{me}")));
    let mut replicas = Vec::new();
    for options in Options::on_this_machine("kv", 3, storage)? {
        replicas.push(Replica::start(options, Map::default()).await?);
    }
    let addresses = replicas.iter().map(|replica| replica.address().to_string());
    let mut client = Client::connect("kv", addresses).await?;
    println!("dog meant {:?} before", client.execute("dog=Hund").await?);
    while !replicas[0].status().await?.leading {
        replicas.rotate_left(1);
    }
    println!("replica {} leads, and is killed", replicas[0].me().0);
    replicas.remove(0).close().await?;
    println!("dog meant {:?} before", client.execute("dog=chien").await?);
    println!("dog means {:?} now", client.read("dog", Consistency::Linearizable).await?);
    for replica in replicas {
        replica.close().await?;
    }
    Ok(())
}

#[test]
fn it_runs() {
    main().unwrap();
}
