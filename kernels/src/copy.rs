//! Asynchronous copies: runs, rectangles, boxes, and batches of runs.
//!
//! All are queued on a stream behind both buffers' order and return the event
//! after which the destination's bytes are valid.

use crate::driver::abi;
use crate::error::{DeviceError, Result};
use crate::memory::Memory;
use crate::slice::{DeviceSlice, Ordered};
use crate::stream::{Event, Stream};
use osier_datatype::Datatype;
use std::sync::Arc;

/// Copies all elements of `from` to `to`.
///
/// # Errors
/// Sizes differ, or the driver refuses.
pub fn copy<T: Datatype>(
    stream: &Stream,
    from: &Ordered<DeviceSlice<T>>,
    to: &Ordered<DeviceSlice<T>>,
) -> Result<Event> {
    let (src, dst) = (&from.buffer, &to.buffer);
    if src.bytes() != dst.bytes() {
        return Err(DeviceError::Size {
            what: "copy",
            from: src.bytes(),
            to: dst.bytes(),
        });
    }
    queued(stream, from, to, || {
        if src.is_empty() {
            return Ok(());
        }
        let driver = stream.context().enter()?;
        // SAFETY: both slices lie in allocations that live until the event that
        // `queued` notes has passed; the stream waits for both.
        unsafe { driver.cuMemcpyAsync(dst.address(), src.address(), src.bytes(), stream.raw()) }
    })
}

/// Rows of equal length, `pitch` bytes apart, in planes of `rows` rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pitch {
    /// Bytes from row to row.
    pub row_bytes: usize,
    /// Rows from plane to plane.
    pub rows: usize,
}

/// A box of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Bytes of a row.
    pub width: usize,
    /// Rows of a plane.
    pub height: usize,
    /// Planes.
    pub depth: usize,
}

impl Extent {
    fn reach(&self, pitch: Pitch) -> Option<usize> {
        if self.width == 0 || self.height == 0 || self.depth == 0 {
            return Some(0);
        }
        let rows = pitch
            .rows
            .checked_mul(self.depth - 1)?
            .checked_add(self.height - 1)?;
        pitch.row_bytes.checked_mul(rows)?.checked_add(self.width)
    }

    fn check(&self, pitch: Pitch, bytes: usize) -> Result<()> {
        let fits = self.reach(pitch).is_some_and(|reach| reach <= bytes);
        // The driver takes no overlapping rows.
        let apart = (self.height <= 1 && self.depth <= 1)
            || (pitch.row_bytes >= self.width && (self.depth <= 1 || pitch.rows >= self.height));
        if fits && apart {
            return Ok(());
        }
        Err(DeviceError::Bounds {
            range: 0..self.reach(pitch).map_or(i128::MAX, |reach| reach as i128),
            bytes,
        })
    }
}

/// Shorter copies to a device go by the channel of kernels, not by a copy engine: on an H200
/// with driver 580 24 KiB do, 28 KiB do not (two processes in turn: 149 and 11 us; as two rows
/// 10 us, of any length).
pub(crate) const INLINED_BYTES: u64 = 28 << 10;

/// A run of bytes as rows that lie one behind the other, the fewest, at least two if it has two
/// bytes.
pub(crate) fn in_rows(from: u64, to: u64, bytes: usize) -> abi::Copy2d {
    let mut candidates = (2..).take_while(|rows| rows * rows <= bytes);
    let least = candidates.find(|&rows| bytes.is_multiple_of(rows));
    let height = least.unwrap_or(bytes.max(1));
    let width = bytes / height;
    plane((from, width), (to, width), (width, height))
}

/// A rectangle of bytes between addresses with pitches.
fn plane(from: (u64, usize), to: (u64, usize), (width, height): (usize, usize)) -> abi::Copy2d {
    abi::Copy2d {
        src_x: 0,
        src_y: 0,
        src_kind: abi::MEMORY_UNIFIED,
        src_host: std::ptr::null(),
        src: from.0,
        src_array: std::ptr::null_mut(),
        src_pitch: from.1,
        dst_x: 0,
        dst_y: 0,
        dst_kind: abi::MEMORY_UNIFIED,
        dst_host: std::ptr::null_mut(),
        dst: to.0,
        dst_array: std::ptr::null_mut(),
        dst_pitch: to.1,
        width,
        height,
    }
}

/// Copies a box of bytes, such as a face of a grid; a rectangle if it has one
/// plane.
///
/// # Errors
/// The box lies outside of a buffer, rows overlap, or the driver refuses.
pub fn copy_box<T: Datatype>(
    stream: &Stream,
    extent: Extent,
    from: (&Ordered<DeviceSlice<T>>, Pitch),
    to: (&Ordered<DeviceSlice<T>>, Pitch),
) -> Result<Event> {
    let (src, dst) = (&from.0.buffer, &to.0.buffer);
    extent.check(from.1, src.bytes())?;
    extent.check(to.1, dst.bytes())?;
    queued(stream, from.0, to.0, || {
        if extent.reach(from.1) == Some(0) {
            return Ok(());
        }
        let driver = stream.context().enter()?;
        if extent.depth == 1 {
            let copy = plane(
                (src.address(), from.1.row_bytes),
                (dst.address(), to.1.row_bytes),
                (extent.width, extent.height),
            );
            // SAFETY: as in `copy`; the box was checked against both slices.
            return unsafe { driver.cuMemcpy2DAsync_v2(&copy, stream.raw()) };
        }
        let copy = abi::Copy3d {
            src_x: 0,
            src_y: 0,
            src_z: 0,
            src_lod: 0,
            src_kind: abi::MEMORY_UNIFIED,
            src_host: std::ptr::null(),
            src: src.address(),
            src_array: std::ptr::null_mut(),
            reserved0: std::ptr::null_mut(),
            src_pitch: from.1.row_bytes,
            src_height: from.1.rows,
            dst_x: 0,
            dst_y: 0,
            dst_z: 0,
            dst_lod: 0,
            dst_kind: abi::MEMORY_UNIFIED,
            dst_host: std::ptr::null_mut(),
            dst: dst.address(),
            dst_array: std::ptr::null_mut(),
            reserved1: std::ptr::null_mut(),
            dst_pitch: to.1.row_bytes,
            dst_height: to.1.rows,
            width: extent.width,
            height: extent.height,
            depth: extent.depth,
        };
        // SAFETY: as above.
        unsafe { driver.cuMemcpy3DAsync_v2(&copy, stream.raw()) }
    })
}

/// Where from, where to.
pub type Pair<T> = (Ordered<DeviceSlice<T>>, Ordered<DeviceSlice<T>>);

/// Copies many runs, in no order among them: in one call where the driver has
/// it (12.8 and newer), else one by one.
///
/// # Errors
/// Sizes of a pair differ, or the driver refuses.
pub fn copy_batch<T: Datatype>(stream: &Stream, pairs: &[Pair<T>]) -> Result<Event> {
    for (from, to) in pairs {
        if from.buffer.bytes() != to.buffer.bytes() {
            return Err(DeviceError::Size {
                what: "copy",
                from: from.buffer.bytes(),
                to: to.buffer.bytes(),
            });
        }
    }
    let driver = stream.context().enter()?;
    if !driver.has("cuMemcpyBatchAsync") {
        for (from, to) in pairs {
            copy(stream, from, to)?;
        }
        return stream.record();
    }
    let filled = || pairs.iter().filter(|(from, _)| !from.buffer.is_empty());
    let mut src: Vec<u64> = filled().map(|(from, _)| from.buffer.address()).collect();
    let mut dst: Vec<u64> = filled().map(|(_, to)| to.buffer.address()).collect();
    let mut bytes: Vec<usize> = filled().map(|(from, _)| from.buffer.bytes()).collect();
    for (from, to) in pairs {
        from.order(stream)?;
        to.order(stream)?;
    }
    if !src.is_empty() {
        let nowhere = abi::Location { kind: 0, id: 0 };
        let mut attributes = abi::BatchAttributes {
            order: 1,
            src_hint: nowhere,
            dst_hint: nowhere,
            flags: 0,
        };
        let (mut first, mut failed) = (0usize, 0usize);
        // SAFETY: three arrays of one length, one attribute for all from the
        // first on; memory as in `copy`.
        unsafe {
            driver.cuMemcpyBatchAsync(
                dst.as_mut_ptr(),
                src.as_mut_ptr(),
                bytes.as_mut_ptr(),
                src.len(),
                &mut attributes,
                &mut first,
                1,
                &mut failed,
                stream.raw(),
            )
        }?;
    }
    let both = |(from, to): &'_ Pair<T>| [from.buffer.memory().clone(), to.buffer.memory().clone()];
    let touched: Vec<Arc<Memory>> = pairs.iter().flat_map(both).collect();
    note(stream, &touched)
}

/// Sets all bytes.
///
/// # Errors
/// The memory is of another device, or the driver refuses.
pub fn fill<T: Datatype>(stream: &Stream, to: &Ordered<DeviceSlice<T>>, byte: u8) -> Result<Event> {
    to.buffer.memory().check_stream("fill", stream)?;
    queued(stream, to, to, || {
        if to.buffer.is_empty() {
            return Ok(());
        }
        let driver = stream.context().enter()?;
        let (at, bytes) = (to.buffer.address(), to.buffer.bytes());
        // SAFETY: as in `copy`.
        unsafe { driver.cuMemsetD8Async(at, byte, bytes, stream.raw()) }
    })
}

/// Queues work on two buffers behind their order, and notes its end.
fn queued<T: Datatype>(
    stream: &Stream,
    from: &Ordered<DeviceSlice<T>>,
    to: &Ordered<DeviceSlice<T>>,
    work: impl FnOnce() -> Result<()>,
) -> Result<Event> {
    from.order(stream)?;
    to.order(stream)?;
    from.buffer.memory().check_lives()?;
    to.buffer.memory().check_lives()?;
    work()?;
    note(stream, [from.buffer.memory(), to.buffer.memory()])
}

/// An event behind all work of a stream, noted with the memory it touches; a
/// capture keeps the memory instead.
pub(crate) fn note<'a>(
    stream: &Stream,
    touched: impl IntoIterator<Item = &'a Arc<Memory>>,
) -> Result<Event> {
    note_behind(stream, stream.record()?, touched)
}

/// Notes an event behind all work of a stream with the memory that the work touches.
pub(crate) fn note_behind<'a>(
    stream: &Stream,
    event: Event,
    touched: impl IntoIterator<Item = &'a Arc<Memory>>,
) -> Result<Event> {
    match stream.capture()? {
        Some(id) => stream.context().captures().touch(stream, id, touched)?,
        None => touched
            .into_iter()
            .for_each(|memory| memory.used_on(stream, &event)),
    }
    Ok(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_the_run() {
        for bytes in 0..2000 {
            let rows = in_rows(1 << 40, 1 << 41, bytes);
            assert_eq!((rows.src, rows.dst), (1 << 40, 1 << 41));
            assert_eq!((rows.src_pitch, rows.dst_pitch), (rows.width, rows.width));
            assert_eq!(rows.width * rows.height, bytes);
            assert!(rows.height >= bytes.min(2), "{bytes}");
        }
    }

    #[test]
    fn boxes_stay_inside() {
        let extent = Extent {
            width: 10,
            height: 4,
            depth: 2,
        };
        let pitch = Pitch {
            row_bytes: 16,
            rows: 5,
        };
        assert_eq!(extent.reach(pitch), Some(16 * 8 + 10));
        assert!(extent.check(pitch, 138).is_ok());
        assert!(extent.check(pitch, 137).is_err());
        let tight = Pitch {
            row_bytes: 8,
            rows: 5,
        };
        assert!(extent.check(tight, 1000).is_err());
        let huge = Pitch {
            row_bytes: usize::MAX,
            rows: 5,
        };
        assert!(extent.check(huge, usize::MAX).is_err());
    }
}
