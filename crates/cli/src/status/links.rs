//! How far regions are from each other, as their nodes measure it.

use super::Answered;
use crate::output;
use meridian_cluster::Topology;
use meridian_core::{NodeId, RegionId};
use serde::Serialize;
use std::collections::BTreeMap;

/// The ways from the nodes of one region to those of another, or to each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LinkReport {
    from: String,
    to: String,
    /// How long it takes there and back, in microseconds: the median over pairs of nodes. `None`
    /// if nobody has measured it.
    round_trip_us: Option<u64>,
    /// So many pairs of nodes there are of which the first answers.
    pairs: usize,
    /// So many of these are connected.
    connected: usize,
}

/// What the nodes that answer have measured: each region to each, in their order.
pub fn reports(topology: &Topology, answers: &BTreeMap<NodeId, Answered>) -> Vec<LinkReport> {
    let all = || topology.staying_regions();
    let pairs = all().flat_map(|from| all().map(move |to| (from, to)));
    pairs.map(|(from, to)| report(topology, answers, from, to)).collect()
}

fn report(
    topology: &Topology,
    answers: &BTreeMap<NodeId, Answered>,
    from: RegionId,
    to: RegionId,
) -> LinkReport {
    let (mut pairs, mut connected, mut measured) = (0, 0, Vec::new());
    for here in topology.nodes_in(from) {
        let Some(Ok(status)) = answers.get(&here) else { continue };
        for there in topology.nodes_in(to).filter(|there| *there != here) {
            pairs += 1;
            connected += usize::from(status.connected.contains(&there));
            let known = status.round_trips_us.iter().find(|(peer, _)| *peer == there);
            measured.extend(known.map(|(_, took)| *took));
        }
    }
    measured.sort_unstable();
    let name = |region: RegionId| topology.regions[usize::from(region.0)].name.clone();
    LinkReport {
        from: name(from),
        to: name(to),
        round_trip_us: measured.get(measured.len() / 2).copied(),
        pairs,
        connected,
    }
}

/// For people: a row for each region from which, a column for each to which.
pub fn table(links: &[LinkReport]) -> String {
    let columns = links.iter().take_while(|link| link.from == links[0].from).count();
    let mut head = vec!["there and back"];
    head.extend(links[..columns].iter().map(|link| link.to.as_str()));
    let cell = |link: &LinkReport| {
        let time = match link.round_trip_us {
            None => "-".into(),
            Some(us) => format!("{}.{} ms", us / 1000, us / 100 % 10),
        };
        match link.pairs - link.connected {
            0 => time,
            lacking => format!("{time} !{lacking} of {}", link.pairs),
        }
    };
    let rows = links.chunks(columns.max(1)).map(|row| {
        let mut cells = vec![row[0].from.clone()];
        cells.extend(row.iter().map(cell));
        cells
    });
    output::table(&head, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Shape, new_cluster};
    use crate::status::tests::status;

    #[test]
    fn the_median_of_what_was_measured_is_told_and_who_has_no_connection() {
        let regions = vec!["us".into(), "eu".into()];
        let shape = Shape { regions, nodes_per_region: Some(3), ..Shape::default() };
        let topology = Topology::new(&new_cluster(&shape).unwrap()).unwrap();
        let us = |node: u16, far: [u64; 3]| {
            let mut status = status(node, &[]);
            let near = (0..3).filter(|near| *near != node).map(|near| (NodeId(near), 250));
            let far = (3..6).zip(far).map(|(node, took)| (NodeId(node), took));
            status.round_trips_us = near.chain(far).collect();
            status.connected = status.round_trips_us.iter().map(|(node, _)| *node).collect();
            status
        };
        let mut third = us(2, [80_450, 80_000, 99_000]);
        third.connected.pop();
        let answered = [Ok(us(0, [80_000; 3])), Ok(us(1, [80_450; 3])), Ok(third)];
        let mut answers: BTreeMap<_, _> = topology.node_ids().zip(answered).collect();
        answers.insert(NodeId(3), Err("connection refused".into()));
        let links = reports(&topology, &answers);
        let of = |link: &LinkReport| (link.round_trip_us, link.pairs, link.connected);
        let told: Vec<_> = links.iter().map(of).collect();
        let nobody = (None, 0, 0);
        assert_eq!(told, [(Some(250), 6, 6), (Some(80_450), 9, 8), nobody, nobody]);
        let table = table(&links);
        assert!(table.contains("0.2 ms") && table.contains("80.4 ms !1 of 9"), "{table}");
        let lines: Vec<_> = table.lines().collect();
        assert!(lines[0].contains("there and back") && lines[0].contains("eu"), "{table}");
    }
}
