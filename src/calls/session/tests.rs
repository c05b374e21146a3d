//! The table against a simple model, and its bytes against damage.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use proptest::prelude::*;
use squall_fabric::Time;

use super::{table::TooMany, *};

const OPENING: Opening = Opening { key: 7, sessions: 2, holder: 0, window: 4, reply_bytes: 8 };

fn reply(bytes: &[u8]) -> RequestOutcome {
    RequestOutcome::Reply(Arc::from(bytes))
}

/// Delivers a request. Returns whether it was applied, and the admission that its client would be told.
fn deliver(sessions: &mut Sessions, id: SessionId, number: u64, acknowledged: u64) -> (bool, RequestVerdict) {
    match sessions.admit(id, number, acknowledged) {
        RequestVerdict::New => {
            let answer = sessions.keep(id, number, reply(&number.to_le_bytes()[..2]));
            (true, RequestVerdict::Known(answer))
        }
        other => (false, other),
    }
}

#[test]
fn one_client_leaves_others_their_sessions() {
    let mut sessions = Sessions::default();
    let mut fill = |holder| {
        let opening = Opening { sessions: 64, holder, ..OPENING };
        (0..1000).take_while(|_| sessions.open(&opening).is_ok()).count()
    };
    assert_eq!([fill(1), fill(2), fill(3)], [24, 12, 6]);
    assert_eq!(fill(0), 64 - 24 - 12 - 6, "members may have the rest");
    assert_eq!(fill(4), 0);
    let mut bytes = Vec::new();
    sessions.write(&mut bytes).unwrap();
    assert_eq!(Sessions::read(&mut &bytes[..]).unwrap().0, sessions);
}

#[test]
fn a_table_without_holders_is_read() {
    let mut sessions = Sessions::default();
    sessions.open(&OPENING).unwrap();
    let mut bytes = Vec::new();
    sessions.write(&mut bytes).unwrap();
    // The holder stands behind the version, two counts, and the session's number and key.
    let holder = 1 + 8 + 4 + 16;
    bytes.drain(holder..holder + 8);
    bytes[0] = 1;
    assert_eq!(Sessions::read(&mut &bytes[..]).unwrap().0, sessions);
}

#[test]
fn a_request_is_applied_once_and_every_copy_gets_the_same_answer() {
    let mut sessions = Sessions::default();
    let id = sessions.open(&OPENING).unwrap();
    let first = deliver(&mut sessions, id, 0, 0);
    assert_eq!(first, (true, RequestVerdict::Known(reply(&[0, 0]))));
    assert_eq!(deliver(&mut sessions, id, 0, 0), (false, first.1));
}

#[test]
fn what_is_acknowledged_is_forgotten_and_never_applied_again() {
    let mut sessions = Sessions::default();
    let id = sessions.open(&OPENING).unwrap();
    deliver(&mut sessions, id, 0, 0);
    assert!(sessions.touch(id, 2));
    for number in [0, 1] {
        assert_eq!(deliver(&mut sessions, id, number, 0), (false, RequestVerdict::Past), "{number}");
    }
}

#[test]
fn a_number_beyond_the_window_is_refused_until_the_window_moves() {
    let mut sessions = Sessions::default();
    let id = sessions.open(&OPENING).unwrap();
    assert_eq!(deliver(&mut sessions, id, 4, 0), (false, RequestVerdict::Refused(Refusal::Window)));
    assert!(deliver(&mut sessions, id, 4, 1).0);
}

#[test]
fn when_replies_take_too_much_only_the_first_missing_request_is_applied() {
    let mut sessions = Sessions::default();
    let id = sessions.open(&OPENING).unwrap();
    assert_eq!(sessions.admit(id, 1, 0), RequestVerdict::New);
    sessions.keep(id, 1, reply(&[0; 8]));
    assert_eq!(deliver(&mut sessions, id, 2, 0), (false, RequestVerdict::Refused(Refusal::Replies)));
    assert!(deliver(&mut sessions, id, 0, 0).0);
    assert!(deliver(&mut sessions, id, 2, 2).0, "what was acknowledged takes nothing");
}

#[test]
fn a_reply_that_is_too_long_is_not_kept_and_says_so_each_time() {
    let mut sessions = Sessions::default();
    let id = sessions.open(&OPENING).unwrap();
    assert_eq!(sessions.admit(id, 0, 0), RequestVerdict::New);
    assert_eq!(sessions.keep(id, 0, reply(&[0; 9])), RequestOutcome::NoReply);
    assert_eq!(sessions.admit(id, 0, 0), RequestVerdict::Known(RequestOutcome::NoReply));
}

#[test]
fn there_are_no_more_sessions_than_the_limit_and_no_name_is_given_twice() {
    let mut sessions = Sessions::default();
    let first = sessions.open(&OPENING).unwrap();
    sessions.open(&OPENING).unwrap();
    assert_eq!(sessions.open(&OPENING), Err(TooMany));
    sessions.close(first);
    assert_eq!(sessions.open(&OPENING).unwrap().number, 3);
    assert_eq!(deliver(&mut sessions, first, 0, 0), (false, RequestVerdict::Refused(Refusal::Unknown)));
}

#[test]
fn a_session_of_another_key_is_unknown() {
    let mut sessions = Sessions::default();
    let id = sessions.open(&OPENING).unwrap();
    let stranger = SessionId { key: id.key + 1, ..id };
    assert_eq!(deliver(&mut sessions, stranger, 0, 0), (false, RequestVerdict::Refused(Refusal::Unknown)));
    sessions.close(stranger);
    assert!(sessions.touch(id, 0));
}

#[test]
fn an_expiry_does_nothing_if_the_session_acted_since() {
    let mut sessions = Sessions::default();
    let id = sessions.open(&OPENING).unwrap();
    let (_, acts) = sessions.acts().next().unwrap();
    deliver(&mut sessions, id, 0, 0);
    assert!(!sessions.expire(id, acts));
    assert!(sessions.expire(id, acts + 1));
    assert_eq!(sessions.len(), 0);
}

#[test]
fn only_sessions_that_did_not_act_for_the_timeout_are_idle() {
    let (mut idle, timeout) = (Idle::default(), Duration::from_nanos(10));
    let (quiet, busy) = (SessionId { number: 1, key: 1 }, SessionId { number: 2, key: 2 });
    let mut look = |now, acts| idle.look(Time::from_nanos(now), timeout, [(quiet, 3), (busy, acts)]);
    assert_eq!(look(100, 0), []);
    assert_eq!(look(109, 1), []);
    assert_eq!(look(110, 1), [(quiet, 3)]);
    assert_eq!(look(118, 1), [], "it was told already");
    assert_eq!(look(120, 1), [(quiet, 3), (busy, 1)]);
}

#[derive(Clone, Debug)]
enum Act {
    Request { number: u64, acknowledged: u64 },
    Touch(u64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => (0..20u64, 0..20u64).prop_map(|(number, acknowledged)| Act::Request { number, acknowledged }),
        1 => (0..20u64).prop_map(Act::Touch),
    ];
    proptest::collection::vec(act, 0..80)
}

proptest! {
    /// The model remembers every number that was ever applied, and the highest acknowledged mark.
    #[test]
    fn whatever_comes_in_whatever_order_each_number_is_applied_at_most_once(acts in acts()) {
        let mut sessions = Sessions::default();
        let id = sessions.open(&Opening { reply_bytes: u32::MAX, ..OPENING }).unwrap();
        let (mut applied, mut floor) = (BTreeSet::new(), 0);
        for act in acts {
            match act {
                Act::Touch(acknowledged) => {
                    floor = floor.max(acknowledged);
                    prop_assert!(sessions.touch(id, acknowledged));
                }
                Act::Request { number, acknowledged } => {
                    floor = floor.max(acknowledged);
                    let expected = if number < floor {
                        RequestVerdict::Past
                    } else if number >= floor + u64::from(OPENING.window) {
                        RequestVerdict::Refused(Refusal::Window)
                    } else {
                        RequestVerdict::Known(reply(&number.to_le_bytes()[..2]))
                    };
                    let (new, told) = deliver(&mut sessions, id, number, acknowledged);
                    prop_assert_eq!(&told, &expected);
                    prop_assert_eq!(new, matches!(told, RequestVerdict::Known(_)) && applied.insert(number));
                }
            }
        }
    }

    /// A log may therefore keep a touch in place of a request that is not new.
    #[test]
    fn a_request_that_is_not_new_is_foretold_and_leaves_what_a_touch_leaves(
        acts in acts(), more in proptest::collection::vec((0..24u64, 0..24u64, 1..3u64), 1..20),
    ) {
        let mut sessions = table_after(acts);
        for (number, acknowledged, session) in more {
            let id = SessionId { number: session, key: OPENING.key };
            let (is_new, mut touched) = (sessions.would_admit(id, number, acknowledged), sessions.clone());
            let (was_new, _) = deliver(&mut sessions, id, number, acknowledged);
            prop_assert_eq!(is_new, was_new);
            if !is_new {
                touched.touch(id, acknowledged);
                prop_assert_eq!(&sessions, &touched);
            }
        }
    }

    #[test]
    fn what_is_kept_is_bounded(requests in proptest::collection::vec((0..20u64, 0..20u64, 0..12usize), 0..80)) {
        let mut sessions = Sessions::default();
        let id = sessions.open(&OPENING).unwrap();
        for (number, acknowledged, bytes) in requests {
            if sessions.admit(id, number, acknowledged) == RequestVerdict::New {
                sessions.keep(id, number, reply(&vec![0; bytes]));
            }
            let session = &sessions.open[&id.number];
            prop_assert!(session.kept_bytes < 3 * u64::from(OPENING.reply_bytes));
            prop_assert!(session.answers.len() <= OPENING.window as usize);
            let kept: u64 = session.answers.iter().flatten().map(|answer| match answer {
                RequestOutcome::Reply(bytes) => bytes.len() as u64,
                _ => 0,
            }).sum();
            prop_assert_eq!(session.kept_bytes, kept);
        }
    }

    #[test]
    fn a_table_that_was_written_is_read_and_acts_alike(acts in acts()) {
        let sessions = table_after(acts);
        let mut bytes = Vec::new();
        sessions.write(&mut bytes).unwrap();
        let mut from = &bytes[..];
        prop_assert_eq!(Sessions::read(&mut from).unwrap().0, sessions);
        prop_assert!(from.is_empty());
    }

    #[test]
    fn a_damaged_table_is_an_error_or_another_table_but_no_panic(
        acts in acts(), at in any::<proptest::sample::Index>(), with in any::<u8>(), cut in any::<proptest::sample::Index>(),
    ) {
        let mut bytes = Vec::new();
        table_after(acts).write(&mut bytes).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = with;
        bytes.truncate(cut.index(2 * bytes.len()).min(bytes.len()));
        let _ = Sessions::read(&mut &bytes[..]);
    }

    #[test]
    fn trailers_are_parted_from_what_stands_before_them(
        words in any::<[u64; 4]>(), limits in any::<[u32; 3]>(), command in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let session = SessionId { number: words[0], key: words[1] };
        let [sessions, window, reply_bytes] = limits;
        let opening = Opening { key: words[0], sessions, holder: 0, window, reply_bytes };
        let whole = BTreeMap::from([
            (0, Trailer::Plain),
            (1, Trailer::Request { session, number: words[2], acknowledged: words[3] }),
            (2, Trailer::FollowUp { number: words[2] }),
        ]);
        let bare = [
            Trailer::Open(opening),
            Trailer::Open(Opening { holder: words[1].max(1), ..opening }),
            Trailer::Touch { session, acknowledged: words[2] },
            Trailer::Close(session),
            Trailer::Expire { session, acts: words[2] },
            Trailer::Tick,
        ];
        for trailer in whole.values() {
            let (bytes, len) = trailer.bytes();
            let message = [&command[..], &bytes[..len]].concat();
            prop_assert_eq!(Trailer::split(&message).unwrap(), (&command[..], *trailer));
        }
        for trailer in bare {
            let (bytes, len) = trailer.bytes();
            prop_assert_eq!(Trailer::split(&bytes[..len]).unwrap(), (&[][..], trailer));
            prop_assert!(Trailer::split(&[&[0], &bytes[..len]].concat()).is_err(), "nothing stands before {:?}", trailer);
        }
    }

    #[test]
    fn no_bytes_make_the_parser_panic(message in proptest::collection::vec(any::<u8>(), 0..64)) {
        let _ = Trailer::split(&message);
    }
}

fn table_after(acts: Vec<Act>) -> Sessions {
    let mut sessions = Sessions::default();
    let id = sessions.open(&OPENING).unwrap();
    let other = sessions.open(&OPENING).unwrap();
    for act in acts {
        match act {
            Act::Touch(acknowledged) => _ = sessions.touch(other, acknowledged),
            Act::Request { number, acknowledged } => _ = deliver(&mut sessions, id, number, acknowledged),
        }
    }
    sessions
}
