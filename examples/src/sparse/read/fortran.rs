//! Fortran's formats of numbers in columns of fixed width: `(16I5)`, `(1P,4E20.13)`.
//!
//! # Sources
//! ISO/IEC 1539-1:2018, section 13 (input editing); I. Duff, R. Grimes, J. Lewis, "Users'
//! Guide for the Harwell-Boeing Sparse Matrix Collection (Release I)", RAL-92-086, 1992.

use super::super::read::lines::shortened;
use super::{BadFile, Lines};

/// A format: a number of fields of one width in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Fields in a line.
    pub per_line: usize,
    /// Characters of a field.
    pub width: usize,
    /// Digits behind the decimal point of a number without one.
    digits: i32,
    /// Scale factor: what a number without exponent is divided by, as a power of 10.
    scale: i32,
    /// Integers.
    integers: bool,
}

impl Format {
    /// Parses one group in parentheses, such as `(1P,4E20.13)`; `None`: it is no format of
    /// one repeated integer or real field.
    pub fn parse(text: &str) -> Option<Format> {
        let inner = text.trim().strip_prefix('(')?.strip_suffix(')')?;
        let inner: String = inner.split_whitespace().collect::<String>().to_uppercase();
        let (scale, field) = match inner.split_once('P') {
            Some((scale, field)) => {
                let field = field.strip_prefix(',').unwrap_or(field);
                (scale.parse().ok()?, field)
            }
            None => (0, inner.as_str()),
        };
        let letter = field.find(|c: char| c.is_ascii_alphabetic())?;
        let (repeat, rest) = field.split_at(letter);
        let (kind, size) = rest.split_at(1);
        let integers = match kind {
            "I" => true,
            "E" | "D" | "F" | "G" => false,
            _ => return None,
        };
        // The exponent's digits (E20.13E3) say nothing about input.
        let size = size.split(['E', 'D']).next()?;
        let (width, digits) = match size.split_once('.') {
            Some((width, digits)) => (width, digits.parse().ok()?),
            None => (size, 0),
        };
        let repeat = if repeat.is_empty() { "1" } else { repeat };
        let format = Format {
            per_line: repeat.parse().ok()?,
            width: width.parse().ok()?,
            digits,
            scale,
            integers,
        };
        let sane = (1..=1000).contains(&format.per_line)
            && (1..=1000).contains(&format.width)
            && (0..=100).contains(&format.digits)
            && (-100..=100).contains(&format.scale);
        sane.then_some(format)
    }

    /// Whether its fields are integers.
    pub fn is_of_integers(self) -> bool {
        self.integers
    }

    /// Lines that a number of numbers take.
    pub fn lines(self, numbers: u64) -> u64 {
        numbers.div_ceil(self.per_line as u64)
    }

    /// Reads numbers, and hands each to `take`, with the lines for its errors.
    ///
    /// # Errors
    /// A line is missing or short, or an error of `take`.
    pub fn read(
        self,
        lines: &mut Lines<'_>,
        numbers: u64,
        what: &str,
        mut take: impl FnMut(&Lines<'_>, &str) -> Result<(), BadFile>,
    ) -> Result<(), BadFile> {
        let mut left = numbers;
        while left > 0 {
            let line = lines.next(&format!("{left} more {what}"))?;
            let fields = left.min(self.per_line as u64) as usize;
            for field in 0..fields {
                let from = field * self.width;
                let until = line.len().min(from + self.width);
                let text = line.get(from..until).unwrap_or_default().trim();
                if text.is_empty() {
                    return Err(lines.bad(format!(
                        "expected {fields} {what} of {} characters each, found {field}",
                        self.width
                    )));
                }
                take(lines, text)?;
            }
            left -= fields as u64;
        }
        Ok(())
    }

    /// The value of a field.
    ///
    /// # Errors
    /// It is no finite number.
    pub fn value(self, lines: &Lines<'_>, text: &str) -> Result<f64, BadFile> {
        let upper = text.to_ascii_uppercase().replace('D', "E");
        // The letter of the exponent may be missing.
        let sign = upper
            .char_indices()
            .skip(1)
            .find(|(_, c)| "+-".contains(*c));
        let (mantissa, exponent) = match (upper.split_once('E'), sign) {
            (Some((mantissa, exponent)), _) => (mantissa, Some(exponent)),
            (None, Some((at, _))) => (&upper[..at], Some(&upper[at..])),
            (None, None) => (upper.as_str(), None),
        };
        let none = || lines.bad(format!("expected a value, found '{}'", shortened(text)));
        let is_number = |text: &str| text.contains(|c: char| c.is_ascii_digit());
        if !is_number(mantissa) || exponent.is_some_and(|e| !is_number(e)) {
            return Err(none());
        }
        let mut power: i32 = match exponent {
            Some(exponent) => exponent.trim().parse().map_err(|_| none())?,
            None => -self.scale,
        };
        if !mantissa.contains('.') {
            power = power.saturating_sub(self.digits);
        }
        lines
            .value_of(Some(&format!("{}E{power}", mantissa.trim())))
            .map_err(|_| {
                lines.bad(format!(
                    "expected a finite value, found '{}'",
                    shortened(text)
                ))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(format: &str, text: &str) -> Result<f64, BadFile> {
        let format = Format::parse(format).expect("a format");
        format.value(&Lines::new("a file", ""), text)
    }

    #[test]
    fn formats_of_the_collection() {
        let of =
            |text: &str| Format::parse(text).map(|f| (f.per_line, f.width, f.is_of_integers()));
        assert_eq!(of("(16I5)"), Some((16, 5, true)));
        assert_eq!(of(" (10i8) "), Some((10, 8, true)));
        assert_eq!(of("(3E25.16)"), Some((3, 25, false)));
        assert_eq!(of("(1P,4E20.13)"), Some((4, 20, false)));
        assert_eq!(of("(1P5D16.9)"), Some((5, 16, false)));
        assert_eq!(of("(4E20.12E3)"), Some((4, 20, false)));
        assert_eq!(of("(I8)"), Some((1, 8, true)));
        for bad in [
            "",
            "16I5",
            "(I)",
            "(16X5)",
            "(0I5)",
            "(16I0)",
            "(A72)",
            "(9999999I5)",
            "(é)",
        ] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }

    #[test]
    fn exponents_scales_and_points() {
        assert_eq!(value("(3E26.18)", "-0.435E-03"), Ok(-0.435e-3));
        assert_eq!(value("(3D26.18)", "1.5D+02"), Ok(150.0));
        assert_eq!(value("(3E26.18)", "1.5-102"), Ok(1.5e-102));
        assert_eq!(value("(3E26.18)", "-1.5+002"), Ok(-150.0));
        assert_eq!(value("(3E10.3)", "12345"), Ok(12.345));
        // The scale factor holds where there is no exponent.
        assert_eq!(value("(1P,3F10.3)", "12.5"), Ok(1.25));
        assert_eq!(value("(1P,3E10.3)", "12.5E0"), Ok(12.5));
        for bad in [
            "", "x", "1.5E", "E5", "1e400", "nan", "inf", "1.5.5", "--1", "1E5E5", "é-1",
        ] {
            assert!(value("(3E26.18)", bad).is_err(), "{bad}");
        }
    }
}
