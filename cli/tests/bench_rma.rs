//! `osier bench rma` from outside: shapes of the corpus between windows on devices, and names that are wrong.

use std::path::PathBuf;
use std::process::{Command, Output};

use osier_gpu_report::record::{self, Record};

#[path = "../../tests/needs.rs"]
#[allow(dead_code)]
mod needs;

fn osier(line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_osier"))
        .args(line.split_whitespace())
        .env("OSIER_MODEL", "built-in")
        .output()
        .unwrap()
}

/// A file that goes when the test ends.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn shapes_of_the_corpus_move_between_windows_on_devices() {
    let name = format!("osier-bench-rma-{}.json", std::process::id());
    let file = Scratch(std::env::temp_dir().join(name));
    let line = format!(
        "run -n 2 --emulate-gpus 1 --bind none -- {} bench rma --shapes wrf-y-vec-2x2 -i 2 -r 3 --json {}",
        env!("CARGO_BIN_EXE_osier"),
        file.0.display()
    );
    let out = osier(&line);
    let complaint = String::from_utf8_lossy(&out.stderr);
    if complaint.contains("cargo build -p osier-emulated-cuda") {
        return needs::missing("driver", "it was not built beside the launcher");
    }
    assert!(out.status.success(), "{complaint}");
    let table = String::from_utf8_lossy(&out.stdout);
    assert!(table.contains("\nwrf-y-vec-2x2 "), "{table}");
    assert!(table.lines().all(|line| !line.contains("put + flush")));
    let records = record::read(&file.0).expect("records");
    let of = |what: &str| -> &Record {
        let bench = format!("rma-device-{what}");
        let mut found = records.iter().filter(|record| record.bench == bench);
        let record = found.next().unwrap_or_else(|| panic!("no {bench}"));
        assert!(found.next().is_none(), "{bench} twice");
        record
    };
    for what in ["put", "get", "message"] {
        let record = of(what);
        assert_eq!(record.layout, "wrf-y-vec-2x2");
        assert_eq!((record.bytes, record.ranks), (90_804, 2));
        assert_eq!((record.unit.as_str(), record.floor), ("us", None));
        let [least, most] = record.spread.expect("a spread");
        assert!(least > 0.0 && least <= record.value && record.value <= most);
    }
    assert_eq!(records.len(), 3);
}

#[test]
fn wrong_shapes_are_told_once_and_before_ranks_start() {
    let out = osier("bench rma --shapes nothing");
    let complaint = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{complaint}");
    assert_eq!(complaint.matches("no shape of nothing").count(), 1);
    assert!(!complaint.contains("rank"), "{complaint}");
    let out = osier("bench latency --shapes fft");
    let complaint = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{complaint}");
    let hint = "--shapes is an option of datatype, rma and pack --device";
    assert!(complaint.contains(hint), "{complaint}");
}
