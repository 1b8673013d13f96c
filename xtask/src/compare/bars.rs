//! The bar of each row, in one table: the first rule that fits says it.

use super::NAMES;
use super::cases::{Case, Memory};
use super::hop::Distance;
use super::sample::Unit;

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;

/// What a row is held against. Ratios are those of costs: of times, and of rates turned
/// over, so that less is better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bar {
    /// Time at most this part of the best peer's, or rate at least the inverse.
    CostOfBest(f64),
    /// Rate at least this multiple of the best peer's.
    RateOfBest(f64),
    /// No slower than this multiple of one peer (a column of the table).
    OfPeer(usize, f64),
    /// Time at most this multiple of the floor of the same run.
    TimeOfFloor(f64),
    /// Time with buffers in the shared heap, of the best peer's.
    HeapOfBest(f64),
    /// The same, of the mapped floor beside it.
    HeapOfMapped(f64),
    /// The same, of Osier's own in plain memory.
    HeapOfPlain(f64),
}

/// Benchmarks of a rule.
enum Which {
    /// By name, `osu_` and dashes aside.
    Of(&'static [&'static str]),
    Collectives,
    All,
}

use Distance::{Far, Near};
use Which::{All, Collectives, Of};

struct Rule {
    which: Which,
    memory: Option<Memory>,
    ranks: (u32, u32),
    bytes: (u64, u64),
    distance: Option<Distance>,
    bars: &'static [Bar],
}

const fn rule(
    which: Which,
    ranks: (u32, u32),
    bytes: (u64, u64),
    distance: Distance,
    bars: &'static [Bar],
) -> Rule {
    Rule {
        which,
        memory: None,
        ranks,
        bytes,
        distance: Some(distance),
        bars,
    }
}

const ANY: (u64, u64) = (0, u64::MAX);
const TWO: (u32, u32) = (2, 2);
const UP: (u32, u32) = (3, u32::MAX);
const REDUCE_SCATTERS: Which = Of(&["reduce", "reduce_scatter", "reduce_scatter_block"]);

use Bar::{CostOfBest, HeapOfBest, HeapOfMapped, HeapOfPlain, OfPeer, RateOfBest, TimeOfFloor};

/// The table.
const RULES: &[Rule] = &[
    // More ranks than cores: wherever the cores are.
    Rule {
        distance: None,
        ..rule(Of(&["multi_pair"]), (4, 4), ANY, Near, &[OfPeer(3, 1.0)])
    },
    Rule {
        distance: None,
        ..rule(Of(&["barrier"]), (4, 4), ANY, Near, &[CostOfBest(0.7)])
    },
    Rule {
        distance: None,
        ..rule(Of(&["allreduce"]), (4, 4), (8, 8), Near, &[CostOfBest(0.7)])
    },
    Rule {
        distance: None,
        ..rule(All, UP, ANY, Near, &[CostOfBest(1.0)])
    },
    // Without two cores.
    Rule {
        distance: None,
        ..rule(Of(&["launch"]), TWO, ANY, Near, &[OfPeer(2, 0.2)])
    },
    // Cores far from each other.
    rule(All, TWO, ANY, Far, &[CostOfBest(1.2)]),
    // Messages.
    Rule {
        memory: Some(Memory::Heap),
        ..rule(
            Of(&["latency"]),
            TWO,
            (M, u64::MAX),
            Near,
            &[TimeOfFloor(1.1)],
        )
    },
    Rule {
        memory: Some(Memory::Heap),
        ..rule(Of(&["latency"]), TWO, ANY, Near, &[])
    },
    rule(Of(&["latency"]), TWO, (0, 4 * K), Near, &[CostOfBest(0.7)]),
    rule(Of(&["latency"]), TWO, (0, 16 * K), Near, &[CostOfBest(0.8)]),
    rule(Of(&["latency"]), TWO, (0, 64 * K), Near, &[CostOfBest(1.0)]),
    rule(Of(&["latency"]), TWO, ANY, Near, &[CostOfBest(0.8)]),
    rule(
        Of(&["message_rate", "mbw_mr", "bandwidth", "bw"]),
        TWO,
        (8, 8),
        Near,
        &[RateOfBest(1.5)],
    ),
    rule(
        Of(&["bandwidth", "bw"]),
        TWO,
        (M, u64::MAX),
        Near,
        &[RateOfBest(0.9)],
    ),
    rule(
        Of(&["bibandwidth", "bibw"]),
        TWO,
        ANY,
        Near,
        &[RateOfBest(1.0)],
    ),
    // Accesses to windows.
    Rule {
        memory: Some(Memory::Plain),
        ..rule(Of(&["rma_put_flush"]), TWO, ANY, Near, &[CostOfBest(1.0)])
    },
    Rule {
        memory: Some(Memory::Plain),
        ..rule(
            Of(&["rma_put_window_64"]),
            TWO,
            ANY,
            Near,
            &[CostOfBest(1.0 / 1.5)],
        )
    },
    Rule {
        memory: Some(Memory::Heap),
        ..rule(
            Of(&["rma_put_window_64", "rma_accumulate"]),
            TWO,
            ANY,
            Near,
            &[CostOfBest(1.0)],
        )
    },
    Rule {
        memory: Some(Memory::Heap),
        ..rule(Of(&["rma_lock_unlock"]), TWO, ANY, Near, &[CostOfBest(1.2)])
    },
    Rule {
        memory: Some(Memory::Heap),
        ..rule(
            Of(&[
                "rma_put_flush",
                "rma_get_flush",
                "rma_fetch_and_op",
                "rma_compare_swap",
                "rma_put",
                "rma_get",
            ]),
            TWO,
            ANY,
            Near,
            &[CostOfBest(1.1)],
        )
    },
    // Collectives.
    rule(Of(&["barrier"]), TWO, ANY, Near, &[CostOfBest(0.6)]),
    rule(Of(&["allreduce"]), TWO, (8, 8), Near, &[CostOfBest(0.6)]),
    rule(REDUCE_SCATTERS, TWO, (K, 16 * K), Near, &[CostOfBest(1.0)]),
    rule(Collectives, TWO, (8, 16 * K), Near, &[CostOfBest(0.8)]),
    rule(
        Collectives,
        TWO,
        (64 * K, 64 * K),
        Near,
        &[CostOfBest(1.0), HeapOfBest(0.5)],
    ),
    rule(
        Of(&["reduce"]),
        TWO,
        (M, 4 * M),
        Near,
        &[CostOfBest(1.0), HeapOfMapped(1.2), HeapOfPlain(1.0)],
    ),
    rule(
        Collectives,
        TWO,
        (M, 4 * M),
        Near,
        &[CostOfBest(0.9), HeapOfMapped(1.2), HeapOfPlain(1.0)],
    ),
];

/// Packing has one rank, and its bar is about layouts.
const PACK: &[Bar] = &[RateOfBest(1.5)];

/// The bars of one row.
pub fn bars(case: &Case, bytes: u64, distance: Distance) -> &'static [Bar] {
    if case.bench == "pack" {
        return match case.layout {
            "contiguous" => &[],
            _ => PACK,
        };
    }
    let name = case.bench.trim_start_matches("osu_").replace('-', "_");
    let fits = |rule: &&Rule| {
        let which = match rule.which {
            Of(names) => names.contains(&name.as_str()),
            Collectives => case.is_collective(),
            All => true,
        };
        which
            && rule.memory.is_none_or(|memory| memory == case.memory)
            && rule.distance.is_none_or(|wanted| wanted == distance)
            && (rule.ranks.0..=rule.ranks.1).contains(&case.ranks)
            && (rule.bytes.0..=rule.bytes.1).contains(&bytes)
    };
    RULES.iter().find(fits).map_or(&[], |rule| rule.bars)
}

/// Numbers that a bar is judged by.
pub struct Numbers<'a> {
    /// By column.
    pub value: &'a dyn Fn(usize) -> Option<f64>,
    pub best_peer: Option<f64>,
    pub floor: Option<f64>,
    pub unit: Unit,
}

impl Bar {
    /// In words, and whether it is met; `None` where a number is missing, and no words where
    /// the row has no such column.
    pub fn judge(self, of: &Numbers<'_>) -> Option<(String, Option<bool>)> {
        let cost = |mine: Option<f64>, other: Option<f64>| {
            let ratio = mine? / other?;
            Some(if of.unit.is_time() {
                ratio
            } else {
                1.0 / ratio
            })
        };
        let own = (of.value)(0);
        let heap = (of.value)(super::HEAP);
        let told = |limit: f64, what: &str| match of.unit.is_time() {
            true => format!("<= {limit} {what}"),
            false => format!(">= {} {what}", (100.0 / limit).round() / 100.0),
        };
        Some(match self {
            Bar::CostOfBest(limit) => (
                told(limit, "best"),
                cost(own, of.best_peer).map(|ratio| ratio <= limit),
            ),
            // Of latencies beside a rate the bar is turned over, too.
            Bar::RateOfBest(limit) => (
                match of.unit.is_time() {
                    true => told(1.0 / limit, "best"),
                    false => format!(">= {limit} best"),
                },
                cost(own, of.best_peer).map(|ratio| ratio <= 1.0 / limit),
            ),
            Bar::OfPeer(column, limit) => (
                told(limit, NAMES[column]),
                cost(own, (of.value)(column)).map(|ratio| ratio <= limit),
            ),
            Bar::TimeOfFloor(limit) => (
                told(limit, "floor"),
                cost(own, of.floor).map(|ratio| ratio <= limit),
            ),
            Bar::HeapOfBest(_) | Bar::HeapOfMapped(_) | Bar::HeapOfPlain(_) if heap.is_none() => {
                return None;
            }
            Bar::HeapOfBest(limit) => (
                format!("heap {}", told(limit, "best")),
                cost(heap, of.best_peer).map(|ratio| ratio <= limit),
            ),
            Bar::HeapOfMapped(limit) => (
                format!("heap {}", told(limit, "mapped")),
                cost(heap, (of.value)(super::MAPPED)).map(|ratio| ratio <= limit),
            ),
            Bar::HeapOfPlain(limit) => (
                format!("heap {}", told(limit, "plain")),
                cost(heap, own).map(|ratio| ratio <= limit),
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::cases::cases;
    use super::*;

    fn of(bench: &str, ranks: u32, bytes: u64, distance: Distance) -> &'static [Bar] {
        let all = cases(&[ranks], true);
        let case = all.iter().find(|case| case.bench == bench);
        bars(case.expect("a case"), bytes, distance)
    }

    #[test]
    fn rules_are_found() {
        assert_eq!(of("latency", 2, 8, Near), [CostOfBest(0.7)]);
        assert_eq!(of("osu_latency", 2, 64 * K, Near), [CostOfBest(1.0)]);
        assert_eq!(of("osu_latency", 2, 4 * M, Near), [CostOfBest(0.8)]);
        assert_eq!(of("osu_bw", 2, 8, Near), [RateOfBest(1.5)]);
        assert_eq!(of("osu_bw", 2, 64 * K, Near), []);
        assert_eq!(of("osu_bibw", 2, 64 * K, Near), [RateOfBest(1.0)]);
        assert_eq!(of("barrier", 2, 0, Near), [CostOfBest(0.6)]);
        assert_eq!(of("allreduce", 2, 8, Near), [CostOfBest(0.6)]);
        assert_eq!(of("scan", 2, 8, Near), [CostOfBest(0.8)]);
        assert_eq!(of("reduce", 2, 8, Near), [CostOfBest(0.8)]);
        assert_eq!(of("osu_reduce_scatter", 2, K, Near), [CostOfBest(1.0)]);
        assert_eq!(
            of("reduce-scatter-block", 2, 4 * K, Near),
            [CostOfBest(1.0)]
        );
        assert_eq!(of("bcast", 2, 4 * M, Near)[0], CostOfBest(0.9));
        assert_eq!(of("reduce", 2, M, Near)[0], CostOfBest(1.0));
        assert_eq!(of("bcast", 2, 4 * M, Far), [CostOfBest(1.2)]);
        assert_eq!(of("allreduce", 4, 8, Far), [CostOfBest(0.7)]);
        assert_eq!(of("allreduce", 4, K, Near), [CostOfBest(1.0)]);
        assert_eq!(of("allreduce", 64, 8, Near), [CostOfBest(1.0)]);
    }

    #[test]
    fn bars_are_judged_by_costs() {
        let values = [Some(0.2), Some(0.4), None, Some(0.9)];
        let value = |column: usize| values.get(column).copied().flatten();
        let numbers = |unit| Numbers {
            value: &value,
            best_peer: Some(0.4),
            floor: Some(0.1),
            unit,
        };
        let judge = |bar: Bar, unit| bar.judge(&numbers(unit));
        let told = |text: &str, met| Some((text.to_owned(), met));
        let us = Unit::Micros;
        assert_eq!(judge(CostOfBest(0.5), us), told("<= 0.5 best", Some(true)));
        assert_eq!(
            judge(TimeOfFloor(1.4), us),
            told("<= 1.4 floor", Some(false))
        );
        assert_eq!(judge(OfPeer(2, 0.2), us), told("<= 0.2 mpich", None));
        assert_eq!(judge(HeapOfBest(0.5), us), None);
        let rate = Unit::MessagesPerSecond;
        assert_eq!(
            judge(RateOfBest(1.5), rate),
            told(">= 1.5 best", Some(false))
        );
        assert_eq!(
            judge(CostOfBest(2.0), rate),
            told(">= 0.5 best", Some(true))
        );
    }
}
