use super::*;

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("osier-costs-{}-{name}", std::process::id()))
}

fn set(line_ns: Option<f64>, latency_ns: f64) -> CostSet {
    let costs = LinkCosts {
        latency_ns,
        ..LinkCosts::default()
    };
    let calls = CallCosts {
        error: 0.1,
        ..CallCosts::estimated(&costs)
    };
    CostSet::now(line_ns, costs, Some(calls))
}

fn refusal(file: &Path, here: &Machine) -> String {
    from_cache(file, here).expect_err("refused").to_string()
}

#[test]
fn what_is_stored_is_loaded() {
    let folder = scratch("store");
    let file = folder.join("deeper").join("costs.json");
    let near = set(Some(41.2), 123.0);
    store(&file, near.clone()).expect("written");
    let measured = load(&file).expect("read");
    assert_eq!(measured.sets, std::slice::from_ref(&near));
    assert!(!near.probes.is_empty());
    let here = Machine::here();
    assert_eq!(from_cache(&file, &here).expect("of this machine"), [near]);
    // Implausible costs are neither stored nor used.
    let why = store(&file, set(Some(41.2), 748_000.0)).expect_err("absurd");
    assert!(why.to_string().contains("latency_ns"), "{why}");
    let text = fs::read_to_string(&file).expect("read");
    let other = folder.join("absurd.json");
    let text = text.replace("\"latency_ns\": 123.0", "\"latency_ns\": 748000.0");
    fs::write(&other, text).expect("written");
    let why = refusal(&other, &here);
    assert!(why.contains("other work"), "{why}");
    let other = Machine {
        kernel: "other".into(),
        ..here
    };
    let why = refusal(&file, &other);
    assert!(why.contains("kernel") && why.contains("hint"), "{why}");
    fs::remove_dir_all(folder).expect("removed");
}

/// Costs of one distance replace each other, those of others stay, and one whose distance is
/// not known goes when another is stored.
#[test]
fn each_distance_has_one_set() {
    let file = scratch("distances.json");
    let latencies = || -> Vec<f64> {
        let sets = load(&file).expect("read").sets;
        sets.iter().map(|set| set.costs.latency_ns).collect()
    };
    let put = |line_ns, latency_ns| {
        store(&file, set(line_ns, latency_ns)).expect("written");
        latencies()
    };
    assert_eq!(put(None, 1.0), [1.0]);
    assert_eq!(put(Some(40.0), 2.0), [2.0]);
    assert_eq!(put(Some(160.0), 3.0), [2.0, 3.0]);
    assert_eq!(put(Some(45.0), 4.0), [3.0, 4.0]);
    assert_eq!(put(None, 5.0), [3.0, 4.0, 5.0]);
    assert_eq!(put(Some(150.0), 6.0), [4.0, 6.0]);
    assert_eq!(put(Some(800.0), 7.0), [4.0, 6.0, 7.0]);
    // Three are enough.
    assert_eq!(put(Some(10.0), 8.0), [6.0, 7.0, 8.0]);
    fs::remove_file(&file).expect("removed");
}

#[test]
fn predictions_are_of_the_state_that_is_nearest() {
    let sets = [Some(40.0), None, Some(160.0)].map(|line_ns| CostSet {
        line_ns,
        ..CostSet::default()
    });
    for (here, at) in [(35.0, 0), (60.0, 0), (100.0, 2), (900.0, 2)] {
        assert_eq!(nearest(&sets, Some(here)), at, "{here}");
    }
    // The worse one, where it is not known.
    assert_eq!(nearest(&sets, None), 2);
    assert_eq!(nearest(&sets[1..2], Some(40.0)), 0);
    assert_eq!(nearest(&[], None), 0);
}

/// A table of one set, as formats 1 to 3 had it.
fn old(format: u32) -> Value {
    serde_json::json!({
        "format": format,
        "date": "2026-11-21",
        "costs": {
            "latency_ns": 80.0, "overhead_ns": 60.0, "copy_ns_per_byte": 0.035, "mapped_ns_per_byte": 0.06,
            "attach_call_ns": 2000.0, "attach_ns_per_byte": 0.08,
        },
    })
}

#[test]
fn older_formats_are_one_set_of_unknown_distance() {
    let file = scratch("old.json");
    for format in OLDEST..=LAST_OF_ONE_SET {
        fs::write(&file, old(format).to_string()).expect("written");
        let measured = load(&file).expect("read");
        assert_eq!(measured.sets.len(), 1);
        let set = &measured.sets[0];
        assert_eq!((set.line_ns, set.costs.latency_ns), (None, 80.0));
        assert_eq!(set.date.as_deref(), Some("2026-11-21"));
    }
    fs::remove_file(&file).expect("removed");
}

#[test]
fn what_makes_no_sense_is_refused_with_the_file_and_a_hint() {
    let file = scratch("bad.json");
    let good = old(1);
    fs::write(&file, good.to_string()).expect("written");
    assert_eq!(load(&file).expect("by hand").machine, None);
    let mut bad = vec![String::new(), "{}".into(), "\u{7f}".into()];
    for (at, value) in [
        ("/costs/latency_ns", serde_json::json!(-1.0)),
        ("/costs/copy_ns_per_byte", serde_json::json!(0.0)),
        ("/costs/overhead_ns", serde_json::json!("fast")),
        ("/costs/attach_call_ns", Value::Null),
        ("/format", serde_json::json!(FORMAT + 1)),
        // One set where several are expected.
        ("/format", serde_json::json!(FORMAT)),
    ] {
        let mut value_changed = good.clone();
        *value_changed.pointer_mut(at).expect("a field") = value;
        bad.push(value_changed.to_string());
    }
    let sets = |sets: Value| serde_json::json!({ "format": FORMAT, "sets": sets }).to_string();
    bad.push(sets(serde_json::json!([])));
    let mut far = old(3);
    far["line_ns"] = serde_json::json!(0.0);
    bad.push(sets(serde_json::json!([old(3), far])));
    for text in bad {
        fs::write(&file, &text).expect("written");
        let message = load(&file).expect_err(&text).to_string();
        assert!(message.contains("hint"), "{message}");
        assert!(message.contains("osier-costs"), "{message}");
        assert!(from_cache(&file, &Machine::here()).is_err());
    }
    fs::remove_file(&file).expect("removed");
    let gone = load(&file).expect_err("gone").to_string();
    assert!(gone.contains("no such file"), "{gone}");
}
