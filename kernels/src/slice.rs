//! Typed device and pinned memory, and handing it over in order.
//!
//! A kernel or copy reads a buffer at some later time, on some stream. So a
//! buffer is handed over as [`Ordered`]: together with the event or the stream
//! after which its bytes are valid. Nothing takes a bare slice:
//!
//! ```compile_fail
//! use osier_kernels::{DeviceSlice, Stream, copy};
//!
//! fn send(stream: &Stream, from: &DeviceSlice<f64>, to: &DeviceSlice<f64>) {
//!     // When are the bytes of `from` valid? This does not compile.
//!     let _ = copy::copy(stream, from, to);
//! }
//! ```
//!
//! ```no_run
//! use osier_kernels::{DeviceSlice, Stream, copy};
//!
//! fn send(stream: &Stream, from: &DeviceSlice<f64>, to: &DeviceSlice<f64>, producer: &Stream) {
//!     let _ = copy::copy(stream, &from.after_stream(producer), &to.after_stream(stream));
//! }
//! ```
//!
//! # Invariants
//! 1. A slice lies inside of its allocation, and is aligned for its type.
//! 2. Host code sees pinned memory only where no work of the device is under
//!    way: [`Pinned::host`] waits for the uses, and refuses while another slice
//!    lives by which new work could begin.

use crate::device::Context;
use crate::error::{DeviceError, Result};
use crate::memory::{Kind, Memory, Space};
use crate::stream::{Event, Stream};
use osier_datatype::Datatype;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

/// When a buffer's bytes are valid.
#[derive(Debug, Clone)]
pub enum After {
    /// When an event has passed.
    Event(Event),
    /// Behind the work queued on a stream until it is handed over.
    Stream(Stream),
    /// Now: whoever hands it over has waited.
    Now,
}

impl From<&Event> for After {
    fn from(event: &Event) -> After {
        After::Event(event.clone())
    }
}

impl From<&Stream> for After {
    fn from(stream: &Stream) -> After {
        After::Stream(stream.clone())
    }
}

/// A buffer and the ready event of its bytes.
#[derive(Debug, Clone)]
pub struct Ordered<B> {
    pub(crate) buffer: B,
    pub(crate) after: After,
}

impl<B> Ordered<B> {
    /// A buffer and its ready event.
    pub fn new(buffer: B, after: After) -> Ordered<B> {
        Ordered { buffer, after }
    }

    /// The buffer, without its order.
    pub fn into_inner(self) -> B {
        self.buffer
    }

    /// The buffer, valid when an event has passed: for a stream, one that is recorded
    /// there now, so that work which comes later is not waited for.
    ///
    /// # Errors
    /// The stream is being captured, or the driver refuses.
    pub fn settled(self) -> Result<Ordered<B>> {
        let after = match self.after {
            After::Stream(stream) => {
                if stream.capture()?.is_some() {
                    return Err(DeviceError::Capture(
                        "a buffer that is handed over outside of the captured work (hint: end \
                         the capture first)",
                    ));
                }
                After::Event(stream.record()?)
            }
            settled => settled,
        };
        Ok(Ordered {
            buffer: self.buffer,
            after,
        })
    }

    /// The same ready event for another buffer.
    pub fn map<C>(self, other: impl FnOnce(B) -> C) -> Ordered<C> {
        Ordered {
            buffer: other(self.buffer),
            after: self.after,
        }
    }

    /// What is handed over.
    pub fn buffer(&self) -> &B {
        &self.buffer
    }

    /// When it is valid.
    pub fn ready_event(&self) -> &After {
        &self.after
    }

    /// Makes a stream wait for the buffer; the host does not.
    pub(crate) fn order(&self, stream: &Stream) -> Result<()> {
        order(&self.after, stream)
    }
}

/// Makes a stream wait for a ready event; the host does not.
pub(crate) fn order(after: &After, stream: &Stream) -> Result<()> {
    match after {
        After::Stream(other) if other == stream => Ok(()),
        After::Stream(other) => {
            let captured = stream.capture()?;
            if captured.is_some() && other.capture()? != captured {
                return Err(DeviceError::Capture(
                    "a buffer is ordered by a stream outside of the capture (hint: order it \
                     by the captured stream, and the launch behind the other one)",
                ));
            }
            stream.wait(&other.record()?)
        }
        After::Event(event) => stream.wait(event),
        After::Now => Ok(()),
    }
}

/// A run of elements in memory that a device reaches; cheap to clone.
#[derive(Debug)]
pub struct DeviceSlice<T> {
    memory: Arc<Memory>,
    at: u64,
    len: usize,
    element: PhantomData<fn() -> T>,
}

impl<T> Clone for DeviceSlice<T> {
    fn clone(&self) -> Self {
        DeviceSlice {
            memory: self.memory.clone(),
            ..*self
        }
    }
}

impl<T: Datatype> DeviceSlice<T> {
    /// Allocates `len` elements of plain memory, which other processes can open
    /// ([`Kind::Plain`]); what they are is undefined until something was written.
    ///
    /// # Errors
    /// Out of memory, or the driver refuses.
    pub fn new(stream: &Stream, len: usize) -> Result<Ordered<DeviceSlice<T>>> {
        DeviceSlice::with_kind(stream, Kind::default(), len)
    }

    /// Allocates `len` elements in memory of a kind.
    ///
    /// # Errors
    /// As [`DeviceSlice::new`].
    pub fn with_kind(stream: &Stream, kind: Kind, len: usize) -> Result<Ordered<DeviceSlice<T>>> {
        let bytes = len.saturating_mul(size_of::<T>());
        let slice = DeviceSlice::of(Memory::allocate(stream, kind, bytes)?)?;
        Ok(slice.after_stream(stream))
    }

    /// All of an allocation.
    ///
    /// # Errors
    /// Its address or size does not suit the type.
    pub fn of(memory: Arc<Memory>) -> Result<DeviceSlice<T>> {
        let (at, bytes, size) = (memory.address(), memory.bytes(), size_of::<T>().max(1));
        if !bytes.is_multiple_of(size) || !at.is_multiple_of(align_of::<T>() as u64) {
            return Err(DeviceError::Size {
                what: "view memory as elements of another size or alignment",
                from: bytes,
                to: size,
            });
        }
        Ok(DeviceSlice {
            len: bytes / size,
            memory,
            at,
            element: PhantomData,
        })
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// Address on the device.
    pub fn address(&self) -> u64 {
        self.at
    }

    /// The allocation behind it.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The same bytes.
    pub fn erased(&self) -> DeviceSlice<u8> {
        DeviceSlice {
            len: self.bytes(),
            memory: self.memory.clone(),
            at: self.at,
            element: PhantomData,
        }
    }

    /// A part of it.
    ///
    /// # Errors
    /// The range lies outside.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceSlice<T>> {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&end) => end.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.len,
        };
        let size = size_of::<T>();
        if start > end || end > self.len {
            let byte = |index: usize| index as i128 * size as i128;
            return Err(DeviceError::Bounds {
                range: byte(start)..byte(end),
                bytes: self.bytes(),
            });
        }
        Ok(DeviceSlice {
            memory: self.memory.clone(),
            at: self.at + (start * size) as u64,
            len: end - start,
            element: PhantomData,
        })
    }

    /// The slice, valid behind the work that a stream has now.
    pub fn after_stream(&self, stream: &Stream) -> Ordered<DeviceSlice<T>> {
        Ordered {
            buffer: self.clone(),
            after: After::Stream(stream.clone()),
        }
    }

    /// The slice, valid when an event has passed.
    pub fn after(&self, event: &Event) -> Ordered<DeviceSlice<T>> {
        Ordered {
            buffer: self.clone(),
            after: After::Event(event.clone()),
        }
    }
}

/// Elements in pinned host memory, which devices read and write themselves.
#[derive(Debug)]
pub struct Pinned<T> {
    slice: DeviceSlice<T>,
}

impl<T: Datatype> Pinned<T> {
    /// Copies elements to new pinned memory.
    ///
    /// # Errors
    /// Out of memory, or the driver refuses.
    pub fn from_slice(context: &Context, elements: &[T]) -> Result<Pinned<T>> {
        let bytes = size_of_val(elements);
        let memory = Memory::pinned(context, bytes)?;
        let Some(host) = memory.host() else {
            return Err(DeviceError::Unavailable(
                "pinned memory has no host address".into(),
            ));
        };
        // SAFETY: a fresh allocation of at least so many bytes.
        unsafe { std::ptr::copy_nonoverlapping(elements.as_ptr().cast(), host, bytes) };
        Ok(Pinned {
            slice: DeviceSlice::of(memory)?,
        })
    }

    /// The elements, as a device sees them. The host has written them already,
    /// so they are valid on any stream.
    pub fn on_device(&self, stream: &Stream) -> Ordered<DeviceSlice<T>> {
        self.slice.after_stream(stream)
    }

    /// The elements on the host, after waiting for the device's uses.
    ///
    /// # Errors
    /// Another slice of the memory still lives, so that work on it could begin
    /// meanwhile; or work on the memory failed.
    pub fn host(&mut self) -> Result<&mut [T]> {
        let len = self.slice.len;
        let Some(memory) = Arc::get_mut(&mut self.slice.memory) else {
            return Err(DeviceError::Shared);
        };
        memory.wait_for_uses()?;
        let Some(host) = memory.host() else {
            return Err(DeviceError::Unavailable(
                "pinned memory has no host address".into(),
            ));
        };
        // SAFETY: the allocation holds `len` elements, which `from_slice` wrote;
        // work on it is over, and no other slice of it exists by which new work
        // could begin while the borrow lives.
        Ok(unsafe { std::slice::from_raw_parts_mut(host.cast(), len) })
    }
}

/// Where a slice lives.
impl<T> DeviceSlice<T> {
    /// The space of its memory.
    pub fn space(&self) -> Space {
        self.memory.space()
    }
}
