//! k-ary tree: each has up to k children; with k = 2 the binary tree.

use super::tree::Family;

pub(super) fn family(k: u32, size: u32, index: u32) -> Family {
    let first = u64::from(index) * u64::from(k) + 1;
    let end = (first + u64::from(k)).min(u64::from(size));
    Family {
        parent: (index > 0).then(|| (index - 1) / k),
        children: (first..end).map(|c| c as u32).collect(),
    }
}
