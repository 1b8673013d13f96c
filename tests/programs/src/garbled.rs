//! Words that no correct peer writes, among messages of devices: `exercise device-garbled`.
//!
//! Rank 1 posts them by hand to rank 0, while messages of all protocols are under way. Each
//! is counted as malformed, and nothing else happens.

use crate::mapped::Device;
use crate::matrix::cells::Dice;
use osier::datatype::Basic;
use osier::devices::{DeviceView, Kind, StreamSemaphore};
use osier::{Communicator, Type};
use osier_bed::devices::device_use;
use osier_bed::words::{Word, malformed, post};

/// No operation has it.
const STALE: u32 = 0xffff_fff0;
const OFFER_BYTES: usize = 105 + 83;
const SLOT_BYTES: usize = 32;

/// A kind and its aux; low and high half of the argument; what follows.
fn word(kind: &str, aux: u16, low: u32, body: &[u8]) -> Word {
    Word {
        kind: Word::kind_of(kind).expect("a kind"),
        aux,
        low,
        high: STALE,
        body: body.to_vec(),
    }
}

/// Where a slot lies.
fn place(slab: u64, slab_bytes: u64, start: u64, bytes: u64) -> Vec<u8> {
    let words = [slab, slab_bytes, start, bytes];
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

/// An announcement's body with an offer of which some bytes are changed.
fn offer(change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut all = 200_000u64.to_le_bytes().to_vec();
    all.resize(8 + OFFER_BYTES, 0);
    // One run of bytes.
    all[8 + 121..8 + 123].fill(0xff);
    change(&mut all[8..]);
    all
}

/// What is malformed whatever the operation with this handle does.
fn of_any(handle: u32) -> Vec<Word> {
    let far = place(1 << 50, 4 << 20, 0, 65_536);
    vec![
        word("SLOT", 0, handle, &[0; 5]),
        word("SLOT", 2, handle, &[0; SLOT_BYTES + 1]),
        // Outside of its slab, in numbers that overflow, where no slab is, of no bytes.
        word("SLOT", 0, handle, &place(0, 65_536, 65_536, 1)),
        word("SLOT", 2, handle, &place(0, 1 << 60, 1 << 59, 65_536)),
        word("SLOT", 0, handle, &place(0, u64::MAX, u64::MAX, 2)),
        word("SLOT", 0, handle, &far),
        word("SLOT", 2, handle, &place(0, 0, 0, 0)),
        word("SLOT_CREDIT", 60_000, handle, &[]),
        word("PUT_OFFER", 0, handle, &[1; OFFER_BYTES - 1]),
        word("PUT_OFFER", 0, handle, &[0xee; OFFER_BYTES]),
        word("FD_REQUEST", 1, handle, &[0; 3]),
    ]
}

/// What names no operation, or nothing at all.
fn of_none() -> Vec<Word> {
    let announces = [
        (0, u64::MAX.to_le_bytes().to_vec()),
        (0, vec![0; 7]),
        (1, vec![0; 8]),
        (8, offer(|_| ())[..100].to_vec()),
        (9, offer(|_| ())),
        (12, offer(|o| o[0] = 200)),
        (12, offer(|o| o[33..41].fill(0xff))),
        (
            12,
            offer(|o| o[121..123].copy_from_slice(&64u16.to_le_bytes())),
        ),
        (12, offer(|o| o[123] = 7)),
        (12, offer(|o| o[130] = 1)),
    ];
    let mut all: Vec<_> = (announces.iter())
        .map(|(aux, body)| word("RTS", *aux, 900, body))
        .collect();
    for kind in [
        "CTS",
        "SLOT_CTS",
        "FIN",
        "ACK",
        "REAR_DONE",
        "PUT_DONE",
        "FD_REFUSED",
        "FRAGMENT",
        "CHECK",
    ] {
        all.push(word(kind, 1, STALE, &[]));
    }
    all.push(word("SLOT_CREDIT", 1, STALE, &[]));
    all.push(word("REAR_PUT", 0, STALE, &[0; 4]));
    all.push(word("POISON", 0, 5, &[]));
    all.push(word("CREDIT", 0, u32::MAX, &[]));
    all.push(word("LAYOUT", 0, 64, &[0; 40]));
    all.push(word("LAYOUT", 0, 63, &[0xee; 40]));
    // An edge where there is no graph, and what is no kind.
    all.extend([23, 29, 63].map(|kind| Word {
        kind,
        ..word("CTS", 0, 0, &[])
    }));
    all
}

/// Noise by seed, about no operation.
fn noise(seed: u64) -> Vec<Word> {
    let mut dice = Dice::new(seed);
    let kinds = [
        "SLOT",
        "SLOT_CREDIT",
        "PUT_OFFER",
        "FD_REQUEST",
        "LAYOUT",
        "CTS",
        "SLOT_CTS",
    ];
    let mut all = Vec::new();
    for _ in 0..200 {
        let kind = dice.of(&kinds);
        let mut bytes = match kind {
            "SLOT" => SLOT_BYTES,
            "PUT_OFFER" => OFFER_BYTES,
            _ => dice.below(300),
        };
        if kind == "FD_REQUEST" && bytes == 24 {
            bytes = 25; // what it asks for could be denied
        }
        let body: Vec<_> = (0..bytes).map(|_| dice.below(256) as u8).collect();
        // Odd ones take a PUT_OFFER back, which nobody has made.
        let aux = 2 * dice.below(8) as u16;
        all.push(word(kind, aux, STALE - dice.below(1000) as u32, &body));
    }
    all
}

pub fn run(comm: &Communicator) {
    let device = Device::of(comm);
    let (me, other) = (comm.rank(), 1 - comm.rank());
    for (round, kinds) in [
        [Kind::Pool; 2],
        [Kind::Plain; 2],
        [Kind::Plain, Kind::Pool],
        [Kind::Pool, Kind::SharedPool],
        [Kind::Mapped; 2],
    ]
    .into_iter()
    .enumerate()
    {
        let n = 200_000;
        let bytes = |tag: usize, rank: usize| -> Vec<u8> {
            let all = 0..n;
            all.map(|i| (i * 13 + i / 1000 + tag * 7 + rank * 3 + round) as u8)
                .collect()
        };
        let held = device.another_stream();
        let semaphore = StreamSemaphore::new(held.context()).expect("a stream semaphore");
        semaphore.hold(&held).expect("held");
        // Late bytes, late room, and both; one that is received at the end.
        let own: Vec<_> = (0..4)
            .map(|tag| device.with(kinds[me], &bytes(tag, me)))
            .collect();
        let room: Vec<_> = (0..4)
            .map(|_| device.with(kinds[me], &vec![0; n]))
            .collect();
        let stream = device.stream();
        stream.synchronize().expect("filled");
        let of = |late: bool| if late { &held } else { stream };
        let send = |tag: usize| {
            let from = own[tag].after_stream(of(tag != 1));
            comm.isend(from, other, tag).expect("begun")
        };
        let sends: Vec<_> = (0..4).map(send).collect();
        let receive = |tag: usize| {
            let to = room[tag].after_stream(of(tag != 0));
            comm.irecv(to, other, tag).expect("begun")
        };
        let mut receives: Vec<_> = (0..3).map(receive).collect();
        let before = malformed(comm);
        comm.barrier().expect("both are there");
        let words: Vec<_> = match me {
            0 => Vec::new(),
            _ => {
                let handles = (0..2u32).flat_map(|g| (0..16).map(move |at| at | g << 24));
                let some = handles.flat_map(of_any);
                some.chain(of_none()).chain(noise(round as u64)).collect()
            }
        };
        for word in &words {
            post(comm, other, word);
        }
        if me == 1 {
            comm.send(&[words.len() as u64], 0, 50).expect("told");
        } else {
            let mut posted = [0];
            comm.recv(&mut posted, 1, 50).expect("told");
            // They came before the number.
            assert_eq!(malformed(comm) - before, posted[0], "round {round}");
        }
        semaphore.open();
        receives.push(receive(3));
        for (tag, request) in receives.into_iter().enumerate() {
            request.wait().expect("received");
            let came = device.bytes(&room[tag]);
            assert!(came == bytes(tag, other), "round {round}, message {tag}");
        }
        for request in sends {
            request.wait().expect("sent");
        }
        comm.barrier().expect("both are there");
        assert_eq!(device_use(comm), Default::default());
        // Nothing that answers them came back.
        assert!(me == 0 || malformed(comm) == 0);
    }
    damaged_layout(comm, &device);
    super::through(comm);
}

/// A layout that is told anew, and damaged: the messages that name it come all the same.
fn damaged_layout(comm: &Communicator, device: &Device) {
    let byte = Type::basic(Basic::U8);
    let rows = Type::vector(100, 900, 1800, &byte).and_then(|ty| ty.commit());
    let rows = rows.expect("a layout");
    let before = malformed(comm);
    for turn in 0..3 {
        let bytes = |rank: usize| vec![20 + 10 * turn as u8 + rank as u8; 180_000];
        let slice = device.with(Kind::Plain, &bytes(comm.rank()));
        let view = DeviceView::new(&slice, 0, &rows, 1).expect("inside");
        let mut view = view.after_stream(device.stream());
        if comm.rank() == 1 {
            comm.send(&view, 0, turn).expect("sent");
            (0..8).for_each(|slot| post(comm, 0, &word("LAYOUT", 0, slot, &[0xee; 40])));
            comm.send(&[0u8], 0, 50).expect("told");
            continue;
        }
        comm.recv(&mut view, 1, turn).expect("received");
        // What was posted before it has come, which a barrier in shared memory does not say.
        comm.recv(&mut [0u8], 1, 50).expect("told");
        for (at, pair) in device.bytes(&slice).chunks(900).enumerate() {
            let right = bytes(1 - at % 2);
            assert!(pair == &right[..900], "turn {turn}, row {at}");
        }
    }
    comm.barrier().expect("both are there");
    let refused = malformed(comm) - before;
    // Two messages have named what was damaged.
    let right = if comm.rank() == 0 { 3 * 8 + 2 } else { 0 };
    assert_eq!(refused, right);
}
