//! A map on three replicas over TCP. One is killed; the map goes on.
//!
//! `cargo run -p meridian-paxos --example kv`

use bytes::Bytes;
use meridian_core::NodeId;
use meridian_paxos::{Consistency, Service};
use meridian_runtime::{Listen, Storage, smr};
use std::{collections::BTreeMap, error::Error, net::TcpListener};

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
    let data = std::env::temp_dir().join(format!("kv-{}", std::process::id()));
    let (mut members, mut sockets, mut replicas) = (BTreeMap::new(), Vec::new(), Vec::new());
    for me in (0..3).map(NodeId) {
        let socket = TcpListener::bind("127.0.0.1:0")?;
        members.insert(me, socket.local_addr()?.to_string());
        sockets.push((me, Listen::Socket(socket)));
    }
    for (me, listen) in sockets {
        let storage = Storage::directory(data.join(me.0.to_string()));
        let options =
            smr::Options { listen, ..smr::Options::new("kv", me, members.clone(), storage) };
        replicas.push(smr::Replica::start(options, Map::default()).await?);
    }
    let mut client = smr::Client::connect("kv", members.values()).await?;
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
    Ok(std::fs::remove_dir_all(data)?)
}
