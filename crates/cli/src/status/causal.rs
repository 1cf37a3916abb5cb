//! How far each region is with the causal keys of each other.

use super::Answered;
use crate::output;
use meridian_cluster::Topology;
use meridian_core::NodeId;
use serde::Serialize;
use std::collections::BTreeMap;

/// What one region has of another's updates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CausalReport {
    /// Where updates are made.
    from: String,
    /// Where they are applied.
    to: String,
    /// For how long what was made may not be applied; nothing before anything is.
    lag_ms: Option<u64>,
    /// So many updates wait there, or are being applied.
    queue: u64,
    /// All that was made up to then is applied; milliseconds since 1970.
    applied_ms: u64,
    /// What was made up to then may leave its region, if that can be asked.
    stable_ms: Option<u64>,
    /// So many updates some region may lack, of those that were made where this one's were.
    outstanding: u64,
}

fn region_of(topology: &Topology, node: NodeId) -> String {
    let region = topology.nodes.get(usize::from(node.0)).map(|node| node.region);
    region.map_or_else(
        || node.to_string(),
        |region| topology.regions[usize::from(region.0)].name.clone(),
    )
}

/// What all nodes together know: the one that follows another region knows most of it.
pub fn reports(topology: &Topology, answers: &BTreeMap<NodeId, Answered>) -> Vec<CausalReport> {
    let mut pairs: BTreeMap<(String, String), CausalReport> = BTreeMap::new();
    let mut made: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for (id, answer) in answers {
        let Some(status) = answer.as_ref().ok().and_then(|status| status.causal.as_ref()) else {
            continue;
        };
        let to = region_of(topology, *id);
        let (stable_ms, outstanding) = made.entry(to.clone()).or_default();
        *stable_ms = status.stable_ms.max(*stable_ms);
        *outstanding += status.outstanding;
        for known in &status.from {
            let from = region_of(topology, known.of);
            let report = CausalReport {
                from: from.clone(),
                to: to.clone(),
                lag_ms: (known.applied_ms > 0).then_some(known.lag_ms),
                queue: known.queue,
                applied_ms: known.applied_ms,
                stable_ms: None,
                outstanding: 0,
            };
            let best = pairs.entry((from, to.clone())).or_insert_with(|| report.clone());
            best.queue = best.queue.max(report.queue);
            if report.applied_ms > best.applied_ms {
                (best.applied_ms, best.lag_ms) = (report.applied_ms, report.lag_ms);
            }
        }
    }
    for ((from, _), report) in &mut pairs {
        if let Some((stable_ms, outstanding)) = made.get(from) {
            (report.stable_ms, report.outstanding) = (Some(*stable_ms), *outstanding);
        }
    }
    pairs.into_values().collect()
}

/// For people; nothing if there are no causal keys.
pub fn table(reports: &[CausalReport]) -> String {
    if reports.is_empty() {
        return String::new();
    }
    let head =
        ["causal keys of", "in", "lag", "queue", "outstanding", "applied up to", "stable up to"];
    let rows = reports.iter().map(|report| {
        vec![
            report.from.clone(),
            report.to.clone(),
            report.lag_ms.map_or("-".into(), |lag| format!("{lag} ms")),
            report.queue.to_string(),
            report.outstanding.to_string(),
            time_of_day(report.applied_ms),
            report.stable_ms.map_or("-".into(), time_of_day),
        ]
    });
    output::table(&head, rows)
}

/// The time of day in the zone of Greenwich.
fn time_of_day(ms: u64) -> String {
    if ms == 0 {
        return "nothing".into();
    }
    let seconds = ms / 1000 % 86_400;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{hours:02}:{minutes:02}:{seconds:02}.{:03} UTC", ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Shape, new_cluster};
    use meridian_host::api::{CausalFrom, CausalStatus, NodeStatus};

    #[test]
    fn of_each_pair_of_regions_the_node_is_told_that_knows_most() {
        let regions = vec!["us".into(), "eu".into()];
        let shape = Shape { regions, nodes_per_region: Some(2), ..Shape::default() };
        let topology = Topology::new(&new_cluster(&shape).unwrap()).unwrap();
        let status = |of, applied_ms, queue| NodeStatus {
            causal: Some(CausalStatus {
                stable_ms: applied_ms + 7,
                outstanding: 2,
                from: vec![CausalFrom {
                    of: NodeId(of),
                    applied_ms,
                    lag_ms: 90 - applied_ms,
                    queue,
                }],
            }),
            ..super::super::tests::status(0, &[])
        };
        let answers = [
            Ok(status(2, 50, 1)),
            Ok(status(2, 60, 0)),
            Ok(status(0, 40, 3)),
            Err("connection refused".to_string()),
        ];
        let reports = reports(&topology, &topology.node_ids().zip(answers).collect());
        let told = |at: usize| {
            let CausalReport { from, to, lag_ms, queue, outstanding, stable_ms, .. } = &reports[at];
            (from.as_str(), to.as_str(), *lag_ms, *queue, *outstanding, *stable_ms)
        };
        assert_eq!(reports.len(), 2);
        assert_eq!(told(0), ("eu", "us", Some(30), 1, 2, Some(47)));
        assert_eq!(told(1), ("us", "eu", Some(50), 3, 4, Some(67)));
        assert!(table(&reports).contains("00:00:00.060 UTC") && table(&[]).is_empty());
    }
}
