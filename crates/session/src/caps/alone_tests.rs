use super::*;
use crate::calls::CallId;
use crate::caps::Errand;
use meridian_core::{ClientId, Stamp};
use meridian_fs::operation::WriteAt;
use meridian_fs::settled::Made;
use meridian_fs::{Answer, Done, Durability, FsError};
use meridian_host::update::Change;

const EU: GroupId = GroupId(2);
pub(super) const NOW: Time = Time(1_000_000);
pub(super) const DIRECTORY: Place = Place { ino: Ino(7), partition: EU };
pub(super) const TIME: Timestamp = Timestamp { seconds: 9, nanos: 0 };

pub(super) fn name(text: &'static str) -> Name {
    Name::from_static(text.as_bytes())
}

fn directory(size: u64) -> Attributes {
    let bare = Attributes::bare(DIRECTORY, Kind::Directory);
    Attributes { mode: 0o2775, nlink: 2, uid: 1, gid: 50, size, ..bare }
}

pub(super) fn node() -> NewNode {
    NewNode { uid: 3, gid: 3, umask: 0o022, ..NewNode::new(Kind::File, 0o666) }
}

/// Of a client that holds the directory, which is empty.
fn holding() -> Caps {
    let mut caps = Caps::new(ClientId(5));
    caps.turn_on();
    caps.keep_back(Some(Keeping::Files));
    caps.extend(NOW, EU, NOW);
    caps.hold(NOW, DIRECTORY);
    let known = caps.known.get_mut(&DIRECTORY.ino).unwrap();
    known.is_empty();
    known.attributes.value = Some(directory(0));
    caps
}

/// What comes after the question what is recalled, which is of no interest here.
fn errand(caps: &mut Caps) -> Option<Errand> {
    let next = caps.next_errand(NOW).map(|(_, errand)| errand);
    if next == Some(Errand::Poll) { errand(caps) } else { next }
}

/// The client makes files as others do, until it asks to hold their directory exclusively.
fn asking() -> Caps {
    let mut caps = holding();
    for (number, text) in (0..).zip(["one", "two"]) {
        assert_eq!(errand(&mut caps), None);
        let (call, ts) = (CallId(number), Stamp(number + 1));
        let update = Update::Create { parent: DIRECTORY, name: name(text), node: node() };
        caps.begin_update(NOW, call, &Change::new(TIME, update));
        let place = Place { ino: Ino(100 + number), ..DIRECTORY };
        let made = node().attributes_in(&directory(0), place, TIME).unwrap();
        caps.end_update(NOW, call, ts, &mut Ok(Done::Attributes(made)));
        // It holds what it has made.
        caps.hold(NOW, place);
        caps.known.get_mut(&place.ino).unwrap().attributes.value = Some(made);
    }
    assert_eq!(errand(&mut caps), Some(Errand::GrantExclusive(DIRECTORY.ino)));
    caps
}

fn end(caps: &mut Caps, errand: Errand, granted: &[Ino]) {
    caps.on_ended(NOW, EU, (errand, NOW), Some(granted.to_vec()));
    caps.check_invariants();
}

fn holding_alone() -> Caps {
    let mut caps = asking();
    end(&mut caps, Errand::GrantExclusive(DIRECTORY.ino), &[DIRECTORY.ino]);
    caps
}

fn make(caps: &mut Caps, text: &'static str) -> Option<Attributes> {
    let made = caps.begin_new(NOW, (DIRECTORY, &name(text)), (&node(), TIME), &Vector::default());
    caps.check_invariants();
    made
}

fn look(caps: &mut Caps, query: Query) -> Option<Result<Answer, FsError>> {
    caps.answer(NOW, &query, &Vector::default())
}

fn look_up(text: &'static str) -> Query {
    Query::Lookup { parent: DIRECTORY, name: name(text) }
}

fn entries() -> Query {
    Query::Attributes { inode: DIRECTORY }
}

fn size(caps: &mut Caps) -> Option<u64> {
    match look(caps, entries()) {
        Some(Ok(Answer::Attributes(of))) => Some(of.size),
        _ => None,
    }
}

/// What makes a file that is kept back.
pub(super) fn part_of(made: &Attributes, text: &'static str) -> Kept {
    let (pieces, settings) = (Vec::new(), Vec::new());
    Kept::Make(Box::new(Made {
        parent: DIRECTORY,
        name: name(text),
        node: node(),
        ino: made.place.ino,
        made: TIME,
        at: WriteAt::End,
        pieces,
        written: TIME,
        settings,
    }))
}

/// The owner sends what it keeps back.
fn send(caps: &mut Caps, made: &Attributes, text: &'static str) {
    let update = part_of(made, text).into_update();
    caps.begin_update(NOW, CallId(77), &Change::new(TIME, update));
}

fn landed(caps: &mut Caps, made: Attributes, result: Result<(), FsError>) {
    let done = Done::Written { offset: 0, attributes: made, merge_from: None };
    caps.end_update(NOW, CallId(77), Stamp(9), &mut result.map(|()| done));
    caps.check_invariants();
}

#[test]
fn what_is_kept_back_is_seen_at_once_by_its_client() {
    let mut caps = holding_alone();
    assert_eq!(make(&mut caps, "one"), None, "K7: it is there");
    let made = make(&mut caps, "new").unwrap();
    assert_eq!((made.mode, made.uid, made.gid), (0o644, 3, 50), "the directory gives its group");
    let Some(Ok(Answer::Entry { attributes, .. })) = look(&mut caps, look_up("new")) else {
        panic!("it is not shown");
    };
    assert_eq!((attributes, size(&mut caps)), (Some(made), Some(3)));
    assert_eq!(make(&mut caps, "new"), None, "it is there");
    assert!(look(&mut caps, look_up("other")) == Some(Err(FsError::NotFound)));
    let inode = made.place;
    let contents = Query::Contents { inode, offset: 0, len: 9 };
    assert_eq!(look(&mut caps, contents.clone()), None);
    assert_eq!(caps.unlanded_of_query(&contents), [inode.ino].into());
    send(&mut caps, &made, "new");
    assert_eq!(size(&mut caps), Some(3), "it is under way");
    landed(&mut caps, made, Ok(()));
    assert_eq!((size(&mut caps), caps.unlanded_of_query(&contents)), (Some(3), BTreeSet::new()));
    assert!(matches!(look(&mut caps, look_up("new")), Some(Ok(Answer::Entry { .. }))));
}

#[test]
fn what_never_lands_is_not_there() {
    let mut caps = holding_alone();
    let made = make(&mut caps, "new").unwrap();
    send(&mut caps, &made, "new");
    landed(&mut caps, made, Err(FsError::InlineFull));
    assert_eq!((size(&mut caps), caps.is_unlanded(made.place.ino)), (Some(3), true), "again");
    send(&mut caps, &made, "new");
    landed(&mut caps, made, Err(FsError::Exists));
    assert_eq!((size(&mut caps), look(&mut caps, look_up("new"))), (Some(2), None));
}

#[test]
fn what_changes_the_same_in_another_way_comes_after_it() {
    let mut caps = holding_alone();
    let made = make(&mut caps, "new").unwrap();
    let concerned = |update: &Update| !caps.unlanded_before(update).is_empty();
    let child = made.place;
    let unlink = |text, child| {
        let keep_for = None;
        Update::Unlink { parent: DIRECTORY, name: name(text), child, keep_for }
    };
    assert!(concerned(&unlink("new", child)));
    assert!(!concerned(&unlink("one", Place { ino: Ino(100), ..child })));
    let changes = Default::default();
    assert!(concerned(&Update::SetAttributes { inode: DIRECTORY, changes }));
    let changes = Default::default();
    assert!(concerned(&Update::SetAttributes { inode: child, changes }));
    let create = |text| Update::Create { parent: DIRECTORY, name: name(text), node: node() };
    assert!(concerned(&create("new")) && !concerned(&create("other")));
}

#[test]
fn a_directory_is_released_when_all_in_it_has_landed() {
    let mut caps = holding_alone();
    let made = make(&mut caps, "new").unwrap();
    let gone = caps.heard(NOW, EU, Stamp(3), &[DIRECTORY.ino]);
    assert_eq!(caps.take_to_land(), [ToLand::File(made.place)]);
    assert_eq!(make(&mut caps, "later"), None, "it goes");
    caps.let_go(&gone);
    assert_eq!(errand(&mut caps), None, "K8");
    assert_eq!(look(&mut caps, look_up("new")), None, "K9");
    assert_eq!(caps.unlanded_of_query(&look_up("new")), [made.place.ino].into());
    send(&mut caps, &made, "new");
    landed(&mut caps, made, Ok(()));
    assert_eq!(errand(&mut caps), Some(Errand::ReleaseExclusive(vec![DIRECTORY.ino])));
    end(&mut caps, Errand::ReleaseExclusive(vec![DIRECTORY.ino]), &[]);
    assert!(!caps.is_letting_go());
}

/// The step may still come to the partition after a release that was sent after it.
#[test]
fn a_directory_is_not_released_while_it_is_asked_for() {
    let mut caps = asking();
    let gone = caps.heard(NOW, EU, Stamp(3), &[DIRECTORY.ino]);
    caps.let_go(&gone);
    assert_eq!(errand(&mut caps), None);
    end(&mut caps, Errand::GrantExclusive(DIRECTORY.ino), &[DIRECTORY.ino]);
    assert_eq!(make(&mut caps, "new"), None, "it was recalled meanwhile");
    assert_eq!(errand(&mut caps), Some(Errand::ReleaseExclusive(vec![DIRECTORY.ino])));
}

#[test]
fn nothing_is_shown_after_the_lease() {
    let shows = |mutation| {
        let mut caps = holding_alone();
        caps.mutation = mutation;
        let made = make(&mut caps, "new").unwrap();
        let late = NOW + super::super::SPAN;
        let query = Query::Attributes { inode: made.place };
        let shown = caps.answer(late, &query, &Vector::default()).is_some();
        let attributes = caps.attributes(late, made.place, &Vector::default());
        (shown || attributes.is_some(), caps.take_to_land())
    };
    let (shown, to_land) = shows(Mutation::Correct);
    assert!(!shown && to_land.len() == 1, "K9: and it is sent, if it can be");
    assert!(shows(Mutation::ShowsLapsed).0);
}

#[test]
fn a_landing_of_which_nothing_is_known_costs_the_directory() {
    let mut caps = holding_alone();
    let made = make(&mut caps, "new").unwrap();
    send(&mut caps, &made, "new");
    assert_eq!(caps.lose_update(CallId(77)), [(EU, DIRECTORY.ino)]);
    caps.check_invariants();
    assert!(!caps.is_unlanded(made.place.ino));
}

/// As [`holding_alone`], by an owner that keeps the order.
pub(super) fn in_order() -> Caps {
    let mut caps = holding_alone();
    caps.keep_back(Some(Keeping::InOrder));
    caps
}

fn one() -> Place {
    Place { ino: Ino(100), ..DIRECTORY }
}

fn remove(caps: &mut Caps, text: &'static str, child: Place) -> bool {
    let begun =
        caps.begin_removal(NOW, (DIRECTORY, &name(text)), (child, TIME), &Vector::default());
    caps.check_invariants();
    begun
}

fn unlink(text: &'static str, child: Place) -> Part {
    Part { time: TIME, kept: Kept::Unlink { parent: DIRECTORY, name: name(text), child } }
}

fn send_batch(caps: &mut Caps, parts: Vec<Part>) {
    let update = Update::Batch(parts);
    assert!(caps.unlanded_before(&update).is_empty(), "nothing before it waits");
    caps.begin_update(NOW, CallId(78), &Change::new(TIME, update));
}

pub(super) fn end_batch(caps: &mut Caps, result: Result<Done, FsError>) -> Vec<(GroupId, Ino)> {
    let gone = caps.end_update(NOW, CallId(78), Stamp(9), &mut result.clone());
    caps.check_invariants();
    gone
}

#[test]
fn a_removal_is_kept_back_only_of_a_file_that_is_known() {
    assert!(!remove(&mut holding_alone(), "one", one()), "the owner does not keep the order");
    let mut caps = in_order();
    assert!(!remove(&mut caps, "none", one()) && !remove(&mut caps, "two", one()));
    let is = caps.known[&one().ino].attributes.value.unwrap();
    for other in [None, Some(Attributes { nlink: 2, ..is })] {
        caps.known.get_mut(&one().ino).unwrap().attributes.value = other;
        assert!(!remove(&mut caps, "one", one()), "another look may show it by another name");
        let mut wrong = in_order();
        wrong.known.get_mut(&one().ino).unwrap().attributes.value = other;
        wrong.mutation = Mutation::RemovesOneName;
        assert!(remove(&mut wrong, "one", one()));
    }
    caps.known.get_mut(&one().ino).unwrap().attributes.value = Some(is);
    assert!(remove(&mut caps, "one", one()));
    assert!(!remove(&mut caps, "one", one()), "it is removed");
    assert_eq!(size(&mut caps), Some(1));
    assert_eq!(look(&mut caps, look_up("one")), Some(Err(FsError::NotFound)));
    let child = Query::Attributes { inode: one() };
    assert_eq!(caps.unlanded_of_query(&child), [one().ino].into(), "it goes");
    // A replica that does not know of it changes nothing of what is shown.
    let entry = Entry { place: one(), kind: Kind::File };
    let listed = Answer::Directory {
        entries: vec![(name("one"), entry, None)],
        end: true,
        parent: DIRECTORY,
        tops: Vec::new(),
    };
    let query = Query::Directory { inode: DIRECTORY, after: Name::new(), limit: 9 };
    let begun = caps.begin_read();
    caps.fill(NOW, &query, (begun, true), &Ok(listed));
    let whole = Query::Attributes { inode: DIRECTORY };
    caps.fill(NOW, &whole, (begun, true), &Ok(Answer::Attributes(directory(2))));
    assert_eq!(look(&mut caps, look_up("one")), Some(Err(FsError::NotFound)));
    assert_eq!(size(&mut caps), Some(1));
    caps.call_all_to_land();
    assert_eq!(caps.take_to_land(), [ToLand::Removal(unlink("one", one()))]);
    send_batch(&mut caps, vec![unlink("one", one())]);
    let done = Done::Batch { done: vec![Done::Nothing], refused: None };
    assert!(end_batch(&mut caps, Ok(done)).is_empty());
    assert_eq!((size(&mut caps), caps.is_unlanded(one().ino)), (Some(1), false));
    assert!(make(&mut caps, "one").is_some());
}

/// What the name leads to for the client; none if it does not know.
fn leads(caps: &mut Caps, text: &'static str) -> Option<Option<Place>> {
    match look(caps, look_up(text))? {
        Ok(Answer::Entry { entry, .. }) => Some(Some(entry.place)),
        Err(FsError::NotFound) => Some(None),
        other => panic!("{other:?}"),
    }
}

#[test]
fn another_file_comes_in_the_place_of_one_that_goes() {
    for mutation in [Mutation::Correct, Mutation::EndsNames] {
        let mut caps = in_order();
        caps.mutation = mutation;
        assert!(remove(&mut caps, "one", one()));
        let first = make(&mut caps, "one").unwrap();
        assert_eq!(make(&mut caps, "one"), None, "it is there");
        assert!(remove(&mut caps, "one", first.place), "it is never sent");
        assert_eq!((leads(&mut caps, "one"), size(&mut caps)), (Some(None), Some(1)));
        let new = make(&mut caps, "one").unwrap();
        assert_eq!(leads(&mut caps, "one"), Some(Some(new.place)));
        let both = BTreeSet::from([one().ino, new.place.ino]);
        assert_eq!(caps.unlanded_of_query(&look_up("one")), both);
        let create = Update::Create { parent: DIRECTORY, name: name("one"), node: node() };
        assert_eq!(caps.unlanded_before(&create), both);
        send_batch(&mut caps, vec![unlink("one", one())]);
        let done = Done::Batch { done: vec![Done::Nothing], refused: None };
        assert!(end_batch(&mut caps, Ok(done)).is_empty());
        let shown = leads(&mut caps, "one");
        assert_eq!(shown == Some(Some(new.place)), mutation == Mutation::Correct, "{shown:?}");
        if mutation == Mutation::Correct {
            assert_eq!(size(&mut caps), Some(2));
            send(&mut caps, &new, "one");
            landed(&mut caps, new, Ok(()));
            assert_eq!((leads(&mut caps, "one"), size(&mut caps)), (shown, Some(2)));
        }
    }
}

#[test]
fn both_of_one_name_may_land_in_one_batch() {
    let mut caps = in_order();
    assert!(remove(&mut caps, "one", one()));
    let new = make(&mut caps, "one").unwrap();
    let part = Part { time: TIME, kept: part_of(&new, "one") };
    send_batch(&mut caps, vec![unlink("one", one()), part]);
    let made = Done::Written { offset: 0, attributes: new, merge_from: None };
    let done = Done::Batch { done: vec![Done::Nothing, made], refused: None };
    assert!(end_batch(&mut caps, Ok(done)).is_empty());
    assert_eq!((leads(&mut caps, "one"), size(&mut caps)), (Some(Some(new.place)), Some(2)));
    // The other is refused: what is shown of the directory is wrong.
    let mut caps = in_order();
    assert!(remove(&mut caps, "one", one()));
    let new = make(&mut caps, "one").unwrap();
    send_batch(&mut caps, vec![unlink("one", one())]);
    let gone = end_batch(&mut caps, Ok(refused(FsError::Stale)));
    assert_eq!((gone, caps.is_unlanded(new.place.ino)), (vec![(EU, DIRECTORY.ino)], true));
}

fn refused(error: FsError) -> Done {
    Done::Batch { done: Vec::new(), refused: Some(error) }
}

/// A file that may land before what was done earlier comes in nobody's place.
#[test]
fn only_what_is_in_order_comes_in_the_place_of_another() {
    let mut caps = with_mode(Some(Durability::Fsync), Keeping::Files);
    assert!(remove(&mut caps, "one", one()));
    set_mode(&mut caps, Some(Durability::Close));
    let named = (DIRECTORY, &name("one"));
    assert_eq!(caps.would_keep(NOW, named, &Vector::default()), None);
    assert_eq!(make(&mut caps, "one"), None);
    set_mode(&mut caps, Some(Durability::Fsync));
    let new = make(&mut caps, "one").unwrap();
    // Not even while a node has no room it lands before the other has gone.
    caps.keep_order(false);
    let update = part_of(&new, "one").into_update();
    assert_eq!(caps.unlanded_before(&update), [one().ino].into());
    caps.call_to_land([new.place.ino]);
    let removal = ToLand::Removal(unlink("one", one()));
    assert_eq!(caps.take_to_land(), [removal, ToLand::File(new.place)]);
}

#[test]
fn a_batch_lands_up_to_what_is_refused() {
    let mut caps = in_order();
    let two = Place { ino: Ino(101), ..DIRECTORY };
    assert!(remove(&mut caps, "one", one()) && remove(&mut caps, "two", two));
    let new = make(&mut caps, "new").unwrap();
    assert_eq!(size(&mut caps), Some(1));
    send_batch(&mut caps, vec![unlink("one", one()), unlink("two", two)]);
    let done = Done::Batch { done: vec![Done::Nothing], refused: Some(FsError::Stale) };
    let gone = end_batch(&mut caps, Ok(done));
    assert_eq!(gone, [(EU, DIRECTORY.ino)], "what is known of the directory is wrong");
    assert_eq!(
        [one().ino, two.ino, new.place.ino].map(|ino| caps.is_unlanded(ino)),
        [false, false, true]
    );
    // As a whole it may be refused for any of its parts.
    let mut caps = in_order();
    assert!(remove(&mut caps, "one", one()) && remove(&mut caps, "two", two));
    send_batch(&mut caps, vec![unlink("one", one()), unlink("two", two)]);
    assert!(end_batch(&mut caps, Err(FsError::Denied)).is_empty());
    assert!(caps.is_unlanded(one().ino) && caps.is_unlanded(two.ino));
}

#[test]
fn what_is_done_later_comes_after_all_that_is_kept_back_in_order() {
    let other = || Update::Create {
        parent: Place { ino: Ino(8), ..DIRECTORY },
        name: name("x"),
        node: node(),
    };
    let mut caps = in_order();
    let first = make(&mut caps, "first").unwrap();
    assert!(remove(&mut caps, "one", one()));
    let all = BTreeSet::from([first.place.ino, one().ino]);
    assert_eq!(caps.unlanded_before(&other()), all, "K10");
    let far = Update::Renew { client: ClientId(9), partition: GroupId(3) };
    assert!(caps.unlanded_before(&far).is_empty(), "of another partition");
    let alone = Update::Batch(vec![unlink("one", one())]);
    assert_eq!(caps.unlanded_before(&alone), [first.place.ino].into(), "it lands the second");
    caps.call_to_land([one().ino]);
    let removal = ToLand::Removal(unlink("one", one()));
    assert_eq!(caps.take_to_land(), [ToLand::File(first.place), removal], "K10");
    assert!(!caps.has_landed(Some(EU), caps.last_kept()) && caps.has_landed(None, 0));
    caps.mutation = Mutation::Overtakes;
    assert!(caps.unlanded_before(&other()).is_empty());
}

/// A directory that has that mode, by an owner that keeps things back so by default.
fn with_mode(own: Option<Durability>, by_default: Keeping) -> Caps {
    let mut caps = in_order();
    caps.keep_back(Some(by_default));
    set_mode(&mut caps, own);
    caps
}

fn set_mode(caps: &mut Caps, own: Option<Durability>) {
    let number = own.map_or(0, |own| 1 + own as u32);
    let known = caps.known.get_mut(&DIRECTORY.ino).unwrap();
    let shown = known.attributes.value.as_mut().unwrap();
    shown.rdev = number;
    assert_eq!(shown.durability(), own);
}

/// What is kept back in a directory: new files, and removals. It is what is told before.
fn kept_in(caps: &mut Caps) -> (bool, bool) {
    let told = ["new", "one"]
        .map(|text| caps.would_keep(NOW, (DIRECTORY, &name(text)), &Vector::default()));
    let kept = (make(caps, "new").is_some(), remove(caps, "one", one()));
    assert_eq!(told, [kept.0.then_some(DIRECTORY), kept.1.then_some(one())]);
    kept
}

#[test]
fn a_directory_goes_by_its_own_mode_before_that_of_its_owner() {
    for by_default in [Keeping::Nothing, Keeping::Files, Keeping::InOrder] {
        for (own, kept) in [
            (Durability::Sync, (false, false)),
            (Durability::Close, (true, false)),
            (Durability::Fsync, (true, true)),
        ] {
            let mut caps = with_mode(Some(own), by_default);
            assert_eq!(kept_in(&mut caps), kept, "{own:?} {by_default:?}");
            let mut caps = with_mode(None, Keeping::from(own));
            assert_eq!(kept_in(&mut caps), kept, "{own:?} of the owner");
        }
    }
    let mut caps = with_mode(Some(Durability::Fsync), Keeping::InOrder);
    caps.keep_back(None);
    assert_eq!(kept_in(&mut caps), (false, false), "the owner lets nothing land");
    let mut caps = with_mode(Some(Durability::Fsync), Keeping::Files);
    caps.mutation = Mutation::IgnoresModes;
    assert_eq!(kept_in(&mut caps), (true, false), "planted");
}

/// What is shown of a new file has the mode that its directory hands down.
#[test]
fn a_new_file_has_the_mode_of_its_directory() {
    let mut caps = with_mode(Some(Durability::Fsync), Keeping::Files);
    let made = make(&mut caps, "new").unwrap();
    assert_eq!(made.durability(), Some(Durability::Fsync));
    assert!(caps.lands_in_order(made.place.ino));
    assert_eq!(caps.attributes(NOW, made.place, &Vector::default()), Some(made));
}

/// K10 where directories of one partition differ: `files` is kept back until it is closed, the
/// others in order.
#[test]
fn what_is_in_order_lands_before_all_that_comes_later_and_waits_for_nothing_else() {
    let mut caps = with_mode(Some(Durability::Close), Keeping::Files);
    let early = make(&mut caps, "early").unwrap();
    set_mode(&mut caps, Some(Durability::Fsync));
    let first = make(&mut caps, "first").unwrap();
    assert!(remove(&mut caps, "one", one()));
    set_mode(&mut caps, Some(Durability::Close));
    let late = make(&mut caps, "late").unwrap();
    let ordered = BTreeSet::from([first.place.ino, one().ino]);
    let parent = Place { ino: Ino(8), ..DIRECTORY };
    let other = Update::Create { parent, name: name("x"), node: node() };
    assert_eq!(caps.unlanded_before(&other), ordered, "no other update comes before");
    let whole = |of: &Attributes, text| part_of(of, text).into_update();
    assert!(caps.unlanded_before(&whole(&early, "early")).is_empty(), "it was done before");
    assert_eq!(caps.unlanded_before(&whole(&late, "late")), ordered);
    let both = vec![unlink("one", one()), Part { time: TIME, kept: part_of(&late, "late") }];
    let before = caps.unlanded_before(&Update::Batch(both));
    assert_eq!(before, [first.place.ino].into(), "a batch brings the other itself");
    assert!(!caps.has_landed(Some(EU), caps.last_kept()));
    caps.call_all_to_land();
    let removal = || ToLand::Removal(unlink("one", one()));
    assert_eq!(caps.take_to_land(), [ToLand::File(first.place), removal()], "what is in order");
    caps.call_to_land([early.place.ino, late.place.ino]);
    assert_eq!(caps.take_to_land(), [ToLand::File(early.place), ToLand::File(late.place)]);
    caps.check_invariants();
}

/// A node has no room: what gives some back must not wait for what needs some.
#[test]
fn the_order_is_not_kept_while_a_node_has_no_room() {
    let mut caps = in_order();
    let first = make(&mut caps, "first").unwrap();
    assert!(remove(&mut caps, "one", one()));
    let removal = Update::Batch(vec![unlink("one", one())]);
    assert_eq!(caps.unlanded_before(&removal), [first.place.ino].into());
    caps.keep_order(false);
    assert!(caps.unlanded_before(&removal).is_empty());
    let two = Place { ino: Ino(101), ..DIRECTORY };
    assert!(!remove(&mut caps, "two", two), "it goes at once");
    caps.keep_order(true);
    assert_eq!(caps.unlanded_before(&removal), [first.place.ino].into());
}
