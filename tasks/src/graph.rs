//! Graphs: built once on all ranks.

use crate::build::{BuildError, Outline};
use crate::describe::Description;
use crate::firable::Firable;
use crate::instance::Instance;
use crate::shape::Shape;
use crate::worker::Counts;
use std::sync::Arc;
use std::time::Duration;

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

/// A graph on one rank: immutable.
#[derive(Clone)]
pub struct Graph {
    description: Arc<Description>,
    shape: Arc<Shape>,
}

/// What a run did on this rank.
#[derive(Clone, Debug)]
pub struct Report {
    /// Tasks of this rank, all of which have ended.
    pub tasks: usize,
    /// From the call until all tasks of this rank had ended and what they sent had left.
    pub took: Duration,
    /// What each worker did.
    pub workers: Vec<Counts>,
}

impl Graph {
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
        Ok(Graph {
            description: Arc::new(description),
            shape: Arc::new(shape),
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
