//! What a hang looks like, as text.

use super::page::{Operation, Wait, WaitTag};
use super::verdict::cycles;

/// Context of the world.
const WORLD: u64 = 1;
/// Most waits that are listed.
const MOST_LINES: usize = 64;

/// A wait of a rank.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its rank in the world.
    pub rank: usize,
    /// What it waits for.
    pub wait: Wait,
}

/// Name of a communicator by its context.
pub fn communicator(context: u64) -> String {
    match context {
        WORLD => "world".into(),
        0 => "-".into(),
        other => format!("{other:#x}"),
    }
}

/// A duration of so many nanoseconds, roughly.
pub fn duration(ns: u64) -> String {
    match ns / 1_000_000_000 {
        s @ 0..60 => format!("{}.{} s", s, ns / 100_000_000 % 10),
        s @ 60..3600 => format!("{} min {} s", s / 60, s % 60),
        s => format!("{} h {} min", s / 3600, s / 60 % 60),
    }
}

/// The cells that describe a wait: operation, peer, tag, communicator, bytes,
/// time, place.
pub fn cells(wait: &Wait, now_ns: u64) -> [String; 7] {
    let known = wait.operation != Operation::Other;
    let peer = match wait.peer {
        Some(peer) => peer.to_string(),
        None if known => "any".into(),
        None => "-".into(),
    };
    let tag = match wait.tag {
        WaitTag::Exact(tag) => tag.to_string(),
        WaitTag::Any if known => "any".into(),
        WaitTag::Any => "-".into(),
        WaitTag::Collective => "collective".into(),
    };
    let place = if wait.posted == wait.waits {
        wait.posted.to_string()
    } else {
        format!("{} (waits at {})", wait.posted, wait.waits)
    };
    [
        wait.operation.name().into(),
        peer,
        tag,
        communicator(wait.context),
        wait.bytes.to_string(),
        duration(now_ns.saturating_sub(wait.since_ns)),
        place,
    ]
}

/// Heads of [`cells`].
pub const HEADS: [&str; 7] = [
    "operation",
    "peer",
    "tag",
    "communicator",
    "bytes",
    "for",
    "at",
];

/// Lines of text with columns that line up; the first row is the head.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns)
        .map(|c| rows.iter().map(|r| r[c].chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::from(" ");
        for (cell, width) in row.iter().zip(&widths) {
            line += &format!(" {cell:<width$} ");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// The report of a job that hangs. Without a newline at its end.
pub fn hang(lines: &[Line], ranks: usize, now_ns: u64) -> String {
    let mut text = format!(
        "the job hangs: all threads of its {ranks} ranks wait, and no message is under way\n"
    );
    let heads = std::iter::once("rank").chain(HEADS).map(str::to_owned);
    let mut rows: Vec<Vec<String>> = vec![heads.collect()];
    for line in lines.iter().take(MOST_LINES) {
        let rank = std::iter::once(line.rank.to_string());
        rows.push(rank.chain(cells(&line.wait, now_ns)).collect());
    }
    text += &table(&rows);
    if lines.len() > MOST_LINES {
        text += &format!("  and {} more waits\n", lines.len() - MOST_LINES);
    }
    let edges = lines
        .iter()
        .filter_map(|l| Some((l.rank as u32, l.wait.peer?)));
    for cycle in cycles(edges) {
        let around = cycle.iter().chain(cycle.first()).map(u32::to_string);
        text += &format!("  cycle: {}\n", around.collect::<Vec<_>>().join(" -> "));
    }
    text += "  (hint: osier ps shows the waits of a running job; --on-hang kill ends such a job)";
    text
}

/// What a rank says of a wait that lasts.
pub fn stall(rank: u32, waits: &[Wait], now_ns: u64) -> String {
    let mut text = String::new();
    for wait in waits {
        let [operation, peer, tag, communicator, bytes, time, place] = cells(wait, now_ns);
        text += &format!(
            "osier: rank {rank} has waited for {time}: {operation}, peer {peer}, tag {tag}, communicator {communicator}, {bytes} bytes, at {place}\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::page::Place;
    use super::*;

    fn line(rank: usize, peer: u32) -> Line {
        let place = |line| Place {
            file: "src/main.rs".into(),
            line,
        };
        Line {
            rank,
            wait: Wait {
                operation: Operation::Receive,
                peer: Some(peer),
                tag: WaitTag::Exact(7),
                context: 1,
                bytes: 8,
                since_ns: 1_000_000_000,
                posted: place(12),
                waits: place(if rank == 3 { 20 } else { 12 }),
            },
        }
    }

    #[test]
    fn a_hang_names_waits_and_cycles() {
        let text = hang(&[line(1, 3), line(3, 1)], 4, 1_400_000_000);
        let expected = "\
the job hangs: all threads of its 4 ranks wait, and no message is under way
  rank  operation  peer  tag  communicator  bytes  for    at
  1     receive    3     7    world         8      0.4 s  src/main.rs:12
  3     receive    1     7    world         8      0.4 s  src/main.rs:12 (waits at src/main.rs:20)
  cycle: 1 -> 3 -> 1
";
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn durations_are_rough() {
        assert_eq!(duration(123_456_789), "0.1 s");
        assert_eq!(duration(61_000_000_000), "1 min 1 s");
        assert_eq!(duration(7_384_000_000_000), "2 h 3 min");
    }
}
