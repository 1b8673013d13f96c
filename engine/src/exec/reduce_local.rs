//! Local reduction where an operand is on a GPU: by a kernel where both are, without gaps; else
//! on the host, packed.

use super::on_device::{Combining, Operands};
use super::operator::{Data, Fit, Reduction};
use crate::error::{Error, ErrorKind, Result};
use crate::view::{Buffer, BufferMut, RawView};
use osier_kernels::{DeviceSlice, DeviceView, Event, Memory, Ordered, Packer, Stream};

/// Combines two buffers of this rank: `inout = input op inout` (`MPI_Reduce_local`).
///
/// ```
/// let mut sum = [1, 2];
/// osier::operators::reduce_local(&[10, 20], &mut sum, osier::Op::Sum)?;
/// assert_eq!(sum, [11, 22]);
/// # Ok::<(), osier::Error>(())
/// ```
///
/// Of two buffers on a device a kernel combines, if they have no gaps and it has one for the
/// operator; else they go through the host. To have a stream combine them behind its work,
/// see `OnStream::reduce_local`.
///
/// # Errors
/// If the buffers differ in size, have gaps on the host, or the operator is not defined for
/// them; of devices, if the driver refuses.
pub fn reduce_local<S: Buffer + ?Sized, R: BufferMut + ?Sized>(
    input: &S,
    inout: &mut R,
    op: impl Reduction,
) -> Result<()> {
    let (input, inout) = (input.view().raw(), inout.view_mut().raw());
    let fit = op.fit(&Data(&inout))?;
    if input.bytes() != inout.bytes() {
        return Err(Error::new(
            ErrorKind::Argument,
            format!(
                "reduce_local: input of {} bytes, inout of {} (hint: both have the same count)",
                input.bytes(),
                inout.bytes()
            ),
        ));
    }
    reduce(&op, &fit, &input, &inout)
}

/// `inout = input op inout`; complete when this returns.
///
/// # Errors
/// The driver refuses, or the operator does.
pub fn reduce(operator: &dyn Reduction, fit: &Fit, input: &RawView, inout: &RawView) -> Result<()> {
    let Some(there) = inout.as_device().or(input.as_device()) else {
        return super::run::combine(operator, fit, input, inout, inout);
    };
    if inout.bytes() == 0 {
        return Ok(());
    }
    let context = there.view()?.buffer().memory().context().clone();
    let (stream, packer) = (Stream::uncaptured(&context)?, Packer::new(&context));
    if let Some(begun) = begin(operator, fit, input, inout, &packer, &stream) {
        // A part of it may run where the rest was refused.
        let ended = stream.synchronize();
        begun?;
        return Ok(ended?);
    }
    let ends = (
        Staged::of(input, &packer, &stream)?,
        Staged::of(inout, &packer, &stream)?,
    );
    super::run::combine(operator, fit, &ends.0.host, &ends.1.host, &ends.1.host)?;
    ends.1.back(inout, &packer, &stream)
}

/// The same by a kernel behind a stream's work. None: no kernel can do it.
pub fn begin(
    operator: &dyn Reduction,
    fit: &Fit,
    input: &RawView,
    inout: &RawView,
    packer: &Packer,
    stream: &Stream,
) -> Option<Result<Event>> {
    let (from, into) = (input.as_device()?, inout.as_device()?);
    let on = Combining::of(operator, fit, into)?;
    let operands = Operands {
        left: on.elements(from)?,
        right: on.elements(into)?,
        into: on.elements(into)?,
    };
    Some(on.begin(packer, stream, &operands).map_err(Into::into))
}

/// A buffer's packed bytes on the host.
struct Staged {
    host: RawView,
    /// Pinned memory in which they lie, if they do not lie there anyway.
    pinned: Option<Ordered<DeviceView<u8>>>,
}

impl Staged {
    fn of(view: &RawView, packer: &Packer, stream: &Stream) -> Result<Staged> {
        let Some(there) = view.as_device() else {
            let host = view.clone();
            return Ok(Staged { host, pinned: None });
        };
        let there = there.view()?;
        let bytes = there.buffer().packed_bytes();
        let memory = Memory::pinned(stream.context(), bytes)?;
        let host = memory.host().unwrap_or(std::ptr::null_mut());
        let pinned = DeviceView::of(&DeviceSlice::<u8>::of(memory)?)?.after_stream(stream);
        let copied = packer.copy(stream, there, &pinned, 0..bytes, None)?;
        copied.synchronize()?;
        Ok(Staged {
            host: RawView::untyped(host, bytes),
            pinned: Some(pinned),
        })
    }

    fn back(&self, view: &RawView, packer: &Packer, stream: &Stream) -> Result<()> {
        if let (Some(pinned), Some(there)) = (&self.pinned, view.as_device()) {
            let (there, bytes) = (there.view()?, pinned.buffer().packed_bytes());
            let copied = packer.copy(stream, pinned, there, 0..bytes, None)?;
            copied.synchronize()?;
        }
        Ok(())
    }
}
