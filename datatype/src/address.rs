//! Absolute addresses: displacements that count from address zero.
//!
//! MPI programs describe data that lies anywhere by the addresses of its parts
//! and send it from `MPI_BOTTOM`. Here [`address`] tells where a part lies, a
//! type with such displacements is built as any other, and [`bottom`] is the
//! origin that it is packed from. Only unsafe functions take an origin: nobody
//! but the caller can know that the addresses are still valid.
//!
//! An address is a number, so the compiler has to be told that memory may be
//! reached through it: `address` exposes the provenance of its argument, and
//! `bottom` may use any that was exposed. A number that was obtained otherwise
//! reaches nothing.
//!
//! ```
//! use osier_datatype::{Datatype, Type, address, bottom};
//!
//! let (a, b) = (vec![1.0f64, 2.0], [3i32]);
//! let parts = Type::structure(&[
//!     (2, address(a.as_ptr()), f64::datatype()),
//!     (1, address(b.as_ptr()), i32::datatype()),
//! ])?;
//! let mut packed = [0; 20];
//! // SAFETY: both parts live and nobody writes them.
//! unsafe { parts.commit()?.pack_at_raw(bottom(), 1, &mut packed, &mut 0)? };
//! assert_eq!(packed[16..], 3i32.to_ne_bytes());
//! # Ok::<(), osier_datatype::TypeError>(())
//! ```
//!
//! # Sources
//! MPI 5.0, sections 5.1.5 (address functions) and 5.1.12 (correct use of
//! addresses). The documentation of `std::ptr` on exposed provenance.

/// Address of a place (`MPI_Get_address`), for displacements that count from
/// [`bottom`]. For memory that is received into, take the address of a mutable
/// pointer to it.
pub fn address<T: ?Sized>(place: *const T) -> isize {
    place.expose_provenance().cast_signed()
}

/// The origin that absolute addresses count from (`MPI_BOTTOM`).
#[inline]
pub fn bottom() -> *mut u8 {
    // Opaque, or the compiler would hold it for a null pointer that reaches
    // nothing.
    std::ptr::with_exposed_provenance_mut(std::hint::black_box(0))
}
