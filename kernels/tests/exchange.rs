//! Reductions to all ranks in one kernel each, between two to eight devices of the emulated
//! driver and on one device of any, bit for bit as the host combines.

mod support;

use osier_datatype::{Basic, Element, Operator};
use osier_datatype_corpus::random::Random;
use osier_kernels::debug::Debug as _;
use osier_kernels::exchange::{
    Combination, Exchange, Exchanged, INBOX_BYTES, MOST_BYTES, MOST_RANKS, NUMBER_AT, Verdict,
};
use osier_kernels::{
    Context, DeviceError, DeviceSlice, DeviceView, Memory, MulticastGroup, MulticastWindow,
    Ordered, Stream, devices,
};
use std::process::Command;
use std::sync::Arc;
use support::{download, upload};

const CASE: &str = "TEST_CASE";

/// Runs a case of this file on so many devices, without multicast and with it.
fn passes(case: &str, devices: usize, seed: u64) {
    for multicast in ["0", "1"] {
        passes_by(multicast, case, devices, seed);
    }
}

fn passes_by(multicast: &str, case: &str, devices: usize, seed: u64) {
    let Some(driver) = support::emulated() else {
        return;
    };
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env("OSIER_EMULATED_GPUS", devices.to_string())
        .env("OSIER_EMULATED_SEED", seed.to_string())
        .env("OSIER_EMULATED_MULTICAST", multicast)
        .env(CASE, case)
        .debug("cuda-library", driver)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&child.stdout);
    let also = String::from_utf8_lossy(&child.stderr);
    assert!(
        child.status.success() && told.contains("1 passed"),
        "{case} on {devices}, multicast {multicast}: {told}{also}"
    );
}

#[test]
#[ignore = "run by the others"]
fn child() {
    match std::env::var(CASE).as_deref() {
        Ok("sizes") => sizes(&ranks()),
        Ok("operators") => operators(&ranks()),
        Ok("failures") => failures(),
        Ok("leave") => ranks_that_leave(),
        Ok("numbers") => numbers(),
        Ok("room") => room(),
        other => panic!("no case {other:?}"),
    }
}

#[test]
fn all_lengths_on_two_to_eight_devices() {
    for devices in 2..=MOST_RANKS {
        passes("sizes", devices, devices as u64);
    }
}

#[test]
fn all_operators_on_all_elements() {
    passes("operators", 3, 1);
}

#[test]
fn calls_that_fail_and_waits_that_are_stopped() {
    passes("failures", 3, 1);
}

#[test]
fn ranks_that_leave_have_stored_what_others_wait_for() {
    passes("leave", 3, 1);
}

#[test]
fn numbers_begin_anew() {
    passes("numbers", 2, 1);
}

#[test]
fn exchanges_that_would_not_fit_are_refused() {
    passes("room", 2, 1);
}

/// On whichever driver there is: two ranks of one device run at once there, too.
#[test]
fn two_ranks_on_one_device() {
    if support::context().is_none() {
        return;
    }
    let ranks = ranks_on(vec![0; 2]);
    sizes(&ranks);
    operators(&ranks);
}

/// One rank.
struct Rank {
    stream: Stream,
    inbox: Arc<Memory>,
    exchange: Exchange,
}

/// One on each device.
fn ranks() -> Vec<Rank> {
    drop(support::context());
    ranks_on((0..devices().unwrap().len() as i32).collect())
}

/// One on each of these devices, of which each is named as often as it has ranks.
fn ranks_on(devices: Vec<i32>) -> Vec<Rank> {
    let streams: Vec<Stream> = devices
        .iter()
        .map(|&device| Stream::new(&Context::new(device).unwrap()).unwrap())
        .collect();
    // A group has each device once.
    let windows = match devices.windows(2).all(|pair| pair[0] < pair[1]) {
        true => windows(&streams),
        false => Vec::new(),
    };
    let inboxes: Vec<_> = streams
        .iter()
        .enumerate()
        .map(|(rank, stream)| match windows.get(rank) {
            Some(window) => window.bound().clone(),
            None => Exchange::inbox(stream).unwrap(),
        })
        .collect();
    let rank = |(rank, stream): (usize, Stream)| {
        let mut exchange = Exchange::new(stream.context(), rank, inboxes.clone()).unwrap();
        if let Some(window) = windows.get(rank) {
            exchange.use_multicast(window).unwrap();
        }
        Rank {
            exchange,
            inbox: inboxes[rank].clone(),
            stream,
        }
    };
    streams.into_iter().enumerate().map(rank).collect()
}

/// Of each rank, where devices have multicast: some have the group itself, some import it.
fn windows(streams: &[Stream]) -> Vec<MulticastWindow> {
    let first = streams[0].context();
    if !first.has_multicast() {
        return Vec::new();
    }
    let group = MulticastGroup::create(first, streams.len(), INBOX_BYTES).unwrap();
    let (wire, descriptor) = group.export().unwrap();
    let of_rank = |(rank, stream): (usize, &Stream)| match rank % 2 {
        0 => group.clone(),
        _ => MulticastGroup::import(stream.context(), &wire, &descriptor).unwrap(),
    };
    let groups: Vec<_> = streams.iter().enumerate().map(of_rank).collect();
    for (group, stream) in groups.iter().zip(streams) {
        group.join(stream.context()).unwrap();
    }
    let all = groups.iter().zip(streams);
    all.map(|(group, stream)| {
        let inbox = Exchange::inbox_for(stream, group).unwrap();
        group.bind(&inbox).unwrap()
    })
    .collect()
}

/// The balanced tree, naively.
fn reduced(operator: Operator, element: Element, all: &[Vec<u8>]) -> Vec<u8> {
    let join = |left: &[u8], right: &[u8]| {
        let mut left = left.to_vec();
        operator.combine(element, &mut left, right).unwrap();
        left
    };
    let power = 1 << all.len().ilog2();
    let pairs = all.len() - power;
    let (paired, alone) = all.split_at(2 * pairs);
    let mut level: Vec<Vec<u8>> = paired.chunks(2).map(|two| join(&two[0], &two[1])).collect();
    level.extend_from_slice(alone);
    while level.len() > 1 {
        level = level.chunks(2).map(|two| join(&two[0], &two[1])).collect();
    }
    level.remove(0)
}

/// Numbers that neither overflow nor are NaN, whatever is done to a few of them.
fn values(random: &mut Random, basic: Basic, bytes: usize) -> Vec<u8> {
    let mut all = Vec::with_capacity(bytes);
    while all.len() < bytes {
        let number = random.below(9) as f64 - 4.0;
        match basic.representation() {
            Basic::F64 | Basic::C64 => all.extend((number * 0.1).to_ne_bytes()),
            Basic::F32 | Basic::C32 => all.extend((number as f32 * 0.1).to_ne_bytes()),
            Basic::F16 | Basic::Complex4 => {
                all.extend((random.below(0x1400) as u16 + 0x2c00).to_ne_bytes());
            }
            Basic::BF16 => all.extend((random.below(0x200) as u16 + 0x3f00).to_ne_bytes()),
            _ => all.push(random.next() as u8),
        }
    }
    all.truncate(bytes);
    all
}

/// One exchange of the same bytes at all ranks, each off its alignment by some bytes; the
/// ranks in `silent` have nothing to give.
struct Round {
    launched: Vec<Exchanged>,
    results: Vec<DeviceSlice<u8>>,
}

/// What a rank gives, and where its result goes.
type Place = (DeviceSlice<u8>, DeviceSlice<u8>);

/// The memory of an exchange of these bytes, each side off its alignment by some. It is there
/// before the first launch: drivers allocate and free some memory behind all work of the device,
/// and the first rank's kernel waits for the last rank's.
fn places(ranks: &[Rank], given: &[Vec<u8>], off: [usize; 2], in_place: bool) -> Vec<Place> {
    let of_rank = |(side, given): (&Rank, &Vec<u8>)| {
        let padded = |off: usize| [&vec![0xaa; off][..], given, &[0xaa; 16]].concat();
        let place = |off: usize| {
            let whole = upload(&side.stream, &padded(off));
            side.stream.synchronize().unwrap();
            whole.slice(off..off + given.len()).unwrap()
        };
        let from = place(off[0]);
        let to = match in_place {
            true => from.clone(),
            false => place(off[1]),
        };
        (from, to)
    };
    ranks.iter().zip(given).map(of_rank).collect()
}

fn launch(ranks: &[Rank], what: Combination, places: Vec<Place>, silent: &[usize]) -> Round {
    let mut launched = Vec::new();
    for (rank, (side, (from, to))) in ranks.iter().zip(&places).enumerate() {
        let done = match silent.contains(&rank) {
            true => side.exchange.launch_failed(),
            false => {
                (side.exchange).launch(&side.stream, (what, 0), &view(from, side), &view(to, side))
            }
        };
        launched.push(done.unwrap());
    }
    let results = places.into_iter().map(|(_, to)| to).collect();
    Round { launched, results }
}

fn exchange(
    ranks: &[Rank],
    what: Combination,
    given: &[Vec<u8>],
    off: [usize; 2],
    in_place: bool,
    silent: &[usize],
) -> Round {
    launch(ranks, what, places(ranks, given, off, in_place), silent)
}

/// What became of a launch, which ends.
fn verdict(of: &Exchanged) -> Verdict {
    loop {
        match of.verdict().unwrap() {
            Some(verdict) => return verdict,
            None => std::thread::yield_now(),
        }
    }
}

fn view(of: &DeviceSlice<u8>, side: &Rank) -> Ordered<DeviceView<u8>> {
    DeviceView::of(of).unwrap().after_stream(&side.stream)
}

impl Round {
    fn check(&self, ranks: &[Rank], expected: &[u8], what: &str) {
        for (rank, side) in ranks.iter().enumerate() {
            assert_eq!(
                download(&side.stream, &self.results[rank]),
                expected,
                "{what}, rank {rank}"
            );
            assert_eq!(verdict(&self.launched[rank]), Verdict::Fine, "{what}");
        }
    }
}

fn sizes(ranks: &[Rank]) {
    let mut random = Random::new(ranks.len() as u64);
    let element = Element::Basic(Basic::F32);
    let what = Combination::of(Operator::Sum, element).unwrap();
    for count in [
        0,
        1,
        2,
        3,
        255,
        512,
        513,
        2047,
        2048,
        2049,
        3000,
        9999,
        MOST_BYTES / 4,
    ] {
        let bytes = 4 * count;
        let given: Vec<_> = ranks
            .iter()
            .map(|_| values(&mut random, Basic::F32, bytes))
            .collect();
        let expected = reduced(Operator::Sum, element, &given);
        for (off, in_place) in [
            ([0, 0], false),
            ([4, 8], false),
            ([8, 8], true),
            ([1, 6], false),
        ] {
            let round = exchange(ranks, what, &given, off, in_place, &[]);
            round.check(ranks, &expected, &format!("{bytes} bytes, off {off:?}"));
        }
    }
    // Several in a row, before any is waited for.
    let given: Vec<_> = ranks
        .iter()
        .map(|_| values(&mut random, Basic::F32, 400))
        .collect();
    let expected = reduced(Operator::Sum, element, &given);
    let all: Vec<_> = (0..20)
        .map(|_| places(ranks, &given, [0, 0], false))
        .collect();
    let rounds: Vec<_> = all
        .into_iter()
        .map(|places| launch(ranks, what, places, &[]))
        .collect();
    for round in rounds {
        round.check(ranks, &expected, "one of twenty");
    }
}

fn operators(ranks: &[Rank]) {
    let mut random = Random::new(7);
    let mut kinds = 0;
    for &basic in Basic::ALL {
        for operator in Operator::ALL {
            let element = Element::Basic(basic);
            let Some(what) = Combination::of(operator, element) else {
                continue;
            };
            if !operator.is_defined_for(element) {
                continue;
            }
            kinds += 1;
            for count in [5, 1025] {
                let bytes = count * basic.size();
                let given: Vec<_> = ranks
                    .iter()
                    .map(|_| values(&mut random, basic, bytes))
                    .collect();
                let expected = reduced(operator, element, &given);
                let round = exchange(ranks, what, &given, [0, 0], false, &[]);
                round.check(
                    ranks,
                    &expected,
                    &format!("{operator} of {count} {basic:?}"),
                );
            }
        }
    }
    assert!(kinds > 50, "{kinds}");
}

fn failures() {
    let ranks = ranks();
    let mut random = Random::new(7);
    let element = Element::Basic(Basic::F64);
    let what = Combination::of(Operator::Sum, element).unwrap();
    for bytes in [64, 2 * 8192] {
        let given: Vec<_> = ranks
            .iter()
            .map(|_| values(&mut random, Basic::F64, bytes))
            .collect();
        let round = exchange(&ranks, what, &given, [0, 0], false, &[1]);
        for (rank, side) in ranks.iter().enumerate() {
            assert_eq!(download(&side.stream, &round.results[rank]), given[rank]);
            let expected = if rank == 1 {
                Verdict::Fine
            } else {
                Verdict::Failed(1)
            };
            assert_eq!(verdict(&round.launched[rank]), expected);
        }
        // The next one is as if nothing had been.
        let expected = reduced(Operator::Sum, element, &given);
        exchange(&ranks, what, &given, [0, 0], false, &[]).check(&ranks, &expected, "after");
    }
    differ(&ranks);
    late(&ranks);
    let long = view(
        &upload(&ranks[0].stream, &vec![0; MOST_BYTES + 8]),
        &ranks[0],
    );
    let refused = (ranks[0].exchange).launch(&ranks[0].stream, (what, 0), &long, &long);
    assert!(
        matches!(refused, Err(DeviceError::Size { .. })),
        "{refused:?}"
    );
    let short = view(&upload(&ranks[0].stream, &[0; 8]), &ranks[0]);
    let refused = (ranks[0].exchange).launch(&ranks[1].stream, (what, 0), &short, &short);
    assert!(refused.is_err(), "{refused:?}");
    // A rank that never comes.
    let side = &ranks[2];
    let mut waits = Vec::new();
    for bytes in [64, 64_000] {
        let memory = upload(&side.stream, &vec![0; bytes]);
        let launched = (side.exchange).launch(
            &side.stream,
            (what, 0),
            &view(&memory, side),
            &view(&memory, side),
        );
        waits.push(launched.unwrap());
    }
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(waits[0].verdict().unwrap(), None);
    side.exchange.stop();
    for wait in waits {
        assert_eq!(verdict(&wait), Verdict::Stopped);
    }
    let short = view(&upload(&side.stream, &[0; 8]), side);
    let refused = side
        .exchange
        .launch(&side.stream, (what, 0), &short, &short);
    assert!(refused.is_err(), "{refused:?}");
}

/// Ranks that combine other bytes than rank 0, or otherwise, are told, and told of.
fn differ(ranks: &[Rank]) {
    let element = Element::Basic(Basic::F64);
    let sum = Combination::of(Operator::Sum, element).unwrap();
    let max = Combination::of(Operator::Max, element).unwrap();
    let i64_sum = Combination::of(Operator::Sum, Element::Basic(Basic::I64)).unwrap();
    for ((what, bytes), (other, other_bytes)) in [
        ((sum, 64), (sum, 72)),
        ((sum, 64), (sum, 8192)),
        ((sum, 4096), (sum, 40_000)),
        ((sum, 60_000), (sum, 10_000)),
        ((sum, 512), (max, 512)),
        ((sum, 16_384), (i64_sum, 16_384)),
        ((sum, 64), (sum, 64)),
    ] {
        let launched: Vec<_> = ranks
            .iter()
            .enumerate()
            .map(|(rank, side)| {
                let (what, bytes) = if rank == 0 {
                    (what, bytes)
                } else {
                    (other, other_bytes)
                };
                let memory = upload(&side.stream, &vec![0; bytes]);
                let memory = view(&memory, side);
                side.exchange
                    .launch(&side.stream, (what, 0), &memory, &memory)
                    .unwrap()
            })
            .collect();
        let told: Vec<_> = launched.iter().map(verdict).collect();
        if (what, bytes) == (other, other_bytes) {
            assert!(told.iter().all(|told| *told == Verdict::Fine), "{told:?}");
            continue;
        }
        assert!(matches!(told[0], Verdict::Differs(1 | 2)), "{told:?}");
        assert_eq!(told[1..], [Verdict::Differs(0); 2]);
    }
}

/// Ranks that know of a failure, or of another combination, do not go on before all others have
/// begun: those may still read what the next exchange but one writes over.
fn late(ranks: &[Rank]) {
    let element = Element::Basic(Basic::F64);
    let sum = Combination::of(Operator::Sum, element).unwrap();
    let max = Combination::of(Operator::Max, element).unwrap();
    for (bytes, fails) in [(64, false), (16_384, false), (64, true), (16_384, true)] {
        let launch = |rank: usize| {
            let side = &ranks[rank];
            if fails && rank == 1 {
                return side.exchange.launch_failed().unwrap();
            }
            let memory = upload(&side.stream, &vec![0; bytes]);
            let memory = view(&memory, side);
            let what = if rank == 1 { max } else { sum };
            (side.exchange)
                .launch(&side.stream, (what, 0), &memory, &memory)
                .unwrap()
        };
        let early = [launch(0), launch(1)];
        while !early.iter().all(Exchanged::has_begun) {
            std::thread::yield_now();
        }
        for _ in 0..20_000 {
            let over = early.each_ref().map(|one| one.verdict().unwrap());
            assert_eq!(over, [None; 2], "{bytes} bytes, fails: {fails}");
            std::thread::yield_now();
        }
        let late = launch(2);
        let told = [&early[0], &early[1], &late].map(verdict);
        let right = match fails {
            true => [Verdict::Failed(1), Verdict::Fine, Verdict::Failed(1)],
            false => [Verdict::Differs(1), told[1], Verdict::Differs(1)],
        };
        assert_eq!(told, right, "{bytes} bytes");
    }
}

/// A rank that leaves behind its own kernel has stored all that others wait for; they also wait
/// for ranks that are still there. Where it has not taken part, all waits end, and what is queued
/// behind does nothing.
fn ranks_that_leave() {
    let element = Element::Basic(Basic::F64);
    let what = Combination::of(Operator::Sum, element).unwrap();
    let mut random = Random::new(11);
    for round in 0..40 {
        let ranks = ranks();
        let bytes = [64, 2 * 8192][round % 2];
        let given: Vec<_> = ranks
            .iter()
            .map(|_| values(&mut random, Basic::F64, bytes))
            .collect();
        let expected = reduced(Operator::Sum, element, &given);
        let done = exchange(&ranks, what, &given, [0, 0], false, &[]);
        let mut left = 0;
        while left != (1 << ranks.len()) - 1 {
            let over =
                (0..ranks.len()).filter(|&rank| done.launched[rank].verdict().unwrap().is_some());
            left = over.fold(left, |left, rank| left | 1 << rank);
            ranks.iter().for_each(|side| side.exchange.leave(left));
        }
        done.check(&ranks, &expected, "left");
    }
    // Rank 2 leaves behind the first; rank 1 comes later.
    let ranks = ranks();
    let zeros = places(&ranks, &vec![vec![0; 64]; 3], [0, 0], false);
    let launch = |rank: usize| {
        let (side, (from, to)) = (&ranks[rank], &zeros[rank]);
        let views = (view(from, side), view(to, side));
        (side
            .exchange
            .launch(&side.stream, (what, 0), &views.0, &views.1))
        .unwrap()
    };
    let first: Vec<_> = (0..3).map(launch).collect();
    let more = [launch(0), launch(0), launch(1)];
    for one in first {
        assert_eq!(verdict(&one), Verdict::Fine);
    }
    ranks[..2]
        .iter()
        .for_each(|side| side.exchange.leave(1 << 2));
    for one in more {
        assert_eq!(verdict(&one), Verdict::Stopped);
    }
}

/// Has all ranks go on behind a number.
fn go_on_from(ranks: &[Rank], number: u32) {
    for side in ranks {
        let inbox = DeviceSlice::<u8>::of(side.inbox.clone()).unwrap();
        let all = inbox.slice(NUMBER_AT..NUMBER_AT + 4).unwrap();
        let number = upload(&side.stream, &number.to_ne_bytes());
        let (from, to) = (
            number.after_stream(&side.stream),
            all.after_stream(&side.stream),
        );
        osier_kernels::copy::copy(&side.stream, &from, &to).unwrap();
        side.stream.synchronize().unwrap();
    }
}

fn numbers() {
    const LAST: u32 = 0x7fff_fffe;
    let ranks = ranks();
    let mut random = Random::new(7);
    let element = Element::Basic(Basic::U64);
    let what = Combination::of(Operator::Sum, element).unwrap();
    // The first ones leave words behind that the last ones, with the same numbers, would take
    // for theirs, had those in between not cleared them.
    let rounds = [
        (1, 8000),
        (2, 8000),
        (3, 40_000),
        (4, 8000),
        (5, 8000),
        (0x10_0000, 80),
        (0x10_0001, 20_000),
        (LAST - 1, 80),
        (LAST, 40_000),
        (1, 80),
        (2, 80),
        (3, 80),
        (4, 8000),
        (5, 8000),
        (6, 40_000),
    ];
    let mut before = 0;
    for (number, bytes) in rounds {
        if number != before + 1 && before != LAST {
            go_on_from(&ranks, number - 1);
        }
        before = number;
        let given: Vec<_> = ranks
            .iter()
            .map(|_| values(&mut random, Basic::U64, bytes))
            .collect();
        let expected = reduced(Operator::Sum, element, &given);
        let round = exchange(&ranks, what, &given, [0, 0], false, &[]);
        round.check(&ranks, &expected, &format!("number {number}"));
        let inbox = DeviceSlice::<u8>::of(ranks[0].inbox.clone()).unwrap();
        let counted = inbox.slice(NUMBER_AT..NUMBER_AT + 4).unwrap();
        let counted = download(&ranks[0].stream, &counted);
        assert_eq!(counted, number.to_ne_bytes());
    }
}

fn room() {
    let ranks = ranks();
    let inboxes: Vec<_> = ranks.iter().map(|side| side.inbox.clone()).collect();
    let more = || Exchange::new(ranks[0].stream.context(), 0, inboxes.clone());
    // The emulated device runs 32 of these blocks at once.
    let second = more().unwrap();
    let third = more();
    assert!(
        matches!(third, Err(DeviceError::Unavailable(_))),
        "{third:?}"
    );
    drop(second);
    more().unwrap();
}
