//! Cannon's algorithm on ranks that are threads: C has the bits of the same sums without
//! messages for each variant and number of ranks, and is near a plain triple loop.

use std::path::PathBuf;

use clap::Parser;
use osier::ErrorKind;
use osier::testing::ranks;
use osier_examples::cannon::{self, Factor, Options, Plan, Report, entry, product_by_blocks};
use osier_examples::cli::Failure;
use osier_examples::hash;

fn options(line: &str) -> Options {
    let words = ["cannon", "--quiet"]
        .into_iter()
        .chain(line.split_whitespace());
    Options::try_parse_from(words).expect("valid options")
}

/// Runs on `n` ranks; all report the same.
fn run(n: usize, line: &str) -> Report {
    let options = options(line);
    let reports = ranks(n, |comm| cannon::run(&comm, &options).expect("it runs"));
    for report in &reports {
        assert_eq!(report.checksum, reports[0].checksum);
        assert_eq!(report.checked, reports[0].checked);
        assert!(report.checked.is_some() && report.passes(), "{report}");
    }
    reports.into_iter().next().expect("a rank")
}

/// C by rows, from the blocks of the same sums without messages.
fn reference(plan: &Plan, seed: u64) -> Vec<f64> {
    let mut c = vec![0.0; plan.n * plan.n];
    for i in 0..plan.blocks {
        for j in 0..plan.blocks {
            let columns = plan.range(j);
            let block = product_by_blocks(plan, seed, i, j);
            for (row, values) in plan.range(i).zip(block.chunks_exact(columns.len())) {
                c[row * plan.n..][columns.clone()].copy_from_slice(values);
            }
        }
    }
    c
}

fn equals_reference(n: usize, line: &str) -> Report {
    let report = run(n, line);
    let c = reference(&report.plan, options(line).seed);
    let expected = hash::checksum(&c, 0);
    assert_eq!(report.checksum, expected, "{n} ranks, {line}:\n{report}");
    report
}

#[test]
fn squares_of_ranks_have_the_bits_of_the_reference() {
    for (n, line) in [
        (1, "--n 37"),
        (1, "--n 1"),
        (4, "--n 2"),
        (4, "--n 41 --seed 7"),
        (4, "--n 64 --blocks 2 --repeat 3"),
        (9, "--n 50"),
        (8, "--n 29 --layers 2"),
        (8, "--n 40 --layers 2 --repeat 2"),
    ] {
        let sync = equals_reference(n, &format!("{line} --by sync"));
        let overlap = equals_reference(n, &format!("{line} --by overlap"));
        assert_eq!(sync.checksum, overlap.checksum);
    }
}

#[test]
fn a_graph_has_the_bits_of_the_reference_on_any_number_of_ranks() {
    for line in [
        "--n 33 --blocks 4",
        "--n 40 --blocks 5 --layers 2 --repeat 2",
        "--n 7 --blocks 3 --layers 3",
        "--n 5 --blocks 5",
    ] {
        let of = |n: usize, workers: usize| {
            let line = format!("{line} --by graph --workers {workers}");
            equals_reference(n, &line).checksum
        };
        let one = of(1, 1);
        for n in 1..=6 {
            for workers in [1, 2] {
                assert_eq!(of(n, workers), one);
            }
        }
    }
    // More ranks than tasks.
    for (n, line) in [
        (3, "--n 9 --blocks 1"),
        (6, "--n 9 --blocks 2"),
        (5, "--n 1"),
    ] {
        equals_reference(n, &format!("{line} --by graph"));
    }
}

#[test]
fn variants_over_the_same_blocks_have_the_same_bits() {
    for (n, line) in [(4, "--n 45"), (9, "--n 31"), (8, "--n 30 --layers 2")] {
        let sync = run(n, line);
        let blocks = sync.plan.blocks;
        let graph = run(3, &format!("{line} --by graph --blocks {blocks}"));
        assert_eq!(graph.checksum, sync.checksum);
        assert_eq!(graph.plan, sync.plan);
    }
}

/// Beyond what is sent eagerly, and what a graph sends in one part.
#[test]
fn blocks_of_many_kilobytes_arrive() {
    equals_reference(4, "--n 300");
    equals_reference(4, "--n 301 --by overlap");
    equals_reference(3, "--n 420 --by graph --blocks 2 --workers 2");
    equals_reference(2, "--n 300 --by graph --blocks 3 --layers 3");
}

#[test]
fn the_reference_is_near_a_triple_loop() {
    for (blocks, layers) in [(1, 1), (4, 2), (5, 5)] {
        let plan = Plan {
            n: 59,
            blocks,
            layers,
        };
        let c = reference(&plan, 3);
        let at = |factor, row, column| entry(plan.n, 3, factor, row, column);
        let roundings = (plan.n + layers) as f64 * f64::EPSILON / 2.0;
        let mut off: f64 = 0.0;
        for i in 0..plan.n {
            for j in 0..plan.n {
                let products = (0..plan.n).map(|k| at(Factor::A, i, k) * at(Factor::B, k, j));
                let (mut sum, mut size) = (0.0, 0.0);
                for product in products {
                    sum += product;
                    size += product.abs();
                }
                let error = (c[i * plan.n + j] - sum).abs();
                assert!(error <= 2.0 * roundings * size, "{i}, {j}: {error:e}");
                off = off.max(sum.abs());
            }
        }
        assert!(off > 1.0, "the product is not trivial");
    }
}

#[test]
fn a_report_says_what_was_multiplied_and_how() {
    let report = run(2, "--n 30 --by graph --blocks 3 --workers 2 --repeat 4");
    assert_eq!(report.seconds.len(), 4);
    assert!(report.seconds.is_sorted());
    let workers = report.workers.as_ref().expect("a graph's");
    assert_eq!((workers.per_rank, workers.firings), (2, 4 * 9 * 3));
    let shown = report.to_string();
    for part in [
        "3x3 in 1 layer,",
        "10x10",
        "graph",
        "busy",
        "bits",
        "rounding",
    ] {
        assert!(shown.contains(part), "{shown}");
    }
    assert!(
        shown.lines().all(|line| line.chars().count() <= 80),
        "{shown}"
    );
    let unchecked = options("--n 30 --by graph --no-check");
    for report in ranks(2, |comm| cannon::run(&comm, &unchecked).expect("it runs")) {
        assert!(report.checked.is_none() && report.passes());
    }
}

#[test]
fn the_graph_is_drawn_with_times_or_refused_by_all() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cannon.svg");
    let line = format!(
        "--n 20 --by graph --blocks 2 --layers 2 --repeat 2 --picture {}",
        path.display()
    );
    run(3, &line);
    let drawn = std::fs::read_to_string(&path).expect("it was written");
    assert!(drawn.starts_with("<svg") && drawn.trim_end().ends_with("</svg>"));
    for part in ["block[1, 0, 1]", "in calls"] {
        assert!(drawn.contains(part), "{part}: {drawn}");
    }
    let nowhere = options(&format!("{line}/below-a-file.svg"));
    let told = ranks(3, |comm| match cannon::run(&comm, &nowhere) {
        Err(Failure::Options(e)) => e.to_string(),
        other => panic!("{other:?}"),
    });
    assert!(told[0].contains("--picture"), "{}", told[0]);
    assert!(told.iter().all(|what| *what == told[0]));
}

#[test]
fn what_cannot_be_done_is_said_by_all_ranks() {
    for (line, hint) in [
        ("", "1 or 4 ranks fit"),
        ("--by overlap --layers 3", "27 or 48 ranks fit"),
        ("--blocks 2", "it needs 4"),
        ("--workers 2", "--by graph"),
        ("--by overlap --picture x.svg", "--by graph"),
        ("--by graph --blocks 5 --n 4", "at most 4x4"),
        ("--by graph --blocks 2 --layers 3", "at most 2 layers"),
        ("--by graph --n 0", "from 1 to"),
        ("--by graph --n 900000000 --blocks 3", "smaller matrices"),
    ] {
        let options = options(line);
        for result in ranks(3, |comm| cannon::run(&comm, &options)) {
            match result {
                Err(Failure::Options(e)) => {
                    let memory = e.kind() == ErrorKind::OutOfMemory;
                    assert!(memory || e.kind() == ErrorKind::Argument);
                    assert!(e.to_string().contains(hint), "{line}: {e}");
                }
                other => panic!("{line}: {other:?}"),
            }
        }
    }
}
