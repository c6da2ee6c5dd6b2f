//! The extent table: which ranges of the image belong to whom.
//!
//! Invariants: sorted by offset, no two overlap, all inside `DATA_AT .. image_bytes`, offsets and lengths
//! are multiples of 4096, at most [`EXTENTS_MAX`] of them. Adjacent extents of one owner merge into one, so
//! steady growth by one owner uses one entry. Extents are only ever added.

use super::{DATA_AT, PAGE};

/// Entries the superblock has room for.
pub(crate) const EXTENTS_MAX: usize = 100;

/// A range of the image that belongs to one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The owner; engines number their uses.
    pub owner: u32,
    /// First byte in the image.
    pub at: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl Extent {
    /// One past the last byte. Never overflows for an extent in a table.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.at + self.bytes
    }
}

/// The table, in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extents(Vec<Extent>);

impl Extents {
    /// All extents, by offset.
    pub(crate) fn as_slice(&self) -> &[Extent] {
        &self.0
    }

    /// Where the last one ends; new extents start here or later.
    pub(crate) fn end(&self) -> u64 {
        self.0.last().map_or(DATA_AT, Extent::end)
    }

    /// Adds an extent after all others. `false` if the table is full.
    pub(crate) fn push(&mut self, extent: Extent) -> bool {
        assert!(
            extent.at >= self.end(),
            "an extent lies before the end of the last one"
        );
        let full = self.0.len() == EXTENTS_MAX;
        match self.0.last_mut() {
            Some(last) if last.owner == extent.owner && last.end() == extent.at => {
                last.bytes += extent.bytes;
            }
            _ if full => return false,
            _ => self.0.push(extent),
        }
        true
    }

    /// Builds a table from entries found in a pool, or returns the first invalid entry and the reason.
    pub(crate) fn check(
        entries: Vec<Extent>,
        image_bytes: u64,
    ) -> Result<Extents, (usize, String)> {
        if entries.len() > EXTENTS_MAX {
            return Err((
                EXTENTS_MAX,
                format!("{} extents, at most {EXTENTS_MAX} fit", entries.len()),
            ));
        }
        let mut end = DATA_AT;
        for (index, extent) in entries.iter().enumerate() {
            let Extent { at, bytes, .. } = *extent;
            if !at.is_multiple_of(PAGE) || !bytes.is_multiple_of(PAGE) || bytes == 0 {
                return Err((
                    index,
                    format!("extent {index} ({at}, {bytes} bytes) is not whole pages"),
                ));
            }
            if at < end {
                return Err((
                    index,
                    format!("extent {index} starts at {at}, inside what ends at {end}"),
                ));
            }
            end = match at.checked_add(bytes) {
                Some(end) if end <= image_bytes => end,
                _ => {
                    return Err((
                        index,
                        format!(
                            "extent {index} ({at}, {bytes} bytes) leaves the image of {image_bytes} bytes"
                        ),
                    ));
                }
            };
        }
        Ok(Extents(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(owner: u32, at: u64, bytes: u64) -> Extent {
        Extent { owner, at, bytes }
    }

    #[test]
    fn neighbours_of_one_owner_merge() {
        let mut table = Extents::default();
        assert!(table.push(extent(1, DATA_AT, 4096)));
        assert!(table.push(extent(1, DATA_AT + 4096, 8192)));
        assert!(table.push(extent(2, DATA_AT + 12_288, 4096)));
        assert!(table.push(extent(2, DATA_AT + 20_480, 4096)));
        assert_eq!(
            table.as_slice(),
            [
                extent(1, DATA_AT, 12_288),
                extent(2, DATA_AT + 12_288, 4096),
                extent(2, DATA_AT + 20_480, 4096)
            ]
        );
    }

    #[test]
    fn a_full_table_refuses_and_stays() {
        let mut table = Extents::default();
        for index in 0..EXTENTS_MAX as u64 {
            assert!(table.push(extent(index as u32, DATA_AT + index * PAGE, PAGE)));
        }
        let before = table.clone();
        assert!(!table.push(extent(7777, table.end(), PAGE)));
        assert_eq!(table, before);
        assert!(
            table.push(extent(EXTENTS_MAX as u32 - 1, table.end(), PAGE)),
            "merging needs no entry"
        );
    }

    #[test]
    fn impossible_entries_are_refused() {
        let image = DATA_AT + 64 * PAGE;
        let cases: [&[Extent]; 7] = [
            &[extent(1, 0, PAGE)],
            &[extent(1, DATA_AT + 1, PAGE)],
            &[extent(1, DATA_AT, 0)],
            &[extent(1, DATA_AT, 65 * PAGE)],
            &[extent(1, u64::MAX - 4095, PAGE)],
            &[
                extent(1, DATA_AT, 2 * PAGE),
                extent(2, DATA_AT + PAGE, PAGE),
            ],
            &[extent(1, DATA_AT + PAGE, PAGE), extent(2, DATA_AT, PAGE)],
        ];
        for case in cases {
            assert!(Extents::check(case.to_vec(), image).is_err(), "{case:?}");
        }
        assert!(Extents::check(vec![extent(1, DATA_AT, 64 * PAGE)], image).is_ok());
    }
}
