//! Errors of types, counts and buffers.

use crate::AttributeError;

/// Why a type cannot be built, or a buffer not packed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TypeError {
    /// A size, bound or displacement leaves the signed 64-bit range.
    #[error(
        "cannot build {constructor} type: its {quantity} exceeds {} bytes \
         (hint: check count, stride and displacements)",
        isize::MAX
    )]
    Overflow {
        /// The constructor, as MPI names it.
        constructor: &'static str,
        /// What overflowed: size, extent, displacement.
        quantity: &'static str,
    },
    /// An argument that makes no sense.
    #[error("cannot {operation}: {argument} is {value} (hint: {hint})")]
    Argument {
        /// What was asked for.
        operation: &'static str,
        /// The argument's name.
        argument: &'static str,
        /// Its value.
        value: String,
        /// What would make sense.
        hint: String,
    },
    /// The lists that describe a subarray differ in length or are empty.
    #[error(
        "cannot build subarray type: {sizes} sizes, {subsizes} subsizes and {starts} starts \
         (hint: one of each per dimension, at least one dimension)"
    )]
    Dimensions {
        /// Number of sizes given.
        sizes: usize,
        /// Number of subsizes given.
        subsizes: usize,
        /// Number of starts given.
        starts: usize,
    },
    /// One dimension of a subarray does not fit in its array.
    #[error(
        "cannot build subarray type: dimension {dimension} starts at {start} with {subsize} of \
         {size} elements (hint: 1 <= subsize, start + subsize <= size)"
    )]
    Subarray {
        /// Index of the dimension.
        dimension: usize,
        /// Elements of the whole array in this dimension.
        size: usize,
        /// Elements taken.
        subsize: usize,
        /// First element taken.
        start: usize,
    },
    /// The tree is nested too deeply.
    #[error("cannot build {constructor} type: nested more than {limit} deep (hint: merge levels)")]
    Depth {
        /// The constructor, as MPI names it.
        constructor: &'static str,
        /// Deepest nesting allowed.
        limit: u32,
    },
    /// A copy or delete function of an attribute failed.
    #[error(transparent)]
    Attribute(#[from] AttributeError),
    /// The packed size of so many instances is no 64-bit number.
    #[error(
        "{count} instances of {size} bytes exceed {} packed bytes (hint: check the count)",
        isize::MAX
    )]
    Count {
        /// Instances asked for.
        count: usize,
        /// Packed bytes of one instance.
        size: usize,
    },
    /// The fragment lies beyond the packed bytes.
    #[error(
        "packed bytes {start}..{end} asked for, but {count} instances pack to {packed} bytes \
         (hint: a fragment ends within them)"
    )]
    Fragment {
        /// First packed byte asked for.
        start: usize,
        /// One past the last.
        end: usize,
        /// Instances.
        count: usize,
        /// Packed bytes of all instances.
        packed: usize,
    },
    /// The typed buffer does not hold all bytes that the layout touches.
    #[error(
        "{count} instances touch bytes {low}..{high} around their origin, but the buffer holds \
         {bytes} bytes with the origin at {origin} (hint: check count, origin and extent)"
    )]
    Memory {
        /// Instances.
        count: usize,
        /// Lowest byte touched, relative to the origin.
        low: isize,
        /// One past the highest byte touched, relative to the origin.
        high: isize,
        /// Bytes in the buffer.
        bytes: usize,
        /// Where in the buffer the origin lies.
        origin: usize,
    },
    /// Less room than the packed bytes take, or fewer bytes than they are.
    #[error(
        "cannot {operation} {count} instances: {needed} bytes from position {position} on, but \
         the packed buffer holds {bytes} bytes (hint: ask pack_size or external32_size)"
    )]
    Room {
        /// What was asked for.
        operation: &'static str,
        /// Instances.
        count: usize,
        /// Bytes that they take in the packed buffer.
        needed: usize,
        /// Where in the packed buffer they begin.
        position: usize,
        /// Bytes in the packed buffer.
        bytes: usize,
    },
    /// Two bytes of the message would go to one place.
    #[error(
        "a layout of which {count} instances touch a byte twice cannot be received into \
         (hint: it may be sent)"
    )]
    Overlap {
        /// Instances.
        count: usize,
    },
    /// A layout over elements with padding.
    #[error(
        "elements of `{element}` have padding, which a layout over them could expose \
         (hint: use a buffer of plain numbers)"
    )]
    Padding {
        /// The Rust type of the elements.
        element: &'static str,
    },
    /// The packed buffer has another length than the fragment.
    #[error(
        "packed buffer holds {bytes} bytes, but the fragment has {fragment} \
         (hint: both have to be equal)"
    )]
    Packed {
        /// Bytes in the packed buffer.
        bytes: usize,
        /// Bytes of the fragment.
        fragment: usize,
    },
}
