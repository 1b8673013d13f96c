//! Cases of the comparison.

/// One benchmark in one setting: a row for each size.
#[derive(Clone, Copy)]
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

    /// Whether it is an access to a window: a program on the C library of each.
    pub fn is_rma(&self) -> bool {
        self.program == RMA
    }

    /// Whether it is a program of the OSU micro-benchmarks.
    pub fn is_osu(&self) -> bool {
        self.program == OSU
    }

    /// Its sizes, each a run of its own; 0 where there is none.
    pub const fn runs(&self) -> &'static [u64] {
        match self.sizes {
            [] => &[0],
            sizes => sizes,
        }
    }

    /// Short description for messages.
    pub fn title(&self) -> String {
        let Self { bench, layout, .. } = self;
        format!(
            "{bench} {layout} {}, {} ranks",
            self.memory.name(),
            self.ranks
        )
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

/// Program of the cases that are accesses to windows.
pub const RMA: &str = "rma";
/// Accesses to windows, where they are named: of memory of `MPI_Win_allocate` (heap) and of the
/// program's own (plain).
pub const ACCESSES: [(&str, &[u64]); 10] = [
    ("rma-put-flush", &[8]),
    ("rma-get-flush", &[8]),
    ("rma-fetch-and-op", &[8]),
    ("rma-compare-swap", &[8]),
    ("rma-put-window-64", &[8]),
    ("rma-accumulate", &[8000]),
    ("rma-put", &[4 * K, 64 * K, M, 4 * M]),
    ("rma-get", &[4 * K, 64 * K, M, 4 * M]),
    ("rma-lock-unlock", &[]),
    ("rma-fence", &[]),
];
/// Program of the cases that are OSU's.
const OSU: &str = "osu";
/// Sizes of messages.
const MESSAGES: &[u64] = &[8, 64, K, 4 * K, 16 * K, 64 * K, M, 4 * M];
/// Sizes of collectives.
const COLLECTIVE: &[u64] = &[8, K, 4 * K, 16 * K, 64 * K, M, 4 * M];
/// Sizes of collectives of many ranks.
const CROWDED: &[u64] = &[8, K, 64 * K];

/// Those of messages, packing and launch.
const MESSAGE_CASES: &[Case] = &[
    case("latency", "latency", Memory::Plain, 2, MESSAGES),
    case("latency", "latency", Memory::PlainRotated, 2, MESSAGES),
    case("latency", "latency", Memory::Heap, 2, &[64 * K, M, 4 * M]),
    case("bandwidth", "bandwidth", Memory::Plain, 2, &[8, M, 4 * M]),
    case(
        "bandwidth",
        "bandwidth",
        Memory::PlainRotated,
        2,
        &[M, 4 * M],
    ),
    case("bibandwidth", "bibandwidth", Memory::Plain, 2, MESSAGES),
    case("message-rate", "message_rate", Memory::Plain, 2, &[8]),
    case("multi-pair", "multi_pair", Memory::Plain, 4, &[8]),
    case("threads", "threads", Memory::Plain, 1, &[8]),
    case("threads", "threads", Memory::Plain, 2, &[8]),
    pack("contiguous"),
    pack("vector:8:16"),
    pack("indexed"),
    case("launch", "launch", Memory::Plain, 2, &[]),
];

/// Collectives of `osier bench` and of the peers' program; those of the second list only
/// where they are named.
const COLLECTIVES: [&str; 11] = [
    "bcast",
    "gather",
    "scatter",
    "allgather",
    "alltoall",
    "reduce",
    "allreduce",
    "reduce-scatter-block",
    "reduce-scatter",
    "scan",
    "exscan",
];
/// With counts.
pub const ON_REQUEST: [&str; 4] = ["gatherv", "scatterv", "allgatherv", "alltoallv"];

/// OSU's programs between two ranks, and in pairs.
const OSU_MESSAGES: [(&str, &[u64]); 4] = [
    ("osu_latency", MESSAGES),
    ("osu_bw", MESSAGES),
    ("osu_bibw", MESSAGES),
    ("osu_mbw_mr", &[8]),
];
/// OSU's collectives; those that a version lacks are left out.
const OSU_COLLECTIVES: [&str; 10] = [
    "osu_bcast",
    "osu_gather",
    "osu_scatter",
    "osu_allgather",
    "osu_alltoall",
    "osu_reduce",
    "osu_allreduce",
    "osu_reduce_scatter_block",
    "osu_reduce_scatter",
    "osu_scan",
];

/// All cases with so many ranks, in the order of the table: those that do not depend on it
/// come with two.
pub fn cases(ranks: &[u32], osu: bool) -> Vec<Case> {
    let mut all = Vec::new();
    for (turn, &ranks) in ranks.iter().enumerate() {
        if turn == 0 {
            all.extend(MESSAGE_CASES.iter().copied());
        }
        let sizes = if ranks > 4 { CROWDED } else { COLLECTIVE };
        let own = |name| case(name, "collectives", Memory::Plain, ranks, sizes);
        all.push(Case {
            sizes: &[0],
            ..own("barrier")
        });
        all.extend(COLLECTIVES.into_iter().chain(ON_REQUEST).map(own));
        if ranks == 2 {
            for memory in [Memory::Heap, Memory::Plain] {
                let access = |(name, sizes)| case(name, RMA, memory, 2, sizes);
                all.extend(ACCESSES.map(access));
            }
        }
        if osu {
            if ranks == 2 {
                let two = |(name, sizes)| case(name, OSU, Memory::Plain, 2, sizes);
                all.extend(OSU_MESSAGES.map(two));
            }
            let theirs = |name| case(name, OSU, Memory::Plain, ranks, sizes);
            all.push(Case {
                sizes: &[0],
                ..theirs("osu_barrier")
            });
            all.extend(OSU_COLLECTIVES.map(theirs));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_of_all_ranks() {
        let all = cases(&[2, 4], true);
        let count = |bench: &str| all.iter().filter(|case| case.bench == bench).count();
        assert_eq!((count("latency"), count("allreduce")), (3, 2));
        assert_eq!((count("osu_bw"), count("osu_allreduce")), (1, 2));
        assert!(cases(&[2], false).iter().all(|case| !case.is_osu()));
        assert_eq!((count("rma-put"), count("rma-lock-unlock")), (2, 2));
        let crowded = cases(&[64], false);
        let wide = crowded.iter().find(|case| case.bench == "scan");
        assert_eq!(wide.map(|case| case.runs()), Some(CROWDED));
    }
}
