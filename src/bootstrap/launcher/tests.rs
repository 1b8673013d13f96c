//! Environments of launchers, as recorded, and the launcher found in each.

use super::*;

/// The launcher found in an environment whose `PMI_FD`, if any, is of this kind.
fn detected(environment: &str, descriptor: Descriptor) -> Result<Launch> {
    let pairs: Vec<(&str, &str)> = environment
        .split_whitespace()
        .map(|pair| pair.split_once('=').expect("a pair"))
        .collect();
    detect(&Environment {
        variable: &|name| {
            let found = pairs.iter().rfind(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        },
        descriptor: &|number| {
            assert_eq!(number, 9, "{environment}");
            descriptor
        },
    })
}

const RANK_1_OF_2: Launch = Launch::Pmi1 {
    descriptor: 9,
    rank: 1,
    ranks: 2,
};
const RANK_0_OF_1: Launch = Launch::Pmi1 {
    descriptor: 9,
    rank: 0,
    ranks: 1,
};

/// Variables of any Slurm step with this number of tasks.
const ALLOCATION: &str = "SLURM_JOB_ID=77 SLURM_JOBID=77 SLURM_NTASKS=4 SLURM_NPROCS=4 \
     SLURM_NNODES=2 SLURM_JOB_NUM_NODES=2 SLURM_TASKS_PER_NODE=2(x2)";

#[test]
fn environments_of_launchers() {
    use Descriptor::{Inherited, Nothing, Taken};
    let in_allocation = |more: &str| format!("{ALLOCATION} {more}");
    for (what, environment, descriptor, wanted) in [
        (
            "a shell",
            "HOME=/root PATH=/bin".into(),
            Nothing,
            Launch::Alone,
        ),
        // Slurm.
        (
            "a shell of salloc",
            in_allocation(""),
            Nothing,
            Launch::Alone,
        ),
        (
            "a shell of salloc as an interactive step",
            in_allocation("SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0"),
            Nothing,
            Launch::Alone,
        ),
        (
            "a script of sbatch",
            in_allocation("SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 ENVIRONMENT=BATCH"),
            Nothing,
            Launch::Alone,
        ),
        (
            "srun -n 1 --mpi=pmix",
            in_allocation("SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 PMIX_RANK=0"),
            Nothing,
            Launch::Alone,
        ),
        (
            "srun -n 2 --mpi=pmi2",
            in_allocation("SLURM_STEP_NUM_TASKS=2 PMI_FD=9 PMI_RANK=1 PMI_SIZE=2 PMI_JOBID=77.0"),
            Inherited,
            RANK_1_OF_2,
        ),
        (
            "osier run in an allocation",
            in_allocation("OSIER_JOB=1:3,4,5 OSIER_RANK=0 OSIER_RANKS=1"),
            Nothing,
            Launch::Osier,
        ),
        (
            "osier run in a step",
            in_allocation("SLURM_STEP_NUM_TASKS=2 PMIX_RANK=1 OSIER_JOB=1:3,4,5 OSIER_RANK=0"),
            Nothing,
            Launch::Osier,
        ),
        // Open MPI.
        (
            "mpirun -n 1",
            "OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0 PMIX_RANK=0".into(),
            Nothing,
            Launch::Alone,
        ),
        (
            "osier run below mpirun",
            "OMPI_COMM_WORLD_SIZE=2 PMIX_RANK=1 OSIER_JOB=1:3,4,5 OSIER_RANK=0".into(),
            Nothing,
            Launch::Osier,
        ),
        // Hydra.
        (
            "mpiexec.hydra -n 2",
            "PMI_FD=9 PMI_RANK=1 PMI_SIZE=2 MPI_LOCALNRANKS=2".into(),
            Inherited,
            RANK_1_OF_2,
        ),
        (
            "mpiexec.hydra -n 1",
            "PMI_FD=9 PMI_RANK=0 PMI_SIZE=1".into(),
            Inherited,
            RANK_0_OF_1,
        ),
        (
            "the child process of a job of one rank",
            "PMI_FD=9 PMI_RANK=0 PMI_SIZE=1".into(),
            Nothing,
            Launch::Alone,
        ),
        (
            "the second Universe of a job of one rank",
            "PMI_FD=9 PMI_RANK=0 PMI_SIZE=1".into(),
            Taken,
            Launch::Alone,
        ),
        (
            "mpiexec -n 1 with its socket at a port",
            "PMI_PORT=h0:4711 PMI_ID=0 PMI_RANK=0 PMI_SIZE=1".into(),
            Nothing,
            Launch::Alone,
        ),
        // Osier's own.
        (
            "the child process of a rank: joining finds the rank taken",
            "OSIER_JOB=1:3,4,5 OSIER_RANK=1 OSIER_RANKS=2".into(),
            Nothing,
            Launch::Osier,
        ),
        (
            "emptied",
            "OSIER_JOB= PMIX_RANK= OMPI_COMM_WORLD_SIZE=".into(),
            Nothing,
            Launch::Alone,
        ),
        // On purpose.
        (
            "of srun, alone",
            in_allocation("SLURM_STEP_NUM_TASKS=4 PMIX_RANK=3 OSIER_ALONE=1"),
            Nothing,
            Launch::Alone,
        ),
        (
            "of mpirun, alone",
            "OMPI_COMM_WORLD_SIZE=2 PMIX_RANK=0 OSIER_ALONE=1".into(),
            Nothing,
            Launch::Alone,
        ),
        (
            "of Hydra, alone",
            "PMI_FD=9 PMI_RANK=1 PMI_SIZE=2 OSIER_ALONE=1".into(),
            Inherited,
            Launch::Alone,
        ),
        (
            "the child process of a rank, alone",
            "OSIER_JOB=1:3,4,5 OSIER_RANK=1 OSIER_ALONE=1".into(),
            Nothing,
            Launch::Alone,
        ),
        (
            "not alone",
            "OSIER_JOB=1:3,4,5 OSIER_RANK=1 OSIER_ALONE=0".into(),
            Nothing,
            Launch::Osier,
        ),
    ] {
        let found = detected(&environment, descriptor);
        assert_eq!(found.map_err(|e| e.to_string()), Ok(wanted), "{what}");
    }
}

#[test]
fn jobs_that_cannot_be_joined() {
    use Descriptor::{Inherited, Nothing, Taken};
    let step = |more: &str| format!("{ALLOCATION} SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=3 {more}");
    for (environment, descriptor, says) in [
        (step(""), Nothing, "srun started this process as one of 4"),
        (
            step("PMIX_RANK=3"),
            Nothing,
            "srun --mpi=pmix started this process as one of 4",
        ),
        (
            "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 PMIX_RANK=1".into(),
            Nothing,
            "Open MPI's mpirun started this process as one of 2",
        ),
        // The outer launcher's socket, and one rank of it.
        (
            "OMPI_COMM_WORLD_SIZE=2 PMI_FD=9 PMI_RANK=0 PMI_SIZE=1".into(),
            Inherited,
            "Open MPI's mpirun started this process as one of 2",
        ),
        (
            "PMIX_RANK=0 PMIX_NAMESPACE=n".into(),
            Nothing,
            "a launcher that speaks PMIx",
        ),
        (
            "PMI_PORT=h0:4711 PMI_RANK=1 PMI_SIZE=2".into(),
            Nothing,
            "PMI_SIZE without PMI_FD started this process as one of 2",
        ),
    ] {
        let e = detected(&environment, descriptor).expect_err(&environment);
        let text = e.to_string();
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{text}");
        assert!(text.contains(says), "{environment}: {text}");
        for works in ["osier run", "mpiexec", "PMI-1", "OSIER_ALONE=1"] {
            assert!(text.contains(works), "{environment}: {text}");
        }
    }
    // A process that is no rank but has a rank's environment; and invalid values.
    let hydra = "PMI_FD=9 PMI_RANK=1 PMI_SIZE=2";
    for (environment, descriptor, says) in [
        (
            hydra,
            Nothing,
            "a child process of a rank is no rank; OSIER_ALONE=1",
        ),
        (hydra, Taken, "a process joins once"),
        ("PMI_FD=9", Inherited, "PMI_FD: it comes without PMI_RANK"),
        ("PMI_FD=9 PMI_RANK=2 PMI_SIZE=2", Inherited, "rank 2 of 2"),
        (
            "PMI_FD=9 PMI_RANK=0 PMI_SIZE=many",
            Inherited,
            "PMI_SIZE: \"many\"",
        ),
        (
            "OMPI_COMM_WORLD_SIZE=2x",
            Nothing,
            "OMPI_COMM_WORLD_SIZE: \"2x\"",
        ),
        (
            "SLURM_STEP_NUM_TASKS=-1",
            Nothing,
            "SLURM_STEP_NUM_TASKS: \"-1\"",
        ),
        ("OSIER_ALONE=yes", Nothing, "OSIER_ALONE: \"yes\""),
    ] {
        let e = detected(environment, descriptor).expect_err(environment);
        assert_eq!(e.kind(), ErrorKind::Config, "{e}");
        assert!(e.to_string().contains(says), "{environment}: {e}");
    }
}
