//! `osier explain` from outside.

use osier_kernels::debug::Debug as _;
use std::process::{Command, Output};

use serde_json::Value;

fn explain(args: &[&str], variables: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_osier"))
        .args(["explain", "send"])
        .args(args)
        .env_remove("OSIER_COSTS")
        .env_remove("OSIER_PINNED_LIMIT")
        .env_remove("OSIER_DEBUG")
        .envs(variables.iter().copied())
        // No device, no cache: the built-in costs.
        .debug("cuda-library", "/nowhere/libcuda.so.1")
        .env("XDG_CACHE_HOME", "/nowhere")
        .output()
        .unwrap()
}

fn text(args: &[&str]) -> String {
    let output = explain(args, &[]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{args:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(args: &[&str], variables: &[(&str, &str)]) -> Value {
    let output = explain(&[args, &["--json"]].concat(), variables);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{args:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_choice_stands_before_its_runner_up() {
    let found = text(&["--layout", "vector:64:128", "--bytes", "4M"]);
    for word in [
        "4194304 bytes, vector:64:128 in device memory",
        "two processes on one GPU",
        "host bounce buffers",
        "chosen",
        "runner-up, x ",
        "built in",
    ] {
        assert!(found.contains(word), "{word}: {found}");
    }
    let chosen = found.find("chosen").unwrap();
    assert!(chosen < found.find("runner-up").unwrap(), "{found}");
    let ranking = &json(&["--layout", "triangle:1K", "--bytes", "4M"], &[])["ranking"];
    let ns = |at: usize| ranking[at]["predicted_ns"].as_f64().unwrap();
    assert!(ns(0) <= ns(1), "{ranking}");
}

#[test]
fn places_and_bounds_change_the_choice() {
    let vector = ["--layout", "vector:64:128", "--bytes", "16M"];
    let with = |more: &[&str], variables: &[(&str, &str)]| {
        json(&[&vector[..], more].concat(), variables)["ranking"][0].clone()
    };
    let gpus = with(&["--placement", "gpus"], &[]);
    assert_eq!(gpus["protocol"], "rendezvous, host bounce buffers");
    let process = with(&["--placement", "process"], &[]);
    assert_eq!(process["protocol"], "rendezvous, get by one kernel");
    let gpu = with(&[], &[]);
    assert_eq!(gpu["protocol"], "rendezvous, get by one kernel");
    let pool = with(&["--memory", "pool"], &[]);
    assert_eq!(pool["protocol"], "rendezvous, device bounce buffers");
    assert!(pool["fragment_bytes"].as_u64() >= Some(256 << 10), "{pool}");
    assert!(pool["depth"].as_u64() >= Some(2), "{pool}");
    let put = with(&["--memory", "pool", "--to-memory", "plain"], &[]);
    assert_eq!(put["protocol"], "rendezvous, put by one kernel");
    let linked = with(
        &["--placement", "linked"],
        &[("OSIER_DEBUG", "pipeline=on")],
    );
    assert_eq!(linked["protocol"], "rendezvous, device bounce buffers");
    let off = with(&["--memory", "pool"], &[("OSIER_DEBUG", "pipeline=off")]);
    assert_eq!(off["protocol"], "rendezvous, host bounce buffers");
    let gpus = &["--placement", "gpus"];
    let tight = with(gpus, &[("OSIER_PINNED_LIMIT", "256K")]);
    assert_eq!(tight["fragment_bytes"], 64 << 10);
    assert_eq!(tight["depth"], 1);
    let one = with(gpus, &[("OSIER_DEBUG", "pack-multiprocessors=1")]);
    assert_eq!(one["pack_blocks"], 1);
    let host = with(&["--from", "host"], &[]);
    assert_eq!(host["pack_blocks"], 0);
}

#[test]
fn collectives_of_devices_have_plans_of_their_own() {
    let run = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_osier"))
            .args(args)
            .env_remove("OSIER_COSTS")
            .debug("cuda-library", "/nowhere/libcuda.so.1")
            .env("XDG_CACHE_HOME", "/nowhere")
            .output()
            .unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{args:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    };
    let bcast = ["explain", "bcast", "--memory", "device", "--bytes"];
    let short = run(&[&bcast[..], &["8", "-n", "4"]].concat());
    assert!(short.contains("in memory of devices"), "{short}");
    assert!(short.contains("none was measured"), "{short}");
    let described = ["4M", "--topology", "2x2x4", "--json"];
    let found: Value = serde_json::from_str(&run(&[&bcast[..], &described].concat())).unwrap();
    let ranking = found["ranking"].as_array().unwrap();
    assert_eq!(ranking[0]["through_host"], false, "{found}");
    assert!(ranking.iter().any(|one| one["through_host"] == true));
    let copies = |one: &Value| {
        one["algorithm"]
            .as_str()
            .unwrap()
            .contains("copies on the host")
    };
    assert!(ranking.iter().any(copies), "{found}");
    // Of neighbors: a wider grid has more of them, and takes longer.
    let of = |grid: &[&str]| -> f64 {
        let args = [
            "explain",
            "neighbor-alltoall",
            "--bytes",
            "64K",
            "--topology",
            "2x2x2",
        ];
        let found = run(&[&args[..], grid, &["--json"]].concat());
        let found: Value = serde_json::from_str(&found).unwrap();
        found["ranking"][0]["predicted_ns"].as_f64().unwrap()
    };
    assert!(of(&["--grid", "2x2x2"]) > of(&[]));
    let drawn = run(&[
        "topo",
        "--topology",
        "2x2x2",
        "--of",
        "bcast",
        "--algorithm",
        "host copies",
    ]);
    // To the next node first, then the next package, then the next device.
    assert!(drawn.contains("0\n|- 4\n"), "{drawn}");
}

#[test]
fn short_messages_are_not_announced() {
    let found = text(&["--bytes", "8"]);
    assert!(found.contains("eager ("), "{found}");
    // Why not is for the machine to say: no driver, or no gdrcopy.
    let bar1 = found
        .lines()
        .find(|line| line.contains("BAR1 window (gdrcopy)"));
    let told = bar1.is_some_and(|line| line.contains("unavailable"));
    assert!(told, "{found}");
    assert!(found.contains("no runner-up"), "{found}");
}

/// The same table chooses between memory of the host.
#[test]
fn messages_between_hosts_are_explained() {
    let hosts = ["--from", "host", "--to", "host", "--bytes"];
    let first = |bytes: &str, more: &[&str]| {
        let found = json(&[&hosts[..], &[bytes], more].concat(), &[]);
        found["ranking"][0]["protocol"].clone()
    };
    assert_eq!(first("8", &[]), "eager");
    assert_eq!(first("64M", &[]), "rendezvous, cross-memory attach");
    let gaps = ["--layout", "vector:64:128"];
    assert_eq!(first("64M", &gaps), "rendezvous, pipelined copy");
}

#[test]
fn what_makes_no_sense_is_told() {
    let output = explain(&["--bytes", "8", "--layout", "square:3"], &[]);
    assert_eq!(output.status.code(), Some(2));
}

/// What is shared between processes is not used where messages are delayed.
#[test]
fn delayed_messages_go_by_messages() {
    let between = ["--from", "host", "--to", "host", "--bytes", "4M"];
    let chosen = |args: &[&str], delay: &str| {
        json(args, &[("OSIER_DELAY", delay)])["ranking"][0]["protocol"].clone()
    };
    assert_eq!(chosen(&between, "20us"), "rendezvous, pipelined copy");
    assert_ne!(chosen(&between, ""), "rendezvous, pipelined copy");
    let devices = ["--bytes", "4M"];
    assert_eq!(chosen(&devices, "20us"), "rendezvous, pipelined copy");
    let within = ["--bytes", "4M", "--placement", "process"];
    assert_eq!(chosen(&within, "20us"), "rendezvous, get by one kernel");
    let output = explain(&between, &[("OSIER_DELAY", "20us:1ms")]);
    let found = String::from_utf8(output.stdout).unwrap();
    let note = "no prediction has the 20us and 1ms per MiB that each message takes longer";
    assert!(found.contains(note), "{found}");
}

#[test]
fn delayed_collectives_have_no_plan_in_a_segment() {
    let explained = |delay: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_osier"))
            .args(["explain", "allreduce", "-n", "2", "--bytes", "8"])
            .env_remove("OSIER_COSTS")
            .env("XDG_CACHE_HOME", "/nowhere")
            .env("OSIER_DELAY", delay)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let (delayed, plain) = (explained("20us"), explained(""));
    let chosen = |text: &str| {
        text.lines()
            .find(|l| l.contains("chosen"))
            .map(str::to_owned)
    };
    assert!(
        delayed.contains("OSIER_DELAY: collectives run by messages"),
        "{delayed}"
    );
    assert!(!plain.contains("OSIER_DELAY"), "{plain}");
    assert_ne!(chosen(&delayed), chosen(&plain), "{delayed}\n{plain}");
}
