//! Info objects: ordered pairs of key and value, as values.
//!
//! # Sources
//! MPI 5.0, chapter 10. Limits are those of the standard ABI (chapter 20): keys
//! of 255 bytes, values of 1023.

use osier_engine::env;
use osier_engine::error::{Error, ErrorKind, Result};
use std::fmt;

/// Hints and descriptions: pairs of key and value, in the order of setting.
///
/// ```
/// # osier::testing::ranks(2, |comm| {
/// let mut info = osier::attributes::Info::new();
/// info.set("access", "read mostly")?;
/// let other = comm.dup_with_info(&info)?;
/// assert_eq!(info.get("access"), Some("read mostly"));
/// # drop(other);
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Info(Vec<(String, String)>);

impl Info {
    /// Longest key in bytes.
    pub const MAX_KEY: usize = 255;
    /// Longest value in bytes.
    pub const MAX_VALUE: usize = 1023;

    /// No pairs.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// What is known of how this program was started (MPI's `MPI_INFO_ENV`):
    /// `command`, `argv`, `maxprocs`, `arch`, `wdir`, `thread_level`, and
    /// `host` where it is known.
    pub fn env() -> Self {
        let mut info = Self::new();
        let mut note = |key: &str, value: String| {
            // Values that are too long are left out, as those not known.
            let _ = info.set(key, value);
        };
        let mut arguments = std::env::args_os().map(|a| a.to_string_lossy().into_owned());
        if let Some(command) = arguments.next() {
            note("command", command);
        }
        let arguments: Vec<String> = arguments.collect();
        if !arguments.is_empty() {
            note("argv", arguments.join(" "));
        }
        note(
            "maxprocs",
            env::value("OSIER_RANKS").unwrap_or_else(|| "1".into()),
        );
        if let Ok(host) = std::fs::read_to_string("/proc/sys/kernel/hostname") {
            note("host", host.trim().to_owned());
        }
        note("arch", std::env::consts::ARCH.into());
        if let Ok(folder) = std::env::current_dir() {
            note("wdir", folder.display().to_string());
        }
        note("thread_level", "MPI_THREAD_MULTIPLE".into());
        info
    }

    /// Sets a pair; a key that is there keeps its place.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if the key is empty or longer than [`Info::MAX_KEY`]
    /// bytes, the value is longer than [`Info::MAX_VALUE`], or one of them contains a zero.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<String>) -> Result<()> {
        let (key, value) = (key.into(), value.into());
        check("key", &key, Self::MAX_KEY)?;
        check("value", &value, Self::MAX_VALUE)?;
        if key.is_empty() {
            return Err(Error::new(
                ErrorKind::Argument,
                "an info key is empty (hint: keys have 1 to 255 bytes)",
            ));
        }
        match self.0.iter_mut().find(|(k, _)| *k == key) {
            Some(pair) => pair.1 = value,
            None => self.0.push((key, value)),
        }
        Ok(())
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        let (_, value) = self.0.iter().find(|(k, _)| k == key)?;
        Some(value)
    }

    /// Removes a pair.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if there is no such key.
    pub fn delete(&mut self, key: &str) -> Result<()> {
        let at = self.0.iter().position(|(k, _)| k == key);
        let at = at.ok_or_else(|| {
            Error::new(
                ErrorKind::Argument,
                format!("info has no key {key:?} (hint: keys are case sensitive)"),
            )
        })?;
        self.0.remove(at);
        Ok(())
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The key at a place in the order; `None` if there are not that many.
    pub fn nth_key(&self, n: usize) -> Option<&str> {
        self.0.get(n).map(|(key, _)| key.as_str())
    }

    /// All pairs in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }

    /// The pairs that a communicator understands.
    pub(crate) fn understood(&self) -> Self {
        let known = |(key, _): &&(String, String)| UNDERSTOOD.contains(&key.as_str());
        Self(self.0.iter().filter(known).cloned().collect())
    }
}

/// Assertions of the standard, section 7.4.4, which are kept and shown. None
/// is made use of yet.
const UNDERSTOOD: [&str; 5] = [
    "mpi_assert_no_any_tag",
    "mpi_assert_no_any_source",
    "mpi_assert_exact_length",
    "mpi_assert_allow_overtaking",
    "mpi_assert_strict_persistent_collective_ordering",
];

fn check(what: &str, text: &str, most: usize) -> Result<()> {
    let wrong = if text.len() > most {
        format!(
            "an info {what} of {} bytes (hint: at most {most})",
            text.len()
        )
    } else if text.contains('\0') {
        format!("an info {what} with a zero byte: {text:?}")
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::Argument, wrong))
}

impl fmt::Debug for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_keep_their_order_and_their_limits() {
        let mut info = Info::new();
        for (key, value) in [("b", "1"), ("a", "2"), ("c", ""), ("b", "3")] {
            info.set(key, value).expect("set");
        }
        let pairs: Vec<_> = info.iter().collect();
        assert_eq!(pairs, [("b", "3"), ("a", "2"), ("c", "")]);
        assert_eq!((info.nth_key(1), info.nth_key(3)), (Some("a"), None));
        let copy = info.clone();
        info.delete("a").expect("there");
        assert!(info.delete("a").is_err());
        assert_eq!((info.len(), info.get("a")), (2, None));
        assert_eq!((copy.len(), copy.get("a")), (3, Some("2")));
        info.set("k".repeat(255), "v".repeat(1023)).expect("fits");
        for (key, value) in [
            (String::new(), String::new()),
            ("k".repeat(256), String::new()),
            ("k".into(), "v".repeat(1024)),
            ("k\0".into(), String::new()),
        ] {
            assert!(info.set(key, value).is_err());
        }
    }

    #[test]
    fn the_environment_names_the_program() {
        let info = Info::env();
        assert!(info.get("command").is_some_and(|c| !c.is_empty()));
        assert!(
            info.get("maxprocs")
                .is_some_and(|n| n.parse::<u32>().is_ok())
        );
        assert_eq!(info.get("arch"), Some(std::env::consts::ARCH));
    }
}
