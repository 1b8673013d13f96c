//! Environment variables: reading and parsing.
//!
//! Each setting has its parser where it is used; the table of all variables, with default
//! and meaning, is the crate's that users see. Settings for developers are keys of
//! `OSIER_DEBUG`.

use crate::error::{Error, ErrorKind, Result};
use osier_kernels::debug;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// Value of a variable, if it is set and not empty. Bytes that are not UTF-8 become
/// replacement characters, which no parser accepts.
pub fn value(name: &str) -> Option<String> {
    path(name).map(|value| value.to_string_lossy().into_owned())
}

/// As [`value`], byte for byte.
pub fn path(name: &str) -> Option<PathBuf> {
    let value = std::env::var_os(name).filter(|v| !v.is_empty());
    value.map(PathBuf::from)
}

/// A setting for developers, if its key is set in `OSIER_DEBUG`.
///
/// # Errors
/// What the parser says, with the variable and the key in front.
pub fn debug<T>(key: &str, parse: impl FnOnce(&str) -> Result<T>) -> Result<Option<T>> {
    let value = debug::value(key).map(|value| parse(&value.to_string_lossy()));
    value.transpose().map_err(|e| e.context(named(key)))
}

/// As [`debug()`], a path byte for byte.
pub fn debug_path(key: &str) -> Option<PathBuf> {
    debug::value(key).map(PathBuf::from)
}

/// How messages name a key of `OSIER_DEBUG`.
pub fn named(key: &str) -> String {
    format!("{}: {key}", debug::VARIABLE)
}

/// A value for a message, cut at 80 characters.
pub fn shown(text: &str) -> String {
    let start: String = text.chars().take(80).collect();
    let more = if start.len() < text.len() { "..." } else { "" };
    format!("{start:?}{more}")
}

/// A value that no parser accepts.
pub fn bad(text: &str, is_no: &str, hint: &str) -> Error {
    Error::new(
        ErrorKind::Config,
        format!("{} is no {is_no} (hint: {hint})", shown(text)),
    )
}

/// Checks a number of a range.
///
/// # Errors
/// Of kind [`ErrorKind::Config`].
pub fn number(text: &str, least: usize, most: usize) -> Result<()> {
    let number = text.trim().parse().ok();
    match number.filter(|n| (least..=most).contains(n)) {
        Some(_) => Ok(()),
        None => Err(bad(
            text,
            &format!("number from {least} to {most}"),
            "it is set by the launcher",
        )),
    }
}

/// Parses a size such as `4096`, `64K`, `2M`, `1G`; binary units.
pub fn parse_bytes(text: &str) -> Result<u64> {
    let bad = || bad(text, "size", "write bytes, or a number with K, M, G or T");
    let trimmed = text.trim();
    let (digits, shift) = match trimmed.char_indices().last() {
        Some((at, 'k' | 'K')) => (&trimmed[..at], 10),
        Some((at, 'm' | 'M')) => (&trimmed[..at], 20),
        Some((at, 'g' | 'G')) => (&trimmed[..at], 30),
        Some((at, 't' | 'T')) => (&trimmed[..at], 40),
        _ => (trimmed, 0),
    };
    let n: u64 = digits.parse().map_err(|_| bad())?;
    n.checked_mul(1 << shift).ok_or_else(bad)
}

/// More memory than any machine has: half of an address space of 47 bits.
pub const MOST_BYTES: u64 = 1 << 46;

/// A size within bounds.
///
/// # Errors
/// Of kind [`ErrorKind::Config`].
pub fn bounded(text: &str, bounds: RangeInclusive<u64>) -> Result<u64> {
    let bytes = parse_bytes(text)?;
    match bounds.contains(&bytes) {
        true => Ok(bytes),
        false => Err(Error::new(
            ErrorKind::Config,
            format!(
                "{} is out of bounds (hint: it is {} to {})",
                shown(text),
                bytes_text(*bounds.start()),
                bytes_text(*bounds.end())
            ),
        )),
    }
}

/// A variable that is a size within bounds.
pub fn size(name: &str, bounds: RangeInclusive<u64>) -> Result<Option<u64>> {
    let parsed = value(name).map(|text| bounded(&text, bounds));
    parsed.transpose().map_err(|e| e.context(name))
}

/// As [`parse_bytes`] reads it.
fn bytes_text(bytes: u64) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let unit = units
        .into_iter()
        .find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    match unit {
        Some((shift, unit)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

/// A longer time is a mistake, in hours.
const MOST_HOURS: u64 = 365 * 24;

/// Parses a time such as `500ms`, `60s`, `5m`, `1h`; `None` for `off`.
pub fn parse_duration(text: &str) -> Result<Option<Duration>> {
    let hint = "write a number with ms, s, m or h, at most 8760h; or off";
    let bad = || bad(text, "time", hint);
    let trimmed = text.trim();
    if trimmed == "off" {
        return Ok(None);
    }
    let at = trimmed.find(|c: char| !c.is_ascii_digit());
    let (digits, unit) = trimmed.split_at(at.unwrap_or(trimmed.len()));
    let n: u64 = digits.parse().map_err(|_| bad())?;
    let ms: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(bad()),
    };
    let most = MOST_HOURS * 3_600_000;
    let ms = n.checked_mul(ms).filter(|ms| (1..=most).contains(ms));
    let ms = ms.ok_or_else(bad)?;
    Ok(Some(Duration::from_millis(ms)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let ms = |text| parse_duration(text).expect(text).map(|d| d.as_millis());
        assert_eq!(ms("60s"), Some(60_000));
        assert_eq!(ms(" 500ms "), Some(500));
        assert_eq!(ms("2m"), Some(120_000));
        assert_eq!(ms("off"), None);
        for bad in [
            "",
            "60",
            "0s",
            "s",
            "-1s",
            "1.5s",
            "1 s",
            "99999999999999999999h",
            "8761h",
        ] {
            let e = parse_duration(bad).expect_err(bad);
            assert!(e.to_string().contains("hint"), "{e}");
        }
    }

    #[test]
    fn sizes_are_printed_as_they_are_parsed() {
        for bytes in [0, 1, 1000, 1 << 10, 3 << 20, 1 << 46] {
            assert_eq!(parse_bytes(&bytes_text(bytes)).expect("a size"), bytes);
        }
        assert_eq!(bytes_text(256 << 10), "256K");
    }

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(parse_bytes("17").expect("plain"), 17);
        assert_eq!(parse_bytes(" 64k ").expect("K"), 65536);
        assert_eq!(parse_bytes("3G").expect("G"), 3 << 30);
        for bad in ["", "k", "1.5M", "-1", "99999999999T"] {
            let e = parse_bytes(bad).expect_err(bad);
            assert!(e.to_string().contains("hint"), "{e}");
        }
    }
}
