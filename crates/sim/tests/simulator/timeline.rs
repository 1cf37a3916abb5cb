//! The path of one update as nodes and its client have noted it: whole, and nothing before its
//! cause (decision 92).

use crate::cut_off::{AP, MS, NODES, SOON, Story, US, node, take_away, top};
use meridian_core::{GroupId, MessageId, NodeId};
use meridian_fs::Kind;
use meridian_host::api::{ReplyBody, RequestBody};
use meridian_host::mutation::Mutation;
use meridian_host::steps::What;
use meridian_session::timeline::{Point, Told, cause, timeline};
use meridian_session::{Mutation as InSession, Output};
use meridian_sim::each_seed;

/// What the client and all nodes have noted of a rename from `us` to `ap`, a second later. All
/// clocks are those of the world.
fn of_a_rename(seed: u64, bug: Mutation) -> Vec<Point> {
    let mut story = Story::of(seed, InSession::Correct, move |node| node.with_host_mutation(bug));
    let away = story.make(top(US), "away", Kind::Directory);
    let file = story.make(away, "f", Kind::File);
    let rename = story.send(take_away(away, file));
    let id = match story.told(rename, SOON) {
        Some(Output::Updated { id, result: Ok(_), .. }) => id,
        other => panic!("{other:?}"),
    };
    story.world.run_for(1000 * MS); // Until all that was said of it has come.
    let nodes = [US, AP].into_iter().flat_map(|group| (0..NODES).map(move |n| node(group, n)));
    let told: Vec<_> = nodes.map(|node| told(&mut story, node, id)).collect();
    let own = story.world.owner.session.report(story.world.now(), id).steps;
    timeline(&own, &told)
}

fn told(story: &mut Story, node: NodeId, id: MessageId) -> Told {
    let asked = story.ask(node, RequestBody::Steps { of: id });
    match story.wait(asked, SOON) {
        Some(ReplyBody::Steps(report)) => {
            Told { node, asked: report.now, answered: report.now, report }
        }
        other => panic!("{other:?}"),
    }
}

/// Whether all is there that a rename over two groups takes, in the order of causes.
fn check(points: &[Point]) -> Result<(), String> {
    for (at, point) in points.iter().enumerate() {
        let from = cause(points, at).map(|from| points[from]);
        if point.at_ns != point.step.at.0 as i64 {
            return Err(format!("{point:?} was before its cause {from:?}"));
        }
        let is_heard = matches!(
            point.step.what,
            What::Requested | What::Appended | What::Answered | What::VoteHeard
        ) || matches!(
            point.step.what,
            What::AckHeard | What::ProposalHeard | What::DecidedHeard
        );
        if is_heard && from.is_none() {
            return Err(format!("nobody has sent what is heard: {point:?}"));
        }
    }
    let of_client = points.iter().filter(|point| point.node.is_none());
    let asked: Vec<_> = of_client.clone().filter(|of| of.step.what == What::Asked).collect();
    if [US, AP].iter().any(|group| asked.iter().all(|of| of.step.group != Some(*group))) {
        return Err(format!("the client has not asked both groups: {asked:?}"));
    }
    let answered = of_client.filter(|of| of.step.what == What::Answered).count();
    if answered == 0 {
        return Err("nobody has answered the client".into());
    }
    check_group(points, US, AP)?;
    check_group(points, AP, US)
}

/// The part of one of the two groups.
fn check_group(points: &[Point], group: GroupId, other: GroupId) -> Result<(), String> {
    let steps = |node: NodeId, what: What| {
        let is = move |point: &&Point| {
            point.node == Some(node) && point.step.what == what && point.step.group == Some(group)
        };
        points.iter().filter(is)
    };
    let at = |node, what| steps(node, what).map(|point| point.at_ns).min();
    let members: Vec<_> = (0..NODES).map(|n| node(group, n)).collect();
    let primaries: Vec<_> =
        members.iter().copied().filter(|node| at(*node, What::Proposed).is_some()).collect();
    let [primary] = primaries[..] else {
        return Err(format!("primaries of {group:?} are {primaries:?}"));
    };
    for node in members.iter().copied() {
        let appended = if node == primary { What::Proposed } else { What::Appended };
        let order =
            [appended, What::Final, What::Delivered, What::Voted, What::VoteSent, What::Applied];
        let times = order.map(|what| at(node, what));
        if times.iter().any(Option::is_none) || !times[..5].is_sorted() {
            return Err(format!("{node}, of {group:?}: {order:?} at {times:?}"));
        }
        // It executes as soon as it has voted and has the other's vote.
        let mut votes = steps(node, What::VoteHeard);
        let voted = votes.any(|vote| {
            vote.step.with.is_some_and(|with| with.group == other) && Some(vote.at_ns) <= times[5]
        });
        if !voted || times[5] < times[3] {
            return Err(format!("{node} applied for {group:?} before it had a vote"));
        }
        let once = steps(node, What::Applied).count();
        if once != 1 {
            return Err(format!("{node} applied it {once} times"));
        }
    }
    for what in [What::AckHeard, What::ProposalHeard, What::DecidedHeard, What::Decided] {
        if at(primary, what) > at(primary, What::Delivered) || at(primary, what).is_none() {
            return Err(format!("the primary of {group:?} delivers without {what:?}"));
        }
    }
    Ok(())
}

#[test]
fn the_path_of_a_rename_over_two_groups_is_whole_and_in_the_order_of_causes() {
    each_seed(0..20, |seed| {
        let points = of_a_rename(seed, Mutation::Correct);
        check(&points).unwrap_or_else(|what| panic!("{what}: {points:#?}"));
    });
}

#[test]
fn a_step_that_is_not_noted_or_under_another_name_is_missed() {
    for bug in [Mutation::MissesSteps, Mutation::MisnamesSteps] {
        assert!(check(&of_a_rename(0, bug)).is_err(), "{bug:?}");
    }
}
