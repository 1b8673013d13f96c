//! Families of tasks, as calls of their tasks are recorded: a name and extents.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A family of tasks.
#[derive(Debug)]
pub struct Family {
    /// No other family of the process has it, and no line of code lies at such an address.
    pub(super) key: usize,
    name: String,
    extents: Vec<u64>,
}

impl Family {
    /// A family over these extents; a task has its number in row-major order.
    pub fn new(name: &str, extents: &[usize]) -> Family {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        Family {
            key: NEXT.fetch_add(1, Ordering::Relaxed) * 8 + 1,
            name: name.into(),
            extents: extents.iter().map(|extent| *extent as u64).collect(),
        }
    }

    /// Its entry in the table of a recording: extents, and name.
    pub(super) fn entry(&self) -> String {
        let extents: Vec<String> = self.extents.iter().map(u64::to_string).collect();
        format!("{} {}", extents.join("x"), self.name)
    }
}

/// Name and extents of an entry.
pub(super) fn parse(entry: &str) -> Option<(String, Vec<u64>)> {
    let (extents, name) = entry.split_once(' ')?;
    if extents.is_empty() {
        return Some((name.into(), Vec::new()));
    }
    let extents = extents.split('x').map(|extent| {
        let is_number = extent.bytes().all(|b| b.is_ascii_digit());
        extent.parse().ok().filter(|_| is_number)
    });
    Some((name.into(), extents.collect::<Option<_>>()?))
}

/// Coordinates of a task by its number.
pub(super) fn coordinates(extents: &[u64], mut number: u64) -> Vec<u64> {
    let mut at = vec![0; extents.len()];
    for (at, extent) in at.iter_mut().zip(extents).rev() {
        let extent = (*extent).max(1);
        *at = number % extent;
        number /= extent;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_as_they_were_written() {
        for (name, extents) in [("cell", vec![4, 8]), ("a b x", vec![7]), ("", vec![])] {
            let family = Family::new(name, &extents);
            let extents: Vec<u64> = extents.iter().map(|e| *e as u64).collect();
            assert_eq!(parse(&family.entry()), Some((name.into(), extents)));
        }
        for entry in [
            "",
            "4",
            "4x name",
            "+4 name",
            "4y8 name",
            "99999999999999999999 name",
        ] {
            assert_eq!(parse(entry), None, "{entry}");
        }
        assert_eq!(coordinates(&[4, 8], 13), [1, 5]);
        assert_eq!(coordinates(&[], 13), [0; 0]);
        assert_eq!(coordinates(&[0], 13), [0]);
    }
}
