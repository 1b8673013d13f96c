//! Cases of the comparison, and the bar of each row.

/// One benchmark in one setting: a row for each size.
pub struct Case {
    /// Name as `osier bench` knows it.
    pub bench: &'static str,
    /// File name of the peers' program.
    pub program: &'static str,
    /// Datatype, in the notation of `--layout`.
    pub layout: &'static str,
    /// Where buffers lie.
    pub memory: Memory,
    /// Number of ranks; rank r runs on core r modulo the number of cores.
    pub ranks: u32,
    /// Sizes of one message in bytes; empty where there is none.
    pub sizes: &'static [u64],
}

/// Where buffers lie and whether they stay in the caches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// The language's own allocator, buffers reused.
    Plain,
    /// The same, walking through more buffers than the caches hold.
    PlainRotated,
    /// The library's allocator (`MPI_Alloc_mem` for the peers), buffers reused.
    Heap,
}

impl Memory {
    /// As printed and as in the rows of JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::PlainRotated => "plain-rotated",
            Self::Heap => "heap",
        }
    }

    /// Options that choose it, the same for `osier bench` and the peers.
    pub const fn options(self) -> &'static [&'static str] {
        match self {
            Self::Plain => &[],
            Self::PlainRotated => &["--rotate"],
            Self::Heap => &["--memory", "heap"],
        }
    }
}

impl Case {
    /// Whether all ranks call it together.
    pub fn is_collective(&self) -> bool {
        self.program == "collectives"
    }

    /// Short description for messages.
    pub fn title(&self) -> String {
        format!("{} {} {}", self.bench, self.layout, self.memory.name())
    }
}

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;

const fn case(
    bench: &'static str,
    program: &'static str,
    memory: Memory,
    ranks: u32,
    sizes: &'static [u64],
) -> Case {
    Case {
        bench,
        program,
        layout: "contiguous",
        memory,
        ranks,
        sizes,
    }
}

const fn pack(layout: &'static str) -> Case {
    Case {
        layout,
        ..case("pack", "pack", Memory::Plain, 1, &[M])
    }
}

/// All of them, in the order of the table.
pub const CASES: &[Case] = &[
    case(
        "latency",
        "latency",
        Memory::Plain,
        2,
        &[8, 64, K, 4 * K, 64 * K, M, 4 * M],
    ),
    case(
        "latency",
        "latency",
        Memory::PlainRotated,
        2,
        &[8, 64, K, 4 * K, 64 * K, M, 4 * M],
    ),
    case("latency", "latency", Memory::Heap, 2, &[64 * K, M, 4 * M]),
    case("bandwidth", "bandwidth", Memory::Plain, 2, &[M, 4 * M]),
    case(
        "bandwidth",
        "bandwidth",
        Memory::PlainRotated,
        2,
        &[M, 4 * M],
    ),
    case("bibandwidth", "bibandwidth", Memory::Plain, 2, &[M, 4 * M]),
    case("message-rate", "message_rate", Memory::Plain, 2, &[8]),
    case("multi-pair", "multi_pair", Memory::Plain, 4, &[8]),
    case("threads", "threads", Memory::Plain, 1, &[8]),
    case("threads", "threads", Memory::Plain, 2, &[8]),
    pack("contiguous"),
    pack("vector:8:16"),
    pack("indexed"),
    case("launch", "launch", Memory::Plain, 2, &[]),
    collective("barrier", 2, &[0]),
    collective("allreduce", 2, COLLECTIVE),
    collective("bcast", 2, COLLECTIVE),
    collective("alltoall", 2, COLLECTIVE),
    collective("allgather", 2, COLLECTIVE),
    collective("barrier", 4, &[0]),
    collective("allreduce", 4, COLLECTIVE),
    collective("bcast", 4, COLLECTIVE),
    collective("alltoall", 4, COLLECTIVE),
    collective("allgather", 4, COLLECTIVE),
];

/// Sizes of collectives.
const COLLECTIVE: &[u64] = &[8, K, 16 * K, 64 * K, M, 4 * M];

const fn collective(bench: &'static str, ranks: u32, sizes: &'static [u64]) -> Case {
    case(bench, "collectives", Memory::Plain, ranks, sizes)
}

/// What a row is held against.
#[derive(Clone, Copy, PartialEq)]
pub enum Bar {
    /// Time at most this part of the best peer's.
    TimeOfBest(f64),
    /// Rate at least this multiple of the best peer's.
    RateOfBest(f64),
    /// No slower than this multiple of one peer (a column of the table).
    OfPeer(usize, f64),
    /// Time at most this multiple of the floor of the same run.
    TimeOfFloor(f64),
}

/// The bars of one row.
pub fn bars(case: &Case, bytes: u64) -> &'static [Bar] {
    use Bar::{OfPeer, RateOfBest, TimeOfBest, TimeOfFloor};
    use Memory::{Heap, Plain, PlainRotated};
    match (case.bench, case.memory) {
        (_, Plain) if case.is_collective() => match (case.bench, bytes) {
            _ if case.ranks > 2 => &[TimeOfBest(1.0)],
            ("barrier", _) | ("allreduce", 8) => &[TimeOfBest(0.6)],
            (_, K..) => &[TimeOfBest(0.8)],
            _ => &[],
        },
        ("latency", Heap) if bytes >= M => &[TimeOfFloor(1.1)],
        ("latency", Plain) if bytes == 8 => &[TimeOfBest(0.5), TimeOfFloor(1.4)],
        ("latency", Plain | PlainRotated) => match bytes {
            8 => &[TimeOfBest(0.5)],
            K | 4096 => &[TimeOfBest(0.7)],
            65_536 => &[TimeOfBest(1.0)],
            _ if bytes >= M => &[TimeOfBest(0.85)],
            _ => &[],
        },
        ("bandwidth", _) if bytes >= M => &[RateOfBest(1.2)],
        ("message-rate", _) => &[RateOfBest(2.0)],
        ("multi-pair", _) => &[OfPeer(3, 1.0)],
        ("launch", _) => &[OfPeer(2, 0.2)],
        ("pack", _) if case.layout != "contiguous" => &[RateOfBest(1.5)],
        _ => &[],
    }
}
