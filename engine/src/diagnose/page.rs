//! Status page of a rank: its waits and counters as words.
//!
//! ```text
//! word  0      1      2       3      4       5                6              7
//!       state  since  polled  since  polled  number of waits  waits written  threads outside
//!              of all inside  of all asleep
//!
//! then 24 words for each wait written, and behind them 4 for each thread:
//! number | kind of sleep << 32, name (two words), where it sleeps;
//! then, for each wait that a text belongs to: number of the wait | bytes << 32, the text;
//! and a word 0
//!
//! wait  0          1     2    3        4      5      6          7..15   15     16..24
//!       operation  peer  tag  context  bytes  since  posted at  file    waits  file
//! ```
//!
//! Times are nanoseconds of the machine's monotonic clock. A place is line |
//! length of the file's name << 32; of longer names the end is kept.
//!
//! # Invariants
//! 1. Any words decode without a panic: another process writes them.

use super::outside::{Sleep, Sleeper};
use super::verdict::Standing;
use crate::site::{Site, file_line};
use osier_transports::shm::STATUS_WORDS;
use std::collections::BTreeMap;
use std::fmt;

const HEAD_WORDS: usize = 8;
const THREAD_WORDS: usize = 4;
const MOST_THREADS: usize = 6;
const WAIT_WORDS: usize = 24;
const FILE_WORDS: usize = 8;
const MOST_WAITS: usize = (STATUS_WORDS - HEAD_WORDS - MOST_THREADS * THREAD_WORDS) / WAIT_WORDS;
/// Longest text of a wait.
const TEXT_BYTES: usize = 240;
const NONE: u64 = u64::MAX;

/// What a thread waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A receive that no message has met, or whose bytes have not all come.
    Receive,
    /// A send whose receiver has not taken it.
    Send,
    /// A send that ends when a receive meets it.
    SynchronousSend,
    /// A buffered send whose receiver has not taken it.
    BufferedSend,
    /// A probe.
    Probe,
    /// A partitioned send of which partitions were never made ready.
    PartitionReady,
    /// A partitioned send whose receiver has not taken all partitions.
    PartitionedSend,
    /// A partitioned receive of which partitions have not come.
    PartitionedReceive,
    /// Work of the program's own, which a thread of this process completes.
    GeneralizedRequest,
    /// The end of an operation that was cancelled.
    Revoke,
    /// A task of a graph that its firing rule, or room for what it sends, keeps from running.
    Task,
    /// A one-sided access to a peer's part of a window.
    Access,
    /// A lock of a peer's part of a window.
    WindowLock,
    /// A change of this rank's part of a symmetric heap.
    WaitUntil,
    /// Something that this version does not know, or that is not Osier's: a
    /// future that waits for something else. It may end at any time.
    Other,
}

impl Operation {
    const ALL: [Operation; 15] = [
        Operation::Receive,
        Operation::Send,
        Operation::SynchronousSend,
        Operation::Probe,
        Operation::Revoke,
        Operation::Other,
        Operation::BufferedSend,
        Operation::PartitionReady,
        Operation::PartitionedSend,
        Operation::PartitionedReceive,
        Operation::GeneralizedRequest,
        Operation::Task,
        Operation::Access,
        Operation::WindowLock,
        Operation::WaitUntil,
    ];

    /// As in reports.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Receive => "receive",
            Operation::Send => "send",
            Operation::SynchronousSend => "synchronous send",
            Operation::BufferedSend => "buffered send",
            Operation::Probe => "probe",
            Operation::PartitionReady => "pready",
            Operation::PartitionedSend => "partitioned send",
            Operation::PartitionedReceive => "partitioned receive",
            Operation::GeneralizedRequest => "generalized request",
            Operation::Revoke => "revoke",
            Operation::Task => "task",
            Operation::Access => "one-sided access",
            Operation::WindowLock => "window lock",
            Operation::WaitUntil => "wait until",
            Operation::Other => "other",
        }
    }
}

/// A source line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SourceLine {
    /// File as the compiler names it; only its end if the name is long.
    pub file: String,
    /// Line, from 1; 0 where `file` is the whole name, of a caller in another language.
    pub line: u32,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&file_line(&self.file, self.line))
    }
}

impl From<Site> for SourceLine {
    fn from(site: Site) -> Self {
        let (name, line) = site.parts();
        let mut from = name.len().saturating_sub(FILE_WORDS * 8);
        while !name.is_char_boundary(from) {
            from += 1;
        }
        SourceLine {
            file: name[from..].into(),
            line,
        }
    }
}

/// The tag of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitTag {
    /// This one.
    Exact(u32),
    /// Any.
    Any,
    /// Traffic of a collective.
    Collective,
}

/// A wait of one thread for one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// What for.
    pub operation: Operation,
    /// Rank in the world; `None`: any.
    pub peer: Option<u32>,
    /// Its tag.
    pub tag: WaitTag,
    /// Context of the communicator.
    pub context: u64,
    /// Bytes of the message or of the room for it.
    pub bytes: u64,
    /// When the thread began to wait.
    pub since_ns: u64,
    /// The line that posted the operation.
    pub posted: SourceLine,
    /// The line that waits.
    pub waits: SourceLine,
    /// Which task, by which rule, and what it lacks; empty unless it is one. Its beginning, if it
    /// is long.
    pub what: String,
}

/// Whether a rank takes part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// It has not joined yet.
    #[default]
    Absent,
    /// It may communicate.
    Joined,
    /// It has dropped its universe and all communicators.
    Left,
}

/// A rank's page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Whether it takes part.
    pub state: State,
    /// Since when all of its threads wait and nothing has come; 0: they do not.
    /// If it has left, since when.
    pub quiet_ns: u64,
    /// Start of its last poll of all its queues that found nothing, after
    /// `quiet_ns`; 0: none yet.
    pub polled_ns: u64,
    /// As `quiet_ns`, if threads outside Osier are asleep, too: see
    /// [`super::outside`].
    pub asleep_ns: u64,
    /// As `polled_ns`, after `asleep_ns`.
    pub asleep_polled_ns: u64,
    /// Long waits; there may be more than are listed.
    pub total: usize,
    /// Those that fit, oldest first.
    pub waits: Vec<Wait>,
    /// Threads outside Osier that are asleep, as many as fit.
    pub sleepers: Vec<Sleeper>,
}

impl Page {
    /// The words to publish.
    pub fn encode(&self) -> Vec<u64> {
        let n = self.waits_that_fit();
        let state = match self.state {
            State::Absent => 0,
            State::Joined => 1,
            State::Left => 2,
        };
        let mut words = vec![
            state,
            self.quiet_ns,
            self.polled_ns,
            self.asleep_ns,
            self.asleep_polled_ns,
            self.total as u64,
            n as u64,
            self.sleepers.len().min(MOST_THREADS) as u64,
        ];
        for wait in &self.waits[..n] {
            let operation = Operation::ALL.iter().position(|o| *o == wait.operation);
            let tag = match wait.tag {
                WaitTag::Exact(tag) => u64::from(tag),
                WaitTag::Any => NONE,
                WaitTag::Collective => NONE - 1,
            };
            words.extend([
                operation.unwrap_or(Operation::ALL.len()) as u64,
                wait.peer.map_or(NONE, u64::from),
                tag,
                wait.context,
                wait.bytes,
                wait.since_ns,
            ]);
            place_to_words(&wait.posted, &mut words);
            place_to_words(&wait.waits, &mut words);
        }
        for sleeper in self.sleepers.iter().take(MOST_THREADS) {
            sleeper_to_words(sleeper, &mut words);
        }
        for (i, wait) in self.waits[..n].iter().enumerate() {
            text_to_words(i, &wait.what, &mut words);
        }
        // Longer pages were written before.
        if words.len() < STATUS_WORDS {
            words.push(0);
        }
        words
    }

    /// Waits that a page holds, with their texts.
    fn waits_that_fit(&self) -> usize {
        let threads = self.sleepers.len().min(MOST_THREADS);
        let mut room = STATUS_WORDS - HEAD_WORDS - threads * THREAD_WORDS;
        let fits = |wait: &&Wait| {
            let words = WAIT_WORDS + text_words(&wait.what);
            let fits = words <= room;
            room -= if fits { words } else { 0 };
            fits
        };
        self.waits.iter().take(MOST_WAITS).take_while(fits).count()
    }

    /// Reads a page.
    pub fn decode(words: &[u64]) -> Page {
        let word = |at: usize| words.get(at).copied().unwrap_or(0);
        let n = (word(6) as usize).min(MOST_WAITS);
        let threads = (word(7) as usize).min(MOST_THREADS);
        let behind = HEAD_WORDS + n * WAIT_WORDS;
        let sleepers = (0..threads)
            .filter_map(|i| words.get(behind + i * THREAD_WORDS..)?.get(..THREAD_WORDS))
            .map(sleeper_from_words)
            .collect();
        let mut texts = texts_from_words(words.get(behind + threads * THREAD_WORDS..));
        let waits = (0..n)
            .filter_map(|i| {
                Some((
                    i,
                    words
                        .get(HEAD_WORDS + i * WAIT_WORDS..)?
                        .get(..WAIT_WORDS)?,
                ))
            })
            .map(|(i, w)| Wait {
                operation: *Operation::ALL
                    .get(w[0] as usize)
                    .unwrap_or(&Operation::Other),
                peer: u32::try_from(w[1]).ok(),
                tag: match w[2] {
                    NONE => WaitTag::Any,
                    tag => u32::try_from(tag).map_or(WaitTag::Collective, WaitTag::Exact),
                },
                context: w[3],
                bytes: w[4],
                since_ns: w[5],
                posted: place_from_words(&w[6..15]),
                waits: place_from_words(&w[15..24]),
                what: texts.remove(&i).unwrap_or_default(),
            })
            .collect();
        Page {
            state: match word(0) {
                0 => State::Absent,
                1 => State::Joined,
                _ => State::Left,
            },
            quiet_ns: word(1),
            polled_ns: word(2),
            asleep_ns: word(3),
            asleep_polled_ns: word(4),
            total: word(5) as usize,
            waits,
            sleepers,
        }
    }

    /// Words from which [`Page::standing`] is read.
    pub const STANDING_WORDS: usize = 5;

    /// How the rank stands, for the verdict.
    pub fn standing(&self) -> Standing {
        match self.state {
            State::Left => Standing::Gone {
                since: self.quiet_ns,
            },
            State::Joined if self.quiet_ns != 0 && self.polled_ns != 0 => Standing::Quiet {
                since: self.quiet_ns,
                polled: self.polled_ns,
            },
            State::Joined if self.asleep_ns != 0 && self.asleep_polled_ns != 0 => {
                Standing::Asleep {
                    since: self.asleep_ns,
                    polled: self.asleep_polled_ns,
                }
            }
            _ => Standing::Busy,
        }
    }
}

fn place_to_words(place: &SourceLine, words: &mut Vec<u64>) {
    let name = place.file.as_bytes();
    let name = &name[name.len().saturating_sub(FILE_WORDS * 8)..];
    words.push(u64::from(place.line) | (name.len() as u64) << 32);
    let mut bytes = [0; FILE_WORDS * 8];
    bytes[..name.len()].copy_from_slice(name);
    let (chunks, _) = bytes.as_chunks::<8>();
    words.extend(chunks.iter().map(|c| u64::from_le_bytes(*c)));
}

/// The beginning of a text that a page holds.
fn shown(text: &str) -> &str {
    let mut end = text.len().min(TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn text_words(text: &str) -> usize {
    match shown(text).len() {
        0 => 0,
        bytes => 1 + bytes.div_ceil(8),
    }
}

fn text_to_words(wait: usize, text: &str, words: &mut Vec<u64>) {
    let text = shown(text).as_bytes();
    if text.is_empty() {
        return;
    }
    words.push(wait as u64 | (text.len() as u64) << 32);
    words.extend(text.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    }));
}

/// Texts by the numbers of their waits.
fn texts_from_words(words: Option<&[u64]>) -> BTreeMap<usize, String> {
    let (mut texts, mut rest) = (BTreeMap::new(), words.unwrap_or_default());
    while let [head, behind @ ..] = rest {
        let bytes = (*head >> 32) as usize;
        let Some(text) = behind.get(..bytes.div_ceil(8)).filter(|_| bytes > 0) else {
            break;
        };
        let mut text: Vec<u8> = text.iter().flat_map(|w| w.to_le_bytes()).collect();
        text.truncate(bytes);
        texts.insert(*head as u32 as usize, printable(&text));
        rest = &behind[bytes.div_ceil(8)..];
    }
    texts
}

fn sleeper_to_words(sleeper: &Sleeper, words: &mut Vec<u64>) {
    let (kind, at) = match sleeper.sleep {
        Sleep::Futex(at) => (0, at),
        Sleep::Epoll(fd) => (1, fd),
    };
    let mut name = [0; 16];
    let shown = sleeper.name.as_bytes();
    let fits = shown.len().min(name.len());
    name[..fits].copy_from_slice(&shown[..fits]);
    let (halves, _) = name.as_chunks::<8>();
    words.push(u64::from(sleeper.thread) | kind << 32);
    words.extend(halves.iter().map(|half| u64::from_le_bytes(*half)));
    words.push(at);
}

fn sleeper_from_words(words: &[u64]) -> Sleeper {
    let name: Vec<u8> = words[1..3].iter().flat_map(|w| w.to_le_bytes()).collect();
    let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
    Sleeper {
        thread: words[0] as u32,
        name: printable(&name[..end]),
        sleep: match words[0] >> 32 {
            0 => Sleep::Futex(words[3]),
            _ => Sleep::Epoll(words[3]),
        },
    }
}

/// Text that another process has written.
fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let plain = |c: char| if c.is_control() { '?' } else { c };
    text.chars().map(plain).collect()
}

fn place_from_words(words: &[u64]) -> SourceLine {
    let bytes: Vec<u8> = words[1..].iter().flat_map(|w| w.to_le_bytes()).collect();
    let n = ((words[0] >> 32) as usize).min(bytes.len());
    SourceLine {
        file: printable(&bytes[..n]),
        line: words[0] as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wait(i: u32) -> Wait {
        Wait {
            operation: Operation::ALL[i as usize % Operation::ALL.len()],
            peer: (!i.is_multiple_of(3)).then_some(i),
            tag: [WaitTag::Any, WaitTag::Exact(i), WaitTag::Collective][i as usize % 3],
            context: u64::from(i) << 33,
            bytes: 1 << i,
            since_ns: 7,
            posted: SourceLine {
                file: "src/main.rs".into(),
                line: i,
            },
            waits: Site::from(std::panic::Location::caller()).into(),
            what: String::new(),
        }
    }

    fn sleeper(i: u32) -> Sleeper {
        Sleeper {
            thread: 4711 + i,
            name: "fifteen letters"[..i as usize % 16].into(),
            sleep: match i % 2 {
                0 => Sleep::Futex(u64::MAX - u64::from(i)),
                _ => Sleep::Epoll(u64::from(i)),
            },
        }
    }

    #[test]
    fn pages_survive_their_words() {
        for n in [0, 1, MOST_THREADS, MOST_WAITS, MOST_WAITS + 5] {
            let mut page = Page {
                state: State::Joined,
                quiet_ns: 5,
                polled_ns: 6,
                asleep_ns: 3,
                asleep_polled_ns: 4,
                total: n,
                waits: (0..n as u32).map(wait).collect(),
                sleepers: (0..n as u32).map(sleeper).collect(),
            };
            let words = page.encode();
            assert!(words.len() <= STATUS_WORDS);
            page.waits.truncate(MOST_WAITS);
            page.sleepers.truncate(MOST_THREADS);
            assert_eq!(Page::decode(&words), page);
        }
    }

    #[test]
    fn pages_hold_the_texts_of_as_many_waits_as_fit() {
        let mut page = Page {
            state: State::Joined,
            total: 9,
            waits: (0..9).map(wait).collect(),
            sleepers: (0..2).map(sleeper).collect(),
            ..Page::default()
        };
        for (i, wait) in page.waits.iter_mut().enumerate() {
            wait.what = ["", "cell[3], rule all", &"\u{e4}".repeat(200)][i % 3].into();
        }
        let words = page.encode();
        assert!(words.len() <= STATUS_WORDS, "{}", words.len());
        let read = Page::decode(&words);
        assert!((3..9).contains(&read.waits.len()), "{}", read.waits.len());
        page.waits[2].what = "\u{e4}".repeat(120);
        assert_eq!(read.waits[..3], page.waits[..3]);
        assert_eq!((read.total, read.sleepers), (9, page.sleepers.clone()));
        // What an earlier, longer page has left behind is not read.
        let mut longer = words;
        page.waits.truncate(1);
        let short = page.encode();
        longer[..short.len()].copy_from_slice(&short);
        assert_eq!(Page::decode(&longer).waits, page.waits);
    }

    proptest! {
        #[test]
        fn arbitrary_words_never_panic(words in proptest::collection::vec(any::<u64>(), 0..STATUS_WORDS)) {
            let _ = Page::decode(&words).standing();
        }
    }
}
