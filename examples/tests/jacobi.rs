//! The main example on ranks that are threads: the field is that of a plain loop, bit for
//! bit, whatever the decomposition and whichever way it is swept.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use osier::testing::ranks;
use osier::{Communicator, ErrorKind, task};
use osier_examples::jacobi::{self, Block, By, Failure, Mode, Options, Report, Unhidden};

#[path = "../../tests/needs.rs"]
#[allow(dead_code)]
mod needs;

fn options(line: &str) -> Options {
    let words = ["jacobi3d", "--quiet", "--no-picture"]
        .into_iter()
        .chain(line.split_whitespace());
    Options::try_parse_from(words).expect("valid options")
}

/// Runs on `n` ranks, which are threads or virtual ranks; all report the same.
fn run(n: usize, options: &Options) -> Report {
    let rank = |comm: Communicator| jacobi::run(&comm, options).expect("it runs");
    let reports = match options.virtual_workers() {
        None => ranks(n, rank),
        Some(workers) => task::ranks(n, workers, rank).expect("they run"),
    };
    for report in &reports {
        assert_eq!(report.checksum, reports[0].checksum);
        assert_eq!(report.norms, reports[0].norms);
        assert!(report.passes(), "{report}");
    }
    reports.into_iter().next().expect("a rank")
}

/// The checksum after the sweeps, done over one array, point by point.
fn reference(options: &Options) -> u64 {
    let grid = options.grid.zyx();
    let block = Block {
        first: [0; 3],
        points: grid,
    };
    let mode = Mode::new(grid, options.mode).expect("it fits");
    let mut old = vec![0.0; block.elements()];
    mode.rows(&block, |z, y, scale, sines| {
        for (x, sine) in sines.iter().enumerate() {
            old[block.at(z + 1, y + 1, x + 1)] = scale * sine;
        }
    });
    let mut new = old.clone();
    for _ in 0..options.sweeps {
        let u = |z, y, x| old[block.at(z, y, x)];
        for z in 1..=grid[0] {
            for y in 1..=grid[1] {
                for x in 1..=grid[2] {
                    let sum = u(z, y, x - 1)
                        + u(z, y, x + 1)
                        + u(z, y - 1, x)
                        + u(z, y + 1, x)
                        + u(z - 1, y, x)
                        + u(z + 1, y, x);
                    new[block.at(z, y, x)] = sum * (1.0 / 6.0);
                }
            }
        }
        std::mem::swap(&mut old, &mut new);
    }
    jacobi::checksum(&old, &block, grid)
}

/// Every variant on this many ranks: the field of the plain loop.
fn equals_reference(n: usize, line: &str, graphs: &[&str]) {
    let expected = reference(&options(line));
    let variants = ["--by sync", "--by overlap"].iter().chain(graphs);
    let reports: Vec<Report> = variants
        .map(|by| run(n, &options(&format!("{line} {by}"))))
        .collect();
    for report in &reports {
        assert_eq!(report.checksum, expected, "{n} ranks, {line}:\n{report}");
        assert_eq!(report.norms.len(), reports[0].norms.len());
        for ((sweep, norm), (other, expected)) in report.norms.iter().zip(&reports[0].norms) {
            assert_eq!(sweep, other);
            assert!((norm - expected).abs() <= 1e-12 * expected, "{report}");
        }
    }
}

#[test]
fn every_variant_gives_the_field_of_a_plain_loop() {
    for n in 1..=6 {
        equals_reference(
            n,
            "--grid 19x14x23 --sweeps 17 --norm-every 5",
            &[
                "--by graph",
                "--by graph --factor 1 --workers 2",
                "--by graph --factor 2x2x3 --workers 2",
                "--by ranks",
                "--by ranks --workers 2",
            ],
        );
    }
}

#[test]
fn tasks_of_single_points_and_layers() {
    let graphs = ["--by graph", "--by graph --factor 2x1x1 --workers 2"];
    equals_reference(2, "--grid 6x2x1 --sweeps 9 --ranks 2x1x1", &graphs);
    equals_reference(4, "--grid 9x2x2 --sweeps 5 --ranks 1x2x2", &graphs);
    equals_reference(3, "--grid 3x5x3 --sweeps 4 --ranks 1x1x3", &graphs[..1]);
    equals_reference(
        6,
        "--grid 7 --sweeps 1",
        &["--by graph --factor 3x1x2 --workers 2"],
    );
    equals_reference(2, "--grid 7 --sweeps 0", &graphs);
    let alone = ["--by graph --factor 7 --workers 2", "--by graph --factor 1"];
    equals_reference(1, "--grid 1x7x1 --sweeps 30 --norm-every 1", &alone);
}

#[test]
fn residuals_of_a_graph_have_the_bits_of_its_tasks() {
    let of = |n: usize, line: &str| {
        let line = format!("--grid 16x12x14 --sweeps 12 --norm-every 2 --by graph {line}");
        run(n, &options(&line)).norms
    };
    let one = of(1, "--factor 2x4x2");
    assert_eq!(of(2, "--ranks 1x2x1 --factor 2x2x2 --workers 2"), one);
    assert_eq!(of(4, "--ranks 2x2x1 --factor 1x2x2"), one);
}

#[test]
fn faces_of_tasks_may_be_long() {
    let graphs = ["--by graph --factor 1x1x2 --workers 2", "--by ranks"];
    equals_reference(2, "--grid 130x110x8 --sweeps 4 --ranks 1x1x2", &graphs);
    equals_reference(2, "--grid 8x110x130 --sweeps 4 --ranks 2x1x1", &graphs);
}

#[test]
fn a_report_says_what_the_workers_did() {
    let line = "--grid 20 --sweeps 9 --by graph --factor 2x2x1 --workers 2";
    let report = run(3, &options(line));
    assert_eq!(report.by, By::Graph);
    let workers = report.workers.clone().expect("a graph's");
    assert_eq!((workers.per_rank, workers.firings), (2, 3 * 4 * 9));
    let shown = report.to_string();
    for part in ["12 = ", "4 for each rank", "time of a sweep", "busy"] {
        assert!(shown.contains(part), "{shown}");
    }
    assert!(
        shown.lines().all(|line| line.chars().count() <= 80),
        "{shown}"
    );
}

#[test]
fn a_report_says_what_is_hidden() {
    for by in ["overlap", "graph --workers 2", "ranks", "ranks --workers 2"] {
        let line = format!("--grid 20 --sweeps 9 --hidden --by {by}");
        let report = run(4, &options(&line));
        let Unhidden {
            synchronous,
            without,
        } = report.unhidden.expect("it was asked for");
        assert!(!synchronous.is_zero() && !without.is_zero(), "{report}");
        let seconds = Duration::from_secs_f64(report.seconds);
        assert_eq!(report.hidden(), task::hidden(synchronous, seconds, without));
        let shown = report.to_string();
        assert!(shown.contains("\nhidden "), "{shown}");
        assert!(shown.lines().all(|line| line.len() <= 80), "{shown}");
    }
    let report = run(2, &options("--grid 9 --sweeps 2"));
    assert!(report.unhidden.is_none() && !report.to_string().contains("hidden"));
}

fn equals_one_rank(n: usize, line: &str) -> Report {
    let alone = options(line.split("--ranks").next().unwrap_or(line));
    let one = run(1, &alone);
    let many = run(n, &options(line));
    assert_eq!(
        many.checksum, one.checksum,
        "{n} ranks, {line}:\n{many}\n{one}"
    );
    assert_eq!(many.norms.len(), one.norms.len());
    for ((sweep, norm), (_, expected)) in many.norms.iter().zip(&one.norms) {
        assert!(
            (norm - expected).abs() <= 1e-12 * expected,
            "{n} ranks, {line}: sweep {sweep}: {norm:e} and {expected:e}"
        );
    }
    many
}

#[test]
fn any_number_of_ranks_gives_the_field_of_one() {
    for n in [2, 3, 4, 6, 8] {
        let report = equals_one_rank(n, "--grid 20 --sweeps 30 --norm-every 7");
        assert!(report.max_error <= 1e-12 * report.amplitude, "{report}");
        equals_one_rank(n, "--grid 17x13x11 --sweeps 23 --norm-every 5");
    }
}

#[test]
fn any_shape_of_ranks_gives_the_field_of_one() {
    for (n, shape) in [
        (2, "2x1x1"),
        (3, "1x3x1"),
        (4, "4x1x1"),
        (4, "1x1x4"),
        (6, "1x3x2"),
        (6, "3x2x1"),
        (8, "2x2x2"),
        (8, "1x8x1"),
    ] {
        equals_one_rank(n, &format!("--grid 13x18x9 --sweeps 12 --ranks {shape}"));
    }
}

#[test]
fn a_field_on_devices_is_that_of_the_host() {
    for (n, line) in [
        (1, "--grid 9x7x5 --sweeps 6"),
        (2, "--grid 14x12x10 --sweeps 7 --norm-every 3"),
        (4, "--grid 40x24x33 --sweeps 5"),
        (3, "--grid 11 --sweeps 4 --ranks 3x1x1"),
    ] {
        let host = run(n, &options(line));
        let device = options(&format!("--device {line}"));
        let reports = ranks(n, |comm| jacobi::run(&comm, &device));
        for report in reports {
            let report = match report {
                Ok(report) => report,
                Err(Failure::Options(e)) if e.kind() == ErrorKind::Device => {
                    return needs::missing("driver", e);
                }
                Err(e) => panic!("{e}"),
            };
            assert_ne!(report.place, host.place);
            assert!(report.passes(), "{report}");
            assert_eq!(report.checksum, host.checksum, "{line}:\n{report}\n{host}");
            assert_eq!(report.norms, host.norms, "{line}");
        }
    }
}

#[test]
fn faces_of_many_kilobytes_arrive() {
    // 70 KiB and more per face, beyond what is sent eagerly.
    equals_one_rank(2, "--grid 96x96x4 --sweeps 5");
    equals_one_rank(2, "--grid 4x96x96 --sweeps 5 --ranks 2x1x1");
    equals_one_rank(4, "--grid 180x20x100 --sweeps 5 --ranks 1x4x1");
}

#[test]
fn single_points_and_other_modes_work() {
    equals_one_rank(1, "--grid 1 --sweeps 3");
    equals_one_rank(6, "--grid 3x2x1 --sweeps 4 --ranks 3x2x1");
    equals_one_rank(8, "--grid 2 --sweeps 0");
    equals_one_rank(4, "--grid 8 --sweeps 40 --mode 8x7x8 --norm-every 1");
}

#[test]
fn the_picture_is_the_same_from_any_number_of_ranks() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let picture = |n: usize, grid: &str, by: &str| {
        let output = folder.join(format!("picture-{grid}-{n}-{by}"));
        let options = Options {
            no_picture: false,
            output: output.clone(),
            ..options(&format!("--grid {grid} --sweeps 3 --by {by}"))
        };
        let path = run(n, &options).picture.expect("a picture");
        let bytes = std::fs::read(path).expect("it was written");
        std::fs::remove_dir_all(output).expect("it can be removed");
        bytes
    };
    // The second slice is thinned out.
    for grid in ["24x30x7", "1500x100x2"] {
        let one = picture(1, grid, "sync");
        assert_eq!(one[1..4], *b"PNG");
        for by in ["sync", "graph", "ranks"] {
            assert!(picture(4, grid, by) == one, "{grid}");
        }
    }
}

#[test]
fn what_cannot_be_done_is_said_by_all_ranks() {
    for (line, hint) in [
        ("--grid 1", "larger grid"),
        ("--grid 9 --ranks 2x2x2", "product"),
        ("--grid 9x9x2 --ranks 1x1x3", "each rank needs a point"),
        ("--grid 9 --mode 10", "half wave"),
        ("--grid 4000000000", "addresses"),
        ("--grid 100000", "smaller grid"),
        ("--grid 100000 --by graph", "smaller grid"),
        (
            "--grid 9 --by graph --factor 4x1x1 --ranks 3x1x1",
            "at most 3x9x9",
        ),
        ("--grid 9 --by graph --factor 11", "no shape of 11 tasks"),
        ("--grid 9 --factor 2", "--by graph"),
        ("--grid 9 --by overlap --workers 2", "--by graph"),
        ("--grid 9 --by ranks --factor 2", "--by graph"),
        ("--grid 9 --by ranks --progress-thread", "--by graph"),
        ("--grid 9 --hidden", "--by overlap"),
        ("--grid 9 --by graph --device", "--by sync"),
    ] {
        let options = options(line);
        for result in ranks(3, |comm| jacobi::run(&comm, &options)) {
            match result {
                Err(Failure::Options(e)) => assert!(e.to_string().contains(hint), "{e}"),
                other => panic!("{line}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_found_before_the_run() {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("a-file");
    std::fs::write(&file, b"").expect("a file");
    let options = Options {
        no_picture: false,
        output: file.join("folder"),
        ..options("--grid 9")
    };
    for result in ranks(3, |comm| jacobi::run(&comm, &options)) {
        match result {
            Err(Failure::Options(e)) => assert_eq!(e.kind(), ErrorKind::Argument),
            other => panic!("{other:?}"),
        }
    }
}
