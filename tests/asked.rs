//! `OSIER_TEST`: settings of tests, in one variable.
//!
//! ```text
//! OSIER_TEST=trees=1000,seed=7    pairs end at a comma; a comma of a value is written twice
//! ```
//!
//! | key | meaning | tests |
//! |---|---|---|
//! | `graphs` | random task graphs of a test | `random` of `tasks` |
//! | `trees` | random types of a test, or of a soak | of datatypes and kernels |
//! | `seed` | the seed of `one_seed`, or the first of a soak | those, `engine_sim` |
//! | `seconds`, `runs` | length of a soak: time, programs | those, `engine_sim` |
//! | `case` | what a failure has printed, for `one_case`; one shape | `engine_sim`, `inspect` |
//! | `calls`, `call-seed` | seeds of collective calls: how many, or which one | `engine_sim` |
//! | `deviations`, `schedules`, `deadly` | bounds of the exploration | `engine_sim`; `schedules`, of each job, `ranks` |
//! | `rounds` | rounds of each operator | `reduce` of the kernels |
//! | `sass` | folder of disassembled kernels | `inspect` of the kernels |
//! | `agreements`, `agreeing-ranks` | agreements with deaths: pure, of real ranks | unit tests of the engine; `ranks` |
//! | `hang-seeds` | seeds of the verdict on hangs | unit tests of the engine |
//! | `collective-seeds` | seeds of jobs that lose a rank | `processes` |
//! | `graph-kills` | graphs that lose a rank | `graph_deaths` |
//! | `rank-graphs` | random task graphs of real ranks | `ranks` |
//! | `window-programs` | random programs of windows | `ranks` |
//! | `first-step` | where a sample of deaths begins | `device_deaths`, `one_kernel` |
//! | `skip` | what tests may do without, of the keys in `tests/needs.rs` | all that use it |

/// Each key, for what is not known to be refused.
const KEYS: [&str; 22] = [
    "graphs",
    "trees",
    "seed",
    "seconds",
    "runs",
    "case",
    "calls",
    "call-seed",
    "deviations",
    "schedules",
    "deadly",
    "rounds",
    "sass",
    "agreements",
    "agreeing-ranks",
    "hang-seeds",
    "collective-seeds",
    "graph-kills",
    "rank-graphs",
    "window-programs",
    "first-step",
    "skip",
];

/// Variables that once were; `SOAK_SEED` and `TREE_SEED` are `seed` now, and so on.
const OLD: [&str; 17] = [
    "TREES",
    "TREE_SEED",
    "SOAK_SECONDS",
    "SOAK_TREES",
    "SOAK_SEED",
    "SOAK_RUNS",
    "SEED",
    "CASE",
    "CALLS",
    "SEED_OF_CALLS",
    "DEVIATIONS",
    "SCHEDULES",
    "DEADLY",
    "ROUNDS",
    "HANG_SEEDS",
    "COLLECTIVE_SEEDS",
    "FIRST_STEP",
];

/// The value of a key.
#[allow(dead_code)]
pub fn text(key: &str) -> Option<String> {
    assert!(KEYS.contains(&key), "{key} is no key of OSIER_TEST");
    for old in OLD {
        let set = std::env::var_os(format!("OSIER_{old}")).is_some();
        assert!(
            !set,
            "OSIER_{old} is read no longer (hint: OSIER_TEST, {KEYS:?})"
        );
    }
    let all = std::env::var("OSIER_TEST").unwrap_or_default();
    // No test needs this character.
    let all = all.replace(",,", "\0");
    let mut found = None;
    for pair in all.split(',').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair
            .split_once('=')
            .expect("OSIER_TEST=key=value,key=value");
        assert!(
            KEYS.contains(&name),
            "OSIER_TEST: {name} is none of {KEYS:?}"
        );
        if name == key {
            found = Some(value.replace('\0', ","));
        }
    }
    found
}

/// As [`text`], a number.
#[allow(dead_code)]
pub fn number(key: &str) -> Option<u64> {
    text(key).map(|text| {
        text.parse()
            .unwrap_or_else(|e| panic!("OSIER_TEST: {key}={text}: {e}"))
    })
}
