//! Commands of Redis on types that everdram does not have.

/// A command on another type.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Foreign {
    /// What it works on.
    pub(crate) kind: &'static str,
    /// The argument with the key that it replaces, whatever type that had.
    pub(crate) replaces: Option<usize>,
}

/// What the command called `name` (in upper case) works on. `None`: on strings or on keys of any type, or it
/// is unknown. `argument` has the arguments.
pub(crate) fn find<'a>(
    name: &[u8],
    count: usize,
    argument: impl Fn(usize) -> &'a [u8],
) -> Option<Foreign> {
    let kind = match name {
        b"LPUSH" | b"RPUSH" | b"LPUSHX" | b"RPUSHX" | b"LINSERT" | b"LSET" | b"LREM" | b"LTRIM"
        | b"LPOP" | b"RPOP" | b"LMOVE" | b"RPOPLPUSH" | b"LMPOP" | b"SORT" => "list",
        b"HSET" | b"HMSET" | b"HSETNX" | b"HDEL" | b"HINCRBY" | b"HINCRBYFLOAT" => "hash",
        b"SADD" | b"SREM" | b"SPOP" | b"SMOVE" | b"SINTERSTORE" | b"SUNIONSTORE"
        | b"SDIFFSTORE" => "set",
        b"ZADD" | b"ZINCRBY" | b"ZREM" | b"ZREMRANGEBYSCORE" | b"ZREMRANGEBYRANK"
        | b"ZREMRANGEBYLEX" | b"ZPOPMIN" | b"ZPOPMAX" | b"ZMPOP" | b"ZINTERSTORE"
        | b"ZUNIONSTORE" | b"ZDIFFSTORE" | b"ZRANGESTORE" | b"GEOADD" | b"GEORADIUS"
        | b"GEORADIUSBYMEMBER" | b"GEOSEARCHSTORE" => "sorted set",
        b"XADD" | b"XDEL" | b"XTRIM" | b"XSETID" | b"XGROUP" | b"XACK" | b"XCLAIM"
        | b"XAUTOCLAIM" | b"XREADGROUP" => "stream",
        b"FUNCTION" => "function",
        _ => return None,
    };
    let replaces = match name {
        b"SORT" | b"GEORADIUS" | b"GEORADIUSBYMEMBER" => {
            let is_store = |at: &usize| {
                let word = argument(*at).to_ascii_uppercase();
                word == b"STORE" || word == b"STOREDIST"
            };
            (2..count).rev().find(is_store).map(|at| at + 1)
        }
        _ => name.ends_with(b"STORE").then_some(1),
    };
    Some(Foreign { kind, replaces })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_replace_a_key_of_any_type() {
        for (words, expected) in [
            ("RPUSH key 1", Some(("list", None))),
            ("ZUNIONSTORE to 1 from", Some(("sorted set", Some(1)))),
            ("SORT list LIMIT 0 1 STORE to", Some(("list", Some(6)))),
            (
                "GEORADIUS key 1 1 1 m storedist to",
                Some(("sorted set", Some(7))),
            ),
            ("SET key value", None),
            ("PFADD key value", None),
            ("BITOP AND to from", None),
        ] {
            let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
            let found = find(words[0], words.len(), |at| {
                words.get(at).copied().unwrap_or_default()
            });
            assert_eq!(
                found.map(|found| (found.kind, found.replaces)),
                expected,
                "{words:?}"
            );
        }
    }
}
