//! Recording of one thread: file format, version 1, and its strict reader.
//!
//! ```text
//! byte 0        header, 4 KiB
//!      0  magic u64          8  version u32      12 rank u32
//!     16  ranks u32         20  thread u32       24 pid u32   28 0
//!     32  job u64           40  capacity u64 (events, a power of two)
//!     48  clock offset i64 (ns to add for the job's clock)
//!     56  events written u64 (in all)
//!     64  bytes of sites written u64
//!     72  length of the thread's name u64        80 name, at most 64 bytes
//! byte 4 KiB    sites, 64 KiB: line u32, column u32, length u32, path
//!               a family of tasks: 0, 0, length u32, extents and name: `4x8 cell`
//! byte 68 KiB   events, a ring: event n at n modulo capacity
//! ```
//!
//! A process may be killed at any store. An event counts once it is whole;
//! when the ring has wrapped, the oldest entry may be half overwritten and does
//! not count.

use super::event::{EVENT_BYTES, Event};
use super::family;
use crate::error::{Error, ErrorKind, Result};

/// "OSIERTR" and the version of the layout of the header.
pub const MAGIC: u64 = 0x0152_5452_4549_534f;
/// Version of the file.
pub const VERSION: u32 = 1;
pub(super) const HEADER_BYTES: usize = 4096;
pub(super) const SITES_BYTES: usize = 64 << 10;
pub(super) const EVENTS_AT: usize = HEADER_BYTES + SITES_BYTES;
pub(super) const NAME_BYTES: usize = 64;

/// A line of the user's program, or a family of its tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Source file, or name of the family.
    pub path: String,
    /// Line, from 1; 0 of a family.
    pub line: u32,
    /// Column, from 1; 0 of a family.
    pub column: u32,
    /// Of a family.
    pub extents: Option<Vec<u64>>,
}

/// Recording of one thread of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// The job's number.
    pub job: u64,
    /// The rank.
    pub rank: u32,
    /// Ranks of the job.
    pub ranks: u32,
    /// The rank's own number of the thread, from 0.
    pub thread: u32,
    /// Its process.
    pub pid: u32,
    /// The thread's name; may be empty.
    pub name: String,
    /// Nanoseconds to add to its times to get the job's clock.
    pub clock_offset_ns: i64,
    /// Events that did not fit.
    pub dropped: u64,
    /// Event `site` n is `sites[n - 1]`.
    pub sites: Vec<Site>,
    /// In the order of recording.
    pub events: Vec<Event>,
}

fn bad(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Malformed, what)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Reads a file.
///
/// # Errors
/// Anything that this version never writes, named.
pub fn decode(bytes: &[u8]) -> Result<Recording> {
    let word = |at| u64_at(bytes, at).ok_or_else(|| bad("it is too short"));
    let half = |at| u32_at(bytes, at).ok_or_else(|| bad("it is too short"));
    if word(0)? != MAGIC {
        return Err(bad("it is no recording of osier"));
    }
    let version = half(8)?;
    if version != VERSION {
        return Err(bad(format!(
            "it has version {version}, and this osier reads {VERSION} (hint: merge with the osier that recorded it)"
        )));
    }
    let (rank, ranks, capacity) = (half(12)?, half(16)?, word(40)?);
    if rank >= ranks || half(28)? != 0 {
        return Err(bad(format!("it says rank {rank} of {ranks}")));
    }
    let room = (bytes.len() as u64).checked_sub(EVENTS_AT as u64);
    let fits = capacity.checked_mul(EVENT_BYTES as u64) == room;
    if !fits || !capacity.is_power_of_two() || capacity < 2 {
        return Err(bad(format!(
            "it says {capacity} events and has {} bytes",
            bytes.len()
        )));
    }
    let name_bytes = word(72)?;
    if name_bytes > NAME_BYTES as u64 {
        return Err(bad("the thread's name is too long"));
    }
    let name = &bytes[80..80 + name_bytes as usize];
    let name = std::str::from_utf8(name).map_err(|_| bad("the thread's name is no text"))?;
    let sites = sites(bytes, word(64)?)?;
    let written = word(56)?;
    // A ring that has wrapped loses its oldest place: see above.
    let kept = if written <= capacity {
        written
    } else {
        capacity - 1
    };
    let mut events = Vec::with_capacity(kept as usize);
    let mut last = 0;
    for n in written - kept..written {
        let at = EVENTS_AT + (n % capacity) as usize * EVENT_BYTES;
        let mut words = [0; 8];
        for (i, w) in words.iter_mut().enumerate() {
            *w = word(at + 8 * i)?;
        }
        let event = Event::from_words(&words).map_err(|e| e.context(format!("event {n}")))?;
        if event.site as usize > sites.len() {
            return Err(bad(format!("event {n} names a line that is not there")));
        }
        let site = (event.site as usize).checked_sub(1).map(|at| &sites[at]);
        if site.is_some_and(|site| site.extents.is_some() != event.kind.is_task()) {
            return Err(bad(format!(
                "event {n} names a line where a family belongs, or the other way round"
            )));
        }
        if event.recorded_ns() < last {
            return Err(bad(format!("event {n} goes back in time")));
        }
        last = event.recorded_ns();
        events.push(event);
    }
    Ok(Recording {
        job: word(32)?,
        rank,
        ranks,
        thread: half(20)?,
        pid: half(24)?,
        name: name.into(),
        clock_offset_ns: word(48)?.cast_signed(),
        dropped: written - kept,
        sites,
        events,
    })
}

fn sites(bytes: &[u8], used: u64) -> Result<Vec<Site>> {
    if used > SITES_BYTES as u64 {
        return Err(bad("the table of lines is too long"));
    }
    let mut rest = &bytes[HEADER_BYTES..HEADER_BYTES + used as usize];
    let mut sites = Vec::new();
    while !rest.is_empty() {
        let field = |at| u32_at(rest, at).ok_or_else(|| bad("the table of lines is cut"));
        let (line, column, length) = (field(0)?, field(4)?, field(8)? as usize);
        let path = rest
            .get(12..12usize.saturating_add(length))
            .and_then(|path| std::str::from_utf8(path).ok())
            .ok_or_else(|| bad("the table of lines is no table"))?;
        let (path, extents) = match (line, column) {
            (0, 0) => {
                let family = family::parse(path);
                let family = family.ok_or_else(|| bad("the table of lines has no such family"))?;
                (family.0, Some(family.1))
            }
            _ => (path.into(), None),
        };
        sites.push(Site {
            path,
            line,
            column,
            extents,
        });
        rest = &rest[12 + length..];
    }
    Ok(sites)
}

/// Writes a file as a thread would; for tests of readers.
#[cfg(test)]
pub(super) fn encode(r: &Recording, capacity: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; EVENTS_AT + capacity * EVENT_BYTES];
    let mut put = |at: usize, with: &[u8]| bytes[at..at + with.len()].copy_from_slice(with);
    put(0, &MAGIC.to_le_bytes());
    put(8, &VERSION.to_le_bytes());
    for (at, value) in [(12, r.rank), (16, r.ranks), (20, r.thread), (24, r.pid)] {
        put(at, &value.to_le_bytes());
    }
    put(32, &r.job.to_le_bytes());
    put(40, &(capacity as u64).to_le_bytes());
    put(48, &r.clock_offset_ns.to_le_bytes());
    let written = r.dropped + r.events.len() as u64;
    put(56, &written.to_le_bytes());
    put(72, &(r.name.len() as u64).to_le_bytes());
    put(80, r.name.as_bytes());
    let mut at = HEADER_BYTES;
    for site in &r.sites {
        let text = match &site.extents {
            None => site.path.clone(),
            Some(extents) => {
                let extents: Vec<usize> = extents.iter().map(|e| *e as usize).collect();
                family::Family::new(&site.path, &extents).entry()
            }
        };
        put(at, &site.line.to_le_bytes());
        put(at + 4, &site.column.to_le_bytes());
        put(at + 8, &(text.len() as u32).to_le_bytes());
        put(at + 12, text.as_bytes());
        at += 12 + text.len();
    }
    put(64, &((at - HEADER_BYTES) as u64).to_le_bytes());
    for (n, event) in (r.dropped..).zip(&r.events) {
        let at = EVENTS_AT + (n as usize % capacity) * EVENT_BYTES;
        for (i, word) in event.to_words().iter().enumerate() {
            put(at + 8 * i, &word.to_le_bytes());
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::super::event::{Kind, Phase};
    use super::*;
    use proptest::prelude::*;

    fn recording(times: &[u16], dropped: u64) -> Recording {
        let mut time = 0;
        let events = times.iter().enumerate().map(|(i, step)| {
            time += u64::from(*step);
            let whole = i % 3 == 2;
            let kind = Kind::ALL[i % Kind::ALL.len()];
            Event {
                phase: [Phase::Begin, Phase::End, Phase::Whole][i % 3],
                time_ns: time - if whole { u64::from(*step) } else { 0 },
                duration_ns: if whole { u64::from(*step) } else { 0 },
                bytes: i as u64,
                site: if kind.is_task() { 2 } else { (i % 2) as u32 },
                number: u64::from(whole),
                ..Event::of(kind)
            }
        });
        Recording {
            job: 7,
            rank: 1,
            ranks: 3,
            thread: 2,
            pid: 99,
            name: "rank 1".into(),
            clock_offset_ns: -5,
            dropped,
            sites: vec![
                Site {
                    path: "src/é.rs".into(),
                    line: 12,
                    column: 5,
                    extents: None,
                },
                Site {
                    path: "cell".into(),
                    line: 0,
                    column: 0,
                    extents: Some(vec![4, 8]),
                },
            ],
            events: events.collect(),
        }
    }

    proptest! {
        #[test]
        fn recording_is_decoded_as_it_was_encoded(times in proptest::collection::vec(any::<u16>(), 0..63)) {
            let whole = recording(&times, 0);
            prop_assert_eq!(decode(&encode(&whole, 64)).expect("sound"), whole);
        }

        #[test]
        fn changed_bytes_never_panic(
            times in proptest::collection::vec(any::<u16>(), 1..15),
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            cut in any::<Option<prop::sample::Index>>(),
        ) {
            let mut bytes = encode(&recording(&times, 0), 16);
            for (at, with) in &changes {
                // Mostly in a range with content.
                let interesting = [0..200, HEADER_BYTES..HEADER_BYTES + 40, EVENTS_AT..bytes.len()];
                let ranges: Vec<usize> = interesting.into_iter().flatten().collect();
                let at = ranges[at.index(ranges.len())];
                bytes[at] = *with;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            if let Ok(read) = decode(&bytes) {
                let read = [read];
                let timeline = super::super::timeline::Timeline::of(&read);
                super::super::chrome::write(&timeline, &mut Vec::new()).expect("memory");
            }
        }

        #[test]
        fn noise_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(decode(&bytes).is_err());
        }
    }

    #[test]
    fn a_ring_that_wrapped_keeps_the_newest_whole_ones() {
        let full = recording(&[1; 8], 0);
        let mut bytes = encode(&full, 8);
        assert_eq!(decode(&bytes).expect("sound").events, full.events);
        // The thread was killed while it wrote over the oldest.
        let wrapped = recording(&[1; 7], 1);
        let newest = encode(&wrapped, 8);
        bytes[56..64].copy_from_slice(&newest[56..64]);
        bytes[EVENTS_AT..].copy_from_slice(&newest[EVENTS_AT..]);
        bytes[56..64].copy_from_slice(&9u64.to_le_bytes());
        bytes[EVENTS_AT + EVENT_BYTES + 56] = 0xff;
        let read = decode(&bytes);
        // Entry 0 has event 8, which is 0 here: an unknown kind.
        assert!(read.is_err());
        bytes[56..64].copy_from_slice(&8u64.to_le_bytes());
        assert!(decode(&bytes).is_err(), "a whole ring counts every place");
    }

    #[test]
    fn each_field_is_checked() {
        let good = encode(&recording(&[5; 6], 0), 8);
        assert!(decode(&good).is_ok());
        let set = |at: usize, with: u8| {
            let mut bytes = good.clone();
            bytes[at] = with;
            decode(&bytes).expect_err("refused").to_string()
        };
        assert!(set(0, 0).contains("no recording"));
        assert!(set(8, 2).contains("version 2"));
        assert!(set(12, 3).contains("rank 3 of 3"));
        assert!(set(40, 4).contains("4 events"));
        assert!(set(72, 200).contains("name"));
        assert!(set(HEADER_BYTES + 8, 255).contains("lines"));
        assert!(set(EVENTS_AT + 8, 200).contains("event 0: an event with an unknown kind"));
        assert!(set(EVENTS_AT + 9, 9).contains("phase"));
        assert!(set(EVENTS_AT + 56, 1).contains("reserved word"));
        assert!(set(EVENTS_AT + 44, 9).contains("event 0 names a line"));
        assert!(set(EVENTS_AT + 5, 9).contains("event 1 goes back"));
    }
}
