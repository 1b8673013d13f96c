//! Calls with counts of device memory between processes: what they ask of the driver, and
//! deaths in the middle.

mod support;

use std::collections::BTreeMap;
use std::process::Command;
use support::{driver_calls, emulated, job, killed_at};

fn counts(ranks: usize, calls: usize, way: &str) -> Command {
    let options = ["--on-death", "report", "--emulate-gpus", "2"];
    job(ranks, &options, &["device-counts", &calls.to_string(), way])
}

/// What ten calls ask of the driver, by name.
fn of_ten(ranks: usize, way: &str) -> BTreeMap<String, i64> {
    let all: Vec<usize> = (0..ranks).collect();
    let mut more: BTreeMap<String, i64> = BTreeMap::new();
    for (calls, sign) in [(14, 1), (4, -1)] {
        for name in driver_calls(&mut counts(ranks, calls, way), &all) {
            *more.entry(name).or_default() += sign;
        }
    }
    more
}

/// Copies and kernels: a rank reads each peer's block once, and moves its own, on devices that
/// reach each other; a call through the host copies both whole buffers down, for what lies between
/// the blocks, and one up. (What the host itself copies, the program has asserted.)
#[test]
fn blocks_cross_links_once_and_the_host_never() {
    if !emulated() {
        return;
    }
    for ranks in [2, 3] {
        let work = |way| -> i64 {
            let calls = of_ten(ranks, way);
            println!("{ranks} ranks, {way}: {calls:?}");
            let moves = ["cuLaunchKernel", "cuMemcpy"];
            let moves = calls
                .iter()
                .filter(|(name, _)| moves.iter().any(|m| name.starts_with(m)));
            moves.map(|(_, n)| n).sum()
        };
        assert_eq!(work("stays"), 10 * ranks as i64, "one for each block");
        assert!(work("host") >= 30, "three whole buffers a call");
    }
}

#[test]
fn a_rank_is_killed_while_blocks_are_under_way() {
    if !emulated() {
        return;
    }
    let steps = driver_calls(&mut counts(2, 3, "stays"), &[0, 1]).len();
    // Others in each run.
    let every = steps.div_ceil(6);
    let first = 1 + std::process::id() as usize % every;
    let all = (first..=steps).step_by(every);
    let killed = all.filter(|step| killed_at(*step, &mut counts(2, 3, "stays")));
    assert!(killed.count() > 0, "nobody was killed in {steps} steps");
}
