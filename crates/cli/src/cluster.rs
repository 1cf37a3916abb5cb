//! Which nodes a demo has, where they listen, and `cluster.json`.

use crate::certificates::{TlsArgs, WATCHER};
use anyhow::{Context, bail, ensure};
use clap::Args;
use meridian_cluster::Topology;
use meridian_cluster::configuration::{REPLICAS_MAX, check_node_name, check_region_name};
use meridian_cluster::levels::Levels;
use meridian_cluster::topology::{CLUSTER_FORMAT, ClusterFile, DeliveryOrder, Kept, NodeEntry};
use meridian_core::RegionId;
use meridian_core::level::Speaks;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The name of the file in the data directory.
pub const CLUSTER_FILE: &str = "cluster.json";
/// The extended attribute of all that is mounted: where the cluster file is.
const CLUSTER_OF_MOUNT: &str = "user.meridian.cluster";
/// The variable in which `demo --exec` tells CMD where that is: another demo may have been started
/// meanwhile.
pub const CLUSTER_VARIABLE: &str = "MERIDIAN_CLUSTER";
/// Round trips longer than a minute are a slip of the pen.
const RTT_MAX_MS: u32 = 60_000;
/// One machine does not carry more processes than this.
const NODES_MAX: usize = 99;
/// Where ports are looked for. Below the range from which Linux takes the near end of outgoing
/// connections (from 32768): there, a peer that keeps calling a dead node's port can be given that
/// very port and end up talking to itself.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// Which cluster a command is about, and how it tells.
#[derive(Clone, Debug, Default, Args)]
pub struct Of {
    /// The cluster [default: MERIDIAN_CLUSTER, or that of the mount, or of the demo started last]
    #[arg(long, value_name = "FILE")]
    pub cluster: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub tls: TlsArgs,
}

/// What the user says of the cluster's shape.
#[derive(Clone, Debug, Default, Args)]
pub struct Shape {
    /// Regions; lower-case letters and digits [default: us,eu,ap, or as --data has them]
    #[arg(long, value_delimiter = ',', value_name = "NAME,..", value_parser = region_name)]
    pub regions: Vec<String>,
    /// Nodes in each region [default: 3, or as --data has them]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=33))]
    pub nodes_per_region: Option<u16>,
    /// Round trip added between regions, in milliseconds: one number for all pairs, or
    /// us-eu=80,us-ap=160 [default: 0, or as --data has it]
    #[arg(long, value_name = "MS")]
    pub rtt: Option<String>,
    /// Order of updates over all regions: sequential, or linearizable, which takes more messages
    /// when regions write to the same [default: sequential, or as --data has it]
    #[arg(long, value_name = "ORDER", value_parser = order)]
    pub order: Option<DeliveryOrder>,
    /// Listen on PORT, PORT+1, ... instead of any free ports
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
}

/// Whether a region may be called that.
///
/// # Errors
/// If not: what a name is made of.
pub fn region_name(text: &str) -> Result<String, String> {
    check_region_name(text).map(|()| text.into())
}

/// A node may be called that. Older programs that keep the configuration take the watcher's name,
/// so it is refused here.
///
/// # Errors
/// If not: what a name is made of, or whose it is.
pub fn node_name(text: &str) -> Result<String, String> {
    check_node_name(text)?;
    if text == WATCHER {
        return Err("watcher is what another certificate is called".into());
    }
    Ok(text.into())
}

/// The order of that name.
///
/// # Errors
/// If there is none: which there are.
pub fn order(text: &str) -> Result<DeliveryOrder, String> {
    let known = [DeliveryOrder::Sequential, DeliveryOrder::Linearizable];
    let named = known.into_iter().find(|order| order.name() == text);
    named.ok_or_else(|| format!("there are {}", known.map(DeliveryOrder::name).join(" and ")))
}

/// A new cluster of that shape.
///
/// # Errors
/// If the shape contradicts itself, or no ports are free.
pub fn new_cluster(shape: &Shape) -> anyhow::Result<ClusterFile> {
    let mut regions = shape.regions.clone();
    if regions.is_empty() {
        regions = ["us", "eu", "ap"].map(String::from).to_vec();
    }
    for (at, region) in regions.iter().enumerate() {
        ensure!(!regions[..at].contains(region), "--regions names {region} twice");
    }
    let per_region = usize::from(shape.nodes_per_region.unwrap_or(3));
    let count = regions.len() * per_region;
    ensure!(
        count <= NODES_MAX,
        "{count} nodes are more than one machine carries: at most {NODES_MAX}"
    );
    let rtt_ms = shape.rtt.as_deref().map(|text| parse_rtt(text, &regions)).transpose()?;
    let mut ports = free_ports(count, shape.port)?.into_iter();
    let mut nodes = Vec::new();
    for region in &regions {
        for number in 1..=per_region {
            let port = ports.next().expect("as many as were asked for");
            let address = format!("127.0.0.1:{port}");
            nodes.push(node(format!("{region}-{number}"), region, address));
        }
    }
    let order = shape.order.unwrap_or_default();
    Ok(ClusterFile { rtt_ms: rtt_ms.unwrap_or_default(), ..made_of(nodes, order, &[])? })
}

/// A node of a new cluster.
pub fn node(name: String, region: &str, address: String) -> NodeEntry {
    let groups = vec!["global".into(), region.into()];
    NodeEntry { name, region: region.into(), pid: None, address, groups, draining: None }
}

/// A new cluster of those nodes. If nobody is named who keeps its configuration, some of them do.
///
/// # Errors
/// If the nodes contradict each other.
pub fn made_of(
    nodes: Vec<NodeEntry>,
    order: DeliveryOrder,
    keep: &[String],
) -> anyhow::Result<ClusterFile> {
    let levels = Levels::of_new(Speaks::HERE.newest, nodes.iter().map(|node| &node.name));
    let (cluster, configuration) = (random_name()?, Kept { version: 1, levels, ..Kept::default() });
    let age = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let created_ms = u64::try_from(age.as_millis()).unwrap_or_default();
    let mut file = ClusterFile {
        format: CLUSTER_FORMAT,
        created_ms,
        cluster,
        nodes,
        rtt_ms: BTreeMap::new(),
        order,
        insecure_plain_text: false,
        configuration,
    };
    file.configuration.replicas = match keep {
        [] => {
            let places = keepers(&Topology::new(&file)?).into_iter();
            places.map(|at| file.nodes[at].name.clone()).collect()
        }
        named => named.iter().cloned().collect(),
    };
    Topology::new(&file)?;
    Ok(file)
}

/// The places of the nodes that are to keep the configuration: one of each region first, and an odd
/// number.
fn keepers(topology: &Topology) -> Vec<usize> {
    let regions = (0..topology.regions.len()).filter_map(|id| u16::try_from(id).ok());
    let of = |region| topology.nodes_in(RegionId(region)).collect::<Vec<_>>();
    let regions: Vec<_> = regions.map(of).collect();
    let longest = regions.iter().map(Vec::len).max().unwrap_or(0);
    let by_turns = (0..longest).flat_map(|turn| regions.iter().filter_map(move |of| of.get(turn)));
    let mut places: Vec<_> = by_turns.map(|id| usize::from(id.0)).take(REPLICAS_MAX).collect();
    if places.len().is_multiple_of(2) {
        places.pop();
    }
    places
}

/// Fits a cluster that was started before to what the user says now, and tells which nodes have
/// moved to other ports.
///
/// # Errors
/// If the two contradict each other, or no ports are free.
pub fn adapt(file: &mut ClusterFile, shape: &Shape, data: &Path) -> anyhow::Result<Vec<String>> {
    let topology = Topology::new(file)?;
    let regions: Vec<String> = topology.region_names().into_iter().map(String::from).collect();
    let other = |what: &str, has: &str| {
        format!("{} has {has}: leave out {what}, or name another --data", data.display())
    };
    if !shape.regions.is_empty() && shape.regions != regions {
        bail!(other("--regions", &format!("the regions {}", regions.join(","))));
    }
    if let Some(wanted) = shape.nodes_per_region {
        for region in &regions {
            let here = topology.region_named(region).map(|id| topology.nodes_in(id).count());
            let has = here.unwrap_or_default();
            if has != usize::from(wanted) {
                bail!(other("--nodes-per-region", &format!("{has} nodes in {region}")));
            }
        }
    }
    if shape.order.is_some_and(|wanted| wanted != file.order) {
        bail!(other("--order", &format!("the order {}", file.order.name())));
    }
    if let Some(text) = &shape.rtt {
        file.rtt_ms = parse_rtt(text, &regions)?;
    }
    let mut moved = Vec::new();
    let present: Vec<_> = topology.present().map(|id| usize::from(id.0)).collect();
    let old = |at: &usize| file.nodes[*at].address.clone();
    let taken: Vec<bool> = present.iter().map(|at| !is_free(&old(at))).collect();
    let wanted: Vec<Option<u16>> = match shape.port {
        Some(_) => free_ports(present.len(), shape.port)?.into_iter().map(Some).collect(),
        None => {
            let mut fresh = free_ports(taken.iter().filter(|taken| **taken).count(), None)?;
            taken.iter().map(|taken| if *taken { fresh.pop() } else { None }).collect()
        }
    };
    for (at, port) in present.into_iter().zip(wanted) {
        let Some(port) = port else { continue };
        let (node, address) = (&mut file.nodes[at], format!("127.0.0.1:{port}"));
        if node.address != address {
            moved.push(format!("{} moves from {} to {address}", node.name, node.address));
            node.address = address;
        }
    }
    file.nodes.iter_mut().for_each(|node| node.pid = None);
    Ok(moved)
}

/// Reads a `cluster.json`.
///
/// # Errors
/// If it cannot be read or is none.
pub fn read(path: &Path) -> anyhow::Result<(Topology, ClusterFile)> {
    let text = fs::read_to_string(path)
        .with_context(|| format!("cannot read the cluster file {}", path.display()))?;
    Topology::parse(&text).with_context(|| path.display().to_string())
}

/// Writes a `cluster.json` so that a reader sees the old or the new one, also after a crash.
///
/// # Errors
/// If the disk refuses.
pub fn write(path: &Path, file: &ClusterFile) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(file)?;
    text.push('\n');
    write_atomically(path, &text)
}

/// Replaces a file's contents at once.
///
/// # Errors
/// If the disk refuses.
pub fn write_atomically(path: &Path, text: &str) -> anyhow::Result<()> {
    let what = || format!("cannot write {}", path.display());
    let beside = path.with_extension(format!("new-{}", std::process::id()));
    let mut file = fs::File::create(&beside).with_context(what)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).with_context(what)?;
    fs::rename(&beside, path).with_context(what)
}

/// Reads `--rtt`.
fn parse_rtt(text: &str, regions: &[String]) -> anyhow::Result<BTreeMap<String, u32>> {
    let number = |text: &str| match text.trim().trim_end_matches("ms").parse::<u32>() {
        Ok(ms) if ms <= RTT_MAX_MS => Ok(ms),
        _ => bail!("--rtt: {text:?} is not a number of milliseconds up to {RTT_MAX_MS}"),
    };
    let mut rtt_ms = BTreeMap::new();
    if !text.contains('=') {
        let ms = number(text)?;
        for (at, a) in regions.iter().enumerate() {
            for b in &regions[at + 1..] {
                rtt_ms.insert(format!("{a}-{b}"), ms);
            }
        }
        return Ok(rtt_ms);
    }
    for part in text.split(',') {
        let (pair, ms) = part
            .split_once('=')
            .with_context(|| format!("--rtt: {part:?} is not like us-eu=80"))?;
        let (a, b) = pair
            .trim()
            .split_once('-')
            .with_context(|| format!("--rtt: {pair:?} does not name two regions, as us-eu does"))?;
        for region in [a, b] {
            ensure!(
                regions.iter().any(|name| name == region),
                "--rtt: no region {region}: there are {}",
                regions.join(", ")
            );
        }
        ensure!(a != b, "--rtt: {pair} is one region; only ways between regions are lengthened");
        let twice = rtt_ms.contains_key(&format!("{b}-{a}"));
        if rtt_ms.insert(format!("{a}-{b}"), number(ms)?).is_some() || twice {
            bail!("--rtt names {a} and {b} twice");
        }
    }
    Ok(rtt_ms)
}

/// An address of this machine where nobody listens.
///
/// # Errors
/// If there is none.
pub fn free_address() -> anyhow::Result<String> {
    let port = free_ports(1, None)?;
    Ok(format!("127.0.0.1:{}", port[0]))
}

fn is_free(address: &str) -> bool {
    TcpListener::bind(address).is_ok()
}

/// So many ports that nobody listens on; with `base`, exactly the ones from there.
fn free_ports(count: usize, base: Option<u16>) -> anyhow::Result<Vec<u16>> {
    if let Some(base) = base {
        let ports: Vec<u16> = (base..=u16::MAX).take(count).collect();
        ensure!(ports.len() == count, "--port {base} leaves no room for {count} ports");
        for port in &ports {
            ensure!(
                is_free(&format!("127.0.0.1:{port}")),
                "port {port} is in use or not allowed: leave out --port, or name another"
            );
        }
        return Ok(ports);
    }
    let span = usize::from(PORTS.end - PORTS.start);
    let start = usize::try_from(random_name()? % span as u64)?;
    let mut ports = PORTS.cycle().skip(start).take(span);
    let mut held = Vec::new(); // Bound until all are found, so that none is found twice.
    let mut found = Vec::new();
    while found.len() < count {
        let Some(port) = ports.next() else {
            bail!("no free ports in {PORTS:?}: name one with --port")
        };
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            held.push(listener);
            found.push(port);
        }
    }
    Ok(found)
}

/// 53 random bits: numbers that every JSON reader keeps exactly.
pub fn random_name() -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    let read = fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.context("cannot read /dev/urandom")?;
    Ok(u64::from_le_bytes(bytes) >> 11)
}

/// The cluster file of what is mounted at a path, if it is a cluster.
pub fn of_mount(path: &Path) -> Option<PathBuf> {
    let mut value = [0; 4096];
    let len = rustix::fs::getxattr(path, CLUSTER_OF_MOUNT, &mut value).ok()?;
    Some(PathBuf::from(OsStr::from_bytes(&value[..len])))
}

/// The cluster file that a command about `path` means: the one named, else that of what is mounted
/// there, else as [`named_or_last`].
///
/// # Errors
/// If none is named and none is known.
pub fn named_or_of(named: Option<&Path>, path: &Path) -> anyhow::Result<PathBuf> {
    match of_mount(path).filter(|_| named.is_none()) {
        Some(cluster) => Ok(cluster),
        None => named_or_last(named),
    }
}

/// The cluster file a command means: the one named, else that of the demo in whose `--exec` it
/// runs, else that of what is mounted where it runs, else that of the demo which was started last.
///
/// # Errors
/// If none is named and no demo is known.
pub fn named_or_last(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(path) = named {
        return Ok(if path.is_dir() { path.join(CLUSTER_FILE) } else { path.into() });
    }
    if let Some(path) = std::env::var_os(CLUSTER_VARIABLE) {
        return Ok(path.into());
    }
    match top_here().and_then(|top| of_mount(&top)) {
        Some(cluster) => Ok(cluster),
        None => last_started(),
    }
}

/// The top of the mount in which this runs. The working directory itself is not asked: it may be in
/// a region that is cut off.
fn top_here() -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    crate::mount::innermost(&here, &crate::mount::all_here().ok()?).cloned()
}

/// The same, if nothing that is mounted may be asked, as it might not answer.
///
/// # Errors
/// As [`named_or_last`].
pub fn named_or_known(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    match named.is_some() || std::env::var_os(CLUSTER_VARIABLE).is_some() {
        true => named_or_last(named),
        false => last_started(),
    }
}

fn last_started() -> anyhow::Result<PathBuf> {
    match crate::last::read() {
        Some(last) if last.cluster.exists() => Ok(last.cluster),
        _ => bail!(
            "no demo is running, and no --cluster FILE is named: start one with \
             `meridian demo`, or see docs/setup.md"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regions() -> Vec<String> {
        ["us", "eu", "ap"].map(String::from).to_vec()
    }

    #[test]
    fn a_new_cluster_is_a_topology() {
        let shape = Shape { nodes_per_region: Some(2), rtt: Some("80".into()), ..Shape::default() };
        let file = new_cluster(&shape).unwrap();
        let topology = Topology::new(&file).unwrap();
        assert_eq!(
            (topology.nodes.len(), topology.groups.len(), topology.one_way.len()),
            (6, 4, 6)
        );
        assert!(file.cluster < 1 << 53);
    }

    #[test]
    fn round_trips_are_read_and_slips_are_named() {
        let rtt = parse_rtt("us-eu=80, us-ap=160ms", &regions()).unwrap();
        assert_eq!(rtt, BTreeMap::from([("us-ap".into(), 160), ("us-eu".into(), 80)]));
        assert_eq!(parse_rtt("7", &regions()).unwrap().len(), 3);
        let slip = |text| parse_rtt(text, &regions()).unwrap_err().to_string();
        assert!(slip("us-mars=1").contains("no region mars: there are us, eu, ap"));
        assert!(slip("us-us=1").contains("one region"));
        assert!(slip("us-eu=1,eu-us=2").contains("twice"));
        assert!(slip("fast").contains("fast"));
        assert!(slip("-1").contains("-1"));
        assert!(slip("us=1").contains("two regions"));
    }

    #[test]
    fn a_cluster_is_started_again_as_it_was() {
        let shape = Shape { nodes_per_region: Some(1), ..Shape::default() };
        let mut file = new_cluster(&shape).unwrap();
        // Any port, so that tests beside this one cannot take it.
        file.nodes.iter_mut().for_each(|node| node.address = "127.0.0.1:0".into());
        let before = file.clone();
        let data = Path::new("data");
        assert_eq!(adapt(&mut file, &Shape::default(), data).unwrap(), Vec::<String>::new());
        assert_eq!(file, before);
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        file.nodes[1].address = taken.local_addr().unwrap().to_string();
        let moved = adapt(&mut file, &shape, data).unwrap();
        assert!(moved.len() == 1 && moved[0].starts_with("eu-1 moves from"), "{moved:?}");
        assert_ne!(file.nodes[1].address, taken.local_addr().unwrap().to_string());
        let three = Shape { nodes_per_region: Some(3), ..Shape::default() };
        let error = adapt(&mut file, &three, data).unwrap_err().to_string();
        assert!(error.contains("data has 1 nodes in us"), "{error}");
        let linearizable = Shape { order: order("linearizable").ok(), ..Shape::default() };
        let error = adapt(&mut file, &linearizable, data).unwrap_err().to_string();
        assert!(error.contains("data has the order sequential"), "{error}");
    }

    #[test]
    fn an_odd_number_of_nodes_keep_the_configuration_in_all_regions() {
        let who = |regions: &[&str], per_region: u16| {
            let regions = regions.iter().map(|name| name.to_string()).collect();
            let shape = Shape { regions, nodes_per_region: Some(per_region), ..Shape::default() };
            new_cluster(&shape).unwrap().configuration.replicas.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(who(&["us", "eu", "ap"], 3), ["ap-1", "eu-1", "eu-2", "us-1", "us-2"]);
        assert_eq!(who(&["us", "eu"], 2), ["eu-1", "us-1", "us-2"]);
        assert_eq!(who(&["us"], 2), ["us-1"]);
    }

    #[test]
    fn a_node_that_was_removed_stays_away() {
        let mut file = new_cluster(&Shape::default()).unwrap();
        file.nodes[1].groups.clear();
        let gone = file.nodes[1].address.clone();
        adapt(&mut file, &Shape::default(), Path::new("data")).unwrap();
        assert_eq!(file.nodes[1].address, gone);
        let three = Shape { nodes_per_region: Some(3), ..Shape::default() };
        let error = adapt(&mut file, &three, Path::new("data")).unwrap_err().to_string();
        assert!(error.contains("data has 2 nodes in us"), "{error}");
    }

    #[test]
    fn the_order_is_that_which_is_asked_for() {
        let shape = Shape { order: order("linearizable").ok(), ..Shape::default() };
        assert_eq!(new_cluster(&shape).unwrap().order, DeliveryOrder::Linearizable);
        assert_eq!(new_cluster(&Shape::default()).unwrap().order, DeliveryOrder::Sequential);
        assert_eq!(order("random").unwrap_err(), "there are sequential and linearizable");
    }

    #[test]
    fn bad_region_names_are_refused() {
        assert!(region_name("us2").is_ok());
        for bad in ["global", "", "us-east", "US", "a/b", ".."] {
            assert!(region_name(bad).is_err(), "{bad}");
        }
    }
}
