//! Halves against the crate `half`; tables of MPI; edges.

use super::*;
use half::{bf16, f16};

#[test]
fn halves_are_those_of_the_crate() {
    for bits in 0..=u16::MAX {
        let (ours, theirs) = (half_wide(bits.to_ne_bytes()), f16::from_bits(bits).to_f32());
        assert!(
            ours == theirs && ours.is_sign_negative() == theirs.is_sign_negative()
                || ours.is_nan() && theirs.is_nan()
        );
        let brain = bf16::from_bits(bits).to_f32();
        assert!(brain_wide(bits.to_ne_bytes()).to_bits() == brain.to_bits() || brain.is_nan());
    }
    let mut state = 1u64;
    for round in 0..2_000_000u32 {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        // Every upper half with ties and their neighbors, then anything.
        let value = match round {
            0..393_216 => f32::from_bits(
                (round / 6) << 16 | [0, 1, 0x1000, 0x8000, 0x7fff, 0x8001][round as usize % 6],
            ),
            _ => f32::from_bits((state >> 32) as u32),
        };
        if value.is_nan() {
            assert!(
                half_wide(half_narrow(value)).is_nan() && brain_wide(brain_narrow(value)).is_nan()
            );
            continue;
        }
        assert_eq!(
            half_narrow(value),
            f16::from_f32(value).to_ne_bytes(),
            "{value:e}"
        );
        assert_eq!(
            brain_narrow(value),
            bf16::from_f32(value).to_ne_bytes(),
            "{value:e}"
        );
    }
}

#[test]
fn operators_have_the_types_of_the_standard() {
    let defined = |operator: Operator, basic: Basic| operator.is_defined_for(basic.into());
    for basic in Basic::ALL.iter().copied() {
        let kind = basic.kind();
        let integer = matches!(kind, BasicKind::Signed | BasicKind::Unsigned);
        let float = kind == BasicKind::Float;
        let logical = matches!(kind, BasicKind::Boolean | BasicKind::Logical);
        assert_eq!(defined(Operator::Max, basic), integer || float, "{basic}");
        assert_eq!(
            defined(Operator::Sum, basic),
            integer || float || kind == BasicKind::Complex,
            "{basic}"
        );
        assert_eq!(
            defined(Operator::LogicalXor, basic),
            integer || logical,
            "{basic}"
        );
        assert_eq!(
            defined(Operator::BitOr, basic),
            integer || basic == Basic::Byte,
            "{basic}"
        );
        assert!(!defined(Operator::MinLoc, basic), "{basic}");
    }
    for pair in Pair::ALL {
        assert!(Operator::MaxLoc.is_defined_for((*pair).into()));
        assert!(!Operator::Sum.is_defined_for((*pair).into()));
    }
}

/// All that is defined is computed, but for numbers wider than the processor's.
#[test]
fn what_is_defined_is_computed() {
    for operator in Operator::ALL {
        for basic in Basic::ALL.iter().copied() {
            let element = Element::Basic(basic);
            let (mut left, right) = (vec![1; basic.size() * 3], vec![2; basic.size() * 3]);
            let extended = matches!(
                basic.representation(),
                Basic::LongDouble | Basic::LongDoubleComplex
            );
            let wide = matches!(basic.representation(), Basic::Real16 | Basic::Complex32)
                || extended && !cfg!(all(target_arch = "x86_64", not(miri)));
            let done = operator.combine(element, &mut left, &right);
            assert_eq!(
                done.is_ok(),
                operator.is_defined_for(element) && !wide,
                "{operator} of {basic}"
            );
        }
    }
}

fn combined<const N: usize>(
    operator: Operator,
    element: impl Into<Element>,
    left: [u8; N],
    right: [u8; N],
) -> [u8; N] {
    let mut left = left;
    operator.combine(element.into(), &mut left, &right).unwrap();
    left
}

#[test]
fn nans_lose_and_zeros_are_equal() {
    let min = |a: f64, b: f64| {
        f64::from_ne_bytes(combined(
            Operator::Min,
            Basic::F64,
            a.to_ne_bytes(),
            b.to_ne_bytes(),
        ))
    };
    assert_eq!(min(f64::NAN, 3.0), 3.0);
    assert_eq!(min(3.0, f64::NAN), 3.0);
    assert_eq!(min(0.0, -0.0).to_bits(), 0.0f64.to_bits());
    assert_eq!(min(-0.0, 0.0).to_bits(), (-0.0f64).to_bits());
}

fn pair(value: f32, index: i32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&value.to_ne_bytes());
    bytes[4..].copy_from_slice(&index.to_ne_bytes());
    bytes
}

#[test]
fn ties_take_the_smaller_index() {
    let loc = |operator, left, right| combined(operator, Pair::FloatInt, left, right);
    assert_eq!(
        loc(Operator::MinLoc, pair(1.0, 7), pair(1.0, 3)),
        pair(1.0, 3)
    );
    assert_eq!(
        loc(Operator::MaxLoc, pair(1.0, 7), pair(2.0, 9)),
        pair(2.0, 9)
    );
    assert_eq!(
        loc(Operator::MaxLoc, pair(0.0, 7), pair(-0.0, 3)),
        pair(0.0, 3)
    );
    assert_eq!(
        loc(Operator::MinLoc, pair(f32::NAN, 1), pair(5.0, 2)),
        pair(5.0, 2)
    );
}

#[test]
fn signatures_are_sequences_of_elements() {
    let doubles = crate::Type::vector(3, 2, 5, &crate::Type::basic(Basic::F64)).unwrap();
    let element = Element::from(Basic::DoublePrecision);
    assert!(element.makes(doubles.signature()));
    assert!(!Element::from(Basic::F32).makes(doubles.signature()));
    let pairs = crate::Type::contiguous(9, &crate::Type::pair(Pair::ShortInt)).unwrap();
    assert!(Element::from(Pair::ShortInt).makes(pairs.signature()));
    assert!(!Element::from(Pair::DoubleInt).makes(pairs.signature()));
}

/// Whole vectors give what elements give one by one, whichever operand the result replaces.
#[test]
fn vectors_are_combined_as_their_elements() {
    let basics = [
        Basic::I8,
        Basic::U16,
        Basic::I32,
        Basic::U64,
        Basic::U128,
        Basic::F16,
        Basic::BF16,
        Basic::F32,
        Basic::F64,
        Basic::C32,
        Basic::C64,
    ];
    let operators = [
        Operator::Sum,
        Operator::Product,
        Operator::Min,
        Operator::Max,
        Operator::LogicalXor,
        Operator::BitAnd,
        Operator::MinLoc,
    ];
    let pair = Element::Pair {
        value: Basic::F64,
        index: Basic::I32,
    };
    let elements = basics.map(Element::Basic).into_iter().chain([pair]);
    for element in elements {
        for operator in operators.into_iter().filter(|o| o.is_defined_for(element)) {
            for count in [0usize, 1, 2, 7, 8, 9, 31, 64, 65, 200] {
                let bytes = count * element.size();
                let numbers = |salt: usize| -> Vec<u8> {
                    let byte = |i: usize| (i * salt + salt / 3) as u8 & 0x3f;
                    (0..bytes).map(byte).collect()
                };
                let (left, right) = (numbers(37), numbers(53));
                let mut expected = left.clone();
                for at in (0..bytes).step_by(element.size()) {
                    let one = at..at + element.size();
                    let combined =
                        operator.combine(element, &mut expected[one.clone()], &right[one]);
                    combined.expect("defined");
                }
                let (mut over_left, mut over_right) = (left.clone(), right.clone());
                let mut apart = vec![0xaau8; bytes];
                let (a, b) = (left.as_ptr(), right.as_ptr());
                let into = apart.as_mut_ptr();
                // SAFETY: invariant 5: vectors of as many bytes, apart from each other.
                unsafe { operator.combine_raw(element, a, b, into, bytes) }.expect("defined");
                let into = over_left.as_mut_ptr();
                // SAFETY: invariant 5: the result is the left operand.
                unsafe { operator.combine_raw(element, into, b, into, bytes) }.expect("defined");
                let into = over_right.as_mut_ptr();
                // SAFETY: invariant 5: the result is the right operand.
                unsafe { operator.combine_raw(element, a, into, into, bytes) }.expect("defined");
                for found in [&apart, &over_left, &over_right] {
                    assert_eq!(*found, expected, "{operator} of {count} {element}");
                }
            }
        }
    }
}
