//! The two sequences: read, drawn or mutated at rank 0, and told to the others.

use std::fs::File;
use std::path::Path;

use osier::{Communicator, Result};

use super::fasta::{self, Sequence};
use super::mutation;
use super::options::Options;

/// Two sequences, and where the alignment goes.
#[derive(Debug)]
pub struct Input {
    /// The first sequence, and the second.
    pub sequences: [Sequence; 2],
    /// The file for the alignment, at rank 0.
    pub output: Option<File>,
}

/// Letters that are drawn without files.
const LETTERS: usize = 20_000;
/// Letters that mutate if nothing is said.
const RATE: f64 = 0.1;

/// The input of a run, or what is wrong with it: both the same at all ranks. Collective.
///
/// # Errors
/// Communication fails.
pub fn load(comm: &Communicator, options: &Options) -> Result<std::result::Result<Input, String>> {
    let read = match comm.rank() {
        0 => Some(at_rank_0(options)),
        _ => None,
    };
    let (mut output, mut wrong) = (None, Vec::new());
    let mut sequences = [const { Vec::new() }; 4];
    match read {
        Some(Ok(input)) => {
            output = input.output;
            let [first, second] = input.sequences;
            let names = [first.name, second.name].map(String::into_bytes);
            let [one, another] = names;
            sequences = [one, first.letters, another, second.letters];
        }
        Some(Err(what)) => wrong = what.into_bytes(),
        None => {}
    }
    tell(comm, &mut wrong)?;
    if !wrong.is_empty() {
        return Ok(Err(String::from_utf8_lossy(&wrong).into_owned()));
    }
    for bytes in &mut sequences {
        tell(comm, bytes)?;
    }
    let [one, first, another, second] = sequences;
    let sequence = |name: Vec<u8>, letters| Sequence {
        name: String::from_utf8_lossy(&name).into_owned(),
        letters,
    };
    Ok(Ok(Input {
        sequences: [sequence(one, first), sequence(another, second)],
        output,
    }))
}

/// Bytes of rank 0 at all ranks.
fn tell(comm: &Communicator, bytes: &mut Vec<u8>) -> Result<()> {
    let mut length = [bytes.len() as u64];
    comm.bcast(&mut length, 0)?;
    bytes.resize(length[0] as usize, 0);
    comm.bcast(bytes, 0)
}

fn at_rank_0(options: &Options) -> std::result::Result<Input, String> {
    let sequences = sequences(options)?;
    let output = options.output.as_deref().map(create).transpose()?;
    Ok(Input { sequences, output })
}

fn sequences(options: &Options) -> std::result::Result<[Sequence; 2], String> {
    let read = |at: usize| {
        let record = options.record.get(at).map(String::as_str);
        fasta::read(&options.files[at], record).map_err(|e| e.to_string())
    };
    let first = match options.files.len() {
        0 => {
            let length = options.random.unwrap_or(LETTERS);
            let letters = mutation::random(length, options.seed).ok_or_else(|| {
                format!("--random {length}: no memory for the letters, expected fewer")
            })?;
            let name = "random".into();
            Sequence { name, letters }
        }
        1 => read(0)?,
        _ => return Ok([read(0)?, read(1)?]),
    };
    let rate = options.mutate.unwrap_or(RATE);
    // Another stream of numbers than the letters'.
    let letters = mutation::mutate(&first.letters, rate, !options.seed);
    let second = Sequence {
        name: "mutated".into(),
        letters,
    };
    for sequence in [&first, &second] {
        if sequence.letters.is_empty() {
            return Err(format!(
                "the sequence '{}' is empty, expected at least one letter \
                 (hint: a larger --random, or a smaller --mutate)",
                sequence.name
            ));
        }
    }
    Ok([first, second])
}

/// The file is made before the work begins, which may take long.
fn create(path: &Path) -> std::result::Result<File, String> {
    File::create(path).map_err(|e| {
        let path = path.display();
        format!("--output {path}: cannot be written: {e}")
    })
}
