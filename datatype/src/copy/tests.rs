//! Pack and unpack against the typemap in memory that is exactly as large as the
//! layout, whose gaps are never initialised: small enough for Miri, which sees every
//! access beyond payload.
//!
//! The invariants are those of [`super`], by number.

use crate::{Basic, Type, copy_bytes};
use std::mem::MaybeUninit;

/// Widths on both sides of every choice of kernel, in nests of all orders, lists of
/// equal and unequal blocks, and forms at listed places.
fn types() -> Vec<Type> {
    let bytes = |n| Type::contiguous(n, &Type::basic(Basic::Byte)).unwrap();
    let mut types = Vec::new();
    for width in [
        1, 2, 3, 4, 5, 8, 12, 16, 20, 24, 28, 40, 96, 100, 130, 257, 300,
    ] {
        let stride = 2 * width as isize;
        types.push(Type::hvector(9, 1, stride, &bytes(width)).unwrap());
        types.push(Type::hvector(5, 1, -stride - 1, &bytes(width)).unwrap());
        let places = [0, 3, 5, 11, 6].map(|i| i * (width as isize + 3));
        types.push(Type::hindexed_block(1, &places, &bytes(width)).unwrap());
    }
    let blocks = [
        (3, 0),
        (1, 9),
        (8, 20),
        (2, 40),
        (17, 50),
        (70, 80),
        (140, 200),
    ];
    let unequal = Type::hindexed(&blocks, &bytes(1)).unwrap();
    types.push(unequal.clone());
    // A list under a long level, block by block.
    types.push(Type::hvector(10, 1, 400, &unequal).unwrap());
    let short = Type::hvector(3, 1, 12, &bytes(8)).unwrap();
    // A long level over a short one, and both orders of a transpose.
    types.push(Type::hvector(20, 1, 50, &short).unwrap());
    let column = Type::hvector(17, 1, 80, &bytes(8)).unwrap();
    types.push(Type::hvector(9, 1, 8, &column).unwrap());
    let deep = (0..9).fold(bytes(2), |old, level| {
        Type::hvector(2, 1, 5 << level, &old).unwrap()
    });
    types.push(deep);
    // Too many blocks to be flattened.
    let nest = Type::hvector(3, 1, 900, &column).unwrap();
    let places = [0, 5000, 9000, 20_000, 31_000, 37_000];
    types.push(Type::hindexed_block(1, &places, &nest).unwrap());
    types.push(Type::structure(&[(6, 0, nest), (1, 40_000, unequal)]).unwrap());
    types
}

#[test]
fn miri_only_payload_is_touched() {
    for ty in types() {
        for count in [1, 2] {
            let layout = ty.commit().unwrap();
            let (low, high) = layout.span(count);
            let room = (high - low) as usize;
            let touched = ty.typemap().bytes(count);
            let value = |at: isize| (at * 7 + at / 251) as u8;
            let mut memory = vec![MaybeUninit::<u8>::uninit(); room];
            for &at in &touched {
                memory[(at - low) as usize].write(value(at));
            }
            let expected: Vec<u8> = touched.iter().map(|&at| value(at)).collect();
            let n = layout.packed_bytes(count).unwrap();
            assert_eq!(n, expected.len());
            for cut in [0, 1, n / 3, n - 1] {
                let mut packed = vec![0u8; n];
                let mut back = vec![0xEE_u8; room];
                for range in [cut..n, 0..cut] {
                    let origin = memory.as_mut_ptr().cast::<u8>().wrapping_offset(-low);
                    let to = packed[range.clone()].as_mut_ptr();
                    // SAFETY: invariant 1: the memory holds the span, `to` the range.
                    unsafe { layout.pack_raw(origin, count, range.clone(), to) };
                    assert_eq!(packed[range.clone()], expected[range.clone()], "{ty:?}");
                    let origin = back.as_mut_ptr().wrapping_offset(-low);
                    let from = packed[range.clone()].as_ptr();
                    // SAFETY: invariant 1: the memory holds the span, `to` the range.
                    unsafe { layout.unpack_raw(origin, count, range, from) };
                }
                let mut wanted = vec![0xEE_u8; room];
                for &at in &touched {
                    wanted[(at - low) as usize] = value(at);
                }
                assert!(back == wanted, "{ty:?}, cut at {cut}");
            }
        }
    }
}

/// Whatever their places within pages, bytes are the same, and none beside them is touched.
#[test]
fn bytes_are_copied_between_all_places() {
    const PAGE: usize = 4096;
    let from: Vec<u8> = (0..5 * PAGE).map(|i| (i * 7 + i / 251) as u8).collect();
    for bytes in [0, 1, 2048, 2049, 2304, 4097, 3 * PAGE + 5] {
        for ahead in [0, 1, 8, 16, 31, 32, 4095] {
            let mut to = vec![0u8; 5 * PAGE];
            let start = from.as_ptr().wrapping_add(ahead).addr();
            let at = start.wrapping_sub(to.as_ptr().addr()) % PAGE;
            // SAFETY: invariant 1: within both, which are different.
            unsafe { copy_bytes(from.as_ptr(), to.as_mut_ptr().wrapping_add(at), bytes) };
            assert_eq!(to[at..at + bytes], from[..bytes]);
            assert!(to[..at].iter().chain(&to[at + bytes..]).all(|b| *b == 0));
        }
    }
}
