//! Constructors of datatypes.
//!
//! # Sources
//! MPI 5.0, section 5.1.

use crate::abi::*;
use crate::call::{On, mpi};
use crate::fail::{Fail, Int, Res, argument, array, count, get, number, put};
use crate::objects::{CType, Element, TYPES, adopt_type, ctype, ctype_shared, new_type};
use osier::datatype::{Basic, Constructor, DarrayDimension, Distribution, Pair, TypeClass};
use osier::{Order, Type};
use std::collections::HashMap;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock};

type Predefined = Box<[Option<CType>]>;

static PREDEFINED: OnceLock<Predefined> = OnceLock::new();

fn named(name: &str) -> Option<Type> {
    let basic = Basic::ALL
        .iter()
        .find(|basic| basic.mpi_name() == Some(name));
    let pair = || Pair::ALL.iter().find(|pair| pair.mpi_name() == name);
    match basic {
        Some(basic) => Some(Type::basic(*basic)),
        None => Some(Type::pair(*pair()?)),
    }
}

#[cold]
fn make_predefined() -> Predefined {
    let mut all: Vec<Option<CType>> = (0..0x200).map(|_| None).collect();
    for (name, value) in crate::abi::DATATYPES {
        if let Some(ty) = named(name) {
            let made = CType::new(ty, true);
            made.handle.store(*value, Ordering::Relaxed);
            all[value & 0x1ff] = Some(made);
        }
    }
    all.into_boxed_slice()
}

static ELEMENTS: [AtomicPtr<Element>; 0x200] = [const { AtomicPtr::new(null_mut()) }; 0x200];

/// The element that a small number is the type of; `None` also if it was not asked for
/// before ([`note_element`]).
#[inline]
pub fn element(handle: Handle) -> Option<Element> {
    if handle & !0x1ff != 0x200 {
        return None;
    }
    let element = ELEMENTS[handle & 0x1ff].load(Ordering::Acquire);
    // SAFETY: null, or part of a predefined type, which stays.
    unsafe { element.as_ref() }.copied()
}

/// Has [`element`] know a predefined type.
pub fn note_element(handle: Handle, ty: &'static CType) {
    if handle & !0x1ff == 0x200
        && let Some(element) = &ty.element
    {
        let element = std::ptr::from_ref(element).cast_mut();
        ELEMENTS[handle & 0x1ff].store(element, Ordering::Release);
    }
}

/// The datatype of a small number.
#[inline]
pub fn predefined(handle: Handle) -> Option<&'static CType> {
    let all = match PREDEFINED.get() {
        Some(all) => all,
        None => PREDEFINED.get_or_init(make_predefined),
    };
    all[handle & 0x1ff].as_ref()
}

/// The small number of a type that is predefined and has a name.
pub fn predefined_handle(ty: &Type) -> Option<Handle> {
    let name = match ty.constructor() {
        Constructor::Basic(basic) => basic.mpi_name()?,
        Constructor::Pair(pair) => pair.mpi_name(),
        _ => return None,
    };
    let found = crate::abi::DATATYPES
        .iter()
        .find(|(known, _)| *known == name);
    found.map(|(_, value)| *value)
}

/// The pair of two types that has a name.
fn named_pair(value: &Type, index: &Type) -> Option<Handle> {
    let (Constructor::Basic(value), Constructor::Basic(index)) =
        (value.constructor(), index.constructor())
    else {
        return None;
    };
    let pair = Pair::ALL
        .iter()
        .find(|pair| pair.value() == *value && pair.index() == *index)?;
    predefined_handle(&Type::pair(*pair))
}

fn old(ty: Handle) -> Res<&'static Type> {
    Ok(&ctype(ty)?.ty)
}

/// Remembers whether the counts were those of the large form, which its contents follow.
fn made<N: Int + 'static>(ty: Result<Type, osier::datatype::TypeError>, to: *mut Handle) -> Res {
    let handle = new_type(ty?);
    if std::any::TypeId::of::<N>() == std::any::TypeId::of::<Count>() {
        crate::type_contents::mark_large(handle);
    }
    put(to, handle)
}

fn counts<N: Int>(n: usize, from: *const N) -> Res<Vec<usize>> {
    array(from, n)?.iter().map(|n| count(*n)).collect()
}

/// Displacements of any width.
fn places<D: Int>(n: usize, from: *const D) -> Res<Vec<isize>> {
    Ok(array(from, n)?.iter().map(|d| d.wide() as isize).collect())
}

fn blocks<N: Int, D: Int>(n: N, lengths: *const N, at: *const D) -> Res<Vec<(usize, isize)>> {
    let n = count(n)?;
    let (lengths, at) = (counts(n, lengths)?, places(n, at)?);
    Ok(lengths.into_iter().zip(at).collect())
}

fn structure<N: Int, D: Int>(
    n: N,
    lengths: *const N,
    at: *const D,
    types: *const Handle,
) -> Res<Result<Type, osier::datatype::TypeError>> {
    let types = array(types, count(n)?)?;
    let fields: Vec<(usize, isize, Type)> = blocks(n, lengths, at)?
        .into_iter()
        .zip(types)
        .map(|((length, at), ty)| Ok((length, at, old(*ty)?.clone())))
        .collect::<Res<_>>()?;
    Ok(Type::structure(&fields))
}

fn order(order: c_int) -> Res<Order> {
    match order {
        MPI_ORDER_C => Ok(Order::C),
        MPI_ORDER_FORTRAN => Ok(Order::Fortran),
        _ => Err(argument(format!("{order} is no order of an array"))),
    }
}

fn dimension<N: Int>(
    size: N,
    distribution: c_int,
    block: c_int,
    processes: c_int,
) -> Res<DarrayDimension> {
    let (size, processes) = (count(size)?, number(processes)?);
    let argument_of = match block {
        MPI_DISTRIBUTE_DFLT_DARG => None,
        block => Some(number(block)?),
    };
    Ok(DarrayDimension {
        size,
        distribution: match distribution {
            MPI_DISTRIBUTE_NONE => Distribution::None,
            MPI_DISTRIBUTE_BLOCK => Distribution::Block,
            MPI_DISTRIBUTE_CYCLIC => Distribution::Cyclic,
            other => return Err(argument(format!("{other} is no distribution"))),
        },
        argument: argument_of,
        processes,
    })
}

/// Types that are made once for each argument, and cannot be freed.
fn made_once(key: (c_int, c_int, c_int), to: *mut Handle, make: impl FnOnce() -> Res<Type>) -> Res {
    type Made = Mutex<Option<HashMap<(c_int, c_int, c_int), Handle>>>;
    static MADE: Made = Mutex::new(None);
    let mut all = crate::objects::lock(&MADE);
    let all = all.get_or_insert_default();
    if let Some(handle) = all.get(&key) {
        return put(to, *handle);
    }
    let ty = make()?;
    let handle = match predefined_handle(&ty) {
        Some(handle) => handle,
        None => adopt_type(CType::new(ty, true)),
    };
    all.insert(key, handle);
    put(to, handle)
}

/// Digits of Fortran's, where `MPI_UNDEFINED` says that any will do.
fn digits(n: c_int) -> Res<Option<u32>> {
    match n {
        MPI_UNDEFINED => Ok(None),
        n => Ok(Some(number(n)? as u32)),
    }
}

mpi! {
    fn MPI_Type_contiguous, MPI_Type_contiguous_c<N>(n: N, ty: Handle, to: *mut Handle) on On::Own; {
        made::<N>(Type::contiguous(count(n)?, old(ty)?), to)?;
    }

    fn MPI_Type_vector, MPI_Type_vector_c<N>(n: N, length: N, stride: N, ty: Handle, to: *mut Handle) on On::Own; {
        made::<N>(Type::vector(count(n)?, count(length)?, stride.wide() as isize, old(ty)?), to)?;
    }

    // Strides and displacements in bytes have 64 bits in both forms.
    fn MPI_Type_create_hvector, MPI_Type_create_hvector_c<N>(n: N, length: N, stride: Aint, ty: Handle, to: *mut Handle) on On::Own; {
        made::<N>(Type::hvector(count(n)?, count(length)?, stride, old(ty)?), to)?;
    }

    fn MPI_Type_hvector(n: c_int, length: c_int, stride: Aint, ty: Handle, to: *mut Handle) on On::Own; {
        made::<c_int>(Type::hvector(count(n)?, count(length)?, stride, old(ty)?), to)?;
    }

    fn MPI_Type_indexed, MPI_Type_indexed_c<N>(n: N, lengths: *const N, at: *const N, ty: Handle, to: *mut Handle) on On::Own; {
        made::<N>(Type::indexed(&blocks(n, lengths, at)?, old(ty)?), to)?;
    }

    fn MPI_Type_create_hindexed, MPI_Type_create_hindexed_c<N>(n: N, lengths: *const N, at: *const Aint, ty: Handle, to: *mut Handle) on On::Own; {
        made::<N>(Type::hindexed(&blocks(n, lengths, at)?, old(ty)?), to)?;
    }

    fn MPI_Type_hindexed(n: c_int, lengths: *const c_int, at: *const Aint, ty: Handle, to: *mut Handle) on On::Own; {
        made::<c_int>(Type::hindexed(&blocks(n, lengths, at)?, old(ty)?), to)?;
    }

    fn MPI_Type_create_indexed_block, MPI_Type_create_indexed_block_c<N>(n: N, length: N, at: *const N, ty: Handle, to: *mut Handle) on On::Own; {
        made::<N>(Type::indexed_block(count(length)?, &places(count(n)?, at)?, old(ty)?), to)?;
    }

    fn MPI_Type_create_hindexed_block, MPI_Type_create_hindexed_block_c<N>(n: N, length: N, at: *const Aint, ty: Handle, to: *mut Handle) on On::Own; {
        made::<N>(Type::hindexed_block(count(length)?, &places(count(n)?, at)?, old(ty)?), to)?;
    }

    fn MPI_Type_create_struct, MPI_Type_create_struct_c<N>(n: N, lengths: *const N, at: *const Aint, types: *const Handle, to: *mut Handle) on On::Own; {
        made::<N>(structure(n, lengths, at, types)?, to)?;
    }

    fn MPI_Type_struct(n: c_int, lengths: *const c_int, at: *const Aint, types: *const Handle, to: *mut Handle) on On::Own; {
        made::<c_int>(structure(n, lengths, at, types)?, to)?;
    }

    fn MPI_Type_create_subarray, MPI_Type_create_subarray_c<N>(
        ndims: c_int, sizes: *const N, subsizes: *const N, starts: *const N, order_of: c_int,
        ty: Handle, to: *mut Handle
    ) on On::Own; {
        let n = number(ndims)?;
        let (sizes, subsizes, starts) = (counts(n, sizes)?, counts(n, subsizes)?, counts(n, starts)?);
        made::<N>(Type::subarray(&sizes, &subsizes, &starts, order(order_of)?, old(ty)?), to)?;
    }

    fn MPI_Type_create_darray, MPI_Type_create_darray_c<N>(
        size: c_int, rank: c_int, ndims: c_int, sizes: *const N, distributions: *const c_int,
        blocks: *const c_int, processes: *const c_int, order_of: c_int, ty: Handle,
        to: *mut Handle
    ) on On::Own; {
        let n = number(ndims)?;
        let (sizes, distributions) = (array(sizes, n)?, array(distributions, n)?);
        let (blocks, processes) = (array(blocks, n)?, array(processes, n)?);
        let dimensions: Vec<DarrayDimension> = (0..n)
            .map(|d| dimension(sizes[d], distributions[d], blocks[d], processes[d]))
            .collect::<Res<_>>()?;
        made::<N>(
            Type::darray(number(size)?, number(rank)?, &dimensions, order(order_of)?, old(ty)?),
            to,
        )?;
    }

    fn MPI_Type_create_resized, MPI_Type_create_resized_c<N>(ty: Handle, lb: Aint, extent: Aint, to: *mut Handle) on On::Own; {
        made::<N>(Type::resized(lb, extent, old(ty)?), to)?;
    }

    fn MPI_Type_dup(ty: Handle, to: *mut Handle) on On::Own; {
        let of = ctype(ty)?;
        put(to, MPI_DATATYPE_NULL)?;
        let copy = CType::new(of.ty.dup()?, false);
        copy.committed.store(of.committed.load(Ordering::Relaxed), Ordering::Relaxed);
        of.attributes.duplicate(ty, &copy.attributes)?;
        put(to, adopt_type(copy))?;
    }

    fn MPI_Type_create_f90_integer(range: c_int, to: *mut Handle) on On::Own; {
        made_once((0, range, 0), to, || Ok(Type::f90_integer(number(range)? as u32)?))?;
    }

    fn MPI_Type_create_f90_real(precision: c_int, range: c_int, to: *mut Handle) on On::Own; {
        made_once((1, precision, range), to, || Ok(Type::f90_real(digits(precision)?, digits(range)?)?))?;
    }

    fn MPI_Type_create_f90_complex(precision: c_int, range: c_int, to: *mut Handle) on On::Own; {
        made_once((2, precision, range), to, || Ok(Type::f90_complex(digits(precision)?, digits(range)?)?))?;
    }

    fn MPI_Type_get_value_index(value: Handle, index: Handle, to: *mut Handle) on On::Own; {
        let (value, index) = (ctype(value)?, ctype(index)?);
        // Those with a name. Programs that take types apart know no others: mpi4py's tests
        // want a named one or none.
        put(to, named_pair(&value.ty, &index.ty).unwrap_or(MPI_DATATYPE_NULL))?;
    }

    fn MPI_Type_match_size(class: c_int, size: c_int, to: *mut Handle) on On::Own; {
        let class = match class {
            MPI_TYPECLASS_INTEGER => TypeClass::Integer,
            MPI_TYPECLASS_REAL => TypeClass::Real,
            MPI_TYPECLASS_COMPLEX => TypeClass::Complex,
            MPIX_TYPECLASS_LOGICAL => TypeClass::Logical,
            other => return Err(argument(format!("{other} is no class of types"))),
        };
        let ty = Type::basic(Basic::match_size(class, number(size)?)?);
        put(to, crate::objects::type_handle(&ty))?;
    }

    fn MPI_Type_commit(ty: *mut Handle) on On::Own; {
        let ty = ctype(get(ty)?)?;
        ty.layout()?;
        ty.committed.store(true, Ordering::Relaxed);
    }

    fn MPI_Type_free(ty: *mut Handle) on On::Own; {
        let handle = get(ty)?;
        let of = ctype_shared(handle)?;
        if of.predefined {
            return Err(Fail::new(MPI_ERR_TYPE, "freeing of a predefined datatype"));
        }
        of.attributes.clear(handle, MPI_ERR_TYPE)?;
        TYPES.remove(handle);
        put(ty, MPI_DATATYPE_NULL)?;
    }
}
