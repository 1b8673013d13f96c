//! The programs as a user runs them: as jobs, on the host and on devices.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

#[path = "../../tests/needs.rs"]
#[allow(dead_code)]
mod needs;

/// A program beside this test's; none where it was not built.
fn beside(name: &str) -> Option<PathBuf> {
    let program = Path::new(env!("CARGO_BIN_EXE_ring")).with_file_name(name);
    program.is_file().then_some(program)
}

fn run(line: &str) -> Option<Output> {
    run_with(line, &[])
}

fn run_with(line: &str, set: &[(&str, &str)]) -> Option<Output> {
    let Some(launcher) = beside("osier") else {
        needs::missing("launcher", "it was not built beside the programs");
        return None;
    };
    Some(
        Command::new(launcher)
            .args(line.split_whitespace())
            .envs(set.iter().copied())
            .output()
            .expect("osier starts"),
    )
}

fn verifies(line: &str) {
    let Some(out) = run(line) else { return };
    let (told, complaint) = (
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr),
    );
    assert!(
        out.status.success() && told.contains("every element"),
        "{line}:\n{told}{complaint}"
    );
    assert_eq!(
        told.contains("emulated GPU"),
        line.contains("--device"),
        "{told}"
    );
}

#[test]
fn buffers_of_the_host() {
    verifies("run -n 3 --bind none -- transpose --block 20 --repeat 2");
    verifies("run -n 2 --bind none -- triangle -N 33 --repeat 2");
    verifies("run -n 3 --bind none -- kv_cache --layers 2 --tokens 50 --pages 9");
}

#[test]
fn symmetric_heaps() {
    verifies("run -n 3 --bind none -- integer_sort --keys 5000 --repeat 2");
    verifies("run -n 3 --bind none -- hash_table --words 3000 --distinct 200");
    verifies("run -n 4 --bind none -- work_stealing --tasks 60 --numbers 100");
    // By messages that owners serve.
    verifies("run -n 2 --delay 10us --bind none -- integer_sort --keys 500 --repeat 1");
    verifies("run -n 2 --delay 10us --bind none -- hash_table --words 100 --distinct 20");
    verifies("run -n 2 --delay 10us --bind none -- work_stealing --tasks 20 --numbers 10");
}

/// Ranks die, and the others end with the right answer; or say whose rows are lost.
#[test]
fn jacobi_survives_ranks() {
    for line in [
        "-n 4 -- survivors --grid 40",
        "-n 3 -- survivors --grid 40 --lose 2@199",
        "-n 5 -- survivors --grid 30 --sweeps 90 --lose 1@40,3@41,0@70 --copy-every 20",
    ] {
        let line = format!("run --on-death report --bind none {line}");
        let Some(out) = run(&line) else { return };
        let told = String::from_utf8_lossy(&out.stdout);
        let complaint = String::from_utf8_lossy(&out.stderr);
        let right = "every element is that of an undisturbed run";
        assert!(told.contains(right), "{line}:\n{told}{complaint}");
        assert_eq!(out.status.code(), Some(137), "{complaint}");
    }
    let line = "run --on-death report --bind none -n 4 -- survivors --grid 40 --lose 1@30,2@30";
    let Some(out) = run(line) else { return };
    let complaint = String::from_utf8_lossy(&out.stderr);
    let lost = "ranks 1 and 2 are lost, and so are the rows of rank 1";
    assert!(complaint.contains(lost), "{complaint}");
    let line = "run --bind none -n 2 -- survivors --grid 40 --lose 2@30";
    let Some(out) = run(line) else { return };
    let complaint = String::from_utf8_lossy(&out.stderr);
    let hint = "--lose 2@30: there is no such rank or sweep (hint: ranks are 0 to 1";
    assert!(complaint.contains(hint), "{complaint}");
}

#[test]
fn kernels_exchange_halos() {
    inside_of_kernels(
        "persistent_halo --rows 3 --columns 40 --steps 7 --blocks 3",
        "every element",
    );
}

#[test]
fn kernels_sort_into_buckets() {
    inside_of_kernels("buckets --keys 150 --base 7 --blocks 3", "every element");
}

#[test]
fn kernels_signal_each_other() {
    inside_of_kernels("signals --rounds 8 --kernels 2", "every signal");
}

#[test]
fn one_rank_has_nobody_to_signal() {
    if beside("libosier_emulated_cuda.so").is_none() {
        return needs::missing("driver", "it was not built beside the programs");
    }
    let Some(out) = run("run -n 1 --emulate-gpus 1 --bind none -- signals") else {
        return;
    };
    let complaint = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{complaint}");
    assert!(complaint.contains("osier run -n 2"), "{complaint}");
}

/// Ranks of one device and of two, processes and threads; and elsewhere, which are delayed.
fn inside_of_kernels(program: &str, verdict: &str) {
    if beside("libosier_emulated_cuda.so").is_none() {
        return needs::missing("driver", "it was not built beside the programs");
    }
    let near = [(1, 1, 1), (2, 1, 1), (2, 2, 1), (3, 1, 2), (4, 2, 2)].map(|job| (job, ""));
    let elsewhere = [(2, 1, 1), (3, 1, 2), (4, 2, 2)].map(|job| (job, "--delay 10us"));
    let least = if verdict == "every signal" { 2 } else { 1 };
    let jobs = near.into_iter().chain(elsewhere);
    for ((ranks, each, gpus), delay) in jobs.filter(|((ranks, ..), _)| *ranks >= least) {
        let line = format!(
            "run -n {ranks} --ranks-per-process {each} --emulate-gpus {gpus} --bind none {delay} \
             -- {program}"
        );
        // A bus has no atomics.
        let links = [("OSIER_EMULATED_LINKS", "switch:4")];
        let out = run_with(&line, &links[..usize::from(gpus > 1)]);
        let Some(out) = out else { return };
        let told = String::from_utf8_lossy(&out.stdout);
        let complaint = String::from_utf8_lossy(&out.stderr);
        let right = out.status.success() && told.contains(verdict);
        assert!(right, "{line}:\n{told}{complaint}");
        assert!(told.contains("emulated GPU"), "{told}");
    }
}

/// Devices that are joined by a bus, which has no atomics, are no team.
#[test]
fn devices_without_atomics_are_refused() {
    if beside("libosier_emulated_cuda.so").is_none() {
        return needs::missing("driver", "it was not built beside the programs");
    }
    let Some(out) = run("run -n 2 --emulate-gpus 2 --bind none -- persistent_halo") else {
        return;
    };
    let complaint = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success());
    assert!(complaint.contains("by atomics"), "{complaint}");
}

/// Processes that a launcher has started, with their ranks.
fn ranks_of(launcher: u32) -> Vec<(usize, u32)> {
    let children = format!("/proc/{launcher}/task/{launcher}/children");
    let children = std::fs::read_to_string(children).unwrap_or_default();
    let pids = children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok());
    let rank = |pid: u32| {
        let variables = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let variables = String::from_utf8_lossy(&variables).into_owned();
        let rank = variables
            .split('\0')
            .find_map(|v| v.strip_prefix("OSIER_RANK="))?;
        Some((rank.parse().ok()?, pid))
    };
    pids.filter_map(rank).collect()
}

/// Ticks of the processor that a process's emulated device has taken.
fn ticks(pid: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let of_device = |thread: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).ok()?;
        let (name, rest) = stat.rsplit_once(')')?;
        let used: u64 = rest.split_whitespace().nth(11)?.parse().ok()?;
        name.ends_with("(emulated-gpu").then_some(used)
    };
    let threads = threads.into_iter().flatten().flatten();
    threads.filter_map(of_device).sum()
}

/// A rank is killed while kernels wait for each other: the other's waits end, and name it.
#[test]
fn a_kernel_that_waits_for_a_dead_rank_ends() {
    kills_one("");
}

/// The same of ranks elsewhere, for which kernels post what they put.
#[test]
fn a_kernel_that_has_posted_for_a_dead_rank_ends() {
    kills_one("--delay 10us");
}

fn kills_one(delay: &str) {
    if beside("libosier_emulated_cuda.so").is_none() {
        return needs::missing("driver", "it was not built beside the programs");
    }
    let Some(launcher) = beside("osier") else {
        return needs::missing("launcher", "it was not built beside the programs");
    };
    let line = format!(
        "run -n 2 --on-death report --emulate-gpus 1 --bind none {delay} -- persistent_halo \
         --rows 3 --columns 40 --steps 100000000"
    );
    let job = Command::new(launcher)
        .args(line.split_whitespace())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("osier starts");
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        let ranks = ranks_of(job.id());
        let busy = |rank: usize| {
            ranks
                .iter()
                .find(|r| r.0 == rank)
                .filter(|r| ticks(r.1) > 30)
        };
        if let (Some(_), Some(one)) = (busy(0), busy(1)) {
            let killed = Command::new("kill")
                .args(["-9", &one.1.to_string()])
                .status();
            assert!(killed.expect("kill starts").success());
            break;
        }
        assert!(Instant::now() < until, "no kernel runs: {ranks:?}");
        std::thread::yield_now();
    }
    let out = job.wait_with_output().expect("osier ends");
    let complaint = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success());
    assert!(
        complaint.contains("a team of kernels: rank 1 has ended"),
        "{complaint}"
    );
}

#[test]
fn buffers_of_devices() {
    if beside("libosier_emulated_cuda.so").is_none() {
        return needs::missing("driver", "it was not built beside the programs");
    }
    verifies("run -n 2 --emulate-gpus 1 --bind none -- transpose --device --block 40 --repeat 2");
    verifies("run -n 2 --emulate-gpus 2 --bind none -- triangle --device -N 90 --repeat 2");
    verifies(
        "run -n 2 --emulate-gpus 1 --bind none -- kv_cache --device --layers 2 --tokens 64 \
         --head-size 16 --repeat 2",
    );
    // Ranks that are threads copy straight from array to array.
    verifies(
        "run -n 2 --ranks-per-process 2 --emulate-gpus 1 --bind none -- kv_cache --device \
         --layers 3 --tokens 64 --head-size 16 --repeat 2",
    );
}

/// The last line on standard output of a run that succeeds; none where nothing runs.
fn checksum(line: &str) -> Option<String> {
    let out = run(line)?;
    let told = String::from_utf8_lossy(&out.stdout);
    let complaint = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{line}:\n{told}{complaint}");
    let last = told.lines().last().map(str::to_owned);
    assert!(last.is_some(), "{line}:\n{complaint}");
    last
}

#[test]
fn variants_have_the_same_bits_in_processes_and_threads() {
    for (program, reference, others) in [
        (
            "jacobi3d --quiet --checksum --no-picture --grid 24x21x19 --sweeps 9",
            "run -n 1",
            &[
                ("run -n 3", "--by overlap"),
                ("run -n 4", "--by graph"),
                ("run -n 2", "--by graph --factor 1x2x3 --workers 2"),
                ("run -n 4 --ranks-per-process 2", "--by graph"),
                ("run -n 8 --ranks-per-process 4", "--by ranks"),
                ("run -n 6 --ranks-per-process 3", "--by ranks --workers 2"),
                ("run -n 2 --delay 20us", "--by graph"),
                ("run -n 4 --ranks-per-process 2 --delay 20us", "--by ranks"),
            ][..],
        ),
        (
            "cannon --quiet --checksum --n 90",
            "run -n 4",
            &[
                ("run -n 4", "--by overlap"),
                ("run -n 1", "--by graph --blocks 2 --workers 2"),
                ("run -n 3", "--by graph --blocks 2"),
                ("run -n 4 --ranks-per-process 2", "--by graph --blocks 2"),
            ][..],
        ),
    ] {
        let of = |job: &str, options: &str| {
            checksum(&format!("{job} --bind none -- {program} {options}"))
        };
        let Some(expected) = of(reference, "") else {
            return;
        };
        for (job, options) in others {
            assert_eq!(
                of(job, options).as_ref(),
                Some(&expected),
                "{job}, {options}"
            );
        }
    }
}

#[test]
fn a_grid_that_does_not_fit_is_said_once() {
    for (line, part) in [
        ("-n 3 --bind none -- cannon", "1 or 4 ranks fit"),
        (
            "-n 2 --bind none -- cannon --by graph --blocks 9 --n 8",
            "at most 8x8",
        ),
        (
            "-n 2 --bind none -- jacobi3d --grid 4 --by graph --factor 3x1x1 --ranks 2x1x1",
            "at most 2x4x4",
        ),
        (
            "-n 2 --bind none -- jacobi3d --workers 2",
            "hint: --by graph",
        ),
    ] {
        let Some(out) = run(&format!("run {line}")) else {
            return;
        };
        let told = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{told}");
        assert_eq!(told.matches(part).count(), 1, "{told}");
    }
}

#[test]
fn what_does_not_fit_is_said_once() {
    let Some(out) = run("run -n 2 --bind none -- kv_cache --tokens 1000 --pages 3") else {
        return;
    };
    let told = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{told}");
    assert_eq!(told.matches("63 pages").count(), 1, "{told}");
}

#[test]
fn sparse_lu_prints_one_checksum_however_ranks_work_together() {
    let mut expected = String::new();
    for line in [
        "run -n 1 --bind none -- sparse_lu --by sync",
        "run -n 2 --bind none -- sparse_lu --by overlap",
        "run -n 3 --bind none -- sparse_lu --by graph --workers 2",
        "run -n 4 --bind none --ranks-per-process 2 -- sparse_lu --by graph",
    ] {
        let line = format!("{line} --convection 7 --quiet --checksum");
        let Some(out) = run(&line) else { return };
        let told = String::from_utf8_lossy(&out.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{line}:\n{told}{complaint}");
        let checksum = told.trim();
        assert_eq!(checksum.len(), 16, "{line}: {told}");
        if expected.is_empty() {
            expected = checksum.into();
        }
        assert_eq!(checksum, expected, "{line}");
    }
}

#[test]
fn sparse_lu_names_file_and_line_of_a_bad_matrix_once() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bad-matrix.mtx");
    let text = "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1\n3 2 1\n";
    std::fs::write(&path, text).expect("a file");
    let Some(out) = run(&format!(
        "run -n 2 --bind none -- sparse_lu {}",
        path.display()
    )) else {
        return;
    };
    let told = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{told}");
    let words = "bad-matrix.mtx:4: expected a row in 1..2, found 3";
    assert_eq!(told.matches(words).count(), 1, "{told}");
}
