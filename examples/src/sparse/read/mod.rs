//! Matrices of files, and what is wrong with a file.

mod fortran;
mod harwell_boeing;
mod lines;
mod matrix_market;

use std::fmt;
use std::path::Path;

use super::matrix::Matrix;
use lines::Lines;

/// A file that is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadFile {
    /// The file.
    pub file: String,
    /// The line, from 1; 0: none.
    pub line: usize,
    /// What was found there, and what was expected.
    pub what: String,
}

impl fmt::Display for BadFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.what),
            line => write!(f, "{}:{line}: {}", self.file, self.what),
        }
    }
}

impl std::error::Error for BadFile {}

/// A square matrix, and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// File, or how the matrix was made.
    pub name: String,
    /// Line that says how large it is; 0: none.
    pub line: usize,
    /// What the file says about itself.
    pub title: String,
    /// The matrix.
    pub matrix: Matrix,
}

/// Reads a square matrix: Matrix Market if its first line says so, else Harwell-Boeing.
///
/// # Errors
/// The file cannot be read, is of another format or damaged, or its matrix is not square.
pub fn file(path: &Path) -> Result<Source, BadFile> {
    let name = path.display().to_string();
    let text = std::fs::read(path).map_err(|e| BadFile {
        file: name.clone(),
        line: 0,
        what: format!("cannot be read: {e}"),
    })?;
    // Titles may be of any alphabet; numbers are not.
    parse(&name, &String::from_utf8_lossy(&text))
}

/// As [`file()`], of the contents of a file.
///
/// # Errors
/// As [`file()`].
pub fn parse(name: &str, text: &str) -> Result<Source, BadFile> {
    let mut lines = Lines::new(name, text);
    let read = match text.get(..14) {
        Some(start) if start.eq_ignore_ascii_case("%%MatrixMarket") => matrix_market::read,
        _ => harwell_boeing::read,
    };
    let (line, title, matrix) = read(&mut lines)?;
    Ok(Source {
        name: name.into(),
        line,
        title,
        matrix,
    })
}

/// Checks the sizes that a header declares, before memory is taken for them.
fn check_sizes(lines: &Lines<'_>, rows: u64, columns: u64, entries: u64) -> Result<(), BadFile> {
    if rows != columns {
        return Err(lines.bad(format!(
            "a matrix of {rows} rows and {columns} columns, expected as many rows as columns"
        )));
    }
    if rows == 0 {
        return Err(lines.bad("a matrix without rows, expected at least one"));
    }
    if rows > entries {
        return Err(lines.bad(format!(
            "at most {entries} entries in {rows} rows: structurally singular, expected at least one \
             entry in each row"
        )));
    }
    if entries > u64::from(u32::MAX) {
        return Err(lines.bad(format!("{entries} entries, expected fewer than 2^32")));
    }
    Ok(())
}
