//! The matrix of a run, on all ranks: rank 0 reads the file for the others.

use super::grid::convection_diffusion;
use super::matrix::Matrix;
use super::options::Options;
use super::read::{self, BadFile, Source};
use osier::{Communicator, Result};

/// What rank 0 tells the others first: whether the file is bad, its line, and lengths.
const WORDS: usize = 7;

/// Reads or makes the matrix. Collective; the inner result is the same on all ranks.
///
/// # Errors
/// As [`Communicator::bcast`]; of the inner result, the file is bad.
pub fn load(
    comm: &Communicator,
    options: &Options,
) -> Result<std::result::Result<Source, BadFile>> {
    if let Some(points) = options.convection {
        return Ok(Ok(Source {
            name: format!("--convection {points}"),
            line: 0,
            title: format!("convection and diffusion on {points}^3 points"),
            matrix: convection_diffusion(points as usize, options.peclet, options.seed),
        }));
    }
    let path = options.file.as_deref().unwrap_or("".as_ref());
    let read = (comm.rank() == 0).then(|| read::file(path));
    let words = read.as_ref().map_or([0; WORDS], words_of);
    share(comm, read, words)
}

fn words_of(read: &std::result::Result<Source, BadFile>) -> [u64; WORDS] {
    let len = |text: &str| text.len() as u64;
    match read {
        Ok(source) => {
            let (matrix, line) = (&source.matrix, source.line as u64);
            let (rows, columns) = (matrix.rows() as u64, matrix.columns() as u64);
            let entries = matrix.entries() as u64;
            [
                0,
                line,
                len(&source.name),
                len(&source.title),
                rows,
                columns,
                entries,
            ]
        }
        Err(e) => [1, e.line as u64, len(&e.file), len(&e.what), 0, 0, 0],
    }
}

/// Tells the other ranks what rank 0 has read.
fn share(
    comm: &Communicator,
    read: Option<std::result::Result<Source, BadFile>>,
    mut words: [u64; WORDS],
) -> Result<std::result::Result<Source, BadFile>> {
    comm.bcast(&mut words, 0)?;
    let [is_bad, line, lengths @ .., rows, columns, entries] = words;
    let texts = match &read {
        Some(Ok(source)) => [source.name.as_str(), source.title.as_str()],
        Some(Err(e)) => [e.file.as_str(), e.what.as_str()],
        None => [""; 2],
    };
    let mut told = [String::new(), String::new()];
    for ((told, text), len) in told.iter_mut().zip(texts).zip(lengths) {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(len as usize, 0);
        comm.bcast(&mut bytes[..], 0)?;
        *told = String::from_utf8_lossy(&bytes).into_owned();
    }
    let ([name, text], line) = (told, line as usize);
    if is_bad != 0 {
        return Ok(Err(BadFile {
            file: name,
            line,
            what: text,
        }));
    }
    let (mut starts, mut indices, mut values) = match &read {
        Some(Ok(source)) => {
            let (starts, indices, values) = source.matrix.arrays();
            (starts, indices.to_vec(), values.to_vec())
        }
        _ => Default::default(),
    };
    starts.resize(columns as usize + 1, 0);
    indices.resize(entries as usize, 0);
    values.resize(entries as usize, 0.0);
    comm.bcast(&mut starts[..], 0)?;
    comm.bcast(&mut indices[..], 0)?;
    comm.bcast(&mut values[..], 0)?;
    Ok(Ok(Source {
        name,
        line,
        title: text,
        matrix: Matrix::from_arrays(rows as usize, &starts, indices, values),
    }))
}
