//! The launcher that started this process, and whether its job can be joined: a pure function
//! of the environment.
//!
//! | found, in this order | this process is |
//! |---|---|
//! | `OSIER_ALONE=1` | a job of one rank, on purpose |
//! | `OSIER_JOB` | a rank of `osier run` |
//! | `PMI_SIZE` above 1, and the socket of `PMI_FD` | a rank that joins by PMI-1 |
//! | `OMPI_COMM_WORLD_SIZE`, `PMI_SIZE` or `SLURM_STEP_NUM_TASKS` above 1 | an error |
//! | `PMIX_RANK` and none of these three | an error |
//! | `PMI_SIZE` of 1, and the socket of `PMI_FD` | the only rank of a PMI-1 launcher |
//! | anything else | a job of one rank |
//!
//! `SLURM_NTASKS` does not count: shells of `salloc` and scripts of `sbatch` have it, and each
//! of them is a single process.
//!
//! A child process of a rank inherits the rank's variables. It is not a rank:
//!
//! - Of `osier run`: the rank's number is taken, which is an error when the child joins.
//! - Of PMI-1: a rank that joins marks the socket close-on-exec, so the child has no socket.
//!   In a job of several that is an error; in a job of one the child is a job of its own.
//! - `OSIER_ALONE=1` in the child's environment makes it a job of one rank in either case.
//!
//! # Sources
//! The variables: srun(1) of Slurm, section "output environment variables"; mpirun(1) of
//! Open MPI; the PMIx standard 5.0, section 11.2; Hydra's sources for PMI-1.

use crate::config;
use osier_engine::error::{Error, ErrorKind, Result};

/// The protocol by which this process joins a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Launch {
    /// It is a job of one rank.
    Alone,
    /// By the variables of `osier run`.
    Osier,
    /// By PMI-1 over this descriptor.
    Pmi1 {
        descriptor: i32,
        rank: usize,
        ranks: usize,
    },
}

/// Kind of a descriptor in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Descriptor {
    /// No socket.
    Nothing,
    /// A socket that this process inherited.
    Inherited,
    /// A socket that this process does not pass on: it has joined through it.
    Taken,
}

/// The environment: variables and descriptors.
pub(super) struct Environment<'a> {
    /// Value of a variable; `None` if it is not set.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    /// Kind of a descriptor.
    pub descriptor: &'a dyn Fn(i32) -> Descriptor,
}

/// Hint of every refusal.
const REMEDY: &str = "use osier run or Osier's mpiexec, or a launcher that speaks PMI-1 \
     (mpiexec of MPICH or Intel MPI, srun --mpi=pmi2); OSIER_ALONE=1 makes each process a job \
     of one rank";

/// Finds the launcher of this process.
///
/// # Errors
/// It is one of several processes of a job that cannot be joined, or a variable makes no
/// sense.
pub(super) fn detect(environment: &Environment<'_>) -> Result<Launch> {
    if is_alone(environment.variable)? {
        return Ok(Launch::Alone);
    }
    if environment.text("OSIER_JOB").is_some() {
        return Ok(Launch::Osier);
    }
    let pmi = environment.pmi()?;
    if let Some(Pmi {
        descriptor: Some((number, Descriptor::Inherited)),
        rank,
        ranks,
    }) = pmi
        && ranks > 1
    {
        return Ok(Launch::Pmi1 {
            descriptor: number,
            rank,
            ranks,
        });
    }
    environment.refuse_several(pmi)?;
    match pmi {
        Some(Pmi {
            descriptor: Some((number, Descriptor::Inherited)),
            rank,
            ranks,
        }) => Ok(Launch::Pmi1 {
            descriptor: number,
            rank,
            ranks,
        }),
        _ => Ok(Launch::Alone),
    }
}

/// Whether `OSIER_ALONE` asks for a job of one rank.
pub(super) fn is_alone(variable: &dyn Fn(&str) -> Option<String>) -> Result<bool> {
    let text = variable("OSIER_ALONE").unwrap_or_default();
    config::parse_alone(&text).map_err(|e| e.context("OSIER_ALONE"))
}

/// The variables of PMI-1.
#[derive(Clone, Copy)]
struct Pmi {
    /// `PMI_FD`, if it is set.
    descriptor: Option<(i32, Descriptor)>,
    rank: usize,
    ranks: usize,
}

impl Environment<'_> {
    /// A variable that is not empty.
    fn text(&self, name: &str) -> Option<String> {
        (self.variable)(name).filter(|text| !text.is_empty())
    }

    fn number(&self, name: &str) -> Result<Option<usize>> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        let number = text.trim().parse().ok();
        number.map(Some).ok_or_else(|| {
            config_error(format!(
                "{name}: {text:?} is no number (hint: the launcher sets it; without a launcher unset it, or set OSIER_ALONE=1)"
            ))
        })
    }

    /// `None` without `PMI_FD` and `PMI_SIZE`.
    fn pmi(&self) -> Result<Option<Pmi>> {
        let numbers = (
            self.number("PMI_FD")?,
            self.number("PMI_RANK")?,
            self.number("PMI_SIZE")?,
        );
        let (descriptor, rank, ranks) = match numbers {
            (None, _, None) => return Ok(None),
            (descriptor, Some(rank), Some(ranks)) => (descriptor, rank, ranks),
            // The rank is unused: only the count matters.
            (None, None, Some(ranks)) => (None, 0, ranks),
            (Some(_), ..) => {
                return Err(config_error(
                    "PMI_FD: it comes without PMI_RANK and PMI_SIZE".into(),
                ));
            }
        };
        if descriptor.is_some() && rank >= ranks {
            return Err(config_error(format!("PMI_RANK: rank {rank} of {ranks}")));
        }
        let descriptor = descriptor.map(|number| {
            let number = i32::try_from(number).unwrap_or(i32::MAX);
            (number, (self.descriptor)(number))
        });
        Ok(Some(Pmi {
            descriptor,
            rank,
            ranks,
        }))
    }

    /// Refuses a job of one rank where a launcher started several processes.
    fn refuse_several(&self, pmi: Option<Pmi>) -> Result<()> {
        let open_mpi = self.number("OMPI_COMM_WORLD_SIZE")?;
        let slurm = self.number("SLURM_STEP_NUM_TASKS")?;
        let pmix = self.text("PMIX_RANK").is_some();
        let several = |count: Option<usize>| count.filter(|count| *count > 1);
        if let Some(ranks) = several(open_mpi) {
            return Err(refusal(ranks, "Open MPI's mpirun"));
        }
        if let Some(pmi) = pmi.filter(|pmi| pmi.ranks > 1) {
            return Err(match pmi.descriptor {
                Some((number, Descriptor::Taken)) => config_error(format!(
                    "PMI_FD: this process has joined the job of its launcher (PMI-1) over descriptor {number} before (hint: a process joins once, with one Universe or Session::init)"
                )),
                Some((number, _)) => config_error(format!(
                    "PMI_FD: descriptor {number} is no open socket, so this process is not one of the {} that the launcher (PMI-1) started (hint: a child process of a rank is no rank; OSIER_ALONE=1 in its environment makes it a job of one rank)",
                    pmi.ranks
                )),
                None => refusal(pmi.ranks, "a launcher that sets PMI_SIZE without PMI_FD"),
            });
        }
        if let Some(tasks) = several(slurm) {
            let name = match pmix {
                true => "srun --mpi=pmix",
                false => "srun",
            };
            return Err(refusal(tasks, name));
        }
        if pmix && open_mpi.is_none() && pmi.is_none() && slurm.is_none() {
            return Err(unavailable(format!(
                "PMIX_RANK is set: a launcher that speaks PMIx started this process, perhaps as one of several, and Osier cannot join its job (hint: {REMEDY})"
            )));
        }
        Ok(())
    }
}

fn refusal(ranks: usize, launcher: &str) -> Error {
    unavailable(format!(
        "{launcher} started this process as one of {ranks}, and Osier cannot join its job: each process would be rank 0 of 1 (hint: {REMEDY})"
    ))
}

fn unavailable(message: String) -> Error {
    Error::new(ErrorKind::Unavailable, message)
}

fn config_error(message: String) -> Error {
    Error::new(ErrorKind::Config, message)
}

/// A variable of this process.
pub(super) fn variable(name: &str) -> Option<String> {
    match name.starts_with("OSIER_") {
        true => config::value(name),
        false => std::env::var_os(name).map(|text| text.to_string_lossy().into_owned()),
    }
}

#[cfg(test)]
mod tests;
