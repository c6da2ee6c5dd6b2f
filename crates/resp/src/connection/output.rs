//! A connection's output: replies are written at once and sent when durable.
//!
//! Marks divide the bytes: everything before a mark's end may leave once its ticket is durable. Tickets of
//! successive marks grow, so the sendable bytes are always a prefix. Bytes after the last settled mark belong
//! to the running turn.

use everdram::Ticket;
use std::collections::VecDeque;

/// Capacity above which an empty buffer is freed.
const KEEP_BYTES: usize = 256 * 1024;

struct Mark {
    ticket: Ticket,
    /// Where in `bytes` its replies end.
    end: usize,
    /// Number of replies between the previous mark and this one.
    replies: usize,
}

#[derive(Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    sent: usize,
    /// Bytes up to here may be sent.
    sendable: usize,
    marks: VecDeque<Mark>,
}

impl Output {
    /// Where replies are appended.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Bytes not sent yet.
    pub(crate) fn pending(&self) -> usize {
        self.bytes.len().saturating_sub(self.sent)
    }

    /// Capacity of the buffer.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Ends a turn: its `replies` replies leave with `ticket`.
    pub(crate) fn settle(&mut self, ticket: Ticket, durable: Ticket, replies: usize) {
        let end = self.bytes.len();
        match self.marks.back_mut() {
            None if ticket <= durable => self.sendable = end,
            Some(last) if ticket <= last.ticket => {
                last.end = end;
                last.replies += replies;
            }
            _ => self.marks.push_back(Mark {
                ticket,
                end,
                replies,
            }),
        }
    }

    /// Makes everything sendable that waited for `durable` or less.
    pub(crate) fn release(&mut self, durable: Ticket) {
        while self
            .marks
            .front()
            .is_some_and(|mark| mark.ticket <= durable)
        {
            if let Some(mark) = self.marks.pop_front() {
                self.sendable = mark.end;
            }
        }
    }

    /// The last ticket that replies wait for.
    pub(crate) fn waits_for(&self) -> Option<Ticket> {
        self.marks.back().map(|mark| mark.ticket)
    }

    /// Drops every reply that is not sendable and answers each with `error` (a whole error line): what they
    /// acknowledged or showed never became durable.
    pub(crate) fn refuse_held(&mut self, error: &[u8]) {
        let replies: usize = self.marks.drain(..).map(|mark| mark.replies).sum();
        self.refuse_from(self.sendable, replies, error);
    }

    /// As [`Output::refuse_held`], for the running turn only: the last `replies`, written from `start` on.
    pub(crate) fn refuse_from(&mut self, start: usize, replies: usize, error: &[u8]) {
        self.bytes.truncate(start);
        for _ in 0..replies {
            self.bytes.extend_from_slice(error);
        }
        if self.marks.is_empty() {
            self.sendable = self.bytes.len();
        }
    }

    /// The bytes that may be sent now.
    pub(crate) fn to_send(&self) -> &[u8] {
        self.bytes.get(self.sent..self.sendable).unwrap_or(b"")
    }

    /// Records that `count` bytes of [`Output::to_send`] were sent.
    pub(crate) fn advance(&mut self, count: usize) {
        self.sent += count;
        debug_assert!(self.sent <= self.sendable, "sent what was not durable");
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            if self.bytes.capacity() > KEEP_BYTES {
                self.bytes = Vec::new();
            }
            self.move_back(self.sent);
        } else if self.sent >= KEEP_BYTES && self.sent >= self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.move_back(self.sent);
        }
    }

    /// Adjusts positions after `count` bytes were removed from the front.
    fn move_back(&mut self, count: usize) {
        self.sent -= count;
        self.sendable -= count;
        for mark in &mut self.marks {
            mark.end -= count;
        }
    }

    /// Frees an idle connection's buffer.
    pub(crate) fn shrink(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(output: &mut Output, text: &str, ticket: u64, durable: u64) {
        output.buffer().extend_from_slice(text.as_bytes());
        output.settle(Ticket(ticket), Ticket(durable), 1);
    }

    #[test]
    fn earlier_replies_leave_earlier() {
        let mut output = Output::default();
        write(&mut output, "a", 1, 1);
        write(&mut output, "b", 3, 1);
        write(&mut output, "c", 2, 1); // in order behind b, whatever its own ticket
        write(&mut output, "d", 5, 1);
        assert_eq!(output.to_send(), b"a");
        output.advance(1);
        output.release(Ticket(2));
        assert_eq!(output.to_send(), b"");
        output.release(Ticket(3));
        assert_eq!(output.to_send(), b"bc");
        assert_eq!(output.waits_for(), Some(Ticket(5)));
        output.release(Ticket(5));
        output.advance(3);
        assert_eq!((output.pending(), output.waits_for()), (0, None));
    }

    #[test]
    fn held_replies_become_errors_one_for_one() {
        let mut output = Output::default();
        write(&mut output, "+a\r\n", 0, 0);
        write(&mut output, "+b\r\n", 1, 0);
        write(&mut output, "+c\r\n", 2, 0);
        output.refuse_held(b"-E\r\n");
        assert_eq!(output.to_send(), b"+a\r\n-E\r\n-E\r\n");
    }

    #[test]
    fn positions_survive_a_partial_send() {
        let mut output = Output::default();
        let long = "x".repeat(2 * KEEP_BYTES);
        write(&mut output, &long, 0, 0);
        write(&mut output, "held", 1, 0);
        output.advance(2 * KEEP_BYTES - 1);
        assert_eq!(output.to_send(), b"x");
        output.release(Ticket(1));
        assert_eq!(output.to_send(), b"xheld");
    }
}
