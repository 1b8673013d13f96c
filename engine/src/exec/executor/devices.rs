//! Steps that devices take, and copies between devices and the host around the steps.

use super::exchange::has_exchanged;
use super::{COPY_TAGS, Driver, NOBODY, Posting, WITHIN, fail, go_on, put_back, settle};
use crate::exec::program::Action;
use crate::exec::run::{Across, COPY, HALF, Phase, Run, Work, copy};
use crate::exec::step::{self, Taken};
use crate::view::RawView;

/// Begins to copy between devices and the host.
#[cold]
pub(super) fn copy_across<D: Driver>(driver: &mut D, run: &mut Run, all: Vec<Across>, tag: u32) {
    for (at, across) in all.into_iter().enumerate() {
        if run.phase != Phase::Running {
            return;
        }
        let tag = tag + at as u32 % COPY_TAGS;
        match across {
            Across::Message(from, to) => {
                message_within(driver, run, (from, to), tag, [COPY, COPY]);
            }
            Across::Work(crossing, what) => {
                run.copies += 1;
                driver.count_crossed(crossing.bytes());
                match crossing.begin(what) {
                    Ok(work) => works_on(driver, run, COPY, Work::Kernel(work)),
                    Err(e) => settle(driver, run, COPY, Taken::Failed(e.into(), None)),
                }
            }
        }
    }
}

/// Begins a step that a device takes.
#[cold]
pub(super) fn begin_device_step<D: Driver>(driver: &mut D, run: &mut Run, instance: u32) {
    let (action, segment) = run.place(instance);
    if let Some((from, to)) = run.apart(action, segment) {
        return copy_within(driver, run, instance, from, to);
    }
    match run.begin_work(driver.devices(), action, segment) {
        Ok(Some(work)) => {
            if matches!(action, Action::Combine { .. }) {
                driver.count_combined();
            }
            works_on(driver, run, instance, Work::Kernel(work));
        }
        Ok(None) => run.complete(instance),
        Err(e) => settle(driver, run, instance, Taken::Failed(e, None)),
    }
}

/// Begins a copy between memory of the host and of devices, or of two devices, by a
/// message to itself.
fn copy_within<D: Driver>(
    driver: &mut D,
    run: &mut Run,
    instance: u32,
    from: RawView,
    to: RawView,
) {
    if from.as_device().is_none() && to.as_device().is_none() {
        let taken = match copy(&from, &to) {
            Ok(()) => Taken::Done,
            Err(e) => Taken::Failed(e, None),
        };
        return settle(driver, run, instance, taken);
    }
    let tag = WITHIN + instance % COPY_TAGS;
    message_within(driver, run, (from, to), tag, [HALF, instance]);
}

/// Begins a message of a run to its own rank: both halves; the receive completes
/// `instance`.
fn message_within<D: Driver>(
    driver: &mut D,
    run: &mut Run,
    (from, to): (RawView, RawView),
    tag: u32,
    [sends, receives]: [u32; 2],
) {
    let (own, site, tag) = (driver.own(), run.site(), run.tags | tag);
    let crossing = false;
    let mut messages = Posting {
        driver,
        site,
        crossing,
    };
    if receives == COPY {
        run.copies += 1;
    }
    let taken = step::receive(&to, own, tag, &mut messages);
    settle(messages.driver, run, receives, taken);
    if run.phase != Phase::Running {
        return;
    }
    if sends == COPY {
        run.copies += 1;
    }
    let taken = step::send(&from, own, tag, &mut messages);
    settle(messages.driver, run, sends, taken);
}

/// A device takes a step.
pub(super) fn works_on<D: Driver>(driver: &mut D, run: &mut Run, instance: u32, work: Work) {
    run.works.push((instance, work));
    run.in_flight += 1;
    let working = &mut driver.executor().working;
    if !working.contains(&run.id) {
        working.push(run.id);
    }
}

/// Asks after the steps that devices take. True if any has ended.
#[cold]
pub fn advance_device_steps<D: Driver>(driver: &mut D) -> bool {
    let (mut any, mut at) = (false, 0);
    while let Some(&id) = driver.executor().working.get(at) {
        let Some(mut run) = driver.executor().take_out(id) else {
            driver.executor().working.swap_remove(at);
            continue;
        };
        let (mut moved, mut next) = (false, 0);
        while let Some((_, work)) = run.works.get_mut(next) {
            let ended = match work {
                Work::Kernel(kernel) => kernel.is_over().map_err(|e| (e.into(), NOBODY)),
                Work::Exchange(exchanging) => has_exchanged(driver, exchanging, run.tags),
            };
            if matches!(ended, Ok(false)) {
                next += 1;
                continue;
            }
            let (instance, work) = run.works.swap_remove(next);
            drop(work);
            run.in_flight -= 1;
            run.complete(instance);
            if let Err((e, failed_rank)) = ended {
                fail(driver, &mut run, e, failed_rank);
            }
            moved = true;
        }
        if moved {
            go_on(driver, &mut run);
        }
        let idle = run.works.is_empty();
        put_back(driver, run);
        match idle {
            true => drop(driver.executor().working.swap_remove(at)),
            false => at += 1,
        }
        any |= moved;
    }
    any
}
