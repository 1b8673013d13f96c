//! Example 11: a hash table that is spread over the ranks of a symmetric heap.
//!
//! Ranks count how often each word of a text occurs; a word is a number here. A slot has a key
//! and a count. Whoever finds no slot of a word takes an empty one by compare-and-swap, and
//! counts by adding to it, so that ranks insert at the same time without locks and the owners
//! of slots do nothing.
//!
//! Open addressing with linear probing: D. Knuth, "The Art of Computer Programming", volume 3,
//! section 6.4.

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use osier::rma::{Symmetric, SymmetricHeap};
use osier::{Communicator, Op, Result};
use osier_examples::hash::mix;

/// Count words in a hash table that is spread over the ranks
#[derive(Parser)]
#[command(
    name = "hash_table",
    after_help = "Examples:
  osier run -n 4 -- hash_table
  osier run -n 2 -- hash_table --words 1000000 --distinct 100000"
)]
struct Options {
    /// Words that each rank counts
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    words: usize,

    /// Different words
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    distinct: usize,
}

fn main() -> ExitCode {
    osier_examples::cli::run(count_words)
}

/// Keys and counts; key 0 is none.
struct Table {
    keys: Symmetric<u64>,
    counts: Symmetric<u64>,
    ranks: usize,
    /// Slots of each rank.
    slots: usize,
}

impl Table {
    fn new(heap: &SymmetricHeap, ranks: usize, slots: usize) -> Result<Self> {
        Ok(Self {
            keys: heap.alloc(slots)?,
            counts: heap.alloc(slots)?,
            ranks,
            slots,
        })
    }

    /// The slot of a word, and who has it: found, or taken now.
    fn slot(&self, word: u64) -> Result<Option<(usize, usize)>> {
        let all = self.ranks * self.slots;
        let home = (mix(word) % all as u64) as usize;
        for probe in 0..all {
            let slot = (home + probe) % all;
            let (rank, at) = (slot / self.slots, slot % self.slots);
            let key = match self.keys.fetch(rank, at)? {
                0 => match self.keys.compare_and_swap(0, word, rank, at)? {
                    0 => word,
                    other => other,
                },
                key => key,
            };
            if key == word {
                return Ok(Some((rank, at)));
            }
        }
        Ok(None)
    }
}

/// Word `i` of a text: small numbers come often.
fn word(i: u64, distinct: usize) -> u64 {
    let share = mix(i) as f64 / u64::MAX as f64;
    1 + (share * share * (distinct - 1) as f64) as u64
}

fn count_words(world: &Communicator, options: &Options) -> Result<u8> {
    let (rank, size) = (world.rank(), world.size());
    let distinct = options.distinct.max(1);
    // Half of the slots stay empty, so that chains are short.
    let slots = distinct.saturating_mul(2).div_ceil(size);
    let bytes = slots
        .saturating_mul(2 * size_of::<u64>())
        .saturating_add(4096);
    let heap = world.symmetric_heap(bytes)?;
    let table = Table::new(&heap, size, slots)?;

    let start = Instant::now();
    let first = (rank * options.words) as u64;
    for i in first..first + options.words as u64 {
        let slot = table.slot(word(i, distinct))?;
        let (owner, at) = slot.expect("there are more slots than words");
        table.counts.add(1, owner, at)?;
    }
    heap.barrier()?;
    let seconds = start.elapsed().as_secs_f64();

    // Each rank counts the text again by itself, and looks at its own slots.
    let mut expected = vec![0u64; distinct + 1];
    (0..(size * options.words) as u64).for_each(|i| expected[word(i, distinct) as usize] += 1);
    let (keys, counts) = (table.keys.to_vec()?, table.counts.to_vec()?);
    let mut mine = [0u64; 2];
    for (key, count) in keys.iter().zip(&counts).filter(|(key, _)| **key != 0) {
        mine[0] += 1;
        mine[1] += u64::from(expected[*key as usize] != *count);
    }
    let mut all = [0u64; 2];
    world.allreduce(&mine, &mut all, Op::Sum)?;
    let different = expected.iter().filter(|count| **count > 0).count() as u64;
    let right = all == [different, 0];
    if rank == 0 {
        let millions = (size * options.words) as f64 / 1e6;
        println!(
            "{millions:.2} million words, {different} different ones, on {size} ranks: {:.1} \
             million a second",
            millions / seconds
        );
        println!(
            "{}",
            match right {
                true => "every element is counted right",
                false => "WRONG: words are missing, or miscounted",
            }
        );
    }
    Ok(u8::from(!right))
}
