//! How a buffer is cut into partitions, and how one end's partitions lie in
//! the memory of the other.
//!
//! Both ends have the same packed stream. A sender's partition is a range of
//! it, which may begin and end anywhere in the receiver's instances.

use osier_datatype::{Basic, Datatype, Layout, Type};
use osier_engine::device::Use;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::view::on_device::handed_over;
use osier_engine::view::{RawView, require_dense};
use osier_kernels::{After, DeviceSlice, DeviceView, Ordered};
use std::ops::Range;

/// The cut of a buffer into partitions: their number, and the datatype of each.
/// A plain number means equal runs of the buffer's elements.
///
/// Both ends of a transfer cut the same stream of packed bytes; neither number nor
/// datatype need be the same. [`Partitioned`](super::Partitioned) says when a
/// partition of the receiver has arrived.
///
/// ```
/// use osier::{Datatype, Type};
/// use osier::partitioned::Partitions;
///
/// // Eight columns of an 8 x 8 matrix, one partition each.
/// let column = Type::vector(8, 1, 8, &f64::datatype())?;
/// let column = Type::resized(0, 8, &column)?.commit()?;
/// let columns = Partitions::of(8, &column, 1);
/// # osier::testing::ranks(2, |comm| {
/// let peer = 1 - comm.rank();
/// let mut send = comm.psend_init(vec![1.0f64; 64], columns.clone(), peer, 0)?;
/// let mut recv = comm.precv_init(vec![0.0f64; 64], 2, peer, 0)?; // rows of the transpose
/// osier::persistent::start_all([&mut send as &mut dyn osier::persistent::Startable, &mut recv])?;
/// for at in 0..8 {
///     send.write_from(at, &[at as f64; 8])?;
///     send.pready(at)?;
/// }
/// recv.wait()?;
/// send.wait()?;
/// assert_eq!(recv.buffer()?[8..16], [1.0; 8]);
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// # Ok::<(), osier::datatype::TypeError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Partitions {
    number: usize,
    each: Option<Each>,
}

#[derive(Clone, Debug)]
struct Each {
    layout: Layout,
    count: usize,
    /// Element of the buffer.
    origin: usize,
}

impl Partitions {
    /// `number` equal runs of the buffer's elements; the number must divide their count.
    pub fn equal(number: usize) -> Self {
        Self { number, each: None }
    }

    /// `number` partitions of `count` instances of `layout` each. As in MPI a
    /// partition begins an extent behind the last instance of the one before it.
    pub fn of(number: usize, layout: &Layout, count: usize) -> Self {
        let each = Each {
            layout: layout.clone(),
            count,
            origin: 0,
        };
        Self {
            number,
            each: Some(each),
        }
    }

    /// Puts the origin of the first instance at element `origin` of the buffer.
    /// Changes nothing of equal runs, which take the whole buffer.
    #[must_use]
    pub fn at(mut self, origin: usize) -> Self {
        if let Some(each) = &mut self.each {
            each.origin = origin;
        }
        self
    }
}

impl From<usize> for Partitions {
    fn from(number: usize) -> Self {
        Self::equal(number)
    }
}

/// Partitions of a buffer of known length.
pub struct Shape {
    pub number: usize,
    /// Elements of the buffer.
    pub len: usize,
    layout: Layout,
    /// Instances of a partition.
    count: usize,
    /// Byte of the buffer at which the first instance has its origin.
    origin: usize,
    runs: Option<Runs>,
    /// No byte belongs to two partitions.
    pub disjoint: bool,
}

/// Partitions that are runs of the buffer's elements.
struct Runs {
    first: isize,
    step: isize,
    each: usize,
}

fn no_sense(message: String) -> Error {
    Error::new(ErrorKind::Argument, message)
}

impl Shape {
    /// Partitions of `len` elements.
    pub fn new<T: Datatype>(partitions: Partitions, len: usize) -> Result<Self> {
        let number = partitions.number;
        let Some(each) = partitions.each else {
            if number == 0 || !len.is_multiple_of(number) {
                return Err(no_sense(format!(
                    "{len} elements in {number} partitions (hint: all have the same number)"
                )));
            }
            let count = len / number;
            return Ok(Self {
                number,
                len,
                layout: T::layout(),
                count,
                origin: 0,
                runs: Some(Runs {
                    first: 0,
                    step: count as isize,
                    each: count,
                }),
                disjoint: true,
            });
        };
        require_dense::<T>()?;
        let Each {
            layout,
            count,
            origin,
        } = each;
        let all = number.checked_mul(count).filter(|_| number != 0);
        let all = all.ok_or_else(|| {
            no_sense(format!(
                "{number} partitions of {count} instances (hint: at least one partition)"
            ))
        })?;
        let element = size_of::<T>();
        let origin = origin.saturating_mul(element);
        layout.check_span(len * element, origin, all)?;
        layout.packed_bytes(all).ok_or_else(|| {
            no_sense(format!(
                "{all} instances of {} bytes exceed the address space",
                layout.size()
            ))
        })?;
        Ok(Self {
            runs: Self::runs(&layout, count, origin as isize, element as isize),
            disjoint: layout.check_receive(all).is_ok(),
            number,
            len,
            layout,
            count,
            origin,
        })
    }

    fn runs(layout: &Layout, count: usize, origin: isize, element: isize) -> Option<Runs> {
        let bytes = layout.packed_bytes(count)? as isize;
        let first = origin.checked_add(layout.contiguous_at(count)?)?;
        let step = layout.extent().checked_mul(isize::try_from(count).ok()?)?;
        let whole = |n: isize| n.checked_rem(element) == Some(0);
        (whole(first) && whole(step) && whole(bytes)).then(|| Runs {
            first: first / element,
            step: step / element,
            each: (bytes / element) as usize,
        })
    }

    /// As [`Shape::new`], of memory that is received into.
    pub fn receive<T: Datatype>(partitions: Partitions, len: usize) -> Result<Self> {
        let shape = Self::new::<T>(partitions, len)?;
        shape.layout.check_receive(shape.number * shape.count)?;
        Ok(shape)
    }

    /// Packed bytes of a partition.
    pub fn bytes(&self) -> usize {
        self.layout.size() * self.count
    }

    /// Elements of a partition that is a run of them.
    pub fn elements(&self, at: usize) -> Option<Range<usize>> {
        let runs = self.runs.as_ref()?;
        if runs.each == 0 {
            return Some(0..0);
        }
        let from = (runs.first + runs.step * at as isize) as usize;
        Some(from..from + runs.each)
    }

    /// Where a partition lies.
    pub(super) fn spot(&self, at: usize) -> Spot<'_> {
        self.instances(at * self.count, self.count)
    }

    /// Instances of all partitions, by number.
    fn instances(&self, first: usize, count: usize) -> Spot<'_> {
        let from = self.layout.extent().wrapping_mul(first as isize);
        Spot::Instances {
            offset: from.wrapping_add_unsigned(self.origin),
            layout: &self.layout,
            count,
        }
    }

    /// Where partitions of another end lie, `number` of `bytes` packed bytes
    /// each, in all no more than there are here.
    pub fn pieces(&self, number: usize, bytes: usize) -> Result<Pieces> {
        let all = self.number * self.count;
        if bytes == 0 || bytes.is_multiple_of(self.layout.size()) {
            return Ok(Pieces::Instances {
                each: bytes.checked_div(self.layout.size()).unwrap_or(0),
            });
        }
        if let Some(first) = self.layout.contiguous_at(all) {
            return Ok(Pieces::Run { first, bytes });
        }
        // They end within instances: each gets a layout of its own, of bytes.
        let mut layouts = Vec::with_capacity(number);
        let (mut blocks, mut room) = (Vec::new(), bytes);
        for (mut at, mut length) in self.layout.blocks(all) {
            while length != 0 {
                let part = length.min(room);
                blocks.push((part, at));
                at += part as isize;
                length -= part;
                room -= part;
                if room == 0 {
                    let piece = Type::hindexed(&blocks, &Type::basic(Basic::Packed))?;
                    layouts.push(piece.commit()?);
                    blocks.clear();
                    room = bytes;
                    if layouts.len() == number {
                        return Ok(Pieces::Parts(layouts));
                    }
                }
            }
        }
        Ok(Pieces::Parts(layouts))
    }

    /// Where the piece `at` lies.
    pub(super) fn piece<'a>(&'a self, pieces: &'a Pieces, at: usize) -> Spot<'a> {
        match pieces {
            Pieces::Instances { each } => self.instances(at * each, *each),
            Pieces::Run { first, bytes } => Spot::Run {
                offset: first.wrapping_add_unsigned(self.origin + at * bytes),
                bytes: *bytes,
            },
            Pieces::Parts(layouts) => match layouts.get(at) {
                Some(layout) => Spot::Instances {
                    offset: self.origin as isize,
                    layout,
                    count: 1,
                },
                None => Spot::Run {
                    offset: 0,
                    bytes: 0,
                },
            },
        }
    }
}

/// Part of a buffer, by its distance from the buffer's first byte.
pub(super) enum Spot<'a> {
    Instances {
        offset: isize,
        layout: &'a Layout,
        count: usize,
    },
    /// Bytes next to each other.
    Run { offset: isize, bytes: usize },
}

impl Spot<'_> {
    /// In the buffer at `base`.
    pub fn on(&self, base: *mut u8) -> Result<RawView> {
        match self {
            Spot::Instances {
                offset,
                layout,
                count,
            } => RawView::at(base.wrapping_offset(*offset), layout, *count),
            Spot::Run { bytes: 0, .. } => Ok(RawView::empty()),
            Spot::Run { offset, bytes } => {
                Ok(RawView::untyped(base.wrapping_offset(*offset), *bytes))
            }
        }
    }

    /// In a device's memory, valid from a ready event on.
    pub fn on_device(
        &self,
        slice: &DeviceSlice<u8>,
        ready_event: &After,
        use_: Use,
    ) -> Result<RawView> {
        let bytes = u8::layout();
        let (offset, layout, count) = match self {
            Spot::Instances {
                offset,
                layout,
                count,
            } => (*offset, *layout, *count),
            Spot::Run { offset, bytes: n } => (*offset, &bytes, *n),
        };
        let view = match usize::try_from(offset) {
            Ok(origin) => DeviceView::new(slice, origin, layout, count)?,
            // The origin lies in front of the memory.
            Err(_) => DeviceView::new(slice, 0, &layout.seen_from(offset.wrapping_neg()), count)?,
        };
        Ok(handed_over(Ordered::new(view, ready_event.clone()), use_))
    }
}

/// The other end's partitions in this end's memory.
pub enum Pieces {
    /// Whole instances.
    Instances { each: usize },
    /// Ranges of one run of bytes.
    Run { first: isize, bytes: usize },
    /// Ranges that begin or end within an instance.
    Parts(Vec<Layout>),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Unpacks a stream of numbers piece by piece, and as a whole.
    #[test]
    fn pieces_make_the_whole() {
        let column = Type::vector(6, 2, 8, &u16::datatype()).expect("vector");
        let layout = Type::resized(0, 4, &column).expect("resized");
        let layout = layout.commit().expect("commit");
        let dense = Type::of::<u16>().commit().expect("commit");
        for (partitions, len) in [
            (Partitions::of(2, &layout, 2).at(3), 64),
            (Partitions::of(4, &layout, 1), 64),
            (Partitions::of(1, &dense, 48).at(5), 64),
            (Partitions::equal(4), 48),
        ] {
            let shape = Shape::receive::<u16>(partitions, len).expect("shape");
            let total = shape.number * shape.bytes();
            assert_eq!(total, 96);
            let stream: Vec<u8> = (1..=96).collect();
            // All of it, and its first three quarters.
            let numbers = [1, 2, 3, 4, 6, 12, 32, 96].map(|n| (n, total / n));
            let fewer = [(1, 72), (3, 24), (6, 12), (8, 9), (72, 1)];
            for (number, bytes) in numbers.into_iter().chain(fewer) {
                let mut whole = vec![0u16; len];
                let view = shape
                    .instances(0, shape.number * shape.count)
                    .on(whole.as_mut_ptr().cast())
                    .expect("view");
                // SAFETY: inside the vector, as the shape has checked.
                unsafe { view.unpack(0..number * bytes, stream.as_ptr()) };
                let pieces = shape.pieces(number, bytes).expect("pieces");
                let mut apart = vec![0u16; len];
                for at in 0..number {
                    let base = apart.as_mut_ptr().cast();
                    let piece = shape.piece(&pieces, at).on(base).expect("piece");
                    assert_eq!(piece.bytes(), bytes);
                    // SAFETY: a part of what was checked.
                    unsafe { piece.unpack(0..bytes, stream[at * bytes..].as_ptr()) };
                }
                assert_eq!(apart, whole, "{number} pieces");
            }
        }
    }

    #[test]
    fn runs_are_found() {
        let three = Type::contiguous(3, &u32::datatype()).expect("type");
        let three = three.commit().expect("commit");
        let shape = Shape::new::<u32>(Partitions::of(4, &three, 2).at(1), 25).expect("shape");
        assert_eq!(shape.elements(0), Some(1..7));
        assert_eq!(shape.elements(3), Some(19..25));
        let bytes = Shape::new::<u8>(Partitions::of(4, &three, 2), 96).expect("shape");
        assert_eq!(bytes.elements(1), Some(24..48));
        let wide = Shape::new::<u64>(Partitions::of(4, &three, 1), 6).expect("shape");
        assert_eq!(wide.elements(1), None, "half an element");
        assert!(Shape::new::<u32>(Partitions::of(4, &three, 2).at(2), 25).is_err());
        assert!(Shape::new::<u32>(Partitions::of(0, &three, 2), 25).is_err());
        let same = Type::resized(0, 0, &Type::of::<u32>()).expect("type");
        let same = same.commit().expect("commit");
        let shape = Shape::new::<u32>(Partitions::of(3, &same, 1), 1).expect("one for all");
        assert!(!shape.disjoint);
        assert!(Shape::receive::<u32>(Partitions::of(3, &same, 1), 1).is_err());
    }
}
