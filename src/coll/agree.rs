//! Do all ranks make the same call? Asked before each call, where `OSIER_CHECK` has
//! `collectives`.
//!
//! ```text
//! call -> record -> allreduce of records -> all alike: the call
//!                                        -> not: an error on all ranks, with both calls
//! ```
//!
//! A record has the arguments on which all ranks of a call agree. Two records that differ
//! make a pair, and a pair combined with anything stays the result. So all ranks have the
//! same verdict, and no rank begins a call that others do not make. The round is a run that
//! another follows, so calls that do not wait do not wait for it either. It also collects
//! where the ranks' memory lies, for `spaces`.
//!
//! # Invariants
//! 1. The round is the same for all calls: one allreduce over all ranks of the lane,
//!    of as many bytes, by the tags of the call's number.

use super::Communicator;
use super::ask::{Ask, mismatch};
use crate::choice::spaces::Found;
use osier_collectives::{Algorithm, Association, Call, Operation, Plan};
use osier_engine::check::{Check, Checks, Site};
use osier_engine::error::{Error, Result};
use osier_engine::exec::executor;
use osier_engine::exec::lower::lower;
use osier_engine::exec::memory::{Buffers, Pieces, Sizes};
use osier_engine::exec::operator::{Data, Fit, Reduction};
use osier_engine::exec::program::Program;
use osier_engine::exec::run::{Combiner, Judge};
use osier_engine::site::file_line;
use osier_engine::view::RawView;
use std::panic::Location;
use std::sync::Arc;

/// Names the program of the round.
const KEY: u64 = u64::MAX - 1;
/// Bytes of one record.
const RECORD: usize = 256;
/// Bytes of what ranks combine: whether two records differ, what they say of their memory,
/// and the records.
const PAIR: usize = 8 + 2 * RECORD;
/// Of memory, each the least of all ranks: whether all lies on devices, whether none does,
/// the size class from above, and whether no call has failed.
const SPACES: std::ops::Range<usize> = 1..5;
/// Where the fields of a record begin; texts have their length first.
const RANK: usize = 0;
const LINE: usize = 4;
const ROOT: usize = 8;
const KNOWN: usize = 12;
/// Whether the call waits: calls that do and calls that do not are no match (MPI 5.0, section 6.12).
const HOW: usize = 13;
const WAITS: u8 = 1;
const GOES_ON: u8 = 2;
const BYTES: usize = 16;
const COUNTS: usize = 24;
const TYPES: usize = 32;
const NAME: (usize, usize) = (48, 24);
const OPERATOR: (usize, usize) = (72, 48);
const TYPES_TEXT: (usize, usize) = (120, 48);
const FILE: (usize, usize) = (168, 88);
/// Of a number that a rank does not know, or that a call has not.
const NONE: u64 = u64::MAX;

/// The round before a call.
pub(crate) struct Round {
    pub program: Arc<Program>,
    pub ask: Ask,
    /// The record, and room for the result.
    pub kept: Vec<Vec<u8>>,
    pub judge: Judge,
}

impl Communicator {
    /// The round before a call, if calls are checked. For the communicator of the runs.
    #[inline]
    pub(crate) fn round(&self, ask: &Ask, site: Site) -> Result<Option<Box<Round>>> {
        if !self.core().checks.has(Check::Collectives) || self.size() == 1 {
            return Ok(None);
        }
        self.make_round(ask, site).map(Some)
    }

    #[cold]
    fn make_round(&self, of: &Ask, site: Site) -> Result<Box<Round>> {
        let mut mine = vec![0u8; PAIR];
        let (all, any, class) = self.spaces_of(of);
        let least = [u8::from(all), u8::from(!any), u8::MAX - class as u8];
        mine[SPACES][..3].copy_from_slice(&least);
        mine[SPACES][3] = u8::from(of.error.is_none());
        let own = record(of, self.rank() as u32, site);
        mine[8..8 + RECORD].copy_from_slice(&own);
        let mut result = vec![0u8; PAIR];
        let view = |bytes: &mut Vec<u8>| Pieces::Cut(RawView::untyped(bytes.as_mut_ptr(), PAIR));
        let buffers = Buffers {
            send: view(&mut mine),
            recv: view(&mut result),
            sizes: Sizes::Cut(PAIR),
            unit: PAIR,
        };
        let call = Call::new(Operation::Allreduce, self.size() as u32);
        let mut ask = Ask::new("round", call, PAIR, buffers);
        let combiner = Combiner::Owned(Arc::new(Agreement));
        let fit = combiner.get().fit(&Data(&RawView::empty()))?;
        ask.combine((combiner, fit));
        ask.defers = of.defers;
        let (checks, own, title) = (self.core().checks.clone(), self.rank() as u32, self.title());
        Ok(Box::new(Round {
            program: self.program_of_round(&ask.call)?,
            ask,
            kept: vec![mine, result],
            judge: Box::new(move |kept| verdict(&kept[1], &checks, own, &title)),
        }))
    }
}

impl Communicator {
    /// The round before a call that waits, to its end: what ranks say of their memory, if no
    /// rank's call has failed.
    #[track_caller]
    pub(crate) fn round_first(&self, ask: &mut Ask) -> Result<Option<Found>> {
        let site = self.core().checks.site(Location::caller());
        let round = *self.make_round(ask, site)?;
        let kept = round.kept;
        let mut lane = self.lane().lock();
        let tags = lane.executor.next_tags();
        ask.agreed = Some(tags);
        let mut run = lane.executor.spare_run();
        if let Err(e) = run.memory.begin(&round.program, round.ask.buffers, None) {
            return Err(e.into());
        }
        run.program = round.program;
        run.combiner = round.ask.combiner;
        run.tags = tags;
        run.site = Some(site);
        run.defers = round.ask.defers;
        let begun = executor::begin(&mut *lane, run, None);
        self.core().after(&mut lane);
        drop(lane);
        self.finish(begun?)?;
        if let Some(e) = (round.judge)(&kept) {
            return Err(e);
        }
        let [all, none, class, fine] = [0, 1, 2, 3].map(|at| kept[1][SPACES][at]);
        let found = Found::new(all == 1, none == 0, u32::from(u8::MAX - class));
        Ok((fine == 1).then_some(found))
    }

    /// Always the same, whatever calls are to use.
    fn program_of_round(&self, call: &Call) -> Result<Arc<Program>> {
        if let Some(program) = self.lane().lock().executor.program(KEY) {
            return Ok(program);
        }
        let plan = Plan::new(call.clone(), Algorithm::RecursiveDoubling, 1);
        let plan = plan.map_err(|e| mismatch(e.to_string()))?;
        let made = Arc::new(lower(plan.call(), &plan.part(self.rank() as u32))?);
        self.lane().lock().executor.keep_program(KEY, made.clone());
        Ok(made)
    }
}

/// Combines records to a pair that differs, if any do.
struct Agreement;

impl Reduction for Agreement {
    fn fit(&self, _data: &Data<'_>) -> Result<Fit> {
        Ok(Fit::of_unit(PAIR, Association::Balanced))
    }

    fn is_foreign(&self) -> bool {
        false
    }

    fn combine(&self, _fit: &Fit, left: &mut [u8], right: &[u8]) -> Result<()> {
        for (left, right) in left.chunks_exact_mut(PAIR).zip(right.chunks_exact(PAIR)) {
            for (left, right) in left[SPACES].iter_mut().zip(&right[SPACES]) {
                *left = (*left).min(*right);
            }
            if left[0] != 0 {
                continue;
            }
            if right[0] != 0 {
                left[0] = right[0];
                left[8..].copy_from_slice(&right[8..]);
                continue;
            }
            let (a, b) = (&left[8..8 + RECORD], &right[8..8 + RECORD]);
            if difference(a, b).is_some() {
                left[0] = 1;
                left[8 + RECORD..].copy_from_slice(&right[8..8 + RECORD]);
            } else if knows(b) > knows(a) {
                left[8..8 + RECORD].copy_from_slice(&right[8..8 + RECORD]);
            }
        }
        Ok(())
    }
}

fn number(record: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&record[at..at + 8]);
    u64::from_le_bytes(bytes)
}

fn short(record: &[u8], at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&record[at..at + 4]);
    u32::from_le_bytes(bytes)
}

fn text(record: &[u8], (at, _): (usize, usize)) -> String {
    let len = usize::from(record[at]);
    String::from_utf8_lossy(&record[at + 1..at + 1 + len]).into_owned()
}

/// Writes a text, or the end of it.
fn write(record: &mut [u8], (at, room): (usize, usize), text: &str) {
    let bytes = text.as_bytes();
    let end = &bytes[bytes.len().saturating_sub(room - 1)..];
    record[at] = end.len() as u8;
    record[at + 1..at + 1 + end.len()].copy_from_slice(end);
}

/// Number of fields that a record has and others may lack.
fn knows(record: &[u8]) -> usize {
    [BYTES, COUNTS, TYPES]
        .iter()
        .filter(|at| number(record, **at) != NONE)
        .count()
        + usize::from(record[KNOWN])
}

/// In what two calls differ.
fn difference(a: &[u8], b: &[u8]) -> Option<&'static str> {
    if a[KNOWN] == 0 || b[KNOWN] == 0 {
        return None;
    }
    let differ =
        |at| number(a, at) != NONE && number(b, at) != NONE && number(a, at) != number(b, at);
    let roots = (short(a, ROOT), short(b, ROOT));
    if text(a, NAME) != text(b, NAME) {
        Some("other calls")
    } else if a[HOW] != b[HOW] {
        Some("one call waits, and one does not")
    } else if roots.0 != roots.1 && roots.0 != u32::MAX && roots.1 != u32::MAX {
        Some("other roots")
    } else if text(a, OPERATOR) != text(b, OPERATOR) {
        Some("other operators")
    } else if differ(BYTES) || differ(COUNTS) {
        Some("other counts")
    } else if differ(TYPES) || differ(TYPES + 8) {
        Some("other types")
    } else {
        None
    }
}

/// What all ranks of a call agree on, as this one has it.
fn record(ask: &Ask, rank: u32, site: Site) -> [u8; RECORD] {
    let mut record = [0u8; RECORD];
    let mut put = |at: usize, bytes: &[u8]| record[at..at + bytes.len()].copy_from_slice(bytes);
    let (call, buffers) = (&ask.call, &ask.buffers);
    let operation = call.operation;
    let across = call.first_side.is_some();
    put(RANK, &rank.to_le_bytes());
    let (file, line) = site.parts();
    put(LINE, &line.to_le_bytes());
    let root = if operation.rooted() && !ask.idle {
        call.root
    } else {
        u32::MAX
    };
    put(ROOT, &root.to_le_bytes());
    // What has failed at this rank alone is no matter of agreement.
    put(KNOWN, &[u8::from(ask.error.is_none())]);
    put(HOW, &[if ask.defers { WAITS } else { GOES_ON }]);
    let uneven = matches!(operation, Operation::Allgather | Operation::Alltoall);
    let (mut bytes, mut counts) = (NONE, NONE);
    match &buffers.sizes {
        _ if ask.idle => {}
        Sizes::Equal(each) if !(across && uneven) => bytes = *each as u64,
        Sizes::Cut(all) => bytes = *all as u64,
        Sizes::Each(each)
            if !across && matches!(operation, Operation::Allgather | Operation::ReduceScatter) =>
        {
            counts = each.iter().fold(1u64, |sum, n| {
                sum.wrapping_mul(0x0100_0000_01b3).wrapping_add(*n as u64)
            }) >> 1;
        }
        _ => {}
    }
    put(BYTES, &bytes.to_le_bytes());
    put(COUNTS, &counts.to_le_bytes());
    let data = match operation {
        _ if call.varying || across || operation.of_neighbors() => None,
        Operation::Bcast | Operation::Scatter => buffers.recv.whole(),
        Operation::Gather | Operation::Allgather => buffers.send.whole(),
        _ => buffers.send.whole().or(buffers.recv.whole()),
    };
    let signature = data.and_then(RawView::signature);
    let digest = signature.as_ref().map(osier_datatype::Signature::digest);
    let (elements, hash) = digest.map_or((NONE, NONE), |d| (d.elements >> 1, d.hash >> 1));
    put(TYPES, &elements.to_le_bytes());
    put(TYPES + 8, &hash.to_le_bytes());
    write(&mut record, NAME, ask.name);
    if let Some((combiner, fit)) = &ask.combiner {
        let name = match combiner.get().predefined(fit) {
            Some((operator, _)) => operator.to_string(),
            None => "a function".into(),
        };
        write(&mut record, OPERATOR, &name);
    }
    if let Some(signature) = signature {
        write(&mut record, TYPES_TEXT, &signature.to_string());
    }
    write(&mut record, FILE, &file);
    record
}

/// A call as the verdict shows it.
fn described(record: &[u8]) -> String {
    let mut words = vec![text(record, NAME)];
    if record[HOW] == GOES_ON {
        words.push("nonblocking, persistent or enqueued".into());
    }
    let (root, bytes) = (short(record, ROOT), number(record, BYTES));
    if root != u32::MAX {
        words.push(format!("root {root}"));
    }
    let (operator, types) = (text(record, OPERATOR), text(record, TYPES_TEXT));
    words.extend(
        [operator, types]
            .into_iter()
            .filter(|word| !word.is_empty()),
    );
    if bytes != NONE {
        words.push(format!("{bytes} bytes"));
    }
    format!(
        "  rank {:<4}  {}  at {}\n",
        short(record, RANK),
        words.join(", "),
        file_line(&text(record, FILE), short(record, LINE))
    )
}

fn verdict(result: &[u8], checks: &Checks, own: u32, title: &str) -> Option<Error> {
    if result[0] == 0 {
        return None;
    }
    let (a, b) = (&result[8..8 + RECORD], &result[8 + RECORD..]);
    let what = difference(a, b).unwrap_or("other calls");
    let both = format!("{}{}", described(a), described(b));
    // One rank says it for all.
    if short(a, RANK) == own {
        let text = format!(
            "collective calls do not match: {what}, on {title}\n{both}  (hint: all ranks of a communicator make the same collective calls, in the same order)\n"
        );
        checks.report(Check::Collectives, text);
    }
    Some(mismatch(format!(
        "collective calls do not match: {what}\n{}",
        both.trim_end()
    )))
}
