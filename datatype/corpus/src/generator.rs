//! Long lists of the corpus by rule and parameters.
//!
//! Each rule is one formula of the data; `length`, `first` and `sum` guard
//! against a reading that differs.

use crate::random::Random;
use serde::Deserialize;

/// A list, written out or by rule.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum List {
    /// All numbers.
    Written(Vec<i64>),
    /// Made by a rule.
    Ruled {
        /// How.
        generator: Box<Ruled>,
    },
}

/// A rule and what its list has to be.
#[derive(Debug, Clone, Deserialize)]
pub struct Ruled {
    #[serde(flatten)]
    rule: Rule,
    length: usize,
    first: Vec<i64>,
    sum: i64,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "rule", rename_all = "lowercase")]
enum Rule {
    Arith {
        n: i64,
        start: i64,
        step: i64,
    },
    Steps {
        n: i64,
        start: i64,
        step: i64,
        period: i64,
        jump: i64,
    },
    Grid {
        counts: Vec<i64>,
        steps: Vec<i64>,
        start: i64,
    },
    Randint {
        n: i64,
        lo: i64,
        hi: i64,
        seed: u64,
    },
    Runs {
        n: i64,
        len_lo: i64,
        len_hi: i64,
        gap_lo: i64,
        gap_hi: i64,
        start: i64,
        scale: i64,
        seed: u64,
        part: Part,
    },
    Shuffle {
        n: usize,
        universe: usize,
        scale: i64,
        offset: i64,
        seed: u64,
        #[serde(default)]
        sorted: bool,
    },
    Tiled {
        n: usize,
        universe: usize,
        tile: i64,
        tile_stride: i64,
        lane_stride: i64,
        seed: u64,
    },
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Part {
    Lengths,
    Displacements,
}

impl List {
    /// The numbers, or in what they differ from what the data promises.
    pub fn numbers(&self) -> Result<Vec<i64>, String> {
        let ruled = match self {
            List::Written(list) => return Ok(list.clone()),
            List::Ruled { generator } => generator,
        };
        let list = ruled.rule.list();
        let sum: i64 = list.iter().sum();
        if list.len() != ruled.length || !list.starts_with(&ruled.first) || sum != ruled.sum {
            return Err(format!(
                "the list of {:?} has {} numbers with sum {sum}, promised {} with sum {}",
                ruled.rule,
                list.len(),
                ruled.length,
                ruled.sum
            ));
        }
        Ok(list)
    }
}

impl Rule {
    fn list(&self) -> Vec<i64> {
        match *self {
            Rule::Arith { n, start, step } => (0..n).map(|i| start + i * step).collect(),
            Rule::Steps {
                n,
                start,
                step,
                period,
                jump,
            } => (0..n)
                .map(|i| start + i * step + i / period * jump)
                .collect(),
            Rule::Grid {
                ref counts,
                ref steps,
                start,
            } => {
                let mut list = vec![start];
                for (&count, &step) in counts.iter().zip(steps) {
                    list = list
                        .iter()
                        .flat_map(|&at| (0..count).map(move |i| at + i * step))
                        .collect();
                }
                list
            }
            Rule::Randint { n, lo, hi, seed } => {
                let mut random = Random::new(seed);
                (0..n).map(|_| random.between(lo, hi)).collect()
            }
            Rule::Runs {
                n,
                len_lo,
                len_hi,
                gap_lo,
                gap_hi,
                start,
                scale,
                seed,
                part,
            } => {
                let mut random = Random::new(seed);
                let mut at = start;
                (0..n)
                    .map(|_| {
                        at += random.between(gap_lo, gap_hi);
                        let displacement = at * scale;
                        let length = random.between(len_lo, len_hi);
                        at += length;
                        match part {
                            Part::Lengths => length,
                            Part::Displacements => displacement,
                        }
                    })
                    .collect()
            }
            Rule::Shuffle {
                n,
                universe,
                scale,
                offset,
                seed,
                sorted,
            } => shuffle(n, universe, seed, sorted)
                .into_iter()
                .map(|p| offset + scale * p)
                .collect(),
            Rule::Tiled {
                n,
                universe,
                tile,
                tile_stride,
                lane_stride,
                seed,
            } => shuffle(n, universe, seed, false)
                .into_iter()
                .map(|p| p / tile * tile_stride + p % tile * lane_stride)
                .collect(),
        }
    }
}

/// `n` different numbers below `universe`.
fn shuffle(n: usize, universe: usize, seed: u64, sorted: bool) -> Vec<i64> {
    let mut random = Random::new(seed);
    let mut p: Vec<i64> = (0..universe as i64).collect();
    for i in 0..n {
        let j = i + random.below((universe - i) as u64) as usize;
        p.swap(i, j);
    }
    p.truncate(n);
    if sorted {
        p.sort_unstable();
    }
    p
}
