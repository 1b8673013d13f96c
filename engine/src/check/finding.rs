//! Findings as text.

use super::Check;
use std::fmt;

/// Something that a check has found.
#[derive(Clone, Debug)]
pub struct Finding {
    pub(super) check: Check,
    pub(super) text: String,
}

impl Finding {
    /// Which check has found it.
    pub fn check(&self) -> Check {
        self.check
    }
}

impl fmt::Display for Finding {
    /// As it was printed, without the rank.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text.trim_end())
    }
}

/// One end of a message.
pub struct Side<'a> {
    pub types: &'a str,
    pub bytes: usize,
    pub site: &'a str,
}

/// Types that do not match.
pub fn mismatch(what: &str, sent: &Side<'_>, expected: &Side<'_>) -> String {
    let width = sent
        .types
        .chars()
        .count()
        .max(expected.types.chars().count());
    let line = |name: &str, side: &Side<'_>| {
        let Side { types, bytes, site } = side;
        format!("  {name:<8}  {types:<width$}  {bytes} bytes  at {site}\n")
    };
    format!(
        "types do not match: {what}\n{}{}  (hint: a receive takes the same sequence of types or a longer one; bytes match bytes only)\n",
        line("sent", sent),
        line("expected", expected)
    )
}
