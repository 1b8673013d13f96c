//! `osier bench` from outside: tables, files, bad usage. Nothing here looks at
//! how fast anything is.

use osier_kernels::debug::Debug as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

#[path = "../../tests/needs.rs"]
#[allow(dead_code)]
mod needs;

const TINY: [&str; 6] = ["-i", "6", "-x", "1", "-r", "2"];
const FIELDS: [&str; 12] = [
    "bench",
    "bytes",
    "floor",
    "layout",
    "library",
    "memory",
    "ranks",
    "spread",
    "threads",
    "transport",
    "unit",
    "value",
];

/// A folder that goes when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let folder =
            std::env::temp_dir().join(format!("osier-bench-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Scratch(folder)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn osier(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_osier"))
        .args(args)
        .env_remove("OSIER_COSTS")
        .env("XDG_CACHE_HOME", "/nonexistent")
        .output()
        .unwrap()
}

/// Runs `osier bench` with few iterations and returns its output.
fn bench(args: &[&str]) -> String {
    let args: Vec<&str> = ["bench"].iter().chain(args).chain(&TINY).copied().collect();
    let output = osier(&args);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{args:?}: {errors}");
    assert_eq!(errors, "", "{args:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn records(file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(Path::new(file)).unwrap();
    let records: Vec<Value> = serde_json::from_str(&text).unwrap();
    for record in &records {
        let mut fields: Vec<&str> = record.as_object().unwrap().keys().map(|k| &k[..]).collect();
        fields.sort_unstable();
        assert_eq!(fields, FIELDS);
        let value = record["value"].as_f64().unwrap();
        if let Some([least, most]) = record["spread"].as_array().map(|s| [&s[0], &s[1]]) {
            assert!(least.as_f64() <= most.as_f64(), "{record}");
        }
        // Nothing of a call may overlap.
        assert!(
            value > 0.0 || value == 0.0 && record["unit"] == "%",
            "{record}"
        );
    }
    records
}

/// Lines of numbers, and how many columns each has.
fn rows(table: &str) -> Vec<usize> {
    let rows = table.lines().filter(|l| l.starts_with(char::is_numeric));
    rows.map(|line| line.split_whitespace().count()).collect()
}

#[test]
fn latency_has_a_curve_for_each_layout_and_memory() {
    let scratch = Scratch::new("latency");
    let (json, svg) = (scratch.file("a.json"), scratch.file("a.svg"));
    let table = bench(&[
        "latency",
        "--sizes",
        "8,4K",
        "--layout",
        "contiguous,vector:8:16",
        "--memory",
        "plain,heap",
        "--json",
        &json,
        "--plot",
        &svg,
    ]);
    assert!(table.contains("# Size            Latency (us)"), "{table}");
    for column in ["Min", "P99", "Floor", "x Floor"] {
        assert!(table.contains(column), "{table}");
    }
    assert_eq!(rows(&table), [6; 8], "{table}");
    let records = records(&json);
    let told: Vec<String> = records
        .iter()
        .map(|r| format!("{} {} {}", r["layout"], r["memory"], r["bytes"]).replace('"', ""))
        .collect();
    assert_eq!(
        told,
        [
            "contiguous plain 8",
            "contiguous plain 4096",
            "contiguous heap 8",
            "contiguous heap 4096",
            "vector:8:16 plain 8",
            "vector:8:16 plain 4096",
            "vector:8:16 heap 8",
            "vector:8:16 heap 4096",
        ]
    );
    for record in &records {
        assert_eq!(record["bench"], "latency");
        assert_eq!(record["transport"], "shm");
        assert_eq!(record["unit"], "us");
        assert_eq!(record["ranks"], 2);
        assert_eq!(record["threads"], 1);
    }
    let picture = std::fs::read_to_string(&svg).unwrap();
    assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
    for label in ["vector:8:16, heap", "message size (bytes)", ">us<"] {
        assert!(picture.contains(label), "{label}");
    }
}

#[test]
fn windows_count_bytes_or_messages() {
    let scratch = Scratch::new("windows");
    let json = scratch.file("a.json");
    for (name, unit, columns) in [
        ("bandwidth", "MB/s", 6),
        ("bibandwidth", "MB/s", 6),
        ("message-rate", "msg/s", 7),
    ] {
        let table = bench(&[name, "--sizes", "64,100K", "--window", "5", "--json", &json]);
        assert_eq!(rows(&table), [columns; 2], "{table}");
        let records = records(&json);
        assert_eq!(records.len(), 2);
        assert!(
            records
                .iter()
                .all(|r| r["bench"] == name && r["unit"] == unit)
        );
    }
}

#[test]
fn pairs_have_a_latency_and_a_rate() {
    let scratch = Scratch::new("pairs");
    let json = scratch.file("a.json");
    let table = bench(&[
        "multi-pair",
        "-n",
        "4",
        "--sizes",
        "8",
        "-W",
        "4",
        "--json",
        &json,
    ]);
    assert_eq!(rows(&table), [7], "{table}");
    let records = records(&json);
    let units: Vec<&Value> = records.iter().map(|r| &r["unit"]).collect();
    assert_eq!(units, ["us", "msg/s"]);
    assert!(records.iter().all(|r| r["ranks"] == 4));
}

#[test]
fn pack_stands_beside_a_loop_and_memcpy() {
    let scratch = Scratch::new("pack");
    let json = scratch.file("a.json");
    let table = bench(&[
        "pack",
        "--sizes",
        "64K",
        "--layout",
        "contiguous,vector:8:16,indexed,triangle:40,face:16:2",
        "--json",
        &json,
    ]);
    assert!(
        table.contains("memcpy") && table.contains("By hand"),
        "{table}"
    );
    assert_eq!(rows(&table), [8; 5], "{table}");
    let records = records(&json);
    let sizes: Vec<u64> = records
        .iter()
        .map(|r| r["bytes"].as_u64().unwrap())
        .collect();
    assert_eq!(sizes, [65536, 65536, 65536, 40 * 41 / 2 * 8, 16 * 16 * 8]);
    assert!(
        records
            .iter()
            .all(|r| r["unit"] == "GB/s" && r["ranks"] == 1)
    );
    assert!(records.iter().all(|r| r["floor"].as_f64().unwrap() > 0.0));
}

#[test]
fn rotated_memory_says_so() {
    let scratch = Scratch::new("rotated");
    let json = scratch.file("a.json");
    bench(&["latency", "--sizes", "1M", "--rotate", "--json", &json]);
    assert_eq!(records(&json)[0]["memory"], "plain-rotated");
}

#[test]
fn an_empty_program_is_launched() {
    let scratch = Scratch::new("launch");
    let json = scratch.file("a.json");
    let table = bench(&["launch", "-n", "3", "--json", &json]);
    assert_eq!(rows(&table), [6], "{table}");
    let records = records(&json);
    assert_eq!(records[0]["unit"], "ms");
    assert_eq!(records[0]["ranks"], 3);
    assert_eq!(records[0]["bytes"], 0);
}

/// Jobs that lose a rank each, of 2 and of 3 ranks.
#[test]
fn a_dead_rank_is_measured() {
    let scratch = Scratch::new("faults");
    let json = scratch.file("a.json");
    let table = bench(&["faults", "-n", "3", "--json", &json]);
    assert_eq!(rows(&table), [8, 8], "{table}");
    let records = records(&json);
    let of = |ranks: i32| records.iter().filter(move |r| r["ranks"] == ranks);
    for ranks in [2, 3] {
        let names: Vec<_> = of(ranks).map(|r| r["bench"].as_str().unwrap()).collect();
        assert_eq!(names.len(), 7, "{names:?}");
        assert!(names.contains(&"faults-detection"), "{names:?}");
        assert!(of(ranks).all(|r| r["unit"] == "us" && r["value"].as_f64() > Some(0.0)));
    }
}

#[test]
fn a_job_that_runs_already_is_used() {
    let exe = env!("CARGO_BIN_EXE_osier");
    let mut args = vec![
        "run", "-n", "2", "--", exe, "bench", "latency", "--sizes", "8",
    ];
    args.extend(TINY);
    let output = osier(&args);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{table}");
    assert_eq!(rows(&table), [6], "{table}");
    // The number of ranks is the job's, and must fit.
    let output = osier(&[
        "run", "-n", "3", "--", exe, "bench", "latency", "--sizes", "8",
    ]);
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("two ranks, not 3"), "{errors}");
}

#[test]
fn sizes_are_powers_of_two_between_bounds() {
    let table = bench(&["latency", "--min", "6", "--max", "40"]);
    let sizes: Vec<&str> = table
        .lines()
        .filter(|l| l.starts_with(char::is_numeric))
        .filter_map(|l| l.split_whitespace().next())
        .collect();
    assert_eq!(sizes, ["6", "8", "16", "32"]);
}

#[test]
fn help_tells_of_layouts_and_the_floor() {
    let text = String::from_utf8(osier(&["bench", "--help"]).stdout).unwrap();
    for word in ["Examples:", "vector:B:S", "Floor:", "memcpy", "multi-pair"] {
        assert!(text.contains(word), "{word}");
    }
}

#[test]
fn bad_usage_is_refused_at_once() {
    for (args, told) in [
        (&["latency", "-n", "3"][..], "two ranks, not 3"),
        (&["multi-pair", "-n", "3"], "even number"),
        (&["multi-pair", "-n", "100000"], "ranks"),
        (&["pack", "-n", "2"], "one rank, not 2"),
        (&["faults", "-n", "1"], "two ranks or more"),
        (&["pack", "--memory", "heap"], "no --memory"),
        (&["launch", "--layout", "indexed"], "no messages"),
        (&["latency", "--sizes", "8,x"], "no size"),
        (
            &["latency", "--sizes", "8", "--min", "4"],
            "cannot be used with",
        ),
        (&["latency", "--min", "8", "--max", "4"], "exceeds"),
        (&["latency", "--layout", "vector:16:8"], "stride"),
        (&["latency", "--layout", "ring"], "expected contiguous"),
        (&["latency", "--memory", "gpu"], "possible values"),
        (&["latency", "--window", "0"], "0"),
        (&["latency", "--iterations", "0"], "0"),
        (
            &["latency", "--json", "/no/such/folder/a.json"],
            "no such folder",
        ),
        (
            &["latency", "--plot", "/no/such/folder/a.svg"],
            "no such folder",
        ),
        (
            &["latency", "--device"],
            "--device is for the benchmark pack",
        ),
        (
            &["pack", "--device", "--rotate"],
            "pack --device has shapes of its own",
        ),
        (&["pack", "--trees", "3"], "--device"),
        (&["throughput"], "possible values"),
        (&[], "BENCH"),
    ] {
        let args: Vec<&str> = ["bench"].iter().chain(args).copied().collect();
        let output = osier(&args);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
        assert!(errors.contains(told), "{args:?}: {errors}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn datatype_measures_shapes_by_name() {
    let scratch = Scratch::new("datatype");
    let json = scratch.file("a.json");
    let shapes = "lulesh-edge,nas-lu-x";
    let table = bench(&["datatype", "--shapes", shapes, "--json", &json]);
    assert!(table.contains("lulesh-edge-s30"), "{table}");
    assert!(table.contains("nas-lu-x-162"), "{table}");
    let records = records(&json);
    for name in ["commit", "pack", "unpack", "pingpong"] {
        let name = format!("datatype-{name}");
        let of_this = records.iter().filter(|r| r["bench"] == name.as_str());
        assert_eq!(of_this.count(), 2, "{name}");
    }
    assert!(records.iter().all(|r| r["unit"] == "us" && r["ranks"] == 2));
}

#[test]
fn datatype_writes_shapes_for_the_peers() {
    let scratch = Scratch::new("shapes");
    let file = scratch.file("shapes.txt");
    bench(&["datatype", "--shapes", "nas-lu-x", "--export", &file]);
    let text = std::fs::read_to_string(file).unwrap();
    assert!(
        text.starts_with("nas-lu-x-162 1 both 6480 0 6480 "),
        "{text}"
    );
}

#[test]
fn packing_on_a_device_is_measured_or_refused() {
    let scratch = Scratch::new("device");
    let (json, svg) = (scratch.file("a.json"), scratch.file("a.svg"));
    let run = |library: &Path| {
        Command::new(env!("CARGO_BIN_EXE_osier"))
            .args(["bench", "pack", "--device", "--sizes", "8K,16K"])
            .args(["--trees", "2", "--json", &json, "--plot", &svg])
            .args(["--shapes", "matrix,block-4-8,aos,kv,random"])
            .args(["-i", "1", "-x", "0", "-r", "2"])
            .debug("cuda-library", library)
            .output()
            .unwrap()
    };
    let absent = run(Path::new("/nowhere/libcuda.so.1"));
    let told = String::from_utf8(absent.stderr).unwrap();
    assert_eq!(absent.status.code(), Some(1), "{told}");
    assert!(told.contains("/nowhere/libcuda.so.1"), "{told}");
    let Some(library) = needs::driver() else {
        return;
    };
    let done = run(&library);
    let told = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.success(), "{told}");
    let table = String::from_utf8(done.stdout).unwrap();
    assert!(
        table.contains("emulated: no figure here is one of a GPU"),
        "{table}"
    );
    let rows: Vec<&str> = table
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    let wide = rows[0].chars().count();
    assert!(
        rows.iter()
            .all(|row| row.is_empty() || row.chars().count() == wide),
        "{table}"
    );
    let records = records(&json);
    let percentiles: Vec<&Value> = records
        .iter()
        .filter(|r| r["bench"] == "pack-device-random-p5")
        .collect();
    assert_eq!(percentiles.len(), 2, "one for each size");
    for measure in [
        "pack",
        "unpack",
        "copy",
        "gather",
        "memcpy2d",
        "warp-per-unit",
        "copy-each",
    ] {
        let name = format!("pack-device-{measure}");
        let of_this = |r: &&Value| r["bench"] == name.as_str() && r["layout"] == "V";
        assert_eq!(records.iter().filter(of_this).count(), 2, "{name}");
    }
    assert!(
        records
            .iter()
            .any(|r| r["bench"] == "pack-device-linear-scan")
    );
    assert!(std::fs::read_to_string(&svg).unwrap().contains("transpose"));
}

#[test]
fn messages_of_devices_are_measured_or_refused() {
    let Some(library) = needs::driver() else {
        return;
    };
    let scratch = Scratch::new("device-messages");
    let json = scratch.file("m.json");
    let run = |line: &str| {
        Command::new(env!("CARGO_BIN_EXE_osier"))
            .args(["bench", "--bind", "none", "-i", "2", "-x", "1", "-r", "2"])
            .args(line.split_whitespace())
            .debug("cuda-library", &library)
            .output()
            .unwrap()
    };
    let told = |line: &str| {
        let out = run(line);
        let complaint = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{line}: {complaint}");
        String::from_utf8(out.stdout).unwrap()
    };
    let table = told(&format!(
        "latency --memory device,pinned,plain --layout contiguous,matrix --sizes 8,20K --json {json}"
    ));
    assert!(table.contains("no figure here is one of a GPU"), "{table}");
    let found = records(&json);
    assert_eq!(found.len(), 12, "{table}");
    assert!(found.iter().all(|r| r["floor"].is_number()), "{table}");
    for line in [
        "latency --from device --to host --layout triangle --to-layout contiguous --sizes 9K",
        "latency --from host --to device --layout transpose:9 --to-layout matrix:9",
        "bandwidth --from pinned --to device --layout vector:8:16 --sizes 1K -W 3 --rotate",
        "bibandwidth --memory device --layout triangle:20 --busy 50 -W 2",
        "latency --memory device --layout transpose:9,matrix --to-layout contiguous \
         --sizes 600 --by osier,blocks,host",
    ] {
        let table = told(line);
        assert!(table.contains("device"), "{line}: {table}");
    }
    // Collectives of devices beside a program that copies around those of the host.
    for name in [
        "bcast",
        "gather",
        "gatherv",
        "scatter",
        "scatterv",
        "allgather",
        "allgatherv",
        "alltoall",
        "alltoallv",
        "reduce",
        "allreduce",
        "reduce-scatter-block",
        "reduce-scatter",
        "scan",
        "exscan",
        "neighbor-allgatherv",
        "neighbor-alltoallv",
    ] {
        let table = told(&format!(
            "{name} --memory device --by osier,host --sizes 8,6000 --json {json}"
        ));
        assert!(table.contains("no figure here is one of a GPU"), "{table}");
        assert_eq!(records(&json).len(), 4, "{table}");
    }
    let table = told("allreduce --memory plain,device --each --fresh --sizes 20K");
    assert!(table.contains("through the host"), "{table}");
    for (line, hint) in [
        (
            "latency --to-layout matrix --sizes 100",
            "contiguous has any",
        ),
        ("latency --busy 20", "--memory device"),
        ("message-rate --memory device", "latency, bandwidth"),
        ("allreduce --memory device --by blocks", "--by is about"),
        (
            "alltoallw --memory device --sizes 8",
            "no buffers of devices",
        ),
        ("latency --by host", "--memory device"),
        ("latency --memory device --from host", "cannot be used with"),
    ] {
        let out = run(line);
        let complaint = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{line}: {complaint}");
        assert!(complaint.contains(hint), "{line}: {complaint}");
    }
}

#[test]
fn packing_is_measured_by_thread_blocks() {
    let Some(library) = needs::driver() else {
        return;
    };
    let out = Command::new(env!("CARGO_BIN_EXE_osier"))
        .args([
            "bench", "pack", "--device", "--shapes", "V,T", "--sizes", "16K",
        ])
        .args(["--blocks", "1,4,16", "-i", "1", "-x", "0", "-r", "2"])
        .debug("cuda-library", &library)
        .output()
        .unwrap();
    let table = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success(), "{table}");
    let rows: Vec<&str> = table
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    // Name, bytes, a rate for each number and for a full device.
    assert!(rows.len() >= 2, "{table}");
    for row in rows {
        assert_eq!(row.split_whitespace().count(), 6, "{table}");
    }
}

#[test]
fn collectives_stand_beside_their_predictions() {
    let scratch = Scratch::new("collectives");
    let json = scratch.file("c.json");
    let run = |line: &str| {
        let out = Command::new(env!("CARGO_BIN_EXE_osier"))
            .args(["bench", "--bind", "none", "-i", "3", "-x", "1", "-r", "2"])
            .args(line.split_whitespace())
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&out.stderr).into_owned();
        (
            out.status.code(),
            String::from_utf8(out.stdout).unwrap(),
            told,
        )
    };
    let mut forms = ["blocking", "nonblocking", "persistent"].iter().cycle();
    for name in [
        "barrier",
        "bcast",
        "gather",
        "gatherv",
        "scatter",
        "scatterv",
        "allgather",
        "allgatherv",
        "alltoall",
        "alltoallv",
        "alltoallw",
        "reduce",
        "allreduce",
        "reduce-scatter-block",
        "reduce-scatter",
        "scan",
        "exscan",
        "neighbor-allgather",
        "neighbor-allgatherv",
        "neighbor-alltoall",
        "neighbor-alltoallv",
        "neighbor-alltoallw",
    ] {
        let form = forms.next().unwrap();
        let (code, table, told) = run(&format!(
            "{name} -n 3 --sizes 8,3000 --form {form} --json {json}"
        ));
        assert_eq!(code, Some(0), "{name} {form}: {told}");
        let sizes = if name == "barrier" { 1 } else { 2 };
        let found = records(&json);
        // The time, the prediction, the share that overlaps.
        let shared = usize::from(*form != "blocking");
        assert_eq!(found.len(), (2 + shared) * sizes, "{table}");
        let rows = table
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty());
        assert_eq!(rows.count(), sizes, "{table}");
    }
    let (code, table, told) = run("allreduce -n 2 --each --fresh --sizes 64K");
    assert_eq!(code, Some(0), "{told}");
    // Which plans are worth a measurement, the costs of this machine say.
    let plans = table
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    assert!(plans.count() > 1 && table.contains("regret"), "{table}");
    let (code, table, told) = run("allreduce -n 2 --memory plain,heap --sizes 8,64K");
    assert_eq!(code, Some(0), "{told}");
    assert!(table.contains("plain; heap"), "{table}");
    let (code, table, told) = run("bcast -n 4 --algorithm chain --sizes 100K");
    assert_eq!(code, Some(0), "{told}");
    assert!(table.contains("chain"), "{table}");
    // On a machine that is not here, in virtual time: the same each time.
    let emulated = "allreduce --topology 2x2x2 --each --sizes 8,100K";
    let (code, table, told) = run(emulated);
    assert_eq!(code, Some(0), "{told}");
    assert!(table.contains("virtual time"), "{table}");
    assert_eq!(run(emulated).1, table);
    for (line, hint) in [
        ("latency --topology 2x2", "about collectives"),
        ("allreduce --topology 2x2 -n 3", "cannot be used with"),
        ("bcast --algorithm ring", "--each"),
        ("latency --each", "no collective"),
        ("allreduce --memory pinned", "heap and device"),
        ("alltoallw --memory heap", "a buffer for each"),
        ("floors --of latency", "are of collectives"),
    ] {
        let (code, _, told) = run(line);
        assert_eq!(code, Some(2), "{line}: {told}");
        assert!(told.contains(hint), "{line}: {told}");
    }
}

#[test]
fn floors_of_two_processes() {
    if std::thread::available_parallelism().map_or(1, |n| n.get()) < 2 {
        let output = osier(&["bench", "floors", "--of", "bcast"]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{told}");
        return assert!(told.contains("floors take two processors"), "{told}");
    }
    let folder = std::env::temp_dir().join(format!("osier-floors-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let json = folder.join("floors.json");
    let json = json.to_str().unwrap();
    for of in ["bcast", "allreduce", "reduce-scatter"] {
        let args = [
            "bench", "floors", "--of", of, "--sizes", "8,20000", "-r", "1",
        ];
        let output = osier(&[&args[..], &["--json", json]].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{of}: {errors}");
        let found = records(json);
        let named = |name: &str| found.iter().filter(|r| r["bench"] == name).count();
        assert_eq!(
            (named("floor-slots"), named("floor-mapped")),
            (2, 2),
            "{of}"
        );

        assert!(
            found
                .iter()
                .any(|r| r["bytes"] == 20_000 && r["layout"] == of)
        );
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

const PATTERNS: [&str; 11] = [
    "trivial",
    "no_comm",
    "stencil_1d",
    "stencil_1d_periodic",
    "dom",
    "tree",
    "fft",
    "all_to_all",
    "nearest",
    "spread",
    "random_nearest",
];

/// Rows of `osier bench patterns` as JSON.
fn patterns(args: &[&str]) -> Vec<Value> {
    let scratch = Scratch::new(&format!("patterns-{}", args.join("-")));
    let file = scratch.file("rows.json");
    let mut all = vec!["bench", "patterns", "-r", "1", "--json", &file];
    all.extend(args);
    let output = osier(&all);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{all:?}: {errors}");
    assert_eq!(errors, "", "{all:?}");
    serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap()
}

/// Every program checks every input of every pattern, and all have the same graph.
#[test]
fn patterns_run_on_ranks_and_workers() {
    for pattern in PATTERNS {
        let size = ["--pattern", pattern, "--kernel", "0,7", "--steps", "37,40"];
        for (ranks, workers) in [("1", "1"), ("1", "2"), ("2", "1"), ("3", "1"), ("3", "2")] {
            // Sets of `spread` are three, of points that are three times as many.
            let points = if pattern == "spread" { "9" } else { "3" };
            let graph = ["-n", ranks, "--workers", workers, "--points", points];
            let rows = patterns(&[&size[..], &graph].concat());
            let number = |row: &Value, name: &str| row[name].as_u64().unwrap();
            assert_eq!(rows.len(), 2);
            let cores = ranks.parse::<u64>().unwrap() * workers.parse::<u64>().unwrap();
            let width = cores * points.parse::<u64>().unwrap();
            assert_eq!(number(&rows[0], "width"), width);
            if !matches!(pattern, "dom" | "tree") {
                assert_eq!(number(&rows[0], "tasks"), width * 37);
                assert_eq!(number(&rows[1], "tasks"), width * 40);
            }
            assert!(rows[0]["seconds"].as_f64().unwrap() > 0.0);
            patterns(&[&size[..], &graph, &["--block", "3"]].concat());
            if workers == "1" {
                let program = ["-n", ranks, "--points", points, "--program", "messages"];
                let messages = patterns(&[&size[..], &program].concat());
                for (row, other) in rows.iter().zip(&messages) {
                    assert_eq!(row["graph"], other["graph"]);
                    assert_eq!(number(row, "tasks"), number(other, "tasks"));
                }
            }
        }
    }
}

#[test]
fn tasks_are_beside_loops_messages_and_sets_of_requests() {
    let told = bench(&["tasks"]);
    for part in ["bare", "send/recv", "edge / WaitSet", "at most 1.00"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let edges = told
        .lines()
        .filter(|line| line.split_whitespace().count() == 9);
    // A heading, and a row for each size.
    assert_eq!(edges.count(), 4, "{told}");
}

#[test]
fn patterns_of_one_point_run() {
    for pattern in [
        "trivial",
        "no_comm",
        "stencil_1d",
        "dom",
        "tree",
        "all_to_all",
        "nearest",
    ] {
        let size = ["--pattern", pattern, "--kernel", "1", "--steps", "9"];
        let rows = patterns(&[&size[..], &["-n", "1", "--points", "1"]].concat());
        assert_eq!(rows[0]["tasks"], 9);
    }
}

#[test]
fn patterns_have_outputs_of_many_cells_and_wide_radices() {
    for program in ["graph", "messages"] {
        let args = [
            "--program",
            program,
            "--kernel",
            "1",
            "--steps",
            "20",
            "-n",
            "2",
        ];
        for more in [
            ["--pattern", "stencil_1d", "--output", "4K", "--points", "1"],
            [
                "--pattern",
                "stencil_1d",
                "--output",
                "64K",
                "--points",
                "2",
            ],
            ["--pattern", "nearest", "--radix", "0", "--points", "2"],
            ["--pattern", "spread", "--radix", "11", "--period", "2"],
            [
                "--pattern",
                "random_nearest",
                "--radix",
                "9",
                "--fraction",
                "0.5",
            ],
        ] {
            patterns(&[&args[..], &more].concat());
        }
    }
    for pattern in ["trivial", "no_comm"] {
        let size = ["--pattern", pattern, "--kernel", "3", "--steps", "50"];
        patterns(&[&size[..], &["-n", "1", "--program", "bare"]].concat());
        patterns(&[&size[..], &["-n", "2", "--program", "kernel"]].concat());
    }
}

#[test]
fn patterns_that_do_not_fit_are_refused() {
    let refused = |args: &[&str]| {
        let output = osier(&[&["bench"], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let two = ["patterns", "-n", "2", "--points", "1", "--pattern"];
    for (pattern, said) in [
        ("stencil_1d_periodic", "needs 3 points"),
        ("spread", "needs 3 points"),
    ] {
        let errors = refused(&[&two[..], &[pattern]].concat());
        assert!(errors.contains(said), "{errors}");
    }
    let cases: [(&[&str], &str); 7] = [
        (&["patterns", "--program", "bare"], "trivial and no_comm"),
        (
            &["patterns", "--program", "messages", "--workers", "2"],
            "about graphs",
        ),
        (
            &["patterns", "--kernel", "1,2,3", "--steps", "4,5"],
            "2 numbers for 3",
        ),
        (
            &["patterns", "--block", "3"],
            "does not divide the 8 points",
        ),
        (&["patterns", "--output", "24"], "a multiple of 16"),
        (
            &["patterns", "--pattern", "dom", "--steps", "20"],
            "needs 32 steps",
        ),
        (&["latency", "--points", "3"], "options of patterns"),
    ];
    for (args, said) in cases {
        let errors = refused(args);
        assert!(errors.contains(said), "{errors}");
    }
}
