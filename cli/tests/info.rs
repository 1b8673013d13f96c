//! `osier info` from outside, and the costs on their way to `osier run`.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

#[path = "../../tests/needs.rs"]
#[allow(dead_code)]
mod needs;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let folder = std::env::temp_dir().join(format!("osier-info-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Scratch(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Scratch {
    /// `osier` with this folder as the user's cache.
    fn osier(&self, args: &[&str], variables: &[(&str, &str)]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_osier"))
            .args(args)
            .env_remove("OSIER_COSTS")
            .env_remove("OSIER_SHM_LIMIT")
            .env("OSIER_MODEL", "cached")
            .env("XDG_CACHE_HOME", &self.0)
            .envs(variables.iter().copied())
            .output()
            .unwrap()
    }

    fn text(&self, args: &[&str]) -> String {
        let output = self.osier(args, &[]);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{args:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.text(args)).unwrap()
    }

    /// What a command prints that measures; `None` where other tests are in its way
    /// each time, and the skip was asked for.
    fn measured(&self, args: &[&str]) -> Option<String> {
        for _ in 0..5 {
            let output = self.osier(args, &[]);
            let errors = String::from_utf8(output.stderr).unwrap();
            if output.status.success() {
                return Some(String::from_utf8(output.stdout).unwrap());
            }
            let disturbed = [
                "beside other work",
                "were moved to another distance, or busy",
            ];
            let disturbed = disturbed.iter().any(|how| errors.contains(how));
            assert!(disturbed, "{args:?}: {errors}");
        }
        needs::missing("quiet", format_args!("{args:?} beside other work"));
        None
    }
}

#[test]
fn transports_are_listed_with_reasons() {
    let scratch = Scratch::new("transports");
    let text = scratch.text(&["info", "--all"]);
    for word in [
        "Machine",
        "kernel",
        "Transports",
        "membarrier",
        "OSIER_SHM_LIMIT",
        "wire version",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let json = scratch.json(&["info", "--json"]);
    let names: Vec<&str> = json["transports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        ["self", "shm", "cma", "cuda_ipc", "tcp", "ofi", "verbs"]
    );
    for transport in json["transports"].as_array().unwrap() {
        assert!(transport["available"].is_boolean());
        assert!(
            !transport["note"].as_str().unwrap().is_empty(),
            "{transport}"
        );
    }
    assert_eq!(json["transports"][1]["available"], true);
    assert!(json["machine"]["cpu"].is_string());
    assert!(json["wire_version"].is_number());
    assert!(json["variables"].as_array().unwrap().len() >= 5);
}

#[test]
fn summary_fits_a_screen() {
    let scratch = Scratch::new("summary");
    let text = scratch.text(&["info"]);
    assert!(text.lines().count() <= 24, "{text}");
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    let at = |word: &str| text.find(word).unwrap_or_else(|| panic!("{word}: {text}"));
    assert!(at("Works here") < at("  shm "), "{text}");
    assert!(at("  shm ") < at("Missing here"), "{text}");
    for word in ["OSIER_MODEL=cached", "built in", "--all", "not yet"] {
        at(word);
    }
    // However much is set.
    let long = "x".repeat(300);
    let keys = "pipeline=on,device-slots=0,device-eager=0,device-mapped=0,device-mappings=0";
    let set = [("OSIER_DEBUG", keys), ("OSIER_TRACE", &long)];
    let text = String::from_utf8(scratch.osier(&["info"], &set).stdout).unwrap();
    assert!(text.lines().count() <= 24, "{text}");
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    assert!(text.contains("more"), "{text}");
}

#[test]
fn columns_start_below_each_other() {
    let text = Scratch::new("columns").text(&["info", "--all"]);
    let table = text.split("Configuration\n").nth(1).unwrap();
    let at = table.lines().next().unwrap().find("default").unwrap();
    for line in table.lines() {
        assert_ne!(line.as_bytes()[at], b' ', "{line}");
        assert_eq!(&line[at - 2..at], "  ", "{line}");
    }
}

#[test]
fn protocols_cover_all_sizes() {
    let scratch = Scratch::new("protocols");
    let text = scratch.text(&["info", "--protocols"]);
    for word in [
        "private:",
        "plain:",
        "heap:",
        "eager",
        "get from the heap",
        "built in",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let json = scratch.json(&["info", "--protocols", "--json"]);
    assert_eq!(json["origin"]["from"], "default");
    for memory in ["private", "plain", "heap"] {
        let mut next = 0;
        let mut ranges = json["protocols"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|r| r["memory"] == memory)
            .peekable();
        while let Some(range) = ranges.next() {
            assert_eq!(range["first_bytes"], next, "{memory}");
            assert!(range["predicted_first_ns"].as_f64().unwrap() > 0.0);
            match range["last_bytes"].as_u64() {
                Some(last) => next = last + 1,
                None => assert!(ranges.peek().is_none()),
            }
        }
        assert!(next > 0, "{memory}");
    }
}

#[test]
fn what_is_measured_is_kept_and_used() {
    let scratch = Scratch::new("measured");
    let measure = ["info", "--protocols", "--measure", "--json"];
    let Some(measured) = scratch.measured(&measure) else {
        return;
    };
    let measured: Value = serde_json::from_str(&measured).unwrap();
    assert_eq!(measured["origin"]["from"], "cache");
    let again = scratch.json(&["info", "--protocols", "--json"]);
    assert_eq!(again["costs"], measured["costs"]);
    assert_eq!(again["origin"]["from"], "cache");
    assert!(again["origin"]["date"].as_str().unwrap().starts_with("20"));
    // The same file by name, wherever it comes from.
    let file = scratch.0.join("osier").join("costs.json");
    let named = scratch.osier(
        &["info", "--protocols"],
        &[
            ("OSIER_COSTS", file.to_str().unwrap()),
            ("XDG_CACHE_HOME", "/nonexistent"),
        ],
    );
    let text = String::from_utf8(named.stdout).unwrap();
    assert!(text.contains("from OSIER_COSTS="), "{text}");
    // A cache that nobody can read is as good as none.
    std::fs::write(&file, "{").unwrap();
    let text = scratch.text(&["info", "--protocols"]);
    assert!(text.contains("built in"), "{text}");
    assert!(
        scratch
            .osier(&["run", "-n", "1", "true"], &[])
            .status
            .success()
    );
    if let Some(measured) = scratch.measured(&measure) {
        assert!(measured.contains("\"cache\""), "{measured}");
    }
}

#[test]
fn costs_of_calls_are_measured_shown_and_explained() {
    let scratch = Scratch::new("model");
    let shown = scratch.json(&["model", "show", "--json"]);
    assert_eq!(shown["measured"], false);
    let Some(text) = scratch.measured(&["model", "measure"]) else {
        return;
    };
    assert!(text.contains("version") && text.contains("busy"), "{text}");
    let shown = scratch.json(&["model", "show", "--json"]);
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    assert_eq!(shown["measured"], cores > 1);
    let explained = scratch.json(&[
        "explain",
        "allreduce",
        "--bytes",
        "64K",
        "-n",
        "4",
        "--json",
    ]);
    assert_eq!(explained["version"], shown["version"]);
    let ranking = explained["ranking"].as_array().unwrap();
    let regrets = ranking.iter().map(|r| r["regret"].as_f64().unwrap());
    let regrets: Vec<f64> = regrets.collect();
    // One with flags in a segment may be chosen that is predicted to take a little longer.
    assert!(regrets.len() > 1 && regrets[1..].is_sorted(), "{regrets:?}");
    // Links alone leave the calls as they were.
    let measure = ["info", "--protocols", "--measure", "--json"];
    let Some(links) = scratch.measured(&measure) else {
        return;
    };
    assert!(links.contains("\"cache\""), "{links}");
    let again = scratch.json(&["model", "show", "--json"]);
    // Cores that were moved meanwhile have a set of their own, which is shown first.
    let sets = again["sets"].as_array().unwrap();
    let kept = sets.iter().any(|set| set["measured"] == shown["measured"]);
    // Costs whose measurement they were moved in are of no known distance, and give way.
    let known = |set: &Value| set["line_ns"].is_number();
    let known = shown["sets"].as_array().unwrap().iter().all(known);
    assert!(kept || !known, "{again}");
    // Of another machine it is refused, and the reason is told.
    let file = scratch.0.join("osier").join("costs.json");
    let mut kept: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    kept["machine"]["kernel"] = "another".into();
    std::fs::write(&file, kept.to_string()).unwrap();
    let text = scratch.text(&["model", "show"]);
    for word in [
        "another machine",
        "kernel another",
        "hint: osier model measure",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn plans_of_machines_that_are_not_here_are_explained() {
    let scratch = Scratch::new("explain-calls");
    let text = scratch.text(&[
        "explain",
        "allreduce",
        "--bytes",
        "1M",
        "--topology",
        "2x2x4",
        "--any-order",
    ]);
    for word in [
        "16 ranks on a described machine",
        "chosen",
        "runner-up",
        "Why",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let text = scratch.text(&["explain", "barrier", "-n", "2"]);
    assert!(text.contains("no bytes on 2 ranks"), "{text}");
    for (args, why) in [
        (
            &["explain", "bcast", "-n", "2", "--root", "2"][..],
            "2 ranks",
        ),
        (&["explain", "bcast", "--links", "1:2"], "--topology"),
        (&["explain", "sum"], "unrecognized"),
    ] {
        let output = scratch.osier(args, &[]);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && errors.contains(why), "{errors}");
    }
    let file = scratch.0.join("scale.svg");
    let text = scratch.text(&[
        "model",
        "scale",
        "--ranks",
        "64",
        "--plot",
        file.to_str().unwrap(),
    ]);
    assert!(text.contains("allreduce, 1M bytes"), "{text}");
    assert!(std::fs::read_to_string(file).unwrap().contains("<svg"));
}

#[test]
fn a_bad_file_of_costs_is_named() {
    let scratch = Scratch::new("bad");
    let file = scratch.0.join("costs.json");
    std::fs::write(&file, "not JSON").unwrap();
    let file = file.to_str().unwrap();
    for costs in [file, "/no/such/file"] {
        for (args, code) in [
            (&["info", "--protocols"][..], 1),
            (&["run", "-n", "2", "true"], 2),
        ] {
            let output = scratch.osier(args, &[("OSIER_COSTS", costs)]);
            let errors = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(code), "{args:?}: {errors}");
            for word in ["OSIER_COSTS", costs, "hint"] {
                assert!(errors.contains(word), "{word}: {errors}");
            }
        }
    }
    let output = scratch.osier(&["info", "--measure"], &[]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn the_limit_on_shared_memory_is_heeded() {
    let scratch = Scratch::new("limit");
    let run = |limit| scratch.osier(&["run", "-n", "2", "true"], &[("OSIER_SHM_LIMIT", limit)]);
    assert!(run("1G").status.success());
    let output = run("plenty");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    for word in ["OSIER_SHM_LIMIT", "plenty", "hint"] {
        assert!(errors.contains(word), "{word}: {errors}");
    }
}

/// The table of device memory: each kind in each placement.
#[test]
fn device_memory_is_told_by_kind_and_placement() {
    let scratch = Scratch::new("reach");
    let text = scratch.text(&["info", "--all"]);
    let row = |name: &str| {
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with(name));
        line.unwrap_or_else(|| panic!("{name} is missing: {text}"))
            .to_owned()
    };
    assert_eq!(row("plain").matches("by handle").count(), 2, "{text}");
    assert!(row("managed").contains("moves"), "{text}");
    assert_eq!(
        row("mapped ").matches("by descriptors").count(),
        2,
        "{text}"
    );
    let json: Value = serde_json::from_str(&scratch.text(&["info", "--json"])).unwrap();
    let plain = &json["device_memory"]["plain"];
    assert_eq!(plain["same device"]["available"], true);
    assert_eq!(plain["device not linked"]["available"], false);
}

/// The first job of several ranks measures the machine, once; whether that was possible or
/// other work was in its way, the next job is silent, and so is one that is told not to.
#[test]
fn the_first_job_measures_the_machine() {
    const NOT_MEASURED: &str = "this machine was not measured";
    let scratch = Scratch::new("first");
    let run = |model: &str| {
        let output = scratch.osier(&["run", "-n", "2", "--", "true"], &[("OSIER_MODEL", model)]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(run("cached"), "");
    assert_eq!(run("built-in"), "");
    let file = scratch.0.join("osier").join("costs.json");
    assert!(!file.exists());
    let said = run("auto");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores > 1 {
        assert!(
            said.contains("measured") && said.contains("OSIER_MODEL"),
            "{said}"
        );
        assert_eq!(file.exists(), !said.contains("built-in costs"), "{said}");
    }
    // Silent, too, unless the machine became twice as slow meanwhile, or its cores were moved.
    let next = run("auto");
    let silent =
        |said: &str| said.is_empty() || said.contains(" here (") || said.contains(NOT_MEASURED);
    assert!(silent(&next), "{next}");
    // Nor does a distance that has no costs go unnoticed: they are measured, and both are kept.
    if cores > 1 && file.exists() {
        let text = std::fs::read_to_string(&file).unwrap();
        let mut kept: Value = serde_json::from_str(&text).unwrap();
        let sets = kept["sets"].as_array_mut().unwrap();
        sets.truncate(1);
        sets[0]["line_ns"] = 9000.0.into();
        std::fs::write(&file, kept.to_string()).unwrap();
        let said = run("auto");
        let measured = said.contains("from core to core, and kept costs are of 9000 ns");
        let text = std::fs::read_to_string(&file).unwrap();
        let kept: Value = serde_json::from_str(&text).unwrap();
        let sets = kept["sets"].as_array().unwrap();
        assert_eq!(sets[0]["line_ns"], 9000.0);
        assert_eq!(sets.len(), 1 + usize::from(measured), "{said}");
        if measured {
            let shown = scratch.osier(&["model", "show"], &[("OSIER_MODEL", "cached")]);
            let shown = String::from_utf8(shown.stdout).unwrap();
            assert!(shown.contains("Where a line takes 9000 ns"), "{shown}");
            // But for the name of the file.
            let mut lines = shown.lines().skip(1);
            assert!(lines.all(|line| line.len() <= 80), "{shown}");
        }
    }
    // What was kept on a machine where all took a tenth of it does not hold. A measurement that
    // other work was in the way of above would keep this job from its own.
    if file.exists() {
        let _ = std::fs::remove_file(file.with_extension("measuring"));
        let mut kept: Value =
            serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        for set in kept["sets"].as_array_mut().unwrap() {
            for probe in set["probes"].as_array_mut().unwrap() {
                let ns = probe["ns"].as_f64().unwrap();
                probe["ns"] = (ns / 10.0).into();
            }
        }
        std::fs::write(&file, kept.to_string()).unwrap();
        assert_eq!(run("cached"), "");
        let said = run("auto");
        // Where the cores have moved meanwhile, that is told first. Tests beside this one are
        // other work.
        let told = [" here (", NOT_MEASURED, "from core to core"];
        assert!(told.iter().any(|told| said.contains(told)), "{said}");
    }
    let refused = scratch.osier(
        &["run", "-n", "2", "--", "true"],
        &[("OSIER_MODEL", "fast")],
    );
    let errors = String::from_utf8(refused.stderr).unwrap();
    assert!(
        errors.contains("OSIER_MODEL") && errors.contains("fast"),
        "{errors}"
    );
}
