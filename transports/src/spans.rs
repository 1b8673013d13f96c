//! Interval set of closed channel ids: ids are handed out one after the other, so a few words
//! remain however many there were.

use std::collections::BTreeMap;

/// A set of numbers.
#[derive(Default)]
pub(crate) struct Spans {
    /// First and last of each span; no two touch.
    spans: BTreeMap<u64, u64>,
}

impl Spans {
    pub fn contains(&self, number: u64) -> bool {
        let below = self.spans.range(..=number).next_back();
        below.is_some_and(|(_, last)| number <= *last)
    }

    pub fn insert(&mut self, number: u64) {
        if self.contains(number) {
            return;
        }
        let (mut first, mut last) = (number, number);
        if let Some(above) = number.checked_add(1)
            && let Some(end) = self.spans.remove(&above)
        {
            last = end;
        }
        if let Some(below) = number.checked_sub(1)
            && let Some((start, end)) = self.spans.range(..=below).next_back()
            && *end == below
        {
            first = *start;
        }
        self.spans.insert(first, last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        #[test]
        fn it_is_a_set(numbers in proptest::collection::vec(0u64..60, 0..60)) {
            let (mut spans, mut set) = (Spans::default(), HashSet::new());
            for number in numbers {
                spans.insert(number);
                set.insert(number);
                for number in 0..61 {
                    prop_assert_eq!(spans.contains(number), set.contains(&number));
                }
                let ends = spans.spans.iter().zip(spans.spans.iter().skip(1));
                prop_assert!(ends.into_iter().all(|((_, last), (next, _))| last + 1 < *next));
            }
        }
    }

    #[test]
    fn neighbors_are_one_span() {
        let mut spans = Spans::default();
        for number in (0..1000).chain((2000..3000).rev()).chain([u64::MAX, 0]) {
            spans.insert(number);
        }
        assert_eq!(spans.spans.len(), 3);
        (1000..2000).for_each(|number| spans.insert(number));
        assert_eq!(spans.spans.len(), 2);
        assert!(spans.contains(u64::MAX) && !spans.contains(u64::MAX - 1));
    }
}
