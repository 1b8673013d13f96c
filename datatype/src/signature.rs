//! Type signatures: the sequence of predefined types, without displacements.
//!
//! Kept compressed as a tree of runs and repetitions, so that a million
//! elements cost as much as one. The hash is polynomial modulo 2^61 - 1, hence
//! a monoid: the hash of a concatenation follows from the hashes and lengths of
//! its parts, and equal sequences hash alike however they were composed.
//!
//! # Sources
//! R. Karp, M. Rabin, "Efficient randomized pattern-matching algorithms", IBM
//! J. Res. Dev. 31(2), 1987. J. Langou, G. Bosilca, G. Fagg, J. Dongarra, "Hash
//! functions for datatype signatures in MPI", EuroPVM/MPI 2005, propose the
//! same kind of monoid; here the modulus is a Mersenne prime.

use crate::Basic;
use std::fmt;
use std::sync::Arc;

/// A type signature, run-length compressed, with a 64-bit hash.
///
/// Equality compares length and hash: distinct signatures of `n` elements
/// collide with probability of at most `n / 2^61`.
/// [`Signature::is_prefix_of`] is exact.
#[derive(Clone)]
pub struct Signature {
    digest: Digest,
    tree: Tree,
}

#[derive(Clone)]
enum Tree {
    Empty,
    Run(Basic, u64),
    Repeat(u64, Arc<Signature>),
    Sequence(Arc<[Signature]>),
}

impl Signature {
    pub(crate) const EMPTY: Signature = Signature {
        digest: Digest::EMPTY,
        tree: Tree::Empty,
    };

    /// `count` elements of one predefined type.
    pub fn run(basic: Basic, count: u64) -> Signature {
        if count == 0 {
            return Self::EMPTY;
        }
        Signature {
            digest: Digest::of(basic).repeat(count),
            tree: Tree::Run(basic, count),
        }
    }

    /// `count` times this signature, for `count` instances of a type.
    pub fn repeat(&self, count: u64) -> Signature {
        match &self.tree {
            _ if count == 0 => Self::EMPTY,
            _ if count == 1 => self.clone(),
            Tree::Empty => Self::EMPTY,
            Tree::Run(basic, n) => Self::run(*basic, n.saturating_mul(count)),
            Tree::Repeat(n, inner) => Signature {
                digest: self.digest.repeat(count),
                tree: Tree::Repeat(n.saturating_mul(count), inner.clone()),
            },
            Tree::Sequence(_) => Signature {
                digest: self.digest.repeat(count),
                tree: Tree::Repeat(count, Arc::new(self.clone())),
            },
        }
    }

    /// One signature after the other.
    pub(crate) fn concat(parts: impl IntoIterator<Item = Signature>) -> Signature {
        let mut merged: Vec<Signature> = Vec::new();
        for part in parts {
            match (merged.last_mut(), &part.tree) {
                (_, Tree::Empty) => {}
                (Some(last), Tree::Run(b, n)) => match last.tree {
                    Tree::Run(a, m) if a == *b => *last = Self::run(a, m.saturating_add(*n)),
                    _ => merged.push(part),
                },
                _ => merged.push(part),
            }
        }
        match merged.len() {
            0 => Self::EMPTY,
            1 => merged.remove(0),
            _ => Signature {
                digest: merged
                    .iter()
                    .fold(Digest::EMPTY, |all, part| all.then(part.digest)),
                tree: Tree::Sequence(merged.into()),
            },
        }
    }

    /// Number of elements.
    #[inline]
    pub fn elements(&self) -> u64 {
        self.digest.len
    }

    /// 64-bit hash, the same on every machine; empty signatures hash to 0.
    #[inline]
    pub fn hash(&self) -> u64 {
        self.digest.hash ^ (self.digest.len << 61)
    }

    /// Whether the signature has no element.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.digest.len == 0
    }

    /// Maximal runs of equal types, in order. Takes time per run.
    pub fn runs(&self) -> SignatureRuns<'_> {
        SignatureRuns {
            stack: vec![(self, 1)],
            held: None,
        }
    }

    /// The type of all elements, if there is only one.
    pub fn uniform(&self) -> Option<Basic> {
        match &self.tree {
            Tree::Empty => None,
            Tree::Run(basic, _) => Some(*basic),
            Tree::Repeat(_, inner) => inner.uniform(),
            Tree::Sequence(parts) => {
                let first = parts.first()?.uniform()?;
                parts
                    .iter()
                    .all(|p| p.uniform() == Some(first))
                    .then_some(first)
            }
        }
    }

    /// Whether a receive with signature `longer` may take a message with this
    /// signature. Exact; constant time when both are equal or uniform.
    pub fn is_prefix_of(&self, longer: &Signature) -> bool {
        if self.elements() > longer.elements() {
            return false;
        }
        if self == longer || self.is_empty() {
            return true;
        }
        if let (Some(a), Some(b)) = (self.uniform(), longer.uniform()) {
            return a == b;
        }
        let mut left = self.runs();
        let mut right = longer.runs();
        let (mut a, mut b) = (left.next(), right.next());
        loop {
            match (&mut a, &mut b) {
                (None, _) => return true,
                (Some(_), None) => return false,
                (Some((x, n)), Some((y, m))) => {
                    if x != y {
                        return false;
                    }
                    let step = (*n).min(*m);
                    *n -= step;
                    *m -= step;
                    if *n == 0 {
                        a = left.next();
                    }
                    if matches!(b, Some((_, 0))) {
                        b = right.next();
                    }
                }
            }
        }
    }
}

impl PartialEq for Signature {
    fn eq(&self, other: &Self) -> bool {
        self.digest.len == other.digest.len && self.digest.hash == other.digest.hash
    }
}

impl Eq for Signature {}

impl std::hash::Hash for Signature {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write_u64(Signature::hash(self));
    }
}

impl fmt::Display for Signature {
    /// `f64 x 6, i32 x 2`; long signatures end with an ellipsis.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        if self.is_empty() {
            return f.write_str("nothing");
        }
        for (i, (basic, n)) in self.runs().enumerate() {
            if i == SHOWN {
                return write!(f, ", ... ({} elements)", self.elements());
            }
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{basic} x {n}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signature({self})")
    }
}

/// Iterator over the maximal runs of a [`Signature`].
pub struct SignatureRuns<'a> {
    stack: Vec<(&'a Signature, u64)>,
    held: Option<(Basic, u64)>,
}

impl Iterator for SignatureRuns<'_> {
    type Item = (Basic, u64);

    fn next(&mut self) -> Option<(Basic, u64)> {
        while let Some((signature, times)) = self.stack.pop() {
            if times == 0 {
                continue;
            }
            match &signature.tree {
                Tree::Empty => {}
                Tree::Run(basic, n) => {
                    let run = (*basic, n.saturating_mul(times));
                    match self.held {
                        Some((b, m)) if b == run.0 => self.held = Some((b, m + run.1)),
                        _ => {
                            if let Some(done) = self.held.replace(run) {
                                return Some(done);
                            }
                        }
                    }
                }
                Tree::Repeat(n, inner) => {
                    self.stack.push((inner, n.saturating_mul(times)));
                }
                Tree::Sequence(parts) => {
                    self.stack.push((signature, times - 1));
                    self.stack.extend(parts.iter().rev().map(|p| (p, 1)));
                }
            }
        }
        self.held.take()
    }
}

const MODULUS: u64 = (1 << 61) - 1;
/// An arbitrary element of large order.
const BASE: u64 = 0x1d3f_84a5_9c1b_e6d7;

fn mul(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    // 2^61 = 1 modulo the modulus: fold the high part onto the low one.
    add(
        (product & u128::from(MODULUS)) as u64,
        (product >> 61) as u64,
    )
}

fn add(a: u64, b: u64) -> u64 {
    let sum = a + b;
    if sum >= MODULUS { sum - MODULUS } else { sum }
}

/// Hash of a sequence: sum of element * BASE^(elements after it).
#[derive(Clone, Copy)]
struct Digest {
    len: u64,
    hash: u64,
    /// `BASE^len`.
    power: u64,
}

impl Digest {
    const EMPTY: Digest = Digest {
        len: 0,
        hash: 0,
        power: 1,
    };

    fn of(basic: Basic) -> Digest {
        // splitmix64 finaliser spreads the small codes.
        let mut z = u64::from(basic.code()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        Digest {
            len: 1,
            hash: z % MODULUS,
            power: BASE,
        }
    }

    fn then(self, next: Digest) -> Digest {
        Digest {
            len: self.len.saturating_add(next.len),
            hash: add(mul(self.hash, next.power), next.hash),
            power: mul(self.power, next.power),
        }
    }

    fn repeat(self, mut count: u64) -> Digest {
        let mut all = Digest::EMPTY;
        let mut unit = self;
        while count > 0 {
            if count & 1 == 1 {
                all = all.then(unit);
            }
            count >>= 1;
            if count > 0 {
                unit = unit.then(unit);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn composition_does_not_matter() {
        let pair =
            Signature::concat([Signature::run(Basic::I32, 1), Signature::run(Basic::F64, 2)]);
        let many = pair.repeat(1000).repeat(1000);
        let other = Signature::concat([pair.repeat(999_999), pair.clone()]);
        assert_eq!(many, other);
        assert_eq!(many.elements(), 3_000_000);
        assert_ne!(many, pair.repeat(999_999));
        assert_eq!(pair.repeat(2).runs().count(), 4);
        assert_eq!(
            pair.repeat(2).to_string(),
            "i32 x 1, f64 x 2, i32 x 1, f64 x 2"
        );
    }

    #[test]
    fn runs_merge_across_parts() {
        let a = Signature::concat([
            Signature::run(Basic::F64, 2),
            Signature::run(Basic::I8, 1),
            Signature::run(Basic::F64, 3),
        ]);
        let runs: Vec<_> = a.repeat(2).runs().collect();
        assert_eq!(
            runs,
            [
                (Basic::F64, 2),
                (Basic::I8, 1),
                (Basic::F64, 5),
                (Basic::I8, 1),
                (Basic::F64, 3)
            ]
        );
    }

    #[test]
    fn prefixes() {
        let a = Signature::run(Basic::F64, 6);
        assert!(a.is_prefix_of(&Signature::run(Basic::F64, 7)));
        assert!(!a.is_prefix_of(&Signature::run(Basic::F64, 5)));
        assert!(!a.is_prefix_of(&Signature::run(Basic::I64, 7)));
        let pair = Signature::concat([Signature::run(Basic::F64, 5), Signature::run(Basic::I8, 1)]);
        assert!(!a.is_prefix_of(&pair.repeat(3)));
        assert!(Signature::run(Basic::F64, 4).is_prefix_of(&pair.repeat(3)));
        assert!(pair.is_prefix_of(&pair.repeat(3)));
        assert!(Signature::EMPTY.is_prefix_of(&a));
        assert_eq!(
            Signature::run(Basic::F64, 1_000_000).hash(),
            Signature::run(Basic::F64, 1).repeat(1_000_000).hash()
        );
    }
}
