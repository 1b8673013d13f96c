//! Runs on device memory: messages of it, and kernels that copy and combine its pieces.
//!
//! A run on a device ([`Combining`]) has its scratch there, too, but for what its plan
//! keeps aside, in memory of the host that kernels reach. Its messages are those of
//! device memory; its copies and combinations are kernels on streams of their own, each
//! behind what the step waits for, so segments overlap with transfers and with each other.
//!
//! # Invariants
//! 1. Bits are those of the host: operands keep their sides. Where the result takes the
//!    right operand's place, and sides may not change, the left one is copied first.
//! 2. A call that fails leaves no kernel in flight.
//! 3. A kernel of the user combines elements of the type that its operator's function
//!    has: the caller that loads it, which is unsafe, vouches for its effect, and the caller
//!    that gives it to a function vouches that both do the same. `element` is that type's layout.
//!
//! # Sources
//! X. Luo, W. Wu, G. Bosilca et al., "ADAPT: An Event-Based Adaptive Collective
//! Communication Framework", HPDC 2018: combinations as events on streams of the GPU,
//! between segments in flight.

use crate::device::direct::Direct;
use crate::device::{DeviceMemory, Devices};
use crate::exec::operator::{Fit, Reduction};
use crate::protocol::device::DeviceCosts;
use crate::view::RawView;
use osier_datatype::{Layout, Operator};
use osier_kernels::{
    Context, DeviceError, DeviceSlice, DeviceView, Event, Kind, Memory, Ordered, Packer, Stream,
    UserKernel, plan::reduction::has_kernel,
};
use std::sync::Arc;

/// What combines.
#[derive(Clone, Debug)]
pub enum By {
    /// A predefined operator.
    Predefined(Operator),
    /// A kernel of the user.
    Kernel(UserKernel),
}

/// A run on one device.
#[derive(Clone, Debug)]
pub struct Combining {
    pub context: Context,
    /// None: nothing is combined.
    pub by: Option<By>,
    /// One element, without gaps.
    pub element: Layout,
    /// Operands may change places, bit for bit.
    pub commutes: bool,
}

/// Memory of a device for pieces of its own, kept from run to run.
#[derive(Debug)]
pub struct Scratch {
    memory: Arc<Memory>,
    since: Event,
}

impl Scratch {
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }
}

/// Regions of a step.
pub struct Operands {
    pub left: RawView,
    pub right: RawView,
    pub into: RawView,
}

/// What the steps of a run do in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Messages in one direction, and their bytes.
    pub messages: usize,
    pub message_bytes: usize,
    /// Combinations and copies, and theirs.
    pub kernels: usize,
    pub kernel_bytes: usize,
    /// Bytes to the host before, and back behind, if the host does it.
    pub before: usize,
    pub after: usize,
}

impl Work {
    /// Whether it is expected to take less time on the device than on the host, steps one
    /// after the other. `latency_ns` and `copy_ns` are of messages of the host; peers'
    /// devices are `reached`, or messages cross the host's link.
    pub fn pays(&self, device: &DeviceCosts, latency_ns: f64, copy_ns: f64, reached: bool) -> bool {
        let n = |count: usize| count as f64;
        let across = |bytes: usize, ns_per_byte: f64| match bytes {
            0 => 0.0,
            _ => device.copy_ns + n(bytes) * ns_per_byte,
        };
        let host = across(self.before, device.to_host_ns_per_byte)
            + across(self.after, device.to_device_ns_per_byte)
            + n(self.messages) * latency_ns
            + n(2 * self.message_bytes + self.kernel_bytes) * copy_ns;
        let [run, ..] = device.pack_ns_per_byte;
        let way = match reached {
            true => device.peer_ns_per_byte,
            false => (device.to_host_ns_per_byte).max(device.to_device_ns_per_byte),
        };
        let there = n(self.messages + self.kernels) * device.launch_ns
            + n(self.message_bytes) * way.max(run)
            + n(self.kernel_bytes) * 1.5 * run;
        there < host
    }
}

fn view(memory: &RawView) -> Result<&Ordered<DeviceView<u8>>, DeviceError> {
    match memory.as_device() {
        Some(memory) => memory.view(),
        None => Err(DeviceError::Unavailable("memory of the host".into())),
    }
}

impl Combining {
    /// How an operator combines where `first` lies. None: nothing there can.
    pub fn of(operator: &dyn Reduction, fit: &Fit, first: &DeviceMemory) -> Option<Combining> {
        let by = match (operator.kernel(), operator.predefined(fit)) {
            (Some(kernel), _) => By::Kernel(kernel.clone()),
            (None, Some((operator, element))) if has_kernel(operator, element) => {
                By::Predefined(operator)
            }
            (None, _) => return None,
        };
        Some(Combining {
            context: first.view().ok()?.buffer().memory().context().clone(),
            by: Some(by),
            element: fit.layout(first.instances().0)?,
            commutes: fit.commutes,
        })
    }

    /// Whether its kernels reach memory: it lies on this device.
    pub fn reaches(&self, memory: &RawView) -> bool {
        let there = memory.as_device().and_then(|memory| memory.view().ok());
        there.is_some_and(|there| *there.buffer().memory().context() == self.context)
    }

    /// A view as one run of elements, if it is that, on this device.
    pub fn elements(&self, memory: &DeviceMemory) -> Option<RawView> {
        let view = memory.view().ok()?;
        let bytes = view.buffer().packed_bytes();
        (*view.buffer().memory().context() == self.context).then_some(())?;
        let run = memory.run(0..bytes, &self.element)?;
        Some(RawView::of_device(run))
    }

    /// Memory for `bytes` bytes, the same as before if that is enough.
    ///
    /// # Errors
    /// The device has no room.
    pub fn scratch(
        &self,
        kept: &mut Option<Scratch>,
        bytes: usize,
    ) -> Result<RawView, DeviceError> {
        let fits = |s: &Scratch| *s.memory.context() == self.context && s.memory.bytes() >= bytes;
        if !kept.as_ref().is_some_and(fits) {
            *kept = None;
            let stream = Stream::uncaptured(&self.context)?;
            // Other processes may open it.
            let memory = Memory::allocate(&stream, Kind::Plain, bytes)?;
            let since = stream.record()?;
            *kept = Some(Scratch { memory, since });
        }
        let Some(Scratch { memory, since }) = kept else {
            return Ok(RawView::empty());
        };
        let slice = DeviceSlice::<u8>::of(memory.clone())?;
        let view = DeviceView::of(&slice)?.after(since);
        let bytes = view.buffer().packed_bytes();
        let memory = DeviceMemory::of_elements(view, &self.element);
        Ok(RawView::device(slice.address(), bytes, memory))
    }

    /// Memory of the host that kernels reach, for `bytes` bytes, the same as before if that
    /// is enough: as messages have it, and as kernels.
    ///
    /// # Errors
    /// The host has no memory that may be pinned.
    pub fn aside(
        &self,
        kept: &mut Option<Scratch>,
        bytes: usize,
    ) -> Result<(RawView, RawView), DeviceError> {
        let fits = |s: &Scratch| *s.memory.context() == self.context && s.memory.bytes() >= bytes;
        if !kept.as_ref().is_some_and(fits) {
            *kept = None;
            let memory = Memory::pinned(&self.context, bytes)?;
            let since = Stream::uncaptured(&self.context)?.record()?;
            *kept = Some(Scratch { memory, since });
        }
        let Some(Scratch { memory, since }) = kept else {
            return Ok((RawView::empty(), RawView::empty()));
        };
        let slice = DeviceSlice::<u8>::of(memory.clone())?;
        let view = DeviceView::of(&slice)?.after(since);
        let bytes = view.buffer().packed_bytes();
        let kernels = DeviceMemory::of_elements(view, &self.element);
        let host = memory.host().unwrap_or(std::ptr::null_mut());
        Ok((
            RawView::untyped(host, bytes),
            RawView::device(slice.address(), bytes, kernels),
        ))
    }

    /// Begins to copy a region to another of the same length.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn copy(
        &self,
        devices: &Arc<Devices>,
        from: &RawView,
        to: &RawView,
    ) -> Result<Direct, DeviceError> {
        let (from, to) = (view(from)?.clone(), view(to)?.clone());
        let all = 0..to.buffer().packed_bytes();
        let views = [from.clone(), to.clone()];
        Direct::queued_behind(devices, &self.context, &views, move |packer, stream| {
            packer.copy(stream, &from, &to, all, None)
        })
    }

    /// Begins `into = left op right`.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn combine(
        &self,
        devices: &Arc<Devices>,
        operands: Operands,
    ) -> Result<Direct, DeviceError> {
        let Operands { left, right, into } = &operands;
        let views = [
            view(left)?.clone(),
            view(right)?.clone(),
            view(into)?.clone(),
        ];
        let own = self.clone();
        Direct::queued_behind(devices, &self.context, &views, move |packer, stream| {
            own.begin(packer, stream, &operands)
        })
    }

    /// The same, queued on a stream.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn begin(
        &self,
        packer: &Packer,
        stream: &Stream,
        operands: &Operands,
    ) -> Result<Event, DeviceError> {
        let Operands { left, right, into } = operands;
        let same = |a: &RawView, b: &RawView| a.span() == b.span();
        let (in_left, in_right) = (same(into, left), same(into, right));
        let (left, right, into) = (view(left)?, view(right)?, view(into)?);
        let bytes = into.buffer().packed_bytes();
        if in_left {
            return self.queue(packer, stream, right, into);
        }
        if in_right && self.commutes {
            return self.queue(packer, stream, left, into);
        }
        if !in_right {
            packer.copy(stream, left, into, 0..bytes, None)?;
            return self.queue(packer, stream, right, into);
        }
        let sum = DeviceSlice::<u8>::with_kind(stream, Kind::Pool, bytes)?;
        let count = bytes / self.element.size().max(1);
        let sum = DeviceView::new(sum.buffer(), 0, &self.element, count)?;
        let sum = sum.after_stream(stream);
        packer.copy(stream, left, &sum, 0..bytes, None)?;
        self.queue(packer, stream, right, &sum)?;
        packer.copy(stream, &sum, into, 0..bytes, None)
    }

    /// `left = left op right`.
    fn queue(
        &self,
        packer: &Packer,
        stream: &Stream,
        right: &Ordered<DeviceView<u8>>,
        left: &Ordered<DeviceView<u8>>,
    ) -> Result<Event, DeviceError> {
        let all = 0..left.buffer().packed_bytes();
        let Some(by) = &self.by else {
            return Err(DeviceError::Unavailable("no operator".into()));
        };
        match by {
            By::Predefined(operator) => packer.combine(stream, *operator, right, left, all, None),
            By::Kernel(kernel) => {
                let kernel = (kernel, self.element.size());
                // SAFETY: invariant 3: these packed bytes are one element, as the kernel
                // has them.
                unsafe { packer.combine_with(stream, kernel, right, left, all, None) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_reductions_pay_on_the_device_and_short_ones_on_the_host() {
        let of = |bytes: usize| Work {
            messages: 1,
            message_bytes: bytes,
            kernels: 1,
            kernel_bytes: bytes,
            before: bytes,
            after: bytes,
        };
        let pays = |bytes| of(bytes).pays(&DeviceCosts::default(), 250.0, 0.124, true);
        assert!(!pays(8) && pays(1 << 20));
        let first = (3..24).find(|log| pays(1 << log)).expect("a size");
        assert!((first..24).all(|log| pays(1 << log)));
    }
}
