//! Graphs: built once on all ranks.

use crate::build::{BuildError, Outline};
use crate::describe::Description;
use crate::firable::Firable;
use crate::instance::Instance;
use crate::picture::{
    FamilyBox, MOST_EDGES, MOST_TASKS, Picture, Relation, TaskBox, TaskEdge, Unrolled,
};
use crate::progress::ThreadChoice;
use crate::report::Report;
use crate::shape::{FamilyShape, Shape};
use osier_engine::trace::family::Family;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// What building needs of the ranks.
pub trait Ranks {
    /// This rank.
    fn rank(&self) -> usize;
    /// Number of ranks.
    fn size(&self) -> usize;
    /// Sends a letter to each rank, this one included, and returns the letters of all.
    /// Collective.
    fn exchange(&mut self, letters: Vec<Vec<u64>>) -> Vec<Vec<u64>>;
}

/// A rank without others.
pub struct OneRank;

impl Ranks for OneRank {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn exchange(&mut self, letters: Vec<Vec<u64>>) -> Vec<Vec<u64>> {
        letters
    }
}

/// A graph on one rank: immutable, but for what its runs measure.
#[derive(Clone)]
pub struct Graph {
    description: Arc<Description>,
    shape: Arc<Shape>,
    /// For timelines.
    names: Arc<[Family]>,
    choice: Arc<Mutex<ThreadChoice>>,
}

impl Graph {
    /// This rank takes no part in a run that it has opened, of this number.
    pub fn give_up(&self, run: u32) {
        let families = self.description.families.iter();
        let told = families.filter_map(|family| family.given_up.as_deref());
        told.for_each(|given_up| given_up(run));
    }

    /// Builds a graph. Collective.
    ///
    /// # Errors
    /// The description is no graph; the same on all ranks, of the lowest rank that found one.
    pub fn build(description: Description, ranks: &mut dyn Ranks) -> Result<Graph, BuildError> {
        let (rank, size) = (ranks.rank(), ranks.size());
        let digest = description.digest();
        let digests = ranks.exchange(vec![vec![digest]; size]);
        let differs = digests.iter().position(|other| *other != digests[0]);
        if let Some(rank) = differs {
            // All ranks see the same letters.
            return Err(BuildError::Differs { rank });
        }
        let outline = agree(ranks, Outline::new(&description, rank, size))?;
        let letters = ranks.exchange(outline.letters().to_vec());
        let shape = agree(ranks, outline.assemble(&description, &letters))?;
        let fixed = settle(ranks, &shape);
        agree(ranks, fixed)?;
        let name = |family: &FamilyShape| Family::new(&family.name, &family.extents);
        Ok(Graph {
            names: shape.families.iter().map(name).collect(),
            description: Arc::new(description),
            shape: Arc::new(shape),
            choice: Arc::default(),
        })
    }

    /// Most runs at once, if the description says so.
    pub fn most_runs(&self) -> Option<u32> {
        self.description.most_runs
    }

    /// The tasks of this rank and their edges.
    pub fn shape(&self) -> &Arc<Shape> {
        &self.shape
    }

    /// Its families, as timelines name them.
    pub(crate) fn names(&self) -> &Arc<[Family]> {
        &self.names
    }

    /// Whether it is run with a progress thread.
    pub(crate) fn choice(&self) -> &Arc<Mutex<ThreadChoice>> {
        &self.choice
    }

    /// A run, before it begins.
    pub fn instance(
        &self,
        run: u32,
        workers: usize,
        outside: Option<Box<dyn crate::instance::Outside>>,
    ) -> Instance {
        let workers = workers.max(1);
        Instance::new(&self.description, &self.shape, (run, workers), outside)
    }
}

/// What is drawn of a graph.
impl Graph {
    /// The graph as a picture, with the times of a report of each rank if there is one.
    /// Collective: each rank tells the others of its numbers, and of its tasks if these are
    /// few.
    ///
    /// # Errors
    /// The report of a rank has no times, or is of another graph; the same on all ranks.
    pub fn picture(
        &self,
        report: Option<&Report>,
        ranks: &mut dyn Ranks,
    ) -> Result<Picture, BuildError> {
        let times = self.times_of(report);
        let times = times.map_err(|text| BuildError::Found {
            rank: ranks.rank(),
            text,
        });
        let times = agree(ranks, times)?;
        let (shape, relations) = (&self.shape, self.relations());
        let mut letter = vec![shape.tasks.len() as u64, shape.inputs.len() as u64];
        letter.extend(relations.iter().map(|relation| relation.edges));
        let in_family = |family: &FamilyShape| {
            let tasks = family.tasks.start as usize..family.tasks.end as usize;
            times.map_or(0, |times| times[tasks].iter().sum())
        };
        letter.extend(shape.families.iter().map(in_family));
        let letters = ranks.exchange(vec![letter; ranks.size()]);
        let of_all = |at: usize| -> u64 {
            let words = letters.iter().map(|l| l.get(at).copied().unwrap_or(0));
            words.fold(0, u64::saturating_add)
        };
        let places = 2..2 + relations.len();
        let relations = relations.into_iter().zip(places.clone());
        let relations = relations.map(|(relation, at)| Relation {
            edges: of_all(at),
            ..relation
        });
        let families = shape.families.iter().zip(&self.description.families);
        let families = families.zip(places.end..);
        let families = families.map(|((family, described), at)| FamilyBox {
            name: family.name.clone(),
            extents: family.extents.clone(),
            placement: format!("{:?}", described.placement),
            rule: format!("{:?}", family.rule),
            inputs: family.inputs.clone(),
            outputs: family.outputs.clone(),
            begins: family.begins.clone(),
            took_ns: times.map(|_| of_all(at)),
        });
        let is_small = of_all(0) <= MOST_TASKS as u64 && of_all(1) <= MOST_EDGES as u64;
        let picture = Picture {
            ranks: shape.ranks,
            families: families.collect(),
            relations: relations.collect(),
            unrolled: None,
        };
        match is_small {
            true => Ok(Picture {
                unrolled: Some(self.unrolled(times, ranks)?),
                ..picture
            }),
            false => Ok(picture),
        }
    }

    /// The times of a report, if there is one.
    fn times_of<'a>(&self, report: Option<&'a Report>) -> Result<Option<&'a [u64]>, String> {
        let Some(report) = report else {
            return Ok(None);
        };
        match &report.times_ns {
            None => Err("a picture with times of a report that has none \
                         (hint: RunSettings::times)"
                .into()),
            Some(times) if times.len() != self.shape.tasks.len() => Err(format!(
                "a report of {} tasks of rank {}, where the graph has {}",
                times.len(),
                self.shape.rank,
                self.shape.tasks.len()
            )),
            Some(times) => Ok(Some(times)),
        }
    }

    /// Edges from port to port, each pair and label once; how many of this rank.
    fn relations(&self) -> Vec<Relation> {
        let mut counts: BTreeMap<EdgeKey, u64> = BTreeMap::new();
        for edges in &self.description.edges {
            counts.insert((edges.from, edges.to, edges.label), 0);
        }
        for input in &self.shape.inputs {
            let (family, _, port) = input.producer;
            let to = self.shape.tasks[input.task as usize].family;
            let key = ((family, port), (to, input.port), input.label);
            *counts.entry(key).or_default() += 1;
        }
        let relation = |((from, to, label), edges)| Relation {
            from,
            to,
            label,
            edges,
        };
        counts.into_iter().map(relation).collect()
    }

    /// The tasks of all ranks and their edges. Collective.
    fn unrolled(
        &self,
        times: Option<&[u64]>,
        ranks: &mut dyn Ranks,
    ) -> Result<Unrolled, BuildError> {
        let shape = &self.shape;
        let mut tasks: Vec<u64> = vec![shape.tasks.len() as u64];
        for (at, task) in shape.tasks.iter().enumerate() {
            let took_ns = times.map_or(0, |times| times[at]);
            tasks.extend([u64::from(task.family), task.number, took_ns]);
        }
        for input in &shape.inputs {
            let (family, number, port) = input.producer;
            let task = &shape.tasks[input.task as usize];
            tasks.extend([u64::from(family), number, u64::from(port)]);
            tasks.extend([u64::from(task.family), task.number, u64::from(input.port)]);
            tasks.push(u64::from(input.label));
        }
        let letters = ranks.exchange(vec![tasks; ranks.size()]);
        let mut at: BTreeMap<(u64, u64), (usize, u64)> = BTreeMap::new();
        let mut edges = Vec::new();
        for (rank, letter) in letters.iter().enumerate() {
            let malformed = |word: usize| BuildError::Malformed { rank, word };
            let (count, words) = letter.split_first().ok_or_else(|| malformed(0))?;
            let own = usize::try_from(*count)
                .ok()
                .and_then(|n| n.checked_mul(TASK_WORDS));
            let own = own
                .filter(|words| *words < letter.len())
                .ok_or_else(|| malformed(0))?;
            let (own, rest) = words.split_at(own);
            for task in own.chunks_exact(TASK_WORDS) {
                let is_known = shape.families.get(task[0] as usize).is_some();
                if !is_known {
                    return Err(malformed(1));
                }
                at.insert((task[0], task[1]), (rank, task[2]));
            }
            for edge in rest.chunks_exact(EDGE_WORDS) {
                edges.push((
                    rank,
                    <[u64; EDGE_WORDS]>::try_from(edge).unwrap_or_default(),
                ));
            }
        }
        let numbered: Vec<(u64, u64)> = at.keys().copied().collect();
        let place = |task: (u64, u64), rank: usize| {
            let known = numbered.binary_search(&task);
            known.map_err(|_| BuildError::Malformed { rank, word: 1 })
        };
        edges.sort_by_key(|(_, edge)| *edge);
        let edges = edges.into_iter().map(|(rank, edge)| {
            let [family, number, port, to_family, to_number, to_port, label] = edge;
            let (from, to) = (
                place((family, number), rank)?,
                place((to_family, to_number), rank)?,
            );
            let (family, consumers) = (
                &shape.families[family as usize],
                &shape.families[to_family as usize],
            );
            let out = family.outputs.get(port as usize);
            let into = consumers.inputs.get(to_port as usize);
            let (Some(out), Some(into)) = (out, into) else {
                return Err(BuildError::Malformed { rank, word: 1 });
            };
            let label = match label {
                0 => String::new(),
                label => format!(", label {label}"),
            };
            Ok(TaskEdge {
                from,
                to,
                name: format!("{out} -> {into}{label}"),
                begins: family.begins.get(port as usize) == Some(&true),
            })
        });
        let tasks = at
            .iter()
            .map(|((family, number), (rank, took_ns))| TaskBox {
                name: shape.name_of(*family as u32, *number),
                rank: *rank,
                took_ns: times.map(|_| *took_ns),
            });
        Ok(Unrolled {
            tasks: tasks.collect(),
            edges: edges.collect::<Result<_, _>>()?,
        })
    }
}

/// Ports of producer and consumer, each with its family; label.
type EdgeKey = ((u32, u32), (u32, u32), u32);

/// Words of a task, and of an edge, in the letter of a picture.
const TASK_WORDS: usize = 3;
const EDGE_WORDS: usize = 7;

/// Rounds until no rank has news.
fn settle(ranks: &mut dyn Ranks, shape: &Shape) -> Result<(), BuildError> {
    let mut firable = Firable::new(shape);
    let mut malformed = Ok(());
    loop {
        let mut letters = firable.take_news();
        let any = u64::from(letters.iter().any(|letter| !letter.is_empty()));
        for letter in &mut letters {
            letter.insert(0, any);
        }
        let letters = ranks.exchange(letters);
        if letters.iter().all(|letter| letter.first() == Some(&0)) {
            break;
        }
        for (rank, letter) in letters.iter().enumerate() {
            if let Err(e) = firable.hear(rank, letter.get(1..).unwrap_or_default()) {
                malformed = malformed.and(Err(e));
            }
        }
    }
    malformed.and(firable.verdict())
}

/// The result of this rank, unless one of a lower number has an error.
fn agree<R>(ranks: &mut dyn Ranks, result: Result<R, BuildError>) -> Result<R, BuildError> {
    let text = result.as_ref().err().map(ToString::to_string);
    let letter = words(text.as_deref());
    let letters = ranks.exchange(vec![letter; ranks.size()]);
    let first = letters.iter().enumerate().find(|(_, l)| !l.is_empty());
    match first {
        None => result,
        Some((rank, letter)) => Err(BuildError::Found {
            rank,
            text: text_of(letter),
        }),
    }
}

fn words(text: Option<&str>) -> Vec<u64> {
    let Some(text) = text else {
        return Vec::new();
    };
    let bytes = text.as_bytes().chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    std::iter::once(text.len() as u64).chain(bytes).collect()
}

fn text_of(words: &[u64]) -> String {
    let Some((len, words)) = words.split_first() else {
        return String::new();
    };
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.truncate(usize::try_from(*len).unwrap_or(usize::MAX));
    String::from_utf8_lossy(&bytes).into_owned()
}
