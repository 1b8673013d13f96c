//! Timelines of real jobs, also of ranks that are killed.

mod support;

use osier_kernels::debug::Debug as _;
use std::path::{Path, PathBuf};
use support::{finish, job};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("osier-trace-{name}-{}", std::process::id());
        Folder(std::env::temp_dir().join(name))
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("text")
    }

    /// The events of its timeline; nothing else is left in it.
    fn events(&self) -> Vec<serde_json::Value> {
        let left = std::fs::read_dir(&self.0).expect("the folder").count();
        assert_eq!(left, 1, "only the timeline stays");
        read(&self.0.join("trace.json"))
    }
}

fn read(file: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(file).expect("the timeline");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    json["traceEvents"].as_array().expect("events").clone()
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn of<'a>(events: &'a [serde_json::Value], rank: usize, name: &str) -> Vec<&'a serde_json::Value> {
    let matches = |e: &&serde_json::Value| e["pid"] == rank && e["name"] == name;
    events.iter().filter(matches).collect()
}

#[test]
fn processes_and_threads_give_one_timeline() {
    for each in ["1", "2"] {
        let folder = Folder::new(&format!("job{each}"));
        let options = ["--trace", folder.path(), "--ranks-per-process", each];
        finish(&mut job(4, &options, &["run", "sizes"]))
            .says("trace.json (4 ranks, ")
            .through(&[0, 1, 2, 3])
            .code(0);
        let events = folder.events();
        for rank in 0..4 {
            assert!(!of(&events, rank, "sendrecv").is_empty(), "rank {rank}");
            assert!(!of(&events, rank, "received").is_empty(), "rank {rank}");
        }
        let begins = events.iter().filter(|e| e["ph"] == "s").count();
        let ends = events.iter().filter(|e| e["ph"] == "f").count();
        let received = events.iter().filter(|e| e["name"] == "received").count();
        assert_eq!((begins, ends), (received, received));
    }
}

#[test]
fn what_a_killed_rank_did_is_in_the_timeline() {
    let folder = Folder::new("killed");
    let options = ["--trace", folder.path(), "--on-death", "report"];
    finish(&mut job(3, &options, &["die", "recv"]))
        .says("rank 1 of 3")
        .code(137);
    let events = folder.events();
    assert_eq!(of(&events, 1, "barrier").len(), 1);
    // A call that a rank is killed in has no end.
    let folder = Folder::new("inside");
    let options = ["--trace", folder.path(), "--on-death", "report"];
    finish(&mut job(2, &options, &["die-inside"]))
        .through(&[1])
        .code(137);
    let events = folder.events();
    let call = of(&events, 0, "allreduce")[0];
    assert_eq!(call["args"]["unfinished"], true, "{call}");
    let line = call["args"]["line"].as_str().expect("a line");
    assert!(line.contains("main.rs:"), "{line}");
    assert!(
        of(&events, 1, "allreduce")[0]["args"]
            .get("unfinished")
            .is_none()
    );
}

#[test]
fn the_variable_asks_for_it_too_and_a_rank_alone_merges_itself() {
    let folder = Folder::new("variable");
    let mut command = job(2, &[], &["crowd"]);
    finish(command.env("OSIER_TRACE", folder.path()))
        .says("2 ranks")
        .code(0);
    assert!(!of(&folder.events(), 1, "gather").is_empty());

    let folder = Folder::new("alone");
    let mut command = std::process::Command::new(support::EXERCISE);
    for name in ["OSIER_JOB", "OSIER_RANK", "OSIER_RANKS"] {
        command.env_remove(name);
    }
    finish(command.arg("sizes").env("OSIER_TRACE", folder.path()));
    assert!(!of(&folder.events(), 0, "sendrecv").is_empty());
}

#[test]
fn a_folder_that_cannot_be_is_an_error_before_the_job() {
    finish(&mut job(2, &["--trace", "/dev/null/x"], &["join"]))
        .says("--trace /dev/null/x: not a directory")
        .code(2);
}

#[test]
fn dropped_events_are_reported_with_a_hint() {
    let folder = Folder::new("few");
    let mut command = job(2, &["--trace", folder.path()], &["crowd"]);
    finish(command.debug("trace-events", "64"))
        .says("older events were dropped (hint: raise OSIER_DEBUG=trace-events)")
        .code(0);
    let mut command = job(2, &["--trace", folder.path()], &["join"]);
    finish(command.debug("trace-events", "many"))
        .says("OSIER_DEBUG: trace-events")
        .says("hint")
        .code(2);
}
