//! Packing without messages: the library, a loop written by hand, memcpy.

use std::hint::black_box;

use super::buffers::Pool;
use super::floor;
use super::layout::Shape;
use super::options::Plan;
use super::report::{Report, Row};
use super::timing::{self, Seconds};
use super::{Failure, Memory, Result};
use crate::run;

/// Measures all curves.
pub fn run(plan: &Plan) -> Result<()> {
    if let Some(cpu) = run::allowed_cpus().unwrap_or_default().first() {
        // Unbound is noisier and no error.
        let _ = run::bind_to(*cpu);
    }
    let mut report = Report::new(plan, 1, "none");
    for curve in &plan.curves {
        report.begin(curve);
        for shape in &curve.shapes {
            report.announce(shape.bytes());
            report.row(&one(plan, shape)?)?;
        }
    }
    report.finish()
}

fn one(plan: &Plan, shape: &Shape) -> Result<Row> {
    let bytes = shape.bytes();
    let mut from = Pool::new(None, Memory::Plain, shape.span(), plan.rotate, 1, 1)?;
    // Different bytes, so that a wrong order is noticed.
    let slot_bytes = from.slot_bytes();
    for slot in from.all_mut().chunks_exact_mut(slot_bytes) {
        for (at, byte) in slot.iter_mut().enumerate() {
            *byte = (at * 7 % 251) as u8;
        }
    }
    let mut to = Pool::new(None, Memory::Plain, bytes, plan.rotate, 1, 0)?;
    let mut by_hand = Pool::new(None, Memory::Plain, bytes, plan.rotate, 1, 0)?;
    let library = walk(plan, &from, &mut to, |from, to| {
        shape
            .layout
            .pack(from, 0, 1, 0..bytes, &mut to[..bytes])
            .map_err(|e| Failure::failed(e.to_string()))
    })?;
    let hand = walk(plan, &from, &mut by_hand, |from, to| {
        shape.blocks.pack_by_hand(from, &mut to[..bytes]);
        Ok(())
    })?;
    if to.slot(0)[..bytes] != by_hand.slot(0)[..bytes] {
        return Err(Failure::failed(format!(
            "{bytes} packed bytes differ from those of a loop"
        )));
    }
    drop(by_hand);
    let payload = Pool::new(None, Memory::Plain, bytes, plan.rotate, 1, 1)?;
    let memcpy = floor::copy(&payload, &mut to, bytes)?;
    let rate = |seconds: f64| 1e-9 * bytes as f64 / seconds;
    Ok(Row {
        threads: 1,
        bytes,
        unit: "GB/s",
        value: rate(library.median),
        best: rate(library.min),
        p99: rate(library.p99),
        spread: Some(library.spread_of(rate)),
        floor: Some(rate(memcpy)),
        by_hand: Some(rate(hand.median)),
    })
}

/// Seconds of one call of `f` from slot to slot.
fn walk(
    plan: &Plan,
    from: &Pool,
    to: &mut Pool,
    mut f: impl FnMut(&[u8], &mut [u8]) -> Result<()>,
) -> Result<Seconds> {
    let slot_bytes = to.slot_bytes();
    let (sources, targets) = (from.slots(), to.slots());
    let (mut a, mut b) = (0, 0);
    let target = to.all_mut();
    timing::measure(None, &plan.effort, |n| {
        for _ in 0..n {
            let to = &mut target[b * slot_bytes..][..slot_bytes];
            f(black_box(from.slot(a)), black_box(to))?;
            a = if a + 1 == sources { 0 } else { a + 1 };
            b = if b + 1 == targets { 0 } else { b + 1 };
        }
        Ok(())
    })
}
