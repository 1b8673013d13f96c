//! The steps of a run: which programs, on which sizes, within which time. Pure: what the
//! machine has comes in, a list comes out.

mod steps;

use std::path::PathBuf;

use crate::report::Mode;

/// What a quick run may take, in seconds, its last archive included.
pub const QUICK_SECONDS: u64 = 470;

/// What steps belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Part {
    /// Driver, clocks, kernel, MIG, MPS, topology
    Facts,
    /// Tests: the device, random types, messages, streams, collectives
    Correctness,
    /// Packing and unpacking in device memory
    Pack,
    /// Latency and bandwidth between two ranks
    Messages,
    /// bcast, reduce and allreduce of device memory
    Collectives,
    /// The examples that keep their data on a device
    Examples,
    /// torch, CuPy, UCX, NCCL, an MPI library: whichever are there
    Peers,
    /// compute-sanitizer over kernels and tests
    Sanitizer,
}

impl Part {
    /// All, in the order in which they run.
    pub const ALL: [Part; 8] = [
        Part::Facts,
        Part::Correctness,
        Part::Messages,
        Part::Collectives,
        Part::Examples,
        Part::Pack,
        Part::Peers,
        Part::Sanitizer,
    ];

    /// As options and reports have it.
    pub fn name(self) -> &'static str {
        match self {
            Part::Facts => "facts",
            Part::Correctness => "correctness",
            Part::Pack => "pack",
            Part::Messages => "messages",
            Part::Collectives => "collectives",
            Part::Examples => "examples",
            Part::Peers => "peers",
            Part::Sanitizer => "sanitizer",
        }
    }

    /// Seconds of a quick run of all parts; what a part leaves goes to those behind it.
    fn share(self) -> u64 {
        match self {
            Part::Facts => 45,
            Part::Correctness => 85,
            Part::Pack => 100,
            Part::Messages => 90,
            Part::Collectives => 40,
            Part::Examples => 25,
            Part::Peers => 60,
            Part::Sanitizer => 25,
        }
    }
}

/// What the machine and the bundle have.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// The device is the emulated driver's: sizes are small.
    pub emulated: bool,
    /// Why tools that look into the device cannot work, if so.
    pub no_tools: Option<String>,
    /// Number of GPUs.
    pub gpus: usize,
    /// Folder of the unpacked programs.
    pub bin: PathBuf,
    /// Folder of what the steps write.
    pub work: PathBuf,
    /// Programs of tests, by their names behind `test-`.
    pub tests: Vec<String>,
    /// Jobs of the matrix of messages: name, GPUs that it needs, words of its command.
    pub matrix: Vec<(String, usize, Vec<String>)>,
    /// `compute-sanitizer`, if it is there.
    pub sanitizer: Option<PathBuf>,
    /// `ncu`, if it is there.
    pub ncu: Option<PathBuf>,
    /// `python3`, if it is there.
    pub python: Option<PathBuf>,
    /// `nvcc`, if it is there.
    pub nvcc: Option<PathBuf>,
    /// `nvidia-cuda-mps-control`, if it is there.
    pub mps: Option<PathBuf>,
}

/// A step to be run.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// What it belongs to.
    pub part: Part,
    /// Its name within the run, unique.
    pub name: String,
    /// Program and arguments; none where it is skipped.
    pub command: Vec<String>,
    /// Variables beside the run's own.
    pub env: Vec<(String, String)>,
    /// Most seconds.
    pub limit: u64,
    /// Where it writes its records, if it does.
    pub records: Option<PathBuf>,
    /// Why it is not run.
    pub skip: Option<String>,
    /// Its output is a fact of the machine, by the step's name.
    pub is_fact: bool,
}

/// Seconds from the begin of a quick run of these parts until the end of each.
pub fn deadlines(parts: &[Part]) -> Vec<u64> {
    let all: u64 = Part::ALL.iter().map(|part| part.share()).sum();
    let chosen: u64 = parts.iter().map(|part| part.share()).sum();
    let mut end = 0;
    parts
        .iter()
        .map(|part| {
            end += part.share();
            // Few parts have the time of all.
            (end as f64 * QUICK_SECONDS as f64 / chosen.clamp(1, all) as f64) as u64
        })
        .collect()
}

/// All steps of these parts, in order.
pub fn tasks(machine: &Machine, mode: Mode, parts: &[Part]) -> Vec<Task> {
    let mut steps = steps::Builder::new(machine, mode);
    let without_ranks = [Part::Facts, Part::Pack, Part::Peers, Part::Sanitizer];
    if !parts.iter().all(|part| without_ranks.contains(part)) {
        steps.costs();
    }
    for part in parts {
        steps.part(*part);
    }
    steps.tasks
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn machine() -> Machine {
        Machine {
            gpus: 1,
            bin: "/bundle".into(),
            work: "/work".into(),
            tests: vec!["trees".into(), "device".into()],
            matrix: vec![("linked".into(), 2, vec!["x".into()])],
            python: Some("/usr/bin/python3".into()),
            sanitizer: Some("/cuda/compute-sanitizer".into()),
            ncu: Some("/cuda/ncu".into()),
            ..Machine::default()
        }
    }

    #[test]
    fn shares_of_all_parts_are_the_time_of_a_quick_run() {
        let sum: u64 = Part::ALL.iter().map(|part| part.share()).sum();
        assert_eq!(sum, QUICK_SECONDS);
        let deadlines = deadlines(&Part::ALL);
        assert!(deadlines.is_sorted());
        assert_eq!(deadlines.last(), Some(&QUICK_SECONDS));
        assert_eq!(super::deadlines(&[Part::Pack]), [QUICK_SECONDS]);
    }

    #[test]
    fn names_are_unique_and_every_step_has_a_limit() {
        for emulated in [false, true] {
            for mode in [Mode::Quick, Mode::Full] {
                let machine = Machine {
                    emulated,
                    ..machine()
                };
                let tasks = tasks(&machine, mode, &Part::ALL);
                let names: BTreeSet<&String> = tasks.iter().map(|task| &task.name).collect();
                assert_eq!(names.len(), tasks.len());
                let files: Vec<_> = tasks
                    .iter()
                    .filter_map(|task| task.records.as_ref())
                    .collect();
                assert_eq!(files.iter().collect::<BTreeSet<_>>().len(), files.len());
                for task in &tasks {
                    assert!(task.limit > 0 || task.skip.is_some(), "{task:?}");
                    assert!(!task.command.is_empty() || task.skip.is_some(), "{task:?}");
                    assert!(mode == Mode::Full || task.limit <= 120, "{task:?}");
                }
                let parts: BTreeSet<&str> = tasks.iter().map(|task| task.part.name()).collect();
                assert_eq!(parts.len(), Part::ALL.len(), "{parts:?}");
            }
        }
    }

    #[test]
    fn what_the_machine_lacks_is_skipped_with_the_reason() {
        let machine = Machine {
            no_tools: Some("gVisor".into()),
            python: None,
            ..machine()
        };
        let tasks = tasks(&machine, Mode::Quick, &Part::ALL);
        let why = |name: &str| {
            let task = tasks.iter().find(|task| task.name == name);
            task.and_then(|task| task.skip.clone()).unwrap_or_default()
        };
        assert!(why("matrix linked").contains("2 GPUs"));
        assert!(why("compute-sanitizer").contains("gVisor"));
        assert!(why("profile").contains("gVisor"));
        assert!(why("torch, cupy, mpi4py").contains("python3"));
        assert!(why("ucx: messages").contains("bundle"));
    }

    /// Jobs choose by costs of this machine, whichever parts are run.
    #[test]
    fn costs_are_measured_before_any_job() {
        for parts in [&Part::ALL[..], &[Part::Messages], &[Part::Correctness]] {
            let tasks = tasks(&machine(), Mode::Quick, parts);
            assert_eq!(tasks[0].command[1..], ["model", "measure"]);
        }
    }

    #[test]
    fn a_part_alone_has_its_steps_alone() {
        let tasks = tasks(&machine(), Mode::Quick, &[Part::Pack]);
        assert!(tasks.iter().all(|task| task.part == Part::Pack));
        let line = tasks[0].command.join(" ");
        assert!(
            line.starts_with("/bundle/osier bench pack --device"),
            "{line}"
        );
        assert!(
            line.contains("--json /work/pack-matrices.records.json"),
            "{line}"
        );
    }
}
