//! View: memory and datatype of a message.
//!
//! # Invariants
//! 1. The bytes that a [`RawView`] names are readable, and those of one to receive into
//!    writable and used by nothing else, from when it is posted until the operation, run
//!    or call that has it ends or has given it back. The maker of the view ensures that:
//!    by the borrow or the owned buffer behind a [`View`] or [`ViewMut`], by the promise
//!    of a caller (`from_raw`), or by taking a part of another view. (`of_raw` asks for
//!    it without being `unsafe`: only the library's own layers make views so.)
//! 2. `bytes` is the packed length of the shape, so a range within it is a range of bytes
//!    that the view names: a slice's views are checked to lie inside the slice, sections
//!    inside their view.
//! 3. Nothing in a view is tied to a thread: it is addresses, numbers and shared
//!    descriptions, which are `Send` and `Sync`.
//! 4. The memory of an [`OwnedBuffer`] of this file is no part of the value that moves:
//!    elements that a vector owns alone, elements that an `Arc` keeps unchanged,
//!    or what a view for good names (invariant 1).
//! 5. Any bytes are a value of a [`Datatype`], by its contract.
//! 6. The caller of an unsafe function of this module keeps the promises of its `#
//!    Safety`; a promise for a whole holds for each part.
//! 7. [`zeroed_vec`] has reserved room for all elements before it writes them.
//! 8. Every processor of x86-64 has what `copy_past_caches` uses there.

pub mod combining;
pub mod on_device;
mod sections;

use self::combining::Incoming;
use crate::device::bounce::Outbound;
use crate::device::pool::Claim;
use crate::device::{DeviceMemory, Devices};
use crate::error::{Error, ErrorKind, Result};
use osier_datatype::{Basic, Datatype, Layout, Signature, Type};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

/// Memory of a message as the engine sees it: no lifetime. Its maker
/// states until when it is valid.
#[derive(Clone, Debug)]
pub struct RawView {
    /// Origin of the first instance; first byte if contiguous.
    pub origin: *mut u8,
    /// Packed bytes.
    pub bytes: usize,
    pub shape: Shape,
}

/// Layout of the bytes, and their types. All but `Loose`, `Device`, `Section`,
/// `Parts` and `Combining` are contiguous memory of the host; their types are read only
/// by checks.
#[derive(Clone, Debug)]
pub enum Shape {
    /// Of unknown types.
    Untyped,
    /// Elements of a Rust type.
    Slice(fn() -> Layout),
    /// Elements of one predefined type.
    Uniform(Basic),
    /// Instances of a layout without gaps.
    Dense(Layout),
    /// Instances of a layout with gaps.
    Loose(Layout, usize),
    /// Instances in device memory; the origin is a device address.
    Device(Arc<DeviceMemory>),
    /// Instances of a layout with gaps, without their first packed bytes.
    Section(Layout, usize, usize),
    /// Several views of host memory, in order.
    Parts(Arc<[RawView]>),
    /// An operand that is combined as it comes; the result lies at the origin.
    Combining(Arc<Incoming>),
}

impl Default for RawView {
    fn default() -> Self {
        Self::empty()
    }
}

// SAFETY: invariants 1 and 3: the owner of the view may use the memory, on any thread that
// makes progress.
unsafe impl Send for RawView {}
// SAFETY: invariants 1 and 3: a shared view has the address of memory, and reads it as its
// maker permits from any thread; all functions that write are unsafe.
unsafe impl Sync for RawView {}

impl RawView {
    /// No bytes at all.
    pub fn empty() -> Self {
        Self {
            origin: std::ptr::null_mut(),
            bytes: 0,
            shape: Shape::Untyped,
        }
    }

    /// Bytes of unknown types, which no check compares.
    #[inline]
    pub fn untyped(origin: *mut u8, bytes: usize) -> Self {
        Self {
            origin,
            bytes,
            shape: Shape::Untyped,
        }
    }

    /// Bytes of elements without padding.
    #[inline]
    pub fn dense<T: Datatype>(origin: *mut u8, bytes: usize) -> Self {
        Self {
            origin,
            bytes,
            shape: match T::BASIC {
                Some(basic) => Shape::Uniform(basic),
                None => Shape::Slice(T::layout),
            },
        }
    }

    /// Memory of a device.
    pub fn device(origin: u64, bytes: usize, memory: DeviceMemory) -> Self {
        Self {
            origin: std::ptr::without_provenance_mut(origin as usize),
            bytes,
            shape: Shape::Device(Arc::new(memory)),
        }
    }

    /// Memory of a device, as a message.
    pub fn of_device(memory: DeviceMemory) -> Self {
        Self::device(memory.origin(), memory.bytes(), memory)
    }

    /// The device memory, if the view has any.
    #[inline]
    pub fn as_device(&self) -> Option<&Arc<DeviceMemory>> {
        match &self.shape {
            Shape::Device(memory) => Some(memory),
            _ => None,
        }
    }

    /// Copies all packed bytes to the host; waits for a device.
    ///
    /// # Safety
    /// As [`RawView::pack`].
    pub unsafe fn pack_all(&self, devices: &Arc<Devices>, to: *mut u8) -> Result<()> {
        let Shape::Device(memory) = &self.shape else {
            // SAFETY: invariant 6: all of the view, and the caller's room for it.
            unsafe { self.pack(0..self.bytes, to) };
            return Ok(());
        };
        let mut transfer = Outbound::new(devices, memory, Claim::Send, false)?;
        let mut at = 0;
        while at < self.bytes {
            transfer.wait()?;
            let (from, bytes) = transfer.ready()?;
            // SAFETY: invariant 1 of `device::bounce`: these bytes are packed there; by
            // invariant 6 the caller's room is as long as the message, of which these are a
            // part.
            unsafe { std::ptr::copy_nonoverlapping(from, to.wrapping_add(at), bytes) };
            transfer.took(bytes);
            at += bytes;
        }
        Ok(())
    }

    /// The packed message of this view.
    pub fn packed_at(&self, origin: *mut u8) -> Self {
        let shape = match &self.shape {
            Shape::Loose(layout, _) => Shape::Dense(layout.clone()),
            Shape::Device(memory) => Shape::Dense(memory.instances().0.clone()),
            Shape::Section(..) | Shape::Parts(_) | Shape::Combining(_) => Shape::Untyped,
            other => other.clone(),
        };
        Self {
            origin,
            bytes: self.bytes,
            shape,
        }
    }

    /// The predefined type of all elements, where that is known without a signature.
    #[inline]
    pub fn basic(&self) -> Option<Basic> {
        match &self.shape {
            Shape::Uniform(basic) => Some(*basic),
            _ => None,
        }
    }

    /// The sequence of predefined types; `None` if it is unknown.
    pub fn signature(&self) -> Option<Signature> {
        let of_bytes = |layout: &Layout| {
            let whole = self.bytes.checked_div(layout.size()).unwrap_or(0);
            (whole * layout.size() == self.bytes).then(|| layout.signature().repeat(whole as u64))
        };
        match &self.shape {
            Shape::Untyped | Shape::Section(..) | Shape::Parts(_) | Shape::Combining(_) => None,
            Shape::Slice(layout) => of_bytes(&layout()),
            Shape::Uniform(basic) => {
                Some(Signature::run(*basic, (self.bytes / basic.size()) as u64))
            }
            Shape::Dense(layout) => of_bytes(layout),
            Shape::Loose(layout, count) => Some(layout.signature().repeat(*count as u64)),
            Shape::Device(memory) => {
                let (layout, count) = memory.instances();
                Some(layout.signature().repeat(count as u64))
            }
        }
    }

    #[inline]
    fn is_loose(&self) -> bool {
        matches!(
            self.shape,
            Shape::Loose(..)
                | Shape::Device(..)
                | Shape::Section(..)
                | Shape::Parts(_)
                | Shape::Combining(_)
        )
    }

    /// Whether the two share a byte. Exact, also between blocks.
    pub fn overlaps(&self, other: &RawView) -> bool {
        let ((start, end), (other_start, other_end)) = (self.span(), other.span());
        if self.bytes == 0 || other.bytes == 0 || start >= other_end || other_start >= end {
            return false;
        }
        if !self.is_loose() && !other.is_loose() {
            return true;
        }
        let (Some((a, count)), Some((b, other_count))) = (self.instances(), other.instances())
        else {
            return false;
        };
        let offset = other.origin.addr().wrapping_sub(self.origin.addr());
        a.overlaps(count, &b, other_count, offset as isize)
    }

    /// The same bytes, so many further on.
    pub fn moved_by(&self, bytes: usize) -> Self {
        Self {
            origin: self.origin.wrapping_add(bytes),
            ..self.clone()
        }
    }

    /// Address range of all bytes.
    pub fn span(&self) -> (usize, usize) {
        let at = self.origin.addr();
        match &self.shape {
            Shape::Loose(layout, count) | Shape::Section(layout, count, _) => {
                let (start, end) = layout.span(*count);
                (at.wrapping_add_signed(start), at.wrapping_add_signed(end))
            }
            Shape::Device(memory) => {
                let (layout, count) = memory.instances();
                let (start, end) = layout.span(count);
                (at.wrapping_add_signed(start), at.wrapping_add_signed(end))
            }
            _ => (at, at.wrapping_add(self.bytes)),
        }
    }

    /// Host addresses of its bytes, as runs.
    pub fn runs(&self, mut f: impl FnMut(Range<usize>)) {
        let at = self.origin.addr();
        match &self.shape {
            Shape::Loose(layout, count) | Shape::Section(layout, count, _) => {
                for (offset, bytes) in layout.blocks(*count) {
                    let start = at.wrapping_add_signed(offset);
                    f(start..start.wrapping_add(bytes));
                }
            }
            Shape::Parts(parts) => {
                for part in parts.iter() {
                    part.runs(&mut f as &mut dyn FnMut(Range<usize>));
                }
            }
            Shape::Device(_) => {}
            _ => f(at..at.wrapping_add(self.bytes)),
        }
    }

    /// Layout and count around the origin.
    fn instances(&self) -> Option<(Layout, usize)> {
        match &self.shape {
            Shape::Loose(layout, count) => Some((layout.clone(), *count)),
            Shape::Device(memory) => {
                let (layout, count) = memory.instances();
                Some((layout.clone(), count))
            }
            // No caller needs the exact bytes.
            Shape::Section(..) | Shape::Parts(_) => None,
            _ => Some((Type::of::<u8>().commit().ok()?, self.bytes)),
        }
    }

    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Address, if all bytes lie there in order.
    #[inline]
    pub fn as_contiguous(&self) -> Option<*mut u8> {
        (!self.is_loose()).then_some(self.origin)
    }

    /// The bytes, in memory order, of a contiguous view of at most eight.
    #[inline]
    pub fn short(&self) -> Option<u64> {
        if self.bytes > 8 || self.is_loose() {
            return None;
        }
        let from = self.origin;
        Some(match self.bytes {
            // SAFETY: invariant 1: it is contiguous and has eight bytes, which may be read.
            8 => unsafe { from.cast::<u64>().read_unaligned() },
            // SAFETY: invariant 1: it is contiguous and has four bytes, which may be read.
            4 => u64::from(unsafe { from.cast::<u32>().read_unaligned() }).to_le(),
            n => {
                let mut data = 0u64;
                for i in 0..n {
                    // SAFETY: invariant 1: it is contiguous and has `n` bytes, which may be
                    // read.
                    let byte = unsafe { from.wrapping_add(i).read() };
                    data |= u64::from(byte) << (8 * i);
                }
                data.to_le()
            }
        })
    }

    /// Packs part of the packed stream.
    ///
    /// # Safety
    /// The memory is readable, `packed` lies within [`RawView::bytes`], and
    /// `to` is writable for as many bytes.
    #[inline]
    pub unsafe fn pack(&self, packed: Range<usize>, to: *mut u8) {
        match &self.shape {
            Shape::Loose(layout, count) => {
                // SAFETY: invariant 6: the caller's range, and room for it.
                unsafe { layout.pack_raw(self.origin, *count, packed, to) }
            }
            Shape::Device(_) if packed.is_empty() => {}
            Shape::Device(_) => not_of_the_host(),
            Shape::Section(layout, count, skip) => {
                let packed = packed.start + skip..packed.end + skip;
                // SAFETY: invariants 2 and 6: the caller's range, behind the bytes that the
                // section leaves out.
                unsafe { layout.pack_raw(self.origin, *count, packed, to) }
            }
            Shape::Parts(parts) => {
                // SAFETY: invariant 6: the caller's range of the parts, and room for it.
                unsafe { sections::pack(parts, packed, to) }
            }
            _ => {
                let from = self.origin.wrapping_add(packed.start);
                // SAFETY: invariants 2 and 6: the caller's range begins at `from`, and there
                // is room for it.
                unsafe { copy_contiguous(from, to, packed.len()) }
            }
        }
    }

    /// As [`RawView::pack`], by stores that go past the caches where the memory is contiguous:
    /// what others have read there need not be fetched first. They are in order with what is
    /// stored after the call.
    ///
    /// # Safety
    /// As [`RawView::pack`].
    pub unsafe fn pack_past_caches(&self, packed: Range<usize>, to: *mut u8) {
        if self.is_loose() {
            // SAFETY: invariant 6: the caller's contract is the same.
            return unsafe { self.pack(packed, to) };
        }
        let from = self.origin.wrapping_add(packed.start);
        // SAFETY: invariants 2 and 6: the caller's range begins at `from`, and there is room
        // for it.
        unsafe { copy_past_caches(from, to, packed.len()) }
    }

    /// Unpacks part of the packed stream.
    ///
    /// # Safety
    /// The memory is writable, `packed` lies within [`RawView::bytes`], and
    /// `from` is readable for as many bytes.
    #[inline]
    pub unsafe fn unpack(&self, packed: Range<usize>, from: *const u8) {
        if self.is_loose() {
            // SAFETY: invariant 6: the caller's contract.
            return unsafe { self.unpack_loose(packed, from) };
        }
        let to = self.origin.wrapping_add(packed.start);
        // SAFETY: invariants 2 and 6: the caller's range begins at `to`, and there are as many
        // bytes to fill it.
        unsafe { copy_contiguous(from, to, packed.len()) }
    }

    /// # Safety
    /// As for [`RawView::unpack`].
    #[inline(never)]
    unsafe fn unpack_loose(&self, packed: Range<usize>, from: *const u8) {
        match &self.shape {
            Shape::Loose(layout, count) => {
                // SAFETY: invariant 6: the caller's range, and as many bytes to fill it.
                unsafe { layout.unpack_raw(self.origin, *count, packed, from) }
            }
            Shape::Device(_) if packed.is_empty() => {}
            Shape::Device(_) => not_of_the_host(),
            Shape::Section(layout, count, skip) => {
                let packed = packed.start + skip..packed.end + skip;
                // SAFETY: invariants 2 and 6: the caller's range, behind the bytes that the
                // section leaves out.
                unsafe { layout.unpack_raw(self.origin, *count, packed, from) }
            }
            Shape::Parts(parts) => {
                // SAFETY: invariant 6: the caller's range of the parts, and as many bytes to
                // fill it.
                unsafe { sections::unpack(parts, packed, from) }
            }
            Shape::Combining(incoming) => {
                // SAFETY: invariant 6: the caller's range of the operand, and as many bytes; the
                // operation that has the view is one thread's at a time.
                unsafe { incoming.take(packed, from) }
            }
            // Contiguous, so that [`RawView::unpack`] has not come here.
            Shape::Untyped | Shape::Slice(_) | Shape::Uniform(_) | Shape::Dense(_) => {
                let to = self.origin.wrapping_add(packed.start);
                // SAFETY: invariants 2 and 6: the caller's range begins at `to`.
                unsafe { copy_contiguous(from, to, packed.len()) }
            }
        }
    }

    pub fn of_slice<T: Datatype>(origin: *mut T, len: usize) -> Self {
        if T::DENSE {
            return Self::dense::<T>(origin.cast(), len * size_of::<T>());
        }
        let layout = T::layout();
        Self {
            origin: origin.cast(),
            // A slice fits the address space, so its payload does.
            bytes: layout.packed_bytes(len).unwrap_or(0),
            shape: Shape::Loose(layout, len),
        }
    }

    fn with_layout(
        base: *mut u8,
        buffer_bytes: usize,
        origin: usize,
        layout: &Layout,
        count: usize,
    ) -> Result<Self> {
        layout.check_span(buffer_bytes, origin, count)?;
        Self::at(base.wrapping_add(origin), layout, count)
    }

    /// Elements of one predefined type, of `bytes` bytes in all.
    #[inline]
    pub fn uniform(origin: *mut u8, bytes: usize, basic: Basic) -> Self {
        Self {
            origin,
            bytes,
            shape: Shape::Uniform(basic),
        }
    }

    /// Instances around an address.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Count`], if the packed size is no 64-bit number.
    pub fn at(origin: *mut u8, layout: &Layout, count: usize) -> Result<Self> {
        let bytes = layout.packed_bytes(count).ok_or_else(|| {
            Error::new(
                ErrorKind::Count,
                format!(
                    "{count} instances of {} bytes exceed the address space",
                    layout.size()
                ),
            )
        })?;
        Ok(match layout.contiguous_at(count) {
            Some(at) => Self {
                origin: origin.wrapping_offset(at),
                bytes,
                shape: match layout.signature().uniform() {
                    Some(basic) if layout.size() == basic.size() => Shape::Uniform(basic),
                    _ => Shape::Dense(layout.clone()),
                },
            },
            None => Self {
                origin,
                bytes,
                shape: Shape::Loose(layout.clone(), count),
            },
        })
    }
}

/// Device memory goes through bounce buffers; its address must not be read
/// on the host.
#[cold]
fn not_of_the_host() -> ! {
    panic!("memory of a device is not the host's to read")
}

/// Copies, without a call for the smallest sizes.
///
/// # Safety
/// As for `copy_nonoverlapping`.
#[inline]
pub unsafe fn copy_contiguous(from: *const u8, to: *mut u8, bytes: usize) {
    macro_rules! whole {
        ($t:ty) => {{
            // SAFETY: invariant 6: the caller lets `bytes` bytes be read, which are as many
            // as the type has.
            let value = unsafe { from.cast::<$t>().read_unaligned() };
            // SAFETY: invariant 6: the caller lets `bytes` bytes be written, which are as
            // many as the type has.
            unsafe { to.cast::<$t>().write_unaligned(value) }
        }};
    }
    match bytes {
        8 => whole!(u64),
        4 => whole!(u32),
        0 => {}
        // SAFETY: invariant 6: the caller's contract is that of the copy.
        _ => unsafe { osier_datatype::copy_bytes(from, to, bytes) },
    }
}

/// Copies by stores that go past the caches; ends when they are in order with later ones.
///
/// # Safety
/// As for `copy_nonoverlapping`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy_past_caches(from: *const u8, to: *mut u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const LINE: usize = 64;
    const WORD: usize = size_of::<__m128i>();
    let head = to.align_offset(LINE).min(bytes);
    // SAFETY: invariant 6: not more than the caller's bytes.
    unsafe { std::ptr::copy_nonoverlapping(from, to, head) };
    let lines = (bytes - head) / LINE;
    for line in 0..lines {
        let at = head + line * LINE;
        for word in 0..LINE / WORD {
            let at = at + word * WORD;
            // SAFETY: invariant 6: inside the caller's bytes.
            let value = unsafe { _mm_loadu_si128(from.wrapping_add(at).cast()) };
            // SAFETY: invariant 6: inside the caller's bytes, and aligned behind the head.
            unsafe { _mm_stream_si128(to.wrapping_add(at).cast(), value) };
        }
    }
    let done = head + lines * LINE;
    let (from, to) = (from.wrapping_add(done), to.wrapping_add(done));
    // SAFETY: invariant 6: the rest of the caller's bytes.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes - done) };
    // SAFETY: invariant 8.
    unsafe { _mm_sfence() };
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn copy_past_caches(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: invariant 6: the caller's contract is that of the copy.
    unsafe { copy_contiguous(from, to, bytes) }
}

/// Memory to send from: a borrowed buffer and a layout.
///
/// ```
/// # osier::testing::ranks(2, |comm| {
/// use osier::{Type, View};
/// if comm.rank() == 0 {
///     let matrix: Vec<f64> = (0..12).map(f64::from).collect(); // 3 rows of 4
///     let column = Type::vector(3, 1, 4, &Type::of::<f64>())?.commit()?;
///     comm.send(&View::new(&matrix, 1, &column, 1)?, 1, 0)?;
/// } else {
///     let mut got = [0.0; 3]; // another layout of the same numbers
///     comm.recv(&mut got, 0, 0)?;
///     assert_eq!(got, [1.0, 5.0, 9.0]);
/// }
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct View<'a> {
    raw: RawView,
    borrow: PhantomData<&'a [u8]>,
}

impl<'a> View<'a> {
    /// `count` instances of `layout`, the first with its origin at element
    /// `origin` of the buffer.
    ///
    /// Counts are instances of the layout, the origin counts elements. The message has their
    /// bytes in the order of the datatype, without gaps.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Datatype`], if a byte lies outside of the buffer, or elements of
    /// `T` have padding; of kind [`ErrorKind::Count`], if the packed size is no 64-bit number.
    pub fn new<T: Datatype>(
        buffer: &'a [T],
        origin: usize,
        layout: &Layout,
        count: usize,
    ) -> Result<Self> {
        require_dense::<T>()?;
        let at = offset::<T>(origin)?;
        let base = buffer.as_ptr().cast_mut().cast();
        Ok(Self {
            raw: RawView::with_layout(base, size_of_val(buffer), at, layout, count)?,
            borrow: PhantomData,
        })
    }

    /// `count` instances of `layout` around an address, for layers above that
    /// have no slice.
    ///
    /// With [`bottom`](osier_datatype::bottom) as the origin the displacements
    /// are absolute addresses, as with `MPI_BOTTOM`: one message may then take
    /// its parts from anywhere. See [`address`](osier_datatype::address).
    ///
    /// # Safety
    /// While the view or a transfer from it exists, all bytes that the
    /// instances touch are valid for reads, from any thread, and nothing writes
    /// them.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Count`], if the packed size is no 64-bit number.
    pub unsafe fn from_raw(origin: *const u8, layout: &Layout, count: usize) -> Result<Self> {
        Ok(Self {
            raw: RawView::at(origin.cast_mut(), layout, count)?,
            borrow: PhantomData,
        })
    }

    /// Packed size in bytes.
    pub fn bytes(&self) -> usize {
        self.raw.bytes
    }

    /// Memory that its owner counts, or vouches for.
    #[inline]
    pub fn of_raw(raw: RawView) -> View<'a> {
        View {
            raw,
            borrow: PhantomData,
        }
    }

    #[inline]
    pub fn raw(self) -> RawView {
        self.raw
    }

    #[inline]
    pub fn as_raw(&self) -> &RawView {
        &self.raw
    }
}

/// Memory to receive into: a mutably borrowed buffer and a layout.
///
/// ```
/// # osier::testing::ranks(2, |comm| {
/// use osier::{Type, ViewMut};
/// if comm.rank() == 0 {
///     comm.send(&[7, 8], 1, 0)?;
/// } else {
///     let mut got = [0; 4];
///     let every_second = Type::vector(2, 1, 2, &Type::of::<i32>())?.commit()?;
///     comm.recv(&mut ViewMut::new(&mut got, 1, &every_second, 1)?, 0, 0)?;
///     assert_eq!(got, [0, 7, 0, 8]);
/// }
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
#[derive(Debug)]
pub struct ViewMut<'a> {
    raw: RawView,
    borrow: PhantomData<&'a mut [u8]>,
}

impl<'a> ViewMut<'a> {
    /// `count` instances of `layout`, the first with its origin at element
    /// `origin` of the buffer.
    ///
    /// Bytes between the parts of the layout stay as they are.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Datatype`], if a byte lies outside of the buffer, elements of `T`
    /// have padding, or the layout touches a byte twice; of kind [`ErrorKind::Count`], if the
    /// packed size is no 64-bit number.
    pub fn new<T: Datatype>(
        buffer: &'a mut [T],
        origin: usize,
        layout: &Layout,
        count: usize,
    ) -> Result<Self> {
        require_dense::<T>()?;
        let at = offset::<T>(origin)?;
        let bytes = size_of_val(buffer);
        // First whether it lies inside, which costs nothing: a layout that does has no more
        // blocks than bytes.
        let raw = RawView::with_layout(buffer.as_mut_ptr().cast(), bytes, at, layout, count)?;
        layout.check_receive(count)?;
        Ok(Self {
            raw,
            borrow: PhantomData,
        })
    }

    /// `count` instances of `layout` around an address: [`View::from_raw`] for
    /// receiving.
    ///
    /// # Safety
    /// While the view or a transfer into it exists, all bytes that the
    /// instances touch are valid for writes, from any thread, and nothing else
    /// reads or writes them; any bytes are valid values there.
    ///
    /// # Errors
    /// As [`View::from_raw`]; of kind [`ErrorKind::Datatype`], if the layout touches a byte twice.
    pub unsafe fn from_raw(origin: *mut u8, layout: &Layout, count: usize) -> Result<Self> {
        layout.check_receive(count)?;
        Ok(Self {
            raw: RawView::at(origin, layout, count)?,
            borrow: PhantomData,
        })
    }

    /// Packed size in bytes.
    pub fn bytes(&self) -> usize {
        self.raw.bytes
    }

    /// As [`View::of_raw`].
    #[inline]
    pub fn of_raw(raw: RawView) -> ViewMut<'a> {
        ViewMut {
            raw,
            borrow: PhantomData,
        }
    }

    #[inline]
    pub fn raw(self) -> RawView {
        self.raw
    }

    #[inline]
    pub fn as_raw(&self) -> &RawView {
        &self.raw
    }
}

/// A layout over elements with padding could expose or leave bytes that no
/// value defines; typed slices of such elements go through their own layout.
pub fn require_dense<T: Datatype>() -> Result<()> {
    if T::DENSE {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Datatype,
        "a layout over elements with padding (hint: use a buffer of plain numbers, or send the slice itself)",
    ))
}

fn offset<T>(origin: usize) -> Result<usize> {
    origin.checked_mul(size_of::<T>()).ok_or_else(|| {
        Error::new(
            ErrorKind::Argument,
            format!("element {origin} lies outside of any memory"),
        )
    })
}

/// Anything that can be sent: slices, arrays, vectors, numbers and views.
pub trait Buffer {
    /// The memory, borrowed.
    fn view(&self) -> View<'_>;

    /// Lends the view to a function that only reads its description, which avoids
    /// a clone.
    #[doc(hidden)]
    #[inline]
    fn lend<R>(&self, look: impl FnOnce(&View<'_>) -> R) -> R {
        look(&self.view())
    }

    /// What it is made of, where that is known without a view.
    #[doc(hidden)]
    #[inline]
    fn plain(&self) -> Option<Plain> {
        None
    }
}

/// Elements of one predefined type, one after the other, on the host.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain {
    pub at: *mut u8,
    pub bytes: usize,
    pub basic: Basic,
}

impl Plain {
    #[inline]
    fn of_slice<T: Datatype>(at: *mut T, count: usize) -> Option<Plain> {
        Some(Plain {
            at: at.cast(),
            bytes: count * size_of::<T>(),
            basic: T::BASIC?,
        })
    }
}

/// Anything that can be received into.
pub trait BufferMut {
    /// The memory, mutably borrowed.
    fn view_mut(&mut self) -> ViewMut<'_>;

    /// As [`Buffer::lend`].
    #[doc(hidden)]
    #[inline]
    fn lend_mut<R>(&mut self, look: impl FnOnce(&ViewMut<'_>) -> R) -> R {
        look(&self.view_mut())
    }

    /// As [`Buffer::plain`].
    #[doc(hidden)]
    #[inline]
    fn plain_mut(&mut self) -> Option<Plain> {
        None
    }
}

impl<T: Datatype> Buffer for [T] {
    #[inline]
    fn view(&self) -> View<'_> {
        View {
            raw: RawView::of_slice(self.as_ptr().cast_mut(), self.len()),
            borrow: PhantomData,
        }
    }

    #[inline]
    fn plain(&self) -> Option<Plain> {
        Plain::of_slice(self.as_ptr().cast_mut(), self.len())
    }
}

impl<T: Datatype> BufferMut for [T] {
    #[inline]
    fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut {
            raw: RawView::of_slice(self.as_mut_ptr(), self.len()),
            borrow: PhantomData,
        }
    }

    #[inline]
    fn plain_mut(&mut self) -> Option<Plain> {
        Plain::of_slice(self.as_mut_ptr(), self.len())
    }
}

impl<T: Datatype, const N: usize> Buffer for [T; N] {
    #[inline]
    fn view(&self) -> View<'_> {
        self.as_slice().view()
    }

    #[inline]
    fn plain(&self) -> Option<Plain> {
        self.as_slice().plain()
    }
}

impl<T: Datatype, const N: usize> BufferMut for [T; N] {
    #[inline]
    fn view_mut(&mut self) -> ViewMut<'_> {
        self.as_mut_slice().view_mut()
    }

    #[inline]
    fn plain_mut(&mut self) -> Option<Plain> {
        self.as_mut_slice().plain_mut()
    }
}

impl<T: Datatype> Buffer for Vec<T> {
    #[inline]
    fn view(&self) -> View<'_> {
        self.as_slice().view()
    }

    #[inline]
    fn plain(&self) -> Option<Plain> {
        self.as_slice().plain()
    }
}

impl<T: Datatype> BufferMut for Vec<T> {
    #[inline]
    fn view_mut(&mut self) -> ViewMut<'_> {
        self.as_mut_slice().view_mut()
    }

    #[inline]
    fn plain_mut(&mut self) -> Option<Plain> {
        self.as_mut_slice().plain_mut()
    }
}

impl<T: Datatype> Buffer for Box<[T]> {
    #[inline]
    fn view(&self) -> View<'_> {
        (**self).view()
    }

    #[inline]
    fn plain(&self) -> Option<Plain> {
        (**self).plain()
    }
}

impl<T: Datatype> BufferMut for Box<[T]> {
    #[inline]
    fn view_mut(&mut self) -> ViewMut<'_> {
        (**self).view_mut()
    }

    #[inline]
    fn plain_mut(&mut self) -> Option<Plain> {
        (**self).plain_mut()
    }
}

impl Buffer for View<'_> {
    #[inline]
    fn view(&self) -> View<'_> {
        self.clone()
    }

    #[inline]
    fn lend<R>(&self, look: impl FnOnce(&View<'_>) -> R) -> R {
        look(self)
    }
}

impl Buffer for ViewMut<'_> {
    #[inline]
    fn view(&self) -> View<'_> {
        View::of_raw(self.raw.clone())
    }
}

impl BufferMut for ViewMut<'_> {
    #[inline]
    fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut {
            raw: self.raw.clone(),
            borrow: PhantomData,
        }
    }

    #[inline]
    fn lend_mut<R>(&mut self, look: impl FnOnce(&ViewMut<'_>) -> R) -> R {
        look(self)
    }
}

macro_rules! scalars {
    ($($t:ty)*) => {$(
        impl Buffer for $t {
            #[inline]
            fn view(&self) -> View<'_> {
                std::slice::from_ref(self).view_static()
            }

            #[inline]
            fn plain(&self) -> Option<Plain> {
                Plain::of_slice(std::ptr::from_ref(self).cast_mut(), 1)
            }
        }

        impl BufferMut for $t {
            #[inline]
            fn view_mut(&mut self) -> ViewMut<'_> {
                std::slice::from_mut(self).view_static_mut()
            }

            #[inline]
            fn plain_mut(&mut self) -> Option<Plain> {
                Plain::of_slice(std::ptr::from_mut(self), 1)
            }
        }
    )*};
}

trait Static {
    fn view_static(&self) -> View<'_>;
    fn view_static_mut(&mut self) -> ViewMut<'_>;
}

impl<T: Datatype> Static for [T] {
    #[inline]
    fn view_static(&self) -> View<'_> {
        Buffer::view(self)
    }

    #[inline]
    fn view_static_mut(&mut self) -> ViewMut<'_> {
        BufferMut::view_mut(self)
    }
}

scalars!(i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 isize usize f32 f64);

/// Buffers that a request may own: their memory does not move when the value
/// does.
///
/// # Safety
/// The bytes that the view names stay valid and in place while the value is
/// moved, and nothing else changes (or, for [`OwnedBufferMut`], touches) them
/// while the value is not used.
pub unsafe trait OwnedBuffer: Buffer + Send + 'static {}

/// Owned buffers that can be received into.
///
/// # Safety
/// As [`OwnedBuffer`], with sole access.
pub unsafe trait OwnedBufferMut: OwnedBuffer + BufferMut {}

// SAFETY: invariant 4: a vector's elements stay where they are when it is moved.
unsafe impl<T: Datatype> OwnedBuffer for Vec<T> {}
// SAFETY: invariant 4: a vector owns its elements alone.
unsafe impl<T: Datatype> OwnedBufferMut for Vec<T> {}
// SAFETY: invariants 1 and 4: the memory is borrowed for good, or is what the maker of a raw
// view vouched for as long as a transfer from it exists.
unsafe impl OwnedBuffer for View<'static> {}
// SAFETY: invariants 1 and 4: borrowed for good, or vouched for, with sole access.
unsafe impl OwnedBuffer for ViewMut<'static> {}
// SAFETY: invariants 1 and 4: borrowed for good, or vouched for, with sole access.
unsafe impl OwnedBufferMut for ViewMut<'static> {}

impl<T: Datatype> Buffer for std::sync::Arc<[T]> {
    #[inline]
    fn view(&self) -> View<'_> {
        (**self).view()
    }
}

// SAFETY: invariant 4: shared elements do not move, and cannot change while this clone lives.
unsafe impl<T: Datatype> OwnedBuffer for std::sync::Arc<[T]> {}

/// Checksum of the bytes of a view (FNV-1a over words); 0 for device memory.
pub fn sum(view: &RawView) -> u64 {
    const PIECE: usize = 64 << 10;
    if view.as_device().is_some() {
        return 0; // nobody waits for a device to find out
    }
    let mut piece = vec![0u8; PIECE.min(view.bytes())];
    let mut sum = 0xcbf2_9ce4_8422_2325u64;
    let mut at = 0;
    while at < view.bytes() {
        let n = piece.len().min(view.bytes() - at);
        // SAFETY: invariants 1 and 2: the operation may read its memory, the range is within;
        // the piece has room for `n` bytes.
        unsafe { view.pack(at..at + n, piece.as_mut_ptr()) };
        for word in piece[..n].chunks(8) {
            let mut bytes = [0; 8];
            bytes[..word.len()].copy_from_slice(word);
            sum = (sum ^ u64::from_le_bytes(bytes)).wrapping_mul(0x0000_0100_0000_01b3);
            sum ^= sum >> 29;
        }
        at += n;
    }
    sum
}

/// Zeroes.
///
/// # Errors
/// [`ErrorKind::OutOfMemory`].
pub fn zeroed_vec<T: Datatype>(count: usize) -> Result<Vec<T>> {
    let mut v: Vec<T> = Vec::new();
    v.try_reserve_exact(count).map_err(|e| {
        Error::new(
            ErrorKind::OutOfMemory,
            format!("a vector of {count} elements: {e}"),
        )
    })?;
    // SAFETY: invariant 7: there is room for `count` elements.
    unsafe { std::ptr::write_bytes(v.as_mut_ptr(), 0, count) };
    // SAFETY: invariants 5 and 7: `count` elements are zeroes, which are values.
    unsafe { v.set_len(count) };
    Ok(v)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At each alignment of either end, and around lines: the same bytes, and no others.
    #[test]
    fn bytes_past_the_caches_are_those_of_a_pack() {
        let from: Vec<u8> = (0..400).map(|i| i as u8).collect();
        for (skip, begin) in (0..66).flat_map(|skip| [(skip, 0), (skip, 7), (skip, 64)]) {
            for bytes in [0, 1, 15, 63, 64, 65, 128, 200] {
                let view = RawView::untyped(from.as_ptr().cast_mut().wrapping_add(1), 300);
                let mut to = vec![0xee; 300];
                let at = to.as_mut_ptr().wrapping_add(skip);
                // SAFETY: invariant 1: both vectors are as long.
                unsafe { view.pack_past_caches(begin..begin + bytes, at) };
                assert_eq!(to[skip..skip + bytes], from[1 + begin..1 + begin + bytes]);
                let around = to[..skip].iter().chain(&to[skip + bytes..]);
                assert!(around.into_iter().all(|b| *b == 0xee));
            }
        }
    }
}
