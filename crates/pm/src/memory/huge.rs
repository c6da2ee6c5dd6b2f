//! Huge pages: translating an address in one takes fewer steps, and a processor remembers more of them.

/// Bytes of a huge page.
pub(crate) const HUGE_PAGE: u64 = 2 << 20;
/// Fields of `/proc/self/smaps` that count memory in huge pages.
const FIELDS: [&str; 3] = ["AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:"];

/// Bytes in huge pages of the mappings between two addresses.
pub(crate) fn huge_within(smaps: &str, from: u64, to: u64) -> u64 {
    let (mut is_within, mut kib) = (false, 0);
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some((begin, end)) = addresses(first) {
            is_within = from <= begin && end <= to;
        } else if is_within && FIELDS.contains(&first) {
            kib += words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        }
    }
    kib * 1024
}

/// `None` of a line that is not the first of a mapping.
fn addresses(word: &str) -> Option<(u64, u64)> {
    let (begin, end) = word.split_once('-')?;
    let parse = |word| u64::from_str_radix(word, 16).ok();
    Some((parse(begin)?, parse(end)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_others_do_not_count() {
        let smaps = "1000-3000 rw-s 0 00:01 7 /a\nSize: 8 kB\nShmemPmdMapped:     2048 kB\n\
                     3000-5000 rw-s 0 00:01 7 /a\nFilePmdMapped:  4096 kB\nAnonHugePages: 0 kB\n\
                     5000-7000 rw-p 0 00:00 0\nAnonHugePages:  8192 kB\n";
        assert_eq!(huge_within(smaps, 0x1000, 0x5000), 6 << 20);
        assert_eq!(huge_within(smaps, 0x3000, 0x6000), 4 << 20);
        assert_eq!(huge_within("", 0, u64::MAX), 0);
    }
}
