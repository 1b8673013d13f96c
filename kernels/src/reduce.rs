//! Reductions on a stream: `left = left op right`, both in any layout, or one of
//! them packed; and kernels of the user.
//!
//! # Invariants
//! Those of [`pack`](crate::Packer). The left operand is written, so no byte of
//! it may be there twice; the operands share no byte.

use crate::copy::note;
use crate::device::Context;
use crate::ending::Ending;
use crate::error::{DeviceError, Result};
use crate::launch::{self, launch_function};
use crate::memory::{Kind, Memory};
use crate::pack::{DeviceView, Packer, Pieces, noted};
use crate::plan::arguments::{THREADS, Tables};
use crate::plan::reduction::Reduction;
use crate::plan::transfer::PlacedPlan;
use crate::plan::{Plan, Shape};
use crate::slice::{DeviceSlice, Ordered};
use crate::stream::{Event, Stream};
use osier_datatype::{Datatype, Element, Layout, Operator, TypeError};
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

const WHAT: &str = "combine";

/// What an operator combines in a view.
fn element<T: Datatype>(operator: Operator, view: &DeviceView<T>) -> Result<Element> {
    let signature = view.layout().signature();
    let found = operator.element_of(signature);
    found.ok_or_else(|| DeviceError::Type(unlike(operator, &format!("{signature:?}"))))
}

fn unlike(operator: Operator, found: &str) -> TypeError {
    TypeError::Argument {
        operation: "combine elements",
        argument: "layout",
        value: format!("a sequence of {found}"),
        hint: format!("{operator} takes equal elements, the same on both sides"),
    }
}

/// Whether a view is a sequence of elements.
fn check_element<T: Datatype>(
    operator: Operator,
    element: Element,
    view: &DeviceView<T>,
) -> Result<()> {
    let signature = view.layout().signature().repeat(view.count() as u64);
    match element.makes(&signature) {
        true => Ok(()),
        false => Err(unlike(operator, &format!("{:?}", view.layout().signature())).into()),
    }
}

impl Packer {
    /// Combines the elements in the packed bytes `range` of two views, into the
    /// left one: `left = left op right`. The element is that of the left
    /// view's layout: one predefined type, or for minloc and maxloc a value and an
    /// index. Returns the event behind which the result is there.
    ///
    /// Results are those of [`Operator::combine`] bit for bit, but for the bits
    /// of a NaN that arithmetic makes.
    ///
    /// # Errors
    /// As [`Packer::copy`]; elements that differ, or for which the operator is not
    /// defined; a range that cuts an element.
    pub fn combine<T: Datatype, U: Datatype>(
        &self,
        stream: &Stream,
        operator: Operator,
        right: &Ordered<DeviceView<T>>,
        left: &Ordered<DeviceView<U>>,
        range: Range<usize>,
        blocks: Option<u32>,
    ) -> Result<Event> {
        let (source, target) = (&right.buffer, &left.buffer);
        self.check_left(stream, target, &range)?;
        source.check_apart(target)?;
        self.check(WHAT, stream, source.memory())?;
        source.check_range(&range)?;
        if range.is_empty() {
            return stream.record();
        }
        let element = element(operator, target)?;
        check_element(operator, element, target)?;
        check_element(operator, element, source)?;
        right.order(stream)?;
        left.order(stream)?;
        let what = (operator, element);
        let mut ending = Ending::new(stream);
        let mut queue = |reads: PlacedPlan<'_>, writes: PlacedPlan<'_>, bytes: Range<u64>| {
            self.queue_reduction(&mut ending, what, reads, writes, bytes, blocks)
        };
        let pieces = Pieces::new(&range, element.size());
        let touched = [source.memory(), target.memory()];
        let both = self.prepared_both(stream, source, target, pieces, &mut queue);
        let (read, written) = both.inspect_err(|_| noted(stream, touched))?;
        let touched = touched.into_iter();
        ending.note(touched.chain(read.memory()).chain(written.memory()))
    }

    /// Combines the front of packed bytes as the packed bytes `range` of a view,
    /// into the view: an unpack that adds instead of overwriting. Else as
    /// [`Packer::combine`].
    ///
    /// # Errors
    /// As [`Packer::combine`].
    pub fn combine_packed<U: Datatype>(
        &self,
        stream: &Stream,
        operator: Operator,
        right: &Ordered<DeviceSlice<u8>>,
        range: Range<usize>,
        left: &Ordered<DeviceView<U>>,
        blocks: Option<u32>,
    ) -> Result<Event> {
        let (source, target) = (&right.buffer, &left.buffer);
        self.check_left(stream, target, &range)?;
        self.check(WHAT, stream, source.memory())?;
        if range.len() > source.bytes() {
            return Err(DeviceError::Size {
                what: WHAT,
                from: source.bytes(),
                to: range.len(),
            });
        }
        let bytes = Layout::of::<u8>();
        DeviceView::new(source, 0, &bytes, source.bytes())?.check_apart(target)?;
        if range.is_empty() {
            return stream.record();
        }
        let element = element(operator, target)?;
        check_element(operator, element, target)?;
        right.order(stream)?;
        left.order(stream)?;
        let (plan, tables) = (Plan::flat(range.end as u64), Tables::default());
        let reads = PlacedPlan {
            plan: &plan,
            tables: &tables,
            tables_at: 0,
            origin: source.address().wrapping_sub(range.start as u64),
        };
        let what = (operator, element);
        let mut ending = Ending::new(stream);
        let mut queue = |writes: PlacedPlan<'_>, bytes: Range<u64>| {
            self.queue_reduction(&mut ending, what, reads, writes, bytes, blocks)
        };
        let pieces = Pieces::new(&range, element.size());
        let touched = [source.memory(), target.memory()];
        let written = self.prepared_in_parts(stream, target, pieces, &mut queue);
        let written = written.inspect_err(|_| noted(stream, touched))?;
        let touched = touched.into_iter();
        ending.note(touched.chain(written.memory()))
    }

    /// Combines all elements of two slices: `left = left op right`.
    ///
    /// # Errors
    /// As [`Packer::combine`], and slices of unlike length.
    pub fn combine_slices<T: Datatype>(
        &self,
        stream: &Stream,
        operator: Operator,
        right: &Ordered<DeviceSlice<T>>,
        left: &Ordered<DeviceSlice<T>>,
    ) -> Result<Event> {
        let view = |side: &Ordered<DeviceSlice<T>>| -> Result<Ordered<DeviceView<T>>> {
            let slice = &side.buffer;
            Ok(Ordered {
                buffer: DeviceView::new(slice, 0, &Layout::of::<T>(), slice.len())?,
                after: side.after.clone(),
            })
        };
        if right.buffer.len() != left.buffer.len() {
            return Err(DeviceError::Size {
                what: WHAT,
                from: right.buffer.bytes(),
                to: left.buffer.bytes(),
            });
        }
        let (right, left) = (view(right)?, view(left)?);
        let all = 0..left.buffer.packed_bytes();
        self.combine(stream, operator, &right, &left, all, None)
    }

    /// Combines with a kernel of the user, as [`Packer::combine`] does with its
    /// own; elements have `element_bytes` packed bytes. Views that are not one run
    /// are packed before, and the left one is unpacked behind.
    ///
    /// # Safety
    /// `kernel` keeps its contract ([`UserKernel::load`]) for these elements.
    ///
    /// # Errors
    /// As [`Packer::combine`].
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn combine_with<T: Datatype, U: Datatype>(
        &self,
        stream: &Stream,
        (kernel, element_bytes): (&UserKernel, usize),
        right: &Ordered<DeviceView<T>>,
        left: &Ordered<DeviceView<U>>,
        range: Range<usize>,
        blocks: Option<u32>,
    ) -> Result<Event> {
        let (source, target) = (&right.buffer, &left.buffer);
        self.check_left(stream, target, &range)?;
        source.check_apart(target)?;
        self.check(WHAT, stream, source.memory())?;
        source.check_range(&range)?;
        if kernel.context != *stream.context() {
            return Err(DeviceError::WrongDevice {
                what: "launch a kernel with",
                memory: kernel.context.ordinal(),
                stream: stream.context().ordinal(),
            });
        }
        let element_bytes = element_bytes.max(1);
        if !range.start.is_multiple_of(element_bytes) || !range.end.is_multiple_of(element_bytes) {
            return Err(DeviceError::Type(TypeError::Argument {
                operation: "combine elements",
                argument: "range of packed bytes",
                value: format!("{} to {}", range.start, range.end),
                hint: format!("multiples of {element_bytes}"),
            }));
        }
        if range.is_empty() {
            return stream.record();
        }
        let reads = self.one_run(stream, right, &range, blocks)?;
        let writes = self.one_run(stream, left, &range, blocks)?;
        let count = (range.len() / element_bytes) as u64;
        let (mut to, mut from, mut n) = (writes.at, reads.at, count);
        let mut arguments = [
            (&raw mut to).cast::<c_void>(),
            (&raw mut from).cast::<c_void>(),
            (&raw mut n).cast::<c_void>(),
        ];
        let useful = count
            .div_ceil(u64::from(THREADS))
            .min(u64::from(kernel.kernel.resident));
        let grid = self.grid(useful, blocks);
        // SAFETY: the caller's contract; both runs hold `count` elements and
        // live until the event below has passed.
        unsafe {
            launch_function(
                stream,
                kernel.kernel.function,
                grid.blocks,
                THREADS,
                &mut arguments,
            )
        }?;
        let event = note(stream, [&reads.memory, &writes.memory])?;
        match writes.temporary {
            Some(packed) => self.unpack(stream, &packed.after(&event), range, left, blocks),
            None => Ok(event),
        }
    }

    /// The packed bytes of a view as one run: where they are, or a packed copy.
    fn one_run<T: Datatype>(
        &self,
        stream: &Stream,
        view: &Ordered<DeviceView<T>>,
        range: &Range<usize>,
        blocks: Option<u32>,
    ) -> Result<Run> {
        let prepared = self.prepared(stream, &view.buffer)?;
        if prepared.plan.shape() == Shape::Contiguous {
            view.order(stream)?;
            let place = prepared.at(view.buffer.origin());
            return Ok(Run {
                at: place.layout().wrapping_add(range.start as u64),
                memory: view.buffer.memory().clone(),
                temporary: None,
            });
        }
        let packed = DeviceSlice::<u8>::with_kind(stream, Kind::Pool, range.len())?;
        self.pack(stream, view, range.clone(), &packed, blocks)?;
        let packed = packed.into_inner();
        Ok(Run {
            at: packed.address(),
            memory: packed.memory().clone(),
            temporary: Some(packed),
        })
    }

    fn check_left<T: Datatype>(
        &self,
        stream: &Stream,
        target: &DeviceView<T>,
        range: &Range<usize>,
    ) -> Result<()> {
        target.check_written()?;
        self.check(WHAT, stream, target.memory())?;
        target.check_range(range)
    }

    fn queue_reduction(
        &self,
        ending: &mut Ending<'_>,
        (operator, element): (Operator, Element),
        right: PlacedPlan<'_>,
        left: PlacedPlan<'_>,
        bytes: Range<u64>,
        blocks: Option<u32>,
    ) -> Result<()> {
        let Some(planned) = Reduction::new(operator, element, right, left, bytes)? else {
            return Ok(());
        };
        let mut blocks = self.grid(planned.blocks, blocks);
        blocks.resident = true;
        // SAFETY: the kernel of this argument; its memory was checked and lives
        // until the event that the caller notes has passed.
        unsafe { ending.launch(planned.kernel, blocks, &planned.argument) }
    }
}

/// Packed bytes in one run.
struct Run {
    at: u64,
    memory: Arc<Memory>,
    temporary: Option<DeviceSlice<u8>>,
}

/// A reduction kernel of the user, loaded on one device.
#[derive(Debug, Clone)]
pub struct UserKernel {
    context: Context,
    kernel: launch::Kernel,
}

impl UserKernel {
    /// Loads the kernel `entry` of an image: PTX text, or a binary of the driver's
    /// kind. The module stays until the process ends.
    ///
    /// # Safety
    /// The kernel has the signature
    ///
    /// ```c
    /// extern "C" __global__ void entry(void* left, const void* right, unsigned long long count);
    /// ```
    ///
    /// and combines `count` elements, which lie one behind the other, `left[i] =
    /// left[i] op right[i]`, whatever the grid and however many threads a block
    /// has; it touches nothing else. Elements may lie at any address that the
    /// caller's buffers have.
    ///
    /// # Errors
    /// The driver takes no such image, or it holds no such kernel.
    pub unsafe fn load(context: &Context, image: &[u8], entry: &str) -> Result<UserKernel> {
        Ok(UserKernel {
            context: context.clone(),
            kernel: launch::load_user(context, image, entry)?,
        })
    }
}
