//! `OSIER_DELAY` and `osier run --delay`: by how much messages between processes are delayed.

use osier_engine::env::{bad, value};
use osier_engine::error::Result;
use osier_transports::delay::Delay;

const FORM: &str = "write TIME or TIME:TIME_PER_MIB with ns, us, ms or s, such as 20us or \
     20us:100us, each at most 60s";

/// Parses `20us`, or `20us:100us`: of each message, and added for each MiB of payload.
///
/// # Errors
/// Of kind [`osier_engine::error::ErrorKind::Config`], with the form that is expected.
pub fn parse_delay(text: &str) -> Result<Delay> {
    let bad = || bad(text, "delay", FORM);
    let (latency, per_mib) = match text.trim().split_once(':') {
        Some((latency, per_mib)) => (latency, Some(per_mib)),
        None => (text.trim(), None),
    };
    Ok(Delay {
        latency_ns: parse_ns(latency).ok_or_else(bad)?,
        ns_per_mib: match per_mib {
            Some(per_mib) => parse_ns(per_mib).ok_or_else(bad)?,
            None => 0,
        },
    })
}

/// The delay that the environment asks for.
///
/// # Errors
/// As [`parse_delay`], with the variable in front.
pub fn delay() -> Result<Option<Delay>> {
    let parsed = value("OSIER_DELAY").map(|text| parse_delay(&text));
    parsed.transpose().map_err(|e| e.context("OSIER_DELAY"))
}

/// A whole number of a unit, in ns.
fn parse_ns(text: &str) -> Option<u64> {
    let at = text.find(|c: char| !c.is_ascii_digit())?;
    let (digits, unit) = text.split_at(at);
    let factor = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    let ns = digits.parse::<u64>().ok()?.checked_mul(factor)?;
    (ns <= Delay::MOST_NS).then_some(ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_parsed() {
        for (text, latency_ns, ns_per_mib) in [
            ("20us", 20_000, 0),
            (" 20us:100us ", 20_000, 100_000),
            ("0us", 0, 0),
            ("7ns:1ms", 7, 1_000_000),
            ("60s:60s", Delay::MOST_NS, Delay::MOST_NS),
        ] {
            let expected = Delay {
                latency_ns,
                ns_per_mib,
            };
            assert_eq!(parse_delay(text).expect(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_delay_names_the_form() {
        for text in [
            "",
            "5",
            "us",
            "x:",
            "20us:",
            ":20us",
            "20us:5",
            "-5us",
            "1.5us",
            "20 us",
            "20us:1us:1us",
            "61s",
            "1m",
            "99999999999999999999us",
            "18446744073709551615s",
        ] {
            let said = parse_delay(text).expect_err(text).to_string();
            assert!(said.contains("20us:100us"), "{said}");
        }
    }
}
