//! Values by number.

use everdram_lab::call::Values;

#[test]
fn equal_bytes_are_one_value() {
    let mut values = Values::default();
    let number = values.number(b"one");
    assert_eq!(values.number(b"one"), number);
    assert_eq!(values.known(b"one"), Some(number));
    assert_eq!(values.bytes(number), b"one");
    assert_ne!(values.number(b"two"), number);
    assert_eq!(values.known(b"three"), None);
    assert_eq!(values.bytes(1000), b"");
}

#[test]
fn made_values_have_their_length_and_differ() {
    let mut values = Values::default();
    for bytes in [0, 1, 7, 8, 9, 420, 3000] {
        let made = values.make(bytes, 3);
        assert_eq!(values.bytes(made).len(), bytes);
    }
    let mut numbers: Vec<_> = (0..2000).map(|_| values.make(4, 3)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 2000);
    // The same calls make the same values.
    let (mut first, mut second) = (Values::default(), Values::default());
    for salt in 0..10 {
        let (one, other) = (first.make(50, salt), second.make(50, salt));
        assert_eq!((one, first.bytes(one)), (other, second.bytes(other)));
    }
}

#[test]
fn adding_changes_one_of_two_words() {
    let mut values = Values::default();
    let bytes = [u64::MAX.to_le_bytes(), *b"the rest"].concat();
    let number = values.number(&bytes);
    let (before, sum) = values.added(number, 4).unwrap();
    assert_eq!(before, u64::MAX);
    assert_eq!(
        values.bytes(sum),
        [3u64.to_le_bytes(), *b"the rest"].concat()
    );
    let (before, sum) = values.added(number, 2).unwrap();
    assert_eq!(before, u64::from_le_bytes(*b"the rest"));
    assert_eq!(
        values.bytes(sum),
        [u64::MAX.to_le_bytes(), *b"vhe rest"].concat()
    );
    assert_eq!(values.added(number, 0), Some((u64::MAX, number)));
    let short = values.number(b"7 bytes");
    assert_eq!(values.added(short, 1), None);
    let of_one_word = values.number(&[0; 15]);
    assert_eq!(values.added(of_one_word, 2), None);
}
