//! Writes a timeline as Trace Event JSON, which ui.perfetto.dev opens.
//!
//! A rank is a "process" there, whatever process it runs in. Times are
//! microseconds since the first event, with three decimals, so that
//! nanoseconds survive.

use super::event::{ANY, Kind};
use super::timeline::{Span, Timeline};
use serde_json::{Map, Value, json};
use std::io::{Result, Write};

/// Tags above it are the library's own: a message of a collective.
const INTERNAL: u32 = crate::matching::INTERNAL_TAG;

/// Writes the timeline.
///
/// # Errors
/// What the writer reports.
pub fn write(timeline: &Timeline<'_>, out: &mut impl Write) -> Result<()> {
    let zero = timeline.spans.iter().map(|s| s.start_ns).min().unwrap_or(0);
    let dropped: u64 = timeline.threads.iter().map(|t| t.dropped).sum();
    let offsets: Map<String, Value> = timeline
        .threads
        .iter()
        .map(|t| (format!("rank {}", t.rank), t.clock_offset_ns.into()))
        .collect();
    let other = json!({
        "written by": concat!("osier ", env!("CARGO_PKG_VERSION")),
        "events dropped": dropped,
        "clock offsets in ns": offsets,
    });
    write!(
        out,
        "{{\"displayTimeUnit\":\"ns\",\"otherData\":{other},\"traceEvents\":["
    )?;
    let mut first = true;
    let mut put = |out: &mut dyn Write, event: Value| -> Result<()> {
        let comma = if std::mem::take(&mut first) { "" } else { "," };
        write!(out, "{comma}\n{event}")
    };
    for (at, thread) in timeline.threads.iter().enumerate() {
        let rank = thread.rank;
        if at == 0 || timeline.threads[at - 1].rank != rank {
            let name = format!("rank {rank} (pid {})", thread.pid);
            put(out, meta("process_name", rank, 0, json!({"name": name})))?;
            put(
                out,
                meta("process_sort_index", rank, 0, json!({"sort_index": rank})),
            )?;
        }
        let name = match (thread.name.as_str(), thread.dropped) {
            ("", 0) => format!("thread {}", thread.thread),
            ("", n) => format!("thread {} ({n} events dropped)", thread.thread),
            (name, 0) => name.to_owned(),
            (name, n) => format!("{name} ({n} events dropped)"),
        };
        put(
            out,
            meta("thread_name", rank, thread.thread, json!({"name": name})),
        )?;
    }
    for span in &timeline.spans {
        let thread = &timeline.threads[span.thread];
        put(
            out,
            json!({
                "ph": "X",
                "name": span.event.kind.name(),
                "cat": span.event.kind.category(),
                "pid": thread.rank,
                "tid": thread.thread,
                "ts": micros(span.start_ns - zero),
                "dur": micros(span.end_ns - span.start_ns),
                "args": args(span),
            }),
        )?;
    }
    for (id, arrow) in timeline.arrows.iter().enumerate() {
        let ends = [
            ("s", arrow.from, timeline.spans[arrow.from].start_ns),
            ("f", arrow.to, timeline.spans[arrow.to].end_ns),
        ];
        for (phase, span, at_ns) in ends {
            let span = &timeline.spans[span];
            let thread = &timeline.threads[span.thread];
            // The end of a span does not belong to it any more.
            let inside = at_ns.min(span.end_ns - 1).max(span.start_ns);
            let mut event = json!({
                "ph": phase,
                "name": "message",
                "cat": "message",
                "id": id + 1,
                "pid": thread.rank,
                "tid": thread.thread,
                "ts": micros(inside - zero),
            });
            if phase == "f" {
                // Bound to the span that holds it, not to the next.
                event["bp"] = "e".into();
            }
            put(out, event)?;
        }
    }
    writeln!(out, "\n]}}")
}

fn meta(name: &str, rank: u32, thread: u32, args: Value) -> Value {
    json!({"ph": "M", "name": name, "pid": rank, "tid": thread, "args": args})
}

/// Exact to the nanosecond for traces of up to a hundred days.
fn micros(ns: i128) -> Value {
    json!(ns as f64 / 1000.0)
}

fn args(span: &Span<'_>) -> Value {
    let event = &span.event;
    let mut args = Map::new();
    let mut put = |key: &str, value: Value| drop(args.insert(key.into(), value));
    if event.kind == Kind::WaitAll {
        put("requests", event.bytes.into());
    } else if event.world != ANY || event.bytes != 0 {
        put("bytes", event.bytes.into());
    }
    if event.peer != ANY {
        put("peer", event.peer.into());
    }
    if event.world != ANY && event.world != event.peer {
        put("rank of the job", event.world.into());
    }
    if event.tag != ANY {
        match event.tag & INTERNAL {
            0 => put("tag", event.tag.into()),
            _ => put("tag", "of a collective".into()),
        }
    }
    if event.context != 0 {
        put("communicator", format!("{:#x}", event.context).into());
    }
    if event.number != 0 {
        put("message", event.number.into());
    }
    if let Some(site) = span.site {
        let line = format!("{}:{}:{}", site.path, site.line, site.column);
        put("line", line.into());
    }
    if span.unfinished {
        put("unfinished", true.into());
    }
    Value::Object(args)
}
