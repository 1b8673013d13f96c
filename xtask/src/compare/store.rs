//! All values of a comparison, round by round, as kept in the file of `--resume`.
//!
//! A value is kept with the two looks at the cores between which it was taken; whether they
//! were near is asked when a row is judged, by the shortest look of all sessions.

use super::NAMES;
use super::cases::Case;
use super::hop::{Distance, nearest};
use super::sample::{Key, Unit, Value, median};
use super::table::{Cell, Columns};
use super::tasks::Sweep;
use crate::steps::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Rounds of one machine and one set of libraries.
#[derive(Serialize, Deserialize, Default, Clone, PartialEq, Debug)]
pub struct Store {
    pub machine: String,
    /// Of Osier.
    pub commit: String,
    /// Names and versions of the peers.
    pub peers: Vec<String>,
    rows: Vec<Kept>,
    /// Of patterns of tasks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sweeps: Vec<Sweep>,
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
struct Kept {
    bench: String,
    layout: String,
    memory: String,
    ranks: u32,
    bytes: u64,
    threads: u64,
    unit: Unit,
    transport: Option<String>,
    rounds: Vec<Run>,
}

/// One value.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
struct Run {
    round: u32,
    column: String,
    value: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    floor: Option<f64>,
    /// A line's way from core to core before and after, in ns; none with one core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hops_ns: Option<[f64; 2]>,
}

impl Kept {
    fn is_of(&self, case: &Case) -> bool {
        self.bench == case.bench
            && self.layout == case.layout
            && self.memory == case.memory.name()
            && self.ranks == case.ranks
    }

    fn key(&self) -> Key {
        Key {
            bytes: self.bytes,
            threads: self.threads,
            unit: self.unit,
        }
    }
}

impl Store {
    /// Empty, of this machine and these libraries.
    pub fn new(machine: String, commit: String, peers: Vec<String>) -> Self {
        Self {
            machine,
            commit,
            peers,
            rows: Vec::new(),
            sweeps: Vec::new(),
        }
    }

    /// The store of a file, if there is one, or this one.
    ///
    /// # Errors
    /// The file cannot be read, or is of another machine or other libraries.
    pub fn resumed(self, file: &Path) -> Result<Self> {
        let told = |what: String| format!("{}: {what}", file.display());
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(self),
            Err(e) => return Err(told(e.to_string())),
        };
        let kept: Self = serde_json::from_str(&text).map_err(|e| told(e.to_string()))?;
        kept.fits(&self).map_err(told)?;
        Ok(kept)
    }

    fn fits(&self, now: &Self) -> Result {
        let other = |what: &str, kept: &str, now: &str| match kept == now {
            true => Ok(()),
            false => Err(format!(
                "its rounds are of another {what}: {kept}, not {now} (hint: begin another file)"
            )),
        };
        other("machine", &self.machine, &now.machine)?;
        other("commit", &self.commit, &now.commit)?;
        // Peers that are not run this time do no harm.
        for peer in &now.peers {
            let (name, _) = peer.split_once(' ').unwrap_or((peer, ""));
            let mut known = self.peers.iter();
            if let Some(kept) = known.find(|kept| kept.split(' ').next() == Some(name)) {
                other("peer", kept, peer)?;
            }
        }
        Ok(())
    }

    /// Writes the file as a whole: who is stopped has what was measured.
    pub fn write(&self, file: &Path) -> Result {
        let text = serde_json::to_string(self).map_err(|e| e.to_string())?;
        let new = file.with_extension("new");
        std::fs::write(&new, text + "\n")
            .and_then(|()| std::fs::rename(&new, file))
            .map_err(|e| format!("cannot write {}: {e}", file.display()))
    }

    /// The round that comes next.
    pub fn next_round(&self) -> u32 {
        let all = self.rows.iter().flat_map(|row| &row.rounds);
        all.map(|run| run.round + 1).max().unwrap_or(0)
    }

    /// Takes a value.
    pub fn push(
        &mut self,
        case: &Case,
        round: u32,
        column: usize,
        value: Value,
        hops_ns: Option<[f64; 2]>,
    ) {
        let key = value.key.clone();
        let same = |row: &Kept| row.is_of(case) && row.key() == key;
        let at = self.rows.iter().position(same).unwrap_or_else(|| {
            self.rows.push(Kept {
                bench: case.bench.into(),
                layout: case.layout.into(),
                memory: case.memory.name().into(),
                ranks: case.ranks,
                bytes: key.bytes,
                threads: key.threads,
                unit: key.unit,
                transport: None,
                rounds: Vec::new(),
            });
            self.rows.len() - 1
        });
        let row = &mut self.rows[at];
        if column == 0 {
            row.transport = value.transport().or(row.transport.take());
        }
        row.rounds.push(Run {
            round,
            column: NAMES[column].into(),
            value: value.number(),
            floor: value.floor(),
            hops_ns,
        });
    }

    /// The way of a line between near cores, in all sessions.
    pub fn nearest(&self) -> f64 {
        let all = self.rows.iter().flat_map(|row| &row.rounds);
        let sweeps = self.sweeps.iter().filter_map(|sweep| sweep.hops_ns);
        let hops = all.filter_map(|run| run.hops_ns).chain(sweeps);
        nearest(hops.flatten().collect()).unwrap_or(f64::INFINITY)
    }

    /// How often a column was measured at this distance: the fewest of its rows of a case and
    /// size (0: any size).
    pub fn rounds(&self, case: &Case, bytes: u64, column: usize, distance: Distance) -> usize {
        let nearest = self.nearest();
        let rows = self
            .rows
            .iter()
            .filter(|row| row.is_of(case) && (bytes == 0 || row.bytes == bytes));
        let count = |row: &Kept| {
            let of_it = |run: &&Run| {
                run.column == NAMES[column] && Distance::of(run.hops_ns, nearest) == Some(distance)
            };
            row.rounds.iter().filter(of_it).count()
        };
        rows.map(count).filter(|n| *n > 0).min().unwrap_or(0)
    }

    /// Medians of the rows of a case at one distance.
    pub fn medians(&self, case: &Case, distance: Distance) -> BTreeMap<Key, Columns> {
        let nearest = self.nearest();
        let mut all = BTreeMap::new();
        for row in self.rows.iter().filter(|row| row.is_of(case)) {
            let fits = |run: &&Run| Distance::of(run.hops_ns, nearest) == Some(distance);
            let runs: Vec<&Run> = row.rounds.iter().filter(fits).collect();
            if runs.is_empty() {
                continue;
            }
            let of = |name: &str| {
                let own = runs.iter().filter(|run| run.column == name);
                cell(own.map(|run| run.value).collect())
            };
            all.insert(
                row.key(),
                Columns {
                    cells: NAMES.map(of),
                    floor: cell(runs.iter().filter_map(|run| run.floor).collect())
                        .map(|cell| cell.median),
                    transport: row.transport.clone(),
                },
            );
        }
        all
    }
}

fn cell(mut values: Vec<f64>) -> Option<Cell> {
    values.sort_by(f64::total_cmp);
    let (first, last) = (*values.first()?, *values.last()?);
    let median = median(&values);
    Some(Cell {
        median,
        spread: (last - first) / median,
        rounds: values.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::cases::cases;
    use super::*;

    fn store() -> Store {
        Store::new("a machine".into(), "abc".into(), vec!["mpich 4.2".into()])
    }

    fn filled() -> (Store, Case) {
        let case = cases(&[2], false)[0];
        let mut store = store();
        for (round, (value, hops)) in [(3.0, 60.0), (1.0, 60.0), (2.0, 60.0), (9.0, 200.0)]
            .into_iter()
            .enumerate()
        {
            let round = u32::try_from(round).unwrap();
            store.push(&case, round, 1, Value::launch(value), Some([hops, hops]));
        }
        // Neither near nor far.
        store.push(&case, 4, 1, Value::launch(70.0), Some([60.0, 200.0]));
        (store, case)
    }

    #[test]
    fn distances_stand_apart() {
        let (store, case) = filled();
        assert_eq!(store.rounds(&case, 0, 1, Distance::Near), 3);
        assert_eq!(store.rounds(&case, 0, 1, Distance::Far), 1);
        assert_eq!(store.rounds(&case, 0, 0, Distance::Near), 0);
        let near = store.medians(&case, Distance::Near);
        let cell = near.values().next().and_then(|c| c.cells[1].clone());
        assert_eq!(
            cell.map(|c| (c.median, c.spread, c.rounds)),
            Some((2.0, 1.0, 3))
        );
        let far = store.medians(&case, Distance::Far);
        let cell = far.values().next().and_then(|c| c.cells[1].clone());
        assert_eq!(cell.map(|c| c.median), Some(9.0));
    }

    #[test]
    fn rounds_are_added_to_those_of_a_file() {
        let folder = std::env::temp_dir().join(format!("osier-store-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("rounds.json");
        assert_eq!(store().resumed(&file), Ok(store()));
        let (kept, case) = filled();
        kept.write(&file).unwrap();
        let mut again = store().resumed(&file).unwrap();
        assert_eq!((again.next_round(), &again), (5, &kept));
        again.push(&case, 5, 1, Value::launch(4.0), Some([61.0, 61.0]));
        assert_eq!(again.rounds(&case, 0, 1, Distance::Near), 4);
        let other = |f: &dyn Fn(&mut Store)| {
            let mut now = store();
            f(&mut now);
            now.resumed(&file).unwrap_err()
        };
        assert!(other(&|now| now.commit = "def".into()).contains("another commit"));
        assert!(other(&|now| now.machine = "b".into()).contains("another machine"));
        assert!(other(&|now| now.peers = vec!["mpich 4.3".into()]).contains("another peer"));
        let mut fewer = store();
        fewer.peers.clear();
        assert!(fewer.resumed(&file).is_ok());
        std::fs::write(&file, "no JSON").unwrap();
        assert!(store().resumed(&file).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
