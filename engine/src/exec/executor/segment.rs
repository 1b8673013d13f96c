//! Steps of plans whose ranks share a segment: see [`crate::exec::in_segment`].

use super::cells::message_of_cell;
use super::{Driver, NOBODY, fail, go_on, put_back};
use crate::exec::in_segment::{self, At, Waited};
use crate::exec::program::Action;
use crate::exec::run::{Phase, Run};

/// Takes a step of a plan whose ranks share a segment, or gives it up if the run fails: its
/// flag says so, and what peers may still read stays until they have.
pub(super) fn segment_step<D: Driver>(driver: &mut D, run: &mut Run, instance: u32) {
    let (action, segment) = run.place(instance);
    let at = At {
        of: run.number_of,
        call: run.number,
        segment: segment as u16,
    };
    let taken = match (action, run.phase == Phase::Failing) {
        (Action::SendLong { .. } | Action::ReceiveLong { .. }, _) => {
            return message_of_cell(driver, run, (instance, at), action);
        }
        (Action::Leave, _) => in_segment::execute(&action, at, driver, run),
        (Action::Raise { .. }, true) => match driver.may_raise(at) {
            Waited::For(peer) => in_segment::Taken::Waits(peer),
            Waited::Done(()) | Waited::Failed(..) => {
                driver.raise_failed(at, run.failed_rank());
                in_segment::Taken::Done
            }
        },
        // Peers read what it has published, or will send what is longer than their cells.
        (Action::Await { from, phase }, true) if run.published || run.program.cells > 0 => {
            match driver.flag(at, from, phase) {
                Waited::For(peer) => in_segment::Taken::Waits(peer),
                Waited::Done(_) => in_segment::Taken::Done,
                Waited::Failed(..) if run.published && driver.may_read(at, from) => {
                    in_segment::Taken::Waits(from)
                }
                Waited::Failed(..) => {
                    run.lacks.push(from);
                    in_segment::Taken::Done
                }
            }
        }
        (_, true) => in_segment::Taken::Done,
        (Action::Fold { left, right, into }, false) if run.combines_by_foreign_code() => {
            let operands = in_segment::operands(driver, run, at, (left, right, into));
            match operands.and_then(|all| run.folding(all)) {
                Ok(work) => {
                    // The run's memory and operator outlive it: it counts as an operation.
                    run.in_flight += 1;
                    return driver.combine(run.id, instance, work);
                }
                Err(e) => in_segment::Taken::Failed(e, NOBODY),
            }
        }
        (_, false) => in_segment::execute(&action, at, driver, run),
    };
    match taken {
        in_segment::Taken::Done | in_segment::Taken::ByMessage => {
            run.published |= matches!(action, Action::Publish { .. });
            run.raised |= matches!(action, Action::Raise { .. }) && run.phase == Phase::Running;
            run.complete(instance);
        }
        in_segment::Taken::Waits(peer) => {
            run.awaits = Some((instance, peer));
            run.in_flight += 1;
            let awaiting = &mut driver.executor().awaiting;
            if !awaiting.contains(&run.id) {
                awaiting.push(run.id);
            }
        }
        in_segment::Taken::Failed(e, failed_rank) => {
            if let Action::Await { from, .. } = action {
                run.lacks.push(from);
            }
            run.complete(instance);
            fail(driver, run, e, failed_rank);
        }
    }
}

/// Asks after the flags that runs wait for. True if any was raised.
pub fn advance_flags<D: Driver>(driver: &mut D) -> bool {
    let (mut any, mut at) = (false, 0);
    while let Some(&id) = driver.executor().awaiting.get(at) {
        let Some(mut run) = driver.executor().take_out(id) else {
            driver.executor().awaiting.swap_remove(at);
            continue;
        };
        if let Some((instance, _)) = run.awaits.take() {
            run.in_flight -= 1;
            segment_step(driver, &mut run, instance);
            let waits = run.awaits.is_some_and(|(same, _)| same == instance);
            if !waits {
                any = true;
                go_on(driver, &mut run);
            }
        }
        match run.awaits {
            Some(_) => at += 1,
            None => drop(driver.executor().awaiting.swap_remove(at)),
        }
        put_back(driver, run);
    }
    any
}
