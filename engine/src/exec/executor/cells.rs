//! Messages of plans with cells: see [`crate::exec::cells`].

use super::{Driver, Posting, fail, settle};
use crate::exec::cells::{self, Place};
use crate::exec::in_segment::{At, Places};
use crate::exec::program::Action;
use crate::exec::run::{Phase, Run};
use crate::exec::step;

/// Sends or receives a block that is longer than its cell, if it is. A run that fails sends a
/// poison in its place, or receives what peers will send into nothing.
pub(super) fn message_of_cell<D: Driver>(
    driver: &mut D,
    run: &mut Run,
    (instance, at): (u32, At),
    action: Action,
) {
    let fails = run.phase == Phase::Failing;
    match action {
        Action::SendLong {
            to,
            tag,
            data,
            cell,
        } => {
            // A run that has failed before may have no buffers.
            let may = !fails || run.raised;
            let long = may && run.cells().place(cell, run.bytes_of(data)) == Place::Message;
            let tag = step::tag_of(run.tags, tag, 0);
            match (long, fails) {
                // The peer has seen the length, or will.
                (true, true) => driver.poison(to, tag, run.failed_rank()),
                (true, false) => {
                    let view = run.own(data, 0);
                    let taken = step::send(&view, to, tag, &mut posting(driver, run));
                    return settle(driver, run, instance, taken);
                }
                _ => {}
            }
        }
        Action::ReceiveLong {
            from,
            tag,
            cell,
            into,
        } => {
            let raised = !run.lacks.contains(&from);
            // A rank without a flag will send nothing.
            let comes = match raised.then(|| cells::comes_by_message(cell, at, driver, from)) {
                Some(Ok(comes)) => comes,
                Some(Err(e)) if !fails => {
                    let (e, failed_rank) = driver.lost_while_reading(from, e);
                    fail(driver, run, e, failed_rank);
                    return message_of_cell(driver, run, (instance, at), action);
                }
                Some(Err(_)) | None => false,
            };
            let tag = step::tag_of(run.tags, tag, 0);
            match (comes, fails) {
                (true, true) => driver.discard(from, tag),
                (true, false) => {
                    let view = run.own(into, 0);
                    let taken = step::receive(&view, from, tag, &mut posting(driver, run));
                    return settle(driver, run, instance, taken);
                }
                _ => {}
            }
        }
        _ => {}
    }
    run.complete(instance);
}

fn posting<'a, D: Driver>(driver: &'a mut D, run: &Run) -> Posting<'a, D> {
    Posting {
        driver,
        site: run.site(),
        crossing: true,
    }
}
