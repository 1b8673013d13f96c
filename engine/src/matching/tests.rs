//! Rules one by one, then random traffic against the naive twins.

mod timing;

use proptest::prelude::*;

use super::naive::{NaivePosted, NaiveUnexpected};
use super::slab::{KEEP, PATIENCE};
use super::*;

const SOURCES: [Option<u32>; 2] = [None, Some(3)];
const TAGS: [TagPattern; 2] = [TagPattern::Any, TagPattern::Exact(7)];

fn patterns() -> impl Iterator<Item = Pattern> {
    SOURCES
        .into_iter()
        .flat_map(|source| TAGS.map(|tag| Pattern { source, tag }))
}

fn env(source: u32, tag: u32) -> Envelope {
    Envelope { source, tag }
}

fn anything() -> Pattern {
    Pattern {
        source: None,
        tag: TagPattern::Any,
    }
}

#[test]
fn each_pattern_accepts_what_it_says() {
    for pattern in patterns() {
        for (source, tag) in [(3, 7), (3, 8), (4, 7), (4, 8)] {
            let expected = (pattern.source.is_none() || source == 3)
                && (pattern.tag == TagPattern::Any || tag == 7);
            let mut posted = PostedQueue::new();
            posted.post(pattern, 1);
            assert_eq!(posted.take(env(source, tag)).is_some(), expected);
            let mut unexpected = UnexpectedQueue::new();
            unexpected.push(env(source, tag), ());
            assert_eq!(unexpected.peek(pattern).is_some(), expected);
            assert_eq!(unexpected.take(pattern).is_some(), expected);
            assert_eq!(unexpected.is_empty(), expected);
        }
    }
}

#[test]
fn the_earliest_posted_receive_wins_among_all_kinds() {
    // Every order of two kinds, and a rotation of all four.
    let kinds: Vec<Pattern> = patterns().collect();
    for first in 0..4 {
        for second in 0..4 {
            let mut posted = PostedQueue::new();
            posted.post(kinds[first], 1);
            posted.post(kinds[second], 2);
            assert_eq!(posted.take(env(3, 7)), Some(1));
            assert_eq!(posted.take(env(3, 7)), Some(2));
            assert_eq!(posted.take(env(3, 7)), None);
        }
        let mut posted = PostedQueue::new();
        for i in 0..8 {
            posted.post(kinds[(first + i) % 4], i as u32);
        }
        assert!((0..8).all(|i| posted.take(env(3, 7)) == Some(i)));
    }
}

#[test]
fn the_earliest_message_wins_for_all_kinds() {
    for pattern in patterns() {
        let mut unexpected = UnexpectedQueue::new();
        for (i, tag) in [7, 8, 7, 9, 7].into_iter().enumerate() {
            unexpected.push(env(3, tag), i);
        }
        let mut got = Vec::new();
        while let Some((_, i)) = unexpected.take(pattern) {
            got.push(i);
        }
        let expected: &[usize] = match pattern.tag {
            TagPattern::Any => &[0, 1, 2, 3, 4],
            TagPattern::Exact(_) => &[0, 2, 4],
        };
        assert_eq!(got, expected);
    }
}

#[test]
fn receives_of_one_source_and_tag_are_alone_until_another_is_posted() {
    let others = [
        Pattern::exact(3, 8),
        Pattern::exact(4, 7),
        anything(),
        Pattern {
            source: None,
            tag: TagPattern::Exact(7),
        },
    ];
    for other in others {
        let mut posted = PostedQueue::new();
        assert_eq!(posted.alone(), None);
        let keys: Vec<_> = (0..4)
            .map(|i| posted.post(Pattern::exact(3, 7), i))
            .collect();
        assert_eq!(posted.alone(), Some((env(3, 7), 0)));
        assert_eq!(posted.take(env(3, 8)), None);
        assert_eq!(posted.cancel(keys[1]), Some(1));
        posted.take_alone();
        assert_eq!(posted.alone(), Some((env(3, 7), 2)));
        assert_eq!(posted.cancel(keys[0]), None);
        // Another one moves all to the index, and they keep their order.
        posted.post(other, 9);
        assert_eq!(posted.alone(), None);
        posted.post(Pattern::exact(3, 7), 4);
        assert_eq!(posted.alone(), None);
        assert_eq!(posted.cancel(keys[3]), Some(3));
        assert_eq!(posted.take(env(3, 7)), Some(2));
        let key = env(
            other.source.unwrap_or(3),
            if other.tag == TagPattern::Exact(8) {
                8
            } else {
                7
            },
        );
        assert_eq!(posted.take(key), Some(9));
        assert_eq!(posted.take(env(3, 7)), Some(4));
        // It has run empty: the list begins again.
        posted.post(Pattern::exact(5, 1), 6);
        assert_eq!(posted.alone(), Some((env(5, 1), 6)));
        assert_eq!(posted.take_all_from(5), [6]);
        assert!(posted.is_empty() && posted.alone().is_none());
    }
}

#[test]
fn any_tag_does_not_see_internal_traffic() {
    let internal = env(3, INTERNAL_TAG | 7);
    for pattern in patterns() {
        let mut posted = PostedQueue::new();
        posted.post(pattern, 1);
        assert_eq!(posted.take(internal), None);
        let mut unexpected = UnexpectedQueue::new();
        unexpected.push(internal, ());
        assert_eq!(unexpected.take(pattern), None);
    }
    for source in SOURCES {
        let named = Pattern {
            source,
            tag: TagPattern::Exact(internal.tag),
        };
        let mut posted = PostedQueue::new();
        posted.post(anything(), 1);
        posted.post(named, 2);
        assert_eq!(posted.take(internal), Some(2));
        let mut unexpected = UnexpectedQueue::new();
        unexpected.push(env(3, 7), 1);
        unexpected.push(internal, 2);
        assert_eq!(unexpected.take(named), Some((internal, 2)));
        assert_eq!(unexpected.take(anything()), Some((env(3, 7), 1)));
    }
}

#[test]
fn a_key_outlives_its_receive_without_harm() {
    let mut posted = PostedQueue::new();
    let first = posted.post(Pattern::exact(1, 1), 10);
    assert_eq!(posted.cancel(first), Some(10));
    assert_eq!(posted.cancel(first), None);
    let second = posted.post(Pattern::exact(1, 1), 11);
    assert_eq!(posted.cancel(first), None);
    assert_eq!(posted.take(env(1, 1)), Some(11));
    assert_eq!(posted.cancel(second), None);
}

#[test]
fn a_key_outlives_its_message_without_harm() {
    let mut unexpected = UnexpectedQueue::new();
    let first = unexpected.push(env(1, 1), 10);
    assert_eq!(unexpected.remove(first), Some((env(1, 1), 10)));
    let second = unexpected.push(env(1, 1), 12);
    assert_eq!(unexpected.remove(first), None);
    assert_eq!(unexpected.peek(anything()), Some((second, env(1, 1), &12)));
}

#[test]
fn a_dead_peer_takes_its_receives_along() {
    let mut posted = PostedQueue::new();
    let from = |source, tag| Pattern { source, tag };
    posted.post(from(Some(2), TagPattern::Any), 0);
    posted.post(from(None, TagPattern::Any), 1);
    posted.post(from(Some(2), TagPattern::Exact(5)), 2);
    posted.post(from(None, TagPattern::Exact(2)), 3);
    posted.post(from(Some(5), TagPattern::Exact(2)), 4);
    assert_eq!(posted.take_all_from(2), [0, 2]);
    assert_eq!(posted.iter().collect::<Vec<_>>(), [1, 3, 4]);
    assert_eq!(posted.take(env(2, 2)), Some(1));
    assert_eq!(posted.take(env(2, 2)), Some(3));
    assert_eq!(posted.take(env(5, 2)), Some(4));
    assert!(posted.is_empty());
}

#[test]
fn messages_are_dropped_once() {
    let token = std::rc::Rc::new(());
    let mut unexpected = UnexpectedQueue::new();
    for tag in 0..100 {
        unexpected.push(env(0, tag), token.clone());
    }
    drop(unexpected.take(anything()));
    assert_eq!(std::rc::Rc::strong_count(&token), 100);
    drop(unexpected);
    assert_eq!(std::rc::Rc::strong_count(&token), 1);
}

#[test]
fn steady_traffic_allocates_nothing() {
    let mut posted = PostedQueue::new();
    let mut unexpected = UnexpectedQueue::new();
    let mut seen = None;
    for round in 0..100_u32 {
        for i in 0..5_000 {
            // New tags each round, so that no slot is tied to a key.
            posted.post(Pattern::exact(i % 7, round * 5_000 + i), i);
            unexpected.push(env(i % 7, round * 5_000 + i), i);
        }
        for i in 0..5_000 {
            let (source, tag) = (i % 7, round * 5_000 + i);
            assert_eq!(posted.take(env(source, tag)), Some(i));
            let message = unexpected.take(Pattern::exact(source, tag));
            assert_eq!(message, Some((env(source, tag), i)));
        }
        let now = (posted.capacity(), unexpected.capacity());
        assert_eq!(*seen.get_or_insert(now), now);
    }
}

#[test]
fn memory_of_a_burst_is_given_back() {
    let mut posted = PostedQueue::new();
    let mut unexpected = UnexpectedQueue::new();
    for (round, burst) in std::iter::once(100_000)
        .chain(std::iter::repeat_n(10, 2 * PATIENCE as usize))
        .enumerate()
    {
        for tag in 0..burst {
            posted.post(Pattern::exact(1, tag), 0);
            unexpected.push(env(1, tag), ());
        }
        assert!(round > 0 || posted.capacity().0 >= 100_000);
        for tag in 0..burst {
            posted.take(env(1, tag)).unwrap();
            unexpected.take(anything()).unwrap();
        }
    }
    for (nodes, buckets) in [posted.capacity(), unexpected.capacity()] {
        assert_eq!(nodes, KEEP);
        assert!(buckets <= 4 * KEEP);
    }
}

#[test]
fn an_empty_queue_owns_nothing() {
    assert_eq!(PostedQueue::new().capacity(), (0, 0));
    assert_eq!(UnexpectedQueue::<u64>::new().capacity(), (0, 0));
    assert_eq!(PostedQueue::new().take(env(0, 0)), None);
    assert!(UnexpectedQueue::<u64>::new().peek(anything()).is_none());
}

/// The hash spreads the usual patterns of ranks and tags.
#[test]
fn usual_tag_layouts_spread_over_the_buckets() {
    type Layout = fn(u32) -> (u32, u32);
    let layouts: [(&str, Layout); 14] = [
        ("tags", |i| (1, i)),
        ("tags by 3", |i| (1, 3 * i)),
        ("tags by 16", |i| (1, i << 4)),
        ("tags by 256", |i| (1, i << 8)),
        ("tags by 4096", |i| (1, i << 12)),
        ("tags by 10000", |i| (1, i * 10_000)),
        ("sources", |i| (i, 0)),
        ("sources by 16", |i| (i << 4, 0)),
        ("sources, big tag", |i| (i, 0x7FFF_0001)),
        ("32 x tags", |i| (i % 32, i / 32)),
        ("sources x 32", |i| (i / 32, i % 32)),
        ("square", |i| (i % 256, i / 256)),
        ("square by 256", |i| (i % 256, (i / 256) << 8)),
        ("tag is source", |i| (i, i)),
    ];
    for (name, layout) in layouts {
        for n in [1_000_u32, 50_000] {
            let mut posted = PostedQueue::new();
            for i in 0..n {
                let (source, tag) = layout(i);
                posted.post(Pattern::exact(source, tag), i);
            }
            let lengths = posted.chain_lengths();
            let looked_at: usize = lengths.iter().map(|l| l * (l + 1) / 2).sum();
            let mean = looked_at as f64 / f64::from(n);
            let longest = lengths.into_iter().max().unwrap_or(0);
            println!("{name:20} {n:6}: mean {mean:.2}, longest {longest}");
            assert!(mean < 2.0 && longest <= 12, "{name}, {n} receives");
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Post a receive, or take a message.
    Receive(Pattern),
    /// Push a message, or take a receive.
    Message(Envelope),
    Peek(Pattern),
    /// Cancel or remove the n-th key handed out, modulo their number.
    Withdraw(usize),
    /// Take the receives from this source.
    Dead(u32),
    /// Take all, one by one.
    Drain,
}

fn source() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0..4_u32, 1 => Just(u32::MAX), 1 => any::<u32>()]
}

fn tag() -> impl Strategy<Value = u32> {
    prop_oneof![
        8 => 0..4_u32,
        2 => (0..3_u32).prop_map(|tag| tag | INTERNAL_TAG),
        1 => any::<u32>()
    ]
}

fn pattern() -> impl Strategy<Value = Pattern> {
    let tag_pattern = prop_oneof![
        3 => tag().prop_map(TagPattern::Exact),
        1 => Just(TagPattern::Any)
    ];
    (proptest::option::weighted(0.75, source()), tag_pattern)
        .prop_map(|(source, tag)| Pattern { source, tag })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        40 => pattern().prop_map(Step::Receive),
        40 => (source(), tag()).prop_map(|(source, tag)| Step::Message(env(source, tag))),
        10 => pattern().prop_map(Step::Peek),
        12 => any::<usize>().prop_map(Step::Withdraw),
        2 => source().prop_map(Step::Dead),
        1 => Just(Step::Drain)
    ]
}

/// Cancels the receives of all keys handed out; those that wait are among them.
fn drain_posted(fast: &mut PostedQueue, slow: &mut NaivePosted, keys: &[(PostedKey, u64)]) {
    for &(key, twin) in keys {
        assert_eq!(fast.cancel(key), slow.cancel(twin));
    }
    assert!(fast.is_empty() && slow.items().is_empty());
}

/// Takes user messages as they arrived, then internal ones.
fn drain_unexpected(fast: &mut UnexpectedQueue<u32>, slow: &mut NaiveUnexpected) {
    while let Some(taken) = slow.take(anything()) {
        assert_eq!(fast.take(anything()), Some(taken));
    }
    for (envelope, message) in slow.messages() {
        let pattern = Pattern::exact(envelope.source, envelope.tag);
        assert_eq!(slow.take(pattern), Some((envelope, message)));
        assert_eq!(fast.take(pattern), Some((envelope, message)));
    }
    assert!(fast.is_empty() && slow.messages().is_empty());
}

fn check_posted(steps: &[Step]) {
    let (mut fast, mut slow) = (PostedQueue::new(), NaivePosted::default());
    let mut keys = Vec::new();
    for (i, step) in steps.iter().enumerate() {
        match *step {
            Step::Receive(pattern) => {
                let item = i as u32;
                keys.push((fast.post(pattern, item), slow.post(pattern, item)));
            }
            Step::Message(envelope) => assert_eq!(fast.take(envelope), slow.take(envelope)),
            Step::Peek(_) => assert_eq!(fast.iter().collect::<Vec<_>>(), slow.items()),
            Step::Withdraw(n) if !keys.is_empty() => {
                let (key, twin) = keys[n % keys.len()];
                assert_eq!(fast.cancel(key), slow.cancel(twin));
            }
            Step::Withdraw(_) => {}
            Step::Dead(source) => {
                assert_eq!(fast.take_all_from(source), slow.take_all_from(source));
            }
            Step::Drain => drain_posted(&mut fast, &mut slow, &keys),
        }
        assert_eq!(fast.len(), slow.items().len());
        assert_eq!(fast.is_empty(), slow.items().is_empty());
    }
    drain_posted(&mut fast, &mut slow, &keys);
}

fn check_unexpected(steps: &[Step]) {
    let (mut fast, mut slow) = (UnexpectedQueue::new(), NaiveUnexpected::default());
    let mut keys = Vec::new();
    for (i, step) in steps.iter().enumerate() {
        match *step {
            Step::Message(envelope) => {
                let message = i as u32;
                keys.push((fast.push(envelope, message), slow.push(envelope, message)));
            }
            Step::Receive(pattern) => assert_eq!(fast.take(pattern), slow.take(pattern)),
            Step::Peek(pattern) => {
                let twin = slow.peek(pattern);
                let found = (fast.peek(pattern)).map(|(key, env, &message)| (key, env, message));
                let message = found.map(|(_, env, message)| (env, message));
                assert_eq!(message, twin.map(|(_, env, message)| (env, message)));
                // The key is the one handed out with this message.
                if let (Some((key, ..)), Some((twin, ..))) = (found, twin) {
                    assert!(keys.contains(&(key, twin)));
                }
            }
            Step::Withdraw(n) if !keys.is_empty() => {
                let (key, twin) = keys[n % keys.len()];
                assert_eq!(fast.remove(key), slow.remove(twin));
                assert_eq!(fast.remove(key), None);
            }
            Step::Withdraw(_) | Step::Dead(_) => {}
            Step::Drain => drain_unexpected(&mut fast, &mut slow),
        }
        assert_eq!(fast.len(), slow.messages().len());
        assert_eq!(fast.is_empty(), slow.messages().is_empty());
    }
    drain_unexpected(&mut fast, &mut slow);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 8 } else { 200 }))]

    #[test]
    fn posted_equals_its_twin(steps in proptest::collection::vec(step(), 1..200)) {
        check_posted(&steps);
    }

    #[test]
    fn unexpected_equals_its_twin(steps in proptest::collection::vec(step(), 1..200)) {
        check_unexpected(&steps);
    }
}
