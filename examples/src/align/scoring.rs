//! Scores of a pair of letters and of a gap, and what they are in differences.
//!
//! With `H[i][j]` the score of the best alignment of the first `i` and `j` letters, the
//! program works on `G[i][j] = H[i][j] - (i + j) gap`. There a gap is free, a pair costs
//! `score - 2 gap`, and `G` never falls along a row or a column: differences of neighbors lie
//! between 0 and the largest pair, and fit a byte.

use std::fmt;

/// Scores of a global alignment with a linear gap penalty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scoring {
    /// Of two equal letters.
    pub alike: i32,
    /// Of two different letters.
    pub unlike: i32,
    /// Of a letter against a gap.
    pub gap: i32,
    gains: Gains,
}

/// Differences along the diagonal of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gains {
    /// Of equal letters.
    pub alike: u8,
    /// Of different letters.
    pub unlike: u8,
    /// Of different letters, or a difference that no cell has if two gaps beat them.
    pub taken: u8,
}

/// The largest difference: one value of a byte is left for pairs that are never taken.
const LARGEST: i64 = u8::MAX as i64 - 1;

/// Scores that the program cannot work with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScoringError(String);

impl fmt::Display for ScoringError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for ScoringError {}

impl Scoring {
    /// Checked scores.
    ///
    /// # Errors
    /// A gap scores above 0, different letters above equal ones, or `alike - 2 gap` lies
    /// outside of 0 to 254.
    pub fn new(alike: i32, unlike: i32, gap: i32) -> Result<Self, ScoringError> {
        let refused = |what: String| Err(ScoringError(what));
        if gap > 0 {
            return refused(format!("a gap scores {gap}, expected at most 0"));
        }
        if unlike > alike {
            return refused(format!(
                "a mismatch scores {unlike}, expected at most a match's {alike}"
            ));
        }
        let gain = |score: i32| i64::from(score) - 2 * i64::from(gap);
        if !(0..=LARGEST).contains(&gain(alike)) {
            return refused(format!(
                "match - 2 x gap is {alike} - 2 x {gap} = {}, expected 0 to {LARGEST}",
                gain(alike)
            ));
        }
        let byte = |gain: i64| gain.clamp(0, LARGEST) as u8;
        let gains = Gains {
            alike: byte(gain(alike)),
            unlike: byte(gain(unlike)),
            taken: if gain(unlike) < 0 {
                u8::MAX
            } else {
                byte(gain(unlike))
            },
        };
        Ok(Self {
            alike,
            unlike,
            gap,
            gains,
        })
    }

    /// What two letters score.
    pub fn pair(&self, a: u8, b: u8) -> i32 {
        if a == b { self.alike } else { self.unlike }
    }

    /// Differences. Kept, for in a loop over cells the compiler may compute them for each.
    pub(super) fn gains(&self) -> Gains {
        self.gains
    }
}

impl fmt::Display for Scoring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scoring {
            alike, unlike, gap, ..
        } = self;
        write!(f, "match {alike}, mismatch {unlike}, gap {gap}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_that_do_not_fit_are_refused() {
        assert!(Scoring::new(1, -1, -2).is_ok());
        assert!(Scoring::new(0, -9, 0).is_ok());
        assert!(Scoring::new(254, 0, 0).is_ok());
        let refused = |a, u, g| Scoring::new(a, u, g).expect_err("refused").to_string();
        assert!(refused(255, 0, 0).contains("= 255, expected 0 to 254"));
        assert!(refused(i32::MAX, 0, i32::MIN).contains("expected 0 to 254"));
        assert!(refused(-5, -6, -2).contains("= -1"));
        assert!(refused(1, -1, 1).contains("a gap scores 1"));
        assert!(refused(1, 2, -1).contains("a mismatch scores 2"));
    }
}
