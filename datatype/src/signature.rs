//! Type signatures: the sequence of predefined types, without displacements.
//!
//! Kept compressed as a tree of runs and repetitions, so that a million
//! elements cost as much as one. The hash is polynomial modulo 2^61 - 1, hence
//! a monoid: the hash of a concatenation follows from the hashes and lengths of
//! its parts, and equal sequences hash alike however they were composed.
//!
//! What is compared is the representation of a type ([`Basic::representation`]):
//! C's `int`, Fortran's `INTEGER` and `i32` are one. The tree keeps the exact
//! types, which external32 needs.
//!
//! # Matching
//! A message may be received if its signature is a prefix of the receive's. A
//! packed message matches any receive, and a packed receive any message (MPI
//! 5.0, section 4.2); a byte matches bytes only (section 3.3.1).
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
    /// Packed bytes in external32; saturating.
    external_bytes: u64,
    tree: Tree,
}

/// What a sender tells of a signature, for the receiver to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SignatureDigest {
    /// [`Signature::elements`] of the message.
    pub elements: u64,
    /// [`Signature::hash`] of the message.
    pub hash: u64,
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
        external_bytes: 0,
        tree: Tree::Empty,
    };

    /// `count` elements of one predefined type.
    pub fn run(basic: Basic, count: u64) -> Signature {
        if count == 0 {
            return Self::EMPTY;
        }
        Signature {
            digest: Digest::run(basic, count),
            external_bytes: count.saturating_mul(basic.external32_size() as u64),
            tree: Tree::Run(basic, count),
        }
    }

    /// `count` times this signature, for `count` instances of a type.
    pub fn repeat(&self, count: u64) -> Signature {
        let external_bytes = self.external_bytes.saturating_mul(count);
        match &self.tree {
            _ if count == 0 => Self::EMPTY,
            _ if count == 1 => self.clone(),
            Tree::Empty => Self::EMPTY,
            Tree::Run(basic, n) => Self::run(*basic, n.saturating_mul(count)),
            Tree::Repeat(n, inner) => Signature {
                digest: self.digest.repeat(count),
                external_bytes,
                tree: Tree::Repeat(n.saturating_mul(count), inner.clone()),
            },
            Tree::Sequence(_) => Signature {
                digest: self.digest.repeat(count),
                external_bytes,
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
                external_bytes: merged.iter().fold(0, |bytes: u64, part| {
                    bytes.saturating_add(part.external_bytes)
                }),
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
        self.digest.hash()
    }

    /// Whether the signature has no element.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.digest.len == 0
    }

    /// Packed bytes in external32, where long types may be shorter; saturating.
    #[inline]
    pub(crate) fn external32_bytes(&self) -> u64 {
        self.external_bytes
    }

    /// What a sender tells a receiver.
    pub fn digest(&self) -> SignatureDigest {
        SignatureDigest {
            elements: self.elements(),
            hash: self.hash(),
        }
    }

    /// Maximal runs of equal representations, in order. Takes time per run.
    pub fn runs(&self) -> SignatureRuns<'_> {
        SignatureRuns::new(self, Basic::representation)
    }

    /// Maximal runs of the types as they were given, in order.
    pub fn exact_runs(&self) -> SignatureRuns<'_> {
        SignatureRuns::new(self, |basic| basic)
    }

    /// The representation of all elements, if there is only one.
    pub fn uniform(&self) -> Option<Basic> {
        match &self.tree {
            Tree::Empty => None,
            Tree::Run(basic, _) => Some(basic.representation()),
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

    /// Whether a message with this signature may be received as `receive`:
    /// [`Signature::is_prefix_of`], or either is packed. Says nothing of sizes.
    pub fn may_be_received_as(&self, receive: &Signature) -> bool {
        let packed = |signature: &Signature| signature.uniform() == Some(Basic::Packed);
        packed(self) || packed(receive) || self.is_prefix_of(receive)
    }

    /// [`Signature::may_be_received_as`] of a message of which only the digest
    /// is known, with this as the receive's signature. A wrong `true` has the
    /// probability of a collision.
    pub fn admits(&self, sent: SignatureDigest) -> bool {
        sent.elements == 0
            || self.uniform() == Some(Basic::Packed)
            || Signature::run(Basic::Packed, sent.elements).digest() == sent
            || (sent.elements <= self.elements()
                && self.prefix_digest(sent.elements).hash() == sent.hash)
    }

    /// Digest of the first `elements` elements, of which there are as many.
    fn prefix_digest(&self, elements: u64) -> Digest {
        match &self.tree {
            _ if elements >= self.elements() => self.digest,
            Tree::Empty => Digest::EMPTY,
            Tree::Run(basic, _) => Digest::run(*basic, elements),
            Tree::Repeat(_, inner) => {
                let whole = inner.digest.repeat(elements / inner.elements());
                whole.then(inner.prefix_digest(elements % inner.elements()))
            }
            Tree::Sequence(parts) => {
                let mut all = Digest::EMPTY;
                for part in parts.iter() {
                    let rest = elements - all.len;
                    if rest < part.elements() {
                        return all.then(part.prefix_digest(rest));
                    }
                    all = all.then(part.digest);
                }
                all
            }
        }
    }

    /// Whether this is the beginning of `longer`. Exact; constant time when both
    /// are equal or uniform.
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
    /// What tells types apart.
    class: fn(Basic) -> Basic,
}

impl<'a> SignatureRuns<'a> {
    fn new(signature: &'a Signature, class: fn(Basic) -> Basic) -> Self {
        SignatureRuns {
            stack: vec![(signature, 1)],
            held: None,
            class,
        }
    }
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
                    let run = ((self.class)(*basic), n.saturating_mul(times));
                    match self.held {
                        Some((b, m)) if b == run.0 => {
                            self.held = Some((b, m.saturating_add(run.1)))
                        }
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

const fn mul(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    // 2^61 = 1 modulo the modulus: fold the high part onto the low one.
    add((product & MODULUS as u128) as u64, (product >> 61) as u64)
}

const fn add(a: u64, b: u64) -> u64 {
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

/// Digests of 1, 2, 4 ... elements whose hash is 1.
const ONES: [Digest; 64] = {
    let mut unit = Digest {
        len: 1,
        hash: 1,
        power: BASE,
    };
    let mut ones = [unit; 64];
    let mut k = 1;
    while k < 64 {
        unit = unit.then(unit);
        ones[k] = unit;
        k += 1;
    }
    ones
};

impl Digest {
    const EMPTY: Digest = Digest {
        len: 0,
        hash: 0,
        power: 1,
    };

    fn of(basic: Basic) -> Digest {
        // splitmix64 finaliser spreads the small codes.
        let mut z = u64::from(basic.representation().code()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        Digest {
            len: 1,
            hash: z % MODULUS,
            power: BASE,
        }
    }

    /// `count` elements of one type: the hash of an element times that of as many
    /// ones, which is put together from the powers of two in `count`.
    fn run(basic: Basic, count: u64) -> Digest {
        let mut ones = Digest::EMPTY;
        let mut left = count;
        while left > 0 {
            ones = ones.then(ONES[left.trailing_zeros() as usize]);
            left &= left - 1;
        }
        Digest {
            hash: mul(ones.hash, Digest::of(basic).hash),
            ..ones
        }
    }

    fn hash(self) -> u64 {
        self.hash ^ (self.len << 61)
    }

    const fn then(self, next: Digest) -> Digest {
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
        assert!(Signature::run(Basic::DoublePrecision, 6).is_prefix_of(&a));
        assert_eq!(
            Signature::run(Basic::F64, 1_000_000).hash(),
            Signature::run(Basic::F64, 1).repeat(1_000_000).hash()
        );
    }

    #[test]
    fn representations_are_equal_and_exact_types_are_kept() {
        let a = Signature::concat([Signature::run(Basic::Int, 2), Signature::run(Basic::I32, 3)]);
        let b = Signature::run(Basic::Integer, 5);
        assert_eq!(a, b);
        assert_eq!(a.uniform(), Some(Basic::I32));
        assert!(a.runs().eq([(Basic::I32, 5)]));
        assert!(a.exact_runs().eq([(Basic::Int, 2), (Basic::I32, 3)]));
        assert_ne!(b, Signature::run(Basic::Logical, 5));
        assert_ne!(Signature::run(Basic::Char, 5), Signature::run(Basic::I8, 5));
        assert_eq!(Signature::run(Basic::Long, 3).external32_bytes(), 12);
        assert_eq!(Signature::run(Basic::I64, 3).external32_bytes(), 24);
    }

    #[test]
    fn packed_matches_anything_and_byte_only_bytes() {
        let packed = Signature::run(Basic::Packed, 20);
        let byte = Signature::run(Basic::Byte, 8);
        let double = Signature::run(Basic::F64, 1);
        let pair = Signature::concat([double.clone(), Signature::run(Basic::I32, 3)]);
        for (sent, receive, may) in [
            (&packed, &pair, true),
            (&pair, &packed, true),
            (&byte, &packed, true),
            (&byte, &double, false),
            (&double, &byte, false),
            (&double, &pair, true),
            (&pair, &double, false),
        ] {
            assert_eq!(sent.may_be_received_as(receive), may, "{sent} as {receive}");
            assert_eq!(receive.admits(sent.digest()), may, "{sent} as {receive}");
        }
    }

    #[test]
    fn digests_of_every_prefix() {
        let pair = Signature::concat([Signature::run(Basic::F64, 3), Signature::run(Basic::I8, 2)]);
        let odd = Signature::concat([
            pair.repeat(4),
            Signature::run(Basic::C32, 1),
            pair.repeat(2),
        ]);
        let all = odd.repeat(3);
        let elements: Vec<Basic> = all
            .runs()
            .flat_map(|(basic, n)| std::iter::repeat_n(basic, n as usize))
            .collect();
        assert_eq!(elements.len() as u64, all.elements());
        for n in 0..=elements.len() {
            let parts = elements[..n].iter().map(|&basic| Signature::run(basic, 1));
            let prefix = Signature::concat(parts);
            assert!(prefix.is_prefix_of(&all));
            assert!(all.admits(prefix.digest()), "{n} elements");
            let wrong = Signature::concat([prefix, Signature::run(Basic::U16, 1)]);
            assert!(!all.admits(wrong.digest()), "{n} elements and one");
        }
    }
}
