//! Memory of C's as views.

use crate::abi::*;
use crate::fail::{Fail, Int, Res, count};
use crate::objects::ctype;
use osier::datatype::bottom;
use osier::{
    Contribution, Destination, Layout, OwnedContribution, OwnedDestination, View, ViewMut,
};

/// An address that C gives.
pub type Address = *mut u8;

#[cold]
fn origin_of_null(layout: &Layout, n: usize) -> Res<*mut u8> {
    // Displacements that are addresses lie nowhere near zero.
    let has_bytes = n > 0 && layout.size() > 0;
    if has_bytes && layout.true_lb() < 4096 && layout.true_lb() > -4096 {
        return Err(Fail::new(
            MPI_ERR_BUFFER,
            "a null pointer for a buffer (hint: MPI_BOTTOM goes with types of absolute addresses)",
        ));
    }
    Ok(bottom())
}

#[inline]
fn origin(at: Address, layout: &Layout, n: usize) -> Res<*mut u8> {
    match at.is_null() {
        false => Ok(at),
        true => origin_of_null(layout, n),
    }
}

/// Instances of a layout around an address.
#[inline]
pub fn view_of(at: Address, n: usize, layout: &Layout) -> Res<View<'static>> {
    let at = origin(at, layout, n)?;
    // SAFETY: C's contract: the buffer stays, and nobody writes it, until its operation is
    // over.
    Ok(unsafe { View::from_raw(at, layout, n) }?)
}

/// As [`view_of`], to receive into.
#[inline]
pub fn view_mut_of(at: Address, n: usize, layout: &Layout) -> Res<ViewMut<'static>> {
    let at = origin(at, layout, n)?;
    // SAFETY: as above, and nobody else uses it.
    Ok(unsafe { ViewMut::from_raw(at, layout, n) }?)
}

/// Memory to send from.
#[inline]
pub fn view<N: Int>(at: Address, n: N, ty: Handle) -> Res<View<'static>> {
    let n = count(n)?;
    view_of(at, n, ctype(ty)?.committed()?)
}

/// Memory to receive into.
#[inline]
pub fn view_mut<N: Int>(at: Address, n: N, ty: Handle) -> Res<ViewMut<'static>> {
    let n = count(n)?;
    view_mut_of(at, n, ctype(ty)?.committed()?)
}

/// What a rank puts into a collective.
pub enum Given {
    Memory(View<'static>),
    InPlace,
}

impl Contribution for Given {
    fn contribution(&self) -> Option<View<'_>> {
        match self {
            Given::Memory(view) => Some(view.clone()),
            Given::InPlace => None,
        }
    }
}

impl OwnedContribution for Given {}

/// Where a rank wants its share of a scatter.
pub enum Wanted {
    Memory(ViewMut<'static>),
    InPlace,
}

impl Destination for Wanted {
    fn destination(&mut self) -> Option<ViewMut<'_>> {
        match self {
            Wanted::Memory(view) => Some(osier::BufferMut::view_mut(view)),
            Wanted::InPlace => None,
        }
    }
}

impl OwnedDestination for Wanted {}

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
    view: View<'static>,
    /// Keeps what the view shows.
    _packed: Vec<u8>,
}

impl Piece {
    pub fn at(view: View<'static>) -> Self {
        Self {
            view,
            _packed: Vec::new(),
        }
    }

    /// A copy of what has been packed.
    pub fn packed(packed: Vec<u8>) -> Res<Self> {
        let at = packed.as_ptr().cast_mut();
        Ok(Self {
            view: self::view(at, packed.len() as Count, MPI_PACKED)?,
            _packed: packed,
        })
    }
}

impl osier::Buffer for Piece {
    fn view(&self) -> View<'_> {
        self.view.clone()
    }
}

// SAFETY: C's memory, or a vector's, which do not move.
unsafe impl osier::OwnedBuffer for Piece {}

/// No memory at all.
pub fn nothing() -> Res<ViewMut<'static>> {
    view_mut(std::ptr::null_mut(), 0, MPI_BYTE)
}

/// As [`nothing`], to send.
pub fn nothing_to_send() -> Res<View<'static>> {
    view(std::ptr::null_mut(), 0, MPI_BYTE)
}
