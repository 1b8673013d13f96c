//! Device memory of which few pages are touched, beside a model of these on the host: layouts
//! that reach across many gigabytes.

use crate::support::{self, download, upload};
use osier_kernels::{DeviceSlice, Stream, copy};
use std::collections::BTreeMap;
use std::ops::Range;

const PAGE: usize = 4096;

/// How much of the emulated devices' memory these tests ask for; what is not touched costs
/// nothing.
pub const MEMORY: (&str, &str) = ("OSIER_EMULATED_MEMORY", "512G");

/// Runs an ignored test of this program in a process of its own, whose devices have
/// [`MEMORY`].
#[track_caller]
pub fn run_alone(test: &str) {
    if support::emulated().is_none() {
        return;
    }
    let program = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new(program);
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    let done = command.env(MEMORY.0, MEMORY.1).output().unwrap();
    let told = String::from_utf8_lossy(&done.stdout).into_owned();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(
        done.status.success() && told.contains("1 passed"),
        "{told}\n{errors}"
    );
    print!("{told}");
}

/// A page of memory as it is made.
fn pattern(seed: u64, page: usize) -> impl Iterator<Item = u8> {
    let word = move |at: u64| (at ^ seed << 50).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let words = (0..PAGE / 8).map(move |k| word((page * PAGE / 8 + k) as u64));
    words.flat_map(|word| (word ^ word >> 29).to_ne_bytes())
}

/// Memory and its model.
pub struct Sparse<'a> {
    stream: &'a Stream,
    pub device: DeviceSlice<u8>,
    seed: u64,
    pages: BTreeMap<usize, Vec<u8>>,
}

impl<'a> Sparse<'a> {
    pub fn new(stream: &'a Stream, bytes: usize, seed: u64) -> Sparse<'a> {
        let device = DeviceSlice::<u8>::new(stream, bytes.max(1)).unwrap();
        Sparse {
            stream,
            device: device.into_inner(),
            seed,
            pages: BTreeMap::new(),
        }
    }

    /// Makes the pages of some runs, and those around them, known: pattern on both sides.
    pub fn touch(&mut self, runs: &[(usize, usize)]) {
        let bytes = self.device.len();
        let mut fresh = Vec::new();
        for &(at, length) in runs {
            for page in at.saturating_sub(1) / PAGE..=((at + length) / PAGE).min((bytes - 1) / PAGE)
            {
                let seed = self.seed;
                self.pages.entry(page).or_insert_with(|| {
                    fresh.push(page);
                    let length = PAGE.min(bytes - page * PAGE);
                    pattern(seed, page).take(length).collect()
                });
            }
        }
        fresh.sort_unstable();
        for (range, pages) in joined(&fresh) {
            let all: Vec<u8> = pages
                .iter()
                .flat_map(|page| self.pages[page].clone())
                .collect();
            let staged = upload(self.stream, &all).after_stream(self.stream);
            let start = range.start * PAGE;
            let place = self.device.slice(start..start + all.len()).unwrap();
            copy::copy(self.stream, &staged, &place.after_stream(self.stream)).unwrap();
        }
    }

    /// Bytes of touched runs, one after the other.
    pub fn gather(&self, runs: &[(usize, usize)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &(at, length) in runs {
            for (page, inside) in pages_of(at, length) {
                bytes.extend_from_slice(&self.pages[&page][inside]);
            }
        }
        bytes
    }

    /// Writes bytes to touched runs of the model.
    pub fn scatter(&mut self, runs: &[(usize, usize)], bytes: &[u8]) {
        let mut rest = bytes;
        for &(at, length) in runs {
            for (page, inside) in pages_of(at, length) {
                let (now, later) = rest.split_at(inside.len());
                if let Some(page) = self.pages.get_mut(&page) {
                    page[inside].copy_from_slice(now);
                }
                rest = later;
            }
        }
        assert!(rest.is_empty());
    }

    /// Compares all touched pages with the model.
    #[track_caller]
    pub fn check(&self, what: &str) {
        let known: Vec<usize> = self.pages.keys().copied().collect();
        for (range, pages) in joined(&known) {
            let start = range.start * PAGE;
            let model: Vec<u8> = pages
                .iter()
                .flat_map(|page| self.pages[page].clone())
                .collect();
            let place = self.device.slice(start..start + model.len()).unwrap();
            let found = download(self.stream, &place);
            if found != model {
                let at = (0..model.len()).find(|&at| found[at] != model[at]);
                panic!(
                    "{what}: byte {:?} behind {start} is not as the host says",
                    at
                );
            }
        }
    }
}

/// The pages of a run, and which of their bytes.
fn pages_of(at: usize, length: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let pages = at / PAGE..(at + length).div_ceil(PAGE);
    pages.map(move |page| {
        let start = page * PAGE;
        let inside = at.max(start) - start..(at + length).min(start + PAGE) - start;
        (page, inside)
    })
}

/// Pages that follow each other.
fn joined(pages: &[usize]) -> impl Iterator<Item = (Range<usize>, &[usize])> {
    let runs = pages.chunk_by(|a, b| a + 1 == *b);
    runs.map(|run| (run[0]..run[run.len() - 1] + 1, run))
}
