//! Kind of an allocation for other processes ([`Made`]), and the key that opens it there.
//!
//! ```text
//! key   made u8, bus id 16, identity u64, start u64, bytes u64, handle 64
//! ```
//!
//! # Invariants
//! 1. A key's identity is the driver's number of the allocation, which a process uses
//!    once: memory that was freed and allocated anew at the same address has another
//!    key, and whoever keeps opened memory by key never meets the old for the new.
//! 2. What is opened is at least as large as its key says.

use super::{MemoryHandle, OpenPool, Piece, import_pieces, pool};
use crate::device::{Context, DeviceId};
use crate::driver::abi;
use crate::error::{DeviceError, Result};
use crate::memory::Memory;
use crate::stream::Stream;
use std::ffi::{c_int, c_uint, c_void};
use std::ops::Range;
use std::sync::Arc;

/// Pieces of mapped memory that are exported at most; each takes a descriptor.
const PIECES: usize = 512;

/// How memory was made, as far as other processes are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Made {
    /// By itself: a handle opens all of the allocation.
    Plain = 1,
    /// From a stream-ordered pool that is not exportable.
    Pool = 2,
    /// From the process's own exportable pool: a descriptor of the pool, and a handle
    /// within it.
    SharedPool = 3,
    /// Mapped physical memory: a descriptor of each piece.
    Mapped = 4,
    /// Mapped physical memory that was not made to be exported.
    PrivateMapped = 5,
    /// Managed memory.
    Managed = 6,
    /// Pinned memory of the host.
    Pinned = 7,
    /// From an exportable pool of another library: as [`Made::SharedPool`], but nobody
    /// says how long the pool's name is its own.
    OtherPool = 8,
}

impl Made {
    /// All of them.
    pub const ALL: [Made; 8] = [
        Made::Plain,
        Made::Pool,
        Made::SharedPool,
        Made::OtherPool,
        Made::Mapped,
        Made::PrivateMapped,
        Made::Managed,
        Made::Pinned,
    ];

    /// For messages and tables.
    pub fn name(self) -> &'static str {
        match self {
            Made::Plain => "plain",
            Made::Pool => "pool",
            Made::SharedPool => "exportable pool",
            Made::OtherPool => "exportable pool of others",
            Made::Mapped => "mapped",
            Made::PrivateMapped => "mapped, not exportable",
            Made::Managed => "managed",
            Made::Pinned => "pinned host",
        }
    }

    /// How some memory was made.
    ///
    /// # Errors
    /// The driver knows no memory there.
    pub fn of(memory: &Memory) -> Result<Made> {
        Ok(Allocation::at(memory.context(), memory.address())?.made)
    }

    fn from_wire(byte: u8) -> Option<Made> {
        Made::ALL.into_iter().find(|made| *made as u8 == byte)
    }
}

/// What the driver knows of the memory at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub made: Made,
    pub start: u64,
    pub bytes: u64,
    pub identity: u64,
    /// Handle of its pool, or 0.
    pool: u64,
}

impl Allocation {
    /// The pool that it is of, or none.
    pub fn pool(&self) -> abi::MemoryPool {
        abi::MemoryPool(self.pool as usize as _)
    }

    /// The allocation, or the piece of mapped memory, that holds an address.
    pub fn at(context: &Context, at: u64) -> Result<Allocation> {
        let driver = context.enter()?;
        let (mut kind, mut managed, mut plain) = (0 as c_uint, 0 as c_uint, 0 as c_int);
        let (mut start, mut bytes, mut identity) = (0u64, 0usize, 0u64);
        let (mut pool, mut exports) = (0u64, 0u64);
        let mut which = [
            abi::POINTER_MEMORY_TYPE,
            abi::POINTER_IS_MANAGED,
            abi::POINTER_IS_LEGACY_IPC_CAPABLE,
            abi::POINTER_RANGE_START,
            abi::POINTER_RANGE_SIZE,
            abi::POINTER_BUFFER_ID,
            abi::POINTER_MEMPOOL_HANDLE,
            abi::POINTER_ALLOWED_HANDLE_TYPES,
        ];
        let mut values: [*mut c_void; 8] = [
            (&raw mut kind).cast(),
            (&raw mut managed).cast(),
            (&raw mut plain).cast(),
            (&raw mut start).cast(),
            (&raw mut bytes).cast(),
            (&raw mut identity).cast(),
            (&raw mut pool).cast(),
            (&raw mut exports).cast(),
        ];
        // SAFETY: eight attributes, a place of its type, or a wider one, for each.
        unsafe { driver.cuPointerGetAttributes(8, which.as_mut_ptr(), values.as_mut_ptr(), at) }?;
        let exportable = exports & u64::from(abi::HANDLE_POSIX_FD) != 0;
        let own = exportable && context.is_shared_pool(pool);
        let made = match kind {
            _ if managed != 0 => Made::Managed,
            abi::MEMORY_HOST => Made::Pinned,
            abi::MEMORY_DEVICE | abi::MEMORY_UNIFIED => match (pool != 0, exportable) {
                (true, true) if !own => Made::OtherPool,
                (true, true) => Made::SharedPool,
                (true, false) => Made::Pool,
                _ if plain != 0 => Made::Plain,
                (false, true) => Made::Mapped,
                (false, false) => Made::PrivateMapped,
            },
            _ => {
                return Err(DeviceError::Unavailable(format!(
                    "the driver knows no memory at {at:#x}"
                )));
            }
        };
        // Of memory that is mapped, by the program or by the driver for a pool, the attributes
        // tell what it lies in.
        if !matches!(made, Made::Plain | Made::Managed | Made::Pinned) {
            (start, bytes) = driver.piece(at)?;
        }
        Ok(Allocation {
            made,
            start,
            bytes: bytes as u64,
            identity,
            pool,
        })
    }
}

/// The pieces of mapped memory that a range of addresses touches.
pub(crate) fn pieces(context: &Context, range: Range<u64>) -> Result<Vec<Allocation>> {
    let mut pieces = Vec::new();
    let mut at = range.start;
    loop {
        let piece = Allocation::at(context, at)?;
        if piece.made != Made::Mapped {
            return Err(DeviceError::Unavailable(format!(
                "{} memory at {at:#x} is not mapped memory to be exported",
                piece.made.name()
            )));
        }
        if pieces.len() == PIECES {
            return Err(DeviceError::Unavailable(format!(
                "memory of more than {PIECES} pieces"
            )));
        }
        at = piece.start.saturating_add(piece.bytes.max(1));
        pieces.push(piece);
        if at >= range.end {
            return Ok(pieces);
        }
    }
}

/// A number of two, in their order.
fn mixed(a: u64, b: u64) -> u64 {
    (a.rotate_left(5) ^ b).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Opens memory in another process, or says there why it cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// How the memory was made.
    pub made: Made,
    /// Its device.
    pub device: DeviceId,
    /// Invariant 1.
    pub identity: u64,
    /// The exporter's address of the allocation.
    pub start: u64,
    /// The allocation's size.
    pub bytes: u64,
    /// The driver's handle; zeros where there is none.
    pub handle: [u8; 64],
}

impl Key {
    /// Bytes of the wire form.
    pub const WIRE_BYTES: usize = 105;

    /// The key of the allocation that holds a range of addresses of some memory; of mapped
    /// memory, of the pieces that the range touches. Of memory that cannot be opened, a
    /// description.
    ///
    /// # Errors
    /// The driver knows no memory there, or refuses.
    pub fn of(memory: &Memory, range: Range<u64>) -> Result<Key> {
        memory.check_lives()?;
        let context = memory.context();
        let mut found = Allocation::at(context, range.start)?;
        if found.made == Made::Mapped {
            let mut all = pieces(context, range)?.into_iter();
            all.next(); // found
            for piece in all {
                found.bytes += piece.bytes;
                found.identity = mixed(found.identity, piece.identity);
            }
        }
        let handle = match found.made {
            Made::Plain => MemoryHandle::at(context, found.start)?,
            Made::SharedPool | Made::OtherPool => {
                pool::pointer(context, found.pool(), found.start)?
            }
            _ => [0; 64],
        };
        Ok(Key {
            made: found.made,
            device: context.id(),
            identity: found.identity,
            start: found.start,
            bytes: found.bytes,
            handle,
        })
    }

    /// Maps the memory of another process into this one; mapped memory by the pieces that
    /// its exporter has given. It stays mapped until the last
    /// clone goes and the work queued on it is done. Device work that leaves what the
    /// exporter keeps meanwhile fails as such work does.
    ///
    /// # Errors
    /// The key is one of this process or of no allocation; there is less memory than it
    /// says; the devices are not linked; the memory cannot be shared.
    pub fn open(&self, context: &Context, given: &[Piece]) -> Result<Arc<Memory>> {
        let bytes = usize::try_from(self.bytes)
            .map_err(|_| DeviceError::Unavailable("more memory than there is".into()))?;
        let memory = match self.made {
            Made::Plain => {
                let handle = MemoryHandle {
                    bytes: self.handle,
                    allocation_bytes: bytes,
                };
                // SAFETY: a transfer holds the exporter's allocation, and its size is
                // compared below.
                unsafe { handle.open(context) }?
            }
            Made::Mapped => import_pieces(context, given)?,
            made => {
                return Err(DeviceError::Unavailable(format!(
                    "{} memory has no handle for other processes",
                    made.name()
                )));
            }
        };
        let there = match self.made {
            Made::Mapped => memory.bytes() as u64,
            _ => {
                let found = Allocation::at(context, memory.address())?;
                (found.start + found.bytes).saturating_sub(memory.address())
            }
        };
        if there < self.bytes {
            return Err(DeviceError::Bounds {
                range: 0..i128::from(self.bytes),
                bytes: there as usize,
            });
        }
        Ok(memory)
    }

    /// Opens memory of another process's pool. It is to be given back behind the work on
    /// it, before its exporter is told that the work is done: the last clone goes in the
    /// order of the stream.
    ///
    /// # Errors
    /// It is no memory of this pool, or it is open already.
    pub fn open_in(&self, pool: &OpenPool, stream: &Stream) -> Result<Arc<Memory>> {
        let bytes = usize::try_from(self.bytes)
            .map_err(|_| DeviceError::Unavailable("more memory than there is".into()))?;
        let memory = pool.import(stream, self.handle, bytes)?;
        let found = Allocation::at(stream.context(), memory.address())?;
        let there = (found.start + found.bytes).saturating_sub(memory.address());
        if there < self.bytes {
            return Err(DeviceError::Bounds {
                range: 0..i128::from(self.bytes),
                bytes: there as usize,
            });
        }
        Ok(memory)
    }

    /// Writes the wire form.
    pub fn to_wire(&self) -> [u8; Self::WIRE_BYTES] {
        let mut w = [0; Self::WIRE_BYTES];
        w[0] = self.made as u8;
        w[1..17].copy_from_slice(&self.device);
        w[17..25].copy_from_slice(&self.identity.to_le_bytes());
        w[25..33].copy_from_slice(&self.start.to_le_bytes());
        w[33..41].copy_from_slice(&self.bytes.to_le_bytes());
        w[41..].copy_from_slice(&self.handle);
        w
    }

    /// Parses the wire form; `None` for what is never written.
    pub fn from_wire(w: &[u8]) -> Option<Key> {
        let w: &[u8; Self::WIRE_BYTES] = w.try_into().ok()?;
        let word = |at: usize| u64::from_le_bytes(w[at..at + 8].try_into().unwrap_or([0; 8]));
        let key = Key {
            made: Made::from_wire(w[0])?,
            device: w[1..17].try_into().ok()?,
            identity: word(17),
            start: word(25),
            bytes: word(33),
            handle: w[41..].try_into().ok()?,
        };
        let sound = key.bytes <= isize::MAX as u64 && key.start.checked_add(key.bytes).is_some();
        sound.then_some(key)
    }
}
