//! What a call asks for: from the buffers of its user to the pieces of a plan.
//!
//! An [`Ask`] is a description and touches no memory, so it can be asked again and again.
//! [`Ask::settle`], right before its run begins, puts memory of the host in place of
//! devices', and packed operands in place of those with gaps; or leaves memory of devices
//! where it is (`stays`).

pub(crate) mod counts;
mod equal;
mod neighbors;

use super::placement::Crossings;
use crate::choice::class_of;
use crate::comm::Communicator;
use osier_collectives::Call;
use osier_engine::device::Devices;
use osier_engine::device::crossing::Crossing;
use osier_engine::error::{Error, ErrorKind};
use osier_engine::exec::inline::Begun;
use osier_engine::exec::memory::{Buffers, Pieces};
use osier_engine::exec::on_device::Combining;
use osier_engine::exec::operator::Fit;
use osier_engine::exec::program::{Program, RunsOn};
use osier_engine::exec::run::{Across, Combiner, Shadow};
use osier_engine::protocol::device::Move;
use osier_engine::view::{
    Buffer, BufferMut, OwnedBuffer, OwnedBufferMut, Plain, RawView, View, ViewMut,
};
use osier_kernels::exchange::Combination;
use osier_kernels::{Context, Stream};
use std::sync::Arc;

/// What a rank puts into a collective: a buffer, or [`IN_PLACE`].
pub trait Contribution {
    /// The memory; `None`: the data lies where the result will.
    #[doc(hidden)]
    fn contribution(&self) -> Option<View<'_>>;

    /// As [`Buffer::plain`].
    #[doc(hidden)]
    #[inline]
    fn plain_contribution(&self) -> Option<Plain> {
        None
    }
}

impl<B: Buffer + ?Sized> Contribution for B {
    #[inline]
    fn contribution(&self) -> Option<View<'_>> {
        Some(self.view())
    }

    #[inline]
    fn plain_contribution(&self) -> Option<Plain> {
        self.plain()
    }
}

/// Where a rank wants its share of a scatter: a buffer, or [`IN_PLACE`].
pub trait Destination {
    /// The memory; `None`: the data stays where it is.
    #[doc(hidden)]
    fn destination(&mut self) -> Option<ViewMut<'_>>;
}

impl<B: BufferMut + ?Sized> Destination for B {
    #[inline]
    fn destination(&mut self) -> Option<ViewMut<'_>> {
        Some(self.view_mut())
    }
}

impl Destination for InPlace {
    fn destination(&mut self) -> Option<ViewMut<'_>> {
        None
    }
}

/// What a request may own and put into a collective: an [`OwnedBuffer`], or
/// [`IN_PLACE`].
pub trait OwnedContribution: Contribution + Send + 'static {}

impl<B: OwnedBuffer> OwnedContribution for B {}
impl OwnedContribution for InPlace {}

/// What a request may own and want its share of a scatter in: an [`OwnedBufferMut`], or
/// [`InPlace`].
pub trait OwnedDestination: Destination + Send + 'static {}

impl<B: OwnedBufferMut> OwnedDestination for B {}
impl OwnedDestination for InPlace {}

/// The memory of a contribution.
#[inline]
pub(crate) fn given<S: Contribution + ?Sized>(send: &S) -> Option<RawView> {
    send.contribution().map(View::raw)
}

/// The memory of a destination.
#[inline]
pub(crate) fn wanted<R: Destination + ?Sized>(recv: &mut R) -> Option<RawView> {
    recv.destination().map(ViewMut::raw)
}

/// The type of [`IN_PLACE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InPlace;

/// In place of a buffer to send: the data lies where the result will, as MPI 5.0,
/// chapter 6, says of each call.
///
/// ```
/// let universe = osier::init()?;
/// let mut sums = [1.0, 2.0];
/// universe.world().allreduce(&osier::IN_PLACE, &mut sums, osier::Op::Sum)?;
/// # Ok::<(), osier::Error>(())
/// ```
pub const IN_PLACE: InPlace = InPlace;

impl Contribution for InPlace {
    fn contribution(&self) -> Option<View<'_>> {
        None
    }
}

/// What a call asks for.
#[derive(Clone)]
pub(crate) struct Ask {
    /// The user's word for it.
    pub name: &'static str,
    pub call: Call,
    /// Names the program.
    pub key: u64,
    /// Size class that the plan is chosen for.
    pub class: u32,
    pub buffers: Buffers,
    pub combiner: Option<(Combiner, Fit)>,
    /// A call that waits: it may search for a message before it posts a receive.
    pub defers: bool,
    /// A rank of an intercommunicator that takes no part.
    pub idle: bool,
    /// What is wrong with the call.
    pub error: Option<Error>,
    /// What the call itself has done already.
    pub begun: Option<Begun>,
    /// Memory of a device whose ready event the run waits for, and which it does not use.
    pub behind: Option<RawView>,
    /// All ranks know that buffers of this call lie on devices: see `spaces`.
    pub on_devices: bool,
    /// All ranks make the same call, as a round by this number's tags has found.
    pub agreed: Option<u32>,
    /// All memory is the host's, on all ranks.
    pub of_host: bool,
    /// It may be one kernel of each rank.
    pub in_one_kernel: bool,
    /// Its flags may lie in the ranks' segment: calls begin in one order there.
    pub in_segment: bool,
    /// All ranks read plain memory of each other, as they have told.
    pub reads: bool,
    /// The stream on which it is enqueued.
    pub stream: Option<Stream>,
}

/// What stands in for memory that a run cannot work on.
#[derive(Default)]
pub(crate) struct Staged {
    /// What is copied from devices before, and to them behind.
    pub before: Vec<Across>,
    pub after: Vec<Across>,
    /// The result, which belongs into memory with gaps.
    pub shadow: Option<Shadow>,
    pub kept: Vec<Vec<u8>>,
    pub crossings: Vec<Arc<Crossing>>,
    /// Nothing does: the run works there.
    pub on_device: Option<Combining>,
}

impl Staged {
    /// Copies a view nowhere in particular, before the first step.
    fn waits_for(&mut self, devices: &Arc<Devices>, view: &RawView) {
        let (reads, writes) = (true, false);
        self.instead(devices, view, Crossings { reads, writes });
    }

    /// Memory of the host as long as a view.
    fn room(&mut self, bytes: usize) -> RawView {
        let mut bytes = vec![0u8; bytes];
        let room = RawView::untyped(bytes.as_mut_ptr(), bytes.len());
        self.kept.push(bytes);
        room
    }

    /// Memory of the host in place of a device's, from and to which it is copied.
    fn instead(
        &mut self,
        devices: &Arc<Devices>,
        view: &RawView,
        Crossings { reads, writes }: Crossings,
    ) -> RawView {
        if view.bytes() == 0 {
            return self.room(0);
        }
        let crossing = |memory| Crossing::of(devices, memory).map(Arc::new);
        if let Some(crossing) = view.as_device().and_then(crossing) {
            let copied = |way| Across::Work(crossing.clone(), way);
            self.before.extend(reads.then(|| copied(Move::Fill)));
            self.after.extend(writes.then(|| copied(Move::Empty)));
            let host = RawView::untyped(crossing.host(), crossing.bytes());
            self.crossings.push(crossing);
            return host;
        }
        let host = self.room(view.bytes());
        let copied = |from: &RawView, to: &RawView| Across::Message(from.clone(), to.clone());
        self.before.extend(reads.then(|| copied(view, &host)));
        self.after.extend(writes.then(|| copied(&host, view)));
        host
    }
}

/// Data in place on a rank that is not the root.
pub(crate) fn in_place_elsewhere() -> Error {
    Error::new(
        ErrorKind::Buffer,
        "IN_PLACE on a rank that is not the root (hint: only the root works in place)",
    )
}

pub(crate) fn mismatch(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Argument, message)
}

impl Ask {
    /// A call with `bytes` bytes, as all ranks know.
    pub fn new(name: &'static str, call: Call, bytes: usize, buffers: Buffers) -> Self {
        let class = class_of(bytes);
        Self {
            name,
            key: key_of(&call, class),
            call,
            class,
            buffers,
            combiner: None,
            defers: true,
            idle: false,
            error: None,
            begun: None,
            behind: None,
            on_devices: false,
            agreed: None,
            of_host: false,
            in_one_kernel: false,
            in_segment: true,
            reads: false,
            stream: None,
        }
    }

    /// With a plan for memory of devices.
    pub fn for_devices(&mut self) {
        self.on_devices = true;
        self.key |= FOR_DEVICES;
    }

    /// It may be one kernel of each rank, or may not.
    pub fn may_be_in_one_kernel(&mut self, may: bool) {
        self.in_one_kernel = may;
        self.key = (self.key & !IN_ONE_KERNEL) | if may { IN_ONE_KERNEL } else { 0 };
    }

    /// Its plan may read plain memory of other ranks.
    pub fn may_read(&mut self) {
        self.reads = true;
        self.key |= READS;
    }

    /// Its plan has no flags in a segment.
    pub fn not_in_segment(&mut self) {
        self.in_segment = false;
        self.key |= NOT_IN_SEGMENT;
    }

    /// Whether kernels combine its elements in one launch. A call of which too little is known
    /// has failed, and takes part as that.
    pub fn combines_in_one_kernel(&self) -> bool {
        self.combiner.as_ref().is_none_or(|(combiner, fit)| {
            let known = combiner.get().predefined(fit);
            known.is_some_and(|(operator, element)| Combination::of(operator, element).is_some())
        })
    }

    /// A device that it has memory on.
    pub fn device(&self) -> Option<Context> {
        let Buffers { send, recv, .. } = &self.buffers;
        let mut all = send.memory().iter().chain(recv.memory());
        let on = all.find_map(RawView::as_device)?.view().ok()?;
        Some(on.buffer().memory().context().clone())
    }

    /// Whether all of its memory lies on devices, whether any does, and its size class.
    pub fn spaces(&self) -> (bool, bool, u32) {
        let Buffers { send, recv, .. } = &self.buffers;
        let memory = || send.memory().iter().chain(recv.memory());
        let mut with_bytes = memory().filter(|view| view.bytes() > 0);
        let all = with_bytes.all(|view| view.as_device().is_some());
        let any = memory().any(|view| view.bytes() > 0 && view.as_device().is_some());
        let class = match self.call.has_places() {
            true => class_of(send.mean_bytes(1).max(recv.mean_bytes(1))),
            false => self.class,
        };
        (all, any, class)
    }

    /// Names the program, also of a rank that does nothing.
    #[inline]
    pub fn program_key(&self) -> u64 {
        if self.idle { u64::MAX } else { self.key }
    }

    /// With an operator.
    pub fn combine(&mut self, (combiner, fit): (Combiner, Fit)) {
        self.call.required = fit.association;
        let flags = self.key & (FOR_DEVICES | IN_ONE_KERNEL | NOT_IN_SEGMENT | READS);
        self.key = key_of(&self.call, self.class) | flags;
        debug_assert!(!self.on_devices, "known before its plan is asked for");
        self.buffers.unit = fit.unit;
        self.combiner = Some((combiner, fit));
    }

    /// With this wrong.
    pub fn failed(mut self, e: Option<Error>) -> Self {
        self.error = self.error.or(e);
        self
    }

    /// Makes the memory fit for a run, which keeps the copies that were made for
    /// that.
    #[inline]
    pub fn settle(&mut self, comm: &Communicator, program: &Program) -> Option<Box<Staged>> {
        if self.error.is_some() {
            self.buffers = Buffers::default();
            return None;
        }
        if program.runs_on == RunsOn::OneKernel {
            return None;
        }
        let reduces = self.call.operation.reduces();
        // What peers read lies in one run of bytes.
        let packed = reduces || program.publishes;
        let unfit =
            |view: &RawView| view.as_device().is_some() || packed && view.as_contiguous().is_none();
        let (send, recv) = (&self.buffers.send, &self.buffers.recv);
        let mut staged = if send.memory().iter().chain(recv.memory()).any(unfit) {
            Some(Box::new(self.stage(comm, program)))
        } else {
            None
        };
        if let Some(behind) = self.behind.take() {
            let staged = staged.get_or_insert_default();
            staged.waits_for(&comm.core().devices, &behind);
        }
        if self.call.shares_memory() {
            // The result lies at the front of what went in.
            let own = self.buffers.recv.whole().map_or(0, RawView::bytes);
            let input = self.buffers.send.whole().cloned().unwrap_or_default();
            self.buffers.recv = Pieces::Equal(input.section(0..own), own);
        }
        staged
    }

    #[cold]
    fn stage(&mut self, comm: &Communicator, program: &Program) -> Staged {
        let mut staged = Staged::default();
        if let Some(on) = self.stays(comm, program) {
            staged.on_device = Some(on);
            return staged;
        }
        let [send, recv] = self.crossings(comm.rank());
        let call = &self.call;
        let devices = &comm.core().devices;
        for (pieces, crossings) in [
            (&mut self.buffers.send, send),
            (&mut self.buffers.recv, recv),
        ] {
            let packed = call.operation.reduces() || program.publishes;
            pieces.replace(|view| {
                let device = view.as_device().is_some();
                let gaps = packed && view.as_contiguous().is_none();
                if !(device || gaps) {
                    return view.clone();
                }
                if device {
                    return staged.instead(devices, view, crossings);
                }
                let host = staged.room(view.bytes());
                // Both are of the host, and as long as each other.
                let _ = osier_engine::exec::run::copy(view, &host);
                if crossings.writes {
                    staged.shadow = Some(Shadow {
                        packed: host.clone(),
                        into: view.clone(),
                    });
                }
                host
            });
        }
        staged
    }
}

/// In a key: the plan is one for memory of devices.
const FOR_DEVICES: u64 = 1 << 50;
/// In a key: the plan may be one kernel of each rank.
const IN_ONE_KERNEL: u64 = 1 << 51;

/// In a key: flags of the plan are messages.
const NOT_IN_SEGMENT: u64 = 1 << 52;

/// Keys of calls whose plans may read plain memory of other ranks.
const READS: u64 = 1 << 53;

/// A number for what programs depend on, but for the communicator.
pub(crate) fn key_of(call: &Call, class: u32) -> u64 {
    call.operation as u64
        | u64::from(call.in_place) << 5
        | u64::from(call.varying) << 6
        | (call.required as u64) << 7
        | u64::from(call.first_side.is_some()) << 9
        | u64::from(class) << 10
        | u64::from(call.root) << 18
}
