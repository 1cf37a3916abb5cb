//! How members come and go.

use super::*;

fn nodes(nodes: &[u16]) -> BTreeSet<NodeId> {
    nodes.iter().copied().map(NodeId).collect()
}

fn joined() -> Registry {
    let mut registry = Registry::new(nodes(&[0, 1, 2]));
    for node in 0..3 {
        assert_eq!(registry.members().epoch, Epoch(0));
        registry.apply(Request::Join { node: NodeId(node), incarnation: 1, holds: false });
    }
    assert_eq!(registry.members().live, nodes(&[0, 1, 2]));
    registry
}

fn expired(voter: u16, suspension: u64) -> Request {
    Request::Expired { voter: NodeId(voter), node: NodeId(2), suspension }
}

#[test]
fn a_member_goes_when_the_grants_of_a_majority_have_run_out() {
    let mut registry = joined();
    registry.apply(Request::Suspect { node: NodeId(2), epoch: Epoch(1) });
    assert!(!registry.may_serve(NodeId(2)) && registry.may_serve(NodeId(1)));
    registry.apply(expired(0, 1));
    registry.apply(expired(0, 1));
    assert_eq!(registry.members().epoch, Epoch(1));
    registry.apply(expired(1, 1));
    assert_eq!((registry.members().epoch, &registry.members().live), (Epoch(2), &nodes(&[0, 1])));
    registry.apply(expired(2, 1));
    assert_eq!(registry.members().epoch, Epoch(2), "it is over");
}

#[test]
fn who_comes_again_follows_first() {
    let mut registry = joined();
    registry.apply(Request::Join { node: NodeId(1), incarnation: 2, holds: false });
    assert_eq!(registry.members().live, nodes(&[0, 2]));
    assert_eq!(registry.members().shadows, BTreeMap::from([(NodeId(1), Epoch(3))]));
    registry.apply(Request::Complete { node: NodeId(1), epoch: Epoch(2) });
    assert!(!registry.may_serve(NodeId(1)), "that was not this time");
    registry.apply(Request::Complete { node: NodeId(1), epoch: Epoch(3) });
    assert!(registry.may_serve(NodeId(1)));
    registry.apply(Request::Join { node: NodeId(1), incarnation: 1, holds: false });
    assert!(registry.may_serve(NodeId(1)), "the word of an earlier start");
}

#[test]
fn the_last_one_who_holds_anything_stays() {
    let mut registry = joined();
    for node in 0..3 {
        registry.apply(Request::Suspect { node: NodeId(node), epoch: Epoch(1) });
    }
    assert!(registry.may_serve(NodeId(2)) && !registry.may_serve(NodeId(1)));
    registry.apply(Request::Join { node: NodeId(2), incarnation: 2, holds: false });
    assert_eq!(registry.members().live, nodes(&[0, 1]), "these are needed");
    assert!(registry.may_serve(NodeId(0)) && registry.may_serve(NodeId(1)));
    registry.apply(Request::Join { node: NodeId(1), incarnation: 2, holds: false });
    registry.apply(Request::Join { node: NodeId(0), incarnation: 2, holds: false });
    assert_eq!((registry.members().live.clone(), registry.losses()), (nodes(&[0]), 1));
}

#[test]
fn who_comes_again_with_all_that_it_held_stays() {
    let mut registry = joined();
    registry.apply(Request::Suspect { node: NodeId(1), epoch: Epoch(1) });
    registry.apply(Request::Join { node: NodeId(1), incarnation: 2, holds: true });
    assert_eq!((registry.members().epoch, registry.members().live.len()), (Epoch(2), 3));
    assert!(registry.may_serve(NodeId(1)) && registry.has_joined(NodeId(1), 2));
    registry.apply(Request::Join { node: NodeId(2), incarnation: 2, holds: false });
    registry.apply(Request::Join { node: NodeId(2), incarnation: 3, holds: true });
    assert!(!registry.may_serve(NodeId(2)), "what a shadow replica holds does not count");
}

#[test]
fn when_all_that_there_was_has_gone_all_begin_with_nothing() {
    let mut registry = joined();
    for node in [0, 1] {
        registry.apply(Request::Join { node: NodeId(node), incarnation: 2, holds: false });
    }
    let before = registry.members().epoch;
    registry.apply(Request::Join { node: NodeId(2), incarnation: 2, holds: false });
    let members = registry.members();
    assert_eq!((members.live.clone(), registry.losses()), (nodes(&[2]), 1));
    assert!(members.shadows.values().all(|since| *since > before), "{members:?}");
}

fn configured(registry: &mut Registry, version: u64, wanted: &[u16]) {
    registry.apply(Request::Configure { version, nodes: nodes(wanted) });
}

/// A new node has everything.
fn comes(registry: &mut Registry, node: u16) {
    registry.apply(Request::Join { node: NodeId(node), incarnation: 1, holds: false });
    let epoch = registry.members().epoch;
    registry.apply(Request::Complete { node: NodeId(node), epoch });
    assert!(registry.may_serve(NodeId(node)));
}

fn all_follow(registry: &mut Registry) {
    for node in 0..10 {
        let change = registry.changes();
        registry.apply(Request::Follows { node: NodeId(node), change });
    }
}

/// All these say that their grants to whoever is suspended have run out.
fn all_expired(registry: &mut Registry, voters: &[u16]) {
    for voter in voters {
        let awaited: Vec<_> = registry.awaited_of(NodeId(*voter)).collect();
        for (node, suspension) in awaited {
            registry.apply(Request::Expired { voter: NodeId(*voter), node, suspension });
        }
    }
}

/// V1: two changes at once would have majorities that have nobody in common.
#[test]
fn voters_change_one_by_one_when_all_members_go_by_the_last_change() {
    let two_come = |fault| {
        let mut registry = joined().with_fault(fault);
        configured(&mut registry, 1, &[0, 1, 2, 3, 4]);
        comes(&mut registry, 3);
        comes(&mut registry, 4);
        registry
    };
    let mut registry = two_come(Fault::Correct);
    assert_eq!(*registry.voters(), nodes(&[0, 1, 2, 3]));
    registry.apply(Request::Follows { node: NodeId(0), change: 1 });
    registry.apply(Request::Follows { node: NodeId(1), change: 1 });
    registry.apply(Request::Follows { node: NodeId(3), change: 1 });
    assert_eq!(registry.changes(), 1, "node 2 may use a lease of before");
    registry.apply(Request::Suspect { node: NodeId(2), epoch: registry.members().epoch });
    all_expired(&mut registry, &[0, 1, 3]);
    assert_eq!(*registry.voters(), nodes(&[0, 1, 2, 3, 4]), "it uses none any more");
    let planted = two_come(Fault::ChangesAtOnce);
    assert_eq!(planted.changes(), 2, "the planted bug is found");
}

#[test]
fn a_node_is_let_go_as_a_member_and_then_as_a_voter() {
    let mut registry = joined();
    configured(&mut registry, 1, &[1, 2, 3]);
    assert!(registry.may_serve(NodeId(0)), "nobody has come");
    comes(&mut registry, 3);
    assert!(!registry.may_serve(NodeId(0)));
    all_expired(&mut registry, &[1, 2]);
    assert!(registry.is_member(NodeId(0)), "node 3 may seem to be live only");
    all_expired(&mut registry, &[3]);
    assert_eq!(registry.members().live, nodes(&[1, 2, 3]));
    assert!(registry.voters().contains(&NodeId(0)) && !registry.is_dispensable(NodeId(0)));
    all_follow(&mut registry);
    assert_eq!(*registry.voters(), nodes(&[1, 2, 3]));
    registry.apply(Request::Join { node: NodeId(0), incarnation: 2, holds: true });
    assert!(!registry.is_member(NodeId(0)), "it should hold no keys");
    registry.apply(Request::Dismiss { node: NodeId(0) });
    configured(&mut registry, 2, &[0, 1, 2, 3]);
    assert!(registry.has_left(NodeId(0)) && !registry.is_wanted(NodeId(0)));
}

/// Nobody goes because of one that only seems to be live; and who is suspended is needed again.
#[test]
fn who_was_to_go_stays_when_another_is_lost() {
    let mut registry = joined();
    configured(&mut registry, 1, &[3]);
    comes(&mut registry, 3);
    all_follow(&mut registry);
    all_expired(&mut registry, &[0, 1, 2]);
    assert_eq!(registry.members().live.len(), 4, "node 3 has said nothing");
    registry.apply(Request::Join { node: NodeId(3), incarnation: 2, holds: false });
    assert!((0..3).all(|node| registry.may_serve(NodeId(node))), "{registry:?}");
    assert_eq!(registry.losses(), 0);
    // Also if it is suspected, as it has died.
    let epoch = registry.members().epoch;
    registry.apply(Request::Complete { node: NodeId(3), epoch });
    assert!(!registry.may_serve(NodeId(0)));
    registry.apply(Request::Suspect { node: NodeId(3), epoch: registry.members().epoch });
    assert!(registry.may_serve(NodeId(0)) && !registry.may_serve(NodeId(3)));
}

/// All first replicas go one after the other, and keys in memory stay.
#[test]
fn the_last_of_the_first_nodes_goes_when_all_others_are_complete() {
    let mut registry = joined();
    configured(&mut registry, 1, &[3, 4]);
    comes(&mut registry, 3);
    for _ in 0..20 {
        all_follow(&mut registry);
        all_expired(&mut registry, &[0, 1, 2, 3, 4]);
    }
    assert_eq!(registry.members().live, nodes(&[0, 1, 2, 3]), "node 4 is not there");
    comes(&mut registry, 4);
    for _ in 0..20 {
        all_follow(&mut registry);
        all_expired(&mut registry, &[0, 1, 2, 3, 4]);
    }
    assert_eq!((&registry.members().live, registry.voters()), (&nodes(&[3, 4]), &nodes(&[3, 4])));
    assert_eq!(registry.losses(), 0);
}

/// A node that is there and does not vote has granted nothing that counts: its word is no voter's.
#[test]
fn only_the_words_of_voters_count() {
    let removed_by_strangers = |fault| {
        let mut registry = joined().with_fault(fault);
        configured(&mut registry, 1, &[0, 1, 2, 3, 4]);
        for node in [3, 4] {
            registry.apply(Request::Join { node: NodeId(node), incarnation: 1, holds: false });
        }
        registry.apply(Request::Suspect { node: NodeId(0), epoch: registry.members().epoch });
        all_expired(&mut registry, &[3, 4]);
        !registry.is_member(NodeId(0))
    };
    assert!(!removed_by_strangers(Fault::Correct));
    assert!(removed_by_strangers(Fault::CountsAnyone), "the planted bug is found");
}

#[test]
fn an_older_configuration_changes_nothing() {
    let mut registry = joined();
    configured(&mut registry, 5, &[0, 1, 2, 3]);
    configured(&mut registry, 4, &[0]);
    configured(&mut registry, 6, &[]);
    assert_eq!(*registry.wanted(), nodes(&[0, 1, 2, 3]));
}
