//! Panels of Needleman-Wunsch on 64 ranks of 4 workers, in virtual time: what priorities change,
//! beside what no order of the blocks undercuts.
//!
//! `cargo test --release -p osier-examples --test panels -- --nocapture` prints the table.

#[path = "panels/virtual_time.rs"]
mod virtual_time;

use osier_examples::align::panel_graph::{Panel, Schedule, describe};
use virtual_time::{Network, Played, build, compute, play};

/// Rows and columns of a block.
const BLOCK: usize = 512;

/// Times of a block, in ns: 16 quantiles of the 3,481 spans `execute` of `osier run -n 1 --trace
/// out -- needleman_wunsch --by panels --block 512 --random 30000 --score-only` (a core of a
/// virtual AMD EPYC of family 26, beside other work, 2026-11-27).
const BLOCK_NS: [u64; 16] = [
    23_174, 26_008, 26_880, 27_521, 27_831, 28_132, 28_442, 28_712, 28_994, 29_324, 29_674, 30_105,
    30_625, 31_447, 32_578, 37_496,
];

/// Edges between processes of one machine: `osier bench tasks`, the same machine and day.
const NEAR: Network = Network {
    latency_ns: 155,
    ns_per_kib: 32,
};
/// A network of a cluster: assumed.
const FAR: Network = Network {
    latency_ns: 2_000,
    ns_per_kib: 80,
};

const RANKS: usize = 64;
const WORKERS: usize = 4;
const WINDOW: u32 = 8;

/// What a block takes: the same in each run.
fn block_ns([row, column]: [usize; 2]) -> u64 {
    let mixed = (row as u64) << 32 | column as u64;
    let mixed = (mixed ^ mixed >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    BLOCK_NS[(mixed >> 60) as usize]
}

struct Timed {
    row: usize,
}

impl Panel for Timed {
    fn fill(&mut self, column: usize, top: Option<Vec<u8>>) -> Vec<u8> {
        compute(block_ns([self.row, column]));
        top.unwrap_or_else(|| vec![0; BLOCK])
    }
}

fn fill(extents: [usize; 2], network: Network, priority: bool) -> Played {
    let schedule = Schedule {
        priority,
        window: WINDOW,
    };
    let graphs = build(RANKS, move || {
        describe(extents, RANKS, schedule, |row| Timed { row })
    });
    play(&graphs, WORKERS, network)
}

/// A time that no order of the blocks undercuts, in ns: the least in which each rank can do its
/// blocks, if a row begins once the first blocks above it are done, ends before the last blocks
/// below it are, and a rank has no more workers at work than rows that have begun and not ended.
fn bound([rows, columns]: [usize; 2], network: Network) -> u64 {
    let down = |column: usize| move |row: usize| block_ns([row, column]) + network.latency_ns;
    let begins: Vec<u64> = (0..rows).map(|row| (0..row).map(down(0)).sum()).collect();
    let below: Vec<u64> = (0..rows)
        .map(|row| (row + 1..rows).map(down(columns - 1)).sum())
        .collect();
    let work: Vec<u64> = (0..rows)
        .map(|row| (0..columns).map(|column| block_ns([row, column])).sum())
        .collect();
    let can_do = |rank: usize, took: u64| {
        let mut changes = Vec::new();
        for row in (rank..rows).step_by(RANKS) {
            if begins[row] + work[row] + below[row] > took {
                return false;
            }
            changes.extend([(begins[row], 1), (took - below[row], -1)]);
        }
        changes.sort_unstable();
        let (mut room, mut may_run, mut since) = (0, 0i64, 0);
        for (at, change) in changes {
            room += may_run.min(WORKERS as i64) as u64 * (at - since);
            (may_run, since) = (may_run + change, at);
        }
        room >= (rank..rows).step_by(RANKS).map(|row| work[row]).sum()
    };
    let (mut least, mut enough) = (0, begins[rows - 1] + below[0] + work.iter().sum::<u64>());
    while enough - least > 1_000 {
        let took = least.midpoint(enough);
        match (0..RANKS).all(|rank| can_do(rank, took)) {
            true => enough = took,
            false => least = took,
        }
    }
    least
}

#[test]
fn the_order_of_age_is_near_what_no_order_undercuts() {
    println!("{RANKS} ranks x {WORKERS} workers, ms");
    println!(
        "{:>11} {:>10} {:>8} {:>8} {:>8} {:>7} {:>7}",
        "blocks", "latency us", "bound", "by age", "by row", "age/bnd", "age/row"
    );
    for (rows, columns) in [(512, 512), (768, 768)] {
        for network in [NEAR, FAR] {
            let extents = [rows, columns];
            let bound = bound(extents, network);
            let [by_age, by_row] = [false, true].map(|priority| fill(extents, network, priority));
            let ms = |ns: u64| ns as f64 / 1e6;
            let ratio = |a: u64, b: u64| a as f64 / b as f64;
            println!(
                "{:>11} {:>10.2} {:>8.2} {:>8.2} {:>8.2} {:>7.3} {:>7.3}",
                format!("{rows} x {columns}"),
                network.latency_ns as f64 / 1e3,
                ms(bound),
                ms(by_age.took_ns),
                ms(by_row.took_ns),
                ratio(by_age.took_ns, bound),
                ratio(by_age.took_ns, by_row.took_ns),
            );
            for played in [by_age, by_row] {
                assert_eq!(played.firings, (rows * columns) as u64);
                assert_eq!(played.busy_ns, by_age.busy_ns);
                assert!(played.took_ns >= bound, "{played:?}");
            }
            let ratio = ratio(by_age.took_ns, bound);
            assert!(ratio < 1.15, "{rows} x {columns}, {network:?}: {ratio}");
        }
    }
}

#[test]
fn a_run_in_virtual_time_is_the_same_again() {
    let run = || fill([130, 40], FAR, true);
    assert_eq!(run(), run());
}

#[test]
fn one_panel_takes_the_time_of_its_blocks() {
    let played = fill([1, 50], FAR, false);
    let all = (0..50).map(|column| block_ns([0, column])).sum();
    assert_eq!((played.took_ns, played.busy_ns), (all, all));
}
