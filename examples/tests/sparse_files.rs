//! Readers of sparse matrices, against files by hand and bad ones.

mod by_hand;

use by_hand::SMALL;
use osier_examples::sparse::analysis::symbolic::Widths;
use osier_examples::sparse::analysis::{Analysis, Ordering};
use osier_examples::sparse::matrix::Matrix;
use osier_examples::sparse::read;

fn small() -> Vec<(u32, u32, f64)> {
    vec![
        (0, 0, 2.0),
        (2, 0, -1.0),
        (0, 1, 1.5),
        (1, 1, 4.0),
        (3, 1, -0.25),
        (2, 2, 3.0),
        (3, 2, 1.0),
        (1, 3, -0.5),
        // Without an exponent the scale factor holds.
        (3, 3, 0.225),
    ]
}

#[test]
fn files_by_hand_are_read() {
    let expected = Matrix::from_triplets(4, 4, &small());
    let read = read::parse("four.rua", SMALL).expect("a matrix");
    assert_eq!(read.matrix, expected);
    assert_eq!((read.title.as_str(), read.line), ("Four rows, by hand", 3));

    let mut text = "%%MatrixMarket matrix coordinate real general\n% four\n\n4 4 9\n".to_owned();
    for (row, column, value) in small() {
        text += &format!("{} {} {value:e}\n", row + 1, column + 1);
    }
    let read = read::parse("four.mtx", &text).expect("a matrix");
    assert_eq!(read.matrix, expected);
    assert_eq!((read.title.as_str(), read.line), ("four", 4));

    let symmetric =
        "%%matrixmarket MATRIX coordinate integer symmetric\n2 2 3\n1 1 4\n2 1 -1\n2 2 5\n";
    let read = read::parse("two.mtx", symmetric).expect("a matrix");
    let both = [(0, 0, 4.0), (1, 0, -1.0), (0, 1, -1.0), (1, 1, 5.0)];
    assert_eq!(read.matrix, Matrix::from_triplets(2, 2, &both));

    let pattern = "%%MatrixMarket matrix coordinate pattern general\n2 2 2\n2 1\n1 2\n";
    let read = read::parse("two.mtx", pattern).expect("a matrix");
    assert_eq!(
        read.matrix,
        Matrix::from_triplets(2, 2, &[(1, 0, 1.0), (0, 1, 1.0)])
    );
}

#[test]
fn symmetric_and_pattern_files_of_harwell_and_boeing_are_read() {
    let file = |kind: &str, values: &str, lines: u32| {
        format!(
            "title\n{} 1 1 {lines}\n{kind} 2 2 3 0\n(3I2) (3I2) (3F5.1)\n 1 3 4\n 1 2 2\n{values}",
            2 + lines
        )
    };
    let read = read::parse("two.rsa", &file("RSA", "  4.0 -1.0  5.0\n", 1)).expect("a matrix");
    let both = [(0, 0, 4.0), (1, 0, -1.0), (0, 1, -1.0), (1, 1, 5.0)];
    assert_eq!(read.matrix, Matrix::from_triplets(2, 2, &both));
    let read = read::parse("two.pua", &file("PUA", "", 0)).expect("a matrix");
    let ones = [(0, 0, 1.0), (1, 0, 1.0), (1, 1, 1.0)];
    assert_eq!(read.matrix, Matrix::from_triplets(2, 2, &ones));
}

/// The file is refused at this line, with these words.
fn refused(text: &str, line: usize, words: &str) {
    let error = read::parse("bad file", text).expect_err(words);
    let told = error.to_string();
    assert!(told.contains(words), "{told}: {words}");
    assert_eq!(error.line, line, "{told}");
    if line > 0 {
        assert!(told.starts_with(&format!("bad file:{line}: ")), "{told}");
    }
}

#[test]
fn bad_files_of_harwell_and_boeing_are_refused_where_they_are_bad() {
    let with = |line: usize, text: &str| {
        let mut lines: Vec<&str> = SMALL.lines().collect();
        lines[line - 1] = text;
        lines.join("\n")
    };
    refused("", 0, "expected a title");
    for (line, words) in [
        (1, "numbers of lines"),
        (3, "expected formats"),
        (5, "9 more row indices"),
        (6, "9 more row indices"),
        (7, "9 more values"),
        (9, "1 more values"),
    ] {
        let lines: Vec<&str> = SMALL.lines().take(line).collect();
        match line {
            5 => refused(&lines.join("\n"), 5, "5 more pointers"),
            _ => refused(&lines.join("\n"), line, words),
        }
    }
    let two = |a: &str| with(2, a);
    refused(
        &two("7 1 x 3 2"),
        2,
        "number of lines of row indices, found 'x'",
    );
    refused(&two("8 2 1 3 2"), 2, "2 lines of pointers, expected 1");
    refused(&two("7 1 1 2 2"), 2, "2 lines of values, expected 3");
    refused(
        &with(3, "CUA 4 4 9 0"),
        3,
        "'CUA', expected RUA, RSA, PUA or PSA",
    );
    refused(&with(3, "RUE 4 4 9 0"), 3, "'RUE'");
    refused(&with(3, "RUA 4 5 9 0"), 3, "as many rows as columns");
    refused(&with(3, "RUA 0 0 9 0"), 3, "at least one");
    refused(
        &with(3, "RUA 99999999999 99999999999 9 0"),
        3,
        "structurally singular",
    );
    refused(&with(3, "RUA 4 4 -9 0"), 3, "number of entries, found '-9'");
    refused(&with(3, "RUA 4 4"), 3, "number of entries, found none");
    refused(
        &with(4, "(16X5) (10I8) (4E20.13)"),
        4,
        "format of pointers such as (16I5)",
    );
    refused(
        &with(4, "(16I5) (10E8.1) (4E20.13)"),
        4,
        "format of row indices",
    );
    refused(&with(4, "(16I5) (10I8)"), 4, "format of values");
    refused(
        &with(6, "    2    3    6    8   10"),
        6,
        "pointer in 1..1 of column 1, found 2",
    );
    refused(
        &with(6, "    1    3    2    8   10"),
        6,
        "pointer in 3..10 of column 3, found 2",
    );
    refused(
        &with(6, "    1    3    6    8    9"),
        6,
        "expected 10 as the last pointer, found 9",
    );
    refused(
        &with(6, "    1    3    6    8"),
        6,
        "expected 5 pointers of 5 characters",
    );
    let indices = "       1       3       1       2       5       3       4       2       4";
    refused(&with(7, indices), 7, "row index in 1..4, found 5");
    let indices = "       1       3       1       2       0       3       4       2       4";
    refused(&with(7, indices), 7, "row index in 1..4, found 0");
    refused(
        &with(10, "                 abc"),
        10,
        "expected a value, found 'abc'",
    );
    refused(
        &with(10, "             9.9E999"),
        10,
        "expected a finite value",
    );
    // Cut in the middle of a letter of more than one byte.
    refused(&with(10, "                   é"), 10, "expected 1 values");
}

#[test]
fn bad_files_of_matrix_market_are_refused_where_they_are_bad() {
    let file = |kind: &str, rest: &str| format!("%%MatrixMarket matrix {kind}\n{rest}");
    let real = |rest: &str| file("coordinate real general", rest);
    refused(
        &file("array real general", "2 2\n"),
        1,
        "expected '%%MatrixMarket matrix coordinate",
    );
    refused(
        &file("coordinate complex general", "2 2 2\n"),
        1,
        "field 'complex', expected real",
    );
    refused(
        &file("coordinate real hermitian", "2 2 2\n"),
        1,
        "symmetry 'hermitian'",
    );
    refused(&real("% only comments\n"), 2, "rows columns entries");
    refused(&real("2 2\n"), 2, "number of entries, found none");
    refused(
        &real("2 2 4 1\n"),
        2,
        "nothing behind rows, columns and entries, found '1'",
    );
    refused(&real("2 3 4\n"), 2, "as many rows as columns");
    refused(&real("3 3 2\n1 1 1\n2 2 1\n"), 2, "structurally singular");
    refused(
        &real("2 2 2\n1 1 1\n"),
        3,
        "the file ends here, expected 1 more entries",
    );
    refused(
        &real("2 2 2\n1 1 1\n2 2 1\n1 2 1\n"),
        5,
        "nothing behind the 2 entries of line 2",
    );
    refused(
        &real("2 2 2\n1 1 1\n3 2 1\n"),
        4,
        "expected a row in 1..2, found 3",
    );
    refused(
        &real("2 2 2\n1 0 1\n2 2 1\n"),
        3,
        "expected a column in 1..2, found 0",
    );
    refused(
        &real("2 2 2\n1 1 x\n2 2 1\n"),
        3,
        "expected a value, found 'x'",
    );
    refused(
        &real("2 2 2\n1 1 inf\n2 2 1\n"),
        3,
        "expected a finite value, found 'inf'",
    );
    refused(
        &real("2 2 2\n1 1\n2 2 1\n"),
        3,
        "expected a value, found none",
    );
    refused(
        &real("2 2 2\n1 1 1 1\n2 2 1\n"),
        3,
        "nothing behind one entry",
    );
    let upper = file("coordinate real symmetric", "2 2 2\n1 2 1\n2 2 1\n");
    refused(&upper, 3, "expected none above the diagonal");
}

#[test]
fn a_structurally_singular_matrix_is_refused_with_the_line_of_its_size() {
    // Rows 3 and 4 have entries in column 1 only.
    let text = "%%MatrixMarket matrix coordinate pattern general\n%\n4 4 6\n1 1\n2 1\n3 1\n4 1\n1 2\n2 3\n";
    let read = read::parse("s.mtx", text).expect("a matrix");
    let widths = Widths {
        most: 8,
        relaxed: true,
    };
    let told = Analysis::new(&read, Ordering::Degree, widths)
        .expect_err("singular")
        .to_string();
    assert!(
        told.starts_with("s.mtx:3: a structurally singular matrix: 3 of 4 columns"),
        "{told}"
    );
    // Explicit zeros are no entries.
    let zero = "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1\n2 2 0\n";
    let read = read::parse("z.mtx", zero).expect("a matrix");
    assert!(Analysis::new(&read, Ordering::Degree, widths).is_err());
}
