//! State of one collective in flight.
//!
//! # Invariants
//! 1. An operator outlives the run that combines by it, so its lifetime may be taken off:
//!    a run owns it, or the call that has lent it, or the scope that it borrows from,
//!    waits for the run's end, also when it unwinds while it waits.
//! 2. The memory of a run is valid, and no other operation's, from its start to its end
//!    (invariant 3 of `executor`, invariant 1 of `view`); scratch is its own (invariant 2
//!    of `memory`).
//! 3. Steps of which one writes what another touches are ordered by the plan, which its
//!    checker proves; a step that runs without the lane is in flight until it has
//!    returned (invariant 2 of `owed`). So nothing else touches the bytes of a step that
//!    is being taken.
//! 4. The three regions of a combination have one length. The result is one operand, or
//!    apart from both, and the operands are apart from each other: the checker refuses a
//!    plan where a part of an operand is written over, or a contribution is combined
//!    twice; pieces of a buffer do not overlap, and the buffers of a call are borrowed
//!    apart.

use super::cells::Cells;
use super::fused::Fused;
use super::graph::Schedule;
use super::in_segment::{self, Contiguous, IN_ORDER, Source};
use super::memory::Memory;
use super::one_kernel::Exchanging;
use super::operator::{Fit, Fitted, Reduction};
use super::program::{Action, Program};
use super::step::Regions;
use crate::check::Site;
use crate::completion::hold::Hold;
use crate::completion::ready::Ready;
use crate::device::Devices;
use crate::device::crossing::Crossing;
use crate::device::direct::Direct;
use crate::error::{Error, ErrorKind, Result};
use crate::exec::on_device::{Combining, Operands};
use crate::protocol::device::Move;
use crate::view::RawView;
use osier_collectives::Region;
use osier_kernels::Stream;
use osier_kernels::exchange::{Combination as Exchanged, Exchange};
use std::any::Any;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;
use std::task::Waker;

/// The operator of a run. Clones are the same.
#[derive(Clone)]
pub enum Combiner {
    /// Of a call that waits for the end.
    Lent(*const dyn Reduction),
    Owned(Arc<dyn Reduction>),
}

// SAFETY: invariant 1; operators are `Send` and `Sync`.
unsafe impl Send for Combiner {}
// SAFETY: invariant 1; operators are `Sync`, and nothing of this changes.
unsafe impl Sync for Combiner {}

impl Combiner {
    /// An operator that the caller keeps until the run completes.
    pub fn lent(operator: &dyn Reduction) -> Combiner {
        // SAFETY: invariant 1: only the lifetime changes.
        let operator: *const (dyn Reduction + 'static) =
            unsafe { std::mem::transmute(std::ptr::from_ref(operator)) };
        Combiner::Lent(operator)
    }

    /// An operator that may borrow; the caller sees to it that the run ends before what
    /// it borrows.
    pub fn shared<'a>(operator: Arc<dyn Reduction + 'a>) -> Combiner {
        // SAFETY: invariant 1: only the lifetime changes.
        let operator = unsafe {
            std::mem::transmute::<Arc<dyn Reduction + 'a>, Arc<dyn Reduction + 'static>>(operator)
        };
        Combiner::Owned(operator)
    }

    pub fn get(&self) -> &dyn Reduction {
        match self {
            // SAFETY: invariant 1: the lender keeps it until the run completes.
            Combiner::Lent(operator) => unsafe { &**operator },
            Combiner::Owned(operator) => &**operator,
        }
    }

    /// Whether to combine, or to drop it, runs code that is not the library's.
    pub fn is_foreign(&self) -> bool {
        self.get().is_foreign()
    }
}

/// A step that combines by a function of the user, which runs without the lane: see
/// [`super::executor::Driver::combine`]. Its memory and operator are the run's.
pub struct Combination {
    combiner: Combiner,
    fit: Fit,
    /// Left, right and result of each piece.
    operands: Vec<[RawView; 3]>,
    /// The same where operands are a peer's.
    folded: Option<(Source, Source, Contiguous)>,
}

impl Combination {
    /// Runs the function.
    pub fn execute(&self) -> Result<()> {
        for [left, right, into] in &self.operands {
            combine(self.combiner.get(), &self.fit, left, right, into)?;
        }
        match &self.folded {
            None => Ok(()),
            Some((left, right, into)) => {
                let by = Fitted::new(self.combiner.get(), &self.fit);
                in_segment::fold(by, left, right, *into)
            }
        }
    }
}

/// A step that a device takes.
#[derive(Debug)]
pub enum Work {
    /// A kernel that copies or combines.
    Kernel(Direct),
    Exchange(Box<Exchanging>),
}

/// Packed bytes that a run works on in place of memory with gaps.
pub struct Shadow {
    pub packed: RawView,
    /// Where the result belongs.
    pub into: RawView,
}

/// Says from what a run has kept whether another may follow.
pub type Judge = Box<dyn FnOnce(&[Vec<u8>]) -> Option<Error> + Send>;

/// What follows a run, under the same handle.
pub struct Then {
    pub run: Box<Run>,
    /// What is wrong with its call.
    pub error: Option<Error>,
    pub judge: Judge,
}

/// A copy between a device and the host.
#[derive(Debug)]
pub enum Across {
    /// By a message to itself.
    Message(RawView, RawView),
    /// By the device.
    Work(Arc<Crossing>, Move),
}

/// In place of an instance: an operation that copies from or to a device before the first
/// step, or behind the last;
pub const COPY: u32 = u32::MAX;
/// the sending half of a step that copies by a message to the rank itself.
pub const HALF: u32 = u32::MAX - 1;

/// How a run stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Steps begin.
    Running,
    /// A step has failed: peers were notified, and memory is given back.
    Failing,
    #[default]
    Ended,
}

/// One run.
#[derive(Default)]
pub struct Run {
    pub program: Arc<Program>,
    pub schedule: Schedule,
    pub memory: Memory,
    pub combiner: Option<(Combiner, Fit)>,
    /// Upper part of its messages' tags.
    pub tags: u32,
    /// The collective, as its caller calls it; of others empty.
    pub name: &'static str,
    /// The program's call that began it.
    pub site: Option<Site>,
    pub phase: Phase,
    /// Operations in flight.
    pub in_flight: u32,
    /// Receives that are not posted yet.
    pub deferred: Vec<u32>,
    /// Whether receives are.
    pub defers: bool,
    /// Operands that are combined as they come.
    pub fused: Fused,
    pub error: Option<Error>,
    /// The rank of the job that it fails for; `None` if it is unknown.
    failed_rank: Option<u32>,
    /// Its number in the lane.
    pub id: u32,
    /// A panic of the program's operator.
    pub panic: Option<Box<dyn Any + Send>>,
    pub shadow: Option<Shadow>,
    /// Where copies and combinations are kernels of a device,
    pub on_device: Option<Combining>,
    /// those in flight, by instance.
    pub works: Vec<(u32, Work)>,
    /// The stream of the user that may take a step.
    pub stream: Option<Stream>,
    /// What is copied before the first step, and behind the last: from and to memory of devices.
    pub before: Vec<Across>,
    pub after: Vec<Across>,
    /// Operations of these in flight.
    pub copies: u32,
    /// Copies of what had gaps.
    pub kept: Vec<Vec<u8>>,
    /// Memory of the host in place of a device's.
    pub crossings: Vec<Arc<Crossing>>,
    /// Memory that must live until the end.
    #[allow(dead_code, reason = "it is only kept")]
    pub owner: Option<Box<dyn Any + Send>>,
    pub waker: Option<Waker>,
    pub notify: Option<(Arc<Ready>, u64)>,
    /// Nobody waits: it ends by itself.
    pub detached: bool,
    /// Streams that wait for its end.
    pub holds: Vec<Hold>,
    /// Steps complete before it began, by bits: see [`super::inline`].
    pub done: u128,
    /// The same of steps that follow one another: so many instances.
    pub taken: u32,
    pub then: Option<Box<Then>>,
    /// The number of its call, in a segment,
    pub number: u32,
    /// and in which: that of calls in order, or of a persistent one.
    pub number_of: u32,
    /// It has told peers there where its buffers lie.
    pub published: bool,
    /// Its flag there says that it has not failed.
    pub raised: bool,
    /// Peers whose flags of that kind will not come, where contributions differ.
    pub lacks: Vec<u32>,
    /// It waits for this peer's flag there, in this instance.
    pub awaits: Option<(u32, u32)>,
}

/// Bytes of an operand that are copied at a time where the result takes the place of
/// the right one.
const BLOCK_BYTES: usize = 2048;
/// Bytes of an operand that are copied before they are combined: half of a small
/// first-level cache.
const NEAR_BYTES: usize = 16 << 10;

impl Run {
    /// Forgets everything but room, and the program, which the lane keeps as well: a
    /// block that is used again allocates nothing.
    pub fn clear(&mut self) {
        self.memory.end();
        self.combiner = None;
        self.tags = 0;
        self.name = "";
        self.site = None;
        self.phase = Phase::Ended;
        self.in_flight = 0;
        self.deferred.clear();
        self.defers = false;
        self.fused.clear();
        self.error = None;
        self.failed_rank = None;
        self.id = 0;
        self.panic = None;
        self.shadow = None;
        self.on_device = None;
        self.works.clear();
        self.stream = None;
        self.before.clear();
        self.after.clear();
        self.copies = 0;
        self.kept.clear();
        self.crossings.clear();
        self.owner = None;
        self.waker = None;
        self.notify = None;
        self.detached = false;
        self.holds.clear();
        self.done = 0;
        self.taken = 0;
        self.then = None;
        self.number = 0;
        self.number_of = IN_ORDER;
        self.published = false;
        self.raised = false;
        self.lacks.clear();
        self.awaits = None;
    }

    /// Becomes another run, for callers that wait for this one; returns the old one.
    pub fn become_next(&mut self, mut next: Box<Run>) -> Box<Run> {
        std::mem::swap(self, &mut next);
        self.id = next.id;
        self.waker = next.waker.take();
        self.notify = next.notify.take();
        self.owner = next.owner.take();
        self.detached = next.detached;
        self.holds = std::mem::take(&mut next.holds);
        self.defers &= next.defers;
        self.failed_rank = next.failed_rank;
        next
    }

    /// Whom to blame, as it travels.
    pub fn failed_rank(&self) -> u32 {
        self.failed_rank.unwrap_or(u32::MAX)
    }

    pub fn set_failed_rank(&mut self, failed_rank: u32) {
        self.failed_rank = (failed_rank != u32::MAX).then_some(failed_rank);
    }

    /// The program's call that began it.
    pub fn site(&self) -> Site {
        self.site.unwrap_or_else(|| Location::caller().into())
    }

    /// Whether a step may still read memory of peers in a segment: not if the run fails, and no
    /// step is under way but one that waits; nor if it only waits until peers have read.
    pub fn may_read(&self) -> bool {
        let waits = u32::from(self.awaits.is_some());
        match self.phase {
            Phase::Ended => false,
            Phase::Failing => self.in_flight > waits,
            Phase::Running => {
                let leaves = |(instance, _)| matches!(self.place(instance).0, Action::Leave);
                !self.awaits.is_some_and(leaves)
            }
        }
    }

    pub fn is_over(&self) -> bool {
        self.phase == Phase::Ended
    }

    /// Step and segment of an instance.
    #[inline]
    pub fn place(&self, instance: u32) -> (Action, u32) {
        let steps = self.program.graph.steps();
        if self.program.graph.segments() == 1 {
            return (self.program.actions[instance as usize], 0);
        }
        (
            self.program.actions[(instance % steps) as usize],
            instance / steps,
        )
    }

    /// Whether a step sends while the run receives.
    #[inline]
    pub fn crosses(&self, instance: u32) -> bool {
        let steps = self.program.graph.steps().max(1);
        self.program.crosses(instance % steps)
    }

    /// Bytes of a region of its buffers, which is not cut.
    pub fn bytes_of(&self, data: Region) -> usize {
        self.memory.view(data, 0).bytes()
    }

    /// Completes an instance.
    #[inline]
    pub fn complete(&mut self, instance: u32) {
        if instance == COPY {
            self.copies -= 1;
            return;
        }
        if instance == HALF {
            return;
        }
        self.fused.received(instance);
        self.schedule.complete(&self.program.graph, instance);
    }

    /// Whether a combination is complete as it begins, by its receive.
    ///
    /// # Errors
    /// Its operand was to be combined as it came, and did not come.
    #[inline]
    pub fn was_combined(&mut self, instance: u32) -> Option<Result<()>> {
        let whole = self.fused.take_combined(instance)?;
        Some(whole.then_some(()).ok_or_else(no_operand))
    }

    /// Whether an instance was complete before the run began.
    #[inline]
    pub fn was_done(&self, instance: u32) -> bool {
        if self.program.in_segment {
            return instance < self.taken;
        }
        self.done != 0 && self.done >> instance & 1 != 0
    }

    /// Both ends of a copy that kernels of the run's device do not reach.
    pub fn apart(&self, action: Action, segment: u32) -> Option<(RawView, RawView)> {
        let (Action::Copy { from, to }, Some(on)) = (action, &self.on_device) else {
            return None;
        };
        let all = [from, to].map(|region| self.memory.for_kernels(region, segment));
        if all.iter().all(|view| view.bytes() == 0 || on.reaches(view)) {
            return None;
        }
        Some((
            self.memory.view(from, segment),
            self.memory.view(to, segment),
        ))
    }

    /// Begins to copy or combine on the device. None: there is nothing to do.
    pub fn begin_work(
        &self,
        devices: &Arc<Devices>,
        action: Action,
        segment: u32,
    ) -> Result<Option<Direct>> {
        let Some(on) = &self.on_device else {
            return Ok(None);
        };
        let view = |region| self.memory.for_kernels(region, segment);
        let unlike = |a: &RawView, b: &RawView| {
            Error::new(
                ErrorKind::Argument,
                format!(
                    "{} bytes into {} (hint: all ranks pass the same count)",
                    a.bytes(),
                    b.bytes()
                ),
            )
        };
        Ok(match action {
            Action::Copy { from, to } => {
                let (from, to) = (view(from), view(to));
                match (from.bytes(), to.bytes()) {
                    (0, 0) => None,
                    _ if from.span() == to.span() => None,
                    (a, b) if a != b => return Err(unlike(&from, &to)),
                    _ => Some(on.copy(devices, &from, &to)?),
                }
            }
            Action::Combine { left, right, into } => {
                let (left, right, into) = (view(left), view(right), view(into));
                let bytes = into.bytes();
                if left.bytes() != bytes || right.bytes() != bytes {
                    return Err(unlike(&left, &into));
                }
                match bytes {
                    0 => None,
                    _ => Some(on.combine(devices, Operands { left, right, into })?),
                }
            }
            _ => None,
        })
    }

    /// Begins the reduction to all ranks that is one kernel of each.
    ///
    /// # Errors
    /// No kernel combines this, or the driver refuses; nothing is in flight then.
    pub fn begin_exchange(
        &self,
        devices: &Arc<Devices>,
        exchange: &Arc<Exchange>,
        (from, into): (Region, Region),
    ) -> Result<Exchanging> {
        let (combiner, fit) = self.combiner.as_ref().ok_or_else(no_operator)?;
        let what = combiner.get().predefined(fit);
        let what = what.and_then(|(operator, element)| Exchanged::of(operator, element));
        let what = what.ok_or_else(|| {
            let told = "no kernel of one launch combines these elements";
            Error::new(ErrorKind::Unavailable, told)
        })?;
        let [from, into] = [from, into].map(|region| self.memory.view(region, 0));
        let (on, what) = (self.stream.as_ref(), (what, self.tags));
        Ok(Exchanging::begin(
            devices,
            exchange,
            on,
            what,
            [&from, &into],
        )?)
    }

    fn operands(&self, of: [Region; 3], segment: u32) -> impl Iterator<Item = [RawView; 3]> {
        let [left, right, into] = of.map(|region| self.memory.views(region, segment));
        let pairs = left.zip(right).zip(into);
        pairs.map(|((left, right), into)| [left, right, into])
    }

    /// Whether its steps that combine run code that is not the library's.
    pub fn combines_by_foreign_code(&self) -> bool {
        let combiner = self.combiner.as_ref();
        combiner.is_some_and(|(combiner, _)| combiner.is_foreign())
    }

    /// A step that combines, for a function of the user that runs without the lane.
    pub fn combination(&self, action: Action, segment: u32) -> Result<Combination> {
        let (Action::Combine { left, right, into }, Some((combiner, fit))) =
            (action, &self.combiner)
        else {
            return Err(no_operator());
        };
        Ok(Combination {
            combiner: combiner.clone(),
            fit: *fit,
            operands: self.operands([left, right, into], segment).collect(),
            folded: None,
        })
    }

    /// The same of operands that are a peer's.
    pub fn folding(&self, folded: (Source, Source, Contiguous)) -> Result<Combination> {
        let (combiner, fit) = self.combiner.as_ref().ok_or_else(no_operator)?;
        Ok(Combination {
            combiner: combiner.clone(),
            fit: *fit,
            operands: Vec::new(),
            folded: Some(folded),
        })
    }

    /// Puts the result where it belongs.
    pub fn deliver(&mut self) -> Result<()> {
        match self.shadow.take() {
            Some(shadow) => copy(&shadow.packed, &shadow.into),
            None => Ok(()),
        }
    }
}

/// Memory of the host, combined by an operator of the library.
impl Regions for &Run {
    #[inline]
    fn view(&mut self, region: Region, segment: u32) -> RawView {
        self.memory.view(region, segment)
    }

    fn combine(&mut self, regions: [Region; 3], segment: u32) -> Result<()> {
        let (combiner, fit) = self.combiner.as_ref().ok_or_else(no_operator)?;
        let operator = combiner.get();
        for [left, right, into] in self.operands(regions, segment) {
            combine(operator, fit, &left, &right, &into)?;
        }
        Ok(())
    }
}

impl in_segment::Places for Run {
    fn own(&mut self, region: Region, segment: u16) -> RawView {
        self.memory.view(region, segment.into())
    }

    fn contiguous(&mut self, region: Region, segment: u16) -> Option<Contiguous> {
        let view = self.memory.view(region, segment.into());
        let bytes = view.bytes();
        Some(Contiguous {
            at: view.as_contiguous()?,
            bytes,
        })
    }

    fn of_peer(&mut self, peer: u32, region: Region, segment: u16) -> Range<usize> {
        self.memory.of_peer(peer, region, segment.into())
    }

    fn segments(&self) -> u32 {
        self.memory.segments()
    }

    fn one_reader(&self) -> bool {
        self.program.one_reader
    }

    fn least_lent(&self) -> Option<usize> {
        self.program.least_lent
    }

    fn bytes(&self) -> u64 {
        match self.program.cells {
            0 => self.memory.contributed(),
            // Ranks contribute what they like.
            _ => 0,
        }
    }

    fn slot_bytes(&self) -> usize {
        self.memory.slot_bytes()
    }

    fn set_slot(&mut self, at: *mut u8) {
        self.memory.set_slot(at);
    }

    fn cells(&self) -> Cells {
        Cells(self.program.cells)
    }

    fn operator(&self) -> Option<Fitted<'_>> {
        let (combiner, fit) = self.combiner.as_ref()?;
        Some(Fitted::new(combiner.get(), fit))
    }
}

#[cold]
fn no_operand() -> Error {
    Error::new(ErrorKind::Malformed, "a message of a reduction lacks bytes")
}

#[cold]
fn no_operator() -> Error {
    Error::new(ErrorKind::Argument, "a reduction without operator")
}

/// Copies a message of the host.
pub fn copy(from: &RawView, to: &RawView) -> Result<()> {
    let bytes = from.bytes();
    if bytes != to.bytes() {
        return Err(Error::new(
            ErrorKind::Argument,
            format!(
                "{bytes} bytes into {} (hint: all ranks pass the same count)",
                to.bytes()
            ),
        ));
    }
    match (from.as_contiguous(), to.as_contiguous()) {
        (Some(from), Some(to)) => {
            // SAFETY: invariants 2 and 3: both have `bytes` bytes; they may overlap.
            unsafe { std::ptr::copy(from, to, bytes) };
        }
        (_, Some(to)) => {
            // SAFETY: invariants 2 and 3: both have `bytes` bytes; memory with gaps overlaps
            // no other.
            unsafe { from.pack(0..bytes, to) };
        }
        (Some(from), _) => {
            // SAFETY: invariants 2 and 3: both have `bytes` bytes; memory with gaps overlaps
            // no other.
            unsafe { to.unpack(0..bytes, from) };
        }
        (None, None) => {
            let mut block = vec![0u8; bytes.min(64 << 10)];
            let mut at = 0;
            while at < bytes {
                let end = bytes.min(at + block.len());
                // SAFETY: invariants 2 and 3: the range is the view's; the block has room.
                unsafe { from.pack(at..end, block.as_mut_ptr()) };
                // SAFETY: invariants 2 and 3: the range is the view's; the block has just
                // been filled.
                unsafe { to.unpack(at..end, block.as_ptr()) };
                at = end;
            }
        }
    }
    Ok(())
}

#[repr(align(64))]
struct Block([u8; BLOCK_BYTES]);

/// `into = left op right`, of contiguous memory of the host.
pub fn combine(
    operator: &dyn Reduction,
    fit: &Fit,
    left: &RawView,
    right: &RawView,
    into: &RawView,
) -> Result<()> {
    let bytes = into.bytes();
    let places = (
        left.as_contiguous(),
        right.as_contiguous(),
        into.as_contiguous(),
    );
    let (Some(left), Some(right), Some(to)) = places else {
        return Err(Error::new(
            ErrorKind::Argument,
            format!("operands of {bytes} bytes with gaps cannot be combined in place"),
        ));
    };
    if bytes == 0 {
        return Ok(());
    }
    if let Some((operator, element)) = operator.predefined(fit) {
        // SAFETY: invariants 2, 3 and 4: as many bytes each, written by steps before, of
        // pieces that are apart, or one.
        return Ok(unsafe { operator.combine_raw(element, left, right, to, bytes) }?);
    }
    if to != right {
        // What was copied is still in the nearest cache when it is combined.
        let step = match to == left {
            true => bytes,
            false => (NEAR_BYTES / fit.unit).max(1) * fit.unit,
        };
        let mut at = 0;
        while at < bytes {
            let n = step.min(bytes - at);
            let to = to.wrapping_add(at);
            if to != left.wrapping_add(at) {
                // SAFETY: invariants 2 and 4: as many bytes in each, of regions that are
                // apart.
                unsafe { osier_datatype::copy_bytes(left.wrapping_add(at), to, n) };
            }
            // SAFETY: invariants 2, 3 and 4: the run's own piece, written by the copy or a
            // step before.
            let to = unsafe { std::slice::from_raw_parts_mut(to, n) };
            // SAFETY: invariants 2, 3 and 4: the run's own piece, apart from `to`, written by
            // a step before.
            let right = unsafe { std::slice::from_raw_parts(right.wrapping_add(at), n) };
            operator.combine(fit, to, right)?;
            at += n;
        }
        return Ok(());
    }
    if fit.commutes {
        // SAFETY: invariants 2, 3 and 4: the run's own piece, written by a step before.
        let to = unsafe { std::slice::from_raw_parts_mut(to, bytes) };
        // SAFETY: invariants 2, 3 and 4: the run's own piece, apart from `to`, written by a
        // step before.
        let left = unsafe { std::slice::from_raw_parts(left, bytes) };
        return operator.combine(fit, to, left);
    }
    let mut short;
    let mut large;
    let block: &mut [u8] = if fit.unit <= BLOCK_BYTES {
        short = Block([0; BLOCK_BYTES]);
        &mut short.0
    } else {
        large = vec![0u8; fit.unit];
        &mut large
    };
    let step = block.len() / fit.unit * fit.unit;
    let mut at = 0;
    while at < bytes {
        let n = step.min(bytes - at);
        let sum = &mut block[..n];
        // SAFETY: invariants 2 and 3: within the left piece; the block is elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(left.wrapping_add(at), sum.as_mut_ptr(), n) };
        // SAFETY: invariants 2 and 3: within the right piece, written by a step before.
        let to = unsafe { std::slice::from_raw_parts_mut(to.wrapping_add(at), n) };
        operator.combine(fit, sum, to)?;
        to.copy_from_slice(sum);
        at += n;
    }
    Ok(())
}
