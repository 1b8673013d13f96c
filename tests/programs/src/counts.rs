//! An alltoallv of plain device memory between processes, again and again: `exercise
//! device-counts CALLS WAY`.

use super::mapped::Device;
use osier::datatype::Basic;
use osier::devices::{DeviceView, Kind};
use osier::{Communicator, ErrorKind, Type};
use osier_bed::devices::device_traffic;
use osier_collectives::Algorithm;

/// Bytes from one rank to another.
fn block(from: usize, to: usize) -> usize {
    200_000 + 1000 * from + 10 * to
}

fn byte(from: usize, to: usize, at: usize) -> u8 {
    (at * 31 + at / 251 + from * 17 + to * 5) as u8
}

/// Makes so many calls that leave memory where it is, or take it through the host. A rank
/// may die: the others hear of it.
pub fn run(comm: &Communicator, calls: usize, way: &str) {
    let device = Device::of(comm);
    let (me, n) = (comm.rank(), comm.size());
    let stays = way == "stays";
    comm.use_algorithm_on_devices(Algorithm::Spread, 1, stays);
    let gives: Vec<usize> = (0..n).map(|to| block(me, to)).collect();
    let gets: Vec<usize> = (0..n).map(|from| block(from, me)).collect();
    // Blocks lie apart, what comes in from behind.
    let at: Vec<usize> = (0..n).map(|to| to * 250_000).collect();
    let behind: Vec<usize> = (0..n).map(|from| (n - 1 - from) * 250_000).collect();
    let (mut send, mut right) = (vec![1; n * 250_000], vec![2; n * 250_000]);
    for peer in 0..n {
        let to = send[at[peer]..].iter_mut().take(gives[peer]).enumerate();
        to.for_each(|(i, to)| *to = byte(me, peer, i));
        let to = right[behind[peer]..]
            .iter_mut()
            .take(gets[peer])
            .enumerate();
        to.for_each(|(i, to)| *to = byte(peer, me, i));
    }
    let send = device.with(Kind::Plain, &send);
    let recv = device.with(Kind::Plain, &vec![2; n * 250_000]);
    let element = Type::basic(Basic::U8).commit().expect("a layout");
    let view = |slice| {
        let view = DeviceView::new(slice, 0, &element, n * 250_000).expect("inside");
        view.after_stream(device.stream())
    };
    let before = device_traffic(comm);
    for _ in 0..calls {
        let (gives, gets) = ((&gives[..], &at[..]), (&gets[..], &behind[..]));
        if let Err(e) = comm.alltoallv(&view(&send), gives, &mut view(&recv), gets) {
            assert_eq!(e.kind(), ErrorKind::RankDead, "{e}");
            assert!(e.to_string().contains("rank 1"), "{e}");
            return super::through(comm);
        }
    }
    let now = device_traffic(comm);
    let host =
        now.copied - before.copied + now.handed - before.handed + now.crossed - before.crossed;
    assert_eq!(host > 0, !stays, "{host} bytes and slots of the host");
    assert!(device.bytes(&recv) == right);
    super::through(comm);
}
