//! Packing and unpacking, of memory of the host and of devices.

use crate::abi::*;
use crate::buffers::{Address, view_mut_of, view_of};
use crate::call::{On, mpi};
use crate::fail::{Fail, Int, Res, argument, array, array_mut, count, get, number, put, text};
use crate::held;
use crate::objects::{comm, ctype};
use crate::on_host::{OnHost, copy, is_of_device, packed, packed_mut};
use osier::{Layout, View, ViewMut};

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

/// Packs from or to memory of a device.
fn pack_far(view: &View<'_>, _: (Address, usize, &Layout), out: &mut Packed) -> Res {
    let bytes = view.bytes();
    copy(view, &mut packed_mut(out.take(bytes)?, bytes)?)
}

/// As [`pack_far`], to the form that all machines know, which the host makes.
fn pack_external_far(
    _: &View<'_>,
    (at, n, layout): (Address, usize, &Layout),
    out: &mut Packed,
) -> Res {
    let bytes = layout.external32_size(n)?;
    let to = out.take(bytes)?;
    let from = OnHost::read(at, n, layout)?;
    let mut made = vec![0; bytes];
    // SAFETY: C's contract for what is packed, or a copy of it.
    unsafe { layout.pack_external32_raw(origin(from.at()), n, &mut made, &mut 0) }?;
    copy(
        &packed(made.as_mut_ptr(), bytes)?,
        &mut packed_mut(to, bytes)?,
    )
}

/// Unpacks from or to memory of a device.
fn unpack_far(view: &mut ViewMut<'_>, _: (Address, usize, &Layout), from: &mut Packed) -> Res {
    let bytes = view.bytes();
    copy(&packed(from.take(bytes)?, bytes)?, view)
}

/// As [`unpack_far`], from the form that all machines know.
fn unpack_external_far(
    _: &mut ViewMut<'_>,
    (at, n, layout): (Address, usize, &Layout),
    from: &mut Packed,
) -> Res {
    let bytes = layout.external32_size(n)?;
    let mut given = vec![0; bytes];
    copy(
        &packed(from.take(bytes)?, bytes)?,
        &mut packed_mut(given.as_mut_ptr(), bytes)?,
    )?;
    let to = OnHost::write(at, n, layout)?;
    // SAFETY: C's contract for what is unpacked to, or a copy of it.
    unsafe { layout.unpack_external32_raw(&given, &mut 0, origin(to.at()), n) }?;
    to.give_back(at, n, layout)
}

/// A buffer of packed bytes, and how far it is in use.
struct Packed {
    at: Address,
    size: usize,
    position: usize,
}

impl Packed {
    fn is_far(&self) -> bool {
        is_of_device(self.at)
    }

    /// The next bytes.
    fn take(&mut self, bytes: usize) -> Res<Address> {
        let left = self.size.checked_sub(self.position);
        if left.is_none_or(|left| left < bytes) {
            return Err(argument(format!(
                "{bytes} packed bytes at position {} of a buffer of {}",
                self.position, self.size
            )));
        }
        let at = self.at.wrapping_add(self.position);
        self.position += bytes;
        Ok(at)
    }
}

macro_rules! packs {
    ($(fn $name:ident, $large:ident<$N:ident>($($front:ident: $f:ty),*; $($back:ident: $b:ty),*): $P:ty, $pack:ident, $far:ident, $on:expr, $check:expr;)*) => {$(
        mpi! {
            fn $name, $large<$N>(
                $($front: $f,)* inbuf: Address, n: $N, ty: Handle, outbuf: *mut u8, size: $P,
                at: *mut $P $(, $back: $b)*
            ) on $on; {
                $check;
                let (n, layout) = (count(n)?, ctype(ty)?.committed()?);
                let view = view_of(inbuf, n, layout)?;
                held::reads(&view)?;
                let (position, size) = (number(get(at)?)?, number(size)?);
                let mut out = Packed { at: outbuf, size, position };
                if view.is_on_device() || out.is_far() {
                    $far(&view, (inbuf, n, layout), &mut out)?;
                } else {
                    let bytes = array_mut(outbuf, size)?;
                    // SAFETY: C's contract for what is packed.
                    unsafe { layout.$pack(origin(inbuf), n, bytes, &mut out.position) }?;
                }
                put(at, Int::narrow(out.position as i64))?;
            }
        }
    )*};
}

macro_rules! unpacks {
    ($(fn $name:ident, $large:ident<$N:ident>($($front:ident: $f:ty),*; $($back:ident: $b:ty),*): $P:ty, $unpack:ident, $far:ident, $on:expr, $check:expr;)*) => {$(
        mpi! {
            fn $name, $large<$N>(
                $($front: $f,)* inbuf: *const u8, size: $P, at: *mut $P, outbuf: Address, n: $N,
                ty: Handle $(, $back: $b)*
            ) on $on; {
                $check;
                let (n, layout) = (count(n)?, ctype(ty)?.committed()?);
                let mut view = view_mut_of(outbuf, n, layout)?;
                held::writes(&view)?;
                let (position, size) = (number(get(at)?)?, number(size)?);
                let mut from = Packed { at: inbuf.cast_mut(), size, position };
                if view.is_on_device() || from.is_far() {
                    $far(&mut view, (outbuf, n, layout), &mut from)?;
                } else {
                    let bytes = array(inbuf, size)?;
                    // SAFETY: C's contract for what is unpacked to.
                    unsafe { layout.$unpack(bytes, &mut from.position, origin(outbuf), n) }?;
                }
                put(at, Int::narrow(from.position as i64))?;
            }
        }
    )*};
}

packs! {
    fn MPI_Pack, MPI_Pack_c<N>(; on: Handle): N, pack_at_raw, pack_far, On::Comm(on), comm(on)?;
}

packs! {
    // Sizes and positions are addresses in the small form, counts in the large one.
    fn MPI_Pack_external, MPI_Pack_external_c<N>(name: *const c_char;): Aint, pack_external32_raw, pack_external_far, On::Own, external(name)?;
}

unpacks! {
    fn MPI_Unpack, MPI_Unpack_c<N>(; on: Handle): N, unpack_at_raw, unpack_far, On::Comm(on), comm(on)?;
    fn MPI_Unpack_external, MPI_Unpack_external_c<N>(name: *const c_char;): Aint, unpack_external32_raw, unpack_external_far, On::Own, external(name)?;
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
