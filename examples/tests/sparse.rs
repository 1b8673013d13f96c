//! Sparse LU on ranks that are threads: factors against dense ones, and the same bits however
//! they are computed.

mod by_hand;

use by_hand::SMALL;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Parser;
use osier::testing::ranks;
use osier_examples::sparse::analysis::symbolic::Widths;
use osier_examples::sparse::analysis::{Analysis, Ordering};
use osier_examples::sparse::factor::{Deal, by_graph, overlapped, sequential, synchronous};
use osier_examples::sparse::grid::convection_diffusion;
use osier_examples::sparse::matrix::Matrix;
use osier_examples::sparse::meter::Meter;
use osier_examples::sparse::read::Source;
use osier_examples::sparse::solve::solve;
use osier_examples::sparse::{self, Failure, Options, Report};
use proptest::prelude::*;

fn source(matrix: Matrix) -> Source {
    Source {
        name: "a test".into(),
        line: 0,
        title: String::new(),
        matrix,
    }
}

/// LU without pivoting of the permuted and scaled matrix, by rows; pivots are replaced alike.
fn dense(analysis: &Analysis) -> (Vec<Vec<f64>>, u64) {
    let n = analysis.matrix.columns();
    let mut a = vec![vec![0.0; n]; n];
    let columns = (0..n).map(|j| analysis.matrix.column(j));
    for (j, column) in columns.enumerate() {
        for (i, value) in column {
            a[i][j] = value;
        }
    }
    let mut replaced = 0;
    for k in 0..n {
        if a[k][k].abs() < analysis.tiny {
            a[k][k] = analysis.tiny.copysign(a[k][k]);
            replaced += 1;
        }
        for i in k + 1..n {
            a[i][k] /= a[k][k];
            for j in k + 1..n {
                a[i][j] -= a[i][k] * a[k][j];
            }
        }
    }
    (a, replaced)
}

/// Compares the factors of a matrix with dense ones, and what they solve.
fn check(matrix: Matrix, widths: Widths) {
    let source = source(matrix);
    let Ok(analysis) = Analysis::new(&source, Ordering::Degree, widths) else {
        return;
    };
    let symbolic = &analysis.symbolic;
    let factors = sequential(&analysis);
    let (expected, replaced) = dense(&analysis);
    let n = expected.len();
    // Stored blocks hold the dense factors; what is not stored is zero there.
    let mut found = vec![vec![0.0; n]; n];
    for (k, column) in factors.columns.iter().enumerate() {
        let (own, height) = (symbolic.columns_of(k), symbolic.height(k));
        let panel_rows = own
            .clone()
            .chain(symbolic.rows(k).iter().map(|row| *row as usize));
        let panel_rows: Vec<usize> = panel_rows.collect();
        for (j, values) in own.clone().zip(column.chunks(height)) {
            for (i, value) in panel_rows.iter().zip(values) {
                found[*i][j] = *value;
            }
        }
        for block in &symbolic.blocks()[symbolic.updates_of(k)] {
            let rows = symbolic.columns_of(block.source as usize);
            let meets = block.meets.start as usize..block.meets.end as usize;
            let columns = &symbolic.rows(block.source as usize)[meets];
            let values = column[block.offset..].chunks(rows.len());
            for (j, values) in columns.iter().zip(values) {
                for (i, value) in rows.clone().zip(values) {
                    found[i][*j as usize] = *value;
                }
            }
        }
    }
    // Where a pivot is near the limit, rounding decides whether it is replaced.
    if replaced == 0 && factors.replaced == 0 {
        let largest = expected
            .iter()
            .flatten()
            .fold(1.0f64, |most, a| most.max(a.abs()));
        for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
            let difference = (found - expected).abs();
            assert!(
                difference <= 1e-9 * largest * largest,
                "{found} {expected} of {largest}"
            );
        }
        let exact: Vec<f64> = (0..n).map(|i| 1.0 + i as f64).collect();
        let right = source.matrix.times(&exact);
        let solved = ranks(1, |comm| {
            let deal = Deal {
                ranks: 1,
                rank: 0,
                block: 1,
            };
            let mut x = solve(&comm, &analysis, deal, &factors, &right).expect("it runs");
            for _ in 0..3 {
                let rest = source.matrix.residual(&x, &right);
                let step = solve(&comm, &analysis, deal, &factors, &rest).expect("it runs");
                x.iter_mut().zip(step).for_each(|(x, step)| *x += step);
            }
            x
        });
        let rest = source.matrix.residual(&solved[0], &right);
        let (norm, _) = source.matrix.row_norm();
        let most = |values: &[f64]| values.iter().fold(0.0f64, |most, v| most.max(v.abs()));
        let residual = most(&rest) / (norm * most(&solved[0]) + most(&right));
        assert!(residual <= 1e-13, "{residual}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn factors_are_those_of_a_dense_matrix(
        n in 1usize..32,
        entries in prop::collection::vec((any::<u32>(), any::<u32>(), -4i32..5), 0..160),
        has_diagonal in any::<bool>(),
        most in 1usize..12,
        relaxed in any::<bool>(),
    ) {
        let mut triplets: Vec<(u32, u32, f64)> = entries
            .iter()
            .map(|(i, j, value)| (i % n as u32, j % n as u32, f64::from(*value)))
            .collect();
        if has_diagonal {
            // Rows in another order, so that they are matched.
            triplets.extend((0..n as u32).map(|i| ((i + 1) % n as u32, i, 9.5)));
        }
        check(Matrix::from_triplets(n, n, &triplets), Widths { most, relaxed });
    }
}

#[test]
fn factors_of_a_grid_are_those_of_a_dense_matrix() {
    for (points, most) in [(1, 8), (2, 3), (5, 8), (6, 64)] {
        let relaxed = points != 5;
        check(
            convection_diffusion(points, 3.0, 7),
            Widths { most, relaxed },
        );
    }
}

/// A matrix whose supernodes are few and wide, or many and narrow, and its own order.
fn matrices() -> Vec<(Matrix, Ordering)> {
    let arrow = |n: u32| {
        let edges = (1..n).flat_map(|i| [(0, i, 1.0), (i, 0, -1.0), (i, i, 3.0)]);
        let all: Vec<_> = edges.chain([(0, 0, 0.5)]).collect();
        Matrix::from_triplets(n as usize, n as usize, &all)
    };
    let diagonal: Vec<_> = (0..9)
        .map(|i| (i, (i + 4) % 9, 1.0 + f64::from(i)))
        .collect();
    vec![
        (convection_diffusion(7, 2.0, 3), Ordering::Dissection(7)),
        (convection_diffusion(6, 50.0, 4), Ordering::Degree),
        (arrow(40), Ordering::Degree),
        // No blocks above the diagonal.
        (Matrix::from_triplets(9, 9, &diagonal), Ordering::Degree),
        // One supernode.
        (convection_diffusion(1, 0.0, 0), Ordering::Degree),
    ]
}

#[test]
fn all_variants_end_with_the_bits_of_the_reference() {
    for (number, (matrix, ordering)) in matrices().into_iter().enumerate() {
        let widths = Widths {
            most: 8,
            relaxed: true,
        };
        let analysis = Analysis::new(&source(matrix), ordering, widths).expect("regular");
        let (analysis, reference) = (Arc::new(analysis.clone()), sequential(&analysis));
        for n in 1..=4 {
            for block in [1, 3] {
                ranks(n, |comm| {
                    let deal = Deal {
                        ranks: n,
                        rank: comm.rank(),
                        block,
                    };
                    let meter = Arc::new(Meter::new(0, false));
                    let mut all = vec![(
                        "sync",
                        synchronous(&comm, &analysis, deal, &meter).expect("it runs"),
                    )];
                    for ahead in [0, 1, 5, 1000] {
                        let factors = overlapped(&comm, &analysis, deal, ahead, &meter);
                        all.push(("overlap", factors.expect("it runs")));
                    }
                    let graph = by_graph(&comm, &analysis, deal, &meter).expect("a graph");
                    for workers in [1, 2, 1] {
                        let (factors, report) = graph.run(workers).expect("it runs");
                        assert_eq!(report.tasks, graph.tasks());
                        all.push(("graph", factors));
                    }
                    for (name, factors) in all {
                        for (k, column) in factors.columns.iter().enumerate() {
                            let case = format!("matrix {number}, {n} ranks, {name}, column {k}");
                            assert_eq!(column.is_empty(), !deal.is_own(k), "{case}");
                            let expected = &reference.columns[k];
                            let bits = |values: &[f64]| -> Vec<u64> {
                                values.iter().map(|value| value.to_bits()).collect()
                            };
                            assert!(
                                column.is_empty() || bits(column) == bits(expected),
                                "{case}"
                            );
                        }
                    }
                });
            }
        }
    }
}

fn options(line: &str) -> Options {
    let words = ["sparse_lu", "--quiet"]
        .into_iter()
        .chain(line.split_whitespace());
    Options::try_parse_from(words).expect("valid options")
}

/// Runs on `n` ranks; all report the same.
fn run(n: usize, options: &Options) -> Report {
    let reports = ranks(n, |comm| sparse::run(&comm, options).expect("it runs"));
    for report in &reports {
        assert_eq!(report.checksum, reports[0].checksum);
        assert_eq!(report.residuals, reports[0].residuals);
        assert!(report.passes(), "{report}");
        for line in report.to_string().lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
    reports.into_iter().next().expect("a rank")
}

#[test]
fn the_program_reports_the_same_factors_and_residuals_of_any_variant() {
    let one = run(1, &options("--convection 6 --by sync"));
    for (n, line) in [
        (2, "--by sync"),
        (3, "--by overlap --ahead 4 --block 2"),
        (4, "--by graph"),
        (2, "--by graph --workers 2 --block 5"),
    ] {
        let report = run(n, &options(&format!("--convection 6 {line}")));
        assert_eq!(report.checksum, one.checksum, "{line}");
        assert_eq!(report.residuals, one.residuals, "{line}");
        assert_eq!(report.growth, one.growth, "{line}");
    }
    // Other supernodes, other sums: the residual is as small.
    run(
        3,
        &options("--convection 6 --exact --width 5 --order degree"),
    );
    run(1, &options("--convection 1"));
}

fn written(name: &str, text: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).expect("a file");
    path
}

#[test]
fn a_file_is_read_by_one_rank_and_solved_by_all() {
    let path = written("four.rua", SMALL);
    let line = |by: &str| format!("{} {by}", path.display());
    let one = run(1, &options(&line("--by sync")));
    let many = run(3, &options(&line("--by graph --workers 2")));
    assert_eq!(
        (one.size, one.title.as_str()),
        ((4, 9), "Four rows, by hand")
    );
    assert_eq!(many.checksum, one.checksum);
    assert_eq!(many.title, one.title);
}

/// Two rows that differ by so much.
fn nearly_singular(difference: &str) -> Options {
    let text = format!(
        "%%MatrixMarket matrix coordinate real general\n2 2 4\n1 1 1\n2 1 1\n1 2 1\n2 2 {difference}\n"
    );
    let path = written(&format!("{difference}.mtx"), &text);
    options(&format!("{} --refine 40", path.display()))
}

#[test]
fn tiny_pivots_are_replaced_and_refined_away() {
    // The second pivot is 2e-8, the least that is not replaced 3e-8.
    let report = run(2, &nearly_singular("1.00000002"));
    assert_eq!(report.replaced, 1, "{report}");
    assert!(report.residuals[0] > report.residual_limit, "{report}");
    assert!(report.residuals.len() > 3, "{report}");
}

#[test]
fn a_residual_that_refinement_does_not_mend_is_wrong() {
    let reports = ranks(2, |comm| {
        sparse::run(&comm, &nearly_singular("1.000000000001")).expect("it runs")
    });
    assert_eq!(reports[0].replaced, 1);
    assert!(!reports[0].passes(), "{}", reports[0]);
    assert!(reports[0].to_string().contains("WRONG"));
}

#[test]
fn the_picture_is_written_by_one_rank_or_refused_by_all() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("factors.png");
    let line = |path: &PathBuf| options(&format!("--convection 5 --picture {}", path.display()));
    run(3, &line(&path));
    let bytes = std::fs::read(&path).expect("it was written");
    assert_eq!(bytes[1..4], *b"PNG");
    let nowhere = line(&path.join("below-a-file.png"));
    for result in ranks(3, |comm| sparse::run(&comm, &nowhere)) {
        match result {
            Err(Failure::Options(e)) => assert!(e.to_string().contains("--picture"), "{e}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_cannot_be_done_is_said_by_all_ranks() {
    let short = written("short.rua", SMALL.split_at(300).0);
    let singular = "%%MatrixMarket matrix coordinate pattern general\n2 2 2\n1 1\n2 1\n";
    let singular = written("singular.mtx", singular);
    for (line, words) in [
        (
            short.display().to_string(),
            "short.rua:5: the file ends here",
        ),
        (
            singular.display().to_string(),
            "singular.mtx:2: a structurally singular matrix",
        ),
        ("no-such.rua".to_owned(), "no-such.rua: cannot be read"),
        (
            "--convection 3 --by sync --workers 2".to_owned(),
            "hint: --by graph",
        ),
        (
            "no-such.rua --order dissection".to_owned(),
            "hint: --order degree",
        ),
    ] {
        let options = options(&line);
        for result in ranks(3, |comm| sparse::run(&comm, &options)) {
            match result {
                Err(Failure::Options(e)) => assert!(e.to_string().contains(words), "{e}"),
                other => panic!("{line}: {other:?}"),
            }
        }
    }
}
