//! Size, bounds, alignment and signature of a type, kept beside its constructor.
//!
//! Bounds follow MPI 4.1, section 5.1: `lb` and `ub` come from the markers that
//! `resized` and `subarray` place, or else from the data; without markers the
//! extent is rounded up to the largest alignment of a member. Markers survive
//! every constructor around them.
//!
//! Sums are checked in 128 bits, so that a result outside the signed 64-bit
//! range is an error and never wraps.

use crate::{Basic, Signature, TypeError};

/// Lowest and one-past-highest byte, relative to the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub low: isize,
    pub high: isize,
}

impl Bounds {
    fn join(self, other: Bounds) -> Bounds {
        Bounds {
            low: self.low.min(other.low),
            high: self.high.max(other.high),
        }
    }
}

/// The derived facts of a type.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    /// Packed bytes.
    pub size: usize,
    /// Largest alignment of a member; 1 for no member.
    pub alignment: usize,
    /// Bytes touched; none for an empty typemap.
    pub data: Option<Bounds>,
    /// Explicit lower and upper bound.
    pub marks: Option<Bounds>,
    pub lb: isize,
    pub extent: isize,
    pub signature: Signature,
}

/// Copies of an old type: how many, and between which displacements.
pub(crate) struct Copies {
    pub count: u128,
    pub low: i128,
    pub high: i128,
}

impl Facts {
    pub fn basic(basic: Basic) -> Facts {
        let size = basic.size();
        let data = Bounds {
            low: 0,
            high: size as isize,
        };
        Facts {
            size,
            alignment: basic.alignment(),
            data: Some(data),
            marks: None,
            lb: 0,
            extent: size as isize,
            signature: Signature::run(basic, 1),
        }
    }

    pub fn empty() -> Facts {
        Facts {
            size: 0,
            alignment: 1,
            data: None,
            marks: None,
            lb: 0,
            extent: 0,
            signature: Signature::EMPTY,
        }
    }

    /// Facts of `copies` of this type.
    pub fn copies(&self, name: &'static str, copies: &Copies) -> Result<Facts, TypeError> {
        if copies.count == 0 {
            return Ok(Facts::empty());
        }
        let size = copies
            .count
            .checked_mul(self.size as u128)
            .and_then(|size| isize::try_from(size).ok())
            .ok_or(overflow(name, "size"))? as usize;
        let shift = |bounds: Option<Bounds>| -> Result<Option<Bounds>, TypeError> {
            let Some(bounds) = bounds else {
                return Ok(None);
            };
            Ok(Some(Bounds {
                low: narrow(name, copies.low + bounds.low as i128)?,
                high: narrow(name, copies.high + bounds.high as i128)?,
            }))
        };
        let (data, marks) = (shift(self.data)?, shift(self.marks)?);
        // Beyond 2^64 copies only types without elements have a size.
        let count = u64::try_from(copies.count).unwrap_or(u64::MAX);
        Facts {
            size,
            alignment: self.alignment,
            data,
            marks,
            lb: 0,
            extent: 0,
            signature: self.signature.repeat(count),
        }
        .bounded(name)
    }

    /// Facts of several types, one after the other.
    pub fn sequence(name: &'static str, parts: Vec<Facts>) -> Result<Facts, TypeError> {
        let mut all = Facts::empty();
        for part in &parts {
            all.size = all
                .size
                .checked_add(part.size)
                .filter(|&size| size <= isize::MAX as usize)
                .ok_or(overflow(name, "size"))?;
            all.alignment = all.alignment.max(part.alignment);
            all.data = join(all.data, part.data);
            all.marks = join(all.marks, part.marks);
        }
        all.signature = Signature::concat(parts.into_iter().map(|part| part.signature));
        all.bounded(name)
    }

    /// The same type with its bounds set.
    pub fn marked(
        mut self,
        name: &'static str,
        lb: isize,
        extent: i128,
    ) -> Result<Facts, TypeError> {
        self.marks = Some(Bounds {
            low: lb,
            high: narrow(name, lb as i128 + extent)?,
        });
        self.bounded(name)
    }

    /// Derives `lb` and `extent` from data and marks.
    fn bounded(mut self, name: &'static str) -> Result<Facts, TypeError> {
        match (self.marks, self.data) {
            (Some(marks), _) => {
                self.lb = marks.low;
                self.extent = narrow(name, marks.high as i128 - marks.low as i128)?;
            }
            (None, Some(data)) => {
                let extent = data.high as i128 - data.low as i128;
                let alignment = self.alignment as i128;
                // Alignments are powers of two.
                let rounded = (extent + alignment - 1) & -alignment;
                self.lb = data.low;
                self.extent = narrow(name, rounded)?;
                narrow(name, data.low as i128 + rounded)?;
            }
            (None, None) => {}
        }
        if let Some(data) = self.data {
            // The true extent is a byte count as well.
            narrow(name, data.high as i128 - data.low as i128)?;
        }
        Ok(self)
    }
}

fn join(a: Option<Bounds>, b: Option<Bounds>) -> Option<Bounds> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.join(b)),
        (a, b) => a.or(b),
    }
}

pub(crate) fn narrow(name: &'static str, value: i128) -> Result<isize, TypeError> {
    isize::try_from(value).map_err(|_| overflow(name, "extent"))
}

pub(crate) fn overflow(constructor: &'static str, quantity: &'static str) -> TypeError {
    TypeError::Overflow {
        constructor,
        quantity,
    }
}
