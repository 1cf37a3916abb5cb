//! What each command makes of a key, case by case.

use super::*;

const NOW: Moment = Moment(1_000_000);
const LATER: Moment = Moment(1_060_000);

fn bulk(text: &'static str) -> Reply {
    Reply::bulk(text)
}

fn expiring(data: &'static str, at: Moment) -> Item {
    Item { expires: Some(at), ..Item::new(data) }
}

fn set(condition: Condition, answer: Answer) -> Modify {
    Modify::Set { data: "new".into(), expiry: Expiry::Never, condition, answer }
}

#[test]
fn a_read_of_nothing_says_so_in_its_own_way() {
    let cases = [
        (Read::Get, Reply::Null),
        (Read::Length, Reply::Integer(0)),
        (Read::Exists, Reply::Integer(0)),
        (Read::Type, Reply::Simple("none")),
        (Read::TimeLeft(Unit::Seconds), Reply::Integer(-2)),
        (Read::Expires(Unit::Seconds), Reply::Integer(-2)),
    ];
    for (read, reply) in cases {
        assert_eq!(read.answer(None, NOW), reply, "{read:?}");
    }
}

#[test]
fn a_read_shows_what_there_is() {
    let (plain, short) = (Item::new("value"), expiring("v", Moment(NOW.0 + 2_600)));
    assert_eq!(Read::Get.answer(Some(&plain), NOW), bulk("value"));
    assert_eq!(Read::Length.answer(Some(&plain), NOW), Reply::Integer(5));
    assert_eq!(Read::TimeLeft(Unit::Seconds).answer(Some(&plain), NOW), Reply::Integer(-1));
    assert_eq!(Read::TimeLeft(Unit::Seconds).answer(Some(&short), NOW), Reply::Integer(3));
    assert_eq!(Read::TimeLeft(Unit::Milliseconds).answer(Some(&short), NOW), Reply::Integer(2600));
    assert_eq!(
        Read::Expires(Unit::Milliseconds).answer(Some(&short), NOW),
        Reply::Integer(1_002_600)
    );
}

#[test]
fn a_value_is_set_when_its_condition_holds() {
    let old = Item::new("old");
    let put = || Change::Put(Item::new("new"));
    let cases = [
        (Condition::Always, None, put(), Reply::OK),
        (Condition::Absent, None, put(), Reply::OK),
        (Condition::Absent, Some(&old), Change::Keep, Reply::Null),
        (Condition::Present, None, Change::Keep, Reply::Null),
        (Condition::Present, Some(&old), put(), Reply::OK),
        (Condition::Equals("old".into()), Some(&old), put(), Reply::OK),
        (Condition::Equals("other".into()), Some(&old), Change::Keep, Reply::Null),
        (Condition::Equals("old".into()), None, Change::Keep, Reply::Null),
    ];
    for (condition, item, change, reply) in cases {
        let modify = set(condition, Answer::Done);
        assert_eq!(modify.apply(item, NOW), (change, reply), "{modify:?} of {item:?}");
    }
}

#[test]
fn the_previous_value_is_answered_whether_or_not_it_was_replaced() {
    let old = Item::new("old");
    let refused = set(Condition::Absent, Answer::Previous);
    assert_eq!(refused.apply(Some(&old), NOW), (Change::Keep, bulk("old")));
    assert_eq!(refused.apply(None, NOW), (Change::Put(Item::new("new")), Reply::Null));
    let count = set(Condition::Absent, Answer::Count);
    assert_eq!(count.apply(Some(&old), NOW).1, Reply::Integer(0));
    assert_eq!(count.apply(None, NOW).1, Reply::Integer(1));
}

#[test]
fn a_new_value_expires_as_it_was_told() {
    let old = expiring("old", LATER);
    let with = |expiry| Modify::Set {
        data: "new".into(),
        expiry,
        condition: Condition::Always,
        answer: Answer::Done,
    };
    let expires = |modify: Modify| match modify.apply(Some(&old), NOW).0 {
        Change::Put(item) => item.expires,
        change => panic!("{change:?}"),
    };
    assert_eq!(expires(with(Expiry::Never)), None);
    assert_eq!(expires(with(Expiry::Kept)), Some(LATER));
    assert_eq!(expires(with(Expiry::At(Moment(5)))), Some(Moment(5)));
}

#[test]
fn numbers_are_added_without_overflow_and_keep_their_time() {
    let (change, reply) = Modify::Add(5).apply(Some(&expiring("37", LATER)), NOW);
    assert_eq!((change, reply), (Change::Put(expiring("42", LATER)), Reply::Integer(42)));
    assert_eq!(
        Modify::Add(-1).apply(None, NOW),
        (Change::Put(Item::new("-1")), Reply::Integer(-1))
    );
    for (data, amount) in [("9223372036854775807", 1), ("1.5", 1), ("", 1), ("01", 1)] {
        let (change, reply) = Modify::Add(amount).apply(Some(&Item::new(data)), NOW);
        assert!(change == Change::Keep && reply.is_error(), "{data}: {change:?} {reply:?}");
    }
}

#[test]
fn bytes_are_appended_up_to_the_limit() {
    let tail = Modify::Append("def".into());
    let appended = Change::Put(expiring("abcdef", LATER));
    assert_eq!(tail.apply(Some(&expiring("abc", LATER)), NOW), (appended, Reply::Integer(6)));
    assert_eq!(tail.apply(None, NOW), (Change::Put(Item::new("def")), Reply::Integer(3)));
    let full = Item::new(vec![0; BULK_MAX]);
    let (change, reply) = tail.apply(Some(&full), NOW);
    assert!(change == Change::Keep && reply.is_error());
}

#[test]
fn keys_are_removed_once() {
    let old = Item::new("old");
    assert_eq!(Modify::Remove.apply(Some(&old), NOW), (Change::Remove, Reply::Integer(1)));
    assert_eq!(Modify::Remove.apply(None, NOW), (Change::Keep, Reply::Integer(0)));
    assert_eq!(Modify::Take.apply(Some(&old), NOW), (Change::Remove, bulk("old")));
    assert_eq!(Modify::Take.apply(None, NOW), (Change::Keep, Reply::Null));
}

#[test]
fn the_time_of_expiry_is_changed_on_its_condition() {
    use ExpireCondition::{Always, Earlier, Later, None as Without, Some as With};
    let (plain, timed) = (Item::new("v"), expiring("v", LATER));
    let (sooner, after) = (Moment(LATER.0 - 1), Moment(LATER.0 + 1));
    let cases = [
        (&plain, after, Always, true),
        (&plain, after, Without, true),
        (&timed, after, Without, false),
        (&plain, after, With, false),
        (&timed, after, With, true),
        (&plain, after, Later, false),
        (&timed, after, Later, true),
        (&timed, sooner, Later, false),
        (&plain, after, Earlier, true),
        (&timed, sooner, Earlier, true),
        (&timed, after, Earlier, false),
    ];
    for (item, at, condition, changed) in cases {
        let expected = match changed {
            true => (Change::Put(expiring("v", at)), Reply::Integer(1)),
            false => (Change::Keep, Reply::Integer(0)),
        };
        assert_eq!(Modify::ExpireAt(at, condition).apply(Some(item), NOW), expected);
    }
    let past = Modify::ExpireAt(Moment(3), Always);
    assert_eq!(past.apply(Some(&plain), NOW), (Change::Remove, Reply::Integer(1)));
    assert_eq!(past.apply(None, NOW), (Change::Keep, Reply::Integer(0)));
    assert_eq!(Modify::Persist.apply(Some(&timed), NOW), (Change::Put(plain), Reply::Integer(1)));
}

#[test]
fn an_expired_key_is_as_none_and_never_stays() {
    let expired = expiring("7", NOW);
    let cases = [
        (set(Condition::Present, Answer::Done), Change::Remove, Reply::Null),
        (set(Condition::Absent, Answer::Done), Change::Put(Item::new("new")), Reply::OK),
        (Modify::Add(1), Change::Put(Item::new("1")), Reply::Integer(1)),
        (Modify::Append("a".into()), Change::Put(Item::new("a")), Reply::Integer(1)),
        (Modify::Remove, Change::Remove, Reply::Integer(0)),
        (Modify::Take, Change::Remove, Reply::Null),
        (Modify::GetAndExpire(Expiry::Never), Change::Remove, Reply::Null),
        (Modify::ExpireAt(LATER, ExpireCondition::Always), Change::Remove, Reply::Integer(0)),
        (Modify::Persist, Change::Remove, Reply::Integer(0)),
        (Modify::Expire, Change::Remove, Reply::OK),
    ];
    for (modify, change, reply) in cases {
        assert_eq!(modify.apply(Some(&expired), NOW), (change, reply), "{modify:?}");
    }
    let live = expiring("7", Moment(NOW.0 + 1));
    assert_eq!(Modify::Expire.apply(Some(&live), NOW), (Change::Keep, Reply::OK));
}
