//! Envelope and contents of a type: combiner, arguments, reconstruction.
//!
//! # Sources
//! MPI 5.0, section 5.1.13 (decoding a datatype). The arrays of integers,
//! addresses and types that MPI hands out are the fields of [`Constructor`] in
//! another order; a layer for C flattens them.

use crate::{Constructor, Type, TypeError};

/// MPI's names for the constructors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Combiner {
    /// Predefined, named pairs included: nothing is inside.
    Named,
    /// [`Type::dup`]
    Dup,
    /// [`Type::contiguous`]
    Contiguous,
    /// [`Type::vector`]
    Vector,
    /// [`Type::hvector`]
    Hvector,
    /// [`Type::indexed`]
    Indexed,
    /// [`Type::hindexed`]
    Hindexed,
    /// [`Type::indexed_block`]
    IndexedBlock,
    /// [`Type::hindexed_block`]
    HindexedBlock,
    /// [`Type::structure`]
    Structure,
    /// [`Type::subarray`]
    Subarray,
    /// [`Type::darray`]
    Darray,
    /// [`Type::f90_real`]
    F90Real,
    /// [`Type::f90_complex`]
    F90Complex,
    /// [`Type::f90_integer`]
    F90Integer,
    /// [`Type::resized`]
    Resized,
    /// [`Type::value_index`], unnamed
    ValueIndex,
}

impl Type {
    /// By which constructor the type was built.
    pub fn combiner(&self) -> Combiner {
        match self.constructor() {
            Constructor::Basic(_) | Constructor::Pair(_) => Combiner::Named,
            Constructor::Dup { .. } => Combiner::Dup,
            Constructor::Contiguous { .. } => Combiner::Contiguous,
            Constructor::Vector { .. } => Combiner::Vector,
            Constructor::Hvector { .. } => Combiner::Hvector,
            Constructor::Indexed { .. } => Combiner::Indexed,
            Constructor::Hindexed { .. } => Combiner::Hindexed,
            Constructor::IndexedBlock { .. } => Combiner::IndexedBlock,
            Constructor::HindexedBlock { .. } => Combiner::HindexedBlock,
            Constructor::Structure { .. } => Combiner::Structure,
            Constructor::Subarray { .. } => Combiner::Subarray,
            Constructor::Darray { .. } => Combiner::Darray,
            Constructor::F90Real { .. } => Combiner::F90Real,
            Constructor::F90Complex { .. } => Combiner::F90Complex,
            Constructor::F90Integer { .. } => Combiner::F90Integer,
            Constructor::Resized { .. } => Combiner::Resized,
            Constructor::ValueIndex { .. } => Combiner::ValueIndex,
        }
    }
}

impl Constructor {
    /// The types that were given as arguments. Those of a value-index pair are
    /// predefined and not listed.
    pub fn types(&self) -> impl Iterator<Item = &Type> {
        let (one, fields): (Option<&Type>, &[(usize, isize, Type)]) = match self {
            Constructor::Structure { fields } => (None, fields),
            Constructor::Dup { old }
            | Constructor::Contiguous { old, .. }
            | Constructor::Vector { old, .. }
            | Constructor::Hvector { old, .. }
            | Constructor::Indexed { old, .. }
            | Constructor::Hindexed { old, .. }
            | Constructor::IndexedBlock { old, .. }
            | Constructor::HindexedBlock { old, .. }
            | Constructor::Subarray { old, .. }
            | Constructor::Darray { old, .. }
            | Constructor::Resized { old, .. } => (Some(old), &[]),
            Constructor::Basic(_)
            | Constructor::Pair(_)
            | Constructor::ValueIndex { .. }
            | Constructor::F90Integer { .. }
            | Constructor::F90Real { .. }
            | Constructor::F90Complex { .. } => (None, &[]),
        };
        one.into_iter().chain(fields.iter().map(|field| &field.2))
    }

    /// Builds the type anew from these arguments, without name and attributes
    /// (but for those that a duplicate inherits).
    ///
    /// # Errors
    /// As for the constructor; none for what [`Type::constructor`] returned,
    /// unless a copy function of an attribute fails.
    pub fn build(&self) -> Result<Type, TypeError> {
        match self {
            Constructor::Basic(basic) => Ok(Type::basic(*basic)),
            Constructor::Pair(pair) => Ok(Type::pair(*pair)),
            Constructor::ValueIndex { value, index } => Type::value_index(*value, *index),
            Constructor::F90Integer { range } => Type::f90_integer(*range),
            Constructor::F90Real { precision, range } => Type::f90_real(*precision, *range),
            Constructor::F90Complex { precision, range } => Type::f90_complex(*precision, *range),
            Constructor::Dup { old } => old.dup(),
            Constructor::Contiguous { count, old } => Type::contiguous(*count, old),
            Constructor::Vector {
                count,
                blocklength,
                stride,
                old,
            } => Type::vector(*count, *blocklength, *stride, old),
            Constructor::Hvector {
                count,
                blocklength,
                stride_bytes,
                old,
            } => Type::hvector(*count, *blocklength, *stride_bytes, old),
            Constructor::Indexed { blocks, old } => Type::indexed(blocks, old),
            Constructor::Hindexed { blocks, old } => Type::hindexed(blocks, old),
            Constructor::IndexedBlock {
                blocklength,
                displacements,
                old,
            } => Type::indexed_block(*blocklength, displacements, old),
            Constructor::HindexedBlock {
                blocklength,
                displacements,
                old,
            } => Type::hindexed_block(*blocklength, displacements, old),
            Constructor::Subarray {
                sizes,
                subsizes,
                starts,
                order,
                old,
            } => Type::subarray(sizes, subsizes, starts, *order, old),
            Constructor::Darray {
                ranks,
                rank,
                dimensions,
                order,
                old,
            } => Type::darray(*ranks, *rank, dimensions, *order, old),
            Constructor::Structure { fields } => Type::structure(fields),
            Constructor::Resized { lb, extent, old } => Type::resized(*lb, *extent, old),
        }
    }
}
