//! `OSIER_DEBUG`: settings for developers, in one variable.
//!
//! ```text
//! OSIER_DEBUG=key=value,key=value     pairs end at a comma
//! OSIER_DEBUG=steps=a,,b              two commas are one comma of the value: "a,b"
//! ```
//!
//! A key without a value is not set; spaces around a pair do not count; of two pairs with one
//! key the later counts. This module knows the syntax alone: which keys there are, and what
//! they take, is in the table of the crate that users see, and checked when a job is joined.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::Command;
use std::sync::OnceLock;

/// The variable.
pub const VARIABLE: &str = "OSIER_DEBUG";
/// The key that names the CUDA driver's library.
pub const CUDA_LIBRARY: &str = "cuda-library";
/// The key that names gdrcopy's library.
pub const GDRCOPY_LIBRARY: &str = "gdrcopy-library";
/// The key that names NVIDIA's management library.
pub const NVML_LIBRARY: &str = "nvml-library";

/// The key that says how much plain memory of a device is kept when its owner drops it.
pub const KEPT_PLAIN: &str = "kept-plain";

/// The key that says how the host sees that work of messages is done.
pub const DEVICE_COMPLETION: &str = "device-completion";

/// Key and value.
pub type Pair = (String, OsString);

/// The pairs of a text.
///
/// # Errors
/// A part has no `=`, or no key: the part.
pub fn pairs(text: &OsStr) -> Result<Vec<Pair>, String> {
    let mut parts = vec![Vec::new()];
    let mut bytes = text.as_bytes().iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        if byte == b',' && bytes.next_if_eq(&b',').is_none() {
            parts.push(Vec::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(byte);
        }
    }
    let parts = parts.iter().map(|part| part.trim_ascii());
    let pair = |part: &[u8]| {
        let shown = || String::from_utf8_lossy(part).into_owned();
        let at = part.iter().position(|byte| *byte == b'=');
        let at = at.filter(|at| *at > 0).ok_or_else(shown)?;
        let (key, value) = (&part[..at], &part[at + 1..]);
        let key = std::str::from_utf8(key.trim_ascii()).map_err(|_| shown())?;
        Ok((key.to_owned(), OsString::from_vec(value.to_vec())))
    };
    parts.filter(|part| !part.is_empty()).map(pair).collect()
}

/// A text with one more pair, which replaces an earlier one of this key.
pub fn with(text: &OsStr, key: &str, value: &OsStr) -> OsString {
    let mut text = text.as_bytes().to_vec();
    // An odd number of commas at the end leaves one that ends a pair.
    let commas = text.iter().rev().take_while(|byte| **byte == b',').count();
    if !text.is_empty() && commas % 2 == 0 {
        text.push(b',');
    }
    text.extend_from_slice(key.as_bytes());
    text.push(b'=');
    for &byte in value.as_bytes() {
        text.push(byte);
        if byte == b',' {
            text.push(byte);
        }
    }
    OsString::from_vec(text)
}

/// The value of a key in a text, if it is set and not empty.
pub fn value_in(text: &OsStr, key: &str) -> Option<OsString> {
    let pairs = pairs(text).unwrap_or_default();
    let found = pairs.into_iter().rfind(|(name, _)| name == key);
    found.map(|(_, value)| value).filter(|v| !v.is_empty())
}

/// The value of a key in this process's variable, which is read once. A text that makes no
/// sense sets nothing here; who joins a job has had it checked.
pub fn value(key: &str) -> Option<OsString> {
    static PAIRS: OnceLock<Vec<Pair>> = OnceLock::new();
    let all = PAIRS.get_or_init(|| {
        let text = std::env::var_os(VARIABLE).unwrap_or_default();
        pairs(&text).unwrap_or_default()
    });
    let found = all.iter().rfind(|(name, _)| name == key);
    found
        .map(|(_, value)| value.clone())
        .filter(|v| !v.is_empty())
}

/// Commands that start programs with settings.
pub trait Debug {
    /// Adds a pair to what the program's variable would be.
    fn debug(&mut self, key: &str, value: impl AsRef<OsStr>) -> &mut Self;
}

impl Debug for Command {
    fn debug(&mut self, key: &str, value: impl AsRef<OsStr>) -> &mut Self {
        let own = self.get_envs().find(|(name, _)| *name == VARIABLE);
        let text = match own {
            Some((_, text)) => text.map(OsStr::to_owned),
            None => std::env::var_os(VARIABLE),
        };
        let text = with(&text.unwrap_or_default(), key, value.as_ref());
        self.env(VARIABLE, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Vec<(String, String)> {
        let pairs = pairs(OsStr::new(text)).expect(text).into_iter();
        pairs
            .map(|(key, value)| (key, value.into_string().expect("text")))
            .collect()
    }

    fn own(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let own = |(key, value): &(&str, &str)| ((*key).into(), (*value).into());
        pairs.iter().map(own).collect()
    }

    #[test]
    fn pairs_end_at_a_comma_and_two_commas_are_one() {
        for (text, pairs) in [
            ("", &[][..]),
            (",", &[]),
            ("a=1", &[("a", "1")]),
            ("a=1,b=2", &[("a", "1"), ("b", "2")]),
            (" a=1 , b=2 ,", &[("a", "1"), ("b", "2")]),
            ("a=1,,2,b=x=y", &[("a", "1,2"), ("b", "x=y")]),
            ("a=,,", &[("a", ",")]),
            ("a=,,,b=", &[("a", ","), ("b", "")]),
            (
                "a=25%,b=posted:CHUNK:2@1",
                &[("a", "25%"), ("b", "posted:CHUNK:2@1")],
            ),
        ] {
            assert_eq!(parsed(text), own(pairs), "{text:?}");
        }
    }

    #[test]
    fn part_without_key_or_sign_is_refused() {
        for (text, part) in [
            ("a", "a"),
            ("a=1,b", "b"),
            ("=1", "=1"),
            ("a=1, x y", "x y"),
        ] {
            assert_eq!(pairs(OsStr::new(text)), Err(part.into()), "{text:?}");
        }
    }

    #[test]
    fn any_value_without_outer_space_comes_back() {
        let mut text = OsString::new();
        for value in ["x", "a,b", ",", ",,,", "a,", ",a", "=", "%", "\u{1f980}"] {
            text = with(&text, "k", OsStr::new(value));
            text = with(&text, "other", OsStr::new("1"));
            assert_eq!(value_in(&text, "k"), Some(value.into()), "{text:?}");
        }
        assert_eq!(value_in(&text, "absent"), None);
        for text in ["", "a=1", "a=1,", "a=1,,", "a=1,,,"] {
            let with = with(OsStr::new(text), "k", OsStr::new("v"));
            let mut wanted = parsed(text);
            wanted.push(("k".into(), "v".into()));
            assert_eq!(parsed(&with.to_string_lossy()), wanted, "{with:?}");
        }
        let no_text = OsStr::from_bytes(b"k=\xff\xfe");
        assert_eq!(
            value_in(no_text, "k"),
            Some(OsStr::from_bytes(b"\xff\xfe").into())
        );
    }
}
