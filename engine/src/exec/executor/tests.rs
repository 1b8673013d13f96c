//! The executor without a lane: ranks as values, messages in queues, ends in any order.

mod cells;
mod fused;
mod shares;

use super::*;
use crate::exec::in_segment::{FAILED, Part, Waited};
use crate::exec::lower::lower;
use crate::exec::memory::{Buffers, Pieces, Sizes};
use crate::exec::operator::{Data, Fit, Reduction};
use crate::exec::run::Combiner;
use osier_collectives::{Algorithm, Association, Call, Operation, Plan};
use osier_transports::PeerMemory;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;

const UNIT: usize = 8;

/// Wrapping sums of 64-bit numbers.
struct Sum;

impl Reduction for Sum {
    fn fit(&self, _data: &Data<'_>) -> Result<Fit> {
        Ok(Fit::of_unit(UNIT, Association::Any))
    }

    fn is_foreign(&self) -> bool {
        false
    }

    fn combine(&self, _fit: &Fit, left: &mut [u8], right: &[u8]) -> Result<()> {
        for (left, right) in left.chunks_exact_mut(UNIT).zip(right.chunks_exact(UNIT)) {
            let sum = number(left).wrapping_add(number(right));
            left.copy_from_slice(&sum.to_le_bytes());
        }
        Ok(())
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |n, byte| n << 8 | u64::from(*byte))
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n.max(1)
    }
}

/// A message, or the failed rank that stands in its place.
type Sent = std::result::Result<Vec<u8>, u32>;

/// What all ranks share.
struct Net {
    random: Random,
    /// By receiver, sender and tag.
    queues: BTreeMap<(u32, u32, u32), VecDeque<Sent>>,
    /// Receives without memory that are owed a message.
    sinks: BTreeMap<(u32, u32, u32), usize>,
    /// Posts until one fails, or steps in a segment.
    fails_in: Option<usize>,
    /// Most bytes of a message that come at a time; 0: all.
    pieces: usize,
    /// By rank: its flags of both sets, what it says of its memory, segments that are over,
    /// and its slots.
    segment: Vec<InSegment>,
    /// A rank that is dead.
    dead: Option<u32>,
}

/// What a rank has in the segment.
struct InSegment {
    flags: [Option<(At, u16)>; 2],
    bytes: u64,
    published: [usize; 2],
    over: u16,
    left: bool,
    slots: [Box<[u8]>; 2],
    rooms: [Box<[u8]>; 2],
}

impl InSegment {
    fn new() -> Self {
        Self {
            flags: [None; 2],
            bytes: 0,
            published: [0; 2],
            over: 0,
            left: false,
            slots: [(); 2].map(|()| vec![0u8; SLOT].into()),
            rooms: [(); 2].map(|()| vec![0u8; SLOT + (4 << 10)].into()),
        }
    }
}

const SLOT: usize = osier_transports::shm::SLOT_BYTES;

/// Room beside a flag, in a page, or elsewhere.
fn room(rooms: &mut [u8], bytes: usize) -> *mut u8 {
    let at = match bytes {
        0..=32 => 0,
        33..=1856 => 64,
        _ => 4 << 10,
    };
    rooms[at..].as_mut_ptr()
}

fn set_of(at: At) -> usize {
    usize::from(at.segment % 2)
}

struct Pending {
    run: u32,
    instance: u32,
    view: RawView,
    peer: u32,
    tag: u32,
    receives: bool,
}

struct Rank {
    own: u32,
    executor: Executor,
    net: Rc<RefCell<Net>>,
    next: u32,
    pending: BTreeMap<u32, Pending>,
    ends: HashMap<u32, OperationEnd>,
    ended: VecDeque<StepEnd>,
    failed_rank: u32,
    devices: Arc<Devices>,
}

fn bytes_of(view: &RawView) -> Vec<u8> {
    let mut bytes = vec![0; view.bytes()];
    // SAFETY: invariant 2 of `run`: the test keeps the memory until all runs are complete.
    unsafe { view.pack(0..bytes.len(), bytes.as_mut_ptr()) };
    bytes
}

impl Rank {
    fn fails(&mut self) -> bool {
        let mut net = self.net.borrow_mut();
        match &mut net.fails_in {
            Some(0) => {
                net.fails_in = None;
                true
            }
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        }
    }

    fn later(&mut self, view: RawView, peer: u32, tag: u32, receives: bool) -> Started<u32> {
        self.next += 1;
        let pending = Pending {
            run: NO_RUN,
            instance: 0,
            view,
            peer,
            tag,
            receives,
        };
        self.pending.insert(self.next, pending);
        Started::Later(self.next)
    }

    fn deliver(&self, to: u32, tag: u32, sent: Sent) {
        let key = (to, self.own, tag);
        let mut net = self.net.borrow_mut();
        if let Some(left) = net.sinks.get_mut(&key).filter(|left| **left > 0) {
            *left -= 1;
            return;
        }
        net.queues.entry(key).or_default().push_back(sent);
    }

    fn accept(&mut self, view: &RawView, from: u32, tag: u32) -> Option<Result<usize>> {
        let key = (self.own, from, tag);
        let sent = self.net.borrow_mut().queues.get_mut(&key)?.pop_front()?;
        Some(match sent {
            Ok(bytes) => {
                // SAFETY: invariant 2 of `run`: kept until all runs are complete; plans send what
                // their peers expect.
                let unpack = |range: std::ops::Range<usize>| unsafe {
                    view.unpack(range.clone(), bytes[range].as_ptr());
                };
                let mut net = self.net.borrow_mut();
                let most = net.pieces;
                let random = &mut net.random;
                let mut at = 0;
                while most > 0 && at < bytes.len() {
                    let end = (at + 1 + random.below(most)).min(bytes.len());
                    unpack(at - random.below(at + 1).min(9)..end);
                    at = end;
                }
                if most == 0 {
                    unpack(0..bytes.len());
                }
                Ok(bytes.len())
            }
            Err(failed_rank) => {
                self.failed_rank = failed_rank;
                Err(Error::new(ErrorKind::Cancelled, "poisoned"))
            }
        })
    }

    /// Ends one operation that can end, any of them. False if none can.
    fn progress(&mut self) -> bool {
        if self.executor.awaits_flags() {
            advance_flags(self);
            // It looks again, though nothing was there.
            return true;
        }
        let handles: Vec<u32> = self.pending.keys().copied().collect();
        let first = self.net.borrow_mut().random.below(handles.len());
        for at in 0..handles.len() {
            let handle = handles[(first + at) % handles.len()];
            let Some(Pending {
                view,
                peer,
                tag,
                receives,
                ..
            }) = self.pending.get(&handle)
            else {
                continue;
            };
            let (view, peer, tag, receives) = (view.clone(), *peer, *tag, *receives);
            let earlier = self.pending.iter().any(|(other, pending)| {
                *other < handle
                    && (pending.peer, pending.tag, pending.receives) == (peer, tag, receives)
            });
            if earlier {
                continue; // messages of one pair do not overtake
            }
            let result = match receives {
                true => match self.accept(&view, peer, tag) {
                    Some(result) => result,
                    None => continue,
                },
                false => {
                    self.deliver(peer, tag, Ok(bytes_of(&view)));
                    Ok(view.bytes())
                }
            };
            let Some(pending) = self.pending.remove(&handle) else {
                continue;
            };
            self.ended.push_back(StepEnd {
                run: pending.run,
                instance: pending.instance,
                handle,
                failed_rank: std::mem::replace(&mut self.failed_rank, NOBODY),
            });
            let room = receives.then(|| view.bytes());
            self.ends
                .insert(handle, OperationEnd { peer, room, result });
            advance(self);
            return true;
        }
        false
    }
}

/// Every look may find what is there, or may come too early.
impl Segment for Rank {
    fn rank(&self) -> u32 {
        self.own
    }

    fn enter(&mut self, at: At, slot_bytes: usize) -> Waited<*mut u8> {
        if self.fails() {
            return Waited::Failed(Error::new(ErrorKind::System, "no memory"), NOBODY);
        }
        let mut net = self.net.borrow_mut();
        let dead = net.dead;
        let others = (0..net.segment.len() as u32).filter(|p| *p != self.own && Some(*p) != dead);
        let past = |rank: u32| {
            let of = &net.segment[rank as usize];
            of.left || of.over + 1 >= at.segment
        };
        let late = others.clone().find(|peer| !past(*peer));
        if let Some(peer) = late {
            return Waited::For(peer);
        }
        if net.random.below(3) == 0 {
            return Waited::For(self.own);
        }
        assert!(slot_bytes <= SLOT);
        let own = &mut net.segment[self.own as usize];
        Waited::Done(own.slots[set_of(at)].as_mut_ptr())
    }

    fn publish(&mut self, _at: At, input: &RawView, output: &RawView) -> Result<()> {
        let place = |view: &RawView| view.as_contiguous().map_or(0, <*mut u8>::expose_provenance);
        self.net.borrow_mut().segment[self.own as usize].published = [place(input), place(output)];
        Ok(())
    }

    fn raise(&mut self, at: At, phase: u16, bytes: u64) {
        let own = &mut self.net.borrow_mut().segment[self.own as usize];
        own.bytes = bytes;
        own.flags[set_of(at)] = Some((at, phase));
    }

    fn may_raise(&mut self, _at: At) -> Waited<()> {
        match self.net.borrow_mut().random.below(3) {
            0 => Waited::For(self.own),
            _ => Waited::Done(()),
        }
    }

    fn raise_failed(&mut self, at: At, _failed_rank: u32) {
        let own = &mut self.net.borrow_mut().segment[self.own as usize];
        own.flags = [Some((at, FAILED)); 2];
    }

    fn flag(&mut self, at: At, from: u32, phase: u16) -> Waited<u64> {
        let mut net = self.net.borrow_mut();
        let early = net.random.below(3) == 0;
        let of = &net.segment[from as usize];
        match of.flags[set_of(at)] {
            Some((_, FAILED)) => {
                let e = Error::new(ErrorKind::Cancelled, "the peer has failed");
                return Waited::Failed(e, NOBODY);
            }
            Some((raised, p)) if (raised.segment, p) >= (at.segment, phase) && !early => {
                return Waited::Done(of.bytes);
            }
            _ => {}
        }
        match net.dead == Some(from) && !early {
            true => Waited::Failed(Error::new(ErrorKind::RankDead, "dead"), from),
            false => Waited::For(from),
        }
    }

    fn may_read(&mut self, _: At, _: u32) -> bool {
        false
    }

    fn turns_anew(&mut self, _: u32) {}

    fn own_room(&mut self, at: At, bytes: usize) -> Result<*mut u8> {
        if self.fails() {
            return Err(Error::new(ErrorKind::System, "no memory"));
        }
        let own = &mut self.net.borrow_mut().segment[self.own as usize];
        Ok(room(&mut own.rooms[set_of(at)], bytes))
    }

    fn room_of(&mut self, at: At, from: u32, bytes: usize) -> Result<PeerMemory> {
        if self.fails() {
            return Err(Error::new(ErrorKind::System, "a read that fails"));
        }
        let of = &mut self.net.borrow_mut().segment[from as usize];
        let start = room(&mut of.rooms[set_of(at)], bytes);
        // SAFETY: invariant 2 of `run`: the test keeps rooms until all are complete.
        Ok(unsafe { PeerMemory::writable(start, bytes, usize::MAX) })
    }

    fn memory_of(&mut self, at: At, from: u32, part: Part, end: usize) -> Result<PeerMemory> {
        if self.fails() {
            return Err(Error::new(ErrorKind::System, "a read that fails"));
        }
        let net = self.net.borrow();
        let of = &net.segment[from as usize];
        let start = match part {
            Part::Slot(_) => of.slots[set_of(at)].as_ptr(),
            Part::Input => std::ptr::with_exposed_provenance(of.published[0]),
            Part::Output => std::ptr::with_exposed_provenance(of.published[1]),
        };
        assert!(
            !of.left || matches!(part, Part::Slot(_)),
            "memory was given back"
        );
        // SAFETY: invariant 2 of `run`: the test keeps buffers and slots until all are complete.
        Ok(unsafe { PeerMemory::mapped(start, end) })
    }

    fn lend(&mut self, _at: At, _memory: Option<(*const u8, usize)>) -> bool {
        false
    }

    fn leave(&mut self, at: At, last: bool) -> Waited<()> {
        let own = &mut self.net.borrow_mut().segment[self.own as usize];
        own.over = at.segment + 1;
        own.left |= last;
        Waited::Done(())
    }

    fn lost_while_reading(&mut self, _from: u32, e: Error) -> (Error, u32) {
        (e, NOBODY)
    }
}

impl Driver for Rank {
    fn executor(&mut self) -> &mut Executor {
        &mut self.executor
    }

    fn own(&self) -> u32 {
        self.own
    }

    fn post_send(
        &mut self,
        view: RawView,
        to: u32,
        tag: u32,
        _crossing: bool,
        _site: Site,
    ) -> Result<Started<u32>> {
        if self.fails() {
            // It names no rank: the message was not sent.
            self.deliver(to, tag, Err(NOBODY));
            return Err(Error::new(ErrorKind::System, "a post that fails"));
        }
        let waits = self
            .pending
            .values()
            .any(|p| (p.peer, p.tag, p.receives) == (to, tag, false));
        if waits || self.net.borrow_mut().random.below(2) == 0 {
            return Ok(self.later(view, to, tag, false));
        }
        self.deliver(to, tag, Ok(bytes_of(&view)));
        Ok(Started::Done(view.bytes()))
    }

    fn post_receive(
        &mut self,
        view: RawView,
        from: u32,
        tag: u32,
        _site: Site,
    ) -> Result<Started<u32>> {
        let waits = self
            .pending
            .values()
            .any(|p| (p.peer, p.tag, p.receives) == (from, tag, true));
        if !waits
            && self.net.borrow_mut().random.below(2) == 0
            && let Some(result) = self.accept(&view, from, tag)
        {
            return result.map(Started::Done);
        }
        Ok(self.later(view, from, tag, true))
    }

    fn adopt(&mut self, handle: u32, run: u32, instance: u32) {
        if let Some(pending) = self.pending.get_mut(&handle) {
            (pending.run, pending.instance) = (run, instance);
        }
    }

    fn has_ends(&self) -> bool {
        !self.ended.is_empty()
    }

    fn next_end(&mut self) -> Option<StepEnd> {
        self.ended.pop_front()
    }

    fn take_end(&mut self, handle: u32) -> Option<OperationEnd> {
        self.ends.remove(&handle)
    }

    fn operations(&self, run: u32) -> Vec<u32> {
        let of = self
            .pending
            .iter()
            .filter(|(_, pending)| pending.run == run);
        of.map(|(handle, _)| *handle).collect()
    }

    fn hear(&self, _run: u32) {}

    fn stop(&mut self, handle: u32, failed_rank: u32) -> Option<u32> {
        let pending = self.pending.remove(&handle)?;
        match pending.receives {
            true => self.discard(pending.peer, pending.tag),
            false => self.poison(pending.peer, pending.tag, failed_rank),
        }
        Some(pending.instance)
    }

    fn discard(&mut self, from: u32, tag: u32) {
        let key = (self.own, from, tag);
        let mut net = self.net.borrow_mut();
        let there = net.queues.get_mut(&key).and_then(VecDeque::pop_front);
        if there.is_none() {
            *net.sinks.entry(key).or_default() += 1;
        }
    }

    fn poison(&mut self, to: u32, tag: u32, failed_rank: u32) {
        self.deliver(to, tag, Err(failed_rank));
    }

    fn failed_rank(&mut self, _peer: u32, _error: &Error) -> u32 {
        std::mem::replace(&mut self.failed_rank, NOBODY)
    }

    fn devices(&self) -> &Arc<Devices> {
        &self.devices
    }

    fn lost(&mut self, _tag: u32) -> Option<Lost> {
        None
    }

    fn size(&self) -> u32 {
        unreachable!("no plan of these tests is one kernel")
    }

    fn count_combined(&mut self) {}

    fn count_crossed(&mut self, _bytes: usize) {}

    fn combine(&mut self, _run: u32, _instance: u32, _combination: Combination) {
        unreachable!("the operator is the library's")
    }

    fn drop_later(&mut self, value: Option<Foreign>) {
        drop(value);
    }

    fn run_is_over(&mut self, _waker: Option<Waker>) {}
}

/// Runs an allreduce of `elements` numbers on all ranks to its end: the results of each, and
/// what is left in the net.
fn play(
    (algorithm, size, segments): (Algorithm, u32, u32),
    elements: usize,
    seed: u64,
    fails_in: Option<usize>,
) -> Option<(Vec<Result<Vec<u8>>>, usize)> {
    play_with_death(
        (algorithm, size, segments),
        elements,
        seed,
        (fails_in, None),
    )
}

/// The same; `dies` names a rank and the number of moves of all ranks after which it stops.
fn play_with_death(
    (algorithm, size, segments): (Algorithm, u32, u32),
    elements: usize,
    seed: u64,
    (fails_in, dies): (Option<usize>, Option<(u32, usize)>),
) -> Option<(Vec<Result<Vec<u8>>>, usize)> {
    let call = Call::new(Operation::Allreduce, size);
    let plan = Plan::new(call, algorithm, segments).ok()?;
    let bytes = elements * UNIT;
    let number_of = |rank: u32, at: usize| u64::from(rank + 1) * 1000 + at as u64;
    let mut inputs: Vec<Vec<u8>> = (0..size)
        .map(|rank| {
            (0..elements)
                .flat_map(|at| number_of(rank, at).to_le_bytes())
                .collect()
        })
        .collect();
    let mut outputs = vec![vec![0u8; bytes]; size as usize];
    let view = |bytes: &mut Vec<u8>| Pieces::Cut(RawView::untyped(bytes.as_mut_ptr(), bytes.len()));
    let buffers = inputs
        .iter_mut()
        .zip(&mut outputs)
        .map(|(send, recv)| Buffers {
            send: view(send),
            recv: view(recv),
            sizes: Sizes::Cut(bytes),
            unit: UNIT,
        });
    let sum = || {
        let sum = Combiner::Owned(Arc::new(Sum));
        Some((sum, Fit::of_unit(UNIT, Association::Any)))
    };
    let (ends, left) = play_plan(&plan, buffers.collect(), sum, seed, (fails_in, dies));
    let results =
        (ends.into_iter()).map(|(rank, end)| end.map(|()| outputs[rank as usize].clone()));
    Some((results.collect(), left))
}

/// Runs a plan on all ranks, of these buffers, to its end: how each rank's run has ended, and what
/// is left in the net.
fn play_plan(
    plan: &Plan,
    buffers: Vec<Buffers>,
    combiner: impl Fn() -> Option<(Combiner, Fit)>,
    seed: u64,
    faults: (Option<usize>, Option<(u32, usize)>),
) -> (Vec<(u32, Result<()>)>, usize) {
    let program = |rank| lower(plan.call(), &plan.part(rank)).expect("a program");
    let (ends, left, _) = play_programs(plan, program, buffers, combiner, (seed, 0), faults);
    (ends, left)
}

/// The same of these programs; of messages, receives get pieces of at most that number of bytes, if it
/// is not 0, some of which come once more. And the combinations of operands as they came.
fn play_programs(
    plan: &Plan,
    program: impl Fn(u32) -> Program,
    buffers: Vec<Buffers>,
    combiner: impl Fn() -> Option<(Combiner, Fit)>,
    (seed, pieces): (u64, usize),
    (fails_in, dies): (Option<usize>, Option<(u32, usize)>),
) -> (Vec<(u32, Result<()>)>, usize, u64) {
    let size = plan.call().size;
    let net = Rc::new(RefCell::new(Net {
        random: Random(seed),
        queues: BTreeMap::new(),
        sinks: BTreeMap::new(),
        fails_in,
        pieces,
        segment: (0..size).map(|_| InSegment::new()).collect(),
        dead: None,
    }));
    let mut ranks: Vec<(Rank, u32)> = Vec::new();
    for (rank, buffers) in (0..size).zip(buffers) {
        let mut driver = Rank {
            own: rank,
            executor: Executor::default(),
            net: net.clone(),
            next: 0,
            pending: BTreeMap::new(),
            ends: HashMap::new(),
            ended: VecDeque::new(),
            failed_rank: NOBODY,
            devices: Arc::default(),
        };
        let program = program(rank);
        let mut run = driver.executor.spare_run();
        run.memory.begin(&program, buffers, None).expect("memory");
        run.program = Arc::new(program);
        run.combiner = combiner();
        run.tags = driver.executor.next_tags();
        let id = begin(&mut driver, run, None).expect("a run");
        ranks.push((driver, id));
    }
    let mut order = Random(seed ^ 0x9e37_79b9);
    for moves in 0.. {
        assert!(moves < 1_000_000, "it never ends");
        if let Some((rank, _)) = dies.filter(|(_, at)| *at == moves) {
            net.borrow_mut().dead = Some(rank);
            ranks.retain(|(driver, _)| driver.own != rank);
        }
        let first = order.below(ranks.len());
        let living = ranks.len();
        let mut at = (0..living).map(|at| (first + at) % living);
        if !at.any(|at| ranks[at].0.progress()) {
            break;
        }
    }
    let (mut results, mut fused) = (Vec::new(), 0);
    for (driver, id) in &mut ranks {
        fused += driver.executor.fused;
        let end = take(driver, *id).expect("the run is over");
        assert!(driver.pending.is_empty() && driver.executor.is_empty());
        results.push((driver.own, end.result));
    }
    let net = net.borrow();
    let left = net.queues.values().map(VecDeque::len).sum::<usize>();
    (results, left + net.sinks.values().sum::<usize>(), fused)
}

fn cases() -> impl Iterator<Item = (Algorithm, u32, u32)> {
    let all = Algorithm::FLAT.into_iter().chain(Algorithm::IN_SEGMENT);
    all.flat_map(|algorithm| {
        let sizes = (1..8).map(move |size| (algorithm.clone(), size));
        sizes.flat_map(|(algorithm, size)| [1, 3, 20].map(|cut| (algorithm.clone(), size, cut)))
    })
}

#[test]
fn every_allreduce_gives_sums_in_any_order_of_ends() {
    let mut played = 0;
    for case in cases() {
        for seed in 0..6 {
            let elements = [0, 1, 7, 200][seed as usize % 4];
            let Some((results, left)) = play(case.clone(), elements, seed, None) else {
                continue;
            };
            let size = u64::from(case.1);
            for result in results {
                let sums = result.expect("no step fails");
                for (at, sum) in sums.chunks_exact(UNIT).enumerate() {
                    let expected = 1000 * size * (size + 1) / 2 + size * at as u64;
                    assert_eq!(number(sum), expected, "{case:?} seed {seed}");
                }
            }
            assert_eq!(left, 0, "{case:?} seed {seed}");
            played += 1;
        }
    }
    assert!(played > 100);
}

/// Invariant 2: whichever post fails, every run ends, and each message meets a receive.
#[test]
fn a_failed_post_ends_every_run_and_leaves_no_message() {
    let mut failed = 0;
    for case in cases().filter(|(_, size, _)| *size > 1) {
        for at in 0..24 {
            let Some((results, left)) = play(case.clone(), 40, at as u64, Some(at)) else {
                continue;
            };
            failed += usize::from(results.iter().any(Result::is_err));
            assert_eq!(left, 0, "{case:?}, post {at} fails");
        }
    }
    assert!(failed > 100);
}

/// Whichever rank dies, and whenever: the others end, with their sums or an error.
#[test]
fn a_death_in_a_segment_ends_every_run() {
    let (mut failed, mut fine) = (0, 0);
    for (algorithm, size, segments) in cases().filter(|(a, ..)| a.in_segment()) {
        for at in 0..60usize {
            let (rank, seed) = (at as u32 % size, at as u64 * 7);
            let case = (algorithm.clone(), size, segments);
            let dies = (None, Some((rank, at)));
            let Some((results, _)) = play_with_death(case, 40, seed, dies) else {
                continue;
            };
            for result in results {
                match result {
                    Err(e) => {
                        let known = [ErrorKind::RankDead, ErrorKind::Cancelled];
                        assert!(known.contains(&e.kind()), "{e}");
                        failed += 1;
                    }
                    Ok(sums) => {
                        let size = u64::from(size);
                        let sum = number(&sums[..UNIT]);
                        assert_eq!(sum, 1000 * size * (size + 1) / 2);
                        fine += 1;
                    }
                }
            }
        }
    }
    assert!(failed > 100 && fine > 100, "{failed} failed, {fine} fine");
}
