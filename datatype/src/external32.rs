//! The external32 representation: packed bytes that every machine reads alike.
//!
//! ```text
//! memory --layout--> packed bytes, 4 KiB at a time --signature--> external32
//! ```
//!
//! Big-endian, IEEE formats, nothing between the elements. The packed stream
//! has the elements of the signature in order, so conversion needs no layout.
//! A `long` has 4 bytes there and a wide character 2: what does not fit loses
//! its upper bytes, and a signed integer is sign-extended when it comes back.
//! `long double` is binary128.
//!
//! # Sources
//! MPI 5.0, section 14.5.2, with the table of sizes; section 5.3 (canonical
//! pack and unpack).

use crate::basic::X87;
use crate::cursor::{Cursor, typed};
use crate::{Basic, BasicKind, Datatype, Layout, TypeError, x87};
use std::ops::Range;

impl Layout {
    /// Bytes of `count` instances in external32 (`MPI_Pack_external_size`).
    ///
    /// # Errors
    /// More than `isize::MAX` bytes.
    pub fn external32_size(&self, count: usize) -> Result<usize, TypeError> {
        self.pack_size(count)?;
        let one = usize::try_from(self.signature().external32_bytes());
        let all = one.ok().and_then(|bytes| bytes.checked_mul(count));
        all.filter(|&bytes| bytes <= isize::MAX as usize)
            .ok_or(TypeError::Count {
                count,
                size: self.size(),
            })
    }

    /// Packs `count` instances, the first with its origin at element `origin`
    /// of `src`, in external32 to byte `position` of `dst` on, and moves the
    /// position behind them (`MPI_Pack_external`).
    ///
    /// # Errors
    /// Memory or room is too small; the position stays then.
    ///
    /// ```
    /// use osier_datatype::Layout;
    ///
    /// let (mut packed, mut position) = ([0; 8], 0);
    /// Layout::of::<i32>().pack_external32(&[1, -2], 0, 2, &mut packed, &mut position)?;
    /// assert_eq!(packed, [0, 0, 0, 1, 0xff, 0xff, 0xff, 0xfe]);
    /// # Ok::<(), osier_datatype::TypeError>(())
    /// ```
    pub fn pack_external32<T: Datatype>(
        &self,
        src: &[T],
        origin: usize,
        count: usize,
        dst: &mut [u8],
        position: &mut usize,
    ) -> Result<(), TypeError> {
        let origin = typed::<T>(origin)?;
        self.check_span(size_of_val(src), origin, count)?;
        let at = src.as_ptr().cast::<u8>().wrapping_add(origin);
        // SAFETY: all bytes that the layout touches lie in the slice, whose
        // elements have no padding.
        unsafe { self.pack_external32_raw(at, count, dst, position) }
    }

    /// [`Layout::pack_external32`] from memory around an address.
    ///
    /// # Safety
    /// The payload bytes of `count` instances at `origin` are valid for reads
    /// and do not overlap `dst`.
    ///
    /// # Errors
    /// The room is too small.
    pub unsafe fn pack_external32_raw(
        &self,
        origin: *const u8,
        count: usize,
        dst: &mut [u8],
        position: &mut usize,
    ) -> Result<(), TypeError> {
        let needed = self.external32_size(count)?;
        let cursor = Cursor::new("pack", count, needed, dst.len(), *position)?;
        let mut external = &mut dst[cursor.range()];
        let mut native = [0; BATCH];
        batches(self, count, |range, pieces| {
            let to = native.as_mut_ptr();
            // SAFETY: the caller's contract for the memory; the range is at most
            // as long as the buffer.
            unsafe { self.pack_raw(origin, count, range, to) };
            let mut from = &native[..];
            for piece in pieces {
                let (now, rest) = from.split_at(piece.native);
                // A plain borrow would not outlive the call.
                let (to, behind) = std::mem::take(&mut external).split_at_mut(piece.external);
                piece.conversion.encode(now, to);
                (from, external) = (rest, behind);
            }
        });
        *position = cursor.end();
        Ok(())
    }

    /// Unpacks `count` instances from external32 at byte `position` of `src`
    /// on, the first with its origin at element `origin` of `dst`, and moves
    /// the position behind them (`MPI_Unpack_external`). Gaps stay untouched.
    ///
    /// # Errors
    /// Memory or packed bytes are too few, or the layout touches a byte twice;
    /// nothing is written then and the position stays.
    pub fn unpack_external32<T: Datatype>(
        &self,
        src: &[u8],
        position: &mut usize,
        dst: &mut [T],
        origin: usize,
        count: usize,
    ) -> Result<(), TypeError> {
        let origin = typed::<T>(origin)?;
        self.check_span(size_of_val(dst), origin, count)?;
        let at = dst.as_mut_ptr().cast::<u8>().wrapping_add(origin);
        // SAFETY: all bytes that the layout touches lie in the slice, whose
        // elements may have any bytes and no padding.
        unsafe { self.unpack_external32_raw(src, position, at, count) }
    }

    /// [`Layout::unpack_external32`] to memory around an address.
    ///
    /// # Safety
    /// The payload bytes of `count` instances at `origin` are valid for writes
    /// and do not overlap `src`.
    ///
    /// # Errors
    /// Packed bytes are too few, or the layout touches a byte twice.
    pub unsafe fn unpack_external32_raw(
        &self,
        src: &[u8],
        position: &mut usize,
        origin: *mut u8,
        count: usize,
    ) -> Result<(), TypeError> {
        self.check_receive(count)?;
        let needed = self.external32_size(count)?;
        let cursor = Cursor::new("unpack", count, needed, src.len(), *position)?;
        let mut external = &src[cursor.range()];
        let mut native = [0; BATCH];
        batches(self, count, |range, pieces| {
            let mut to = &mut native[..];
            for piece in pieces {
                let (now, rest) = to.split_at_mut(piece.native);
                let (from, behind) = external.split_at(piece.external);
                piece.conversion.decode(from, now);
                (to, external) = (rest, behind);
            }
            // SAFETY: the caller's contract for the memory; the buffer holds as
            // many bytes as the range is long.
            unsafe { self.unpack_raw(origin, count, range, native.as_ptr()) };
        });
        *position = cursor.end();
        Ok(())
    }
}

/// Packed bytes that are converted at a time.
const BATCH: usize = 4096;

/// A run of equal elements within a batch.
struct Piece {
    conversion: Conversion,
    /// Bytes here.
    native: usize,
    /// Bytes in external32.
    external: usize,
}

impl Piece {
    fn new(basic: Basic, elements: usize) -> Piece {
        Piece {
            conversion: Conversion::of(basic),
            native: elements * basic.size(),
            external: elements * basic.external32_size(),
        }
    }
}

/// Cuts the packed stream of `count` instances into ranges of whole elements,
/// each of at most [`BATCH`] bytes. Small instances share their pieces, so that
/// the signature is walked once.
fn batches(layout: &Layout, count: usize, mut each: impl FnMut(Range<usize>, &[Piece])) {
    let size = layout.size();
    let mut pieces = Vec::new();
    let (mut start, mut rest) = (0, count);
    let together = BATCH.checked_div(size).unwrap_or(0).min(count);
    if together > 1 {
        let signature = layout.signature().repeat(together as u64);
        let runs = signature.exact_runs();
        pieces.extend(runs.map(|(basic, n)| Piece::new(basic, n as usize)));
        while rest >= together {
            each(start..start + together * size, &pieces);
            start += together * size;
            rest -= together;
        }
    }
    let signature = layout.signature().repeat(rest as u64);
    let mut runs = signature.exact_runs();
    let mut run = runs.next();
    loop {
        pieces.clear();
        let mut bytes = 0;
        while let Some((basic, left)) = &mut run {
            let fit = ((BATCH - bytes) / basic.size()) as u64;
            let now = fit.min(*left) as usize;
            if now == 0 {
                break;
            }
            pieces.push(Piece::new(*basic, now));
            bytes += now * basic.size();
            *left -= now as u64;
            if *left == 0 {
                run = runs.next();
            }
        }
        if bytes == 0 {
            return;
        }
        each(start..start + bytes, &pieces);
        start += bytes;
    }
}

/// How one number of a predefined type is converted; a complex has two.
#[derive(Clone, Copy)]
enum Conversion {
    Bytes,
    Swap(usize),
    /// From so many bytes here to so many there.
    Resize {
        native: usize,
        external: usize,
        signed: bool,
    },
    LongDouble,
}

impl Conversion {
    fn of(basic: Basic) -> Conversion {
        let parts = if basic.kind() == BasicKind::Complex {
            2
        } else {
            1
        };
        let (native, external) = (basic.size(), basic.external32_size());
        match basic.representation() {
            Basic::LongDouble | Basic::LongDoubleComplex if X87 => Conversion::LongDouble,
            _ if native != external => Conversion::Resize {
                native,
                external,
                signed: basic.kind() == BasicKind::Signed,
            },
            _ if native == parts => Conversion::Bytes,
            _ => Conversion::Swap(native / parts),
        }
    }

    /// Elements of one type to external32.
    fn encode(self, native: &[u8], external: &mut [u8]) {
        match self {
            Conversion::Bytes => external.copy_from_slice(native),
            Conversion::Swap(width) => swap(width, native, external),
            Conversion::Resize {
                native: n,
                external: e,
                ..
            } => {
                for (from, to) in native.chunks_exact(n).zip(external.chunks_exact_mut(e)) {
                    let value = widen(from, cfg!(target_endian = "big"), false);
                    to.copy_from_slice(&value.to_be_bytes()[16 - e..]);
                }
            }
            Conversion::LongDouble => {
                for (from, to) in native.as_chunks().0.iter().zip(external.as_chunks_mut().0) {
                    // The upper six bytes are padding.
                    *to = x87::to_binary128(u128::from_le_bytes(*from)).to_be_bytes();
                }
            }
        }
    }

    /// Elements of one type from external32.
    fn decode(self, external: &[u8], native: &mut [u8]) {
        match self {
            Conversion::Bytes => native.copy_from_slice(external),
            Conversion::Swap(width) => swap(width, external, native),
            Conversion::Resize {
                native: n,
                external: e,
                signed,
            } => {
                for (from, to) in external.chunks_exact(e).zip(native.chunks_exact_mut(n)) {
                    let value = widen(from, true, signed);
                    if cfg!(target_endian = "big") {
                        to.copy_from_slice(&value.to_be_bytes()[16 - n..]);
                    } else {
                        to.copy_from_slice(&value.to_le_bytes()[..n]);
                    }
                }
            }
            Conversion::LongDouble => {
                for (from, to) in external.as_chunks().0.iter().zip(native.as_chunks_mut().0) {
                    *to = x87::from_binary128(u128::from_be_bytes(*from)).to_le_bytes();
                }
            }
        }
    }
}

/// An integer of at most 16 bytes.
fn widen(bytes: &[u8], big_endian: bool, signed: bool) -> u128 {
    let first = if big_endian {
        bytes.first()
    } else {
        bytes.last()
    };
    let negative = signed && first.is_some_and(|byte| byte & 0x80 != 0);
    let start = if negative { u128::MAX } else { 0 };
    let push = |value, &byte: &u8| value << 8 | u128::from(byte);
    if big_endian {
        bytes.iter().fold(start, push)
    } else {
        bytes.iter().rev().fold(start, push)
    }
}

/// Numbers of one width between this machine's order of bytes and big-endian.
fn swap(width: usize, from: &[u8], to: &mut [u8]) {
    macro_rules! words {
        ($word:ty) => {
            for (from, to) in from.as_chunks().0.iter().zip(to.as_chunks_mut().0) {
                *to = <$word>::from_ne_bytes(*from).to_be_bytes();
            }
        };
    }
    match width {
        2 => words!(u16),
        4 => words!(u32),
        8 => words!(u64),
        16 => words!(u128),
        _ => unreachable!("no number has {width} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_comes_back() {
        for &basic in Basic::ALL {
            let mut native: Vec<u8> = (0..2 * basic.size()).map(|i| (i * 37 + 11) as u8).collect();
            match (basic.kind(), basic) {
                // A small negative number, so that four bytes hold it.
                (_, Basic::Long) => native = [-5i64, 7].map(i64::to_ne_bytes).concat(),
                (_, Basic::UnsignedLong) => native = [5u64, 7].map(u64::to_ne_bytes).concat(),
                (_, Basic::Wchar) => native = [0xffffu32, 0x20ac].map(u32::to_ne_bytes).concat(),
                _ if matches!(Conversion::of(basic), Conversion::LongDouble) => {
                    for number in native.chunks_exact_mut(16) {
                        number[7] |= 0x80;
                        number[10..].fill(0);
                    }
                }
                _ => {}
            }
            let mut external = vec![0; 2 * basic.external32_size()];
            Conversion::of(basic).encode(&native, &mut external);
            let mut back = vec![0xee; native.len()];
            Conversion::of(basic).decode(&external, &mut back);
            assert_eq!(back, native, "{basic}");
        }
    }
}
