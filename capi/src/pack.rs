//! Packing and unpacking.

use crate::abi::*;
use crate::buffers::{Address, view_mut_of, view_of};
use crate::call::{On, mpi};
use crate::fail::{Fail, Int, Res, argument, array, array_mut, count, get, number, put, text};
use crate::objects::{comm, ctype};

fn external(name: *const c_char) -> Res {
    match &*text(name)? {
        "external32" => Ok(()),
        other => Err(Fail::new(
            MPI_ERR_UNSUPPORTED_DATAREP,
            format!("data representation {other:?} (hint: external32)"),
        )),
    }
}

/// Where a raw pack begins; null and the memory of nothing are answered as for a message.
fn origin(at: Address) -> Address {
    match at.is_null() {
        true => osier::datatype::bottom(),
        false => at,
    }
}

macro_rules! packs {
    ($(fn $name:ident, $large:ident<$N:ident>($($front:ident: $f:ty),*; $($back:ident: $b:ty),*): $P:ty, $pack:ident, $on:expr, $check:expr;)*) => {$(
        mpi! {
            fn $name, $large<$N>(
                $($front: $f,)* inbuf: Address, n: $N, ty: Handle, outbuf: *mut u8, size: $P,
                at: *mut $P $(, $back: $b)*
            ) on $on; {
                $check;
                let (n, layout) = (count(n)?, ctype(ty)?.committed()?);
                view_of(inbuf, n, layout)?;
                let mut position = number(get(at)?)?;
                let out = array_mut(outbuf, number(size)?)?;
                // SAFETY: C's contract for what is packed.
                unsafe { layout.$pack(origin(inbuf), n, out, &mut position) }?;
                put(at, Int::narrow(position as i64))?;
            }
        }
    )*};
}

macro_rules! unpacks {
    ($(fn $name:ident, $large:ident<$N:ident>($($front:ident: $f:ty),*; $($back:ident: $b:ty),*): $P:ty, $unpack:ident, $on:expr, $check:expr;)*) => {$(
        mpi! {
            fn $name, $large<$N>(
                $($front: $f,)* inbuf: *const u8, size: $P, at: *mut $P, outbuf: Address, n: $N,
                ty: Handle $(, $back: $b)*
            ) on $on; {
                $check;
                let (n, layout) = (count(n)?, ctype(ty)?.committed()?);
                view_mut_of(outbuf, n, layout)?;
                let mut position = number(get(at)?)?;
                let from = array(inbuf, number(size)?)?;
                // SAFETY: C's contract for what is unpacked to.
                unsafe { layout.$unpack(from, &mut position, origin(outbuf), n) }?;
                put(at, Int::narrow(position as i64))?;
            }
        }
    )*};
}

packs! {
    fn MPI_Pack, MPI_Pack_c<N>(; on: Handle): N, pack_at_raw, On::Comm(on), comm(on)?;
}

packs! {
    // Sizes and positions are addresses in the small form, counts in the large one.
    fn MPI_Pack_external, MPI_Pack_external_c<N>(name: *const c_char;): Aint, pack_external32_raw, On::Own, external(name)?;
}

unpacks! {
    fn MPI_Unpack, MPI_Unpack_c<N>(; on: Handle): N, unpack_at_raw, On::Comm(on), comm(on)?;
    fn MPI_Unpack_external, MPI_Unpack_external_c<N>(name: *const c_char;): Aint, unpack_external32_raw, On::Own, external(name)?;
}

mpi! {
    fn MPI_Pack_size, MPI_Pack_size_c<N>(n: N, ty: Handle, on: Handle, size: *mut N) on On::Comm(on); {
        comm(on)?;
        let bytes = ctype(ty)?.committed()?.pack_size(count(n)?)?;
        put(size, N::narrow(bytes as i64))?;
    }

    fn MPI_Pack_external_size, MPI_Pack_external_size_c<N>(name: *const c_char, n: N, ty: Handle, size: *mut Aint) on On::Own; {
        external(name)?;
        let bytes = ctype(ty)?.committed()?.external32_size(count(n)?)?;
        put(size, isize::try_from(bytes).map_err(|_| argument("a size that has no room"))?)?;
    }
}
