//! Ranks as real processes, with emulated devices.

#[path = "../src/matrix/cells.rs"]
#[allow(dead_code, reason = "the programs draw cells by seed")]
mod cells;
mod support;

use cells::{AXES, Way};
use osier_kernels::debug::Debug as _;
use support::{Done, EXERCISE, emulated, finish, hidden_job, job, launcher, settings};

#[test]
fn ranks_exchange_what_lies_on_devices() {
    if !emulated() {
        return;
    }
    for (ranks, gpus, each) in [(2, "1", "1"), (3, "2", "1"), (4, "2", "2")] {
        let all: Vec<usize> = (0..ranks).collect();
        let options = ["--emulate-gpus", gpus, "--ranks-per-process", each];
        let what = if each == "1" {
            &["devices"][..]
        } else {
            &["run", "devices"]
        };
        finish(&mut job(ranks, &options, what))
            .through(&all)
            .code(0);
    }
}

/// Whether processes run at once on a device, or take turns, is told, and chosen by.
#[test]
fn turns_of_processes_are_told() {
    if !emulated() {
        return;
    }
    let library = std::path::Path::new(EXERCISE).with_file_name("libosier_emulated_cuda.so");
    let run = |mps: &str, what: &[&str]| {
        let mut command = std::process::Command::new(launcher());
        command.args(what).debug("cuda-library", &library);
        let done = finish(command.env("OSIER_EMULATED_MPS", mps));
        done.code(0);
        done.stdout
    };
    for (mps, text) in [
        ("1", "processes share it (MPS)"),
        ("0", "take turns (no MPS)"),
    ] {
        let told = run(mps, &["info", "--all"]);
        assert!(told.contains(text), "{told}");
    }
    let explain = [
        "explain", "send", "--from", "device", "--to", "device", "--layout", "triangle",
    ];
    let first = |mps: &str, memory: &str| {
        let what = ["--memory", memory, "--bytes", "4M", "--json"];
        let told = run(mps, &[&explain[..], &what].concat());
        let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
        let first = &told["ranking"][0];
        let ns = first["predicted_ns"].as_f64().expect("a time");
        (first["protocol"].as_str().expect("a name").to_owned(), ns)
    };
    // Each slot is worked on by both.
    assert!(first("0", "pool").1 > first("1", "pool").1 + 140_000.0);
    // One works for both, rank 0, which sends.
    let (takes_turns, at_once) = (first("0", "plain"), first("1", "plain"));
    assert_eq!(takes_turns.0, "rendezvous, put by one kernel");
    assert_eq!(at_once.0, "rendezvous, get by one kernel");
    assert!((takes_turns.1 - at_once.1).abs() < 10_000.0);
}

/// Two devices of one process that are not linked: through the host, named once.
#[test]
fn devices_of_a_process_that_are_not_linked_go_through_the_host() {
    if emulated() {
        let mut command = std::process::Command::new(launcher());
        command
            .arg("run")
            .args(cells::arguments(Way::ThreadsApart, EXERCISE, "sample"));
        finish(command.env("OSIER_EMULATED_LINKS", "none"))
            .says("same process, device not linked")
            .code(0);
    }
}

#[test]
fn a_rank_is_killed_while_its_device_works() {
    if !emulated() {
        return;
    }
    // Slots on the host, and on the device.
    for (how, pipeline) in [
        ("sender", "off"),
        ("receiver", "off"),
        ("sender", "auto"),
        ("receiver", "auto"),
    ] {
        let options = ["--on-death", "report", "--emulate-gpus", "1"];
        finish(job(2, &options, &["device-stream", how]).debug("pipeline", pipeline))
            .says("rank 1 of 2")
            .through(&[0])
            .code(137);
    }
}

/// Every pair of values of two axes is in the sample, and only cells that can be.
#[test]
fn the_sample_covers_every_pair() {
    let rows = cells::covering();
    for (a, b, x, y) in cells::pairs() {
        let has = |row: &&cells::Row| row[a] == x && row[b] == y;
        assert!(rows.iter().any(|row| has(&row)), "axes {a}, {b}: {x}, {y}");
    }
    assert!(rows.iter().all(|row| cells::allowed(&row.map(Some))));
    // No fewer can be than pairs of the two longest axes.
    let mut axes = AXES;
    axes.sort_unstable();
    let least = axes[6] * axes[7];
    assert!(rows.len() <= least * 3 / 2, "{} rows", rows.len());
    println!("{} cells of {}", rows.len(), AXES.iter().product::<usize>());
}

/// A job of cells, which go one way.
fn cells_of(way: Way, which: &str) -> Done {
    let mut command = std::process::Command::new(launcher());
    let arguments = cells::arguments(way, EXERCISE, which);
    command.arg("run").args(arguments);
    settings(&mut command, &way.variables());
    if way != Way::Unshared {
        command.env_remove("OSIER_SHM_LIMIT");
    }
    finish(&mut command)
}

#[test]
fn all_pairings_layouts_and_sizes_on_all_ways() {
    if !emulated() {
        return;
    }
    // Jobs mostly wait: two at a time.
    std::thread::scope(|s| {
        for half in 0..2 {
            s.spawn(move || {
                for way in Way::ALL.into_iter().skip(half).step_by(2) {
                    let ranks: &[usize] = if way == Way::Network { &[0] } else { &[0, 1] };
                    cells_of(way, "sample").through(ranks).code(0);
                }
            });
        }
    });
}

/// A rank loses memory, streams or its context in the middle of messages: it keeps what
/// it needs, or its peer is told.
#[test]
fn what_goes_in_the_middle_of_a_message_harms_nobody_else() {
    if !emulated() {
        return;
    }
    let ways = [
        "freed-send",
        "freed-receive",
        "stream",
        "dropped",
        "context",
    ];
    for how in ways {
        // Opened memory, and the host's.
        for mappings in ["256", "0"] {
            let options = ["--emulate-gpus", "1", "--on-death", "report"];
            let mut job = job(2, &options, &["device-lifetime", how]);
            job.debug("device-mappings", mappings)
                .env("OSIER_EMULATED_ADDRESSES", "reused");
            finish(&mut job).through(&[0, 1]).code(0);
        }
    }
}

#[test]
fn bar1_windows_of_other_libraries_memory_end_with_it() {
    if !emulated() {
        return;
    }
    let options = ["--emulate-gpus", "1"];
    let mut job = job(2, &options, &["device-lifetime", "BAR1 windows"]);
    job.env("OSIER_EMULATED_GDRCOPY", "1")
        .env("OSIER_EMULATED_ADDRESSES", "reused");
    finish(&mut job).through(&[0, 1]).code(0);
}

/// Words that no correct peer writes are counted, and harm no message.
#[test]
fn malformed_words_are_refused_among_messages() {
    if !emulated() {
        return;
    }
    // Slots on the device, where they are cheaper, and on the host.
    for pipeline in ["auto", "off"] {
        let mut job = job(2, &["--emulate-gpus", "1"], &["device-garbled"]);
        finish(job.debug("pipeline", pipeline))
            .through(&[0, 1])
            .code(0);
    }
}

/// Both ranks send to each other, in another order than it is received, more than there
/// is memory for; some wait for what comes last. Nobody waits in a circle.
#[test]
fn little_memory_is_enough_for_both_directions() {
    little_memory(2);
}

#[test]
#[ignore = "the other machines"]
fn little_memory_is_enough_on_all_machines() {
    little_memory(1);
}

/// On every `every`-th machine.
fn little_memory(every: usize) {
    if !emulated() {
        return;
    }
    let fails = |from: usize| {
        let all: Vec<_> = (from..100)
            .map(|n| format!("cuMemHostRegister:{n}"))
            .collect();
        ("OSIER_EMULATED_FAIL", all.join(","))
    };
    let set = |name, value: &str| (name, value.to_owned());
    let closed = set("device-mappings", "0");
    let least = set("OSIER_PINNED_LIMIT", "256K");
    let machines = [
        vec![set("pipeline", "on"), set("device-slots", "512K")],
        vec![least.clone()],
        vec![least.clone(), closed.clone()],
        vec![least.clone(), closed.clone(), set("OSIER_SHM_LIMIT", "4M")],
        vec![least.clone(), closed.clone(), fails(1)],
        vec![least.clone(), closed.clone(), fails(2)],
        vec![set("OSIER_PINNED_LIMIT", "400K"), closed.clone(), fails(3)],
    ];
    for variables in machines.into_iter().step_by(every) {
        let mut job = job(2, &["--emulate-gpus", "1"], &["device-exhaust"]);
        settings(&mut job, &variables);
        let done = finish(job.env("OSIER_EMULATED_QUIET", "1"));
        done.through(&[0, 1]).code(0);
    }
}

#[test]
fn kernels_keep_to_their_multiprocessors() {
    if !emulated() {
        return;
    }
    let run = |share: Option<&str>| {
        let options = ["--emulate-gpus", "1"];
        let mut job = job(2, &options, &["devices"]);
        job.env("OSIER_EMULATED_MOST_BLOCKS", "3");
        job.debug("pack-multiprocessors", share.unwrap_or_default());
        finish(&mut job)
    };
    run(Some("3")).through(&[0, 1]).code(0);
    // As many as packing needs are more: the test would see them.
    let more = run(None);
    assert_ne!(more.code, Some(0));
    more.says("MOST_BLOCKS");
    run(Some("0")).says("hint");
}

/// Eight devices in a hybrid cube, six links each.
const MESH: &str = "0-1:1,0-2:1,0-3:2,0-4:2,1-2:2,1-3:1,1-5:2,2-3:2,2-6:1,3-7:1,4-5:1,4-6:1,4-7:2,5-6:2,5-7:1,6-7:2";

/// Two, four and eight devices that NVLinks join, and some that nothing does: ranks tell each
/// other once, and choose alike.
#[test]
fn plans_follow_the_links_between_devices() {
    if !emulated() {
        return;
    }
    let cases = [
        (2, "0-1:4", "1", false),
        (4, "0-2:4,2-1:4,1-3:4,0-3:none", "1", true),
        (4, "0-2:4,2-1:4,1-3:4,0-3:none", "0", false),
        (8, MESH, "1", true),
        (8, "switch:18", "1", false),
    ];
    // Of one state of a machine: predictions of two jobs would else be of that in which each begins.
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../src/choice/fixtures");
    let settings = |command: &mut std::process::Command, links: &str, nvml: &str| {
        command.env("OSIER_EMULATED_LINKS", links);
        command.env("OSIER_EMULATED_NVML", nvml);
        command.env("OSIER_COSTS", format!("{folder}/near.json"));
    };
    for (ranks, links, nvml, along) in cases {
        let options = ["--emulate-gpus", &ranks.to_string()];
        let mut command = job(ranks, &options, &["device-joined"]);
        settings(&mut command, links, nvml);
        let done = finish(&mut command);
        done.code(0);
        let text = &done.stdout;
        assert_eq!(text.contains("links"), along, "{links}: {text}");
        // The same where each rank sees its own alone: the management library shows all.
        let mut command = hidden_job(ranks, ranks, &["device-joined"]);
        settings(&mut command, links, nvml);
        let hidden = finish(&mut command);
        hidden.code(0);
        assert_eq!(&hidden.stdout, text, "{links}");
        if along {
            let chosen = text.lines().find(|line| line.contains("chosen"));
            assert!(chosen.is_some_and(|line| line.contains("links")), "{text}");
        }
    }
}
