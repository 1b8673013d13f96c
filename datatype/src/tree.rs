//! The type tree: an immutable value that remembers how it was constructed.

use crate::bounds::Facts;
use crate::labels::Labels;
use crate::{Basic, DarrayDimension, Datatype, Layout, Pair, Signature, TypeError, Typemap, lower};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Deepest nesting of constructors.
pub(crate) const MAX_DEPTH: u32 = 256;

/// An MPI datatype: a tree of constructors over predefined types.
///
/// Cheap to clone; clones are the same type. What it describes never changes;
/// only its name and attributes can be set. [`Type::commit`] turns it into a
/// [`Layout`].
#[derive(Clone)]
pub struct Type(pub(crate) Arc<Node>);

pub(crate) struct Node {
    pub constructor: Constructor,
    pub facts: Facts,
    pub depth: u32,
    /// The simpler type with the same typemap and bounds that this one stands
    /// for: what is committed in its place.
    pub meaning: Option<Type>,
    /// Made when a name or an attribute is first set.
    pub labels: OnceLock<Box<Labels>>,
}

/// Which index of a multi-dimensional array varies fastest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// The last, as in C and Rust.
    C,
    /// The first.
    Fortran,
}

/// How a type was built: MPI's envelope and contents, with the exact arguments.
///
/// [`Constructor::build`] builds the type again, [`Type::combiner`] is the
/// envelope's name for it, and [`Constructor::types`] lists the types inside.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are the arguments of Type's constructors"
)]
pub enum Constructor {
    /// [`Type::basic`]
    Basic(Basic),
    /// [`Type::pair`]
    Pair(Pair),
    /// [`Type::value_index`], where no named pair fits
    ValueIndex { value: Basic, index: Basic },
    /// [`Type::f90_integer`]
    F90Integer { range: u32 },
    /// [`Type::f90_real`]
    F90Real {
        precision: Option<u32>,
        range: Option<u32>,
    },
    /// [`Type::f90_complex`]
    F90Complex {
        precision: Option<u32>,
        range: Option<u32>,
    },
    /// [`Type::dup`]
    Dup { old: Type },
    /// [`Type::contiguous`]
    Contiguous { count: usize, old: Type },
    /// [`Type::vector`]; the stride counts extents
    Vector {
        count: usize,
        blocklength: usize,
        stride: isize,
        old: Type,
    },
    /// [`Type::hvector`]; the stride counts bytes
    Hvector {
        count: usize,
        blocklength: usize,
        stride_bytes: isize,
        old: Type,
    },
    /// [`Type::indexed`]; displacements count extents
    Indexed {
        blocks: Box<[(usize, isize)]>,
        old: Type,
    },
    /// [`Type::hindexed`]; displacements count bytes
    Hindexed {
        blocks: Box<[(usize, isize)]>,
        old: Type,
    },
    /// [`Type::indexed_block`]; displacements count extents
    IndexedBlock {
        blocklength: usize,
        displacements: Box<[isize]>,
        old: Type,
    },
    /// [`Type::hindexed_block`]; displacements count bytes
    HindexedBlock {
        blocklength: usize,
        displacements: Box<[isize]>,
        old: Type,
    },
    /// [`Type::subarray`]
    Subarray {
        sizes: Box<[usize]>,
        subsizes: Box<[usize]>,
        starts: Box<[usize]>,
        order: Order,
        old: Type,
    },
    /// [`Type::darray`]
    Darray {
        ranks: usize,
        rank: usize,
        dimensions: Box<[DarrayDimension]>,
        order: Order,
        old: Type,
    },
    /// [`Type::structure`]
    Structure { fields: Box<[(usize, isize, Type)]> },
    /// [`Type::resized`]
    Resized { lb: isize, extent: isize, old: Type },
}

impl Type {
    /// The datatype of a Rust type.
    pub fn of<T: Datatype>() -> Type {
        T::datatype()
    }

    /// How this type was built.
    pub fn constructor(&self) -> &Constructor {
        &self.0.constructor
    }

    /// Bytes of payload: what one instance packs to.
    #[inline]
    pub fn size(&self) -> usize {
        self.0.facts.size
    }

    /// Distance in bytes between consecutive instances.
    #[inline]
    pub fn extent(&self) -> isize {
        self.0.facts.extent
    }

    /// Lower bound.
    #[inline]
    pub fn lb(&self) -> isize {
        self.0.facts.lb
    }

    /// Upper bound: lower bound plus extent.
    #[inline]
    pub fn ub(&self) -> isize {
        // Checked when the type was built.
        self.0.facts.lb + self.0.facts.extent
    }

    /// Lowest byte touched; 0 for an empty type.
    #[inline]
    pub fn true_lb(&self) -> isize {
        self.0.facts.data.map_or(0, |data| data.low)
    }

    /// Bytes from the lowest to the highest byte touched.
    #[inline]
    pub fn true_extent(&self) -> isize {
        self.0.facts.data.map_or(0, |data| data.high - data.low)
    }

    /// Largest alignment of a predefined type inside; 1 for an empty type.
    #[inline]
    pub fn alignment(&self) -> usize {
        self.0.facts.alignment
    }

    /// The sequence of predefined types.
    #[inline]
    pub fn signature(&self) -> &Signature {
        &self.0.facts.signature
    }

    /// The naive flattened typemap: the oracle of tests, slow and large.
    pub fn typemap(&self) -> Typemap {
        Typemap::of(self)
    }

    /// Brings the type into the one canonical form that pack and unpack use.
    ///
    /// It costs time once, and nothing communicates; messages take the layout.
    ///
    /// # Errors
    /// None today.
    pub fn commit(&self) -> Result<Layout, TypeError> {
        Ok(Layout::new(&self.0.facts, lower::form(self)))
    }
}

/// Types are equal if they were built alike; [`Layout`]s are equal if they
/// describe the same bytes. Names and attributes do not count.
impl PartialEq for Type {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.constructor == other.0.constructor
    }
}

impl fmt::Debug for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.constructor.fmt(f)
    }
}
