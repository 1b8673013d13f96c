//! Memory of C's as views: of the host, or of a device.
//!
//! MPI has no streams, so what lies on a device is as it lies there when the call is made,
//! as every library that takes device pointers has it; a call that is over has left its
//! bytes there. What works on the host's memory alone has a copy there ([`OnHost`]).

use crate::abi::*;
use crate::fail::{Fail, Int, Res, count};
use crate::held;
use crate::objects::ctype;
use crate::types::{element, note_element};
use osier::buffers::{OwnedBuffer, OwnedBufferMut};
use osier::collectives::{Contribution, Destination, OwnedContribution, OwnedDestination};
use osier::datatype::bottom;
use osier::{Buffer, BufferMut, Elements, Layout, View, ViewMut};
use osier_engine::view::{Plain, RawView};

/// An address that C gives.
pub type Address = *mut u8;

/// Addresses below this are of no memory: null, which is `MPI_BOTTOM`, too, and the
/// interface's other constants for addresses.
const CONSTANTS: usize = 256;

#[cold]
fn origin_of_constant(at: Address, layout: &Layout, n: usize) -> Res<*mut u8> {
    let has_bytes = n > 0 && layout.size() > 0;
    if !has_bytes {
        return Ok(bottom());
    }
    let what = match at.addr() {
        // Displacements that are addresses lie nowhere near zero.
        0 if layout.true_lb().unsigned_abs() >= 4096 => return Ok(bottom()),
        0 => "a null pointer for a buffer (hint: MPI_BOTTOM goes with types of absolute addresses)",
        MPI_IN_PLACE => "MPI_IN_PLACE for a buffer that cannot lie in place",
        _ => "a constant of the interface for a buffer",
    };
    Err(Fail::new(MPI_ERR_BUFFER, what))
}

#[inline]
fn origin(at: Address, layout: &Layout, n: usize) -> Res<*mut u8> {
    match at.addr() < CONSTANTS {
        false => Ok(at),
        true => origin_of_constant(at, layout, n),
    }
}

/// Instances of a layout around an address.
#[inline]
pub fn view_of(at: Address, n: usize, layout: &Layout) -> Res<View<'static>> {
    let at = origin(at, layout, n)?;
    // SAFETY: C's contract: the buffer stays, and nobody writes it, until its operation is
    // over.
    Ok(unsafe { View::found(at, layout, n) }?)
}

/// As [`view_of`], to receive into.
#[inline]
pub fn view_mut_of(at: Address, n: usize, layout: &Layout) -> Res<ViewMut<'static>> {
    let at = origin(at, layout, n)?;
    // SAFETY: as above, and nobody else uses it.
    Ok(unsafe { ViewMut::found(at, layout, n) }?)
}

/// The layout of a type that may be sent. Nothing from nowhere may be of no type, as
/// programs of other libraries have it.
fn layout_for(at: Address, n: usize, ty: Handle) -> Res<&'static Layout> {
    if ty == MPI_DATATYPE_NULL && n == 0 && at.is_null() {
        return ctype(MPI_BYTE)?.committed();
    }
    let found = ctype(ty)?;
    note_element(ty, found);
    found.committed()
}

/// Memory to send from. Views of what is not of one predefined type are moved as little as
/// the others, at the price of an allocation.
pub enum Memory {
    Elements(Elements),
    View(Box<View<'static>>),
}

/// Memory to receive into.
pub enum MemoryMut {
    Elements(Elements),
    View(Box<ViewMut<'static>>),
}

impl MemoryMut {
    /// No memory at all.
    pub fn nothing() -> MemoryMut {
        MemoryMut::View(Box::new(ViewMut::of_raw(RawView::empty())))
    }
}

impl Buffer for Memory {
    #[inline]
    fn view(&self) -> View<'_> {
        match self {
            Memory::Elements(elements) => elements.view(),
            Memory::View(view) => Buffer::view(&**view),
        }
    }

    #[inline]
    fn lend<R>(&self, look: impl FnOnce(&View<'_>) -> R) -> R {
        let made;
        // One call, so that it is inlined.
        look(match self {
            Memory::Elements(elements) => {
                made = elements.shown();
                &made
            }
            Memory::View(view) => view,
        })
    }

    #[inline]
    fn plain(&self) -> Option<Plain> {
        match self {
            Memory::Elements(elements) => elements.plain(),
            Memory::View(_) => None,
        }
    }
}

impl Buffer for MemoryMut {
    #[inline]
    fn view(&self) -> View<'_> {
        match self {
            MemoryMut::Elements(elements) => elements.view(),
            MemoryMut::View(view) => Buffer::view(&**view),
        }
    }
}

impl BufferMut for MemoryMut {
    #[inline]
    fn view_mut(&mut self) -> ViewMut<'_> {
        match self {
            MemoryMut::Elements(elements) => elements.view_mut(),
            MemoryMut::View(view) => BufferMut::view_mut(&mut **view),
        }
    }

    #[inline]
    fn lend_mut<R>(&mut self, look: impl FnOnce(&ViewMut<'_>) -> R) -> R {
        let made;
        look(match self {
            MemoryMut::Elements(elements) => {
                made = elements.shown_mut();
                &made
            }
            MemoryMut::View(view) => view,
        })
    }

    #[inline]
    fn plain_mut(&mut self) -> Option<Plain> {
        match self {
            MemoryMut::Elements(elements) => elements.plain_mut(),
            MemoryMut::View(_) => None,
        }
    }
}

// SAFETY: C's memory, which lies where it lies.
unsafe impl OwnedBuffer for Memory {}
// SAFETY: as above.
unsafe impl OwnedBuffer for MemoryMut {}
// SAFETY: as above, and C's contract gives a receive sole access.
unsafe impl OwnedBufferMut for MemoryMut {}

/// Elements of a predefined type on the host, which is what nearly all memory of C's is.
#[inline(always)]
pub fn elements<N: Int>(at: Address, n: N, ty: Handle) -> Option<Elements> {
    let element = element(ty)?;
    let n = usize::try_from(n.wide()).ok()?;
    if !is_of_the_host(at) {
        return None;
    }
    // SAFETY: C's contract: as for `view_of` and `view_mut_of`.
    unsafe { Elements::new(at, element.basic, element.bytes, n) }
}

/// Memory to send from.
#[inline(always)]
pub fn view<N: Int>(at: Address, n: N, ty: Handle) -> Res<Memory> {
    match elements(at, n, ty) {
        Some(elements) => Ok(Memory::Elements(elements)),
        None => any_view(at, n, ty),
    }
}

#[inline(never)]
fn any_view<N: Int>(at: Address, n: N, ty: Handle) -> Res<Memory> {
    let n = count(n)?;
    let view = view_of(at, n, layout_for(at, n, ty)?)?;
    held::reads(&view)?;
    Ok(Memory::View(Box::new(view)))
}

/// Memory to receive into.
#[inline(always)]
pub fn view_mut<N: Int>(at: Address, n: N, ty: Handle) -> Res<MemoryMut> {
    match elements(at, n, ty) {
        Some(elements) => Ok(MemoryMut::Elements(elements)),
        None => any_view_mut(at, n, ty),
    }
}

/// As [`view_mut`], of memory that this rank's call only reads.
pub fn view_mut_read<N: Int>(at: Address, n: N, ty: Handle) -> Res<MemoryMut> {
    if !held::follows() {
        return view_mut(at, n, ty);
    }
    let n = count(n)?;
    let view = view_mut_of(at, n, layout_for(at, n, ty)?)?;
    held::reads_of(&view)?;
    Ok(MemoryMut::View(Box::new(view)))
}

/// As [`view`], of memory whose parts are held one by one.
pub fn view_in_parts<N: Int>(at: Address, n: N, ty: Handle) -> Res<Memory> {
    if !held::follows() {
        return view(at, n, ty);
    }
    let n = count(n)?;
    let view = view_of(at, n, layout_for(at, n, ty)?)?;
    Ok(Memory::View(Box::new(view)))
}

/// As [`view_mut`], of memory whose parts are held one by one.
pub fn view_mut_in_parts<N: Int>(at: Address, n: N, ty: Handle) -> Res<MemoryMut> {
    if !held::follows() {
        return view_mut(at, n, ty);
    }
    let n = count(n)?;
    let view = view_mut_of(at, n, layout_for(at, n, ty)?)?;
    Ok(MemoryMut::View(Box::new(view)))
}

#[inline(never)]
fn any_view_mut<N: Int>(at: Address, n: N, ty: Handle) -> Res<MemoryMut> {
    let n = count(n)?;
    let view = view_mut_of(at, n, layout_for(at, n, ty)?)?;
    held::writes(&view)?;
    Ok(MemoryMut::View(Box::new(view)))
}

/// Whether an address is surely one of the host's memory, which nobody follows.
#[inline(always)]
pub fn is_of_the_host(at: Address) -> bool {
    at.addr() >= CONSTANTS && !osier_kernels::classify::is_expected() && !held::follows()
}

/// What a rank puts into a collective.
pub enum Given {
    Memory(Memory),
    InPlace,
}

impl Contribution for Given {
    #[inline]
    fn contribution(&self) -> Option<View<'_>> {
        match self {
            Given::Memory(memory) => Some(memory.view()),
            Given::InPlace => None,
        }
    }

    #[inline]
    fn plain_contribution(&self) -> Option<Plain> {
        match self {
            Given::Memory(memory) => memory.plain(),
            Given::InPlace => None,
        }
    }
}

impl OwnedContribution for Given {}

/// Where a rank wants its share of a scatter.
pub enum Wanted {
    Memory(MemoryMut),
    InPlace,
}

impl Destination for Wanted {
    #[inline]
    fn destination(&mut self) -> Option<ViewMut<'_>> {
        match self {
            Wanted::Memory(memory) => Some(memory.view_mut()),
            Wanted::InPlace => None,
        }
    }
}

impl OwnedDestination for Wanted {}

/// That a call which reads one buffer and writes another does not get the same for both;
/// `MPI_IN_PLACE` says what is meant.
#[inline]
pub fn apart<N: Int>(send: Address, n: N, recv: Address) -> Res {
    if send == recv && !send.is_null() && n.wide() > 0 {
        return Err(one_for_both());
    }
    Ok(())
}

/// As [`apart`], for the block of this rank in a buffer of all, `at` instances into it.
#[inline]
pub fn apart_from_own<N: Int>(one: Address, n: N, all: Address, at: Count, ty: Handle) -> Res {
    // Most buffers of all lie higher, or are of somebody else.
    if one.addr() < CONSTANTS || one < all || n.wide() == 0 {
        return Ok(());
    }
    let extent = match at {
        0 => 0,
        _ => ctype(ty)?.layout()?.extent(),
    };
    apart(one, n, all.wrapping_offset(at as isize * extent))
}

#[cold]
fn one_for_both() -> Fail {
    let message = "one buffer to send from and to receive into (hint: MPI_IN_PLACE)";
    Fail::new(MPI_ERR_BUFFER, message)
}

/// A contribution, which may be `MPI_IN_PLACE`.
#[inline]
pub fn given<N: Int>(at: Address, n: N, ty: Handle) -> Res<Given> {
    if at.addr() == MPI_IN_PLACE {
        return Ok(Given::InPlace);
    }
    Ok(Given::Memory(view(at, n, ty)?))
}

/// A block to send: where it lies, or packed.
pub struct Piece {
    view: Memory,
    /// Keeps what the view shows: its address and length stay.
    packed: (usize, Vec<u8>),
}

impl Piece {
    pub fn at(view: Memory) -> Self {
        Self {
            view,
            packed: (0, Vec::new()),
        }
    }

    /// A copy of what has been packed.
    pub fn packed(mut packed: Vec<u8>) -> Res<Self> {
        let at = packed.as_mut_ptr();
        let layout = ctype(MPI_PACKED)?.committed()?;
        Ok(Self {
            view: Memory::View(Box::new(view_of(at, packed.len(), layout)?)),
            packed: (at.expose_provenance(), packed),
        })
    }

    /// Where the packed bytes lie, and how many there are.
    pub fn memory(&self) -> (usize, usize) {
        (self.packed.0, self.packed.1.len())
    }
}

impl osier::Buffer for Piece {
    fn view(&self) -> View<'_> {
        self.view.view()
    }
}

// SAFETY: C's memory, or a vector's, which do not move.
unsafe impl osier::buffers::OwnedBuffer for Piece {}

/// No memory at all.
pub fn nothing() -> Res<MemoryMut> {
    view_mut(std::ptr::null_mut(), 0, MPI_BYTE)
}

/// As [`nothing`], to send.
pub fn nothing_to_send() -> Res<Memory> {
    view(std::ptr::null_mut(), 0, MPI_BYTE)
}
