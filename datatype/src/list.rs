//! Block lists: offsets and lengths as separate arrays, as narrow as they fit.
//!
//! ```text
//! offsets  i32 or i64, relative to the first block
//! lengths  one number, or u32 or u64 each
//! before   packed bytes before every 32nd block: seeking is a binary search
//!          over this and at most 31 additions
//! ```

/// Blocks between two entries of `before`.
const SAMPLE: usize = 32;

/// Displacements, the first of them 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Offsets {
    Narrow(Box<[i32]>),
    Wide(Box<[i64]>),
}

impl Offsets {
    /// Offsets relative to the first.
    pub fn new(offsets: &[i64]) -> Offsets {
        let first = offsets.first().copied().unwrap_or(0);
        let narrow = offsets
            .iter()
            .all(|&offset| i32::try_from(offset.wrapping_sub(first)).is_ok());
        if narrow {
            Offsets::Narrow(
                offsets
                    .iter()
                    .map(|&o| o.wrapping_sub(first) as i32)
                    .collect(),
            )
        } else {
            Offsets::Wide(offsets.iter().map(|&o| o.wrapping_sub(first)).collect())
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
    /// Blocks of equal length; offsets relative to the first.
    pub fn equal(offsets: &[i64], length: usize) -> List {
        List {
            offsets: Offsets::new(offsets),
            lengths: Lengths::Equal(length),
            before: Box::default(),
            bytes: offsets.len() * length,
            longest: length,
        }
    }

    /// Blocks of any length; offsets relative to the first.
    pub fn new(offsets: &[i64], lengths: &[usize]) -> List {
        debug_assert_eq!(offsets.len(), lengths.len());
        let longest = lengths.iter().copied().max().unwrap_or(0);
        if lengths.iter().all(|&length| length == longest) {
            return List::equal(offsets, longest);
        }
        let mut before = Vec::with_capacity(lengths.len().div_ceil(SAMPLE));
        let mut bytes = 0;
        for group in lengths.chunks(SAMPLE) {
            before.push(bytes);
            bytes += group.iter().sum::<usize>();
        }
        let lengths = if u32::try_from(longest).is_ok() {
            Lengths::Narrow(lengths.iter().map(|&length| length as u32).collect())
        } else {
            Lengths::Wide(lengths.iter().map(|&length| length as u64).collect())
        };
        List {
            offsets: Offsets::new(offsets),
            lengths,
            before: before.into(),
            bytes,
            longest,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeks_every_byte() {
        let lengths: Vec<usize> = (0..100).map(|i| 1 + i * 7 % 13).collect();
        let offsets: Vec<i64> = (0..100).map(|i| i * 20).collect();
        let list = List::new(&offsets, &lengths);
        let mut packed = 0;
        for (i, &length) in lengths.iter().enumerate() {
            for byte in 0..length {
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
            Offsets::new(&[1 << 40, (1 << 40) + 5]),
            Offsets::Narrow(_)
        ));
        assert!(matches!(Offsets::new(&[0, 1 << 31]), Offsets::Wide(_)));
        assert!(matches!(
            List::new(&[0, 9], &[4, 4]).lengths,
            Lengths::Equal(4)
        ));
    }
}
