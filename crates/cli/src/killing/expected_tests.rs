//! The judge reports every broken promise, and only these.

use super::*;

const NOW: Moment = Moment {
    from_ms: 1000,
    to_ms: 1010,
};

/// One key and its writer.
struct Key(Expected);

impl Key {
    fn new() -> Key {
        Key(Expected::new(1))
    }

    fn send(&self, value: Option<u64>, expires_at_ms: u64) -> u64 {
        let number = self.0.last(0).number + 1;
        let state = State {
            number,
            value: value.unwrap_or(number),
            expires_at_ms,
            promised_at_ms: 0,
        };
        self.0.apply(Event::Sent { key: 0, state });
        number
    }

    fn acknowledge(&self, number: u64) {
        let at_ms = 7;
        self.0.apply(Event::Acknowledged {
            key: 0,
            number,
            at_ms,
        });
    }

    fn put(&self) -> u64 {
        let number = self.send(None, 0);
        self.acknowledge(number);
        number
    }

    fn delete(&self) -> u64 {
        let number = self.send(Some(0), 0);
        self.acknowledge(number);
        number
    }

    /// After a kill: the state found becomes the only one, as in the verifier.
    fn settle(&self, seen: &Seen) -> Result<(), Breach> {
        match self.0.settle(0, seen, NOW) {
            Ok(Some(number)) => {
                let at_ms = 8;
                self.0.apply(Event::Found {
                    key: 0,
                    number,
                    at_ms,
                });
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(violation) => Err(violation.breach),
        }
    }
}

#[test]
fn what_was_acknowledged_must_be_there() {
    let key = Key::new();
    assert_eq!(key.settle(&Seen::Absent), Ok(()));
    key.put();
    key.put();
    assert_eq!(key.settle(&Seen::value(2)), Ok(()));
    assert_eq!(key.settle(&Seen::value(1)), Err(Breach::Lost));
    assert_eq!(key.settle(&Seen::Absent), Err(Breach::Lost));
    assert_eq!(key.settle(&Seen::value(3)), Err(Breach::Damaged));
    let torn = Seen::Torn("half".into());
    assert_eq!(key.settle(&torn), Err(Breach::Damaged));
}

#[test]
fn what_was_under_way_may_be_there_or_not_but_only_once() {
    for survived in 1..=3 {
        let key = Key::new();
        key.put();
        key.send(None, 0);
        key.send(None, 0);
        assert_eq!(key.settle(&Seen::value(survived)), Ok(()), "{survived}");
        for other in (1..=3).filter(|&other| other != survived) {
            assert!(key.settle(&Seen::value(other)).is_err(), "{other}");
        }
        assert_eq!(key.settle(&Seen::value(survived)), Ok(()));
        assert_eq!(key.put(), 4, "numbers are not given out twice");
        assert!(key.settle(&Seen::value(survived)).is_err());
    }
}

#[test]
fn a_deletion_under_way_may_have_happened_or_not_until_a_reader_was_shown_it() {
    for seen in [Seen::Absent, Seen::value(1)] {
        let key = Key::new();
        key.put();
        key.send(Some(0), 0);
        assert_eq!(key.settle(&seen), Ok(()), "{seen:?}");
    }
    let key = Key::new();
    key.put();
    key.send(Some(0), 0);
    let window = key.0.begin_read(0, false);
    let shown = key.0.judge(0, window, &Seen::Absent, NOW);
    assert_eq!(shown, Ok(Some(2)));
    let (number, at_ms) = (2, 9);
    key.0.apply(Event::Shown {
        key: 0,
        number,
        at_ms,
    });
    assert_eq!(key.settle(&Seen::value(1)), Err(Breach::Resurrected));
    assert_eq!(key.0.acknowledged(0), 1, "nobody was told of the deletion");
}

#[test]
fn the_deleted_and_the_undone_stay_away() {
    let key = Key::new();
    key.put();
    key.delete();
    assert_eq!(key.settle(&Seen::value(1)), Err(Breach::Resurrected));
    assert_eq!(key.settle(&Seen::Absent), Ok(()));
    key.send(None, 0);
    assert_eq!(key.settle(&Seen::Absent), Ok(()));
    assert_eq!(key.settle(&Seen::value(3)), Err(Breach::Resurrected));
    key.put();
    assert_eq!(key.settle(&Seen::value(3)), Err(Breach::Resurrected));
    assert_eq!(key.settle(&Seen::value(4)), Ok(()));
}

#[test]
fn expiry_is_to_the_millisecond() {
    let expiring_at = |at_ms| {
        let key = Key::new();
        key.put();
        let number = key.send(None, at_ms);
        key.acknowledge(number);
        key
    };
    let with_expiry = |at| Seen::Value {
        value: 2,
        expiry: Expiry::At(at),
    };
    let gone = expiring_at(1000);
    assert_eq!(gone.settle(&Seen::Absent), Ok(()));
    assert_eq!(gone.settle(&Seen::value(2)), Err(Breach::Resurrected));
    assert_eq!(gone.settle(&Seen::value(1)), Err(Breach::Resurrected));
    let there = expiring_at(1011);
    assert_eq!(there.settle(&Seen::Absent), Err(Breach::Lost));
    assert_eq!(there.settle(&with_expiry(1011)), Ok(()));
    assert_eq!(there.settle(&with_expiry(1012)), Err(Breach::Damaged));
    assert_eq!(there.settle(&with_expiry(0)), Err(Breach::Damaged));
    let either = expiring_at(1005);
    assert_eq!(either.settle(&Seen::Absent), Ok(()));
    assert_eq!(either.settle(&with_expiry(1005)), Ok(()));
}

/// A change of expiry keeps the value, so the value does not tell the two states apart. The expiry of the key
/// a moment later does.
#[test]
fn a_value_that_expired_while_it_was_looked_at_had_an_expiry() {
    let key = Key::new();
    key.put();
    key.send(Some(1), 1005);
    let passed = Seen::Value {
        value: 1,
        expiry: Expiry::Passed,
    };
    assert_eq!(key.settle(&passed), Ok(()));
    assert_eq!(key.0.last(0).expires_at_ms, 1005);
    assert_eq!(key.0.is_there(0, NOW.to_ms), Some(false));
    // A value without an expiry cannot have expired.
    let lasting = Key::new();
    lasting.put();
    assert_eq!(lasting.settle(&passed), Err(Breach::Damaged));
}

/// After a deletion, a write of a value that expires, and a kill, a read shows nothing. The deletion and the
/// expired value look the same, so the server may count the value until the next write of the key.
#[test]
fn an_expired_value_may_be_counted_until_the_next_write() {
    let key = Key::new();
    let lingers = |at_ms| key.0.may_linger(0, at_ms);
    key.put();
    key.delete();
    assert!(!lingers(5000));
    key.send(None, 900);
    assert!(!lingers(899) && lingers(900));
    assert_eq!(key.settle(&Seen::Absent), Ok(()));
    assert!(!lingers(899), "settled at 8 ms, when it had not expired");
    key.send(None, 5);
    assert_eq!(key.settle(&Seen::Absent), Ok(()));
    assert!(
        lingers(1),
        "it may be that value, and not the absence of before"
    );
    key.put();
    assert!(!lingers(5000));
}

#[test]
fn a_read_sees_nothing_older_than_what_was_promised_when_it_began() {
    let key = Key::new();
    let window = key.0.begin_read(0, false);
    key.put();
    for seen in [Seen::Absent, Seen::value(1)] {
        assert!(key.0.judge(0, window, &seen, NOW).is_ok());
    }
    let later = key.0.begin_read(0, false);
    assert!(key.0.judge(0, later, &Seen::Absent, NOW).is_err());
    key.send(None, 0);
    assert_eq!(key.0.judge(0, later, &Seen::value(2), NOW), Ok(Some(2)));
    assert_eq!(
        key.0.judge(0, later, &Seen::value(1), NOW),
        Ok(None),
        "what is promised already is no news"
    );
}

#[test]
fn what_a_reader_was_shown_is_promised() {
    let key = Key::new();
    let number = key.send(None, 0);
    let at_ms = 9;
    key.0.apply(Event::Shown {
        key: 0,
        number,
        at_ms,
    });
    assert_eq!(key.settle(&Seen::Absent), Err(Breach::Lost));
    assert_eq!(key.settle(&Seen::value(1)), Ok(()));
}

#[test]
fn a_writer_sees_exactly_its_last_write() {
    let key = Key::new();
    key.put();
    let window = key.0.begin_read(0, true);
    key.send(None, 0);
    assert!(key.0.judge(0, window, &Seen::value(1), NOW).is_ok());
    assert!(key.0.judge(0, window, &Seen::value(2), NOW).is_err());
}

#[test]
fn a_counter_goes_on_from_what_survived() {
    let key = Key::new();
    for value in 1..=3 {
        let number = key.send(Some(value), 0);
        key.acknowledge(number);
    }
    key.send(Some(4), 0);
    key.send(Some(5), 0);
    assert_eq!(key.settle(&Seen::value(4)), Ok(()));
    let number = key.send(Some(5), 0);
    key.acknowledge(number);
    assert_eq!(key.settle(&Seen::value(4)), Err(Breach::Lost));
    assert_eq!(key.settle(&Seen::value(5)), Ok(()));
    assert_eq!(key.settle(&Seen::value(6)), Err(Breach::Damaged));
}

#[test]
fn much_that_went_by_does_not_convict_the_innocent() {
    let key = Key::new();
    let window = key.0.begin_read(0, false);
    for _ in 0..2 * PAST_MAX {
        key.put();
    }
    assert_eq!(key.0.judge(0, window, &Seen::Absent, NOW), Ok(None));
    let now = key.0.begin_read(0, false);
    assert!(key.0.judge(0, now, &Seen::Absent, NOW).is_err());
}
