//! Derive macros of Osier.
//!
//! Use them through the `osier` crate, which re-exports them beside the traits
//! that they implement.

mod datatype;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Implements `Datatype` for a `#[repr(C)]` struct.
///
/// Every field must be a `Datatype`. Padding is never sent: structs with
/// padding pack field by field, structs without are sent as they lie. The
/// layout is committed once and cached.
///
/// `#[datatype(crate = path)]` names the crate that holds the trait where that
/// is not `::osier::datatype`.
///
/// ```
/// use osier_datatype::{Datatype, Layout};
/// use osier_derive::Datatype;
///
/// #[derive(Clone, Copy, Datatype)]
/// #[repr(C)]
/// #[datatype(crate = osier_datatype)]
/// struct Particle {
///     position: [f64; 3],
///     charge: f32,
/// }
///
/// let layout = Layout::of::<Particle>();
/// assert_eq!(layout.size(), 28);
/// assert_eq!(layout.extent(), 32);
/// assert!(!Particle::DENSE);
/// ```
///
/// The struct needs a defined layout:
///
/// ```compile_fail
/// # use osier_derive::Datatype;
/// #[derive(Clone, Copy, Datatype)]
/// #[datatype(crate = osier_datatype)]
/// struct Unordered {
///     a: f64,
/// }
/// ```
///
/// Every bit pattern of a field must be a value, hence no `bool`, `char`,
/// enum or reference:
///
/// ```compile_fail
/// # use osier_derive::Datatype;
/// #[derive(Clone, Copy, Datatype)]
/// #[repr(C)]
/// #[datatype(crate = osier_datatype)]
/// struct Flag {
///     set: bool,
/// }
/// ```
///
/// ```compile_fail
/// # use osier_derive::Datatype;
/// #[derive(Clone, Copy, Datatype)]
/// #[repr(C)]
/// #[datatype(crate = osier_datatype)]
/// struct Pointer {
///     to: &'static f64,
/// }
/// ```
///
/// Enums and unions are no datatypes:
///
/// ```compile_fail
/// # use osier_derive::Datatype;
/// #[derive(Clone, Copy, Datatype)]
/// #[repr(C)]
/// #[datatype(crate = osier_datatype)]
/// enum Either {
///     A,
///     B,
/// }
/// ```
///
/// ```compile_fail
/// # use osier_derive::Datatype;
/// #[derive(Clone, Copy, Datatype)]
/// #[repr(C)]
/// #[datatype(crate = osier_datatype)]
/// union Either {
///     a: f32,
///     b: i32,
/// }
/// ```
///
/// Neither are generic structs, whose layout could not be cached:
///
/// ```compile_fail
/// # use osier_derive::Datatype;
/// #[derive(Clone, Copy, Datatype)]
/// #[repr(C)]
/// #[datatype(crate = osier_datatype)]
/// struct Pair<T> {
///     a: T,
///     b: T,
/// }
/// ```
///
/// Values are copied byte by byte:
///
/// ```compile_fail
/// # use osier_derive::Datatype;
/// #[derive(Datatype)]
/// #[repr(C)]
/// #[datatype(crate = osier_datatype)]
/// struct NotCopy {
///     a: f32,
/// }
/// ```
#[proc_macro_derive(Datatype, attributes(datatype))]
pub fn derive_datatype(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    datatype::expand(&input)
        .unwrap_or_else(|error| error.to_compile_error())
        .into()
}
