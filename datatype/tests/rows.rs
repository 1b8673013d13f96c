//! Rows of short blocks, which are copied by vectors: widths and strides to and fro beside a
//! loop over bytes, at lengths on both sides of every choice.

use osier_datatype::{Basic, Type};

#[test]
fn near_blocks() {
    for width in (1..=24).chain([28, 32, 40, 48]) {
        for distance in width..=70 {
            for count in [1, 5, 31, 67, 131, 191, 192, 197, 517] {
                check(width, distance as isize, count);
                check(width, -(distance as isize), count);
            }
        }
    }
}

/// Rows whose lines are asked for ahead of time.
#[test]
fn many_far_blocks() {
    for (width, distance, count) in [(1, 1024, 32_768), (8, 1032, 32_771), (24, 1024, 32_769)] {
        check(width, distance, count);
        check(width, -distance, count);
    }
}

/// Long rows in nests, and forms of rows at listed places.
#[test]
fn rows_in_nests() {
    let block = Type::contiguous(3, &Type::basic(Basic::U8)).unwrap();
    for (count, stride) in [(600, 5), (600, -5), (70, -3), (20, 11)] {
        let row = Type::hvector(count, 1, stride, &block).unwrap();
        let nest = Type::hvector(4, 1, 4001, &row).unwrap();
        let listed = Type::hindexed_block(1, &[9000, 0, 21_000, 4500], &row).unwrap();
        for ty in [nest, listed] {
            let layout = ty.commit().unwrap();
            let (low, high) = layout.span(1);
            let places: Vec<usize> = ty
                .typemap()
                .bytes(1)
                .iter()
                .map(|&at| (at - low) as usize)
                .collect();
            let origin = low.unsigned_abs();
            check_places(
                &layout,
                origin,
                (high - low) as usize,
                &places,
                &format!("{ty:?}"),
            );
        }
    }
}

fn check(width: usize, stride: isize, count: usize) {
    let block = Type::contiguous(width, &Type::basic(Basic::U8)).unwrap();
    let layout = Type::hvector(count, 1, stride, &block)
        .and_then(|ty| ty.commit())
        .unwrap();
    // Nothing before the first and behind the last block.
    let span = (count - 1) * stride.unsigned_abs() + width;
    let origin = match stride < 0 {
        true => span - width,
        false => 0,
    };
    let places: Vec<usize> = (0..count * width)
        .map(|i| origin.wrapping_add_signed((i / width) as isize * stride) + i % width)
        .collect();
    let what = format!("{count} blocks of {width} at {stride}");
    check_places(&layout, origin, span, &places, &what);
}

/// Packs and unpacks what lies at these places.
fn check_places(
    layout: &osier_datatype::Layout,
    origin: usize,
    span: usize,
    places: &[usize],
    what: &str,
) {
    let memory: Vec<u8> = (0..span).map(|i| (i * 7 + i / 251) as u8).collect();
    let wanted: Vec<u8> = places.iter().map(|&at| memory[at]).collect();
    for range in [0..wanted.len(), wanted.len() / 3..wanted.len() - 1] {
        let mut packed = vec![0; range.len()];
        layout
            .pack(&memory, origin, 1, range.clone(), &mut packed)
            .unwrap();
        assert!(packed == wanted[range.clone()], "pack {range:?} of {what}");

        let mut back = vec![0xAA; span];
        layout
            .unpack(&mut back, origin, 1, range.clone(), &packed)
            .unwrap();
        let mut expected = vec![0xAA; span];
        for &at in &places[range.clone()] {
            expected[at] = memory[at];
        }
        assert!(back == expected, "unpack {range:?} of {what}");
    }
}
