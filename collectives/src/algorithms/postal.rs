//! Postal tree: whoever has the data sends on again and again, and a message is under way
//! for as long as its sender needs for `reach` of them.
//!
//! ```text
//! reach 1: the binomial tree     reach 3, six ranks:  0 -> 3 at 1, 2 at 2 ... by turns
//! many: all are the root's children
//! ```
//!
//! Informed after t sends: N(t) = N(t - 1) + N(t - reach), and 1 before the first arrives.
//! A root of n ranks with the least such t keeps N(t - 1) of them, and sends to the first
//! of the others, which has those below it.
//!
//! # Sources
//! A. Bar-Noy, S. Kipnis, "Designing Broadcasting Algorithms in the Postal Model for
//! Message-Passing Systems", SPAA 1992; R. Karp, A. Sahay, E. Santos, K. Schauser,
//! "Optimal Broadcast and Summation in the LogP Model", SPAA 1993: backward it is the
//! quickest sum.

use super::tree::Family;

/// Ranks that are informed after 0, 1, 2... sends, until there are `size`.
fn informed(reach: u32, size: u32) -> Vec<u32> {
    let reach = reach.max(1) as usize;
    let mut known = vec![1u32];
    while *known.last().unwrap_or(&size) < size {
        let before = known[known.len() - 1];
        let there = known.len().checked_sub(reach).map_or(0, |at| known[at]);
        known.push(before.saturating_add(there));
    }
    known
}

pub(super) fn family(reach: u32, size: u32, index: u32) -> Family {
    let known = informed(reach, size);
    let mut family = Family::default();
    let (mut first, mut below) = (0, size);
    while below > 1 {
        // The least t with N(t) >= below; N grows from the first arrival on.
        let t = known.partition_point(|n| *n < below);
        let keep = known[t - 1];
        if index >= first + keep {
            family.parent = Some(first);
            (first, below) = (first + keep, below - keep);
            continue;
        }
        if index == first {
            family.children.push(first + keep);
        }
        below = keep;
    }
    family
}

/// Messages behind each other until all of `size` ranks have it, where a sender is busy for
/// as long as a message takes.
pub(crate) fn hops(reach: u32, size: u32) -> u32 {
    let known = informed(reach, size);
    let mut longest = 0;
    let mut open = vec![(size, 0)];
    while let Some((mut below, mut at)) = open.pop() {
        while below > 1 {
            let t = known.partition_point(|n| *n < below);
            at += 1;
            open.push((below - known[t - 1], at));
            below = known[t - 1];
        }
        longest = longest.max(at);
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::Tree;

    #[test]
    fn between_the_binomial_tree_and_the_linear_one() {
        for size in 1..70 {
            for index in 0..size {
                let of = |tree: Tree| tree.family(size, index);
                assert_eq!(family(1, size, index), of(Tree::Binomial));
                let mut flat = family(size, size, index);
                flat.children.sort_unstable();
                assert_eq!(flat, of(Tree::Linear), "{index} of {size}");
            }
            assert_eq!(hops(1, size), size.next_power_of_two().ilog2());
            assert_eq!(hops(size, size), size - 1);
        }
    }

    /// Nobody can be reached sooner: N(t) are informed at t.
    #[test]
    fn all_are_informed_as_early_as_can_be() {
        for reach in 1..9 {
            for size in 1..200 {
                let mut at = vec![0; size as usize];
                for index in 0..size {
                    for (sent, child) in family(reach, size, index).children.iter().enumerate() {
                        at[*child as usize] = at[index as usize] + sent as u32 + reach;
                    }
                }
                let known = informed(reach, size);
                let last = known.len() as u32 - 1;
                assert_eq!(at.iter().max(), Some(&last), "{size} ranks, reach {reach}");
            }
        }
    }
}
