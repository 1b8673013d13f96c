//! Updates of elements by atomics of the whole system, on a stream.
//!
//! # Invariants
//! Those of [`pack`](crate::Packer). Elements that are updated may be used by other atomics at
//! the same time; none is there twice in one view.

use crate::device::Context;
use crate::device_link::device_links;
use crate::ending::Ending;
use crate::error::{DeviceError, Result};
use crate::pack::{DeviceView, Packer, Pieces, noted};
use crate::plan::transfer::PlacedPlan;
use crate::plan::update::{AtomicChange, Update};
use crate::slice::{DeviceSlice, Ordered};
use crate::stream::{Event, Stream};
use crate::{DeviceId, Link};
use osier_datatype::{Datatype, Element};
use std::ops::Range;

const WHAT: &str = "update elements";

impl Packer {
    /// Updates the elements in the packed bytes `range` of a view by those of another, each by an
    /// atomic of the whole system: `there = there op given`. What was there goes to `before`, if
    /// that is given, packed, from its first byte on. Returns the event behind which all is
    /// done; stores of one element may be seen before those of others.
    ///
    /// Results are those of [`Operator::combine`](osier_datatype::Operator::combine) bit for bit,
    /// but for the bits of a NaN that arithmetic makes.
    ///
    /// # Errors
    /// As [`Packer::combine`]; elements of more than 8 bytes, pairs and complex numbers, and some
    /// that lie at no multiples of their size, have no atomic. A device that reaches the elements
    /// without atomics ([`Context::has_atomics_on`]) is not found out.
    pub fn update<T: Datatype, U: Datatype>(
        &self,
        stream: &Stream,
        (change, element): (AtomicChange, Element),
        given: &Ordered<DeviceView<T>>,
        there: &Ordered<DeviceView<U>>,
        before: Option<&Ordered<DeviceSlice<u8>>>,
        range: Range<usize>,
    ) -> Result<Event> {
        let (source, target) = (&given.buffer, &there.buffer);
        target.check_written()?;
        self.check(WHAT, stream, target.memory())?;
        self.check(WHAT, stream, source.memory())?;
        target.check_range(&range)?;
        source.check_range(&range)?;
        source.check_apart(target)?;
        if let Some(before) = before {
            self.check(WHAT, stream, before.buffer.memory())?;
            if before.buffer.bytes() < range.len() {
                return Err(DeviceError::Size {
                    what: WHAT,
                    from: range.len(),
                    to: before.buffer.bytes(),
                });
            }
            before.order(stream)?;
        }
        if range.is_empty() {
            return stream.record();
        }
        given.order(stream)?;
        there.order(stream)?;
        let first = range.start as u64;
        let mut ending = Ending::new(stream);
        let mut queue = |reads: PlacedPlan<'_>, writes: PlacedPlan<'_>, bytes: Range<u64>| {
            let to = before.map(|before| before.buffer.address() + bytes.start - first);
            let planned = Update::new(change, element, (reads, writes), to, bytes)?;
            let Some(planned) = planned else {
                return Ok(());
            };
            let mut blocks = self.grid(planned.blocks, None);
            blocks.resident = true;
            // SAFETY: the kernel of this argument; its memory was checked and lives until the
            // event that the caller notes has passed.
            unsafe { ending.launch(planned.kernel, blocks, &planned.argument) }
        };
        let pieces = Pieces::new(&range, element.size());
        let told = before.map_or(target.memory(), |before| before.buffer.memory());
        let touched = [source.memory(), target.memory(), told];
        let both = self.prepared_both(stream, source, target, pieces, &mut queue);
        let (read, written) = both.inspect_err(|_| {
            noted(stream, [touched[0], touched[1]]);
            noted(stream, [touched[1], touched[2]]);
        })?;
        let touched = touched.into_iter();
        ending.note(touched.chain(read.memory()).chain(written.memory()))
    }
}

impl Context {
    /// Whether atomics of this device's kernels work in memory of another that it reaches: the
    /// same, or one whose link has them.
    pub fn has_atomics_on(&self, other: &DeviceId) -> bool {
        match self.link(other) {
            Link::Same => true,
            Link::Linked => device_links().is_ok_and(|links| {
                let find = |id: &DeviceId| links.devices.iter().position(|info| info.id == *id);
                let places = find(&self.id()).zip(find(other));
                places.is_some_and(|(own, other)| links.between[own][other].atomics)
            }),
            // Nobody tells.
            Link::Hidden | Link::Apart => false,
        }
    }
}
