//! Harwell-Boeing files: assembled real or pattern matrices, unsymmetric or symmetric.
//!
//! ```text
//! title (72)                                              key (8)
//! lines in all, of pointers, of row indices, of values, of right-hand sides
//! RUA             rows, columns, entries, 0
//! formats of pointers, row indices, values, right-hand sides
//! (a line about right-hand sides, if there are any; they are not read)
//! pointers: where each column begins, from 1, and the end
//! row indices, from 1
//! values
//! ```
//!
//! # Sources
//! I. Duff, R. Grimes, J. Lewis, "Users' Guide for the Harwell-Boeing Sparse Matrix Collection
//! (Release I)", RAL-92-086, 1992.

use super::super::matrix::Matrix;
use super::fortran::Format;
use super::lines::shortened;
use super::{BadFile, Lines, check_sizes};

/// Reads a matrix; also the line of its sizes, and its title.
pub fn read(lines: &mut Lines<'_>) -> Result<(usize, String, Matrix), BadFile> {
    let title = lines.next("a title")?;
    let title: String = title.chars().take(72).collect::<String>().trim().into();

    let counts = lines.next("numbers of lines")?;
    let mut words = counts.split_whitespace();
    let mut count = |what: &str| lines.number_of::<u64>(words.next(), what);
    count("the number of lines in all")?;
    let pointer_lines = count("the number of lines of pointers")?;
    let index_lines = count("the number of lines of row indices")?;
    let value_lines = count("the number of lines of values")?;
    let right_lines = match words.next() {
        Some(word) => lines.number_of(Some(word), "the number of lines of right-hand sides")?,
        None => 0u64,
    };
    let line_of_counts = lines.number();

    let sizes = lines.next("a type and sizes")?;
    let kind = sizes.get(..3).unwrap_or_default().to_ascii_uppercase();
    let (pattern, symmetric) = match kind.as_str() {
        "RUA" => (false, false),
        "RSA" => (false, true),
        "PUA" => (true, false),
        "PSA" => (true, true),
        _ => {
            let found = shortened(&kind);
            return Err(lines.bad(format!(
                "a matrix of type '{found}', expected RUA, RSA, PUA or PSA (assembled, real or \
                 pattern)"
            )));
        }
    };
    let mut words = sizes.get(3..).unwrap_or_default().split_whitespace();
    let mut size = |what: &str| lines.number_of::<u64>(words.next(), what);
    let rows = size("the number of rows")?;
    let columns = size("the number of columns")?;
    let entries = size("the number of entries")?;
    let most = if symmetric {
        2 * entries.min(1 << 32)
    } else {
        entries
    };
    check_sizes(lines, rows, columns, most)?;
    let line_of_sizes = lines.number();

    let formats = lines.next("formats")?;
    let mut groups = Groups(formats);
    let mut format = |what: &str, integers: bool| {
        let text = groups.next().unwrap_or_default();
        let format = Format::parse(text).filter(|format| format.is_of_integers() == integers);
        let example = if integers { "(16I5)" } else { "(3E26.18)" };
        format.ok_or_else(|| {
            let found = shortened(text);
            lines.bad(format!(
                "expected a format of {what} such as {example}, found '{found}'"
            ))
        })
    };
    let pointer_format = format("pointers", true)?;
    let index_format = format("row indices", true)?;
    let value_format = match pattern {
        true => None,
        false => Some(format("values", false)?),
    };

    // What line 2 declares is what sizes and formats ask for.
    let declared = |what: &str, found: u64, expected: u64| match found == expected {
        true => Ok(()),
        false => Err(BadFile {
            line: line_of_counts,
            ..lines.bad(format!(
                "{found} lines of {what}, expected {expected} by sizes and format"
            ))
        }),
    };
    declared("pointers", pointer_lines, pointer_format.lines(columns + 1))?;
    declared("row indices", index_lines, index_format.lines(entries))?;
    declared(
        "values",
        value_lines,
        value_format.map_or(0, |f| f.lines(entries)),
    )?;
    if right_lines > 0 {
        lines.next("a line about right-hand sides")?;
    }

    let mut starts: Vec<u64> = Vec::new();
    pointer_format.read(lines, columns + 1, "pointers", |lines, text| {
        let start: u64 = lines.number_of(Some(text), "a pointer")?;
        let least = starts.last().copied().unwrap_or(1);
        let most = if starts.is_empty() { 1 } else { entries + 1 };
        if !(least..=most).contains(&start) {
            return Err(lines.bad(format!(
                "expected a pointer in {least}..{most} of column {}, found {start}",
                starts.len() + 1
            )));
        }
        starts.push(start);
        Ok(())
    })?;
    let end = starts.last().copied().unwrap_or(0);
    if end != entries + 1 {
        return Err(lines.bad(format!(
            "expected {} as the last pointer, found {end}",
            entries + 1
        )));
    }

    let mut indices: Vec<u32> = Vec::new();
    index_format.read(lines, entries, "row indices", |lines, text| {
        let index: u64 = lines.number_of(Some(text), "a row index")?;
        if !(1..=rows).contains(&index) {
            return Err(lines.bad(format!("expected a row index in 1..{rows}, found {index}")));
        }
        indices.push(index as u32 - 1);
        Ok(())
    })?;

    let mut values: Vec<f64> = Vec::new();
    match value_format {
        Some(format) => format.read(lines, entries, "values", |lines, text| {
            values.push(format.value(lines, text)?);
            Ok(())
        })?,
        None => values.resize(indices.len(), 1.0),
    }

    let mut triplets = Vec::with_capacity(indices.len());
    for (column, range) in starts.windows(2).enumerate() {
        for at in range[0] as usize - 1..range[1] as usize - 1 {
            let (row, column) = (indices[at], column as u32);
            triplets.push((row, column, values[at]));
            if symmetric && row != column {
                triplets.push((column, row, values[at]));
            }
        }
    }
    let matrix = Matrix::from_triplets(rows as usize, columns as usize, &triplets);
    Ok((line_of_sizes, title, matrix))
}

/// The groups in parentheses of a line.
struct Groups<'a>(&'a str);

impl<'a> Iterator for Groups<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let from = self.0.find('(')?;
        let len = self.0[from..].find(')')? + 1;
        let group = &self.0[from..from + len];
        self.0 = &self.0[from + len..];
        Some(group)
    }
}
