//! Reductions that are one kernel of each rank: see [`crate::exec::one_kernel`].

use super::{Driver, EXCHANGE, NOBODY, fail, give_up_step, works_on};
use crate::error::{Error, ErrorKind};
use crate::exec::one_kernel::Exchanging;
use crate::exec::run::{Run, Work};
use osier_collectives::Region;
use osier_kernels::exchange::Verdict;

/// Begins a reduction that is one kernel of each rank.
#[cold]
pub(super) fn begin_exchange<D: Driver>(
    driver: &mut D,
    run: &mut Run,
    instance: u32,
    regions: (Region, Region),
) {
    let begun = match (
        driver.lost(run.tags | EXCHANGE),
        driver.executor().exchange(),
    ) {
        (Some((e, failed_rank)), exchange) => {
            // No rank comes to its end.
            if let Some(exchange) = exchange {
                exchange.stop();
            }
            run.set_failed_rank(failed_rank);
            Err(e)
        }
        (None, Some(exchange)) => {
            let exchange = exchange.clone();
            run.begin_exchange(driver.devices(), &exchange, regions)
        }
        (None, None) => Err(Error::new(
            ErrorKind::Unavailable,
            "no inboxes of this communicator's ranks are open",
        )),
    };
    match begun {
        Ok(exchanging) => {
            driver.count_combined();
            works_on(driver, run, instance, Work::Exchange(Box::new(exchanging)));
        }
        Err(e) => {
            let (action, segment) = run.place(instance);
            let failed_rank = run.failed_rank();
            give_up_step(driver, run, action, segment);
            run.complete(instance);
            fail(driver, run, e, failed_rank);
        }
    }
}

/// Whether an exchange has its result; else an error, and the failed rank of the job.
pub(super) fn has_exchanged<D: Driver>(
    driver: &mut D,
    exchanging: &mut Exchanging,
    tags: u32,
) -> std::result::Result<bool, (Error, u32)> {
    let verdict = exchanging.poll().map_err(|e| (e.into(), NOBODY))?;
    let Some(verdict) = verdict else {
        if exchanging.asks() && driver.lost(tags | EXCHANGE).is_some() {
            exchanging.lost();
        }
        return Ok(false);
    };
    let e = match verdict {
        Verdict::Fine => return Ok(true),
        Verdict::Failed(rank) => rank_failed(rank),
        Verdict::Differs(rank) => differs(rank, driver.own() as usize),
        Verdict::Stopped => {
            let stopped = || {
                let told = "the kernel was told to stop, as a rank took no part";
                (Error::new(ErrorKind::Cancelled, told), NOBODY)
            };
            return Err(driver.lost(tags | EXCHANGE).unwrap_or_else(stopped));
        }
    };
    Err((e, NOBODY))
}

/// The error of a collective in which another rank has failed.
#[cold]
pub fn rank_failed(rank: usize) -> Error {
    let told = format!("rank {rank} has failed in this collective (hint: its own error says why)");
    Error::new(ErrorKind::Cancelled, told)
}

/// The error of an exchange with a rank that combines something else.
#[cold]
pub fn differs(rank: usize, own: usize) -> Error {
    let told = format!(
        "rank {rank} combines other elements than rank {own}, or makes another call (hint: all \
         ranks pass the same count, type and operator)"
    );
    Error::new(ErrorKind::Argument, told)
}
