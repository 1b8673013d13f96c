//! Block lists: offsets and lengths as separate arrays, as narrow as they fit.
//!
//! ```text
//! offsets  i32 or i64, relative to the first block
//! lengths  one number, or u32 or u64 each
//! before   packed bytes before every 32nd block: seeking is a binary search
//!          over this and at most 31 additions
//! ```

use crate::wide;

/// Blocks between two entries of `before`.
const SAMPLE: usize = 32;

/// Displacements, the first of them 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Offsets {
    Narrow(Box<[i32]>),
    Wide(Box<[i64]>),
}

/// An offset as it is stored.
pub(crate) trait Offset: Copy {
    fn wide(self) -> i64;
}

impl Offset for i32 {
    #[inline(always)]
    fn wide(self) -> i64 {
        i64::from(self)
    }
}

impl Offset for i64 {
    #[inline(always)]
    fn wide(self) -> i64 {
        self
    }
}

/// A length as it is stored.
pub(crate) trait Length: Copy + PartialEq {
    fn bytes(self) -> usize;
}

impl Length for u32 {
    #[inline(always)]
    fn bytes(self) -> usize {
        self as usize
    }
}

impl Length for u64 {
    #[inline(always)]
    fn bytes(self) -> usize {
        self as usize
    }
}

impl Offsets {
    /// Offsets relative to one of them, in the narrower width if they fit.
    pub fn new<O: Offset>(first: i64, offsets: &[O]) -> Offsets {
        let relative = |offset: &O| offset.wide().wrapping_sub(first);
        if offsets
            .iter()
            .all(|offset| i32::try_from(relative(offset)).is_ok())
        {
            Offsets::Narrow(offsets.iter().map(|o| relative(o) as i32).collect())
        } else {
            Offsets::Wide(offsets.iter().map(relative).collect())
        }
    }

    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Offsets::Narrow(offsets) => offsets.len(),
            Offsets::Wide(offsets) => offsets.len(),
        }
    }

    #[inline]
    pub fn at(&self, index: usize) -> isize {
        match self {
            Offsets::Narrow(offsets) => offsets[index] as isize,
            Offsets::Wide(offsets) => offsets[index] as isize,
        }
    }

    pub fn bits(&self) -> usize {
        match self {
            Offsets::Narrow(offsets) => offsets.iter().fold(0, |b, &o| b | o) as isize as usize,
            Offsets::Wide(offsets) => offsets.iter().fold(0, |b, &o| b | o) as usize,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lengths {
    /// All blocks have this length.
    Equal(usize),
    Narrow(Box<[u32]>),
    Wide(Box<[u64]>),
}

/// Blocks at listed offsets, in pack order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct List {
    pub offsets: Offsets,
    pub lengths: Lengths,
    /// Packed bytes before block `i * SAMPLE`; empty for equal lengths.
    before: Box<[usize]>,
    bytes: usize,
    /// Longest block.
    pub longest: usize,
}

impl List {
    /// Blocks of any length at offsets, of which `first` is the first.
    pub fn new<O: Offset, L: Length>(first: i64, offsets: &[O], lengths: &[L]) -> List {
        debug_assert_eq!(offsets.len(), lengths.len());
        let offsets = Offsets::new(first, offsets);
        let facts = Facts::of(lengths);
        let lengths = match facts.equal {
            true => Lengths::Equal(facts.longest),
            false if u32::try_from(facts.longest).is_ok() => {
                Lengths::Narrow(lengths.iter().map(|length| length.bytes() as u32).collect())
            }
            false => Lengths::Wide(lengths.iter().map(|length| length.bytes() as u64).collect()),
        };
        List::with(offsets, lengths, facts)
    }

    /// Blocks in the narrow widths already, the first at 0.
    pub fn narrow(offsets: Vec<i32>, lengths: Vec<u32>) -> List {
        debug_assert_eq!(offsets.len(), lengths.len());
        let facts = Facts::of(&lengths);
        let lengths = match facts.equal {
            true => Lengths::Equal(facts.longest),
            false => Lengths::Narrow(lengths.into()),
        };
        List::with(Offsets::Narrow(offsets.into()), lengths, facts)
    }

    fn with(offsets: Offsets, lengths: Lengths, facts: Facts) -> List {
        List {
            offsets,
            lengths,
            before: facts.before,
            bytes: facts.bytes,
            longest: facts.longest,
        }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    #[inline]
    pub fn length(&self, index: usize) -> usize {
        match &self.lengths {
            Lengths::Equal(length) => *length,
            Lengths::Narrow(lengths) => lengths[index] as usize,
            Lengths::Wide(lengths) => lengths[index] as usize,
        }
    }

    /// Offset and length of a block.
    #[inline]
    pub fn block(&self, index: usize) -> (isize, usize) {
        (self.offsets.at(index), self.length(index))
    }

    /// The block that holds a packed byte, and the byte's place in it. The end
    /// of the list is (its number of blocks, 0).
    pub fn seek(&self, packed: usize) -> (usize, usize) {
        if packed >= self.bytes {
            return (self.len(), 0);
        }
        if let Lengths::Equal(length) = self.lengths {
            return (packed / length, packed % length);
        }
        let group = self.before.partition_point(|&before| before <= packed) - 1;
        let mut index = group * SAMPLE;
        let mut rest = packed - self.before[group];
        loop {
            let length = self.length(index);
            if rest < length {
                return (index, rest);
            }
            rest -= length;
            index += 1;
        }
    }

    pub fn bits(&self) -> usize {
        let lengths = match &self.lengths {
            Lengths::Equal(length) => *length,
            Lengths::Narrow(lengths) => lengths.iter().fold(0, |b, &l| b | l) as usize,
            Lengths::Wide(lengths) => lengths.iter().fold(0, |b, &l| b | l) as usize,
        };
        lengths | self.offsets.bits()
    }
}

/// What one pass over the lengths tells.
struct Facts {
    equal: bool,
    longest: usize,
    bytes: usize,
    before: Box<[usize]>,
}

impl Facts {
    fn of<L: Length>(lengths: &[L]) -> Facts {
        let first = lengths.first().map_or(0, |length| length.bytes());
        let differs = |part: &[L]| {
            let differs = |d: usize, length: &L| d | (length.bytes() ^ first);
            wide::run(|| part.iter().fold(0, differs)) != 0
        };
        if !lengths.chunks(1024).any(differs) {
            return Facts {
                equal: true,
                longest: first,
                bytes: first * lengths.len(),
                before: Box::default(),
            };
        }
        let mut before = Vec::with_capacity(lengths.len().div_ceil(SAMPLE));
        let (mut bytes, mut longest) = (0, 0);
        for group in lengths.chunks(SAMPLE) {
            before.push(bytes);
            for length in group {
                bytes += length.bytes();
                longest = longest.max(length.bytes());
            }
        }
        Facts {
            equal: false,
            longest,
            bytes,
            before: before.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeks_every_byte() {
        let lengths: Vec<u64> = (0..100).map(|i| 1 + i * 7 % 13).collect();
        let offsets: Vec<i64> = (0..100).map(|i| i * 20).collect();
        let list = List::new(0, &offsets, &lengths);
        let mut packed = 0;
        for (i, &length) in lengths.iter().enumerate() {
            for byte in 0..length as usize {
                assert_eq!(list.seek(packed), (i, byte));
                packed += 1;
            }
        }
        assert_eq!(packed, list.bytes());
        assert_eq!(list.seek(packed), (100, 0));
    }

    #[test]
    fn widths() {
        assert!(matches!(
            Offsets::new(1 << 40, &[1i64 << 40, (1 << 40) + 5]),
            Offsets::Narrow(_)
        ));
        assert!(matches!(
            Offsets::new(0, &[0i64, 1 << 31]),
            Offsets::Wide(_)
        ));
        assert!(matches!(
            List::new(0, &[0i64, 9], &[4u32, 4]).lengths,
            Lengths::Equal(4)
        ));
    }
}
