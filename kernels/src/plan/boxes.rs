//! Cores of a few regular boxes: they go to the kernel as they are, without a list.
//!
//! # Invariants
//! 1. A core with boxes has less than 2^31 bytes; steps have 32 bits.

use super::arguments::Divisor;
use osier_datatype::{Core, Nest};

/// Boxes that a launch takes.
pub const BOXES: usize = 16;

/// Words of a box on average, at least: it is looked up once a chunk, as runs are.
const LEAST_WORDS: u64 = 128;

/// Blocks of this many bytes are runs, whatever the width of words.
const LONG: u64 = 512;

/// Blocks under up to three strides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanBox {
    /// Where the first block is, in bytes.
    pub base: i64,
    /// Packed bytes of the core before it.
    pub start: u64,
    /// Bytes of a block.
    pub block: u64,
    /// Iterations and bytes between them, innermost first.
    pub levels: [(u64, i64); 3],
}

impl PlanBox {
    /// All numbers that a word's width must divide.
    pub(crate) fn bits(&self) -> u64 {
        let strides = self.levels.iter().map(|&(_, stride)| stride as u64);
        strides.fold(self.base as u64 | self.start | self.block, |a, b| a | b)
    }

    /// Bytes by which places grow behind a block, and behind the two inner loops.
    fn steps(&self) -> [i64; 3] {
        let [inner, middle, outer] = self.levels;
        let behind = |next: i64, (count, stride): (u64, i64)| {
            next.wrapping_sub((count as i64).wrapping_mul(stride))
        };
        [
            inner.1.wrapping_sub(self.block as i64),
            behind(middle.1, inner),
            behind(outer.1, middle),
        ]
    }

    fn bytes(&self) -> u64 {
        let counts = self.levels.iter().map(|&(count, _)| count);
        self.block * counts.product::<u64>()
    }
}

/// The core of a nest as boxes; none, if it is one block, more boxes than the limit, or
/// boxes that are better listed.
pub(crate) fn of_core(nest: Nest<'_>) -> Option<Vec<PlanBox>> {
    let bytes = nest.core_bytes() as u64;
    if bytes >= 1 << 31 {
        return None;
    }
    let mut boxes = Vec::new();
    collect_core(nest, nest.base() as i64, &mut boxes)?;
    let first = boxes.first()?.base;
    let mut start = 0;
    for each in &mut boxes {
        each.start = start;
        start += each.bytes();
    }
    let relative = |each: &PlanBox| PlanBox {
        base: each.base.wrapping_sub(first),
        ..*each
    };
    let bits = boxes
        .iter()
        .fold(0, |bits, each| bits | relative(each).bits());
    let word = 1u64 << bits.trailing_zeros().min(4);
    let short = |each: &PlanBox| each.block < LONG;
    let narrow = |each: &PlanBox| each.steps().iter().all(|&step| i32::try_from(step).is_ok());
    let takes = boxes.len() > 1
        && boxes.iter().all(narrow)
        && (word >= 4 || !boxes.iter().any(short))
        && bytes / word / boxes.len() as u64 >= LEAST_WORDS;
    takes.then_some(boxes)
}

/// Appends the boxes of all iterations of a nest, in pack order.
fn collect(nest: Nest<'_>, at: i64, boxes: &mut Vec<PlanBox>) -> Option<()> {
    let base = at.wrapping_add(nest.base() as i64);
    let levels = nest.levels();
    if let (Core::Block, 0..=3) = (nest.core(), levels.len()) {
        let mut all = [(1, 0); 3];
        for (to, level) in all.iter_mut().zip(levels.iter().rev()) {
            *to = (level.count as u64, level.stride as i64);
        }
        boxes.push(PlanBox {
            base,
            start: 0,
            block: nest.core_bytes() as u64,
            levels: all,
        });
        return (boxes.len() <= BOXES).then_some(());
    }
    let instances = levels
        .iter()
        .try_fold(1usize, |n, level| n.checked_mul(level.count))?;
    for number in 0..(instances <= BOXES).then_some(instances)? {
        let (mut rest, mut place) = (number, base);
        for level in levels.iter().rev() {
            let index = (rest % level.count) as i64;
            place = place.wrapping_add(index.wrapping_mul(level.stride as i64));
            rest /= level.count;
        }
        collect_core(nest, place, boxes)?;
    }
    Some(())
}

/// The same for the core alone, of a nest whose base is at a place.
fn collect_core(nest: Nest<'_>, at: i64, boxes: &mut Vec<PlanBox>) -> Option<()> {
    match nest.core() {
        Core::List(runs) if runs.len() <= BOXES => {
            for number in 0..runs.len() {
                let (offset, length) = runs.at(number);
                boxes.push(PlanBox {
                    base: at.wrapping_add(offset as i64),
                    start: 0,
                    block: length as u64,
                    levels: [(1, 0); 3],
                });
            }
        }
        Core::Each(places, inner) if places.len() <= BOXES => {
            for number in 0..places.len() {
                collect(inner, at.wrapping_add(places.at(number) as i64), boxes)?;
            }
        }
        Core::Sequence if nest.parts().len() <= BOXES => {
            for part in nest.parts() {
                collect(part, at, boxes)?;
            }
        }
        _ => return None,
    }
    (boxes.len() <= BOXES).then_some(())
}

/// `osier_box`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct KernelBox {
    /// Where the first block is, in bytes.
    pub base: i64,
    /// Words of the core before it.
    pub start: u32,
    /// Words of a block.
    pub block: u32,
    /// Divisions by them, and by the counts of the two inner loops.
    pub magic: [u32; 3],
    /// The same.
    pub shift: [u32; 3],
    /// Bytes by which the place grows with each quotient.
    pub step: [i32; 3],
    /// Nothing.
    pub unused: u32,
}

impl KernelBox {
    /// For words of so many bytes.
    pub(crate) fn new(plan: &PlanBox, width: usize) -> KernelBox {
        let words = plan.block / width as u64;
        let divisors = [words, plan.levels[0].0, plan.levels[1].0].map(Divisor::new);
        KernelBox {
            base: plan.base,
            start: (plan.start / width as u64) as u32,
            block: words as u32,
            magic: divisors.map(|divisor| divisor.magic),
            shift: divisors.map(|divisor| divisor.shift),
            step: plan.steps().map(|step| step as i32),
            unused: 0,
        }
    }

    /// Where a word of the core is, if it is one of this box.
    pub(crate) fn at(&self, width: usize, word: u64) -> i64 {
        let word = word - u64::from(self.start);
        let (mut number, mut place) = (word as u32, self.base + (word * width as u64) as i64);
        for k in 0..3 {
            let high = (u64::from(number) * u64::from(self.magic[k])) >> 32;
            number = (high as u32).wrapping_add(number) >> self.shift[k];
            place += i64::from(number) * i64::from(self.step[k]);
        }
        place
    }
}
