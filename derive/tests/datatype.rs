//! What the derive macro makes of structs.

use osier_datatype::{Basic, Class, Datatype, Layout, Type};
use osier_derive::Datatype;

#[derive(Clone, Copy, Datatype)]
#[repr(C)]
#[datatype(crate = osier_datatype)]
struct Dense {
    a: f64,
    b: [i32; 2],
}

#[derive(Clone, Copy, Datatype)]
#[repr(C)]
#[datatype(crate = osier_datatype)]
struct Padded {
    a: u8,
    b: f64,
    c: u16,
}

#[derive(Clone, Copy, Datatype)]
#[repr(C)]
#[datatype(crate = osier_datatype)]
struct Outer(Padded, [Dense; 2], u8);

#[derive(Clone, Copy, Datatype)]
#[repr(C, align(32))]
#[datatype(crate = ::osier_datatype)]
struct Aligned {
    a: f64,
}

#[derive(Clone, Copy, Datatype)]
#[repr(C, packed(2))]
#[datatype(crate = osier_datatype)]
struct Tight {
    a: u16,
    b: f64,
}

#[derive(Clone, Copy, Datatype)]
#[repr(transparent)]
#[datatype(crate = osier_datatype)]
struct Wrapper(f32);

#[derive(Clone, Copy, Datatype)]
#[repr(C)]
#[datatype(crate = osier_datatype)]
struct Nothing;

#[test]
fn dense_structs_are_contiguous() {
    const { assert!(Dense::DENSE) };
    let layout = Layout::of::<Dense>();
    assert_eq!(layout.class(), Class::Contiguous);
    assert_eq!((layout.size(), layout.extent()), (16, 16));
    assert_eq!(layout.contiguous_at(10), Some(0));
    assert_eq!(layout.signature().to_string(), "f64 x 1, i32 x 2");
}

#[test]
fn padding_is_left_out() {
    const { assert!(!Padded::DENSE) };
    let layout = Layout::of::<Padded>();
    assert_eq!(layout.blocks(1).collect::<Vec<_>>(), [(0, 1), (8, 10)]);
    assert_eq!(layout.extent(), 24);
    assert_eq!(layout.contiguous_at(1), None);

    let values = [Padded { a: 1, b: 2.0, c: 3 }, Padded { a: 4, b: 5.0, c: 6 }];
    let mut packed = [0; 22];
    // SAFETY: two instances lie in `values`, 22 bytes in `packed`.
    unsafe { layout.pack_raw(values.as_ptr().cast(), 2, 0..22, packed.as_mut_ptr()) };
    let mut back = [Padded { a: 0, b: 0.0, c: 0 }; 2];
    // SAFETY: two instances lie in `back`, 22 bytes in `packed`.
    unsafe { layout.unpack_raw(back.as_mut_ptr().cast(), 2, 0..22, packed.as_ptr()) };
    assert_eq!(back.map(|p| (p.a, p.b, p.c)), [(1, 2.0, 3), (4, 5.0, 6)]);
}

#[test]
fn structs_nest() {
    const { assert!(!Outer::DENSE) };
    let layout = Layout::of::<Outer>();
    assert_eq!(layout.size(), 11 + 32 + 1);
    assert_eq!(layout.extent() as usize, size_of::<Outer>());
    assert_eq!(
        layout.blocks(1).collect::<Vec<_>>(),
        [(0, 1), (8, 10), (24, 33)]
    );
    assert_eq!(
        Type::of::<[Outer; 3]>().extent() as usize,
        size_of::<[Outer; 3]>()
    );
}

#[test]
fn representations() {
    const { assert!(!Aligned::DENSE) };
    assert_eq!(Layout::of::<Aligned>().extent(), 32);
    const { assert!(Tight::DENSE) };
    assert_eq!(Layout::of::<Tight>().extent(), 10);
    assert_eq!(Layout::of::<Tight>().class(), Class::Contiguous);
    assert_eq!(
        Layout::of::<Wrapper>(),
        Type::basic(Basic::F32).commit().unwrap()
    );
    assert_eq!(Layout::of::<Nothing>().size(), 0);
    assert_eq!(Layout::of::<Nothing>().extent(), 0);
}

#[test]
fn the_layout_is_cached() {
    let (a, b) = (Layout::of::<Padded>(), Layout::of::<Padded>());
    assert_eq!(a, b);
}
