//! Matrix Market files: coordinates of a real, integer or pattern matrix.
//!
//! # Sources
//! R. Boisvert, R. Pozo, K. Remington, "The Matrix Market Exchange Formats: Initial Design",
//! NISTIR 5935, 1996.

use super::super::matrix::Matrix;
use super::lines::shortened;
use super::{BadFile, Lines, check_sizes};

/// Reads a matrix; also the line of its sizes, and its first comment.
pub fn read(lines: &mut Lines<'_>) -> Result<(usize, String, Matrix), BadFile> {
    let header = lines.next("a header")?.to_ascii_lowercase();
    let words: Vec<&str> = header.split_whitespace().collect();
    let (field, symmetry) = match words[..] {
        [_, "matrix", "coordinate", field, symmetry] => (field, symmetry),
        _ => {
            let found = shortened(&header);
            return Err(lines.bad(format!(
                "'{found}', expected '%%MatrixMarket matrix coordinate <field> <symmetry>'"
            )));
        }
    };
    if !["real", "integer", "pattern"].contains(&field) {
        return Err(lines.bad(format!(
            "a matrix of field '{field}', expected real, integer or pattern"
        )));
    }
    if !["general", "symmetric"].contains(&symmetry) {
        return Err(lines.bad(format!(
            "a matrix of symmetry '{symmetry}', expected general or symmetric"
        )));
    }
    let (pattern, symmetric) = (field == "pattern", symmetry == "symmetric");

    let mut title = String::new();
    let sizes = loop {
        let line = lines.next("a line 'rows columns entries'")?.trim();
        match line.strip_prefix('%') {
            Some(comment) if title.is_empty() => title = shortened(comment.trim()),
            Some(_) => {}
            None if line.is_empty() => {}
            None => break line,
        }
    };
    let mut words = sizes.split_whitespace();
    let rows: u64 = lines.number_of(words.next(), "a number of rows")?;
    let columns: u64 = lines.number_of(words.next(), "a number of columns")?;
    let entries: u64 = lines.number_of(words.next(), "a number of entries")?;
    nothing_more(lines, words.next(), "rows, columns and entries")?;
    // The other triangle is not counted.
    let most = if symmetric {
        2 * entries.min(1 << 32)
    } else {
        entries
    };
    check_sizes(lines, rows, columns, most)?;
    let line_of_sizes = lines.number();

    let mut triplets = Vec::new();
    for read in 0..entries {
        let line = loop {
            let line = lines.next(&format!("{} more entries", entries - read))?;
            if !line.trim().is_empty() {
                break line;
            }
        };
        let mut words = line.split_whitespace();
        let mut index = |what: &str, most: u64| {
            let index: u64 = lines.number_of(words.next(), what)?;
            match (1..=most).contains(&index) {
                true => Ok(index as u32 - 1),
                false => Err(lines.bad(format!("expected {what} in 1..{most}, found {index}"))),
            }
        };
        let (row, column) = (index("a row", rows)?, index("a column", columns)?);
        let value = match pattern {
            true => 1.0,
            false => lines.value_of(words.next())?,
        };
        nothing_more(lines, words.next(), "one entry")?;
        if symmetric && row < column {
            return Err(lines.bad(format!(
                "entry ({}, {}) of a symmetric matrix, expected none above the diagonal",
                row + 1,
                column + 1
            )));
        }
        triplets.push((row, column, value));
        if symmetric && row != column {
            triplets.push((column, row, value));
        }
    }
    while let Some(line) = lines.next_if_any() {
        let more = Some(line.trim()).filter(|line| !line.is_empty());
        nothing_more(
            lines,
            more,
            &format!("the {entries} entries of line {line_of_sizes}"),
        )?;
    }
    let matrix = Matrix::from_triplets(rows as usize, columns as usize, &triplets);
    Ok((line_of_sizes, title, matrix))
}

fn nothing_more(lines: &Lines<'_>, more: Option<&str>, behind: &str) -> Result<(), BadFile> {
    match more {
        None => Ok(()),
        Some(more) => {
            let more = shortened(more);
            Err(lines.bad(format!("expected nothing behind {behind}, found '{more}'")))
        }
    }
}
