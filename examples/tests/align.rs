//! Needleman-Wunsch on ranks that are threads: score and alignment are those of the
//! sequential reference, whatever fills the matrix.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use clap::Parser;
use osier::testing::ranks;
use osier_examples::align::alignment::{Column, GAP};
use osier_examples::align::fasta::CODES;
use osier_examples::align::{self, Alignment, Deal, Failure, Matrix, Options, Progress, Report};
use osier_examples::align::{Scoring, Tiling, Variant, mutation, reference};
use proptest::prelude::*;

#[path = "../../tests/needs.rs"]
#[allow(dead_code)]
mod needs;

fn options(line: &str) -> Options {
    let words = ["needleman_wunsch", "--quiet"]
        .into_iter()
        .chain(line.split_whitespace());
    Options::try_parse_from(words).expect("valid options")
}

/// Runs on `n` ranks; all report the same.
fn run(n: usize, options: &Options) -> Report {
    let reports = ranks(n, |comm| align::run(&comm, options).expect("it runs"));
    for report in &reports {
        assert!(report.passes(), "{report}");
        assert_eq!(report.score, reports[0].score);
        assert_eq!(columns(report), columns(&reports[0]));
    }
    reports.into_iter().next().expect("a rank")
}

fn columns(report: &Report) -> &[Column] {
    let alignment = report.alignment.as_ref();
    alignment.map_or(&[], |aligned| &aligned.columns)
}

fn without_gaps(letters: &[u8]) -> Vec<u8> {
    letters
        .iter()
        .copied()
        .filter(|letter| *letter != GAP)
        .collect()
}

/// The alignment scores what is reported, and its letters are the sequences.
fn check(report: &Report, scoring: &Scoring, [first, second]: [&[u8]; 2]) {
    let aligned = Alignment::new(columns(report), first, second).expect("it fits");
    assert_eq!(aligned.score(scoring), report.score);
    assert_eq!(without_gaps(&aligned.first), first);
    assert_eq!(without_gaps(&aligned.second), second);
}

/// A folder that is removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("osier-align-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn file(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Files of two sequences.
fn pair(folder: &Folder, first: &[u8], second: &[u8]) -> String {
    let text = |letters: &[u8]| [b">x\n", letters, b"\n"].concat();
    let files = [("a.fa", first), ("b.fa", second)];
    files
        .map(|(name, letters)| folder.file(name, text(letters)))
        .join(" ")
}

#[test]
fn all_variants_agree_with_the_sequential_program() {
    let folder = Folder::new("variants");
    let first = mutation::random(150, 3).expect("memory");
    let second = mutation::mutate(&first, 0.3, 4);
    let files = pair(&folder, &first, &second);
    let scoring = Scoring::new(1, -1, -2).expect("scores");
    let (score, expected) = reference::align(&scoring, &first, &second);
    assert_eq!(reference::score(&scoring, &first, &second), score);
    for by in Variant::ALL {
        for block in [1, 7, 33, 64, 1000] {
            // A task for each cell takes a while.
            let most = if block == 1 { 2 } else { 4 };
            for n in 1..=most {
                for workers in 1..=if by.is_graph() { 2 } else { 1 } {
                    let line = format!("{files} --by {by} --block {block} --workers {workers}");
                    let report = run(n, &options(&line));
                    assert_eq!(report.score, score, "{n} ranks, {line}");
                    assert_eq!(columns(&report), expected, "{n} ranks, {line}");
                    check(&report, &scoring, [&first, &second]);
                }
            }
        }
    }
}

#[test]
fn windows_and_priorities_change_nothing() {
    let line = "--random 400 --mutate 0.2 --block 13 --check";
    let expected = run(1, &options(line));
    for more in [
        "--by overlap --window 1",
        "--by overlap --window 100",
        "--by panels --window 1",
        "--by panels --window 100 --workers 2 --priority",
        "--by blocks --workers 2 --priority",
    ] {
        let report = run(3, &options(&format!("{line} {more}")));
        assert_eq!(report.score, expected.score, "{more}");
        assert_eq!(report.expected, Some(report.score), "{more}");
        assert_eq!(columns(&report), columns(&expected), "{more}");
    }
}

#[test]
fn the_score_alone_needs_no_borders() {
    let line = "--random 3000 --mutate 0.05 --block 1000";
    let expected = run(1, &options(line)).score;
    for by in Variant::ALL {
        let report = run(
            2,
            &options(&format!("{line} --by {by} --score-only --check")),
        );
        assert_eq!(report.score, expected, "{by}");
        assert!(report.alignment.is_none());
    }
}

#[test]
fn short_sequences_are_blocks_of_their_own() {
    let folder = Folder::new("short");
    let scoring = Scoring::new(1, -1, -2).expect("scores");
    for (first, second) in [("A", "A"), ("A", "C"), ("ACGTACGT", "T"), ("G", "ACGTACGT")] {
        let (first, second) = (first.as_bytes(), second.as_bytes());
        let files = pair(&folder, first, second);
        let (score, expected) = reference::align(&scoring, first, second);
        for by in Variant::ALL {
            for block in [1, 3, 512] {
                for n in [1, 4] {
                    let report = run(n, &options(&format!("{files} --by {by} --block {block}")));
                    assert_eq!((report.score, columns(&report)), (score, &expected[..]));
                }
            }
        }
    }
}

#[test]
fn the_alignment_is_written() {
    let folder = Folder::new("written");
    let path = folder.0.join("alignment.txt");
    let line = format!("--random 130 --mutate 0.2 --output {}", path.display());
    let report = run(2, &options(&line));
    let text = std::fs::read_to_string(&path).expect("written");
    assert!(
        text.contains(&format!("score         {},", report.score)),
        "{text}"
    );
    let of = |name: &str| -> Vec<u8> {
        let lines = text
            .lines()
            .filter(|line| line.starts_with(&format!("{name} ")));
        let letters = lines.filter_map(|line| line.split_whitespace().nth(2));
        letters.flat_map(str::bytes).collect()
    };
    let aligned = report
        .alignment
        .expect("an alignment")
        .sequences
        .expect("it fits");
    assert_eq!(
        (of("random"), of("mutated")),
        (aligned.first, aligned.second)
    );
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
}

#[test]
fn the_graph_is_drawn_with_times() {
    let folder = Folder::new("drawn");
    for (by, task) in [("blocks", "block[1, 1]"), ("panels", "panel[1]")] {
        let path = folder.0.join(format!("{by}.svg"));
        let line = format!(
            "--random 60 --block 32 --by {by} --picture {}",
            path.display()
        );
        run(3, &options(&line));
        let drawn = std::fs::read_to_string(&path).expect("written");
        assert!(drawn.starts_with("<svg") && drawn.trim_end().ends_with("</svg>"));
        for part in [task, "in calls"] {
            assert!(drawn.contains(part), "{part}: {drawn}");
        }
    }
}

#[test]
fn records_are_chosen() {
    let folder = Folder::new("records");
    let file = folder.file("both.fa", ">a\nacgt\n>b\r\nAC\r\nuu\r\n");
    let report = run(2, &options(&format!("{file} {file} --record b --record a")));
    assert_eq!(report.sequences, [("b".into(), 4), ("a".into(), 4)]);
    assert_eq!(report.score, 2);
}

#[test]
fn what_is_wrong_is_the_same_at_all_ranks() {
    let folder = Folder::new("wrong");
    let good = folder.file("good.fa", ">a\nACGT\n");
    let cases = [
        (
            folder.file("e.fa", ">a\n"),
            "e.fa, line 1: record \"a\" has no letters",
        ),
        (
            folder.file("h.fa", "ACGT\n"),
            "h.fa, line 1: \"ACGT\" before any header",
        ),
        (
            folder.file("r.fa", ">a\nAC\nAJ\n"),
            "r.fa, line 3: 'J' in column 2",
        ),
        (format!("{good} --record z"), "good.fa: no record \"z\""),
        (format!("{good}.none"), "good.fa.none: cannot be read"),
        (
            format!("{good} --mutate 1 --seed 406"),
            "'mutated' is empty",
        ),
        ("--random 0".into(), "'random' is empty"),
        ("--random 9999999999999999999".into(), "no memory"),
        ("--random 100000 --block 1".into(), "--block 1"),
        ("--gap 1".into(), "a gap scores 1"),
        ("--by sync --workers 2".into(), "--workers 2"),
        (format!("--output {good}/x"), "cannot be written"),
        (format!("--random 9 --picture {good}/x"), "--picture"),
    ];
    for (line, part) in cases {
        let options = options(&line);
        let told = ranks(3, |comm| match align::run(&comm, &options) {
            Err(Failure::Input(what)) => what,
            other => panic!("{line}: {other:?}"),
        });
        assert!(told[0].contains(part), "{}", told[0]);
        assert!(told.iter().all(|what| *what == told[0]));
    }
}

fn letters(most: usize) -> impl Strategy<Value = Vec<u8>> {
    let letter = prop_oneof![
        4 => prop::sample::select(&b"ACGT"[..]),
        1 => prop::sample::select(CODES),
    ];
    // As the reader gives them.
    let letter = letter.prop_map(|letter| if letter == b'U' { b'T' } else { letter });
    prop::collection::vec(letter, 1..most)
}

fn scorings() -> impl Strategy<Value = Scoring> {
    (-8..=6i32, 0..=12i32, 0..=12i32)
        .prop_map(|(alike, less, gap)| Scoring::new(alike, alike - less, -gap))
        .prop_filter_map("scores that fit", Result::ok)
}

/// The score by blocks, filled in the order of rows.
fn by_blocks(scoring: Scoring, first: &[u8], second: &[u8], block: usize) -> i64 {
    let tiling = Tiling::new([first.len(), second.len()], block, Deal::Rows, 1);
    let matrix = Matrix::new(
        scoring,
        [first, second],
        tiling,
        0,
        false,
        Progress::silent(),
    );
    let [rows, columns] = tiling.extents();
    let mut tops: Vec<_> = (0..columns).map(|column| matrix.topmost(column)).collect();
    for row in 0..rows {
        let mut left = matrix.leftmost(row);
        for (column, top) in tops.iter_mut().enumerate() {
            matrix.fill([row, column], &mut left, top);
        }
    }
    matrix.lowest() as i64 + (first.len() + second.len()) as i64 * i64::from(scoring.gap)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn blocks_score_as_the_whole_matrix(
        (first, second) in (letters(90), letters(90)),
        scoring in scorings(),
        block in 1..40usize,
    ) {
        let expected = reference::align(&scoring, &first, &second).0;
        prop_assert_eq!(by_blocks(scoring, &first, &second, block), expected);
    }

    #[test]
    fn alignments_are_those_of_the_whole_matrix(
        (first, second) in (letters(60), letters(60)),
        scoring in scorings(),
        block in 1..30usize,
        by in prop::sample::select(&Variant::ALL[..]),
        n in 1..4usize,
    ) {
        let folder = Folder::new("any");
        let Scoring { alike, unlike, gap, .. } = scoring;
        let line = format!(
            "{} --by {by} --block {block} --match={alike} --mismatch={unlike} --gap={gap}",
            pair(&folder, &first, &second)
        );
        let (score, expected) = reference::align(&scoring, &first, &second);
        let report = run(n, &options(&line));
        prop_assert_eq!(report.score, score);
        prop_assert_eq!(columns(&report), &expected[..]);
        check(&report, &scoring, [&first, &second]);
    }
}

/// Scores at the limits of a byte.
#[test]
fn the_largest_differences_fit() {
    let first = mutation::random(300, 5).expect("memory");
    let second = mutation::mutate(&first, 0.3, 6);
    for (alike, unlike, gap) in [(254, 254, 0), (254, 0, 0), (100, -300, -77), (0, 0, -127)] {
        let scoring = Scoring::new(alike, unlike, gap).expect("scores");
        let expected = reference::score(&scoring, &first, &second);
        assert_eq!(
            by_blocks(scoring, &first, &second, 50),
            expected,
            "{scoring}"
        );
    }
}

fn job(line: &str) -> Option<Output> {
    let launcher = Path::new(env!("CARGO_BIN_EXE_needleman_wunsch")).with_file_name("osier");
    if !launcher.is_file() {
        needs::missing("launcher", "it was not built beside the programs");
        return None;
    }
    let mut command = Command::new(launcher);
    Some(
        command
            .args(line.split_whitespace())
            .output()
            .expect("osier starts"),
    )
}

#[test]
fn the_program_as_a_job() {
    for by in Variant::ALL {
        let line = format!(
            "run -n 3 --bind none -- needleman_wunsch --random 2000 --by {by} --block 100 --check"
        );
        let Some(out) = job(&line) else { return };
        let told = String::from_utf8_lossy(&out.stdout);
        assert!(
            out.status.success(),
            "{told}{}",
            String::from_utf8_lossy(&out.stderr)
        );
        assert!(
            told.contains("columns and the sequential program"),
            "{told}"
        );
        assert!(
            told.contains("cells/s") && told.contains("identity"),
            "{told}"
        );
        assert!(
            told.lines().all(|line| line.chars().count() <= 80),
            "{told}"
        );
    }
}

#[test]
fn a_bad_file_is_said_once() {
    let folder = Folder::new("once");
    let file = folder.file("bad.fa", ">a\nAC*T\n");
    let line = format!("run -n 2 --bind none -- needleman_wunsch {file}");
    let Some(out) = job(&line) else { return };
    let told = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{told}");
    assert_eq!(
        told.matches("line 2: '*' in column 3, expected").count(),
        1,
        "{told}"
    );
}
