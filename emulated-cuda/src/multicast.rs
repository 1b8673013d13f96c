//! Multicast objects: an address behind which memory of several devices lies, to which
//! kernels store with `multimem` instructions.
//!
//! An object is a file that its processes share by descriptor. It says which devices take
//! part and what memory is bound where; that memory is opened as [`crate::ipc`] opens what
//! other processes have.
//!
//! ```text
//! words 0 to 3    devices in all; bytes; devices that were added, as bits; changes so far
//! words 8 on      slots of 8 words: state; device; offset; bytes; where in its file;
//!                 process; descriptor; inode
//! ```
//!
//! # Invariants
//! 1. The words of a slot are written by who has taken it, before the slot is bound.
//! 2. The file of bound memory stays open in its process while that has the object.
//! 3. A kernel stores to what was bound when it began.
//!
//! # Sources
//! NVIDIA, CUDA Driver API reference, version 12.2: multicast object management; PTX ISA
//! 8.2, multimem addresses: no other instruction may use them. That a store needs memory of
//! every device is not written there; here what is missing is an error.

use std::cell::Cell;
use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::abi::{self, Handle};
use crate::driver::{Object, Physical, State};
use crate::fault::{Fault, Result, invalid};
use crate::grid;
use crate::ipc::Ticket;
use crate::memory::{File, Kind};
use crate::ranges::PAGE;
use crate::settings::settings;

/// What sizes and offsets are multiples of: more than of plain mappings, so that who takes
/// the one for the other is told.
pub const GRANULARITY: u64 = 4 << 20;
/// The same for the best speed.
pub const RECOMMENDED: u64 = 8 << 20;

/// A call that waits for devices has waited long enough to be an error.
const PATIENCE: Duration = Duration::from_secs(5);

const NAME: &str = "osier-emulated-multicast";
const FILE_BYTES: u64 = 2 * PAGE;

const DEVICES: u64 = 0;
const BYTES: u64 = 1;
const ADDED: u64 = 2;
const CHANGES: u64 = 3;

const SLOTS: u64 = 64;
const FREE: u64 = 0;
const TAKEN: u64 = 1;
const BOUND: u64 = 2;

/// What a slot says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The device that the memory is of.
    pub device: u64,
    /// Where in the object.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// Where in the memory's file.
    pub file_offset: u64,
    process: u64,
    fd: u64,
    inode: u64,
}

/// Bound memory as this process has opened it.
#[derive(Clone, Debug)]
struct Target {
    binding: Binding,
    file: Arc<File>,
}

/// What this process has to do with an object.
#[derive(Debug, Default)]
struct Here {
    /// Its own memory that is bound, by slot.
    bound: Vec<(u64, Handle, Arc<File>)>,
    /// What was bound when it last looked, and after how many changes.
    targets: Arc<Vec<Target>>,
    seen: u64,
}

/// A multicast object.
#[derive(Debug)]
pub struct Multicast {
    file: Arc<File>,
    here: Mutex<Here>,
}

impl Multicast {
    /// A new one, and the file to export.
    pub fn create(devices: u64, bytes: u64) -> Result<(Arc<File>, Multicast)> {
        let file = File::create_named(NAME, FILE_BYTES)?;
        let object = Multicast::of(file.clone());
        object.word(DEVICES).store(devices, Ordering::Relaxed);
        object.word(BYTES).store(bytes, Ordering::Release);
        Ok((file, object))
    }

    /// Whether a descriptor is that of an object.
    pub fn is_one(fd: &OwnedFd) -> Result<bool> {
        Ok(File::name_of(fd)?.contains(NAME))
    }

    /// One of another process.
    pub fn open(fd: OwnedFd) -> Result<(Arc<File>, Multicast)> {
        let file = File::map(fd, 0, FILE_BYTES)?;
        Ok((file.clone(), Multicast::of(file)))
    }

    fn of(file: Arc<File>) -> Multicast {
        Multicast {
            file,
            here: Mutex::default(),
        }
    }

    fn here(&self) -> MutexGuard<'_, Here> {
        self.here.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn word(&self, index: u64) -> &AtomicU64 {
        let at = (self.file.view + 8 * index) as *mut u64;
        // SAFETY: an aligned word of the file, which lives as long as `file`.
        unsafe { AtomicU64::from_ptr(at) }
    }

    fn slot(&self, slot: u64, field: u64) -> &AtomicU64 {
        self.word(8 + 8 * slot + field)
    }

    /// Devices in all.
    pub fn devices(&self) -> u64 {
        self.word(DEVICES).load(Ordering::Acquire)
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.word(BYTES).load(Ordering::Acquire)
    }

    /// Devices that were added, as bits.
    pub fn added(&self) -> u64 {
        self.word(ADDED).load(Ordering::Acquire)
    }

    /// Adds a device.
    pub fn add(&self, device: usize) -> Result {
        let bit = 1u64 << device;
        let set = |added: u64| {
            let room = u64::from(added.count_ones()) < self.devices();
            (room && added & bit == 0).then_some(added | bit)
        };
        let added = self.added();
        let mut others = (0..u64::BITS as usize).filter(|other| added >> other & 1 == 1);
        if !others.all(|other| settings().on_one_switch(device, other)) {
            return Err(Fault::named(
                abi::ERROR_INVALID_DEVICE,
                format!("device {device} is not on the switch of the devices before it"),
            ));
        }
        let word = self.word(ADDED);
        let done = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, set);
        done.map(drop).map_err(|added| match added & bit {
            0 => invalid(format!("the object has its {} devices", self.devices())),
            _ => invalid(format!("device {device} is added twice")),
        })
    }

    /// Waits until all devices were added, as the documentation has it. A driver waits for
    /// ever.
    pub fn wait_for_devices(&self) -> Result {
        let begun = Instant::now();
        while u64::from(self.added().count_ones()) < self.devices() {
            if begun.elapsed() > PATIENCE {
                return Err(Fault::named(
                    abi::ERROR_ILLEGAL_STATE,
                    format!(
                        "the object waits for {} of its {} devices (hint: cuMulticastAddDevice \
                         for all of them, then bind and map)",
                        self.devices() - u64::from(self.added().count_ones()),
                        self.devices()
                    ),
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn binding(&self, slot: u64) -> Option<Binding> {
        if self.slot(slot, 0).load(Ordering::Acquire) != BOUND {
            return None;
        }
        let word = |field: u64| self.slot(slot, field).load(Ordering::Relaxed);
        Some(Binding {
            device: word(1),
            offset: word(2),
            bytes: word(3),
            file_offset: word(4),
            process: word(5),
            fd: word(6),
            inode: word(7),
        })
    }

    /// Binds memory of this process: its handle, file and device; where in the object and
    /// in the file, and how much.
    pub fn bind(
        &self,
        (handle, file, device): (Handle, Arc<File>, usize),
        (offset, file_offset, bytes): (u64, u64, u64),
    ) -> Result {
        let meets = |b: &Binding| {
            b.device == device as u64 && b.offset < offset + bytes && offset < b.offset + b.bytes
        };
        if (0..SLOTS)
            .filter_map(|slot| self.binding(slot))
            .any(|b| meets(&b))
        {
            return Err(invalid(format!(
                "device {device} has bound memory there already"
            )));
        }
        let take = |slot: &u64| {
            let state = self.slot(*slot, 0);
            let (set, fetch) = (Ordering::Acquire, Ordering::Relaxed);
            state.compare_exchange(FREE, TAKEN, set, fetch).is_ok()
        };
        let slot = (0..SLOTS)
            .find(take)
            .ok_or_else(|| Fault::plain(abi::ERROR_OUT_OF_MEMORY))?;
        let words = [
            device as u64,
            offset,
            bytes,
            file_offset,
            u64::from(std::process::id()),
            file.fd() as u64,
            inode(&file.duplicate()?),
        ];
        for (field, word) in (1..).zip(words) {
            self.slot(slot, field).store(word, Ordering::Relaxed);
        }
        self.slot(slot, 0).store(BOUND, Ordering::Release);
        self.word(CHANGES).fetch_add(1, Ordering::AcqRel);
        self.here().bound.push((slot, handle, file));
        Ok(())
    }

    /// Undoes a binding; the handle of the memory, if it is of this process.
    pub fn unbind(&self, device: usize, offset: u64, bytes: u64) -> Result<Option<Handle>> {
        let same = |b: Binding| (b.device, b.offset, b.bytes) == (device as u64, offset, bytes);
        let mut slots = 0..SLOTS;
        let found = slots.find(|slot| self.binding(*slot).is_some_and(same));
        let slot = found.ok_or_else(|| {
            invalid(format!(
                "device {device} has not bound {bytes} bytes at {offset}"
            ))
        })?;
        self.slot(slot, 0).store(FREE, Ordering::Release);
        self.word(CHANGES).fetch_add(1, Ordering::AcqRel);
        let bound = &mut self.here().bound;
        let at = bound.iter().position(|(known, ..)| *known == slot);
        Ok(at.map(|at| bound.swap_remove(at).1))
    }

    /// Handles of the memory that this process has bound, which has let go of the object.
    pub fn take_bound(&self) -> Vec<Handle> {
        let bound = std::mem::take(&mut self.here().bound);
        bound.into_iter().map(|(_, handle, _)| handle).collect()
    }

    /// All that is bound, opened. Memory whose process has gone is left out.
    fn targets(&self) -> Arc<Vec<Target>> {
        let mut here = self.here();
        let changes = self.word(CHANGES).load(Ordering::Acquire);
        if here.seen != changes {
            let known = here.targets.clone();
            let open = |binding: Binding| {
                let same = known.iter().find(|target| target.binding == binding);
                same.cloned().or_else(|| Target::open(binding).ok())
            };
            let all = (0..SLOTS).filter_map(|slot| self.binding(slot));
            here.targets = Arc::new(all.filter_map(open).collect());
            here.seen = changes;
        }
        here.targets.clone()
    }
}

fn inode(fd: &OwnedFd) -> u64 {
    let file = fd.try_clone().map(std::fs::File::from);
    file.and_then(|file| file.metadata())
        .map_or(0, |data| data.ino())
}

impl Target {
    fn open(binding: Binding) -> Result<Target> {
        let ticket = Ticket::of_descriptor(binding.process as u32, binding.fd as u32);
        let fd = ticket.descriptor()?;
        if inode(&fd) != binding.inode {
            return Err(invalid("the descriptor is another file's by now"));
        }
        let file = File::map(fd, binding.file_offset, binding.bytes)?;
        Ok(Target { binding, file })
    }
}

/// Enters an object among the handles.
pub fn enter(state: &mut State, file: Arc<File>, object: Multicast, exportable: bool) -> Handle {
    let handle = state.handle(Object::Physical);
    let physical = Physical {
        device: 0,
        file,
        holders: 1,
        exportable,
        counted: false,
        handles: 1,
        multicast: Some(Arc::new(object)),
    };
    state.physical.insert(handle, physical);
    handle
}

/// A mapping of an object, for a kernel.
#[derive(Debug)]
pub struct Window {
    start: u64,
    bytes: u64,
    /// Where in the object.
    offset: u64,
    /// Devices, as bits.
    devices: u64,
    targets: Arc<Vec<Target>>,
}

/// Mappings of objects that a device was given.
pub fn windows(state: &State, device: usize) -> Vec<Window> {
    if !settings().has_multicast() {
        return Vec::new();
    }
    let given = state.memory.all().filter(|a| a.access >> device & 1 == 1);
    let window = |a: &crate::memory::Allocation| {
        let Kind::Multicast(handle) = a.kind else {
            return None;
        };
        let object = state.physical.get(&handle)?.multicast.as_ref()?;
        Some(Window {
            start: a.start,
            bytes: a.bytes,
            offset: a.view,
            devices: object.added(),
            targets: object.targets(),
        })
    };
    given.filter_map(window).collect()
}

thread_local! {
    /// Of the kernel that runs.
    static WINDOWS: Cell<*const [Window]> = const { Cell::new(&[]) };
}

/// A kernel goes on, which has these windows until [`leave_kernel`].
pub fn enter_kernel(windows: &[Window]) {
    WINDOWS.set(windows);
}

/// It has given back.
pub fn leave_kernel() {
    WINDOWS.set(&[]);
}

/// Called by kernels: stores elements to all memory behind a multicast address. Each element
/// is whole.
pub extern "C" fn store(at: *mut c_void, from: *const c_void, element: usize, elements: usize) {
    let (at, bytes) = (at as u64, (element * elements) as u64);
    // SAFETY: the kernel's windows live until it has given back (`Running::pass`).
    let windows = unsafe { &*WINDOWS.get() };
    let inside = |w: &&Window| w.start <= at && at + bytes <= w.start + w.bytes;
    let Some(window) = windows.iter().find(inside) else {
        let what = format!("0x{at:x} is no multicast address that its device was given");
        grid::fail(abi::ERROR_ILLEGAL_ADDRESS, what);
    };
    if !at.is_multiple_of(bytes) {
        let what = format!("a multimem store of {bytes} bytes at 0x{at:x}");
        grid::fail(abi::ERROR_MISALIGNED_ADDRESS, what);
    }
    let offset = window.offset + (at - window.start);
    let mut left = window.devices;
    for Target { binding, file } in window.targets.iter() {
        if binding.offset <= offset && offset + bytes <= binding.offset + binding.bytes {
            left &= !(1 << binding.device);
            let to = file.view + (offset - binding.offset);
            for i in 0..elements {
                put(
                    to + (i * element) as u64,
                    from.wrapping_byte_add(i * element),
                    element,
                );
            }
        }
    }
    if left != 0 {
        let device = left.trailing_zeros();
        grid::fail(
            abi::ERROR_ILLEGAL_ADDRESS,
            format!(
                "a multimem store at 0x{at:x}, where device {device} has bound nothing when the \
                 kernel began (hint: all bind, then a barrier)"
            ),
        );
    }
}

/// Stores one element.
fn put(to: u64, from: *const c_void, bytes: usize) {
    match bytes {
        4 => {
            // SAFETY: the shim passes elements of its own frame.
            let value = unsafe { from.cast::<u32>().read_unaligned() };
            // SAFETY: aligned, inside of the driver's mapping of bound memory.
            unsafe { AtomicU32::from_ptr(to as *mut u32) }.store(value, Ordering::Relaxed);
        }
        _ => {
            // SAFETY: the shim passes elements of its own frame, of 4 or of 8 bytes.
            let value = unsafe { from.cast::<u64>().read_unaligned() };
            // SAFETY: aligned, inside of the driver's mapping of bound memory.
            unsafe { AtomicU64::from_ptr(to as *mut u64) }.store(value, Ordering::Relaxed);
        }
    }
}
