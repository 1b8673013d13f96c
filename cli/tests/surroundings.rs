//! The command where its output, its files, its variables or its user are not as hoped for.

use osier_kernels::debug::Debug as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

#[path = "../../tests/needs.rs"]
#[allow(dead_code)]
mod needs;

/// Ends a test that hangs: ten times what the longest may take.
const GUARD: Duration = Duration::from_secs(60);

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let name = format!("osier-surroundings-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        Scratch(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// `osier`, or the same under another name, with built-in costs.
fn command(program: impl AsRef<Path>, args: &[&str]) -> Command {
    let mut command = Command::new(program.as_ref());
    for name in ["OSIER_COSTS", "OSIER_SHM_LIMIT", "SLURM_JOB_NUM_NODES"] {
        command.env_remove(name);
    }
    command
        .args(args)
        .env("OSIER_MODEL", "built-in")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn osier(args: &[&str]) -> Command {
    command(env!("CARGO_BIN_EXE_osier"), args)
}

/// Waits for the end of what writes little.
fn ended(mut child: Child) -> Output {
    let until = Instant::now() + GUARD;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            child.kill().unwrap();
            panic!("it hangs: {:?}", child.wait_with_output());
        }
        std::thread::park_timeout(Duration::from_millis(2));
    }
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Tools that print pages.
const TOOLS: [&[&str]; 7] = [
    &["--help"],
    &["info"],
    &["info", "--protocols"],
    &["model", "show"],
    &["explain", "allreduce", "--bytes", "1M", "-n", "8"],
    &["topo"],
    &["bench", "--help"],
];

#[test]
fn nobody_reads_what_tools_print() {
    for args in TOOLS {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = ended(osier(args).stdout(writer).spawn().unwrap());
        assert_eq!(text(&output.stderr), "", "{args:?}");
        assert_eq!(output.status.signal(), Some(libc::SIGPIPE), "{args:?}");
    }
}

#[test]
fn the_disk_is_full() {
    let full = || File::options().write(true).open("/dev/full").unwrap();
    for args in TOOLS {
        let output = ended(osier(args).stdout(full()).spawn().unwrap());
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {errors}");
        assert_eq!(
            errors, "osier: cannot write to standard output: no space left on device\n",
            "{args:?}"
        );
    }
    // More than fits into pipes, so that ranks would die of SIGPIPE; and little.
    for script in ["while echo long; do :; done", "echo short"] {
        let args = ["run", "-n", "2", "sh", "-c", script];
        let output = ended(osier(&args).stdout(full()).spawn().unwrap());
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{script}: {errors}");
        assert_eq!(
            errors,
            "osier: cannot write to standard output: no space left on device\n"
        );
    }
    // Nobody can be told, but the job knows.
    let args = ["run", "-n", "2", "sh", "-c", "echo said >&2"];
    let output = ended(osier(&args).stderr(full()).spawn().unwrap());
    assert_eq!(output.status.code(), Some(1));
}

/// That a reader has gone is no failure of the job: its ranks end of it, as in a pipeline.
#[test]
fn the_reader_of_a_job_has_gone() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let args = ["run", "-n", "2", "sh", "-c", "while echo long; do :; done"];
    let output = ended(osier(&args).stdout(writer).spawn().unwrap());
    assert_eq!(
        (output.status.code(), text(&output.stderr)),
        (Some(141), String::new())
    );
}

#[test]
fn files_of_costs_that_are_no_files() {
    let scratch = Scratch::new("costs");
    let pipe = scratch.0.join("pipe");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let long = scratch.0.join("long");
    File::create(&long).unwrap().set_len(1 << 40).unwrap();
    for (costs, why) in [
        (pipe.as_path(), "no regular file"),
        (Path::new("/dev/zero"), "no regular file"),
        (&scratch.0, "no regular file"),
        (&long, "longer than"),
    ] {
        for args in [&["run", "-n", "2", "true"][..], &["model", "show"]] {
            let output = ended(osier(args).env("OSIER_COSTS", costs).spawn().unwrap());
            let errors = text(&output.stderr);
            assert!(!output.status.success(), "{}", costs.display());
            assert!(errors.contains(why), "{}: {errors}", costs.display());
        }
    }
    // Libraries that the loader would wait for.
    for name in ["cuda-library", "nvml-library", "gdrcopy-library"] {
        let output = ended(osier(&["info"]).debug(name, &pipe).spawn().unwrap());
        assert!(output.status.success(), "{name}: {}", text(&output.stderr));
    }
}

#[test]
fn values_that_make_no_sense() {
    for (name, value) in [
        ("OSIER_SHM_LIMIT", "0"),
        ("OSIER_SHM_LIMIT", "16000000T"),
        ("OSIER_DEBUG", "trace-events=0"),
        ("OSIER_DEBUG", "trace-events=1"),
        ("OSIER_DEBUG", "trace-events=1G"),
        ("OSIER_STALL", "0s"),
        ("OSIER_STALL", "9999999h"),
        ("OSIER_PINNED_LIMIT", "1"),
        ("OSIER_PINNED_LIMIT", "1000T"),
        ("OSIER_DEBUG", "device-slots=1"),
        ("OSIER_DEBUG", "device-slots=1000T"),
        ("OSIER_DEBUG", "device-eager=1G"),
        ("OSIER_DEBUG", "device-mappings=1G"),
        ("OSIER_DEBUG", "device-mapped=1000T"),
        ("OSIER_DEBUG", "pack-multiprocessors=0"),
        ("OSIER_MODEL", "guess"),
        ("OSIER_DEBUG", "pipeline=perhaps"),
        ("OSIER_DEBUG", "device-reductions=nowhere"),
        ("OSIER_DEBUG", "one-kernel=two"),
        ("OSIER_CHECK", "everything"),
    ] {
        let output = ended(
            osier(&["run", "-n", "2", "true"])
                .env(name, value)
                .spawn()
                .unwrap(),
        );
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{name}={value}: {errors}");
        assert!(errors.contains(name), "{name}={value}: {errors}");
    }
    for (name, value) in [
        ("OSIER_SHM_LIMIT", "1G"),
        ("OSIER_DEBUG", "trace-events=16M"),
        ("OSIER_STALL", "8760h"),
        ("OSIER_PINNED_LIMIT", "256K"),
        ("OSIER_DEBUG", "device-slots=0"),
        ("OSIER_DEBUG", "device-eager=0"),
        ("OSIER_DEBUG", "device-mappings=0"),
    ] {
        let output = ended(
            osier(&["run", "-n", "2", "true"])
                .env(name, value)
                .spawn()
                .unwrap(),
        );
        let errors = text(&output.stderr);
        assert!(output.status.success(), "{name}={value}: {errors}");
    }
    for seconds in ["1e18", "0", "-1"] {
        let option = format!("--timeout={seconds}");
        let output = ended(osier(&["run", "-n", "1", &option, "true"]).spawn().unwrap());
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    }
}

/// Tools are no ranks, also under another launcher.
#[test]
fn tools_run_below_other_launchers() {
    for args in [
        &["info"][..],
        &["ps"],
        &["model", "show"],
        &["run", "-n", "2", "true"],
    ] {
        let mut tool = osier(args);
        tool.envs([("OMPI_COMM_WORLD_SIZE", "2"), ("PMIX_RANK", "1")]);
        tool.envs([("SLURM_STEP_NUM_TASKS", "2"), ("PMI_SIZE", "2")]);
        let output = ended(tool.spawn().unwrap());
        assert!(
            output.status.success(),
            "{args:?}: {}",
            text(&output.stderr)
        );
    }
}

#[test]
fn host_files_are_read() {
    let scratch = Scratch::new("hosts");
    let mpiexec = scratch.0.join("mpiexec");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_osier"), &mpiexec).unwrap();
    let file = |name: &str, text: &str| {
        let path = scratch.0.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let here = file("here", "# ours\nlocalhost:2\n127.0.0.1 slots=2\n");
    let there = file("there", "localhost\nelsewhere.invalid\n");
    let run = |option: &str, hosts: &str, variables: &[(&str, &str)]| {
        let mut args = vec!["-n", "2"];
        if !option.is_empty() {
            args.extend([option, hosts]);
        }
        args.extend(["sh", "-c", "echo ran"]);
        ended(
            command(&mpiexec, &args)
                .envs(variables.iter().copied())
                .spawn()
                .unwrap(),
        )
    };
    for option in [
        "-hostfile",
        "--hostfile",
        "-machinefile",
        "--machinefile",
        "-f",
    ] {
        let output = run(option, &here, &[]);
        assert_eq!(
            text(&output.stdout),
            "ran\nran\n",
            "{option}: {}",
            text(&output.stderr)
        );
        assert_eq!(text(&output.stderr), "", "{option}");
        for (hosts, why) in [
            (
                &there[..],
                "there:2: host elsewhere.invalid is not this machine",
            ),
            (
                "/nonexistent/hosts",
                "cannot read the host file /nonexistent/hosts",
            ),
            ("/dev/zero", "no regular file"),
        ] {
            let output = run(option, hosts, &[]);
            let errors = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{option} {hosts}: {errors}");
            assert_eq!(text(&output.stdout), "", "{option} {hosts}");
            assert!(errors.contains(why), "{option} {hosts}: {errors}");
        }
    }
    let output = run("", "", &[("HYDRA_HOST_FILE", &there)]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    let output = run("-ppn", "1", &[]);
    assert_eq!(text(&output.stdout), "ran\nran\n");
    assert_eq!(text(&output.stderr), "mpiexec: without effect: -ppn\n");
}

/// Root sees the jobs of all users, and whose they are.
#[test]
fn root_sees_jobs_of_others() {
    // SAFETY: a system call without arguments.
    if unsafe { libc::geteuid() } != 0 {
        return needs::missing("root", "this is another user");
    }
    // Of a place that others may enter.
    let scratch = Scratch::new("ps");
    let other = scratch.0.join("osier");
    fs::copy(env!("CARGO_BIN_EXE_osier"), &other).unwrap();
    for path in [&scratch.0, &other] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let script = "echo started; read line";
    let mut job = command(&other, &["run", "-n", "1", "sh", "-c", script]);
    let nobody = 65534;
    job.stdin(Stdio::piped())
        .current_dir("/")
        .uid(nobody)
        .gid(nobody);
    // Children that other tests start at the same moment have the copy open for writing until they
    // are programs of their own.
    let mut job = loop {
        match job.spawn() {
            Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                std::thread::yield_now();
            }
            started => break started.unwrap(),
        }
    };
    let mut line = String::new();
    let mut stdout = BufReader::new(job.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "started\n");
    let pid = job.id().to_string();
    let seen = ended(osier(&["ps", &pid]).spawn().unwrap());
    let all = ended(osier(&["ps"]).spawn().unwrap());
    // The job ends with its input.
    drop(job.stdin.take());
    ended(job);
    let heading = format!("job {pid} of user {nobody}, 1 ranks: ");
    assert!(seen.status.success(), "{}", text(&seen.stderr));
    for output in [seen, all] {
        assert!(
            text(&output.stdout).contains(&heading),
            "{}",
            text(&output.stdout)
        );
    }
}
