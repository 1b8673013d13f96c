//! external32 and packing with a position.

mod support;

use osier_datatype::{Basic, BasicKind, Layout, Type, TypeError};
use proptest::prelude::*;
use support::tree;

/// One element in external32, by arithmetic on its value.
fn naive(basic: Basic, native: &[u8]) -> Vec<u8> {
    let parts = if basic.kind() == BasicKind::Complex {
        2
    } else {
        1
    };
    let mut external = Vec::new();
    for number in native.chunks(native.len() / parts) {
        let mut bytes: Vec<u8> = match basic.representation() {
            Basic::LongDouble | Basic::LongDoubleComplex => wide_double(number),
            _ => number.iter().rev().copied().collect(),
        };
        let keep = basic.external32_size() / parts;
        external.extend(bytes.split_off(bytes.len() - keep));
    }
    external
}

/// The double in an x87 number, as big-endian binary128.
fn wide_double(x87: &[u8]) -> Vec<u8> {
    let mantissa = u64::from_le_bytes(x87[..8].try_into().unwrap());
    let head = u16::from_le_bytes(x87[8..10].try_into().unwrap());
    let fraction = (u128::from(mantissa) << 65) >> 16;
    (u128::from(head) << 112 | fraction).to_be_bytes().to_vec()
}

/// Memory in which every long double holds a finite number.
fn memory(ty: &Type, count: usize, origin: usize, bytes: usize) -> Vec<u8> {
    let mut memory: Vec<u8> = (0..bytes).map(|i| (i * 73 + i / 251 + 5) as u8).collect();
    for_each(ty, count, origin, |basic, at| {
        if matches!(
            basic.representation(),
            Basic::LongDouble | Basic::LongDoubleComplex
        ) {
            for number in (at..at + basic.size()).step_by(16) {
                memory[number + 7] |= 0x80;
                memory[number + 9] &= 0xbf;
                memory[number + 9] |= 0x01;
                memory[number + 10..number + 16].fill(0);
            }
        }
    });
    memory
}

fn for_each(ty: &Type, count: usize, origin: usize, mut each: impl FnMut(Basic, usize)) {
    for instance in 0..count as isize {
        for (basic, at) in ty.typemap().iter() {
            let at = origin as isize + instance * ty.extent() + at;
            each(basic, at as usize);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        max_global_rejects: 1 << 20,
        ..ProptestConfig::default()
    })]

    #[test]
    fn trees_travel_by_external32(ty in tree(), count in 0usize..4, position in 0usize..9) {
        let layout = ty.commit().unwrap();
        prop_assume!(!layout.self_overlaps(count));
        let (low, high) = layout.span(count);
        let origin = (-low.min(0)) as usize;
        let memory = memory(&ty, count, origin, origin + high.max(0) as usize);
        let mut expected = vec![0x77; position];
        for_each(&ty, count, origin, |basic, at| {
            expected.extend(naive(basic, &memory[at..at + basic.size()]));
        });
        let bytes = layout.external32_size(count).unwrap();
        prop_assert_eq!(expected.len(), position + bytes);

        let mut external = vec![0x77; position + bytes];
        let mut at = position;
        layout.pack_external32(&memory, origin, count, &mut external, &mut at).unwrap();
        prop_assert_eq!(at, external.len());
        prop_assert!(external == expected, "pack {:?} x {}", ty, count);

        // What comes back, packed again, is the same; gaps stay.
        let mut back = vec![0xa5; memory.len()];
        let mut touched = vec![false; memory.len()];
        for_each(&ty, count, origin, |basic, at| touched[at..at + basic.size()].fill(true));
        let mut at = position;
        layout.unpack_external32(&external, &mut at, &mut back, origin, count).unwrap();
        prop_assert_eq!(at, external.len());
        prop_assert!(back.iter().zip(&touched).all(|(&b, &touched)| touched || b == 0xa5));
        let mut again = external.clone();
        again[position..].fill(0);
        let mut at = position;
        layout.pack_external32(&back, origin, count, &mut again, &mut at).unwrap();
        prop_assert!(again == external, "pack again {:?} x {}", ty, count);
        for_each(&ty, count, origin, |basic, at| {
            if basic.external32_size() == basic.size() {
                let range = at..at + basic.size();
                assert_eq!(back[range.clone()], memory[range], "{basic}");
            }
        });
    }

    #[test]
    fn positions_move_through_a_buffer(types in prop::collection::vec(tree(), 0..5)) {
        let layouts: Vec<Layout> = types.iter().map(|ty| ty.commit().unwrap()).collect();
        prop_assume!(layouts.iter().all(|layout| !layout.self_overlaps(1)));
        let sizes: Vec<usize> = layouts.iter().map(|l| l.pack_size(1).unwrap()).collect();
        let mut packed = vec![0; sizes.iter().sum()];
        let mut position = 0;
        let mut sources = Vec::new();
        for layout in &layouts {
            let (low, high) = layout.span(1);
            let origin = (-low.min(0)) as usize;
            let bytes = origin + high.max(0) as usize;
            let memory: Vec<u8> = (0..bytes).map(|i| (i * 31 + sources.len()) as u8).collect();
            layout.pack_at(&memory, origin, 1, &mut packed, &mut position).unwrap();
            sources.push((memory, origin));
        }
        prop_assert_eq!(position, packed.len());
        let mut position = 0;
        for ((layout, (memory, origin)), size) in layouts.iter().zip(&sources).zip(&sizes) {
            let mut back = vec![0; memory.len()];
            layout.unpack_at(&packed, &mut position, &mut back, *origin, 1).unwrap();
            let (mut a, mut b) = (vec![0; *size], vec![0; *size]);
            layout.pack(memory, *origin, 1, 0..*size, &mut a).unwrap();
            layout.pack(&back, *origin, 1, 0..*size, &mut b).unwrap();
            prop_assert_eq!(a, b);
        }
        prop_assert_eq!(position, packed.len());
    }
}

/// One vector of bytes per kind of number, written down by hand.
#[test]
fn known_bytes() {
    fn check(basic: Basic, native: &[u8], external: &[u8]) {
        let layout = Type::basic(basic).commit().unwrap();
        let count = native.len() / basic.size();
        let mut packed = vec![0xee; external.len()];
        let mut position = 0;
        layout
            .pack_external32(native, 0, count, &mut packed, &mut position)
            .unwrap();
        assert_eq!(packed, external, "{basic}");
        let mut back = vec![0xee; native.len()];
        let mut position = 0;
        layout
            .unpack_external32(external, &mut position, &mut back, 0, count)
            .unwrap();
        assert_eq!(back, native, "{basic}");
    }
    check(Basic::Byte, &[1, 2, 3], &[1, 2, 3]);
    check(Basic::Char, b"Osier", b"Osier");
    check(Basic::Bool, &[1, 0], &[1, 0]);
    check(Basic::Wchar, &0x20ac_u32.to_ne_bytes(), &[0x20, 0xac]);
    check(Basic::Short, &(-2i16).to_ne_bytes(), &[0xff, 0xfe]);
    check(Basic::Int, &0x0102_0304_i32.to_ne_bytes(), &[1, 2, 3, 4]);
    check(Basic::Logical, &1i32.to_ne_bytes(), &[0, 0, 0, 1]);
    check(
        Basic::Logical8,
        &1i64.to_ne_bytes(),
        &[0, 0, 0, 0, 0, 0, 0, 1],
    );
    check(
        Basic::Long,
        &(-3i64).to_ne_bytes(),
        &[0xff, 0xff, 0xff, 0xfd],
    );
    check(
        Basic::UnsignedLong,
        &0xffff_fffd_u64.to_ne_bytes(),
        &[0xff, 0xff, 0xff, 0xfd],
    );
    check(
        Basic::Aint,
        &(-3i64).to_ne_bytes(),
        &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfd],
    );
    check(Basic::F16, &0x3c00_u16.to_ne_bytes(), &[0x3c, 0]);
    check(Basic::Real, &1.5f32.to_ne_bytes(), &[0x3f, 0xc0, 0, 0]);
    check(
        Basic::F64,
        &(-2.0f64).to_ne_bytes(),
        &[0xc0, 0, 0, 0, 0, 0, 0, 0],
    );
    check(
        Basic::Complex,
        &[1.0f32.to_ne_bytes(), (-1.0f32).to_ne_bytes()].concat(),
        &[0x3f, 0x80, 0, 0, 0xbf, 0x80, 0, 0],
    );
    check(
        Basic::Real16,
        &(0x4000_921f_b544_42d1_8469_898c_c517_01b8_u128).to_ne_bytes(),
        &(0x4000_921f_b544_42d1_8469_898c_c517_01b8_u128).to_be_bytes(),
    );
}

/// pi as the x87 has it, widened without loss.
#[cfg(target_arch = "x86_64")]
#[test]
fn long_double_is_binary128() {
    let pi = 0x4000_c90f_daa2_2168_c235_u128;
    let layout = Type::basic(Basic::LongDoubleComplex).commit().unwrap();
    let native = [pi.to_le_bytes(), (1u128 << 79 | pi).to_le_bytes()].concat();
    let mut external = [0; 32];
    layout
        .pack_external32(&native, 0, 1, &mut external, &mut 0)
        .unwrap();
    let wide = 0x4000_921f_b544_42d1_846a_0000_0000_0000_u128;
    assert_eq!(external[..16], wide.to_be_bytes());
    assert_eq!(external[16..], (1 << 127 | wide).to_be_bytes());
    let mut back = [0xee; 32];
    layout
        .unpack_external32(&external, &mut 0, &mut back, 0, 1)
        .unwrap();
    assert_eq!(back[..], native[..]);
}

#[test]
fn short_buffers_name_both_sizes() {
    let layout = Layout::of::<f64>();
    let mut packed = [0; 20];
    let mut position = 8;
    let error = layout
        .pack_at(&[1.0, 2.0], 0, 2, &mut packed, &mut position)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot pack 2 instances: 16 bytes from position 8 on, but the packed buffer holds 20 \
         bytes (hint: ask pack_size or external32_size)"
    );
    assert_eq!(position, 8);
    let mut back = [0.0; 2];
    let error = layout
        .unpack_external32(&packed, &mut position, &mut back, 0, 2)
        .unwrap_err();
    assert!(matches!(
        error,
        TypeError::Room {
            needed: 16,
            position: 8,
            bytes: 20,
            ..
        }
    ));
    // A position outside of the buffer, and memory that is too small.
    assert!(layout.pack_at(&[1.0], 0, 0, &mut packed, &mut 20).is_ok());
    assert!(layout.pack_at(&[1.0], 0, 0, &mut packed, &mut 21).is_err());
    assert!(layout.pack_at(&[1.0], 1, 1, &mut packed, &mut 0).is_err());
    assert!(
        layout
            .pack_at(&[1.0], usize::MAX, 1, &mut packed, &mut 0)
            .is_err()
    );
    assert!(
        layout
            .unpack_at(&packed, &mut 0, &mut back, 0, usize::MAX)
            .is_err()
    );
    assert!(layout.external32_size(usize::MAX).is_err());
}

#[test]
fn overlaps_are_sent_and_not_received() {
    let twice = Type::hvector(3, 2, 8, &Type::basic(Basic::F64)).unwrap();
    let layout = twice.commit().unwrap();
    let numbers = [1.0, 2.0, 3.0, 4.0];
    let mut packed = [0; 48];
    layout.pack_at(&numbers, 0, 1, &mut packed, &mut 0).unwrap();
    let mut flat = [0.0; 6];
    Layout::of::<f64>()
        .unpack_at(&packed, &mut 0, &mut flat, 0, 6)
        .unwrap();
    assert_eq!(flat, [1.0, 2.0, 2.0, 3.0, 3.0, 4.0]);
    let mut into = [0.0; 4];
    for result in [
        layout.unpack_at(&packed, &mut 0, &mut into, 0, 1),
        layout.unpack_external32(&packed, &mut 0, &mut into, 0, 1),
    ] {
        assert_eq!(result, Err(TypeError::Overlap { count: 1 }));
    }
    // Instances that overlap only each other.
    let backward = Type::resized(
        0,
        8,
        &Type::contiguous(2, &Type::basic(Basic::F64)).unwrap(),
    );
    let layout = backward.unwrap().commit().unwrap();
    assert!(layout.check_receive(1).is_ok());
    assert!(layout.check_receive(2).is_err());
}
