//! FASTA files of nucleotides.
//!
//! ```text
//! >name description      a header begins a record; its first word is the name
//! ACGTacgt               letters, in lines of any length; kept in upper case, U as T
//! ;comment               left out, as are empty lines
//! ```
//!
//! Lines end with LF or CRLF; the last one may lack it. Letters are the codes of IUPAC-IUB for
//! nucleotides, those of several bases included; `-` and `*` are none.
//!
//! # Sources
//! Nomenclature Committee of the IUB, "Nomenclature for incompletely specified bases in nucleic
//! acid sequences", European Journal of Biochemistry 150, 1985.

use std::fmt;
use std::path::Path;

/// The letters of a sequence. At least one; upper case, T in place of U.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// First word of the header.
    pub name: String,
    /// Letters of [`CODES`], without U.
    pub letters: Vec<u8>,
}

/// The letters that stand for one nucleotide or several.
pub const CODES: &[u8] = b"ACGTURYSWKMBDHVN";

/// What is wrong with a file, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FastaError {
    /// The file.
    pub file: String,
    /// Its line from 1, if the error is of a line.
    pub line: Option<usize>,
    /// What was found and what was expected.
    pub what: String,
}

impl fmt::Display for FastaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}, line {line}: {}", self.file, self.what),
            None => write!(f, "{}: {}", self.file, self.what),
        }
    }
}

impl std::error::Error for FastaError {}

/// Reads a record of a file: the one of this name, or else the first.
///
/// # Errors
/// The file cannot be read, is no FASTA file (all its records are checked), or has no record
/// of this name.
pub fn read(path: &Path, record: Option<&str>) -> Result<Sequence, FastaError> {
    let file = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|e| FastaError {
        file: file.clone(),
        line: None,
        what: format!("cannot be read, expected a FASTA file: {e}"),
    })?;
    let mut records = parse(&file, &bytes)?;
    let Some(name) = record else {
        return Ok(records.swap_remove(0));
    };
    let found = records.iter().position(|record| record.name == name);
    let Some(found) = found else {
        let names: Vec<_> = records.iter().take(3).map(|r| r.name.as_str()).collect();
        let more = if records.len() > 3 { ", ..." } else { "" };
        return Err(FastaError {
            file,
            line: None,
            what: format!(
                "no record {name:?} among {}, expected one of: {}{more}",
                records.len(),
                names.join(", ")
            ),
        });
    };
    Ok(records.swap_remove(found))
}

/// The records of a file, at least one; `file` is its name in errors.
///
/// ```
/// use osier_examples::align::fasta::parse;
///
/// let records = parse("two.fa", b">one\nACG\nTn\n>two of them\r\nuuu\r\n")?;
/// assert_eq!(records[0].letters, b"ACGTN");
/// assert_eq!((records[1].name.as_str(), &records[1].letters[..]), ("two", &b"TTT"[..]));
/// # Ok::<(), osier_examples::align::fasta::FastaError>(())
/// ```
///
/// # Errors
/// Text before the first header, a header without a name or letters, a character that is no
/// letter of a nucleotide, no record at all: with the line.
pub fn parse(file: &str, bytes: &[u8]) -> Result<Vec<Sequence>, FastaError> {
    let error = |line: usize, what: String| FastaError {
        file: file.into(),
        line: Some(line),
        what,
    };
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let what = "compressed data, expected a header line '>name' (hint: gunzip the file first)";
        return Err(error(1, what.into()));
    }
    let mut records: Vec<Sequence> = Vec::new();
    let mut header = 0;
    let complete = |record: Option<&Sequence>, header: usize| match record {
        Some(record) if record.letters.is_empty() => Err(error(
            header,
            format!(
                "record {:?} has no letters, expected nucleotides below its header \
                 (hint: is the file truncated?)",
                record.name
            ),
        )),
        _ => Ok(()),
    };
    for (at, text) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let (line, text) = (at + 1, text.trim_ascii_end());
        match text.first() {
            None | Some(b';') => {}
            Some(b'>') => {
                complete(records.last(), header)?;
                header = line;
                let title = String::from_utf8_lossy(&text[1..]);
                let Some(name) = title.split_whitespace().next() else {
                    let what = "a header without a name, expected '>name'";
                    return Err(error(line, what.into()));
                };
                records.push(Sequence {
                    name: name.into(),
                    letters: Vec::new(),
                });
            }
            Some(_) => {
                let Some(record) = records.last_mut() else {
                    let start = String::from_utf8_lossy(&text[..text.len().min(20)]);
                    let what =
                        format!("{start:?} before any header, expected a header line '>name'");
                    return Err(error(line, what));
                };
                record.letters.reserve(text.len());
                for (column, byte) in text.iter().enumerate() {
                    let Some(letter) = letter(*byte) else {
                        let what = format!(
                            "'{}' in column {}, expected a nucleotide, one of {}",
                            byte.escape_ascii(),
                            column + 1,
                            String::from_utf8_lossy(CODES)
                        );
                        return Err(error(line, what));
                    };
                    record.letters.push(letter);
                }
            }
        }
    }
    complete(records.last(), header)?;
    if records.is_empty() {
        return Err(error(1, "no record, expected a header line '>name'".into()));
    }
    Ok(records)
}

/// The letter that a character stands for.
fn letter(byte: u8) -> Option<u8> {
    match byte.to_ascii_uppercase() {
        b'U' => Some(b'T'),
        upper => CODES.contains(&upper).then_some(upper),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Vec<u8> {
        let mut records = parse("x.fa", text.as_bytes()).expect("a file");
        assert_eq!(records.len(), 1);
        records.swap_remove(0).letters
    }

    fn refused(text: &[u8], line: usize, parts: &[&str]) {
        let error = parse("x.fa", text).expect_err("no file");
        let shown = error.to_string();
        assert!(
            shown.starts_with(&format!("x.fa, line {line}: ")),
            "{shown}"
        );
        assert!(shown.contains("expected"), "{shown}");
        for part in parts {
            assert!(shown.contains(part), "{shown}: no {part:?}");
        }
    }

    #[test]
    fn layout_of_lines_does_not_matter() {
        for text in [
            ">a\nACGTN\n",
            ">a\nACGTN",
            ">a b c\nac\ngtn\n",
            "; file\n\n>a\nAC\n;in between\n\nGUN\n",
            ">a\r\nACG\r\nTN\r\n",
            ">a\nACGTN  \t\n",
        ] {
            assert_eq!(one(text), b"ACGTN", "{text:?}");
        }
        assert_eq!(one(">a\nRYSWKMBDHVN\n"), b"RYSWKMBDHVN");
    }

    #[test]
    fn records_are_chosen_by_name() {
        let folder = std::env::temp_dir().join(format!("osier-fasta-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("two.fa");
        std::fs::write(&path, ">one\nA\n>two\nC\n").expect("a file");
        assert_eq!(read(&path, None).expect("the first").name, "one");
        assert_eq!(read(&path, Some("two")).expect("it").letters, b"C");
        let error = read(&path, Some("six")).expect_err("none").to_string();
        assert!(
            error.contains("two.fa") && error.contains("\"six\""),
            "{error}"
        );
        assert!(error.contains("expected one of: one, two"), "{error}");
        let error = read(&folder.join("none.fa"), None).expect_err("no file");
        assert!(error.to_string().contains("none.fa: cannot be read"));
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn errors_name_file_line_and_expectation() {
        refused(b"", 1, &["no record"]);
        refused(b"\n;only a comment\n", 1, &["no record"]);
        refused(b"\nACGT\n", 2, &["\"ACGT\" before any header"]);
        refused(b">a\nACGT\n>b\n", 3, &["\"b\" has no letters", "truncated"]);
        refused(b">a\n\n>b\nA\n", 1, &["\"a\" has no letters"]);
        refused(
            b">a\nACGT\nAC-T\n",
            3,
            &["'-' in column 3", "ACGTURYSWKMBDHVN"],
        );
        refused(b">a\nAC GT\n", 2, &["' ' in column 3"]);
        refused(b">a\nACG\0\0\0", 2, &["'\\x00' in column 4"]);
        refused(b">a\nMEEPQ\n", 2, &["'E' in column 2"]);
        refused(b">\nACGT\n", 1, &["without a name"]);
        refused(b"\x1f\x8b\x08\x00", 1, &["gunzip"]);
    }
}
