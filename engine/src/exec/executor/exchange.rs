//! Reductions that are one kernel of each rank: see [`crate::exec::one_kernel`].

use super::{Driver, EXCHANGE, NOBODY, fail, give_up_step, works_on};
use crate::error::{Error, ErrorKind};
use crate::exec::one_kernel::Exchanging;
use crate::exec::run::{Run, Work};
use osier_collectives::Region;
use osier_kernels::exchange::{Exchange, Verdict};
use osier_transports::Death;

/// Ranks that can take no part in an exchange.
#[derive(Debug)]
pub struct Lost {
    /// Names one of them.
    pub error: Error,
    /// The failed rank of the job, or [`NOBODY`].
    pub failed_rank: u32,
    pub gone: Gone,
}

/// Which ranks of a lane are gone.
#[derive(Clone, Copy, Debug)]
pub enum Gone {
    /// These have left their job in peace, a bit for each: they have stored what they had to.
    Left(u32),
    /// One has failed, so no rank comes to the end.
    All,
}

impl Gone {
    /// A rank of a lane that has ended.
    pub fn of(peer: u32, how: Death) -> Gone {
        match how.is_failure() {
            true => Gone::All,
            // No exchange has more ranks than a word has bits.
            false => Gone::Left(1u32.checked_shl(peer).unwrap_or(0)),
        }
    }

    /// Of both.
    #[must_use]
    pub fn and(self, other: Gone) -> Gone {
        match (self, other) {
            (Gone::Left(one), Gone::Left(other)) => Gone::Left(one | other),
            _ => Gone::All,
        }
    }

    /// Ends the waits for them.
    pub fn stop(self, exchange: &Exchange) {
        match self {
            Gone::Left(ranks) => exchange.leave(ranks),
            Gone::All => exchange.stop(),
        }
    }
}

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
        (Some(lost), exchange) => {
            if let Some(exchange) = exchange {
                lost.gone.stop(exchange);
            }
            run.set_failed_rank(lost.failed_rank);
            Err(lost.error)
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
        if exchanging.asks()
            && let Some(lost) = driver.lost(tags | EXCHANGE)
        {
            exchanging.lost(lost.gone);
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
            let lost = driver.lost(tags | EXCHANGE);
            return Err(lost.map_or_else(stopped, |lost| (lost.error, lost.failed_rank)));
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
