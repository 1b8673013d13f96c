//! Mappings of the job's files: whole ones, and files that are mapped in steps.
//!
//! ```text
//! step      0          1          2              3
//! bytes     0 - 64 M   64 - 128 M 128 - 256 M    256 - 512 M ...
//! ```
//!
//! A file of a job is sparse and far larger than what the job uses. Each step is mapped
//! at its first use, so the address space that a process needs is at most twice what the
//! job has reserved, and 64 MiB. Where the system refuses a whole step (`ulimit -v`,
//! valgrind), half of it is tried, and so on down to what is asked for.
//!
//! # Invariants
//! 1. `base` and `bytes` of a [`Mapping`] are what `mmap` returned for it, and stay mapped
//!    until it is dropped; only [`Mapping::new`] makes one. Every address inside was handed
//!    out by a holder of the job that owns the mapping, and lives no longer than it.
//! 2. [`Mapping::at`] and [`Steps::at`] return an address only if all bytes asked for lie
//!    inside one mapping.
//! 3. Another process may change any byte at any time: what lies in a mapping is reached
//!    through atomics, raw pointers and copies, never through references to plain data.
//! 4. The file of a mapping is at least as long as the mapping's end, and sealed against
//!    shrinking: an access never ends in SIGBUS for want of a file.
//! 5. A system call with arguments that are numbers, or addresses inside a mapping by
//!    invariant 2, touches no other memory of the process.

use crate::contract::{TransportError, TransportErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A shared mapping, unmapped on drop.
pub(crate) struct Mapping {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: by invariant 1 an address range of the process, tied to no thread; by
// invariant 3, which all users of this module uphold, threads reach what lies in it by
// atomics and raw pointers.
unsafe impl Send for Mapping {}
// SAFETY: invariants 1 and 3, as for `Send`: the fields never change.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub fn new(fd: &OwnedFd, offset: u64, bytes: u64, write: bool) -> Result<Self, TransportError> {
        let protection = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
        // SAFETY: invariant 5; a new mapping at an address of the kernel's choice replaces
        // no other.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes as usize,
                protection,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                fd.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if base == libc::MAP_FAILED {
            let e = std::io::Error::last_os_error();
            return Err(TransportError::os(
                format!(
                    "mapping {} MiB of the job's shared memory (hint: is the address space limited by ulimit -v?)",
                    bytes >> 20
                ),
                &e,
            ));
        }
        Ok(Self {
            base: base.cast(),
            bytes: bytes as usize,
        })
    }

    #[inline]
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Address of `bytes` bytes at `offset`, if they lie inside.
    #[inline]
    pub fn at(&self, offset: u64, bytes: u64) -> Option<*mut u8> {
        let end = offset.checked_add(bytes)?;
        // Wrapping, but it does not: `offset` is inside (invariants 1 and 2).
        (end <= self.bytes as u64).then(|| self.base.wrapping_add(offset as usize))
    }

    /// Offset of an address inside.
    #[inline]
    pub fn offset_of(&self, ptr: *const u8, bytes: usize) -> Option<u64> {
        let offset = (ptr as usize).checked_sub(self.base as usize)?;
        (offset.checked_add(bytes)? <= self.bytes).then_some(offset as u64)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: invariant 1: mapped by `new`, and by the same invariant nobody holds an
        // address inside any more.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// Asks for huge pages, makes the pages of shared memory present and reserves them.
///
/// # Safety
/// The bytes lie in a mapping that stays ([`Steps::at`] has returned the address).
pub(crate) unsafe fn populate(at: *mut u8, bytes: u64, huge: bool) -> Result<(), TransportError> {
    if huge {
        // SAFETY: invariant 5, by the caller's contract; advice only, its failure is harmless.
        unsafe { libc::madvise(at.cast(), bytes as usize, libc::MADV_HUGEPAGE) };
    }
    // SAFETY: invariant 5, by the caller's contract; populating changes no content.
    let rc = unsafe { libc::madvise(at.cast(), bytes as usize, libc::MADV_POPULATE_WRITE) };
    if rc == 0 {
        return Ok(());
    }
    let e = std::io::Error::last_os_error();
    if e.raw_os_error() == Some(libc::EINVAL) {
        return Ok(()); // a kernel before 5.14: pages come with first use
    }
    Err(TransportError::os(
        format!("reserving {} KiB of shared memory", bytes >> 10),
        &e,
    ))
}

/// Bytes of the first step; each further one ends at twice the offset.
pub(crate) const FIRST_STEP_BYTES: u64 = 64 << 20;
/// Steps of the longest file.
const STEPS: usize = 24;

/// Part of a file: mapped at first use, if need be in several mappings.
#[derive(Default)]
struct Step {
    /// The first mapping; from the step's start.
    first: OnceLock<Mapping>,
    /// Those made because it was too short, from the step's start, too.
    longer: Mutex<Vec<Mapping>>,
}

/// Part of a file that is mapped in steps.
pub(crate) struct Steps {
    file: Arc<OwnedFd>,
    /// Where the part begins in the file, and its bytes.
    start: u64,
    bytes: u64,
    write: bool,
    /// The mappings ask for huge pages.
    huge: bool,
    /// Children do not inherit the mappings.
    own: bool,
    steps: [Step; STEPS],
}

impl Steps {
    /// Of `bytes` bytes at `start` of the file; nothing is mapped yet.
    pub fn new(file: Arc<OwnedFd>, start: u64, bytes: u64, write: bool) -> Self {
        debug_assert!(bytes <= FIRST_STEP_BYTES << (STEPS - 1));
        Self {
            file,
            start,
            bytes,
            write,
            huge: false,
            own: false,
            steps: Default::default(),
        }
    }

    /// The same in huge pages, where the system has them for shared memory.
    pub fn huge(self) -> Self {
        Self { huge: true, ..self }
    }

    /// The same as memory of this process alone: a forked child finds nothing where it lies.
    pub fn own(self) -> Self {
        Self { own: true, ..self }
    }

    /// Gives the pages of a part back to the system: whoever maps it reads zeros. Whether
    /// that was done.
    pub fn punch(&self, offset: u64, bytes: u64) -> bool {
        debug_assert!(offset + bytes <= self.bytes);
        // SAFETY: invariant 5; the contents are the caller's to give up.
        let rc = unsafe {
            libc::fallocate(
                self.file.as_raw_fd(),
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                (self.start + offset) as libc::off_t,
                bytes as libc::off_t,
            )
        };
        rc == 0
    }

    /// Calls a function with what is mapped: offset in the part, address, bytes.
    pub fn each_mapping(&self, mut f: impl FnMut(u64, *mut u8, usize)) {
        for (number, step) in self.steps.iter().enumerate() {
            let start = self.ends(number).0;
            let longer = step.longer.lock().unwrap_or_else(PoisonError::into_inner);
            for mapping in step.first.get().into_iter().chain(&*longer) {
                f(start, mapping.base, mapping.bytes);
            }
        }
    }

    /// Where the part begins in the file.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Bytes of the part.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The file.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Where memory of so many bytes may begin at `offset` or behind it, so that it lies
    /// within one step; none if the part has no such step.
    pub fn fit(&self, offset: u64, bytes: u64) -> Option<u64> {
        let mut at = offset;
        while at < self.bytes {
            let (_, end) = self.ends(step_of(at));
            if at.checked_add(bytes)? <= end {
                return Some(at);
            }
            at = end;
        }
        None
    }

    /// Start and end of a step.
    fn ends(&self, step: usize) -> (u64, u64) {
        let start = match step {
            0 => 0,
            _ => FIRST_STEP_BYTES << (step - 1),
        };
        (start, (FIRST_STEP_BYTES << step).min(self.bytes))
    }

    /// Address of memory that lies within one step, mapped now if it was not.
    ///
    /// # Errors
    /// [`TransportErrorKind::Malformed`]: it lies outside, or in two steps. Anything else:
    /// the system has no address space left.
    #[inline]
    pub fn at(&self, offset: u64, bytes: u64) -> Result<*mut u8, TransportError> {
        if offset < self.bytes {
            let step = step_of(offset);
            let first = self.steps.get(step).and_then(|s| s.first.get());
            if let Some(at) = first.and_then(|m| m.at(offset - self.ends(step).0, bytes)) {
                return Ok(at);
            }
        }
        self.map(offset, bytes)
    }

    #[cold]
    fn map(&self, offset: u64, bytes: u64) -> Result<*mut u8, TransportError> {
        let outside = || {
            TransportError::new(
                TransportErrorKind::Malformed,
                format!("{bytes} bytes at {offset:#x} of the job's shared memory"),
            )
        };
        let step = step_of(offset);
        let part = self.steps.get(step).ok_or_else(outside)?;
        let (start, end) = self.ends(step);
        let last = offset.checked_add(bytes).ok_or_else(outside)?;
        if offset >= self.bytes || last > end {
            return Err(outside());
        }
        let within = |m: &Mapping| m.at(offset - start, bytes);
        let mut longer = part.longer.lock().unwrap_or_else(PoisonError::into_inner);
        let known = part.first.get().into_iter().chain(&*longer);
        if let Some(at) = known.filter_map(within).next() {
            return Ok(at);
        }
        let most = (address_space() / 16).next_multiple_of(4096);
        let mut length = (end - start).min(most).max(last - start);
        let mapping = loop {
            match Mapping::new(&self.file, self.start + start, length, self.write) {
                Ok(mapping) => break mapping,
                Err(e) if length == last - start => return Err(e),
                Err(_) => length = (length / 2).next_multiple_of(4096).max(last - start),
            }
        };
        let own = self.own.then_some(libc::MADV_DONTFORK);
        let huge = self.huge.then_some(libc::MADV_HUGEPAGE);
        for advice in own.into_iter().chain(huge) {
            // SAFETY: invariants 1 and 5; advice of a mapping that nobody knows yet.
            unsafe { libc::madvise(mapping.base.cast(), mapping.bytes, advice) };
        }
        let at = within(&mapping).ok_or_else(outside)?;
        match part.first.get() {
            // Under the lock: nobody else sets it.
            None => drop(part.first.set(mapping)),
            Some(_) => longer.push(mapping),
        }
        Ok(at)
    }

    /// Offset of memory that lies in a step that is mapped.
    #[inline]
    pub fn offset_of(&self, ptr: *const u8, bytes: usize) -> Option<u64> {
        (0..STEPS).find_map(|step| {
            let first = self.steps[step].first.get()?;
            let offset = first.offset_of(ptr, bytes);
            let offset = offset.or_else(|| self.in_longer(step, ptr, bytes));
            offset.map(|offset| offset + self.ends(step).0)
        })
    }

    #[cold]
    fn in_longer(&self, step: usize, ptr: *const u8, bytes: usize) -> Option<u64> {
        let longer = &self.steps[step].longer;
        let longer = longer.lock().unwrap_or_else(PoisonError::into_inner);
        longer.iter().find_map(|m| m.offset_of(ptr, bytes))
    }
}

/// Most address space of the process (`ulimit -v`).
fn address_space() -> u64 {
    limit(libc::RLIMIT_AS)
}

/// A limit of the process; `u64::MAX` if there is none.
pub(crate) fn limit(resource: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: invariant 5; the structure is ours.
    unsafe { libc::getrlimit(resource, &raw mut limit) };
    match limit.rlim_cur {
        libc::RLIM_INFINITY => u64::MAX,
        bytes => bytes,
    }
}

/// The step that an offset lies in.
#[inline]
fn step_of(offset: u64) -> usize {
    match offset / FIRST_STEP_BYTES {
        0 => 0,
        n => n.ilog2() as usize + 1,
    }
}

/// Where the step ends that an offset lies in, of a file that is long enough.
pub(crate) fn step_end(offset: u64) -> u64 {
    FIRST_STEP_BYTES << step_of(offset)
}

/// Whether a step may begin there.
pub(crate) fn begins_step(offset: u64) -> bool {
    let steps = offset / FIRST_STEP_BYTES;
    offset.is_multiple_of(FIRST_STEP_BYTES) && steps.is_power_of_two()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::segment::memfd;
    use super::*;

    fn steps(bytes: u64) -> Steps {
        let file = memfd(c"steps", bytes).expect("a file");
        Steps::new(Arc::new(file), 0, bytes, true)
    }

    #[test]
    fn steps_cover_the_file_without_gaps() {
        let s = steps(64 << 30);
        let mut end = 0;
        for step in 0..=10 {
            let (a, b) = s.ends(step);
            assert_eq!((a, step_of(a), step_of(b - 1)), (end, step, step));
            end = b;
        }
        assert_eq!(end, s.bytes());
        let m = FIRST_STEP_BYTES;
        assert_eq!(s.fit(m - 4096, 4096), Some(m - 4096));
        assert_eq!(s.fit(m - 4096, 8192), Some(m));
        assert_eq!(s.fit(10, 3 * m), Some(4 * m));
        assert_eq!(s.fit(0, 33 << 30), None);
        assert!(s.at(m - 4096, 8192).is_err());
        assert!(s.at(64 << 30, 0).is_err());
        assert!(s.at(u64::MAX - 4, 8).is_err());
    }

    #[test]
    fn what_is_mapped_once_stays_where_it_is() {
        let s = steps(1 << 30);
        let a = s.at(70 << 20, 4096).expect("mapped");
        // SAFETY: invariant 2.
        unsafe { a.write(7) };
        assert_eq!(s.at(70 << 20, 4096).expect("mapped"), a);
        assert_eq!(s.offset_of(a, 4096), Some(70 << 20));
        assert_eq!(s.offset_of((&raw const s).cast(), 1), None);
        assert!(s.steps[0].first.get().is_none(), "nobody used it");
    }
}
