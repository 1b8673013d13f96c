//! Writes a timeline as Trace Event JSON, which ui.perfetto.dev opens.
//!
//! A rank is a "process" there, whatever process it runs in. Times are
//! microseconds since the first event, with three decimals, so that
//! nanoseconds survive.

use super::event::{ANY, Kind};
use super::family::coordinates;
use super::file::Site;
use super::timeline::{Span, Timeline};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::fmt;
use std::io::{Result, Write};

/// Tags above it are the library's own: a message of a collective.
const INTERNAL: u32 = crate::matching::INTERNAL_TAG;

/// Writes the timeline.
///
/// # Errors
/// Those of the writer.
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
    let mut lines = HashMap::new();
    for span in &timeline.spans {
        let thread = &timeline.threads[span.thread];
        // Hundreds of thousands of them: written directly, without a JSON tree.
        out.write_all(b",\n{\"ph\":\"X\",\"name\":\"")?;
        if span.event.kind.is_task() {
            task_name(span, &mut lines, out)?;
        }
        write!(
            out,
            "{}\",\"cat\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{},\"dur\":{},\"args\":{{",
            span.event.kind.name(),
            span.event.kind.category(),
            thread.rank,
            thread.thread,
            Micros(span.start_ns - zero),
            Micros(span.end_ns - span.start_ns),
        )?;
        args(span, &mut lines, out)?;
        out.write_all(b"}}")?;
    }
    for (id, arrow) in timeline.arrows.iter().enumerate() {
        let ends = [
            // Bound to the span that encloses it, not to the next.
            ("\"s\"", arrow.from, timeline.spans[arrow.from].start_ns),
            (
                "\"f\",\"bp\":\"e\"",
                arrow.to,
                timeline.spans[arrow.to].end_ns,
            ),
        ];
        let name = match timeline.spans[arrow.from].event.kind.is_edge() {
            true => "edge",
            false => "message",
        };
        for (phase, span, at_ns) in ends {
            let span = &timeline.spans[span];
            let thread = &timeline.threads[span.thread];
            // The end of a span no longer belongs to it.
            let inside = at_ns.min(span.end_ns - 1).max(span.start_ns);
            write!(
                out,
                ",\n{{\"ph\":{phase},\"name\":\"{name}\",\"cat\":\"{name}\",\"id\":{},\"pid\":{},\"tid\":{},\"ts\":{}}}",
                id + 1,
                thread.rank,
                thread.thread,
                Micros(inside - zero),
            )?;
        }
    }
    writeln!(out, "\n]}}")
}

fn meta(name: &str, rank: u32, thread: u32, args: Value) -> Value {
    json!({"ph": "M", "name": name, "pid": rank, "tid": thread, "args": args})
}

/// Nanoseconds, written as microseconds, exactly.
struct Micros(i128);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Traces are shorter than 292 years; spans do not begin before the first.
        let ns = u64::try_from(self.0).unwrap_or(0);
        write!(f, "{}.{:03}", ns / 1000, ns % 1000)
    }
}

/// Writes the task whose call a span is, and a dot: `cell[3, 1].`
fn task_name(
    span: &Span<'_>,
    lines: &mut HashMap<*const Site, String>,
    out: &mut impl Write,
) -> Result<()> {
    let number = span.event.number;
    let family = span
        .site
        .and_then(|site| Some((site, site.extents.as_ref()?)));
    let Some((site, extents)) = family else {
        // The table was full, or its begin is lost.
        return write!(out, "task {number}.");
    };
    let name = lines.entry(std::ptr::from_ref(site)).or_insert_with(|| {
        let quoted = Value::from(site.path.as_str()).to_string();
        quoted[1..quoted.len() - 1].to_owned()
    });
    write!(out, "{name}{:?}.", coordinates(extents, number))
}

/// Writes the known fields of a span into an object. `lines` caches the
/// formatted source lines of the user.
fn args(
    span: &Span<'_>,
    lines: &mut HashMap<*const Site, String>,
    out: &mut impl Write,
) -> Result<()> {
    let event = &span.event;
    let mut comma = "";
    let mut put = |out: &mut dyn Write, key: &str, value: fmt::Arguments<'_>| {
        write!(
            out,
            "{}\"{key}\":{value}",
            std::mem::replace(&mut comma, ",")
        )
    };
    if event.kind.is_task() {
        put(out, "firing", format_args!("{}", event.bytes))?;
        put(out, "run", format_args!("{}", event.tag))?;
    } else if event.kind == Kind::WaitAll {
        put(out, "requests", format_args!("{}", event.bytes))?;
    } else if event.kind != Kind::TaskRead && (event.world != ANY || event.bytes != 0) {
        put(out, "bytes", format_args!("{}", event.bytes))?;
    }
    if event.peer != ANY {
        put(out, "peer", format_args!("{}", event.peer))?;
    }
    if event.world != ANY && event.world != event.peer {
        put(out, "rank of the job", format_args!("{}", event.world))?;
    }
    if event.kind.is_edge() {
        put(out, "run", format_args!("{}", event.tag))?;
        put(out, "edge", format_args!("{}", event.number >> 32))?;
        put(out, "message", format_args!("{}", event.number as u32))?;
    } else if event.tag != ANY && !event.kind.is_task() {
        match event.tag & INTERNAL {
            0 => put(out, "tag", format_args!("{}", event.tag))?,
            _ => put(out, "tag", format_args!("\"of a collective\""))?,
        }
    }
    if event.context != 0 {
        put(
            out,
            "communicator",
            format_args!("\"{:#x}\"", event.context),
        )?;
    }
    if event.number != 0 && event.kind.category() != "task" {
        put(out, "message", format_args!("{}", event.number))?;
    }
    if let Some(site) = span.site.filter(|site| site.extents.is_none()) {
        let line = lines.entry(std::ptr::from_ref(site)).or_insert_with(|| {
            let line = format!("{}:{}:{}", site.path, site.line, site.column);
            Value::from(line).to_string()
        });
        put(out, "line", format_args!("{line}"))?;
    }
    if span.unfinished {
        put(out, "unfinished", format_args!("true"))?;
    }
    Ok(())
}
