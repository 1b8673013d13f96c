//! Sizes, bounds and names of datatypes; addresses.

use crate::abi::*;
use crate::call::{On, mpi};
use crate::fail::{Int, Res, put, put_text, text};
use crate::objects::{CType, ctype, lock};
use crate::types::predefined_handle;

/// Lower bound and extent.
fn extent(ty: Handle) -> Res<(isize, isize)> {
    let layout = ctype(ty)?.layout()?;
    Ok((layout.lb(), layout.extent()))
}

fn true_extent(ty: Handle) -> Res<(isize, isize)> {
    let layout = ctype(ty)?.layout()?;
    Ok((layout.true_lb(), layout.true_extent()))
}

fn size(ty: Handle) -> Res<i64> {
    Ok(ctype(ty)?.layout()?.size() as i64)
}

fn name(ty: &CType) -> String {
    if let Some(name) = &*lock(&ty.name) {
        return name.clone();
    }
    match predefined_handle(&ty.ty) {
        Some(_) => ty.ty.name().to_string(),
        None => String::new(),
    }
}

fn put_both<N: Int>(of: (isize, isize), lb: *mut N, extent: *mut N) -> Res {
    put(lb, N::narrow(of.0 as i64))?;
    put(extent, N::narrow(of.1 as i64))
}

mpi! {
    fn MPI_Type_size, MPI_Type_size_c<N>(ty: Handle, to: *mut N) on On::Own; {
        put(to, N::narrow(size(ty)?))?;
    }

    fn MPI_Type_size_x(ty: Handle, to: *mut Count) on On::Own; {
        put(to, size(ty)?)?;
    }

    fn MPI_Type_get_extent(ty: Handle, lb: *mut Aint, to: *mut Aint) on On::Own; {
        put_both(extent(ty)?, lb, to)?;
    }

    fn MPI_Type_get_extent_c(ty: Handle, lb: *mut Count, to: *mut Count) on On::Own; {
        put_both(extent(ty)?, lb, to)?;
    }

    fn MPI_Type_get_extent_x(ty: Handle, lb: *mut Count, to: *mut Count) on On::Own; {
        put_both(extent(ty)?, lb, to)?;
    }

    fn MPI_Type_get_true_extent(ty: Handle, lb: *mut Aint, to: *mut Aint) on On::Own; {
        put_both(true_extent(ty)?, lb, to)?;
    }

    fn MPI_Type_get_true_extent_c(ty: Handle, lb: *mut Count, to: *mut Count) on On::Own; {
        put_both(true_extent(ty)?, lb, to)?;
    }

    fn MPI_Type_get_true_extent_x(ty: Handle, lb: *mut Count, to: *mut Count) on On::Own; {
        put_both(true_extent(ty)?, lb, to)?;
    }

    fn MPI_Type_extent(ty: Handle, to: *mut Aint) on On::Own; {
        put(to, extent(ty)?.1)?;
    }

    fn MPI_Type_lb(ty: Handle, to: *mut Aint) on On::Own; {
        put(to, extent(ty)?.0)?;
    }

    fn MPI_Type_ub(ty: Handle, to: *mut Aint) on On::Own; {
        let (lb, extent) = extent(ty)?;
        put(to, lb + extent)?;
    }

    fn MPI_Get_address(place: usize, to: *mut Aint) on On::Own; {
        put(to, place as Aint)?;
    }

    fn MPI_Address(place: usize, to: *mut Aint) on On::Own; {
        put(to, place as Aint)?;
    }

    fn MPI_Type_set_name(ty: Handle, to: *const c_char) on On::Own; {
        let ty = ctype(ty)?;
        let name = crate::comms::checked_name(text(to)?.into_owned())?;
        *lock(&ty.name) = Some(name);
    }

    fn MPI_Type_get_name(ty: Handle, to: *mut c_char, length: *mut c_int) on On::Own; {
        let name = match ty {
            MPI_DATATYPE_NULL => "MPI_DATATYPE_NULL".to_owned(),
            ty => name(ctype(ty)?),
        };
        put_text(to, MPI_MAX_OBJECT_NAME as usize, &name, length)?;
    }
}
