//! Envelope and contents of a datatype.
//!
//! # Sources
//! MPI 5.0, section 5.1.13: which argument stands where, for types of both forms of the
//! constructors.

use crate::abi::*;
use crate::call::{On, mpi};
use crate::fail::{Int, Res, argument, array_mut, bad_type, put};
use crate::objects::{CType, ctype, lock, type_handle};
use osier::datatype::{Basic, Combiner, Constructor, Distribution};
use osier::{Order, Type};
use std::collections::HashSet;
use std::sync::Mutex;

/// Types that were built by the large form of their constructor. Handles are not used
/// again, so nobody need forget.
static LARGE: Mutex<Option<HashSet<Handle>>> = Mutex::new(None);

pub fn mark_large(ty: Handle) {
    lock(&LARGE).get_or_insert_default().insert(ty);
}

fn is_large(ty: &CType) -> bool {
    let handle = ty.handle.load(std::sync::atomic::Ordering::Relaxed);
    lock(&LARGE)
        .as_ref()
        .is_some_and(|large| large.contains(&handle))
}

#[derive(Default)]
struct Contents<'a> {
    integers: Vec<i64>,
    addresses: Vec<isize>,
    counts: Vec<i64>,
    types: Vec<&'a Type>,
    basics: Vec<Basic>,
}

fn combiner(ty: &Type) -> c_int {
    match ty.combiner() {
        Combiner::Named => MPI_COMBINER_NAMED,
        Combiner::Dup => MPI_COMBINER_DUP,
        Combiner::Contiguous => MPI_COMBINER_CONTIGUOUS,
        Combiner::Vector => MPI_COMBINER_VECTOR,
        Combiner::Hvector => MPI_COMBINER_HVECTOR,
        Combiner::Indexed => MPI_COMBINER_INDEXED,
        Combiner::Hindexed => MPI_COMBINER_HINDEXED,
        Combiner::IndexedBlock => MPI_COMBINER_INDEXED_BLOCK,
        Combiner::HindexedBlock => MPI_COMBINER_HINDEXED_BLOCK,
        Combiner::Structure => MPI_COMBINER_STRUCT,
        Combiner::Subarray => MPI_COMBINER_SUBARRAY,
        Combiner::Darray => MPI_COMBINER_DARRAY,
        Combiner::F90Real => MPI_COMBINER_F90_REAL,
        Combiner::F90Complex => MPI_COMBINER_F90_COMPLEX,
        Combiner::F90Integer => MPI_COMBINER_F90_INTEGER,
        Combiner::Resized => MPI_COMBINER_RESIZED,
        _ => MPI_COMBINER_VALUE_INDEX,
    }
}

fn order(order: Order) -> i64 {
    i64::from(match order {
        Order::C => MPI_ORDER_C,
        Order::Fortran => MPI_ORDER_FORTRAN,
    })
}

fn digits(n: Option<u32>) -> i64 {
    n.map_or(i64::from(MPI_UNDEFINED), i64::from)
}

fn contents(ty: &CType) -> Contents<'_> {
    let large = is_large(ty);
    let mut c = Contents::default();
    let constructor = ty.ty.constructor();
    c.types = constructor.types().collect();
    // Counts, displacements in extents, and displacements in bytes.
    let (counts, bytes): (Vec<i64>, Vec<isize>) = match constructor {
        Constructor::ValueIndex { value, index } => {
            c.basics = vec![*value, *index];
            Default::default()
        }
        Constructor::F90Integer { range } => {
            c.integers = vec![i64::from(*range)];
            return c;
        }
        Constructor::F90Real { precision, range }
        | Constructor::F90Complex { precision, range } => {
            c.integers = vec![digits(*precision), digits(*range)];
            return c;
        }
        Constructor::Contiguous { count, .. } => (vec![*count as i64], vec![]),
        Constructor::Vector {
            count,
            blocklength,
            stride,
            ..
        } => (
            vec![*count as i64, *blocklength as i64, *stride as i64],
            vec![],
        ),
        Constructor::Hvector {
            count,
            blocklength,
            stride_bytes,
            ..
        } => (
            vec![*count as i64, *blocklength as i64],
            vec![*stride_bytes],
        ),
        Constructor::Indexed { blocks, .. } => {
            let mut all = vec![blocks.len() as i64];
            all.extend(blocks.iter().map(|(length, _)| *length as i64));
            all.extend(blocks.iter().map(|(_, at)| *at as i64));
            (all, vec![])
        }
        Constructor::Hindexed { blocks, .. } => {
            let mut all = vec![blocks.len() as i64];
            all.extend(blocks.iter().map(|(length, _)| *length as i64));
            (all, blocks.iter().map(|(_, at)| *at).collect())
        }
        Constructor::IndexedBlock {
            blocklength,
            displacements,
            ..
        } => {
            let mut all = vec![displacements.len() as i64, *blocklength as i64];
            all.extend(displacements.iter().map(|at| *at as i64));
            (all, vec![])
        }
        Constructor::HindexedBlock {
            blocklength,
            displacements,
            ..
        } => (
            vec![displacements.len() as i64, *blocklength as i64],
            displacements.to_vec(),
        ),
        Constructor::Structure { fields } => {
            let mut all = vec![fields.len() as i64];
            all.extend(fields.iter().map(|(length, ..)| *length as i64));
            (all, fields.iter().map(|(_, at, _)| *at).collect())
        }
        Constructor::Resized { lb, extent, .. } => (vec![], vec![*lb, *extent]),
        Constructor::Subarray {
            sizes,
            subsizes,
            starts,
            order: of,
            ..
        } => {
            let all = [sizes, subsizes, starts]
                .into_iter()
                .flat_map(|s| s.iter().map(|n| *n as i64));
            c.integers.push(sizes.len() as i64);
            match large {
                true => c.counts.extend(all),
                false => c.integers.extend(all),
            }
            c.integers.push(order(*of));
            return c;
        }
        Constructor::Darray {
            ranks,
            rank,
            dimensions,
            order: of,
            ..
        } => {
            c.integers
                .extend([*ranks as i64, *rank as i64, dimensions.len() as i64]);
            let sizes = dimensions.iter().map(|d| d.size as i64);
            match large {
                true => c.counts.extend(sizes),
                false => c.integers.extend(sizes),
            }
            c.integers.extend(dimensions.iter().map(|d| {
                i64::from(match d.distribution {
                    Distribution::None => MPI_DISTRIBUTE_NONE,
                    Distribution::Block => MPI_DISTRIBUTE_BLOCK,
                    Distribution::Cyclic => MPI_DISTRIBUTE_CYCLIC,
                })
            }));
            c.integers.extend(dimensions.iter().map(|d| {
                d.argument
                    .map_or(i64::from(MPI_DISTRIBUTE_DFLT_DARG), |n| n as i64)
            }));
            c.integers
                .extend(dimensions.iter().map(|d| d.processes as i64));
            c.integers.push(order(*of));
            return c;
        }
        // Predefined types and duplicates.
        _ => Default::default(),
    };
    match large {
        true => {
            c.counts = counts;
            c.counts.extend(bytes.iter().map(|at| *at as i64));
        }
        false => (c.integers, c.addresses) = (counts, bytes),
    }
    c
}

impl Contents<'_> {
    fn types(&self) -> usize {
        self.types.len() + self.basics.len()
    }
}

fn fill<N: Int, T>(to: *mut N, max: i64, from: &[T], as_wide: impl Fn(&T) -> i64) -> Res {
    if (from.len() as i64) > max {
        return Err(argument(format!(
            "{} values of a datatype's contents, and room for {max} (hint: MPI_Type_get_envelope)",
            from.len()
        )));
    }
    for (to, from) in array_mut(to, from.len())?.iter_mut().zip(from) {
        *to = N::narrow(as_wide(from));
    }
    Ok(())
}

fn named() -> crate::fail::Fail {
    bad_type("contents of a predefined datatype")
}

fn fill_types(to: *mut Handle, max: i64, c: &Contents<'_>) -> Res {
    if (c.types() as i64) > max {
        return Err(argument("no room for the types of a datatype's contents"));
    }
    let of_basics = c.basics.iter().map(|basic| Type::basic(*basic));
    let all = c.types.iter().map(|ty| (*ty).clone()).chain(of_basics);
    for (to, ty) in array_mut(to, c.types())?.iter_mut().zip(all) {
        *to = type_handle(&ty);
        crate::objects::ctype(*to)?;
    }
    Ok(())
}

const SMALL_ONLY: &str =
    "a datatype with large counts (hint: MPI_Type_get_envelope_c, MPI_Type_get_contents_c)";

mpi! {
    fn MPI_Type_get_envelope(
        ty: Handle, integers: *mut c_int, addresses: *mut c_int, types: *mut c_int,
        by: *mut c_int
    ) on On::Own; {
        let ty = ctype(ty)?;
        let c = contents(ty);
        if !c.counts.is_empty() {
            return Err(bad_type(SMALL_ONLY));
        }
        put(integers, c.integers.len() as c_int)?;
        put(addresses, c.addresses.len() as c_int)?;
        put(types, c.types() as c_int)?;
        put(by, combiner(&ty.ty))?;
    }

    fn MPI_Type_get_envelope_c(
        ty: Handle, integers: *mut Count, addresses: *mut Count, counts: *mut Count,
        types: *mut Count, by: *mut c_int
    ) on On::Own; {
        let ty = ctype(ty)?;
        let c = contents(ty);
        put(integers, c.integers.len() as Count)?;
        put(addresses, c.addresses.len() as Count)?;
        put(counts, c.counts.len() as Count)?;
        put(types, c.types() as Count)?;
        put(by, combiner(&ty.ty))?;
    }

    fn MPI_Type_get_contents(
        ty: Handle, max_integers: c_int, max_addresses: c_int, max_types: c_int,
        integers: *mut c_int, addresses: *mut Aint, types: *mut Handle
    ) on On::Own; {
        let ty = ctype(ty)?;
        let c = contents(ty);
        if ty.ty.combiner() == Combiner::Named {
            return Err(named());
        }
        if !c.counts.is_empty() {
            return Err(bad_type(SMALL_ONLY));
        }
        fill(integers, max_integers.into(), &c.integers, |n| *n)?;
        fill(addresses, max_addresses.into(), &c.addresses, |n| *n as i64)?;
        fill_types(types, max_types.into(), &c)?;
    }

    fn MPI_Type_get_contents_c(
        ty: Handle, max_integers: Count, max_addresses: Count, max_counts: Count,
        max_types: Count, integers: *mut c_int, addresses: *mut Aint, counts: *mut Count,
        types: *mut Handle
    ) on On::Own; {
        let ty = ctype(ty)?;
        let c = contents(ty);
        if ty.ty.combiner() == Combiner::Named {
            return Err(named());
        }
        fill(integers, max_integers, &c.integers, |n| *n)?;
        fill(addresses, max_addresses, &c.addresses, |n| *n as i64)?;
        fill(counts, max_counts, &c.counts, |n| *n)?;
        fill_types(types, max_types, &c)?;
    }
}
