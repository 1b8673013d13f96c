//! The file of a picture, which rank 0 opens before a long run and writes after it.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use osier::task::{Graph, Report};
use osier::{Communicator, Error, ErrorKind, Result};

/// A file that can be written, at rank 0.
#[derive(Debug)]
pub struct PictureFile(Option<File>);

impl PictureFile {
    /// Opens the file. Collective.
    ///
    /// # Errors
    /// As [`Communicator::bcast`]; of the inner result, the same on all ranks, the file
    /// cannot be written.
    pub fn open(comm: &Communicator, path: &Path) -> Result<std::result::Result<Self, Error>> {
        let opened = (comm.rank() == 0).then(|| File::create(path)).transpose();
        let cause = opened.as_ref().err().map(ToString::to_string);
        let mut cause = cause.unwrap_or_default().into_bytes();
        let mut length = [cause.len() as u64];
        comm.bcast(&mut length, 0)?;
        cause.resize(length[0] as usize, 0);
        comm.bcast(&mut cause, 0)?;
        match opened {
            Ok(file) if cause.is_empty() => Ok(Ok(Self(file))),
            _ => {
                let (path, cause) = (path.display(), String::from_utf8_lossy(&cause));
                let what = format!("--picture {path}: cannot be written: {cause}");
                Ok(Err(Error::new(ErrorKind::Argument, what)))
            }
        }
    }

    /// Opens the file, if there is to be one. Collective.
    ///
    /// # Errors
    /// As [`PictureFile::open`].
    pub fn open_if(
        comm: &Communicator,
        path: Option<&Path>,
    ) -> Result<std::result::Result<Option<Self>, Error>> {
        match path {
            Some(path) => Ok(Self::open(comm, path)?.map(Some)),
            None => Ok(Ok(None)),
        }
    }

    /// Draws at rank 0.
    ///
    /// # Errors
    /// Writing fails.
    pub fn draw(self, draw: impl FnOnce(File) -> io::Result<()>) -> Result<()> {
        let drawn = self.0.map_or(Ok(()), draw);
        drawn.map_err(|e| Error::new(ErrorKind::System, format!("--picture: {e}")))
    }

    /// Draws a graph, with the times of a run that measured them, as SVG. Collective.
    ///
    /// # Errors
    /// Writing fails; as [`Graph::picture_of`].
    pub fn draw_graph(self, graph: &Graph, report: &Report) -> Result<()> {
        let picture = graph.picture_of(report)?;
        self.draw(|mut file| file.write_all(picture.as_bytes()))
    }
}
