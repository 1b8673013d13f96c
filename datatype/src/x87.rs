//! The 80-bit format of the x87 and IEEE binary128, converted both ways.
//!
//! ```text
//! x87        sign 1 | exponent 15 | integer bit 1 | fraction 63
//! binary128  sign 1 | exponent 15 |                 fraction 112
//! ```
//!
//! Both have the bias 16383, so widening is exact: the integer bit goes, the
//! fraction gets 49 more bits. Narrowing rounds to the nearest, ties to even.
//! Denormals have the same scale in both. Bit patterns that the x87 refuses
//! (an exponent without its integer bit) become a quiet NaN, as they would in
//! its registers.
//!
//! # Sources
//! IEEE 754-2019, sections 3.4 and 4.3.1. Intel 64 and IA-32 Architectures
//! Software Developer's Manual, volume 1, section 8.2.2 (unsupported formats).

const EXPONENT: u16 = 0x7fff;
const INTEGER_BIT: u64 = 1 << 63;
const SHIFT: u32 = 112 - 63;
const FRACTION: u128 = (1 << 112) - 1;
const QUIET: u128 = 1 << 111;

/// The bits of a binary128 with the value of an x87 number, given by the ten
/// low bytes.
pub(crate) fn to_binary128(bits: u128) -> u128 {
    let mantissa = bits as u64;
    let head = (bits >> 64) as u16;
    let (sign, exponent) = (u128::from(head >> 15) << 127, head & EXPONENT);
    let fraction = u128::from(mantissa & !INTEGER_BIT) << SHIFT;
    let has_integer_bit = mantissa & INTEGER_BIT != 0;
    let infinite = u128::from(EXPONENT) << 112;
    match (exponent, has_integer_bit) {
        (0, false) => sign | fraction,
        // A pseudo-denormal has the value of the smallest normal exponent.
        (0, true) => sign | 1 << 112 | fraction,
        (_, false) => sign | infinite | QUIET,
        (_, true) => sign | u128::from(exponent) << 112 | fraction,
    }
}

/// The x87 number nearest to a binary128, in the ten low bytes.
pub(crate) fn from_binary128(bits: u128) -> u128 {
    let sign = (bits >> 127) << 79;
    let exponent = (bits >> 112) as u16 & EXPONENT;
    let fraction = bits & FRACTION;
    if exponent == EXPONENT {
        let payload = match (fraction >> SHIFT, fraction) {
            (0, 0) => 0,
            // A payload that does not fit must not turn into infinity.
            (0, _) => 1 << 62,
            (payload, _) => payload,
        };
        return sign | u128::from(EXPONENT) << 64 | u128::from(INTEGER_BIT) | payload;
    }
    let integer_bit = u128::from(exponent > 0) << 112;
    let whole = integer_bit | fraction;
    let (kept, lost) = (whole >> SHIFT, whole & ((1 << SHIFT) - 1));
    let half = 1 << (SHIFT - 1);
    let up = lost > half || (lost == half && kept & 1 == 1);
    let mantissa = kept + u128::from(up);
    match (exponent, mantissa >> 63) {
        // Rounded up to the smallest normal number.
        (0, 1) => sign | 1 << 64 | mantissa,
        (0, _) => sign | mantissa,
        // Rounded up to the next power of two, maybe to infinity.
        (_, 2) => sign | u128::from(exponent + 1) << 64 | u128::from(INTEGER_BIT),
        _ => sign | u128::from(exponent) << 64 | mantissa,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn x87(sign: u16, exponent: u16, mantissa: u64) -> u128 {
        u128::from(sign << 15 | exponent) << 64 | u128::from(mantissa)
    }

    #[test]
    fn known_values() {
        for (narrow, wide) in [
            (0, 0),
            (x87(1, 0, 0), 1 << 127),
            // 1, -2, 1.5
            (x87(0, 0x3fff, 1 << 63), 0x3fff_u128 << 112),
            (x87(1, 0x4000, 1 << 63), 0xc000_u128 << 112),
            (x87(0, 0x3fff, 3 << 62), 0x3_fff8_u128 << 108),
            // Infinity, the default NaN
            (x87(0, EXPONENT, 1 << 63), 0x7fff_u128 << 112),
            (x87(1, EXPONENT, 3 << 62), 0xf_fff8_u128 << 108),
            // Smallest denormal, largest finite number, smallest normal one
            (x87(0, 0, 1), 1 << 49),
            (
                x87(0, 0x7ffe, u64::MAX),
                0x7ffe_u128 << 112 | FRACTION >> 49 << 49,
            ),
            (x87(0, 1, 1 << 63), 1 << 112),
        ] {
            assert_eq!(to_binary128(narrow), wide, "{narrow:x}");
            assert_eq!(from_binary128(wide), narrow, "{wide:x}");
        }
        // pi
        assert_eq!(
            from_binary128(0x4000_921f_b544_42d1_8469_898c_c517_01b8),
            x87(0, 0x4000, 0xc90f_daa2_2168_c235)
        );
    }

    #[test]
    fn unsupported_patterns_become_nan() {
        for bits in [
            x87(0, EXPONENT, 0),
            x87(0, EXPONENT, 5),
            x87(0, 0x3fff, 1 << 62),
        ] {
            assert_eq!(to_binary128(bits), 0x7_fff8_u128 << 108);
        }
        assert_eq!(to_binary128(x87(0, 0, 3 << 62)), 1 << 112 | QUIET);
    }

    #[test]
    fn narrowing_rounds_to_even_and_keeps_nan() {
        let one = 0x3fff_u128 << 112;
        let ulp = 1u128 << SHIFT;
        let at = |mantissa| x87(0, 0x3fff, mantissa);
        assert_eq!(from_binary128(one + ulp / 2), at(1 << 63));
        assert_eq!(from_binary128(one + ulp / 2 + 1), at((1 << 63) + 1));
        assert_eq!(from_binary128(one + ulp + ulp / 2), at((1 << 63) + 2));
        assert_eq!(from_binary128(one | FRACTION), x87(0, 0x4000, 1 << 63));
        let largest = 0x7ffe_u128 << 112 | FRACTION;
        assert_eq!(from_binary128(largest), x87(0, EXPONENT, 1 << 63));
        assert_eq!(from_binary128(FRACTION), x87(0, 1, 1 << 63));
        let signalling = 0x7fff_u128 << 112 | 1;
        assert_eq!(from_binary128(signalling), x87(0, EXPONENT, 3 << 62));
    }

    /// Against the processor: a double is exact in both formats.
    #[test]
    fn doubles_survive() {
        let mut state = 7u64;
        for _ in 0..10_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            let double = f64::from_bits(state);
            if !double.is_normal() {
                continue;
            }
            let bits = double.to_bits();
            let exponent = (bits >> 52 & 0x7ff) as u16 + (16383 - 1023);
            let fraction = bits & ((1 << 52) - 1);
            let sign = (bits >> 63) as u16;
            let narrow = x87(sign, exponent, 1 << 63 | fraction << 11);
            let wide = u128::from(sign << 15 | exponent) << 112 | u128::from(fraction) << 60;
            assert_eq!(to_binary128(narrow), wide, "{double}");
            assert_eq!(from_binary128(wide), narrow, "{double}");
        }
    }
}
