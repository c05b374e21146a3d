use std::collections::BTreeMap;

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{Text, value::Set};

const NOW_MS: u64 = 1000;

fn text(value: i64) -> Text {
    Text::Integer(value)
}

fn integer(keys: &View<'_>, key: &[u8]) -> Option<i64> {
    keys.typed::<Text>(key).expect("it is a string").map(|text| text.integer().expect("it is a number"))
}

/// Whether a watched key counts as unchanged after `act`, at the same time.
fn is_unchanged_after(keys: &mut Keyspace, key: &[u8], act: impl FnOnce(&mut KeyspaceMut<'_>)) -> bool {
    let since = keys.view(NOW_MS).watch(key);
    act(&mut keys.change(NOW_MS, 0));
    keys.view(NOW_MS).is_unchanged(key, since)
}

#[test]
fn a_watched_key_that_is_touched_has_changed() {
    let mut keys = Keyspace::default();
    keys.change(NOW_MS, 0).put(b"k", text(1));
    assert!(is_unchanged_after(&mut keys, b"k", |_| {}));
    assert!(is_unchanged_after(&mut keys, b"k", |keys| keys.put(b"other", text(1))));
    assert!(!is_unchanged_after(&mut keys, b"k", |keys| keys.put(b"k", text(1))));
    assert!(!is_unchanged_after(&mut keys, b"k", |keys| assert!(keys.set_expiry(b"k", Some(NOW_MS + 1)))));
    assert!(!is_unchanged_after(&mut keys, b"k", |keys| assert!(keys.set_expiry(b"k", None))));
    assert!(!is_unchanged_after(&mut keys, b"k", |keys| {
        let (value, expires_ms) = keys.remove(b"k").expect("it was there");
        keys.put_until(b"k", value, expires_ms);
    }));
    assert!(!is_unchanged_after(&mut keys, b"k", |keys| keys.clear()));
}

#[test]
fn a_watched_key_that_is_absent_has_changed_once_it_was_born() {
    let mut keys = Keyspace::default();
    assert!(is_unchanged_after(&mut keys, b"k", |keys| assert!(keys.remove(b"k").is_none())));
    assert!(is_unchanged_after(&mut keys, b"k", |keys| keys.clear()));
    assert!(is_unchanged_after(&mut keys, b"k", |keys| keys.put_until(b"k", text(1).into_value(), Some(NOW_MS))));
    assert!(!is_unchanged_after(&mut keys, b"k", |keys| {
        keys.put(b"k", text(1));
        keys.remove(b"k");
    }));
}

#[test]
fn an_edit_that_changes_nothing_leaves_a_watched_key_unchanged() {
    let mut keys = Keyspace::default();
    let look =
        |keys: &mut KeyspaceMut<'_>| keys.edit(b"k", |_: &mut Text| Ok(Edited::Unchanged(()))).expect("no error");
    assert!(is_unchanged_after(&mut keys, b"k", look));
    assert!(!keys.view(NOW_MS).exists(b"k"), "an absent key stays absent");
    keys.change(NOW_MS, 0).put(b"k", text(1));
    assert!(is_unchanged_after(&mut keys, b"k", look));
    assert!(is_unchanged_after(&mut keys, b"k", |keys| {
        let edit = |_: &mut Text| Err::<Edited<()>, _>(Error::SYNTAX);
        assert_eq!(keys.edit(b"k", edit), Err(Error::SYNTAX));
    }));
    assert!(is_unchanged_after(&mut keys, b"k", |keys| {
        let edit = |_: &mut Set| Ok(Edited::Changed(()));
        assert_eq!(keys.edit(b"k", edit), Err(Error::WRONG_TYPE));
    }));
}

#[test]
fn a_watched_key_that_expires_has_changed_and_one_that_had_expired_has_not() {
    let mut keys = Keyspace::default();
    keys.change(NOW_MS, 0).put_until(b"k", text(1).into_value(), Some(NOW_MS + 1));
    let before = keys.view(NOW_MS).watch(b"k");
    let after = keys.view(NOW_MS + 1).watch(b"k");
    for removed in [0, 1, 0] {
        let view = keys.view(NOW_MS + 1);
        assert!(!view.is_unchanged(b"k", before) && view.is_unchanged(b"k", after), "it is absent, removed or not");
        assert_eq!(keys.expire(NOW_MS + 1, removed), removed);
    }
    keys.change(NOW_MS + 1, 0).put(b"k", text(1));
    assert!(!keys.view(NOW_MS + 1).is_unchanged(b"k", after));
}

#[test]
fn an_edit_of_what_has_expired_begins_afresh_and_for_ever() {
    let mut keys = Keyspace::default();
    keys.change(NOW_MS, 0).put_until(b"k", Set::default().into_value(), Some(NOW_MS + 1));
    let absent = || text(7);
    let edited = keys.change(NOW_MS + 1, 0).edit_or(b"k", absent, |text| {
        *text = self::text(text.integer().expect("it is a number") + 1);
        Ok(Edited::Changed(()))
    });
    assert_eq!(edited, Ok(()), "its old type does not matter");
    let view = keys.view(NOW_MS + 1);
    assert_eq!(integer(&view, b"k"), Some(8));
    assert_eq!(view.entry(b"k").and_then(KeyEntry::expires_ms), None);
    assert_eq!(keys.next_expiry_ms(), None);
}

#[test]
fn a_key_whose_collection_was_emptied_is_removed_with_its_expiry() {
    let mut keys = Keyspace::default();
    let mut change = keys.change(NOW_MS, 0);
    change.put_until(b"k", Set::default().into_value(), Some(NOW_MS + 1));
    // The set is empty already: only a set that an edit changes is removed.
    change.edit(b"k", |_: &mut Set| Ok(Edited::Unchanged(()))).expect("no error");
    assert!(change.view().exists(b"k"));
    change.edit(b"k", |_: &mut Set| Ok(Edited::Changed(()))).expect("no error");
    assert!(!change.view().exists(b"k"));
    change.edit(b"new", |_: &mut Set| Ok(Edited::Changed(()))).expect("no error");
    assert!(!change.view().exists(b"new"));
    assert_eq!(keys.next_expiry_ms(), None);
}

#[test]
fn only_so_many_keys_are_removed_at_once_and_the_others_are_absent_all_the_same() {
    let mut keys = Keyspace::default();
    for key in 0..100u64 {
        let value = text(1).into_value();
        keys.change(NOW_MS, 0).put_until(&key.to_le_bytes(), value, Some(NOW_MS + 1 + key % 2));
    }
    assert_eq!(keys.view(NOW_MS + 1).len(), 50);
    assert_eq!(keys.expire(NOW_MS + 1, 20), 20);
    assert_eq!((keys.len(), keys.view(NOW_MS + 1).len()), (80, 50));
    assert_eq!(keys.expire(NOW_MS + 1, 1000), 30);
    assert_eq!(keys.expire(NOW_MS + 2, 1000), 50);
    assert!(keys.view(NOW_MS + 2).is_empty());
}

#[test]
fn a_large_value_counts_as_much_as_many_small_ones() {
    let mut keys = Keyspace::default();
    for key in 0..4u8 {
        let member = |number: u32| number.to_le_bytes();
        let members: Vec<_> = (0..30).map(member).collect();
        let value: Set = members.iter().map(|member| &member[..]).collect();
        keys.change(NOW_MS, 0).put_until(&[key], value.into_value(), Some(NOW_MS + 1));
    }
    assert_eq!(keys.expire(NOW_MS + 1, 40), 2);
    assert_eq!(keys.expire(NOW_MS + 1, 40), 2);
}

#[test]
fn a_table_shrinks_once_most_keys_are_gone() {
    let mut keys = Keyspace::default();
    let mut change = keys.change(NOW_MS, 0);
    (0..100_000u32).for_each(|key| change.put(&key.to_le_bytes(), text(1)));
    (0..100_000u32).for_each(|key| drop(change.remove(&key.to_le_bytes())));
    assert!(keys.entries.capacity() < 100_000 / 10, "{}", keys.entries.capacity());
}

#[derive(Clone, Debug)]
enum Op {
    Put(u8, Option<i64>),
    PutKeepingExpiry(u8),
    Add(u8),
    Remove(u8),
    SetExpiry(u8, Option<i64>),
    Clear,
    Expire(usize),
    Pass(u64),
    Watch(u8),
}

fn op() -> impl Strategy<Value = Op> {
    let key = || 0u8..6;
    let expiry = || proptest::option::of(-2i64..20);
    prop_oneof![
        4 => (key(), expiry()).prop_map(|(key, expiry)| Op::Put(key, expiry)),
        2 => key().prop_map(Op::PutKeepingExpiry),
        4 => key().prop_map(Op::Add),
        3 => key().prop_map(Op::Remove),
        3 => (key(), expiry()).prop_map(|(key, expiry)| Op::SetExpiry(key, expiry)),
        1 => Just(Op::Clear),
        2 => (0usize..3).prop_map(Op::Expire),
        4 => (0u64..8).prop_map(Op::Pass),
        4 => key().prop_map(Op::Watch),
    ]
}

/// A simple model of the expected content.
#[derive(Default)]
struct Model {
    keys: BTreeMap<u8, (i64, Option<u64>)>,
    watches: Vec<(u8, Watch, bool)>,
}

impl Model {
    fn touch(&mut self, key: u8) {
        self.watches.iter_mut().filter(|watch| watch.0 == key).for_each(|watch| watch.2 = true);
    }

    fn put(&mut self, key: u8, value: i64, expires_ms: Option<u64>, now_ms: u64) {
        if expires_ms.is_some_and(|at| at <= now_ms) {
            return self.remove(key);
        }
        self.keys.insert(key, (value, expires_ms));
        self.touch(key);
    }

    fn remove(&mut self, key: u8) {
        if self.keys.remove(&key).is_some() {
            self.touch(key);
        }
    }
}

proptest! {
    #[test]
    fn the_keys_are_those_of_a_plain_model(ops in vec(op(), 0..120)) {
        let (mut keys, mut model, mut now_ms) = (Keyspace::default(), Model::default(), NOW_MS);
        for (step, op) in ops.into_iter().enumerate() {
            let value = step as i64;
            let at = |offset: Option<i64>| offset.map(|offset| now_ms.saturating_add_signed(offset));
            let mut change = keys.change(now_ms, 0);
            match op {
                Op::Put(key, expiry) => {
                    change.put_until(&[key], text(value).into_value(), at(expiry));
                    model.put(key, value, at(expiry), now_ms);
                }
                Op::PutKeepingExpiry(key) => {
                    change.put_keeping_expiry(&[key], text(value));
                    let expires_ms = model.keys.get(&key).and_then(|(_, expires_ms)| *expires_ms);
                    model.put(key, value, expires_ms, now_ms);
                }
                Op::Add(key) => {
                    let added = change.edit_or(&[key], || text(0), |text| {
                        let sum = text.integer().expect("it is a number") + 1;
                        *text = self::text(sum);
                        Ok(Edited::Changed(sum))
                    });
                    let (old, expires_ms) = model.keys.get(&key).copied().unwrap_or((0, None));
                    prop_assert_eq!(added, Ok(old + 1));
                    model.put(key, old + 1, expires_ms, now_ms);
                }
                Op::Remove(key) => {
                    let removed = change.remove(&[key]).map(|(_, expires_ms)| expires_ms);
                    prop_assert_eq!(removed, model.keys.get(&key).map(|(_, expires_ms)| *expires_ms));
                    model.remove(key);
                }
                Op::SetExpiry(key, expiry) => {
                    let existed = model.keys.get(&key).copied();
                    prop_assert_eq!(change.set_expiry(&[key], at(expiry)), existed.is_some());
                    if let Some((value, _)) = existed {
                        model.put(key, value, at(expiry), now_ms);
                    }
                }
                Op::Clear => {
                    change.clear();
                    (0..6).for_each(|key| model.remove(key));
                }
                Op::Expire(most) => {
                    keys.expire(now_ms, most);
                }
                Op::Pass(ms) => now_ms += ms,
                Op::Watch(key) => model.watches.push((key, keys.view(now_ms).watch(&[key]), false)),
            }
            let expired: Vec<_> =
                model.keys.iter().filter(|(_, (_, at))| at.is_some_and(|at| at <= now_ms)).map(|(key, _)| *key).collect();
            expired.into_iter().for_each(|key| model.remove(key));

            let view = keys.view(now_ms);
            prop_assert_eq!(view.len(), model.keys.len());
            for key in 0..6 {
                let (value, expires_ms) = model.keys.get(&key).copied().unzip();
                prop_assert_eq!(integer(&view, &[key]), value);
                prop_assert_eq!(view.entry(&[key]).and_then(KeyEntry::expires_ms), expires_ms.flatten());
            }
            for (key, since, touched) in &model.watches {
                prop_assert_eq!(view.is_unchanged(&[*key], *since), !touched, "{} {:?}", key, since);
            }
            let expiring = keys.entries.iter().filter_map(|(key, entry)| Some((entry.expires_ms()?, Box::from(key))));
            prop_assert_eq!(BTreeSet::from_iter(expiring), keys.expiries.clone());
        }
    }
}
