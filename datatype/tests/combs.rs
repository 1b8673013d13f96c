//! Short blocks at short distances, which are copied line by line: every pair of
//! width and stride beside a loop over bytes.

use osier_datatype::{Basic, Type};

#[test]
fn every_width_and_stride() {
    for width in 1..=28usize {
        for stride in width + 1..=52 {
            for count in [63, 64, 65, 131] {
                check(width, stride, count);
            }
        }
    }
}

fn check(width: usize, stride: usize, count: usize) {
    let block = Type::contiguous(width, &Type::basic(Basic::U8)).unwrap();
    let layout = Type::hvector(count, 1, stride as isize, &block)
        .and_then(|ty| ty.commit())
        .unwrap();
    let what = format!("{count} blocks of {width} at {stride}");
    // Nothing behind the last block, and an origin on no boundary.
    let origin = 3;
    let span = (count - 1) * stride + width;
    let memory: Vec<u8> = (0..origin + span)
        .map(|i| (i * 7 + i / 251) as u8)
        .collect();
    let mut wanted = Vec::new();
    for i in 0..count {
        wanted.extend_from_slice(&memory[origin + i * stride..][..width]);
    }
    for range in [0..wanted.len(), 5..wanted.len() - 1] {
        let mut packed = vec![0; range.len()];
        layout
            .pack(&memory, origin, 1, range.clone(), &mut packed)
            .unwrap();
        assert!(packed == wanted[range.clone()], "pack {range:?} of {what}");

        let mut back = vec![0xAA; memory.len()];
        layout
            .unpack(&mut back, origin, 1, range.clone(), &packed)
            .unwrap();
        for (at, &byte) in back.iter().enumerate() {
            let within = at.checked_sub(origin);
            let payload = within.filter(|within| {
                let place = within / stride * width + within % stride;
                within % stride < width && range.contains(&place)
            });
            let wanted = if payload.is_some() { memory[at] } else { 0xAA };
            assert_eq!(byte, wanted, "unpack {range:?} of {what}: byte {at}");
        }
    }
}
