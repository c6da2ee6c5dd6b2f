//! The run of frames that recovery follows, and the frames it finds.
//!
//! A log may have some hundred thousand frames in some hundred files. Frames are sorted once and then visited
//! in order, and the file of a segment is found by number: the work grows linearly with the log.
//!
//! Invariant: `files` has the segments from `first` on without a gap, and `segments` is its inverse.

use super::LogOptions;

/// What looks like a frame, at a block boundary at or after the checkpoint, or right after the run.
pub(super) struct Found {
    pub(super) lsn: u64,
    /// 0 if the frame does not verify.
    pub(super) durable: u64,
    /// Bytes of the frame; 0 if it does not verify.
    pub(super) bytes: u64,
    /// Index of the file.
    pub(super) file: usize,
    /// Whether it is part of the run.
    pub(super) accepted: bool,
}

/// The run so far.
pub(super) struct Run {
    pub(super) end: u64,
    pub(super) chain: Option<u64>,
    pub(super) incarnation: u64,
    /// The log is known to have been durable up to here.
    pub(super) durable: u64,
    /// Segment of the checkpoint.
    first: u64,
    /// Index of the file of each segment of the run, from `first` on.
    pub(super) files: Vec<usize>,
    /// The segment of the run that each file holds, by index of the file.
    segments: Vec<Option<u64>>,
    /// Frames found before this index lie before the end of the run.
    passed: usize,
}

impl Run {
    /// An empty run.
    pub(super) fn new(options: &LogOptions, files: usize) -> Run {
        Run {
            end: options.checkpoint_lsn,
            chain: None,
            incarnation: 0,
            durable: options.checkpoint_lsn,
            first: options.checkpoint_lsn / options.setup.segment_bytes,
            files: Vec::new(),
            segments: vec![None; files],
            passed: 0,
        }
    }

    /// The segments of the run, and the index of the file of each.
    pub(super) fn files(&self) -> impl DoubleEndedIterator<Item = (u64, usize)> {
        (self.files.iter().enumerate()).map(|(index, &file)| (self.first + index as u64, file))
    }

    /// Whether a file can hold a segment: a file holds one segment, and a segment lies in one file. A frame
    /// anywhere else was misplaced, and the segment's own data would overwrite it.
    pub(super) fn admits(&self, segment: u64, file: usize) -> bool {
        look();
        let known = segment
            .checked_sub(self.first)
            .and_then(|index| self.files.get(index as usize));
        match known {
            Some(&known) => known == file,
            None => self.segments.get(file).is_some_and(Option::is_none),
        }
    }

    /// Records that a file holds a segment: one of the run, or the one after its last.
    pub(super) fn admit(&mut self, segment: u64, file: usize) {
        if segment == self.first + self.files.len() as u64 {
            self.files.push(file);
            if let Some(holds) = self.segments.get_mut(file) {
                *holds = Some(segment);
            }
        }
    }

    /// Skips everything before position `at`; returns the frames there, in one file or several. Positions
    /// never decrease.
    pub(super) fn at<'a>(
        &mut self,
        found: &'a mut [Found],
        at: u64,
    ) -> impl Iterator<Item = &'a mut Found> + use<'a> {
        let before = |frame: &&Found| {
            look();
            frame.lsn < at
        };
        let rest = found.get(self.passed..).unwrap_or_default();
        self.passed += rest.iter().take_while(before).count();
        let rest = found.get_mut(self.passed..).unwrap_or_default();
        rest.iter_mut().take_while(move |frame| {
            look();
            frame.lsn == at
        })
    }
}

/// Counts a look at one frame or file: tests measure work by it, not time.
#[inline]
fn look() {
    #[cfg(test)]
    LOOKS.set(LOOKS.get() + 1);
}

#[cfg(test)]
thread_local! {
    /// Looks of this thread.
    pub(super) static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}
