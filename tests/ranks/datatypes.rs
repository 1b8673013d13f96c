//! Layouts end to end: pack on one rank, unpack into another layout.

use crate::support::{fails, on_all};
use osier::buffers::{Region, Regions};
use osier::{Communicator, Datatype, ErrorKind, Layout, Order, Type, View, ViewMut};

#[derive(Clone, Copy, Debug, Default, PartialEq, Datatype)]
#[repr(C)]
struct Particle {
    kind: u8,
    position: [f64; 3],
    charge: i16,
    spin: [i8; 2],
}

impl Particle {
    /// Bytes of its values, without padding.
    const PACKED: usize = 1 + 24 + 2 + 2;

    fn numbered(i: usize) -> Self {
        let x = i as f64;
        Particle {
            kind: i as u8,
            position: [x, -x, x * 0.5],
            charge: (i * 3) as i16,
            spin: [i as i8, -1],
        }
    }
}

#[test]
fn structs_with_padding_travel_without_it() {
    on_all(2, |comm| {
        for n in [1, 2, 100, 5_000, 60_000] {
            let particles: Vec<_> = (0..n).map(Particle::numbered).collect();
            if comm.rank() == 0 {
                comm.send(&particles, 1, 0).expect("send");
                comm.send(&particles, 1, 1).expect("send");
                comm.ssend(&particles[n / 2..][..1], 1, 2).expect("one");
            } else {
                let mut got = vec![Particle::default(); n + 3];
                let status = comm.recv(&mut got, 0, 0).expect("recv");
                assert_eq!(status.bytes(), n * Particle::PACKED);
                assert_eq!(status.count::<Particle>(), Some(n));
                assert!(got[..n] == particles);
                assert!(got[n..] == [Particle::default(); 3]);
                let (got, _) = comm.recv_vec::<Particle>(0, 1).expect("recv_vec");
                assert!(got == particles);
                let mut one = [Particle::default()];
                comm.recv(&mut one, 0, 2).expect("one");
                assert_eq!(one[0], particles[n / 2]);
            }
        }
    });
}

#[test]
fn structs_may_be_cut_short_in_a_value() {
    on_all(2, |comm| {
        let particles: Vec<_> = (0..9_000).map(Particle::numbered).collect();
        if comm.rank() == 0 {
            comm.send(&particles, 1, 0).expect("send");
        } else {
            let mut bytes = vec![0xffu8; 5 * Particle::PACKED + 13];
            let room = bytes.len().to_string();
            fails(
                comm.recv(&mut bytes, 0, 0),
                ErrorKind::Truncated,
                &["261000", &room],
            );
            // The sixth one's kind, first coordinate, and half of the second.
            let sixth = &bytes[5 * Particle::PACKED..];
            assert_eq!(sixth[0], 5);
            assert_eq!(sixth[1..9], 5f64.to_ne_bytes());
            assert_eq!(sixth[9..13], (-5f64).to_ne_bytes()[..4]);
        }
    });
}

/// Layouts of `6 * k` doubles each, with the number of doubles that they span.
fn layouts(k: usize) -> Vec<(Layout, usize)> {
    let f64s = Type::of::<f64>();
    let n = 6 * k;
    let rows = Type::vector(k, 6, 9, &f64s);
    let columns: Vec<(usize, isize)> = (0..n).map(|i| (1, (n - 1 - i) as isize)).collect();
    let lists: Vec<(usize, isize)> = (0..2 * k).map(|i| (3, (i * 5 + i % 2) as isize)).collect();
    let bytes: Vec<(usize, isize)> = (0..3 * k).map(|i| (2, (i * 40) as isize)).collect();
    let grid = Type::subarray(&[k + 2, 8, 2], &[k, 3, 2], &[1, 2, 0], Order::C, &f64s);
    let fortran = Type::subarray(&[8, k + 1], &[6, k], &[1, 1], Order::Fortran, &f64s);
    let wide = Type::resized(0, 24, &f64s).and_then(|t| Type::contiguous(n, &t));
    let pair = Type::structure(&[(1, 8, f64s.clone()), (2, 24, f64s.clone())]);
    let pairs = pair
        .and_then(|p| Type::resized(0, 48, &p))
        .and_then(|p| Type::contiguous(2 * k, &p));
    [
        (Type::contiguous(n, &f64s), n),
        (rows, 9 * k),
        (Type::indexed(&columns, &f64s), n),
        (Type::indexed(&lists, &f64s), 10 * k + 4),
        (Type::hindexed(&bytes, &f64s), 15 * k),
        (grid, (k + 2) * 16),
        (fortran, 8 * (k + 1)),
        (wide, 3 * n),
        (pairs, 12 * k),
    ]
    .map(|(ty, span)| (ty.and_then(|t| t.commit()).expect("a type"), span))
    .into()
}

/// The places, in elements, in the order in which they are sent.
fn places(layout: &Layout) -> Vec<usize> {
    layout
        .blocks(1)
        .flat_map(|(at, bytes)| (0..bytes / 8).map(move |i| (at as usize) / 8 + i))
        .collect()
}

#[test]
fn any_layout_to_any_other_of_its_signature() {
    on_all(2, |comm| {
        for k in [3, 700, 8_000] {
            let pool = layouts(k);
            for (i, (from, from_span)) in pool.iter().enumerate() {
                // Each pair for small ones, some for the others.
                let step = if k == 3 { 1 } else { 4 };
                for (to, to_span) in pool.iter().skip(i % step).step_by(step) {
                    one_pair(&comm, (from, *from_span), (to, *to_span));
                }
            }
        }
    });
}

fn one_pair(
    comm: &Communicator,
    (from, from_span): (&Layout, usize),
    (to, to_span): (&Layout, usize),
) {
    let data: Vec<f64> = (0..from_span + 2).map(|i| i as f64).collect();
    if comm.rank() == 0 {
        let view = View::new(&data, 2, from, 1).expect("view");
        assert_eq!(view.bytes(), from.size());
        comm.send(&view, 1, 0).expect("send");
        return;
    }
    let mut got = vec![-1.0; to_span + 1];
    let mut view = ViewMut::new(&mut got, 1, to, 1).expect("view");
    let status = comm.recv(&mut view, 0, 0).expect("recv");
    assert_eq!(status.bytes(), from.size());
    let mut expected = vec![-1.0; to_span + 1];
    for (f, t) in places(from).into_iter().zip(places(to)) {
        expected[t + 1] = data[f + 2];
    }
    assert!(got == expected, "{from:?} -> {to:?}");
}

#[test]
fn heap_memory_into_any_layout() {
    on_all(2, |comm| {
        for k in [3, 2_000, 20_000] {
            let mut data = comm.alloc::<f64>(6 * k).expect("memory");
            data.iter_mut().enumerate().for_each(|(i, x)| *x = i as f64);
            for (to, span) in layouts(k) {
                if comm.rank() == 0 {
                    comm.send(&data, 1, 0).expect("send");
                } else {
                    let mut got = vec![-1.0; span];
                    let mut view = ViewMut::new(&mut got, 0, &to, 1).expect("view");
                    comm.recv(&mut view, 0, 0).expect("recv");
                    let mut expected = vec![-1.0; span];
                    for (i, place) in places(&to).into_iter().enumerate() {
                        expected[place] = i as f64;
                    }
                    assert!(got == expected, "-> {to:?}");
                }
            }
        }
    });
}

#[test]
fn a_byte_may_be_sent_many_times_but_received_into_once() {
    on_all(2, |comm| {
        for n in [5, 10_000, 1_000_000] {
            let same = Type::hvector(n, 1, 0, &Type::of::<u32>()).and_then(|t| t.commit());
            let same = same.expect("a type");
            if comm.rank() == 0 {
                let view = View::new(&[42u32], 0, &same, 1).expect("view");
                assert_eq!(view.bytes(), 4 * n);
                comm.send(&view, 1, 0).expect("send");
            } else {
                let (got, _) = comm.recv_vec::<u32>(0, 0).expect("recv");
                assert!(got == vec![42; n]);
                fails(
                    ViewMut::new(&mut [0u32], 0, &same, 1),
                    ErrorKind::Datatype,
                    &["touch a byte twice", "hint"],
                );
            }
        }
    });
}

/// A square with a frame of ghosts around it: sent are the edges, received
/// are the ghosts.
fn halo(side: usize) -> Regions<f64> {
    let n = side + 2;
    let face = |size: [usize; 2], start: [usize; 2]| {
        let t = Type::subarray(&[n, n], &size, &start, Order::C, &Type::of::<f64>());
        Region::new(t.and_then(|t| t.commit()).expect("a face"))
    };
    let (row, column) = ([1, side], [side, 1]);
    let sends = vec![
        face(column, [1, 1]),
        face(column, [1, side]),
        face(row, [1, 1]),
        face(row, [side, 1]),
    ];
    let receives = vec![
        face(column, [1, side + 1]),
        face(column, [1, 0]),
        face(row, [side + 1, 1]),
        face(row, [0, 1]),
    ];
    Regions::new(sends, receives).expect("disjoint")
}

#[test]
fn halos_are_exchanged_in_one_array() {
    on_all(4, |comm| {
        let cart = comm
            .cart_create(&[2, 2], &[true, true])
            .expect("grid")
            .expect("all are inside");
        for side in [3, 40, 300] {
            let n = side + 2;
            let regions = halo(side);
            let value = |rank: usize, i: usize, j: usize| (rank * n * n + i * n + j) as f64;
            let mut array = vec![-1.0; n * n];
            for i in 1..=side {
                for j in 1..=side {
                    array[i * n + j] = value(cart.rank(), i, j);
                }
            }
            let topology = cart.cart().expect("a topology").clone();
            let mut neighbors = Vec::new();
            for axis in [1, 0] {
                let (source, dest) = topology.shift(cart.rank(), axis, 1).expect("shift");
                neighbors.push((source, dest));
            }
            for sweep in 0..3usize {
                cart.scope(|s| {
                    let parts = s.regions(&mut array, &regions)?;
                    for (axis, (before, after)) in neighbors.iter().enumerate() {
                        // Part 2 * axis goes back, the next one goes ahead.
                        parts.irecv(2 * axis, *after, sweep)?;
                        parts.irecv(2 * axis + 1, *before, sweep)?;
                        parts.isend(2 * axis, *before, sweep)?;
                        parts.isend(2 * axis + 1, *after, sweep)?;
                    }
                    Ok(())
                })
                .expect("exchange");
            }
            let (left, right) = (neighbors[0].0, neighbors[0].1);
            let (up, down) = (neighbors[1].0, neighbors[1].1);
            for k in 1..=side {
                let at = |i: usize, j: usize| array[i * n + j];
                assert_eq!(at(k, 0), value(left.expect("left"), k, side));
                assert_eq!(at(k, side + 1), value(right.expect("right"), k, 1));
                assert_eq!(at(0, k), value(up.expect("up"), side, k));
                assert_eq!(at(side + 1, k), value(down.expect("down"), 1, k));
            }
            assert!(
                [0, side + 1, (side + 1) * n, n * n - 1]
                    .iter()
                    .all(|c| array[*c] == -1.0)
            );
        }
    });
}

#[test]
fn regions_that_share_bytes_are_refused() {
    let part = |count: usize, origin: usize| Region {
        layout: Type::contiguous(count, &Type::of::<u16>())
            .and_then(|t| t.commit())
            .expect("a type"),
        origin,
    };
    let two = Regions::<u16>::new(vec![], vec![part(4, 0), part(4, 3)]);
    fails(
        two,
        ErrorKind::Argument,
        &["receive region 0", "shares bytes", "receive"],
    );
    let with_send = Regions::<u16>::new(vec![part(1, 5)], vec![part(4, 0), part(4, 4)]);
    fails(
        with_send,
        ErrorKind::Argument,
        &["receive region 1", "send region"],
    );
    let twice = Type::hvector(2, 1, 1, &Type::of::<u16>()).and_then(|t| t.commit());
    let twice = Region::new(twice.expect("a type"));
    let e = Regions::<u16>::new(vec![], vec![twice.clone()]);
    fails(e, ErrorKind::Datatype, &["touch a byte twice"]);
    let both = Regions::<u16>::new(vec![twice, part(9, 0)], vec![part(4, 9)]);
    both.expect("what is sent may overlap");
}

#[test]
fn a_region_is_received_into_once_and_must_exist() {
    on_all(1, |comm| {
        let part = |origin: usize| Region {
            layout: Layout::of::<u32>(),
            origin,
        };
        let regions = Regions::<u32>::new(vec![part(0)], vec![part(1)]).expect("disjoint");
        let mut memory = [7u32, 0];
        comm.scope(|s| {
            let parts = s.regions(&mut memory, &regions)?;
            parts.irecv(0, 0, 0)?;
            fails(
                parts.irecv(0, 0, 0),
                ErrorKind::Argument,
                &["in use already"],
            );
            fails(
                parts.irecv(1, 0, 0),
                ErrorKind::Argument,
                &["region 1 of 1"],
            );
            fails(
                parts.isend(3, 0, 0),
                ErrorKind::Argument,
                &["region 3 of 1"],
            );
            parts.isend(0, 0, 0)?;
            Ok(())
        })
        .expect("scope");
        assert_eq!(memory, [7, 7]);
        // A bad argument does not use up the region.
        let mut memory = [8u32, 0];
        comm.scope(|s| {
            let parts = s.regions(&mut memory, &regions)?;
            fails(parts.irecv(0, 5, 0), ErrorKind::Rank, &["rank 5", "hint"]);
            parts.irecv(0, 0, 0)?;
            parts.isend(0, 0, 0)?;
            Ok(())
        })
        .expect("scope");
        assert_eq!(memory, [8, 8]);
        let outside = comm.scope(|s| s.regions(&mut memory[..1], &regions).map(drop));
        fails(outside, ErrorKind::Datatype, &[]);
    });
}

#[test]
fn views_stay_inside_their_buffers() {
    let three = Type::vector(3, 2, 4, &Type::of::<i32>()).and_then(|t| t.commit());
    let three = three.expect("a type");
    let mut memory = [0i32; 10];
    View::new(&memory, 0, &three, 1).expect("fits exactly");
    let bad = [
        (1, 1),
        (0, 2),
        (10, 1),
        (usize::MAX, 1),
        (usize::MAX / 4, 1),
        (0, usize::MAX),
    ];
    for (origin, count) in bad {
        let e = View::new(&memory, origin, &three, count).expect_err("outside");
        assert!(
            matches!(e.kind(), ErrorKind::Datatype | ErrorKind::Argument),
            "{e}"
        );
        ViewMut::new(&mut memory, origin, &three, count).expect_err("outside");
    }
    let before = Type::hindexed(&[(1, -4)], &Type::of::<i32>()).and_then(|t| t.commit());
    let before = before.expect("a type");
    View::new(&memory, 0, &before, 1).expect_err("before the start");
    View::new(&memory, 1, &before, 1).expect("the first element");
    assert_eq!(
        View::new(&memory, 99, &three, 0)
            .map(|v| v.bytes())
            .unwrap_or(0),
        0
    );
    fails(
        View::new(&[Particle::default()], 0, &Layout::of::<u8>(), 1),
        ErrorKind::Datatype,
        &["padding", "hint"],
    );
}

#[test]
fn owned_numbers_and_arrays_are_buffers() {
    on_all(1, |comm| {
        let mut x = 0f32;
        comm.sendrecv(&1.5f32, 0, 0, &mut x, 0, 0)
            .expect("a number");
        assert_eq!(x, 1.5);
        let mut v = vec![0i64; 2];
        comm.sendrecv(&[1i64, -1], 0, 0, &mut v, 0, 0)
            .expect("an array");
        assert_eq!(v, [1, -1]);
        let mut b: Box<[u8]> = vec![0; 3].into();
        comm.sendrecv(b"abc", 0, 0, &mut b, 0, 0).expect("a box");
        assert_eq!(&*b, b"abc");
    });
}

/// Parts that lie anywhere travel as one message, from and to their addresses.
#[test]
fn absolute_addresses_gather_and_scatter() {
    use osier::datatype::{address, bottom};
    on_all(2, |comm| {
        for n in [1, 40, 30_000] {
            let parts = |numbers: *const f64, letters: *const u8| {
                Type::structure(&[
                    (n, address(numbers), f64::datatype()),
                    (n + 3, address(letters), u8::datatype()),
                ])
                .and_then(|ty| ty.commit())
                .expect("a type")
            };
            if comm.rank() == 0 {
                let numbers: Vec<f64> = (0..n).map(|i| i as f64).collect();
                let letters: Vec<u8> = (0..n + 3).map(|i| i as u8).collect();
                let layout = parts(numbers.as_ptr(), letters.as_ptr());
                // SAFETY: both vectors outlive the send, which only reads them.
                let view = unsafe { View::from_raw(bottom(), &layout, 1) };
                comm.send(&view.expect("a view"), 1, 5).expect("send");
            } else {
                let mut numbers = vec![0.0f64; n];
                let mut letters = vec![0u8; n + 3];
                let layout = parts(numbers.as_mut_ptr(), letters.as_mut_ptr());
                // SAFETY: both vectors outlive the receive and are not used by
                // anybody else meanwhile.
                let view = unsafe { ViewMut::from_raw(bottom(), &layout, 1) };
                let status = comm.recv(&mut view.expect("a view"), 0, 5).expect("recv");
                assert_eq!(status.bytes(), 9 * n + 3);
                assert!(numbers.iter().enumerate().all(|(i, &x)| x == i as f64));
                assert!(letters.iter().enumerate().all(|(i, &x)| x == i as u8));
            }
        }
    });
}
