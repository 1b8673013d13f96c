//! The file of costs, cut short and with each of its values replaced: it is refused by an error
//! that names it, or it is used. Never a panic, whatever plans are made by it.

mod support;

use osier::model::{CallCosts, CostSet, load, store};
use osier_engine::protocol::cost::LinkCosts;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use support::{finish, job, launcher};

/// A file in a folder of this test.
fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("osier-files-{}-{name}", std::process::id()))
}

fn sound(file: &Path) -> String {
    let costs = LinkCosts::default();
    let calls = Some(CallCosts::estimated(&costs));
    store(file, CostSet::now(Some(40.0), costs, calls)).expect("written");
    std::fs::read_to_string(file).expect("read")
}

/// Where the values of a document are, as JSON pointers.
fn leaves(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                leaves(value, &format!("{at}/{key}"), found);
            }
        }
        Value::Array(list) => {
            for (i, value) in list.iter().enumerate() {
                leaves(value, &format!("{at}/{i}"), found);
            }
        }
        _ => {}
    }
    found.push(at.to_owned());
}

fn wrong_values() -> [Value; 9] {
    [
        Value::Null,
        json!(-1.0),
        json!(0),
        json!(1e308),
        json!(5e-324),
        json!(u64::MAX),
        json!("text"),
        json!([]),
        json!({}),
    ]
}

/// That jobs and plans by this file end well, or are refused in its name.
fn used(file: &Path) {
    let mut explain = std::process::Command::new(launcher());
    explain.args(["explain", "allreduce", "--bytes", "1M", "-n", "8"]);
    let jobs = [finish(explain.env("OSIER_COSTS", file)), {
        finish(job(2, &[], &["join"]).env("OSIER_COSTS", file))
    }];
    for done in jobs {
        let refused = done.code.is_some_and(|c| (1..=2).contains(&c));
        let named = done.stderr.contains("OSIER_COSTS");
        let text = std::fs::read_to_string(file).unwrap_or_default();
        assert!(
            (done.code == Some(0) || refused && named) && !done.stderr.contains("panicked"),
            "{:?} {}\n{text}",
            done.code,
            done.stderr
        );
    }
}

#[test]
fn costs_with_wrong_values_are_refused_or_used() {
    let file = scratch("values.json");
    let document: Value = serde_json::from_str(&sound(&file)).expect("JSON");
    let mut all = Vec::new();
    leaves(&document, "", &mut all);
    assert!(all.len() > 50, "{} values", all.len());
    let (mut refused, mut taken) = (0, 0);
    for at in &all {
        for value in wrong_values() {
            let mut changed = document.clone();
            *changed.pointer_mut(at).expect("it is there") = value;
            std::fs::write(&file, changed.to_string()).expect("written");
            match load(&file) {
                Err(e) => {
                    let text = e.to_string();
                    assert!(
                        text.contains("values.json") && text.contains("hint"),
                        "{at}: {text}"
                    );
                    refused += 1;
                }
                Ok(_) => {
                    taken += 1;
                    // Each is loaded; plans are made by some.
                    if taken % 16 == 1 {
                        used(&file);
                    }
                }
            }
        }
    }
    assert!(refused > 4 * taken, "{refused} refused, {taken} taken");
    std::fs::remove_file(&file).expect("removed");
}

#[test]
fn costs_that_are_cut_short_are_refused() {
    let file = scratch("cut.json");
    let text = sound(&file);
    let end = text.trim_end().len();
    for at in (0..end).step_by(7) {
        std::fs::write(&file, &text[..at]).expect("written");
        let e = load(&file).expect_err("cut").to_string();
        assert!(e.contains("cut.json") && e.contains("hint"), "{at}: {e}");
    }
    std::fs::write(&file, &text[..end / 2]).expect("written");
    used(&file);
    for noise in [&[0u8; 4096][..], &[0xff; 3], b"[[[[[[", &[b'['; 100_000]] {
        std::fs::write(&file, noise).expect("written");
        assert!(load(&file).is_err());
        used(&file);
    }
    std::fs::remove_file(&file).expect("removed");
}

/// By costs with which exchanges are read in place, ranks that share cores choose alike: in calls
/// that block and in others, of several communicators.
#[test]
fn exchanges_are_read_in_place_by_all_ranks_or_none() {
    let fixture = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../src/choice/fixtures/near.json"
    );
    let text = std::fs::read_to_string(fixture).expect("the fixture");
    let mut costs: Value = serde_json::from_str(&text).expect("costs");
    let links = &mut costs["sets"][0]["costs"];
    assert!(links["attach_call_ns"].is_f64(), "it was measured");
    links["attach_call_ns"] = 100.0.into();
    links["attach_ns_per_byte"] = 0.01.into();
    let file = std::env::temp_dir().join(format!("osier-attach-{}", std::process::id()));
    std::fs::write(&file, costs.to_string()).expect("a file");
    let mut explain = std::process::Command::new(launcher());
    explain.args(["explain", "alltoall", "-n", "8", "--bytes", "64K"]);
    let plans = finish(explain.env("OSIER_COSTS", &file));
    let chosen = plans.stdout.lines().find(|line| line.contains("chosen"));
    assert!(
        chosen.is_some_and(|line| line.contains("direct")),
        "{chosen:?}"
    );
    let what = ["collectives", "exchanges"];
    for _ in 0..3 {
        let done = finish(job(8, &[], &what).env("OSIER_COSTS", &file));
        done.through(&[0, 1, 2, 3, 4, 5, 6, 7]).code(0);
    }
    std::fs::remove_file(&file).expect("it is there");
}
