//! Test whether a buffer is mapped memory, to its end.
//!
//! A byte of each page is read by the kernel, which answers where a load would end the
//! process; what is to be written is looked up in the list of mappings. Only gaps between
//! a buffer's runs may be unmapped. A buffer on the stack ends before its function's return
//! address.

use crate::objects::lock;
use osier_engine::check::Region;
use std::ops::Range;
use std::sync::Mutex;

/// What is wrong with a buffer, and at which address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    Unmapped(usize),
    ReadOnly(usize),
    /// It begins among the variables of a function, and ends behind them.
    BeyondFrame(usize),
}

/// Smallest page of any machine that this runs on.
const PAGE: usize = 4096;
/// Pages that one call looks at: no more parts fit (`IOV_MAX`).
const AT_ONCE: usize = 1024;

/// The first flaw of a buffer.
pub fn flaw(region: &Region) -> Option<Flaw> {
    let mut look = Look {
        asked: Vec::with_capacity(AT_ONCE),
        last: None,
        writes: region.is_written(),
        found: None,
    };
    region.runs(|run| look.at(run));
    look.ask();
    look.found
}

/// Whether a buffer overruns the variables of the function that it is one of. The memory
/// behind them is mapped: it has the address to which the function returns.
pub fn overrun(region: &Region) -> Option<Flaw> {
    let frames = crate::callers::frames();
    let (lowest, highest) = (frames.first()?.start, frames.last()?.end);
    let mut found = None;
    region.runs(|run| {
        if found.is_some() || run.start < lowest || run.start >= highest {
            return;
        }
        let own = frames.iter().find(|frame| frame.contains(&run.start));
        if let Some(own) = own
            && run.end > own.end
        {
            found = Some(Flaw::BeyondFrame(own.end));
        }
    });
    found
}

struct Look {
    /// An address on each page that was not asked for yet.
    asked: Vec<usize>,
    /// The page that was seen last.
    last: Option<usize>,
    writes: bool,
    found: Option<Flaw>,
}

impl Look {
    fn at(&mut self, run: Range<usize>) {
        if self.found.is_some() || run.is_empty() {
            return;
        }
        let mut at = run.start;
        while at < run.end && self.found.is_none() {
            if self.last != Some(at / PAGE) {
                self.last = Some(at / PAGE);
                self.asked.push(at);
                if self.asked.len() == AT_ONCE {
                    self.ask();
                }
            }
            let Some(next) = (at / PAGE + 1).checked_mul(PAGE) else {
                break;
            };
            at = next;
        }
    }

    fn ask(&mut self) {
        let asked = std::mem::take(&mut self.asked);
        if self.found.is_some() || asked.is_empty() {
            return;
        }
        self.found = unreadable(&asked).map(Flaw::Unmapped);
        if self.found.is_none() && self.writes {
            self.found = unwritable(&asked).map(Flaw::ReadOnly);
        }
    }
}

/// The first of these addresses that cannot be read.
fn unreadable(asked: &[usize]) -> Option<usize> {
    let mut bytes = [0u8; AT_ONCE];
    let part = |at: usize| libc::iovec {
        iov_base: at as *mut libc::c_void,
        iov_len: 1,
    };
    let parts: Vec<libc::iovec> = asked.iter().map(|at| part(*at)).collect();
    let local = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: asked.len().min(AT_ONCE),
    };
    let (own, count) = (std::process::id() as i32, parts.len() as libc::c_ulong);
    // SAFETY: the local part has room for a byte of each of at most `AT_ONCE` others, which
    // the kernel reads itself: it answers with an error where nothing lies.
    let got = unsafe { libc::process_vm_readv(own, &local, 1, parts.as_ptr(), count, 0) };
    if let Ok(got) = usize::try_from(got) {
        return asked.get(got).copied();
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EFAULT) => asked.first().copied(),
        // The system does not let anybody ask: the list of mappings has to do.
        _ => asked.iter().find(|at| !is_mapped(**at, false)).copied(),
    }
}

/// The first of these addresses that cannot be written.
fn unwritable(asked: &[usize]) -> Option<usize> {
    asked.iter().find(|at| !is_mapped(**at, true)).copied()
}

/// Mappings in order: addresses, and whether they can be written.
type Mappings = Vec<(Range<usize>, bool)>;

/// Whether an address lies in a mapping, of memory that can be written if that is asked.
fn is_mapped(at: usize, to_write: bool) -> bool {
    static KNOWN: Mutex<Mappings> = Mutex::new(Vec::new());
    let mut known = lock(&KNOWN);
    if has(&known, at, to_write) {
        return true;
    }
    // What was mapped since then is not known yet.
    let Ok(text) = std::fs::read_to_string("/proc/self/maps") else {
        return true;
    };
    *known = text.lines().filter_map(mapping).collect();
    has(&known, at, to_write)
}

fn has(known: &Mappings, at: usize, to_write: bool) -> bool {
    let behind = known.partition_point(|(range, _)| range.start <= at);
    match behind.checked_sub(1).map(|i| &known[i]) {
        Some((range, writable)) => range.contains(&at) && (*writable || !to_write),
        None => false,
    }
}

/// `7f00-7fff rw-p ...`
fn mapping(line: &str) -> Option<(Range<usize>, bool)> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let readable = rest.as_bytes().first()? == &b'r';
    let writable = rest.as_bytes().get(1)? == &b'w';
    readable.then_some((address(start)?..address(end)?, writable))
}
