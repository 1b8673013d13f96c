//! Event ring of a thread, in a mapped file.
//!
//! An event is written, then counted. The file is the memory, so a process
//! that is killed loses at most the event that it was writing.
//!
//! # Invariants
//! 1. A ring is reached only through `RINGS` and `CURRENT` of one thread; one that lies among
//!    the tracks of its tracer is reached by nobody, until a thread takes it under their lock.
//! 2. `CURRENT` points to a ring that `RINGS` owns, or to none: a ring that is dropped
//!    takes itself out.
//! 3. From `base` on `bytes` bytes are mapped, at whole pages, as long as the ring: its
//!    thread alone reaches them in this process. Offsets of words are multiples of eight
//!    inside the file, which callers of `word` ensure; words that readers read are
//!    atomics.
//! 4. A system call on a descriptor of ours and numbers, or on memory of ours with its
//!    length, touches no other memory of the process.

use super::event::{EVENT_BYTES, Event};
use super::family::Family;
use super::file::{EVENTS_AT, HEADER_BYTES, MAGIC, NAME_BYTES, SITES_BYTES, VERSION};
use super::{SUFFIX, Tracer, cannot};
use crate::diagnose::tell;
use crate::error::Result;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Source lines that are found without a search.
const NEAR_SITES: usize = 64;

/// A thread's ring.
struct Ring {
    tracer: Weak<Tracer>,
    base: *mut u8,
    bytes: usize,
    mask: u64,
    written: u64,
    /// By address of the line, or key of the family.
    sites: HashMap<usize, u32>,
    /// By entry.
    families: HashMap<String, u32>,
    near: [(usize, u32); NEAR_SITES],
    sites_bytes: usize,
}

// SAFETY: invariant 1: one thread at a time reaches it, and a lock lies between two of them.
unsafe impl Send for Ring {}

/// Rings of tracks that no thread has at the moment, by name.
#[derive(Default)]
pub(super) struct Tracks(Mutex<Vec<(String, Box<Ring>)>>);

impl Tracks {
    fn take(&self, name: &str) -> Option<Box<Ring>> {
        let mut tracks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = tracks.iter().position(|(of, _)| of == name)?;
        Some(tracks.swap_remove(at).1)
    }

    fn put(&self, name: String, ring: Box<Ring>) {
        let mut tracks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tracks.push((name, ring));
    }
}

/// What is recorded besides an event.
#[derive(Clone, Copy)]
pub(super) enum At<'a> {
    Nowhere,
    Line(&'static Location<'static>),
    Family(&'a Family),
}

/// This thread records to a track of its rank until this is dropped.
pub struct Track {
    tracer: Arc<Tracer>,
    name: String,
    /// The thread's ring before.
    before: Option<Box<Ring>>,
    /// It belongs to the thread.
    of_thread: PhantomData<*mut ()>,
}

/// Takes the track of this name that is free, or makes one.
pub(super) fn track(tracer: &Arc<Tracer>, name: String) -> Option<Track> {
    if tracer.broken.load(Ordering::Relaxed) != 0 {
        return None;
    }
    let ring = match tracer.tracks.take(&name) {
        Some(ring) => ring,
        None => match Ring::new(tracer, &name) {
            Ok(ring) => Box::new(ring),
            Err(e) => {
                say_broken(tracer, &e);
                return None;
            }
        },
    };
    let before = replace(tracer.id, Some(ring)).ok()?;
    Some(Track {
        tracer: tracer.clone(),
        name,
        before,
        of_thread: PhantomData,
    })
}

impl Drop for Track {
    fn drop(&mut self) {
        if let Ok(Some(ring)) = replace(self.tracer.id, self.before.take()) {
            self.tracer.tracks.put(std::mem::take(&mut self.name), ring);
        }
    }
}

/// Replaces this thread's ring for a rank; an error in a thread that is ending.
fn replace(id: u64, with: Option<Box<Ring>>) -> std::result::Result<Option<Box<Ring>>, ()> {
    let replaced = RINGS.try_with(|rings| {
        let mut rings = rings.borrow_mut();
        CURRENT.set((0, std::ptr::null_mut()));
        let at = rings.iter().position(|(of, _)| *of == id);
        let before = at.map(|at| rings.swap_remove(at).1);
        rings.extend(with.map(|ring| (id, ring)));
        before
    });
    replaced.map_err(|_| ())
}

/// Says, once per rank, that recording has failed; the program goes on.
fn say_broken(tracer: &Tracer, e: &crate::error::Error) {
    if tracer.broken.swap(1, Ordering::Relaxed) == 0 {
        tell(format_args!("{e}; rank {} is not traced", tracer.rank));
    }
}

thread_local! {
    static CURRENT: Cell<(u64, *mut Ring)> = const { Cell::new((0, std::ptr::null_mut())) };
    static RINGS: RefCell<Vec<(u64, Box<Ring>)>> = const { RefCell::new(Vec::new()) };
}

/// The clock of all recordings of a machine, in ns.
#[inline]
pub(super) fn now_ns() -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: invariant 4: writes to our own value; this clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Records an event of this thread.
#[inline]
pub(super) fn record(tracer: &Arc<Tracer>, event: &Event, at: At<'_>) {
    // A thread that is ending has no rings any more.
    let Ok((id, ring)) = CURRENT.try_with(Cell::get) else {
        return;
    };
    let ring = if id == tracer.id {
        ring
    } else {
        match find(tracer) {
            Some(ring) => ring,
            None => return,
        }
    };
    // SAFETY: invariants 1 and 2: owned by this thread's `RINGS`, and nothing below calls
    // this function again.
    let ring = unsafe { &mut *ring };
    ring.push(event, at);
}

/// This thread's ring for a rank, created on first use.
#[cold]
fn find(tracer: &Arc<Tracer>) -> Option<*mut Ring> {
    if tracer.broken.load(Ordering::Relaxed) != 0 {
        return None;
    }
    RINGS
        .try_with(|rings| {
            let mut rings = rings.borrow_mut();
            let at = rings.iter().position(|(id, _)| *id == tracer.id);
            let at = match at {
                Some(at) => at,
                None => {
                    CURRENT.set((0, std::ptr::null_mut()));
                    rings.retain(|(_, ring)| ring.tracer.strong_count() > 0);
                    let current = std::thread::current();
                    match Ring::new(tracer, current.name().unwrap_or_default()) {
                        Ok(ring) => rings.push((tracer.id, Box::new(ring))),
                        Err(e) => {
                            say_broken(tracer, &e);
                            return None;
                        }
                    }
                    rings.len() - 1
                }
            };
            let ring: *mut Ring = &raw mut *rings[at].1;
            CURRENT.set((tracer.id, ring));
            Some(ring)
        })
        .ok()
        .flatten()
}

impl Ring {
    fn new(tracer: &Arc<Tracer>, mut track: &str) -> Result<Ring> {
        let thread = tracer.threads.fetch_add(1, Ordering::Relaxed);
        let name = format!(
            "{:016x}-r{}-t{thread}-p{}.{SUFFIX}",
            tracer.job,
            tracer.rank,
            std::process::id()
        );
        let path = tracer.folder().join(name);
        let capacity = tracer.options.events.next_power_of_two();
        let bytes = EVENTS_AT + capacity * EVENT_BYTES;
        let failed = |e: std::io::Error| cannot("record to", &path, &e);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .map_err(failed)?;
        let base = map(&file, bytes).map_err(failed)?;
        let mut ring = Ring {
            tracer: Arc::downgrade(tracer),
            base,
            bytes,
            mask: capacity as u64 - 1,
            written: 0,
            sites: HashMap::new(),
            families: HashMap::new(),
            near: [(0, 0); NEAR_SITES],
            sites_bytes: 0,
        };
        let two = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        ring.put(8, &two(VERSION, tracer.rank).to_le_bytes());
        ring.put(16, &two(tracer.ranks, thread).to_le_bytes());
        ring.put(24, &two(std::process::id(), 0).to_le_bytes());
        ring.put(32, &tracer.job.to_le_bytes());
        ring.put(40, &(capacity as u64).to_le_bytes());
        while track.len() > NAME_BYTES {
            track = &track[..track.floor_char_boundary(track.len() - 1)];
        }
        ring.put(72, &(track.len() as u64).to_le_bytes());
        ring.put(80, track.as_bytes());
        ring.word(0).store(MAGIC, Ordering::Release);
        Ok(ring)
    }

    /// Writes bytes to the head of the file.
    fn put(&mut self, at: usize, with: &[u8]) {
        assert!(at + with.len() <= EVENTS_AT);
        // SAFETY: invariant 3: inside the mapping by the assertion.
        let to = unsafe { self.base.add(at) };
        // SAFETY: invariants 1 and 3: inside the mapping by the assertion; only this thread
        // writes the file.
        unsafe { std::ptr::copy_nonoverlapping(with.as_ptr(), to, with.len()) };
    }

    /// An aligned word of the file.
    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at + 8 <= self.bytes && at.is_multiple_of(8));
        // SAFETY: invariant 3: callers pass offsets inside the file.
        let at = unsafe { self.base.add(at) };
        // SAFETY: invariant 3: aligned, mapped as long as `self`, reached by atomics.
        unsafe { AtomicU64::from_ptr(at.cast()) }
    }

    #[inline]
    fn push(&mut self, event: &Event, at: At<'_>) {
        let mut words = event.to_words();
        let site = match at {
            At::Nowhere => 0,
            At::Line(site) => self.site(std::ptr::from_ref(site) as usize, at),
            At::Family(family) => self.site(family.key, at),
        };
        words[5] |= u64::from(site) << 32;
        let at = EVENTS_AT + (self.written & self.mask) as usize * EVENT_BYTES;
        for (i, word) in words.into_iter().enumerate() {
            self.word(at + 8 * i).store(word, Ordering::Relaxed);
        }
        self.written += 1;
        self.word(56).store(self.written, Ordering::Release);
    }

    #[inline]
    fn site(&mut self, key: usize, at: At<'_>) -> u32 {
        let (near, number) = self.near[key / 8 % NEAR_SITES];
        if near == key {
            return number;
        }
        self.new_site(key, at)
    }

    #[cold]
    fn new_site(&mut self, key: usize, at: At<'_>) -> u32 {
        let number = match (self.sites.get(&key), at) {
            (Some(number), _) => *number,
            (None, At::Nowhere) => 0,
            (None, At::Line(site)) => {
                let number = self.write_site(site.line(), site.column(), site.file());
                self.sites.insert(key, number);
                number
            }
            (None, At::Family(family)) => {
                // A graph that is built again has the same families.
                let entry = family.entry();
                let number = match self.families.get(&entry) {
                    Some(number) => *number,
                    None => self.write_site(0, 0, &entry),
                };
                self.families.insert(entry, number);
                self.sites.insert(key, number);
                number
            }
        };
        self.near[key / 8 % NEAR_SITES] = (key, number);
        number
    }

    /// Appends to the table of lines; 0 when it is full.
    fn write_site(&mut self, line: u32, column: u32, text: &str) -> u32 {
        let path = text.as_bytes();
        let at = HEADER_BYTES + self.sites_bytes;
        if self.sites_bytes + 12 + path.len() > SITES_BYTES {
            return 0;
        }
        self.put(at, &line.to_le_bytes());
        self.put(at + 4, &column.to_le_bytes());
        self.put(at + 8, &(path.len() as u32).to_le_bytes());
        self.put(at + 12, path);
        self.sites_bytes += 12 + path.len();
        self.word(64)
            .store(self.sites_bytes as u64, Ordering::Release);
        1 + self.sites.values().copied().max().unwrap_or(0)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // A thread-local value that is dropped after the rings may record.
        let at: *mut Ring = self;
        if CURRENT
            .try_with(Cell::get)
            .is_ok_and(|(_, ring)| ring == at)
        {
            CURRENT.set((0, std::ptr::null_mut()));
        }
        // SAFETY: invariants 1 and 3: mapped by `map`, and no other code has the address.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// Reserves and maps the file, so that a full disk is an error here and not a
/// signal later.
fn map(file: &File, bytes: usize) -> std::io::Result<*mut u8> {
    let length = libc::off_t::try_from(bytes).map_err(std::io::Error::other)?;
    // SAFETY: invariant 4: our own file.
    let rc = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) };
    if rc != 0 {
        return Err(std::io::Error::from_raw_os_error(rc));
    }
    // SAFETY: invariant 4: a new mapping, at an address of the kernel's choice.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    Ok(base.cast())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Options;
    use crate::trace::event::Kind;

    /// Records when it is dropped.
    struct Late(Arc<Tracer>);

    impl Drop for Late {
        fn drop(&mut self) {
            self.0.record(event());
        }
    }

    fn event() -> Event {
        Event::of(Kind::Send)
    }

    /// Thread-local values are dropped one after the other, rings among them.
    #[test]
    fn what_is_dropped_behind_the_rings_records_nothing() {
        thread_local! {
            static BEFORE: RefCell<Option<Late>> = const { RefCell::new(None) };
            static BEHIND: RefCell<Option<Late>> = const { RefCell::new(None) };
        }
        let folder = std::env::temp_dir().join(format!("osier-rings-{}", std::process::id()));
        let options = Options {
            folder: folder.clone(),
            events: 16,
        };
        let tracer = Tracer::new(options, 1, 0, 1).expect("a tracer");
        let of_thread = tracer.clone();
        let thread = std::thread::spawn(move || {
            BEFORE.set(Some(Late(of_thread.clone())));
            of_thread.record(event());
            BEHIND.set(Some(Late(of_thread)));
        });
        thread.join().expect("it ends");
        let mut files = std::fs::read_dir(&folder).expect("the folder");
        let file = files.next().expect("a recording").expect("a file");
        let bytes = std::fs::read(file.path()).expect("its bytes");
        let written = u64::from_le_bytes(bytes[56..64].try_into().expect("a word"));
        // Of the two values one is dropped before the rings.
        assert_eq!(written, 2);
        std::fs::remove_dir_all(folder).expect("removed");
    }
}
