//! The steps of each part: programs, sizes, limits.

use std::path::{Path, PathBuf};

use super::{Machine, Part, Task};
use crate::report::Mode;

/// What a step of a full run may take, unless it says otherwise.
const FULL_LIMIT: u64 = 1200;

/// How large things are.
#[derive(Clone, Copy, PartialEq)]
enum Scale {
    Emulated,
    Quick,
    Full,
}

impl Scale {
    fn of<T>(self, emulated: T, quick: T, full: T) -> T {
        match self {
            Scale::Emulated => emulated,
            Scale::Quick => quick,
            Scale::Full => full,
        }
    }
}

/// Takes the steps of one part after the other.
pub(super) struct Builder<'a> {
    machine: &'a Machine,
    scale: Scale,
    mode: Mode,
    pub tasks: Vec<Task>,
}

/// The words of a line.
fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

impl<'a> Builder<'a> {
    pub fn new(machine: &'a Machine, mode: Mode) -> Builder<'a> {
        Builder {
            machine,
            scale: match (machine.emulated, mode) {
                (true, _) => Scale::Emulated,
                (false, Mode::Quick) => Scale::Quick,
                (false, Mode::Full) => Scale::Full,
            },
            mode,
            tasks: Vec::new(),
        }
    }

    /// Adds the measurement of costs, by which jobs choose: what the first job of the machine
    /// would do by itself, within its own limit.
    pub fn costs(&mut self) {
        let command = vec![self.program("osier"), "model".into(), "measure".into()];
        self.add(Part::Facts, "costs", 40, command).is_fact = true;
    }

    /// Adds the steps of a part.
    pub fn part(&mut self, part: Part) {
        match part {
            Part::Facts => self.facts(),
            Part::Correctness => self.correctness(),
            Part::Pack => self.pack(),
            Part::Messages => self.messages(),
            Part::Collectives => self.collectives(),
            Part::Examples => self.examples(),
            Part::Peers => self.peers(),
            Part::Sanitizer => self.sanitizer(),
        }
    }
}

impl Builder<'_> {
    fn add(&mut self, part: Part, name: &str, quick_limit: u64, command: Vec<String>) -> &mut Task {
        let limit = match (self.mode, self.scale) {
            // The emulated driver takes a word at a time.
            (Mode::Quick, Scale::Emulated) => 2 * quick_limit,
            (Mode::Quick, _) => quick_limit,
            (Mode::Full, _) => FULL_LIMIT,
        };
        let at = self.tasks.len();
        self.tasks.push(Task {
            part,
            name: name.into(),
            command,
            env: Vec::new(),
            limit,
            records: None,
            skip: None,
            is_fact: false,
        });
        &mut self.tasks[at]
    }

    fn skip(&mut self, part: Part, name: &str, why: impl Into<String>) {
        self.add(part, name, 0, Vec::new()).skip = Some(why.into());
    }

    fn program(&self, name: &str) -> String {
        text(&self.machine.bin.join(name))
    }

    /// A file that a step writes, named after it.
    fn file(&self, name: &str, ending: &str) -> PathBuf {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let name: String = name.chars().map(plain).collect();
        self.machine.work.join(format!("{name}.{ending}"))
    }

    /// `osier bench`, whose records are kept, in a job of two ranks where one is named.
    fn bench(&mut self, part: Part, name: &str, limit: u64, ranks: Option<u32>, options: &str) {
        let osier = self.program("osier");
        let mut command = Vec::new();
        if let Some(ranks) = ranks {
            command.push(osier.clone());
            command.extend(words(&format!(
                "run -n 2 --ranks-per-process {ranks} --bind none --"
            )));
        }
        command.push(osier);
        command.push("bench".into());
        command.extend(words(options));
        let records = self.file(name, "records.json");
        let plot = self.file(name, "svg");
        command.extend(["--json".into(), text(&records)]);
        command.extend(["--plot".into(), text(&plot)]);
        self.add(part, name, limit, command).records = Some(records);
    }

    fn facts(&mut self) {
        let osier = self.program("osier");
        for (name, command) in [
            (
                "osier info",
                vec![osier.clone(), "info".into(), "--all".into()],
            ),
            ("osier topo", vec![osier.clone(), "topo".into()]),
            ("nvidia-smi", words("nvidia-smi")),
            ("topology", words("nvidia-smi topo -m")),
            (
                "clocks",
                words("nvidia-smi -q -d CLOCK,PERFORMANCE,COMPUTE"),
            ),
        ] {
            if self.machine.emulated && command[0] == "nvidia-smi" {
                self.skip(Part::Facts, name, "the driver is emulated");
                continue;
            }
            self.add(Part::Facts, name, 8, command).is_fact = true;
        }
    }

    fn correctness(&mut self) {
        const PART: Part = Part::Correctness;
        let trees = self.scale.of(500, 3000, 100_000);
        let tests = self.machine.tests.clone();
        let known = |name: &str| {
            const ORDER: [&str; 7] = [
                "device",
                "trees",
                "device-messages",
                "device-streams",
                "reduce",
                "graph",
                "parts",
            ];
            ORDER
                .iter()
                .position(|known| *known == name)
                .unwrap_or(ORDER.len())
        };
        let mut tests: Vec<&String> = tests.iter().collect();
        tests.sort_by_key(|name| known(name));
        for test in tests {
            let mut command = vec![self.program(&format!("test-{test}"))];
            command.push("--test-threads=1".into());
            let mut settings = "skip=driver,,gpu".to_owned();
            match test.as_str() {
                "trees" => settings += &format!(",trees={trees}"),
                // It feeds the driver no binaries, which only the emulated one takes for some.
                "mistakes" => command.extend(words("--skip binaries_are_taken")),
                _ => {}
            }
            let name = format!("test {test}");
            let task = self.add(PART, &name, 30, command);
            // The emulated driver is not here, and this GPU may lack what it has.
            task.env.push(("OSIER_TEST".into(), settings));
        }
        for (name, needs, command) in self.machine.matrix.clone() {
            let name = format!("matrix {name}");
            if needs > 1 && self.machine.gpus < needs {
                let why = format!("needs {needs} GPUs; emulated in the tests of the sources");
                self.skip(PART, &name, why);
                continue;
            }
            self.add(PART, &name, 15, command);
        }
        let job = |line: &str| {
            let mut command = vec![self.program("osier")];
            command.extend(words("run -n 2 --"));
            command.push(self.program("exercise"));
            command.extend(words(line));
            command
        };
        let (reductions, counts) = (job("device-reductions"), job("device-counts 4 stays"));
        self.add(PART, "collectives: reductions", 15, reductions)
            .env
            .push(("OSIER_DEBUG".into(), "device-reductions=device".into()));
        self.add(PART, "collectives: counts", 15, counts);
        for (each, of) in [("1", "processes"), ("2", "threads")] {
            let mut command = vec![self.program("osier")];
            command.extend(words(&format!("run -n 2 --ranks-per-process {each} --")));
            command.push(self.program("exercise"));
            command.extend(words(match each {
                "1" => "device-windows",
                _ => "run device-windows",
            }));
            self.add(PART, &format!("windows: {of}"), 15, command);
        }
        let gpus = self.machine.gpus.min(8);
        for what in ["sizes", "enqueued"] {
            let name = format!("collectives: one kernel, {what}");
            if gpus < 2 {
                let why = "needs 2 GPUs; emulated in the tests of the sources";
                self.skip(PART, &name, why);
                continue;
            }
            let mut command = vec![self.program("osier")];
            command.extend(words(&format!("run -n {gpus} --")));
            command.push(self.program("exercise"));
            command.extend(words(&format!("one-kernel {what}")));
            self.add(PART, &name, 15, command)
                .env
                .push(("OSIER_DEBUG".into(), "one-kernel=plain".into()));
        }
    }

    fn pack(&mut self) {
        const PART: Part = Part::Pack;
        let scale = self.scale;
        let reps = scale.of("-r 2", "-r 5", "");
        let matrices = scale.of("64K", "64K,256M", "64K,1M,16M,256M,1G");
        let one = scale.of("64K", "256M", "64K,1M,16M,256M");
        let random = scale.of(
            "--sizes 64K --trees 4",
            "--sizes 256M --trees 6",
            "--sizes 1M,256M --trees 400",
        );
        let lists = scale.of(
            "indexed-100000",
            "indexed-100000,indexed-1000000",
            "indexed",
        );
        let blocks = scale.of(
            "--sizes 64K --blocks 1,4",
            "--sizes 64M --blocks 1,8,32,132,528",
            "--sizes 8M,256M --blocks 1,2,4,8,16,32,64,132,264,528,1056",
        );
        for (name, limit, options) in [
            (
                "pack matrices",
                35,
                format!("--shapes contiguous,V,T,stair,transpose --sizes {matrices} {reps}"),
            ),
            (
                "pack random",
                45,
                format!("--shapes random {random} {reps}"),
            ),
            (
                "pack structures",
                45,
                format!(
                    "--shapes block-8-16,block-64-128,structure,cache,{lists} --sizes {one} {reps}"
                ),
            ),
            (
                "pack thread blocks",
                15,
                format!("--shapes V,T,stair {blocks} {reps}"),
            ),
            (
                "pack corpus",
                60,
                format!(
                    "--shapes corpus --sizes 64K {}",
                    scale.of("-r 1", "-r 3", "")
                ),
            ),
        ] {
            self.bench(PART, name, limit, None, &format!("pack --device {options}"));
        }
        let (Some(ncu), None) = (&self.machine.ncu, &self.machine.no_tools) else {
            let why = self.machine.no_tools.clone();
            return self.skip(PART, "profile", why.unwrap_or("ncu is not there".into()));
        };
        // Which resource binds each kernel: issue slots, memory, latency.
        let mut command = vec![text(ncu)];
        command.extend(words(
            "--clock-control none --section SpeedOfLight --section WarpStateStats \
             --kernel-name regex:osier_(un)?pack|osier_copy|osier_transpose --launch-count 12",
        ));
        command.push(self.program("osier"));
        command.extend(words(
            "bench pack --device --shapes T,transpose,aos-4-of-32 --sizes 64M -i 1 -x 0 -r 1",
        ));
        self.add(PART, "profile", 25, command);
    }

    fn messages(&mut self) {
        const PART: Part = Part::Messages;
        let scale = self.scale;
        let reps = scale.of("-i 2 -x 1 -r 2", "-r 7", "");
        let sizes = scale.of("8,64K", "8,64K,4M,64M", "8,1K,64K,1M,4M,16M,64M,256M");
        let large = scale.of("64K", "4M,64M", "64K,1M,4M,16M,64M");
        let one = scale.of("64K", "4M", "64K,4M,64M");
        for (ranks, of) in [(1, "processes"), (2, "threads")] {
            let mut add = |name: &str, limit, options: String| {
                let name = match name.contains(':') {
                    true => format!("{name}, {of}"),
                    false => format!("{name}: {of}"),
                };
                self.bench(
                    PART,
                    &name,
                    limit,
                    Some(ranks),
                    &format!("{options} {reps}"),
                );
            };
            add(
                "latency",
                25,
                format!(
                    "latency --memory device --layout contiguous,matrix,triangle,transpose \
                     --sizes {sizes}"
                ),
            );
            add(
                "bandwidth",
                20,
                format!(
                    "bandwidth --memory device --layout contiguous,matrix --sizes {large} --window 16"
                ),
            );
            add(
                "latency: to contiguous",
                10,
                format!(
                    "latency --memory device --layout matrix --to-layout contiguous --sizes {large}"
                ),
            );
            add(
                "latency: pinned and plain",
                10,
                format!("latency --memory pinned,plain --layout contiguous,matrix --sizes {one}"),
            );
            add(
                "latency: models",
                12,
                format!(
                    "latency --memory device --layout matrix,triangle,transpose --by blocks,host \
                     --sizes {one}"
                ),
            );
            let busy: &[u32] = match scale {
                Scale::Full => &[25, 50, 100],
                _ => &[50],
            };
            for busy in busy {
                add(
                    &format!("bandwidth: busy {busy}"),
                    10,
                    format!(
                        "bandwidth --memory device --layout contiguous,matrix --busy {busy} \
                         --sizes {one} --window 16"
                    ),
                );
            }
            add(
                "bandwidth: up",
                10,
                format!(
                    "bandwidth --from plain --to device --layout contiguous,matrix --sizes {one} --window 8"
                ),
            );
            add(
                "bandwidth: down",
                10,
                format!(
                    "bandwidth --from device --to plain --layout contiguous,matrix --sizes {one} --window 8"
                ),
            );
            if ranks == 1 {
                // In chunks, from memory that can be opened and from such that cannot.
                add(
                    "latency: chunks",
                    15,
                    format!(
                        "latency --memory device,pool --layout contiguous,matrix,triangle \
                         --pipeline off,on --sizes {one}"
                    ),
                );
            }
        }
        let layouts = scale.of("-i 2 -r 2", "-r 5", "");
        let corpus = scale.of(
            "--shapes wrf-y-vec-2x2 -i 2 -r 2",
            "--shapes all -i 10 -r 3",
            "--shapes all",
        );
        for (ranks, of) in [(1, "processes"), (2, "threads")] {
            for (what, limit, options) in [("rma", 15, layouts), ("rma: corpus", 20, corpus)] {
                let (name, options) = (format!("{what}: {of}"), format!("rma {options}"));
                self.bench(PART, &name, limit, Some(ranks), &options);
            }
        }
        let options = format!(
            "latency --memory device,pool --layout contiguous,matrix --pipeline off,on \
             --sizes {one} {reps}"
        );
        self.with_mps(PART, "latency: processes, MPS", |steps, name| {
            steps.bench(PART, name, 15, Some(1), &options);
        });
    }

    /// A step of two processes whose kernels run at once, for those of processes that take
    /// turns: a daemon of this step alone, for the driver's settings stay as they are. `add`
    /// makes the step.
    fn with_mps(&mut self, part: Part, name: &str, add: impl FnOnce(&mut Self, &str)) {
        const AROUND: &str = r#"
            export CUDA_MPS_PIPE_DIRECTORY="$1" CUDA_MPS_LOG_DIRECTORY="$1"
            control="$2"; shift 2
            mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" && "$control" -d || exit 1
            "$@"; code=$?
            echo quit | "$control"
            rm -rf "$CUDA_MPS_PIPE_DIRECTORY"
            exit $code"#;
        let Some(control) = &self.machine.mps else {
            return self.skip(part, name, "nvidia-cuda-mps-control is not there");
        };
        let mut around: Vec<String> = vec!["sh".into(), "-c".into(), AROUND.into(), "sh".into()];
        // Beside what is archived: its sockets are no files.
        let pipes = self.machine.work.with_file_name("mps");
        around.extend([text(&pipes), text(control)]);
        add(self, name);
        if let Some(task) = self.tasks.last_mut() {
            around.append(&mut task.command);
            task.command = around;
        }
    }

    fn collectives(&mut self) {
        let scale = self.scale;
        let reps = scale.of("-i 2 -x 1 -r 2", "-r 5", "");
        let sizes = scale.of("8,64K", "8,64K,4M", "8,1K,64K,1M,16M,64M");
        for (ranks, of) in [(1, "processes"), (2, "threads")] {
            for bench in ["allreduce", "bcast", "reduce"] {
                self.bench(
                    Part::Collectives,
                    &format!("{bench}: {of}"),
                    15,
                    Some(ranks),
                    &format!(
                        "{bench} --memory device --by osier,host --fresh --sizes {sizes} {reps}"
                    ),
                );
            }
        }
    }

    fn examples(&mut self) {
        let scale = self.scale;
        let examples = [
            (
                "jacobi3d",
                scale.of(
                    "--grid 24 --sweeps 4 --no-picture",
                    "--grid 384 --sweeps 100 --no-picture",
                    "--grid 512 --sweeps 200 --no-picture",
                ),
            ),
            (
                "transpose",
                scale.of("--block 64", "--block 4096", "--block 8192"),
            ),
            ("triangle", scale.of("-N 64", "-N 8192", "-N 16384")),
            (
                "kv_cache",
                // 0.5 and 2 GiB of cache on each rank, half of its pages sent.
                scale.of(
                    "--layers 2 --tokens 64 --head-size 16",
                    "--layers 8 --tokens 8192 --pages 1024",
                    "--layers 16 --tokens 16384 --pages 2048",
                ),
            ),
        ];
        // Examples that have no variant on the host.
        let inside = [
            ("signals", scale.of("--rounds 20", "", "--kernels 21")),
            (
                "persistent_halo",
                scale.of(
                    "--rows 4 --columns 64 --steps 5",
                    "--rows 512 --columns 4096 --steps 200 --blocks 32",
                    "--rows 1024 --columns 4096 --steps 1000 --blocks 64",
                ),
            ),
            (
                "buckets",
                scale.of(
                    "--keys 200",
                    "--keys 1000000 --blocks 32",
                    "--keys 4000000 --blocks 64",
                ),
            ),
        ];
        for (ranks, of) in [(1, "processes"), (2, "threads")] {
            let on_device = examples.map(|(name, options)| (name, format!("--device {options}")));
            let inside = inside.map(|(name, options)| (name, options.to_owned()));
            for (example, options) in on_device.into_iter().chain(inside) {
                let mut command = vec![self.program("osier")];
                command.extend(words(&format!(
                    "run -n 2 --ranks-per-process {ranks} --bind none --"
                )));
                command.push(self.program(example));
                command.extend(words(&options));
                self.add(Part::Examples, &format!("{example}: {of}"), 20, command);
            }
        }
        self.with_mps(Part::Examples, "signals: processes, MPS", |steps, name| {
            let mut command = vec![steps.program("osier")];
            command.extend(words("run -n 2 --bind none --"));
            command.push(steps.program("signals"));
            steps.add(Part::Examples, name, 20, command);
        });
    }

    fn peers(&mut self) {
        const PART: Part = Part::Peers;
        if self.machine.emulated {
            return self.skip(PART, "peers", "the driver is emulated");
        }
        let scale = self.scale;
        let sizes = scale.of("65536", "268435456", "65536,1048576,16777216,268435456");
        let message_sizes = scale.of(
            "8,65536",
            "8,65536,4194304,67108864",
            "8,1024,65536,1048576,4194304,16777216,67108864,268435456",
        );
        if let Some(python) = self.machine.python.clone() {
            for (name, script, limit, options) in [
                (
                    "torch: pack",
                    "pack.py",
                    40,
                    format!("torch --sizes {sizes}"),
                ),
                ("cupy: pack", "pack.py", 30, format!("cupy --sizes {sizes}")),
                (
                    "torch: messages",
                    "messages.py",
                    30,
                    format!("torch --sizes {message_sizes}"),
                ),
                (
                    "cupy: messages",
                    "messages.py",
                    25,
                    format!("cupy --sizes {message_sizes}"),
                ),
                (
                    "mpi4py: messages",
                    "mpi.py",
                    20,
                    format!("--sizes {message_sizes}"),
                ),
                (
                    "nccl: collectives",
                    "nccl.py",
                    25,
                    format!("--sizes {message_sizes}"),
                ),
            ] {
                let mut command = vec![
                    text(&python),
                    text(&self.machine.bin.join("peers").join(script)),
                ];
                command.extend(words(&options));
                let records = self.file(name, "records.json");
                command.extend(["--json".into(), text(&records)]);
                if name.starts_with("nccl") && self.machine.gpus < 2 {
                    self.skip(PART, name, "NCCL has one rank on each GPU: needs 2 GPUs");
                    continue;
                }
                self.add(PART, name, limit, command).records = Some(records);
            }
        } else {
            self.skip(PART, "torch, cupy, mpi4py", "python3 is not there");
        }
        let nvshmem = "NVSHMEM has one rank on each GPU: needs 2 GPUs";
        match &self.machine.nvcc {
            _ if self.machine.gpus < 2 => self.skip(PART, "nvshmem: messages", nvshmem),
            None => self.skip(PART, "nvshmem: messages", "nvcc is not there"),
            Some(nvcc) => {
                let script = text(&self.machine.bin.join("peers/nvshmem.sh"));
                let records = self.file("nvshmem", "records.json");
                let command = vec![
                    "sh".into(),
                    script,
                    text(nvcc),
                    message_sizes.into(),
                    text(&records),
                ];
                self.add(PART, "nvshmem: messages", 60, command).records = Some(records);
            }
        }
        let ucx = self.machine.bin.join("ucx");
        if !ucx.join("ucx_messages").is_file() {
            return self.skip(PART, "ucx: messages", "its libraries are not in the bundle");
        }
        let records = self.file("ucx", "records.json");
        let command = vec![
            text(&ucx.join("ucx_messages")),
            message_sizes.into(),
            text(&records),
        ];
        let task = self.add(PART, "ucx: messages", 30, command);
        task.records = Some(records);
        task.env = vec![
            ("LD_LIBRARY_PATH".into(), text(&ucx.join("lib"))),
            ("UCX_MODULE_DIR".into(), text(&ucx.join("lib/ucx"))),
            ("UCX_TLS".into(), "cuda,sm,self".into()),
        ];
    }

    fn sanitizer(&mut self) {
        const PART: Part = Part::Sanitizer;
        let (Some(sanitizer), None) = (self.machine.sanitizer.clone(), &self.machine.no_tools)
        else {
            let why = self.machine.no_tools.clone();
            let why = why.unwrap_or("compute-sanitizer is not there".into());
            return self.skip(PART, "compute-sanitizer", why);
        };
        let trees = self.scale.of(0, 40, 2000);
        let tools: &[&str] = match self.scale {
            Scale::Full => &["memcheck", "racecheck", "initcheck", "synccheck"],
            _ => &["memcheck", "racecheck"],
        };
        for tool in tools {
            let mut command = vec![text(&sanitizer)];
            command.extend(words(&format!("--tool {tool} --error-exitcode 1")));
            command.push(self.program("test-trees"));
            command.extend(words("--test-threads=1 random_trees"));
            let settings = format!("skip=driver,,gpu,trees={trees}");
            self.add(PART, &format!("{tool}: random trees"), 20, command)
                .env
                .push(("OSIER_TEST".into(), settings));
        }
        let tests: &[&str] = match self.scale {
            Scale::Full => &["device", "graph", "parts", "reduce"],
            _ => &["reduce"],
        };
        for test in tests {
            // What fails on purpose would be told as errors of the driver's functions.
            let mut command = vec![text(&sanitizer)];
            command.extend(words(
                "--tool memcheck --error-exitcode 1 --report-api-errors no",
            ));
            command.push(self.program(&format!("test-{test}")));
            command.extend(words("--test-threads=1 --skip mistakes"));
            self.add(PART, &format!("memcheck: {test}"), 25, command)
                .env
                .push(("OSIER_TEST".into(), "skip=driver,,gpu".into()));
        }
    }
}
