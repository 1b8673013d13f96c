//! Receives of a run: posted, or taken in a call that waits for nothing else.

use super::{Driver, Executor, Posting, begin_step, go_on, put_back, settle};
use crate::exec::program::Action;
use crate::exec::run::{Phase, Run};
use crate::exec::step::{self, Taken};
use crate::view::RawView;

impl Executor {
    /// The one receive that a run waits for, if it was deferred and nothing else is
    /// in flight.
    #[inline]
    pub fn sole_receive(&mut self, id: u32) -> Option<(RawView, u32, u32)> {
        let run = self.run_mut(id)?;
        if run.in_flight != 0 || run.phase != Phase::Running {
            return None;
        }
        let [instance] = run.deferred[..] else {
            return None;
        };
        let (Action::Receive { from, tag, .. }, segment) = run.place(instance) else {
            return None;
        };
        let tag = step::tag_of(run.tags, tag, segment);
        let view = run.destination(instance);
        // Kernels unpack there; it takes a post.
        view.as_device().is_none().then_some((view, from, tag))
    }
}

/// Posts the receive of a step.
pub(super) fn receive<D: Driver>(driver: &mut D, run: &mut Run, instance: u32) {
    let (Action::Receive { from, tag, .. }, segment) = run.place(instance) else {
        return;
    };
    let view = run.destination(instance);
    let tag = step::tag_of(run.tags, tag, segment);
    let (site, crossing) = (run.site(), false);
    let mut messages = Posting {
        driver,
        site,
        crossing,
    };
    let taken = step::receive(&view, from, tag, &mut messages);
    settle(driver, run, instance, taken);
}

/// The sole receive of a run ([`Executor::sole_receive`]) has got its message, without a
/// post.
#[inline]
pub fn received_directly<D: Driver>(
    driver: &mut D,
    id: u32,
    source: u32,
    bytes: usize,
    room: usize,
) {
    let Some(mut run) = driver.executor().take_out(id) else {
        return;
    };
    if let Some(instance) = run.deferred.pop() {
        let taken = match step::received(source, bytes, driver.own(), room) {
            Ok(()) => Taken::Done,
            Err(e) => Taken::Failed(e, None),
        };
        settle(driver, &mut run, instance, taken);
    }
    go_on(driver, &mut run);
    put_back(driver, run);
}

/// From now on receives are posted as soon as they may be.
pub fn stop_deferring<D: Driver>(driver: &mut D, id: u32) {
    let Some(mut run) = driver.executor().take_out(id) else {
        return;
    };
    run.defers = false;
    let mut deferred = std::mem::take(&mut run.deferred);
    for instance in deferred.drain(..) {
        begin_step(driver, &mut run, instance);
    }
    if run.deferred.is_empty() {
        run.deferred = deferred;
    }
    go_on(driver, &mut run);
    put_back(driver, run);
}
