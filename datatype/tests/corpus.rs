//! The layouts of real programs against the naive typemap and against the facts
//! that the corpus promises.

mod support;

use osier_datatype::{Layout, Type};
use osier_datatype_corpus::{Entry, entries};
use support::agrees;

/// Payload up to which the oracle, which takes some 50 bytes for each, is asked.
const ORACLE_BYTES: usize = 400_000;
/// Memory of one buffer.
const SPAN_BYTES: usize = 20 << 20;

fn all() -> Vec<(Entry, Type)> {
    entries()
        .unwrap()
        .into_iter()
        .map(|entry| {
            let ty = entry.datatype().unwrap();
            (entry, ty)
        })
        .collect()
}

#[test]
fn facts_are_as_promised() {
    let all = all();
    assert_eq!(all.len(), 90);
    for (entry, ty) in &all {
        let (name, facts) = (&entry.name, &entry.facts);
        let layout = ty.commit().unwrap();
        assert_eq!(
            layout.packed_bytes(entry.count),
            Some(facts.packed_bytes),
            "{name}"
        );
        assert_eq!(layout.extent(), facts.extent_bytes, "{name}");
        assert_eq!(layout.lb(), facts.lb_bytes, "{name}");
        let (low, high) = layout.span(entry.count);
        assert_eq!(low, facts.true_lb_bytes, "{name}");
        assert_eq!((high - low) as usize, facts.span_bytes, "{name}");
        let (mut blocks, mut shortest, mut longest) = (0, usize::MAX, 0);
        for (_, length) in layout.blocks(entry.count) {
            blocks += 1;
            shortest = shortest.min(length);
            longest = longest.max(length);
        }
        assert_eq!(blocks, facts.blocks, "{name}");
        assert_eq!((shortest, longest), facts.block_bytes, "{name}");
        if entry.count == 1 {
            assert_eq!(layout.block_count(), facts.blocks, "{name}");
        }
        assert_eq!(layout.self_overlaps(entry.count), facts.overlaps, "{name}");
        let dense = facts.dense().unwrap();
        let whole = Type::contiguous(entry.count, ty).unwrap();
        assert_eq!(whole.signature(), dense.signature(), "{name}");
    }
}

#[test]
fn equal_layouts_meet_in_one_form() {
    let all = all();
    let mut pairs = 0;
    for (entry, ty) in &all {
        if let Some(other) = &entry.facts.same_layout_as {
            let (_, other) = all.iter().find(|(e, _)| e.name == *other).unwrap();
            let (a, b) = (ty.commit().unwrap(), other.commit().unwrap());
            assert!(a.same_form(&b), "{}: {a:?}\n{b:?}", entry.name);
            assert_eq!(ty.signature(), other.signature(), "{}", entry.name);
            pairs += 1;
        }
    }
    assert_eq!(pairs, 4);
}

#[test]
fn layouts_agree_with_the_typemap() {
    let mut asked = 0;
    for (entry, ty) in all() {
        let facts = &entry.facts;
        if facts.packed_bytes > ORACLE_BYTES || facts.span_bytes > SPAN_BYTES {
            continue;
        }
        let bytes = facts.packed_bytes;
        agrees(&ty, entry.count, &[bytes / 3, bytes / 2 + 1, bytes - 1]);
        asked += 1;
    }
    assert!(asked >= 30, "only {asked} layouts are small enough");
}

/// Larger layouts: the blocks, which the facts have confirmed, one by one.
#[test]
fn large_layouts_agree_with_their_blocks() {
    for (entry, ty) in all() {
        let (facts, count) = (&entry.facts, entry.count);
        if facts.packed_bytes <= ORACLE_BYTES || facts.span_bytes > SPAN_BYTES {
            continue;
        }
        let layout = ty.commit().unwrap();
        let (memory, origin) = pattern(&layout, count);
        let packed = packed(&layout, count, &memory, origin);
        let mut at = 0;
        for (offset, length) in layout.blocks(count) {
            let from = origin.wrapping_add_signed(offset);
            assert!(
                packed[at..][..length] == memory[from..][..length],
                "{}",
                entry.name
            );
            at += length;
        }
        if facts.overlaps {
            continue;
        }
        let mut back = vec![0xA5; memory.len()];
        let middle = packed.len() / 2 + 3;
        for part in [middle..packed.len(), 0..middle] {
            layout
                .unpack(&mut back, origin, count, part.clone(), &packed[part])
                .unwrap();
        }
        let mut wanted = vec![0xA5; memory.len()];
        for (offset, length) in layout.blocks(count) {
            let from = origin.wrapping_add_signed(offset);
            wanted[from..][..length].copy_from_slice(&memory[from..][..length]);
        }
        assert!(back == wanted, "unpack of {}", entry.name);
    }
}

/// Long blocks that go past the caches: rows, a list, one run, at odd places.
#[test]
fn very_large_layouts() {
    use osier_datatype::Basic;
    let byte = Type::basic(Basic::Byte);
    let n = 5_700_001;
    for ty in [
        Type::hvector(3, n, n as isize + 77, &byte),
        Type::hindexed_block(n, &[12_000_003, 0, 5_900_000], &byte),
        Type::contiguous(3 * n, &byte),
    ] {
        let layout = ty.unwrap().commit().unwrap();
        let (memory, origin) = pattern(&layout, 1);
        let bytes = packed(&layout, 1, &memory, origin);
        let mut at = 0;
        for (offset, length) in layout.blocks(1) {
            assert!(bytes[at..][..length] == memory[offset as usize..][..length]);
            at += length;
        }
        let mut back = vec![0xA5; memory.len()];
        layout.unpack(&mut back, origin, 1, 0..at, &bytes).unwrap();
        let mut wanted = vec![0xA5; memory.len()];
        for (offset, length) in layout.blocks(1) {
            let place = offset as usize..offset as usize + length;
            wanted[place.clone()].copy_from_slice(&memory[place]);
        }
        assert!(back == wanted);
    }
}

/// Within a pair, and with the dense type of the signature: pack with one,
/// unpack with another, pack again.
#[test]
fn payload_travels_between_the_layouts_of_a_pair() {
    let all = all();
    for (from, from_ty) in &all {
        if from.facts.packed_bytes > 2 << 20 || from.facts.span_bytes > SPAN_BYTES {
            continue;
        }
        let layout = from_ty.commit().unwrap();
        let (memory, origin) = pattern(&layout, from.count);
        let payload = packed(&layout, from.count, &memory, origin);
        let dense = (1, from.facts.dense().unwrap());
        let others = all
            .iter()
            .filter(|(to, _)| {
                to.facts.pair.is_some()
                    && to.facts.pair == from.facts.pair
                    && to.facts.span_bytes <= SPAN_BYTES
            })
            .map(|(to, ty)| (to.count, ty.clone()));
        for (count, ty) in std::iter::once(dense).chain(others) {
            let to = ty.commit().unwrap();
            let (mut place, origin) = pattern(&to, count);
            place.fill(0);
            let n = payload.len();
            for part in [0..n / 3, n / 3..n] {
                to.unpack(&mut place, origin, count, part.clone(), &payload[part])
                    .unwrap();
            }
            assert!(
                packed(&to, count, &place, origin) == payload,
                "{}",
                from.name
            );
        }
    }
}

/// Memory for the instances, filled, and the place of their origin.
fn pattern(layout: &Layout, count: usize) -> (Vec<u8>, usize) {
    let (low, high) = layout.span(count);
    let origin = (-low).max(0) as usize;
    let bytes = origin + high.max(0) as usize;
    let memory = (0..bytes)
        .map(|i| (i as u32).wrapping_mul(0x9E37_79B1).to_le_bytes()[3])
        .collect();
    (memory, origin)
}

fn packed(layout: &Layout, count: usize, memory: &[u8], origin: usize) -> Vec<u8> {
    let bytes = layout.packed_bytes(count).unwrap();
    let mut packed = vec![0; bytes];
    layout
        .pack(memory, origin, count, 0..bytes, &mut packed)
        .unwrap();
    packed
}
