//! The sequential reference: row by row on whole scores, without blocks or differences.

use super::alignment::Column;
use super::scoring::Scoring;

/// The score of the best alignment, in memory of two rows.
pub fn score(scoring: &Scoring, first: &[u8], second: &[u8]) -> i64 {
    let gap = i64::from(scoring.gap);
    let mut above: Vec<i64> = (0..=second.len() as i64).map(|j| j * gap).collect();
    let mut row = above.clone();
    for (i, a) in first.iter().enumerate() {
        row[0] = (i as i64 + 1) * gap;
        for (j, b) in second.iter().enumerate() {
            let pair = above[j] + i64::from(scoring.pair(*a, *b));
            row[j + 1] = pair.max(above[j + 1] + gap).max(row[j] + gap);
        }
        std::mem::swap(&mut above, &mut row);
    }
    above[second.len()]
}

/// Score and alignment from the whole matrix. Of several best ways back from a cell it takes
/// the pair, then the gap in the second sequence, then that in the first.
pub fn align(scoring: &Scoring, first: &[u8], second: &[u8]) -> (i64, Vec<Column>) {
    let gap = i64::from(scoring.gap);
    let (rows, columns) = (first.len(), second.len());
    let mut scores = vec![vec![0i64; columns + 1]; rows + 1];
    for i in 0..=rows {
        for j in 0..=columns {
            scores[i][j] = match (i, j) {
                (0, _) => j as i64 * gap,
                (_, 0) => i as i64 * gap,
                _ => {
                    let pair = i64::from(scoring.pair(first[i - 1], second[j - 1]));
                    let pair = scores[i - 1][j - 1] + pair;
                    pair.max(scores[i - 1][j] + gap).max(scores[i][j - 1] + gap)
                }
            };
        }
    }
    let (mut i, mut j) = (rows, columns);
    let mut back = Vec::new();
    while i > 0 || j > 0 {
        let is_pair = i > 0 && j > 0 && {
            let pair = i64::from(scoring.pair(first[i - 1], second[j - 1]));
            scores[i][j] == scores[i - 1][j - 1] + pair
        };
        if is_pair {
            back.push(Column::Pair);
            (i, j) = (i - 1, j - 1);
        } else if i > 0 && scores[i][j] == scores[i - 1][j] + gap {
            back.push(Column::First);
            i -= 1;
        } else {
            back.push(Column::Second);
            j -= 1;
        }
    }
    back.reverse();
    (scores[rows][columns], back)
}
