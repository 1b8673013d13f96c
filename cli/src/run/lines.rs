//! Merges the output of many ranks and keeps lines whole.
//!
//! ```text
//! pipe of rank 0 -> stream \
//! pipe of rank 1 -> stream  > out -> standard output
//! notes of the launcher --- /
//! ```
//!
//! Whole lines go out at once. What does not end with a newline waits, until
//!
//! - it ends after all;
//! - its rank ends;
//! - it grows to [`LONG_BYTES`];
//! - it is [`IDLE`] old and no other stream has such a rest: a prompt or a
//!   progress bar, which somebody wants to see.
//!
//! In the last three cases the line on screen is *open*: its stream owns it
//! and goes on with it unhindered. Others wait for its end, at most
//! [`HOLD`]; on a terminal and after the owner's end they do not wait. Then
//! the line is broken (a progress bar on a terminal is wiped, since its rank
//! draws it again) and the others go on below it.
//!
//! Pure: bytes and the time come in, bytes go out.
//!
//! # Invariants
//! 1. At most one line is open. Bytes of two streams, or of a stream and a
//!    note, always have a newline between them.
//! 2. A stream whose [`Lines::has_room`] is respected holds at most twice
//!    [`LONG_BYTES`].

use std::fmt::Display;
use std::time::{Duration, Instant};

/// A line longer than this goes out in pieces.
pub const LONG_BYTES: usize = 64 * 1024;
/// The age at which a rest without newline is shown.
pub const IDLE: Duration = Duration::from_millis(50);
/// The time that an open line may keep others waiting.
pub const HOLD: Duration = Duration::from_secs(1);
/// With this much to write, streams are not read.
const OUT_FULL_BYTES: usize = 256 * 1024;

/// Where a stream stands in its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    /// At its start: a label is due.
    Start,
    /// Behind a carriage return: a label is due unless a newline follows.
    AfterReturn,
    /// Inside.
    Middle,
}

#[derive(Debug)]
struct Stream {
    /// The rank, or the ranks of one process.
    who: String,
    /// Bytes that are not in `out` yet.
    held: Vec<u8>,
    /// Length of the whole lines in `held`.
    whole: usize,
    /// When the first byte of `held` came.
    since: Option<Instant>,
    /// Since when the open line of another keeps this one waiting.
    waiting: Option<Instant>,
    finished: bool,
    column: Column,
}

impl Stream {
    /// Whether it has something that may break another's open line.
    fn ready(&self) -> bool {
        self.whole > 0 || self.due()
    }

    /// Whether its rest must go out without a newline.
    fn due(&self) -> bool {
        self.held.len() >= LONG_BYTES || (self.finished && !self.held.is_empty())
    }
}

/// The line that has no end yet.
#[derive(Clone, Copy, Debug)]
struct Open {
    owner: usize,
    /// Whether it has carriage returns, as progress bars do.
    returns: bool,
}

/// Many streams of bytes, merged line by line.
#[derive(Debug)]
pub struct Lines {
    terminal: bool,
    label_width: Option<usize>,
    streams: Vec<Stream>,
    open: Option<Open>,
    out: Vec<u8>,
}

impl Lines {
    /// An output without streams. `label_width` is the length of the
    /// longest label if lines bear labels.
    pub fn new(terminal: bool, label_width: Option<usize>) -> Lines {
        Lines {
            terminal,
            label_width,
            streams: Vec::new(),
            open: None,
            out: Vec::new(),
        }
    }

    /// Adds a stream of a rank, or of the ranks of a process, and returns its
    /// number.
    pub fn add(&mut self, who: impl Display) -> usize {
        self.streams.push(Stream {
            who: who.to_string(),
            held: Vec::new(),
            whole: 0,
            since: None,
            waiting: None,
            finished: false,
            column: Column::Start,
        });
        self.streams.len() - 1
    }

    /// Whether a stream should be read.
    pub fn has_room(&self, stream: usize) -> bool {
        self.out.len() < OUT_FULL_BYTES && self.streams[stream].held.len() < LONG_BYTES
    }

    /// Takes bytes of a stream in.
    pub fn feed(&mut self, stream: usize, bytes: &[u8], now: Instant) {
        let stream = &mut self.streams[stream];
        if bytes.is_empty() {
            return;
        }
        stream.since.get_or_insert(now);
        if let Some(at) = bytes.iter().rposition(|b| *b == b'\n') {
            stream.whole = stream.held.len() + at + 1;
            if at + 1 < bytes.len() {
                stream.since = Some(now);
            }
        }
        stream.held.extend_from_slice(bytes);
    }

    /// Says that the rank of a stream has ended. Bytes may still come, from
    /// processes that it started.
    pub fn finish(&mut self, stream: usize) {
        self.streams[stream].finished = true;
    }

    /// Writes a line of the launcher's own.
    pub fn note(&mut self, text: &str) {
        self.break_line();
        self.out.extend_from_slice(text.as_bytes());
        self.out.push(b'\n');
    }

    /// Moves what may go out to [`Lines::out`].
    pub fn pump(&mut self, now: Instant) {
        loop {
            if let Some(open) = self.open {
                let whole = self.streams[open.owner].whole;
                let all = self.streams[open.owner].held.len();
                // The owner's line ends with its first newline; until then
                // all that it has belongs to the line.
                self.emit(open.owner, if whole > 0 { whole } else { all });
                if self.open.is_some() && !self.may_break(now) {
                    return;
                }
                self.break_line();
            }
            for stream in 0..self.streams.len() {
                self.emit(stream, self.streams[stream].whole);
            }
            let Some(stream) = self.rest_to_show(now) else {
                return;
            };
            self.emit(stream, self.streams[stream].held.len());
        }
    }

    /// When [`Lines::pump`] has something to do though nothing comes in.
    pub fn deadline(&self) -> Option<Instant> {
        if self.open.is_some() {
            let first = self.streams.iter().filter_map(|s| s.waiting).min();
            return first.map(|since| since + HOLD);
        }
        self.rest_candidate()
            .and_then(|stream| self.streams[stream].since)
            .map(|since| since + IDLE)
    }

    /// The bytes to write.
    pub fn out(&self) -> &[u8] {
        &self.out
    }

    /// Says that this many bytes are written.
    pub fn written(&mut self, bytes: usize) {
        self.out.drain(..bytes);
    }

    /// Notes who waits for the open line, and says whether it is to be broken.
    fn may_break(&mut self, now: Instant) -> bool {
        let Some(open) = self.open else {
            return false;
        };
        let at_once = self.terminal || self.streams[open.owner].finished;
        let mut may = false;
        for (number, stream) in self.streams.iter_mut().enumerate() {
            if number != open.owner && stream.ready() {
                let since = *stream.waiting.get_or_insert(now);
                may |= at_once || now >= since + HOLD;
            }
        }
        may
    }

    fn break_line(&mut self) {
        if let Some(open) = self.open.take() {
            if open.returns && self.terminal {
                self.out.extend_from_slice(b"\r\x1b[K");
            } else {
                self.out.push(b'\n');
            }
            self.streams[open.owner].column = Column::Start;
        }
    }

    /// The stream whose rest is to be shown now. No line is open.
    fn rest_to_show(&self, now: Instant) -> Option<usize> {
        if let Some(due) = self.streams.iter().position(Stream::due) {
            return Some(due);
        }
        self.rest_candidate().filter(|s| {
            self.streams[*s]
                .since
                .is_some_and(|since| now >= since + IDLE)
        })
    }

    /// The stream whose rest is to be shown when it is old enough: the only
    /// one with a rest, or on a terminal, where somebody waits, the first.
    fn rest_candidate(&self) -> Option<usize> {
        let mut rests = (0..self.streams.len()).filter(|s| !self.streams[*s].held.is_empty());
        let first = rests.next()?;
        (self.terminal || rests.next().is_none()).then_some(first)
    }

    /// Moves the first `bytes` bytes of a stream to `out`. They are whole
    /// lines, or no line of another stream is open.
    fn emit(&mut self, number: usize, bytes: usize) {
        let stream = &mut self.streams[number];
        if bytes == 0 {
            return;
        }
        debug_assert!(self.open.is_none_or(|open| open.owner == number));
        let moved = &stream.held[..bytes];
        match self.label_width {
            None => self.out.extend_from_slice(moved),
            Some(width) => {
                let label = format!("[{:>width$}] ", stream.who);
                stream.column = emit_labelled(&mut self.out, &label, moved, stream.column);
            }
        }
        if moved.last() == Some(&b'\n') {
            self.open = None;
            stream.column = Column::Start;
        } else {
            let before = self.open.is_some_and(|open| open.returns);
            let line = moved
                .iter()
                .rposition(|b| *b == b'\n')
                .map_or(0, |at| at + 1);
            self.open = Some(Open {
                owner: number,
                returns: (before && line == 0) || moved[line..].contains(&b'\r'),
            });
        }
        stream.held.drain(..bytes);
        stream.whole = stream.whole.saturating_sub(bytes);
        stream.waiting = None;
        if stream.held.is_empty() {
            stream.since = None;
            stream.held.shrink_to(4096);
        }
    }
}

fn emit_labelled(out: &mut Vec<u8>, label: &str, mut bytes: &[u8], start: Column) -> Column {
    let mut column = start;
    while let Some(first) = bytes.first() {
        let label_due = match column {
            Column::Start => true,
            Column::AfterReturn => !matches!(first, b'\n' | b'\r'),
            Column::Middle => false,
        };
        if label_due {
            out.extend_from_slice(label.as_bytes());
        }
        let end = bytes.iter().position(|b| matches!(b, b'\n' | b'\r'));
        let (line, rest) = bytes.split_at(end.map_or(bytes.len(), |at| at + 1));
        out.extend_from_slice(line);
        column = match line.last() {
            Some(b'\n') => Column::Start,
            Some(b'\r') => Column::AfterReturn,
            _ => Column::Middle,
        };
        bytes = rest;
    }
    column
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bench {
        lines: Lines,
        now: Instant,
    }

    impl Bench {
        fn new(ranks: usize, terminal: bool, label: bool) -> Bench {
            let mut lines = Lines::new(terminal, label.then_some(2));
            for rank in 0..ranks {
                lines.add(rank);
            }
            Bench {
                lines,
                now: Instant::now(),
            }
        }

        fn feed(&mut self, stream: usize, text: &str) {
            self.lines.feed(stream, text.as_bytes(), self.now);
        }

        fn after(&mut self, time: Duration) -> String {
            self.now += time;
            self.lines.pump(self.now);
            let out = String::from_utf8(self.lines.out().to_vec()).unwrap();
            self.lines.written(out.len());
            out
        }

        fn out(&mut self) -> String {
            self.after(Duration::ZERO)
        }
    }

    #[test]
    fn lines_stay_whole() {
        let mut b = Bench::new(2, false, false);
        b.feed(0, "on");
        b.feed(1, "two\nth");
        assert_eq!(b.out(), "two\n");
        b.feed(0, "e\n");
        b.feed(1, "ree\n");
        assert_eq!(b.out(), "one\nthree\n");
        assert_eq!(b.lines.deadline(), None);
    }

    #[test]
    fn a_lone_rest_is_shown_after_a_while() {
        let mut b = Bench::new(2, false, false);
        b.feed(0, "name? ");
        assert_eq!(b.out(), "");
        assert_eq!(b.lines.deadline(), Some(b.now + IDLE));
        assert_eq!(b.after(IDLE), "name? ");
        assert_eq!(b.lines.deadline(), None);
        b.feed(0, "more");
        assert_eq!(b.out(), "more");
        b.feed(0, "!\nnext");
        assert_eq!(b.out(), "!\n");
        assert_eq!(b.after(IDLE), "next");
    }

    #[test]
    fn two_rests_wait_except_on_a_terminal() {
        for terminal in [false, true] {
            let mut b = Bench::new(2, terminal, false);
            b.feed(0, "a");
            b.feed(1, "b");
            assert_eq!(b.after(IDLE * 4), if terminal { "a" } else { "" });
            b.feed(0, "A\n");
            b.feed(1, "B\n");
            assert_eq!(b.out(), if terminal { "A\nbB\n" } else { "aA\nbB\n" });
        }
    }

    #[test]
    fn others_wait_for_an_open_line_and_then_break_it() {
        let mut b = Bench::new(2, false, false);
        b.feed(0, "open");
        assert_eq!(b.after(IDLE), "open");
        b.feed(1, "other\n");
        assert_eq!(b.out(), "");
        assert_eq!(b.lines.deadline(), Some(b.now + HOLD));
        b.feed(0, " still");
        assert_eq!(b.after(HOLD / 2), " still");
        assert_eq!(b.after(HOLD / 2), "\nother\n");
        b.feed(0, " end\n");
        assert_eq!(b.out(), " end\n");
    }

    #[test]
    fn an_open_line_that_ends_in_time_is_whole() {
        let mut b = Bench::new(2, false, false);
        b.feed(0, "open");
        assert_eq!(b.after(IDLE), "open");
        b.feed(1, "other\n");
        assert_eq!(b.after(HOLD / 2), "");
        b.feed(0, "ed\nx");
        assert_eq!(b.out(), "ed\nother\n");
        // The wait of stream 1 is over: the next one starts anew.
        assert_eq!(b.after(IDLE), "x");
        b.feed(1, "again\n");
        assert_eq!(b.out(), "");
        assert_eq!(b.after(HOLD / 2), "");
        assert_eq!(b.after(HOLD / 2), "\nagain\n");
    }

    #[test]
    fn a_terminal_shows_others_at_once_and_wipes_a_progress_bar() {
        let mut b = Bench::new(2, true, false);
        b.feed(0, "\r10 %");
        assert_eq!(b.after(IDLE), "\r10 %");
        b.feed(0, "\r20 %");
        assert_eq!(b.out(), "\r20 %");
        b.feed(1, "hello\n");
        assert_eq!(b.out(), "\r\x1b[Khello\n");
        b.feed(0, "\r30 %\nprompt");
        assert_eq!(b.after(IDLE), "\r30 %\nprompt");
        b.feed(1, "hello\n");
        assert_eq!(b.out(), "\nhello\n");
    }

    #[test]
    fn the_last_rest_goes_out_with_its_rank() {
        let mut b = Bench::new(2, false, false);
        b.feed(0, "last");
        b.lines.finish(0);
        assert_eq!(b.out(), "last");
        b.feed(1, "other\n");
        assert_eq!(b.out(), "\nother\n");
        b.feed(0, "a child's");
        b.lines.finish(1);
        assert_eq!(b.out(), "a child's");
    }

    #[test]
    fn long_lines_go_out_in_pieces() {
        let mut b = Bench::new(2, false, false);
        let piece = "x".repeat(LONG_BYTES);
        b.feed(0, &piece);
        assert!(!b.lines.has_room(0));
        assert_eq!(b.out(), piece);
        assert!(b.lines.has_room(0));
        b.feed(1, &piece);
        b.feed(0, "end\n");
        assert_eq!(b.out(), format!("end\n{piece}"));
        assert!(b.lines.streams[0].held.capacity() <= 4096);
    }

    #[test]
    fn labels_stand_before_each_line_and_behind_returns() {
        let mut b = Bench::new(2, false, true);
        b.feed(0, "a\n\nb\r\nc");
        b.feed(1, "1%\r2%\r");
        b.lines.finish(0);
        b.lines.finish(1);
        assert_eq!(
            b.out(),
            "[ 0] a\n[ 0] \n[ 0] b\r\n[ 0] c\n[ 1] 1%\r[ 1] 2%\r"
        );
    }

    #[test]
    fn a_broken_line_gets_its_label_again() {
        let mut b = Bench::new(1, false, true);
        b.feed(0, "half");
        assert_eq!(b.after(IDLE), "[ 0] half");
        b.lines.note("osier: a note");
        assert_eq!(b.out(), "\nosier: a note\n");
        b.feed(0, " a line\n");
        assert_eq!(b.out(), "[ 0]  a line\n");
    }

    #[test]
    fn bytes_are_conserved_whatever_the_fragments() {
        // A naive twin: concatenation per rank, lines compared as multisets.
        let mut seed = 12345_u64;
        let mut random = move |below: usize| {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (seed >> 33) as usize % below
        };
        for _ in 0..200 {
            let ranks = 1 + random(4);
            let mut b = Bench::new(ranks, false, false);
            let texts: Vec<String> = (0..ranks)
                .map(|r| {
                    (0..random(30))
                        .map(|i| format!("{r}:{i}{}\n", "-".repeat(random(20))))
                        .collect()
                })
                .collect();
            let mut sent = vec![0; ranks];
            let mut got = String::new();
            while (0..ranks).any(|r| sent[r] < texts[r].len()) {
                let r = random(ranks);
                let n = random(40).min(texts[r].len() - sent[r]);
                b.feed(r, &texts[r][sent[r]..sent[r] + n]);
                sent[r] += n;
                got += &b.after(Duration::from_millis(random(40) as u64));
            }
            got += &b.after(HOLD * 2);
            for (r, text) in texts.iter().enumerate() {
                let mark = format!("{r}:");
                let mine: String = got
                    .split_inclusive('\n')
                    .filter(|l| l.starts_with(&mark))
                    .collect();
                assert_eq!(mine, *text);
            }
        }
    }
}
