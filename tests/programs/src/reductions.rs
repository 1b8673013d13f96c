//! Reductions of device memory between processes: kernels combine where operands lie, what
//! has gaps goes through the host, and either gives the bits of the host.

use super::devices::{device, download, upload};
use osier::datatype::Basic;
use osier::devices::{DeviceSlice, DeviceView, Stream};
use osier::{Communicator, ErrorKind, IN_PLACE, Layout, Op, Result, Type};
use osier_bed::devices::device_traffic;

const ELEMENTS: usize = 9000;

/// Numbers that round when they are added.
fn numbers(rank: usize) -> Vec<f64> {
    let each = |i: usize| (1.0 + i as f64).sqrt() * [1e-9, 1.0, 1e9][(i + rank) % 3];
    (0..ELEMENTS).map(each).collect()
}

fn bytes(numbers: &[f64]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_le_bytes()).collect()
}

/// A vector without gaps, and pairs with a gap behind each.
fn layouts() -> [Layout; 2] {
    let double = Type::basic(Basic::F64);
    [
        Type::contiguous(ELEMENTS / 2, &double),
        Type::vector(ELEMENTS / 4, 2, 4, &double),
    ]
    .map(|ty| ty.expect("a type").commit().expect("a layout"))
}

/// Sums to all, a maximum to the last rank, prefixes; in memory of this layout.
fn calls(comm: &Communicator, stream: &Stream, layout: &Layout) -> Result<[Vec<u8>; 3]> {
    let last = comm.size() - 1;
    let own = upload(stream, &bytes(&numbers(comm.rank())));
    let view = |slice: &DeviceSlice<u8>| {
        let view = DeviceView::new(slice, 0, layout, 1).expect("inside");
        view.after_stream(stream)
    };
    let into = || upload(stream, &bytes(&[0.5; ELEMENTS]));
    let (sum, top, prefix) = (into(), into(), into());
    comm.allreduce(&view(&own), &mut view(&sum), Op::Sum)?;
    comm.reduce(&view(&own), &mut view(&top), last, Op::Max)?;
    comm.scan(&view(&own), &mut view(&prefix), Op::Sum)?;
    // Once more in place.
    comm.allreduce(&IN_PLACE, &mut view(&sum), Op::Sum)?;
    Ok([sum, top, prefix].map(|slice| download(stream, &slice)))
}

/// The same on the host, one packed vector.
fn expected(comm: &Communicator, layout: &Layout) -> Result<[Vec<u8>; 3]> {
    let packed = |all: &[f64]| -> Vec<f64> {
        let mut out = vec![0; layout.size()];
        let all = bytes(all);
        layout
            .pack(&all, 0, 1, 0..layout.size(), &mut out)
            .expect("a pack");
        let number = |eight: &[u8]| f64::from_le_bytes(eight.try_into().expect("eight"));
        out.chunks_exact(8).map(number).collect()
    };
    let own = packed(&numbers(comm.rank()));
    let [mut sum, mut top, mut prefix] = [(); 3].map(|()| packed(&[0.5; ELEMENTS]));
    comm.allreduce(&own, &mut sum, Op::Sum)?;
    comm.reduce(&own, &mut top, comm.size() - 1, Op::Max)?;
    comm.scan(&own, &mut prefix, Op::Sum)?;
    comm.allreduce(&IN_PLACE, &mut sum, Op::Sum)?;
    let spread = |numbers: Vec<f64>| {
        let mut all = bytes(&[0.5; ELEMENTS]);
        layout
            .unpack(&mut all, 0, 1, 0..layout.size(), &bytes(&numbers))
            .expect("an unpack");
        all
    };
    Ok([sum, top, prefix].map(spread))
}

/// Results are those of the host, and kernels have combined what has no gaps.
pub fn run(comm: &Communicator) {
    let (_context, stream) = device(comm);
    for (layout, gaps) in layouts().iter().zip([false, true]) {
        let before = device_traffic(comm).combined;
        let found = calls(comm, &stream, layout).expect("reductions");
        let combined = device_traffic(comm).combined - before;
        let right = expected(comm, layout).expect("reductions of the host");
        assert!(found == right, "gaps: {gaps}");
        let mut all = [combined];
        comm.allreduce(&IN_PLACE, &mut all, Op::Sum).expect("a sum");
        assert_eq!(all[0] > 0, !gaps, "combined by kernels: {}", all[0]);
    }
    super::through(comm);
}

/// The same where rank 1 may die at any step of its device: the others hear of it.
pub fn until_death(comm: &Communicator) {
    let (_context, stream) = device(comm);
    for layout in &layouts() {
        if let Err(e) = calls(comm, &stream, layout) {
            assert_eq!(e.kind(), ErrorKind::RankDead, "{e}");
            assert!(e.to_string().contains("rank 1"), "{e}");
            break;
        }
    }
    super::through(comm);
}
