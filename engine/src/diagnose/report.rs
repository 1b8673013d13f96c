//! Text of a hang report.

use super::outside::Sleeper;
use super::page::{Operation, Wait, WaitTag};
use super::verdict::cycles;
use osier_transports::Death;

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

/// A duration in nanoseconds as text, roughly.
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
    let known = !matches!(
        wait.operation,
        Operation::Other | Operation::Task | Operation::WindowLock | Operation::WaitUntil
    );
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
    let mut place = if wait.posted == wait.waits {
        wait.posted.to_string()
    } else {
        format!("{} (waits at {})", wait.posted, wait.waits)
    };
    if !wait.what.is_empty() {
        place = format!("{place}: {}", wait.what);
    }
    let bytes = match wait.operation {
        Operation::Task | Operation::WindowLock | Operation::WaitUntil => "-".into(),
        _ => wait.bytes.to_string(),
    };
    [
        wait.operation.name().into(),
        peer,
        tag,
        communicator(wait.context),
        bytes,
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

/// A job that hangs, or probably does.
#[derive(Clone, Debug)]
pub struct Hang {
    /// Whether it is certain.
    pub certain: bool,
    /// Number of ranks.
    pub ranks: usize,
    /// What they wait for.
    pub waits: Vec<Line>,
    /// Threads outside Osier that are asleep, by rank.
    pub outside: Vec<(usize, Sleeper)>,
    /// Ranks that have failed.
    pub failed: Vec<(usize, Death)>,
}

impl Hang {
    /// The report. Without a newline at its end.
    pub fn text(&self, now_ns: u64) -> String {
        let ranks = self.ranks;
        let mut text = match self.certain {
            true => format!(
                "the job hangs: all threads of its {ranks} ranks wait, and no message is under way\n"
            ),
            false => format!(
                "the job probably hangs: nothing moves, and all threads of its {ranks} ranks wait, or sleep until another thread wakes them\n"
            ),
        };
        let heads = std::iter::once("rank").chain(HEADS).map(str::to_owned);
        let mut rows: Vec<Vec<String>> = vec![heads.collect()];
        for line in self.waits.iter().take(MOST_LINES) {
            let rank = std::iter::once(line.rank.to_string());
            rows.push(rank.chain(cells(&line.wait, now_ns)).collect());
        }
        text += &table(&rows);
        if self.waits.len() > MOST_LINES {
            text += &format!("  and {} more waits\n", self.waits.len() - MOST_LINES);
        }
        // What waits for a task of its own rank names the cycle itself.
        let between =
            |l: &&Line| l.wait.operation != Operation::Task || l.wait.peer != Some(l.rank as u32);
        let edges = self.waits.iter().filter(between);
        let edges = edges.filter_map(|l| Some((l.rank as u32, l.wait.peer?)));
        for cycle in cycles(edges) {
            let around = cycle.iter().chain(cycle.first()).map(u32::to_string);
            text += &format!("  cycle: {}\n", around.collect::<Vec<_>>().join(" -> "));
        }
        for (rank, sleeper) in self.outside.iter().take(MOST_LINES) {
            text += &outside(*rank, sleeper);
        }
        for (rank, death) in &self.failed {
            let how = match death {
                Death::Exited(code) => format!("exit code {code}"),
                Death::Signaled(signal) => format!("signal {signal}"),
                Death::Ended => "its process has ended".into(),
                Death::Disconnected => "its connection was lost".into(),
                Death::Unreachable => "it cannot be reached".into(),
                Death::Silent => "its host does not answer".into(),
                Death::Apart => "it goes on without this rank".into(),
                Death::Overwritten => "its messages were overwritten".into(),
                Death::Finalized => continue, // no failure
            };
            text += &format!("  rank {rank} has failed ({how})\n");
        }
        let option = match self.certain {
            true => "kill",
            false => "kill-probable",
        };
        text += &format!(
            "  (hint: osier ps shows the waits of a running job; --on-hang {option} ends such a job)"
        );
        text
    }
}

/// A line about a thread outside Osier that is asleep.
pub fn outside(rank: usize, sleeper: &Sleeper) -> String {
    let Sleeper {
        thread,
        name,
        sleep,
    } = sleeper;
    format!("  rank {rank}: thread {thread} ({name}) sleeps outside Osier: {sleep}\n")
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
    use super::super::outside::Sleep;
    use super::super::page::SourceLine;
    use super::*;

    fn line(rank: usize, peer: u32) -> Line {
        let place = |line| SourceLine {
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
                what: String::new(),
            },
        }
    }

    #[test]
    fn a_hang_names_waits_and_cycles() {
        let mut hang = Hang {
            certain: true,
            ranks: 4,
            waits: vec![line(1, 3), line(3, 1)],
            outside: Vec::new(),
            failed: vec![(0, Death::Signaled(9)), (2, Death::Exited(3))],
        };
        let text = hang.text(1_400_000_000);
        let expected = "\
the job hangs: all threads of its 4 ranks wait, and no message is under way
  rank  operation  peer  tag  communicator  bytes  for    at
  1     receive    3     7    world         8      0.4 s  src/main.rs:12
  3     receive    1     7    world         8      0.4 s  src/main.rs:12 (waits at src/main.rs:20)
  cycle: 1 -> 3 -> 1
  rank 0 has failed (signal 9)
  rank 2 has failed (exit code 3)
";
        assert!(text.starts_with(expected), "{text}");
        hang.certain = false;
        hang.outside.push((
            3,
            Sleeper {
                thread: 4711,
                name: "worker".into(),
                sleep: Sleep::Futex(0x7f00),
            },
        ));
        let text = hang.text(1_400_000_000);
        assert!(text.starts_with("the job probably hangs: "), "{text}");
        let line = "\n  rank 3: thread 4711 (worker) sleeps outside Osier: futex 0x7f00\n";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn tasks_are_named_behind_the_line_that_waits() {
        let mut one = line(0, 0);
        one.wait = Wait {
            operation: Operation::Task,
            tag: WaitTag::Any,
            waits: one.wait.posted.clone(),
            what: "cell[1], rule all".into(),
            ..one.wait
        };
        let of_rank = |peer| {
            let mut one = one.clone();
            one.wait.peer = peer;
            one
        };
        let mut hang = Hang {
            certain: true,
            ranks: 1,
            waits: vec![of_rank(Some(0)), of_rank(None)],
            outside: Vec::new(),
            failed: Vec::new(),
        };
        let text = hang.text(1_400_000_000);
        let expected = "
  rank  operation  peer  tag  communicator  bytes  for    at
  0     task       0     -    world         -      0.4 s  src/main.rs:12: cell[1], rule all
  0     task       -     -    world         -      0.4 s  src/main.rs:12: cell[1], rule all
  (hint";
        assert!(text.contains(expected), "{text}");
        hang.waits[1].wait.peer = Some(1);
        hang.waits.push(line(1, 0));
        let text = hang.text(1_400_000_000);
        assert!(text.contains("\n  cycle: 0 -> 1 -> 0\n"), "{text}");
    }

    #[test]
    fn durations_are_rough() {
        assert_eq!(duration(123_456_789), "0.1 s");
        assert_eq!(duration(61_000_000_000), "1 min 1 s");
        assert_eq!(duration(7_384_000_000_000), "2 h 3 min");
    }
}
