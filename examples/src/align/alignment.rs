//! An alignment, column by column.

use std::io::{self, Write};
use std::iter::zip;

use super::scoring::Scoring;

/// A column of an alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// A letter of each sequence.
    Pair,
    /// A letter of the first sequence against a gap.
    First,
    /// A letter of the second sequence against a gap.
    Second,
}

/// An alignment of two sequences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// The first sequence with gaps.
    pub first: Vec<u8>,
    /// The second sequence with gaps, as long.
    pub second: Vec<u8>,
}

/// Letters of a line of the readable form.
const LINE: usize = 50;
/// Characters of a name there.
const NAME: usize = 8;
/// What stands for a gap.
pub const GAP: u8 = b'-';

impl Alignment {
    /// Two sequences by columns; `None` if the columns have other numbers of letters.
    pub fn new(columns: &[Column], first: &[u8], second: &[u8]) -> Option<Self> {
        let (mut from_first, mut from_second) = (first.iter(), second.iter());
        let mut aligned = Self {
            first: Vec::with_capacity(columns.len()),
            second: Vec::with_capacity(columns.len()),
        };
        for column in columns {
            let (a, b) = match column {
                Column::Pair => (*from_first.next()?, *from_second.next()?),
                Column::First => (*from_first.next()?, GAP),
                Column::Second => (GAP, *from_second.next()?),
            };
            aligned.first.push(a);
            aligned.second.push(b);
        }
        let all = from_first.next().is_none() && from_second.next().is_none();
        all.then_some(aligned)
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.first.len()
    }

    /// Columns of two equal letters.
    pub fn matches(&self) -> usize {
        zip(&self.first, &self.second)
            .filter(|(a, b)| a == b)
            .count()
    }

    /// Columns with a gap.
    pub fn gaps(&self) -> usize {
        let of = |letters: &[u8]| letters.iter().filter(|letter| **letter == GAP).count();
        of(&self.first) + of(&self.second)
    }

    /// The score, from the columns alone.
    pub fn score(&self, scoring: &Scoring) -> i64 {
        zip(&self.first, &self.second)
            .map(|(a, b)| match *a == GAP || *b == GAP {
                true => i64::from(scoring.gap),
                false => i64::from(scoring.pair(*a, *b)),
            })
            .sum()
    }

    /// Writes it in lines of 50 columns: the first sequence, a bar between equal letters, and
    /// the second sequence, with the numbers of the letters at both ends of a line. A line
    /// without letters of a sequence has the number of the last letter before it.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write(&self, to: &mut impl Write, names: [&str; 2]) -> io::Result<()> {
        let names = names.map(|name| name.chars().take(NAME).collect::<String>());
        let (mut first_seen, mut second_seen) = (0, 0);
        for (a, b) in zip(self.first.chunks(LINE), self.second.chunks(LINE)) {
            let bars: Vec<u8> = zip(a, b)
                .map(|(a, b)| if a == b { b'|' } else { b' ' })
                .collect();
            let (first, second) = (&names[0], &names[1]);
            writeln!(to)?;
            numbered(to, first, a, &mut first_seen)?;
            let bars = String::from_utf8_lossy(&bars);
            writeln!(to, "{:20}{}", "", bars.trim_end())?;
            numbered(to, second, b, &mut second_seen)?;
        }
        Ok(())
    }
}

/// A line of one sequence.
fn numbered(to: &mut impl Write, name: &str, letters: &[u8], seen: &mut usize) -> io::Result<()> {
    let here = letters.iter().filter(|letter| **letter != GAP).count();
    let begin = *seen + usize::from(here > 0);
    *seen += here;
    let letters = String::from_utf8_lossy(letters);
    writeln!(to, "{name:NAME$} {begin:>10} {letters} {seen}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use Column::{First, Pair, Second};

    #[test]
    fn columns_become_lines() {
        let columns = [Pair, First, Pair, Second, Pair];
        let aligned = Alignment::new(&columns, b"ACGT", b"AGCA").expect("it fits");
        assert_eq!(
            (&aligned.first[..], &aligned.second[..]),
            (&b"ACG-T"[..], &b"A-GCA"[..])
        );
        assert_eq!(
            (aligned.matches(), aligned.gaps(), aligned.columns()),
            (2, 2, 5)
        );
        let scoring = Scoring::new(2, -1, -3).expect("scores");
        assert_eq!(aligned.score(&scoring), 2 - 3 + 2 - 3 - 1);
        let mut text = Vec::new();
        aligned
            .write(&mut text, ["one", "another"])
            .expect("written");
        assert_eq!(
            String::from_utf8_lossy(&text),
            "\none               1 ACG-T 4\n                    | |\nanother           1 A-GCA 4\n"
        );
        assert_eq!(Alignment::new(&columns, b"ACGTA", b"AGCA"), None);
        assert_eq!(Alignment::new(&columns, b"ACG", b"AGCA"), None);
    }

    #[test]
    fn lines_fit_a_terminal() {
        let columns = vec![Pair; 130];
        let letters = vec![b'A'; 130];
        let aligned = Alignment::new(&columns, &letters, &letters).expect("it fits");
        let mut text = Vec::new();
        aligned.write(&mut text, ["a", "b"]).expect("written");
        let text = String::from_utf8(text).expect("text");
        assert_eq!(text.lines().count(), 12); // three lines of letters
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        assert!(text.contains("        101 AAAAAAAAAA"), "{text}");
    }
}
