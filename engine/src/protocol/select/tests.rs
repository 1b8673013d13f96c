use super::*;
use crate::protocol::device::DeviceCosts;
use crate::protocol::uses::{SIZES, Uses};

fn fixed() -> LinkCosts {
    LinkCosts {
        latency_ns: 100.0,
        overhead_ns: 50.0,
        copy_ns_per_byte: 0.05,
        mapped_ns_per_byte: 0.04,
        attach_call_ns: 2000.0,
        attach_ns_per_byte: 0.04,
        leaves_lines: false,
        uses: None,
        device: None,
    }
}

#[test]
fn the_table_for_fixed_costs() {
    let s = Selection::new(fixed(), AT_ONCE_BYTES);
    assert_eq!(
        s.table(Memory::Private),
        [
            (0, Some(49152), Protocol::Eager),
            (49153, None, Protocol::Fragments),
        ]
    );
    assert_eq!(
        s.table(Memory::Plain),
        [
            (0, Some(32768), Protocol::Eager),
            (32769, None, Protocol::GetAttach),
        ]
    );
    assert_eq!(
        s.table(Memory::Heap),
        [
            (0, Some(4096), Protocol::Eager),
            (4097, None, Protocol::GetMapped),
        ]
    );
}

/// What needs no operation, no allocation and no system call.
#[test]
fn four_kibibytes_are_eager_whatever_the_costs() {
    let instant = LinkCosts {
        latency_ns: 0.0,
        attach_call_ns: 0.0,
        ..fixed()
    };
    for costs in [fixed(), LinkCosts::default(), instant] {
        let s = Selection::new(costs, AT_ONCE_BYTES);
        assert!(s.always_eager() >= 4096);
    }
}

#[test]
fn both_sides_of_a_shared_transfer_end_together() {
    let c = fixed();
    for bytes in [256 << 10, 1 << 20, 64 << 20] {
        let k = c.share(bytes, false) as f64;
        let n = bytes as f64;
        let read = c.attach_call_ns + k * c.attach_ns_per_byte;
        let write = c.latency_ns + c.attach_call_ns + (n - k) * c.attach_ns_per_byte;
        assert!(
            (read - write).abs() < 0.05 * read,
            "{bytes}: {read} {write}"
        );
    }
    assert_eq!(c.share(4096, false), 4096, "too small to share");
}

/// Who receives as well copies twice for each message that goes at once.
#[test]
fn crossing_messages_are_announced_earlier() {
    let s = Selection::new(fixed(), AT_ONCE_BYTES);
    // 100 + 2 * 0.05 n + overheads against 2200 + 0.04 n.
    assert_eq!(s.crossing_max(Memory::Plain), 32768);
    assert_eq!(s.crossing_max(Memory::Private), 49152);
    let slow = LinkCosts {
        copy_ns_per_byte: 0.2,
        ..fixed()
    };
    let s = Selection::new(slow, AT_ONCE_BYTES);
    assert_eq!(s.crossing_max(Memory::Plain), 4096);
}

/// Messages of 32 KiB whose receive waits are faster eager, late ones are not: the choice is
/// that of the smaller loss, and of one use alone its own.
#[test]
fn the_choice_loses_least_over_uses() {
    let costs = |posted: [f64; 2], unposted: [f64; 2], window: [f64; 2]| {
        let mut uses = Uses(Default::default());
        for (bytes, times) in SIZES.into_iter().zip(&mut uses.0) {
            let of = |[eager, fragments]: [f64; 2]| {
                [eager, fragments, 9.0].map(|rate| rate * bytes as f64)
            };
            *times = [of(posted), of(unposted), of(window)];
        }
        LinkCosts {
            uses: Some(uses),
            ..LinkCosts::default()
        }
    };
    let eager_max = |costs| Selection::new(costs, AT_ONCE_BYTES).eager_max(Memory::Plain);
    let alike = [1.0, 1.0];
    assert!(eager_max(costs([1.0, 1.2], alike, alike)) >= 32 << 10);
    assert!(eager_max(costs([1.0, 1.2], [1.1, 1.0], alike)) >= 32 << 10);
    assert!(eager_max(costs([1.0, 1.2], [1.4, 1.0], alike)) < 32 << 10);
    let s = Selection::new(costs([1.0, 1.2], alike, alike), AT_ONCE_BYTES);
    // Predictions are those of receives that wait.
    assert_eq!(
        s.predicted_ns(32 << 10, Protocol::Fragments),
        1.2 * f64::from(32 << 10)
    );
    let kernel = costs([1.0, 20.0], [1.0, 20.0], [1.0, 8.0]);
    let s = Selection::new(kernel, AT_ONCE_BYTES);
    assert_eq!(s.answer(1 << 20, Memory::Plain), Protocol::GetAttach);
    assert_eq!(s.answer(1 << 20, Memory::Private), Protocol::Fragments);
}

#[test]
fn attach_is_never_chosen_where_its_rate_is_lower() {
    let costs = LinkCosts {
        attach_ns_per_byte: 0.12,
        ..fixed()
    };
    let s = Selection::new(costs, AT_ONCE_BYTES);
    assert_eq!(s.choose(1 << 35, Memory::Plain), Protocol::Fragments);
    assert_eq!(s.table(Memory::Plain).len(), 2);
}

#[test]
fn the_choice_is_the_cheapest_among_the_announced() {
    let s = Selection::new(fixed(), AT_ONCE_BYTES);
    let c = fixed();
    for shift in 17..36 {
        let n = 1usize << shift;
        let best = if c.attach_ns(n) < c.fragments_ns(n) {
            Protocol::GetAttach
        } else {
            Protocol::Fragments
        };
        assert_eq!(s.choose(n, Memory::Plain), best, "{n} bytes");
    }
}

/// Rows are found by their protocol.
#[test]
fn each_protocol_has_one_row_at_its_place() {
    for (at, row) in TABLE.iter().enumerate() {
        assert_eq!(row.protocol as usize, at, "{}", row.protocol);
    }
}

const PAIR: DevicePair = DevicePair {
    placement: Placement::Device,
    from: Made::Plain,
    to: Some(Made::Plain),
    layout_known: true,
    fits: true,
    turns: Turns::None,
};

const STRIDED: End = End {
    space: Space::Device,
    class: Class::Strided,
};

/// An announced message between two devices.
fn announced(pair: DevicePair, bytes: usize) -> Message {
    Message {
        pair: Some(pair),
        announced: true,
        waits: true,
        offered: true,
        ..Message::between(STRIDED, STRIDED, bytes)
    }
}

fn chosen(pair: DevicePair, pipelining: Pipelining, bytes: usize) -> Option<Protocol> {
    let rules = Rules {
        pipelining,
        ..Rules::new(&LinkCosts::default(), AT_ONCE_BYTES)
    };
    rules.choose(&announced(pair, bytes))
}

/// Memory that can be opened is read or written by one kernel; between devices that reach
/// each other nothing crosses the host.
#[test]
fn reached_memory_needs_no_host() {
    for placement in [Placement::Device, Placement::Linked, Placement::Apart] {
        for (from, to) in Made::ALL
            .into_iter()
            .flat_map(|a| Made::ALL.map(|b| (a, b)))
        {
            let pair = DevicePair {
                placement,
                from,
                to: Some(to),
                ..PAIR
            };
            let reached = |made| supported(made, placement).is_there();
            let protocol = match (reached(from), reached(to), placement) {
                (true, _, _) => Protocol::DeviceGet,
                (false, true, _) => Protocol::DevicePut,
                (false, false, Placement::Device | Placement::Linked) => Protocol::DeviceSlots,
                (false, false, _) => Protocol::HostSlots,
            };
            for bytes in [9 << 10, 1 << 20, 64 << 20] {
                assert_eq!(
                    chosen(pair, Pipelining::Auto, bytes),
                    Some(protocol),
                    "{pair:?}"
                );
            }
        }
    }
}

/// Of one process, one kernel of either device, or slots of the host.
#[test]
fn one_process_reads_by_one_kernel() {
    for placement in [
        Placement::Process,
        Placement::Devices,
        Placement::DevicesApart,
    ] {
        let pair = DevicePair { placement, ..PAIR };
        let protocol = match placement {
            Placement::DevicesApart => Protocol::HostSlots,
            _ => Protocol::DeviceGet,
        };
        assert_eq!(chosen(pair, Pipelining::On, 1 << 20), Some(protocol));
    }
}

#[test]
fn the_table_of_protocols_between_devices() {
    let pool = DevicePair {
        from: Made::Pool,
        ..PAIR
    };
    let unknown_layout = DevicePair {
        layout_known: false,
        ..PAIR
    };
    let short = DevicePair {
        fits: false,
        ..PAIR
    };
    let unknown = DevicePair { to: None, ..pool };
    let table = [
        (unknown_layout, Pipelining::Auto, Protocol::DevicePut),
        (short, Pipelining::Auto, Protocol::DeviceSlots),
        (pool, Pipelining::Auto, Protocol::DevicePut),
        (unknown, Pipelining::Auto, Protocol::DeviceSlots),
        (unknown, Pipelining::Off, Protocol::HostSlots),
        (PAIR, Pipelining::On, Protocol::DeviceSlots),
        (PAIR, Pipelining::Off, Protocol::DeviceGet),
    ];
    for (pair, pipelining, protocol) in table {
        assert_eq!(
            chosen(pair, pipelining, 1 << 20),
            Some(protocol),
            "{pair:?}, {pipelining:?}"
        );
    }
}

/// Invariant 1, of all that a receiver may know.
#[test]
fn every_announced_message_has_a_protocol() {
    let rules = Rules::new(&LinkCosts::default(), AT_ONCE_BYTES);
    let host = End {
        space: Space::Host,
        class: Class::Strided,
    };
    let pairs = [None, Some(PAIR), Some(DevicePair { to: None, ..PAIR })];
    for (from, to) in [
        (STRIDED, STRIDED),
        (STRIDED, host),
        (host, STRIDED),
        (host, host),
    ] {
        for (late, shares_host) in [(false, false), (false, true), (true, false), (true, true)] {
            for pair in pairs {
                let message = Message {
                    pair: pair.filter(|_| from == to && from == STRIDED),
                    announced: true,
                    waits: true,
                    shares_host,
                    late: late && from == STRIDED,
                    ..Message::between(from, to, 1 << 20)
                };
                let chosen = rules.choose(&message);
                assert!(
                    chosen.is_some_and(|protocol| protocol != Protocol::Eager),
                    "{message:?}: {chosen:?}"
                );
            }
        }
    }
    let apart = announced(
        DevicePair {
            placement: Placement::Apart,
            ..PAIR
        },
        1 << 20,
    );
    let apart = Message {
        shares_host: false,
        ..apart
    };
    assert_eq!(rules.choose(&apart), Some(Protocol::Fragments));
}

/// A short message of a device waits for no receive, or is read by one kernel.
#[test]
fn short_messages_of_devices_are_eager_unless_one_kernel_is_quicker() {
    let costs = LinkCosts {
        device: Some(DeviceCosts {
            launch_ns: 4000.0,
            copy_ns: 7000.0,
            ..DeviceCosts::default()
        }),
        ..LinkCosts::default()
    };
    let rules = Rules::new(&costs, AT_ONCE_BYTES);
    let standard = Message {
        pair: Some(PAIR),
        ..Message::between(STRIDED, STRIDED, 8)
    };
    let waits = Message {
        waits: true,
        ..standard
    };
    assert!(rules.is_eager(&standard));
    assert_eq!(rules.choose(&waits), Some(Protocol::DeviceGet));
    assert!(!rules.is_eager(&waits));
    let alone = Message {
        pair: None,
        ..waits
    };
    assert!(rules.is_eager(&alone));
    let long = Message {
        bytes: rules.device_eager_bytes + 1,
        ..alone
    };
    assert!(!rules.is_eager(&long));
}

/// Without the multi-process service the kernels of two processes take turns on a device.
#[test]
fn processes_that_take_turns_get_few_large_pieces() {
    let rules = Rules::new(&LinkCosts::default(), AT_ONCE_BYTES);
    let turn_ns = DeviceCosts::default().turn_ns;
    let with = |turns: Turns, bytes: usize| {
        announced(
            DevicePair {
                from: Made::Pool,
                to: Some(Made::Pool),
                turns,
                ..PAIR
            },
            bytes,
        )
    };
    for protocol in [Protocol::DeviceSlots, Protocol::HostSlots] {
        let [free, turns] = [Turns::None, Turns::Sender]
            .map(|turns| rules.predict(protocol, &with(turns, 4 << 20)));
        let round = |cut: Pipeline| cut.fragment * cut.depth;
        let (few, many) = (round(turns.pipeline), round(free.pipeline));
        assert!(few >= many, "{protocol:?}: {few} and {many} bytes");
        assert!(turns.ns >= turn_ns + free.ns, "{protocol:?}");
        // Between two rounds there are two turns.
        let long = rules.predict(protocol, &with(Turns::Sender, 64 << 20));
        let rounds = (64 << 20) / round(long.pipeline);
        assert!(long.ns > (2 * rounds - 1) as f64 * turn_ns, "{protocol:?}");
        assert!(rounds < 16, "{protocol:?}: {rounds}");
    }
}

/// What one of two processes that take turns can do for both is done by the same one both
/// ways, and then there is no turn.
#[test]
fn one_of_two_processes_that_take_turns_works_for_both() {
    let rules = Rules::new(&LinkCosts::default(), AT_ONCE_BYTES);
    let turn_ns = DeviceCosts::default().turn_ns;
    let with = |turns: Turns| DevicePair { turns, ..PAIR };
    for bytes in [16 << 10, 64 << 20] {
        let ns = |protocol, turns| rules.predict(protocol, &announced(with(turns), bytes)).ns;
        for (protocol, works, idles) in [
            (Protocol::DeviceGet, Turns::Receiver, Turns::Sender),
            (Protocol::DevicePut, Turns::Sender, Turns::Receiver),
        ] {
            assert_eq!(ns(protocol, works), ns(protocol, Turns::None));
            assert_eq!(ns(protocol, idles), ns(protocol, Turns::None) + turn_ns);
            assert_eq!(rules.choose(&announced(with(works), bytes)), Some(protocol));
        }
    }
    assert_eq!(Turns::of(3, 5), Turns::Sender);
    assert_eq!(Turns::of(5, 3), Turns::Receiver);
}

/// A short message of one run needs no turn: copy engines move it.
#[test]
fn copy_engines_need_no_turn() {
    let costs = LinkCosts {
        device: Some(DeviceCosts {
            launch_ns: 3000.0,
            ..DeviceCosts::default()
        }),
        ..LinkCosts::default()
    };
    let rules = Rules::new(&costs, AT_ONCE_BYTES);
    let run = End {
        class: Class::Run,
        ..STRIDED
    };
    let with = |end: End, turns: Turns| Message {
        pair: Some(DevicePair { turns, ..PAIR }),
        ..Message::between(end, end, 8)
    };
    let ns = |end, turns| rules.predict(Protocol::Eager, &with(end, turns)).ns;
    let device = costs.device.expect("costs");
    let copies = 2.0 * (device.copy_ns - device.launch_ns);
    let longer = ns(run, Turns::Sender) - ns(run, Turns::None);
    assert!((longer - copies).abs() < 1.0, "{longer}");
    let longer = ns(STRIDED, Turns::Sender) - ns(STRIDED, Turns::None);
    assert!((longer - device.turn_ns).abs() < 1.0, "{longer}");
    // Through the host by copy engines, where nothing else needs no turn.
    let long = Message {
        from: run,
        to: run,
        ..announced(
            DevicePair {
                from: Made::Pool,
                to: Some(Made::Pool),
                turns: Turns::Sender,
                ..PAIR
            },
            64 << 10,
        )
    };
    assert_eq!(rules.choose(&long), Some(Protocol::HostSlots));
}

/// Candidates and ranking are one: those that can carry a message, by their times.
#[test]
fn the_ranking_is_the_candidates_by_time() {
    let rules = Rules::new(&LinkCosts::default(), AT_ONCE_BYTES);
    for bytes in [0, 8, 4 << 10, 64 << 10, 1 << 20, 256 << 20] {
        let of_hosts = [Memory::Private, Memory::Plain, Memory::Heap]
            .map(|memory| Message::of_host(bytes, memory));
        let of_devices = [
            announced(PAIR, bytes),
            Message::between(STRIDED, STRIDED, bytes),
        ];
        for message in of_hosts.into_iter().chain(of_devices) {
            let candidates = rules.candidates(&message);
            let able = candidates
                .iter()
                .filter(|one| !matches!(one.able, Able::No(_)));
            let ranking: Vec<Protocol> = rules.ranking(&message).iter().collect();
            assert_eq!(able.clone().count(), ranking.len());
            for one in able {
                let best = rules.predict(ranking[0], &message).ns;
                let own = one.predicted.expect("a prediction").ns;
                let always = rules.able(ranking[0], &message) == Able::Always;
                assert!(always || best <= own, "{message:?}");
                assert!(ranking.contains(&one.protocol));
            }
        }
    }
}

/// Receivers try both ways where predictions are alike, not where costs leave no doubt.
#[test]
fn both_ways_are_tried_where_predictions_are_alike() {
    let tried = |attach_call_ns, attach_ns_per_byte| {
        let costs = LinkCosts {
            attach_call_ns,
            attach_ns_per_byte,
            ..LinkCosts::default()
        };
        Selection::new(costs, AT_ONCE_BYTES).tried_min()
    };
    let built_in = LinkCosts::default();
    assert_eq!(tried(built_in.attach_call_ns, 0.08), Some(TRIED_BYTES));
    // The kernel does not copy, or costs say that it does so in no time.
    assert_eq!(tried(1e15, 1.0), None);
    assert_eq!(tried(1.0, 1e-6), None);
    // A call is so dear that only long messages may gain.
    let late = tried(1e6, 0.02).expect("some are tried");
    assert!(late > TRIED_BYTES);
    let (cheap, dear) = (
        LinkCosts::default(),
        LinkCosts {
            attach_ns_per_byte: 1e3,
            ..built_in
        },
    );
    let both = Selection::among(&[dear, cheap], AT_ONCE_BYTES);
    assert!(both.is_tried(TRIED_BYTES) && !both.is_tried(TRIED_BYTES - 1));
}

/// What is posted later makes a handshake dear: all that may be eager is.
#[test]
fn delayed_messages_are_eager_up_to_the_limit() {
    let selection = Selection::new(LinkCosts::default(), 64);
    for memory in [Memory::Private, Memory::Plain] {
        assert!(selection.eager_max(memory) < EAGER_LIMIT_BYTES);
        for ns in [20_000, 1_000_000, u64::MAX / 2] {
            assert_eq!(selection.later(ns).eager_max(memory), EAGER_LIMIT_BYTES);
        }
    }
}
