//! Layouts as bytes: what comes back is the same layout, and strangers' bytes are
//! refused or harmless.

use osier_datatype::{Basic, Layout, Type};
use osier_datatype_corpus::random::{Random, grid, tree};

#[test]
fn layouts_survive_the_wire() {
    for seed in 0..4000u64 {
        let mut random = Random::new(seed);
        let ty = match random.below(4) {
            0 => grid(&mut random, 6000),
            _ => tree(&mut random, 1500),
        };
        let layout = ty.commit().unwrap();
        let wire = layout.to_wire(usize::MAX).unwrap();
        let back = Layout::from_wire(&wire).unwrap_or_else(|| panic!("seed {seed}: {ty:?}"));
        assert_eq!(back.extent(), layout.extent(), "seed {seed}");
        assert!(back.same_bytes(&layout), "seed {seed}: {ty:?}");
        assert_eq!(back.span(3), layout.span(3), "seed {seed}: {ty:?}");
        assert!(layout.to_wire(wire.len()).is_some());
        assert!(layout.to_wire(wire.len() - 1).is_none());
    }
}

#[test]
fn strangers_bytes_are_refused_or_harmless() {
    let byte = Type::basic(Basic::U8);
    let rows = Type::vector(5, 3, 7, &byte).unwrap();
    let list = Type::indexed(&[(3, 0), (9, 11), (2, 40)], &rows).unwrap();
    let mut found = 0;
    for ty in [byte, rows, list] {
        let wire = ty.commit().unwrap().to_wire(usize::MAX).unwrap();
        for cut in 0..wire.len() {
            assert!(Layout::from_wire(&wire[..cut]).is_none());
        }
        let mut random = Random::new(7);
        for _ in 0..20_000 {
            let mut bytes = wire.clone();
            for _ in 0..1 + random.below(3) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.next() as u8;
            }
            if let Some(layout) = Layout::from_wire(&bytes) {
                // Whoever uses it checks its span; sizes and bounds are sound.
                let (low, high) = layout.span(1);
                assert!(low <= high);
                found += 1;
            }
        }
    }
    assert!(found > 0);
    // Forms within forms without an end.
    let mut deep = vec![1u8];
    deep.extend(0u64.to_le_bytes());
    for _ in 0..100_000 {
        deep.extend([0; 9]);
        deep.push(3);
        deep.extend(1u32.to_le_bytes());
    }
    assert!(Layout::from_wire(&deep).is_none());
}
