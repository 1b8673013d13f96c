//! Buffers in the memory of devices.
//!
//! A device buffer is posted together with the ready event from which its bytes are
//! valid ([`Ordered`]): an event, or the work queued on a stream so far. A send packs it behind
//! that ready event; a receive unpacks into it behind that ready event, and completes when the
//! bytes lie there, so that work queued afterwards, on any stream, sees them.
//!
//! A host buffer belongs to its request alone, so a dropped request goes on
//! by itself. A device buffer can have clones, and its owner may use it at once: a
//! dropped receive is cancelled instead, after waiting for a kernel that writes
//! there (`Request::detach` lets it go on).
//!
//! # Invariants
//! 1. A view of a device's buffer counts the allocation, which does not move. Kernels and
//!    copies of the driver read and write it, which Rust's rules of aliasing do not bind:
//!    a concurrent writer changes the bytes, and nothing else.

use super::{Buffer, BufferMut, OwnedBuffer, OwnedBufferMut, RawView, View, ViewMut};
use crate::device::{DeviceMemory, Use};
use crate::error::Result;
use osier_datatype::{Datatype, Layout};
use osier_kernels::{
    After, Context, DeviceError, DeviceSlice, DeviceView, Memory, Ordered, classify,
};

/// Device memory that can be sent and received when it is posted with a ready event
/// ([`Ordered`]), as by [`DeviceSlice::after_stream`].
///
/// # Lifetimes
/// A message counts the objects that it needs: its allocation, the stream in whose order that is
/// freed, the context of both. So all of them may be dropped at any time:
///
/// ```no_run
/// use osier::devices::{DeviceSlice, Stream};
///
/// fn send(comm: &osier::Communicator, field: DeviceSlice<f64>, stream: Stream) -> osier::Result<()> {
///     let sent = comm.isend(field.after_stream(&stream), 1, 0)?;
///     drop((field, stream)); // they live until the message is over
///     sent.wait()?;
///     Ok(())
/// }
/// ```
///
/// Memory and streams of other libraries are not counted, so taking them is a promise:
///
/// ```compile_fail,E0133
/// use osier::devices::{Context, Memory};
///
/// fn take(context: &Context) {
///     // Who keeps it alive? This does not compile without `unsafe`.
///     let _ = Memory::foreign(context, 0x7f00_0000_0000, 4096);
/// }
/// ```
///
/// If the promise is broken, memory that [`Memory::found`](osier_kernels::Memory::found) has found
/// is refused as soon as it was freed: the message ends with
/// [`DeviceError::Freed`] here, and with an error that names this rank at its peer.
pub trait DeviceBuffer: Clone {
    /// Its elements.
    type Element: Datatype;

    /// The elements and their layout.
    ///
    /// # Errors
    /// There is no such view.
    fn device_view(&self) -> std::result::Result<DeviceView<Self::Element>, DeviceError>;
}

impl<T: Datatype> DeviceBuffer for DeviceSlice<T> {
    type Element = T;

    fn device_view(&self) -> std::result::Result<DeviceView<T>, DeviceError> {
        DeviceView::of(self)
    }
}

impl<T: Datatype> DeviceBuffer for DeviceView<T> {
    type Element = T;

    fn device_view(&self) -> std::result::Result<DeviceView<T>, DeviceError> {
        Ok(self.clone())
    }
}

/// The memory of a view; the ready event is fixed now, if it is used.
pub fn handed_over<T: Datatype>(view: Ordered<DeviceView<T>>, use_: Use) -> RawView {
    let (origin, bytes) = (view.buffer().origin(), view.buffer().packed_bytes());
    RawView::device(origin, bytes, DeviceMemory::new(view, use_))
}

/// The device memory around an address, if there is any: ready now, kept by its owner
/// ([`Memory::found`]).
///
/// # Safety
/// As [`View::from_raw`].
#[cold]
unsafe fn found(
    origin: *const u8,
    layout: &Layout,
    count: usize,
    use_: Use,
) -> Result<Option<RawView>> {
    if count == 0 || layout.size() == 0 {
        return Ok(None);
    }
    // The origin need not lie in the memory; the first byte does.
    let first = origin.wrapping_offset(layout.true_lb()).addr() as u64;
    let Some(place) = classify::find(first)? else {
        return Ok(None);
    };
    let context = Context::new(place.home)?;
    // SAFETY: invariant 6 of `view`: by the caller's contract, what is touched stays until
    // the transfer is over.
    let memory = unsafe { Memory::found(&context, place.start, place.bytes) }?;
    let all = DeviceSlice::<u8>::of(memory)?;
    let origin = origin.addr() as u64;
    let view = match place.start.checked_sub(origin) {
        None | Some(0) => DeviceView::around(&all, origin, layout, count)?,
        // As of a type of addresses: the memory's own first byte takes its place.
        Some(ahead) => {
            let layout = layout.seen_from(ahead as isize);
            DeviceView::around(&all, place.start, &layout, count)?
        }
    };
    Ok(Some(handed_over(Ordered::new(view, After::Now), use_)))
}

impl View<'_> {
    /// As [`View::from_raw`], of memory wherever it lies: of the host, or of a device.
    ///
    /// Layers that get addresses of they do not know what say so once, by
    /// [`classify::expect`]; before, all memory is taken
    /// for the host's. Then the driver is asked, for each view. Memory of a device is taken
    /// as it is now: whoever has work under way there waits for it first.
    ///
    /// # Safety
    /// As [`View::from_raw`].
    ///
    /// # Errors
    /// As [`View::from_raw`]; or the instances reach out of the device's allocation.
    #[inline]
    pub unsafe fn found(origin: *const u8, layout: &Layout, count: usize) -> Result<Self> {
        if classify::is_expected()
            // SAFETY: invariant 6 of `view`: the caller's contract is that of `from_raw`,
            // which is `found`'s.
            && let Some(raw) = unsafe { found(origin, layout, count, Use::Read) }?
        {
            return Ok(View::of_raw(raw));
        }
        // SAFETY: invariant 6 of `view`: the caller's contract is the same.
        unsafe { View::from_raw(origin, layout, count) }
    }

    /// Whether it is memory of a device.
    #[inline]
    pub fn is_on_device(&self) -> bool {
        self.as_raw().as_device().is_some()
    }
}

impl ViewMut<'_> {
    /// As [`ViewMut::from_raw`], of memory wherever it lies: see [`View::found`].
    ///
    /// # Safety
    /// As [`ViewMut::from_raw`].
    ///
    /// # Errors
    /// As [`ViewMut::from_raw`]; or the instances reach out of the device's allocation.
    #[inline]
    pub unsafe fn found(origin: *mut u8, layout: &Layout, count: usize) -> Result<Self> {
        if classify::is_expected()
            // SAFETY: invariant 6 of `view`: the caller's contract is that of `from_raw`,
            // which is `found`'s.
            && let Some(raw) = unsafe { found(origin, layout, count, Use::Write) }?
        {
            return Ok(ViewMut::of_raw(raw));
        }
        // SAFETY: invariant 6 of `view`: the caller's contract is the same.
        unsafe { ViewMut::from_raw(origin, layout, count) }
    }

    /// Whether it is memory of a device.
    #[inline]
    pub fn is_on_device(&self) -> bool {
        self.as_raw().as_device().is_some()
    }
}

fn raw<B: DeviceBuffer>(buffer: &Ordered<B>, use_: Use) -> RawView {
    match buffer.buffer().device_view() {
        Ok(view) => handed_over(buffer.clone().map(|_| view), use_),
        Err(e) => RawView::device(0, 0, DeviceMemory::failed(e, B::Element::layout())),
    }
}

/// Buffer memory, and from when on it may be used.
pub fn raw_of<B: DeviceBuffer>(buffer: &B, after: &After, use_: Use) -> RawView {
    match buffer.device_view() {
        Ok(view) => handed_over(Ordered::new(view, after.clone()), use_),
        Err(e) => RawView::device(0, 0, DeviceMemory::failed(e, B::Element::layout())),
    }
}

impl<B: DeviceBuffer> Buffer for Ordered<B> {
    fn view(&self) -> View<'_> {
        View::of_raw(raw(self, Use::Read))
    }

    fn lend<R>(&self, look: impl FnOnce(&View<'_>) -> R) -> R {
        look(&View::of_raw(raw(self, Use::Inspect)))
    }
}

impl<B: DeviceBuffer> BufferMut for Ordered<B> {
    fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut::of_raw(raw(self, Use::Write))
    }

    fn lend_mut<R>(&mut self, look: impl FnOnce(&ViewMut<'_>) -> R) -> R {
        look(&ViewMut::of_raw(raw(self, Use::Inspect)))
    }
}

// SAFETY: invariant 1: the transfer counts the allocation, wherever the value moves.
unsafe impl<B: DeviceBuffer + Send + 'static> OwnedBuffer for Ordered<B> {}
// SAFETY: invariant 1: the transfer counts the allocation, and a concurrent writer only
// changes the bytes.
unsafe impl<B: DeviceBuffer + Send + 'static> OwnedBufferMut for Ordered<B> {}
