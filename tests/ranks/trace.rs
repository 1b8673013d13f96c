//! Timelines of exchanges that are known.

use crate::support::{Watchdog, pattern};
use osier::task::{Context, Description, Fire, Graph, In, Next, Placement, Rule, Task, TaskError};
use osier::testing::ranks_traced;
use osier::{ANY_SOURCE, ANY_TAG, Communicator, Op, Type, View, ViewMut};
use osier_engine::trace::{Merged, Options, merge};
use serde_json::Value;
use std::collections::HashMap;
use std::path::PathBuf;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = format!("osier-trace-{name}-{}", std::process::id());
        Folder(std::env::temp_dir().join(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a traced exchange; the summary and the events of the JSON.
fn traced(
    name: &str,
    events: usize,
    n: usize,
    f: impl Fn(Communicator) + Sync,
) -> (Merged, Vec<Value>) {
    let _watchdog = Watchdog::start();
    let folder = Folder::new(name);
    let options = Options {
        folder: folder.0.clone(),
        events,
    };
    ranks_traced(&options, n, f);
    let mut merged = merge(&folder.0, None).expect("a timeline");
    assert_eq!(merged.len(), 1);
    let merged = merged.remove(0);
    let left = std::fs::read_dir(&folder.0).expect("the folder").count();
    assert_eq!(left, 1, "recordings are removed");
    let text = std::fs::read_to_string(&merged.file).expect("the file");
    let mut json: Value = serde_json::from_str(&text).expect("JSON");
    let events = json["traceEvents"].take();
    let Value::Array(events) = events else {
        panic!("no events");
    };
    check(&events);
    (merged, events)
}

fn ns(value: &Value) -> i64 {
    (value.as_f64().expect("a time") * 1000.0).round() as i64
}

fn track(event: &Value) -> (u64, u64) {
    let number = |key| event[key].as_u64().expect("a number");
    (number("pid"), number("tid"))
}

/// What holds for every timeline.
fn check(events: &[Value]) {
    // Spans of a thread nest, and none ends before it begins.
    let mut tracks: HashMap<(u64, u64), Vec<(i64, i64)>> = HashMap::new();
    for span in events.iter().filter(|e| e["ph"] == "X") {
        let (start, took) = (ns(&span["ts"]), ns(&span["dur"]));
        assert!(start >= 0 && took >= 0, "{span}");
        tracks
            .entry(track(span))
            .or_default()
            .push((start, start + took));
    }
    for spans in tracks.values_mut() {
        spans.sort_by_key(|(start, end)| (*start, -*end));
        let mut open: Vec<i64> = Vec::new();
        for (start, end) in spans {
            while open.last().is_some_and(|outer| outer <= start) {
                open.pop();
            }
            if let Some(outer) = open.last() {
                assert!(*end <= *outer, "{start}..{end} leaves ..{outer}");
            }
            open.push(*end);
        }
    }
    // Each arrow has one begin and one end, inside spans, forward in time.
    let mut ends: HashMap<u64, [Option<&Value>; 2]> = HashMap::new();
    for event in events {
        let end = match event["ph"].as_str() {
            Some("s") => 0,
            Some("f") => 1,
            _ => continue,
        };
        let id = event["id"].as_u64().expect("an id");
        let before = ends.entry(id).or_default()[end].replace(event);
        assert!(before.is_none(), "two ends of arrow {id}");
        let at = ns(&event["ts"]);
        let holds = |(start, until): &(i64, i64)| *start <= at && at <= *until;
        assert!(tracks[&track(event)].iter().any(holds), "{event}");
    }
    for [from, to] in ends.values() {
        let (from, to) = (from.expect("a begin"), to.expect("an end"));
        assert!(ns(&from["ts"]) <= ns(&to["ts"]), "{from} {to}");
    }
}

fn count(events: &[Value], name: &str) -> usize {
    let spans = events.iter().filter(|e| e["ph"] == "X");
    spans.filter(|e| e["name"] == name).count()
}

/// Arrows from one rank to another.
fn arrows(events: &[Value], from: u64, to: u64) -> usize {
    let of = |phase: &str, rank: u64| -> Vec<u64> {
        let ends = events
            .iter()
            .filter(|e| e["ph"] == phase && e["pid"] == rank);
        ends.map(|e| e["id"].as_u64().expect("an id")).collect()
    };
    let ends = of("f", to);
    of("s", from).iter().filter(|id| ends.contains(id)).count()
}

#[test]
fn every_message_has_its_arrow() {
    const SIZES: [usize; 8] = [0, 8, 9, 700, 5_000, 40_000, 300_000, 3_000_000];
    let (merged, events) = traced("sizes", 1 << 12, 2, |comm| {
        let (me, peer) = (comm.rank(), 1 - comm.rank());
        for (tag, bytes) in SIZES.into_iter().enumerate() {
            let data = pattern(bytes, me);
            let mut got = vec![0u8; bytes];
            if me == 0 {
                comm.send(&data, peer, tag).expect("send");
                comm.ssend(&data, peer, tag).expect("ssend");
                comm.recv(&mut got, ANY_SOURCE, ANY_TAG).expect("recv");
            } else {
                comm.recv(&mut got, peer, tag).expect("recv");
                comm.recv(&mut got, peer, tag).expect("recv");
                comm.send(&data, peer, tag).expect("send");
            }
            // With gaps, unexpected, to oneself.
            let gaps = Type::vector(bytes, 1, 2, &Type::of::<u8>()).and_then(|t| t.commit());
            let gaps = gaps.expect("a type");
            let from = vec![1u8; 2 * bytes];
            let mut into = vec![0u8; 2 * bytes];
            let view = View::new(&from, 0, &gaps, 1).expect("view");
            let mut view_mut = ViewMut::new(&mut into, 0, &gaps, 1).expect("view");
            comm.scope(|s| {
                s.isend(&view, peer, tag)?;
                s.irecv(&mut view_mut, peer, tag)?;
                s.isend(&data, me, 99)?;
                s.irecv(&mut got, me, 99)?;
                Ok(())
            })
            .expect("scope");
        }
    });
    assert_eq!((merged.ranks, merged.dropped), (2, 0));
    let n = SIZES.len();
    assert_eq!(arrows(&events, 0, 1), 3 * n);
    assert_eq!(arrows(&events, 1, 0), 2 * n);
    assert_eq!(arrows(&events, 0, 0), n);
    assert_eq!(arrows(&events, 1, 1), n);
    let all = 7 * n;
    assert_eq!(merged.arrows, all);
    let starts: usize = ["eager", "first fragment", "rts"]
        .iter()
        .map(|name| count(&events, name))
        .sum();
    assert_eq!(starts, all);
    assert_eq!(count(&events, "received"), all);
    for name in ["eager", "rts", "fragment", "cts", "pull"] {
        assert!(count(&events, name) > 0, "{name}");
    }
    // Calls say what they were called with, and where.
    let send = events
        .iter()
        .find(|e| e["name"] == "send" && e["args"]["bytes"] == 40_000)
        .expect("a send");
    assert_eq!(send["args"]["tag"], 5);
    let line = send["args"]["line"].as_str().expect("a line");
    assert!(line.starts_with(concat!(file!(), ":")), "{line}");
    let recv = events
        .iter()
        .find(|e| e["name"] == "recv" && e["pid"] == 0)
        .expect("a recv");
    assert!(recv["args"].get("peer").is_none(), "from anybody: {recv}");
}

#[test]
fn collectives_and_communicators_are_spans() {
    let (merged, events) = traced("collectives", 1 << 14, 3, |comm| {
        comm.barrier().expect("barrier");
        let half = comm.split(Some(0), -(comm.rank() as i64)).expect("split");
        let half = half.expect("a color");
        let mut sum = [0u64];
        half.allreduce(&[1u64], &mut sum, Op::Sum)
            .expect("allreduce");
        let dest = (half.rank() + 1) % 3;
        half.sendrecv(&[1u8], dest, 0, &mut [0u8], ANY_SOURCE, 0)
            .expect("sendrecv");
    });
    for name in ["barrier", "allreduce", "make communicator", "sendrecv"] {
        assert_eq!(count(&events, name), 3, "{name}");
    }
    let starts = ["eager", "first fragment", "rts"];
    let starts: usize = starts.iter().map(|name| count(&events, name)).sum();
    assert_eq!(merged.arrows, starts, "also those of collectives");
}

/// Sums up what four tasks say, by a rule of its own.
struct Sum {
    values: In<u64>,
    messages: usize,
    sum: u64,
}

impl Task for Sum {
    fn inject(&mut self, cx: &mut Context<'_>) -> Result<Fire, TaskError> {
        for message in cx.each(self.values) {
            self.sum += message.elements[0];
            self.messages += 1;
        }
        Ok(if self.messages == 4 {
            Fire::Ready
        } else {
            Fire::Hold
        })
    }

    fn execute(&mut self, _: &mut Context<'_>) -> Result<Next, TaskError> {
        assert_eq!(self.sum, 6);
        Ok(Next::Done)
    }
}

#[test]
fn tasks_are_spans_on_tracks_of_workers_and_edges_are_arrows() {
    let (merged, events) = traced("tasks", 1 << 12, 2, |comm| {
        // A row whose tasks lie on the two ranks in turn, each of which also tells the sum.
        let mut row = Description::new();
        let cells = row.family("cell \"a\"", &[1, 4], Placement::Cyclic);
        let sums = row.family("sum", &[1], Placement::Block);
        let (right, left) = (row.output::<u64>(cells, "right"), row.input(cells, "left"));
        let (value, values) = (row.output::<u64>(cells, "value"), row.input(sums, "values"));
        row.connect(right, left, |[_, j]: [usize; 2]| {
            (j < 3).then_some([0, j + 1])
        });
        row.connect(value, values, |_: [usize; 2]| [[0]]);
        row.rule(sums, Rule::Own);
        row.tasks(cells, move |_: [usize; 2]| {
            move |cx: &mut Context<'_>| {
                cx.give(right, vec![cx.number()]);
                cx.put(value, &[cx.number()]);
                Ok(Next::Done)
            }
        });
        row.tasks(sums, move |_: [usize; 1]| Sum {
            values,
            messages: 0,
            sum: 0,
        });
        let graph = Graph::build(&comm, row).expect("a graph");
        for workers in [1, 2] {
            graph.run_by(workers).expect("no failure");
        }
    });
    assert_eq!(merged.dropped, 0);
    for j in 0..4u64 {
        for call in ["init", "execute"] {
            let name = format!("cell \"a\"[0, {j}].{call}");
            let spans: Vec<&Value> = events.iter().filter(|e| e["name"] == *name).collect();
            assert_eq!(spans.len(), 2, "{name}");
            for (run, span) in spans.iter().enumerate() {
                assert_eq!(
                    (&span["pid"], &span["cat"]),
                    (&(j % 2).into(), &"task".into())
                );
                assert_eq!(span["args"]["run"], run + 1);
                assert_eq!(span["args"]["firing"], 0);
            }
        }
    }
    assert_eq!(count(&events, "sum[0].execute"), 2);
    // In each run: along the row, and from each of its tasks to the sum.
    assert_eq!(
        (count(&events, "put"), count(&events, "read")),
        (2 * 7, 2 * 7)
    );
    let edges: Vec<Value> = events
        .iter()
        .filter(|e| e["name"] == "edge")
        .cloned()
        .collect();
    assert_eq!(arrows(&edges, 0, 1), 2 * 2);
    assert_eq!(arrows(&edges, 1, 0), 2 * 3);
    assert_eq!(arrows(&edges, 0, 0), 2 * 2);
    assert_eq!(arrows(&edges, 1, 1), 0);
    // Arrows begin in the call that puts, and end in the one that reads.
    let encloses = |end: &Value, name: &str| {
        events.iter().any(|e| {
            let (start, at) = (e["ts"].as_f64(), end["ts"].as_f64());
            let until = start
                .zip(e["dur"].as_f64())
                .map(|(start, took)| start + took);
            let named = e["name"].as_str().is_some_and(|n| n.starts_with(name));
            e["ph"] == "X" && named && track(e) == track(end) && start <= at && at <= until
        })
    };
    for end in &edges {
        match end["ph"] == "s" {
            true => assert!(encloses(end, "cell"), "{end}"),
            false => assert!(
                encloses(end, "cell") || encloses(end, "sum[0].inject"),
                "{end}"
            ),
        }
    }
    // The second run has gone on with the tracks of the first.
    for rank in 0..2 {
        let tracks = events
            .iter()
            .filter(|e| e["name"] == "thread_name" && e["pid"] == rank);
        let tracks = tracks.filter_map(|e| e["args"]["name"].as_str());
        let mut tracks: Vec<&str> = tracks.filter(|name| name.starts_with("worker")).collect();
        tracks.sort_unstable();
        assert_eq!(tracks, ["worker 0", "worker 1"]);
    }
}

#[test]
fn threads_have_tracks_of_their_own() {
    let (_, events) = traced("threads", 1 << 12, 1, |comm| {
        let other = comm.dup().expect("dup");
        std::thread::scope(|s| {
            for comm in [&comm, &other] {
                s.spawn(move || {
                    for _ in 0..20 {
                        comm.sendrecv(&[1u8], 0, 0, &mut [0u8], 0, 0).expect("self");
                    }
                });
            }
        });
    });
    let mut threads: Vec<(u64, u64)> = events
        .iter()
        .filter(|e| e["name"] == "sendrecv")
        .map(track)
        .collect();
    threads.sort_unstable();
    threads.dedup();
    assert_eq!(threads.len(), 2);
    assert_eq!(count(&events, "received"), 40);
}

#[test]
fn the_newest_events_are_kept_and_the_others_counted() {
    let (merged, events) = traced("overflow", 64, 2, |comm| {
        for i in 0..500u64 {
            let mut got = 0u64;
            comm.sendrecv(&i, 1 - comm.rank(), 0, &mut got, 1 - comm.rank(), 0)
                .expect("sendrecv");
        }
    });
    assert_eq!(merged.events, 2 * 63);
    assert!(merged.dropped > 1000, "{}", merged.dropped);
    assert!(merged.arrows > 0);
    let names = events.iter().filter(|e| e["name"] == "thread_name");
    for name in names {
        let name = name["args"]["name"].as_str().expect("a name");
        assert!(name.contains("events dropped"), "{name}");
    }
}

#[test]
fn merge_refuses_file_that_is_no_recording() {
    let folder = Folder::new("refused");
    std::fs::create_dir_all(&folder.0).expect("a folder");
    assert_eq!(merge(&folder.0, None).expect("nothing to do"), []);
    let file = folder.0.join("0-r0-t0.osiertrace");
    std::fs::write(&file, b"something else, and not short").expect("a file");
    let e = merge(&folder.0, None)
        .expect_err("no recording")
        .to_string();
    assert!(e.contains("0-r0-t0.osiertrace"), "{e}");
    assert!(e.contains("it is no recording of osier"), "{e}");
    assert!(file.exists(), "what cannot be read stays");
}
