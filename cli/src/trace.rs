//! `osier trace`: puts recordings together where no launcher has done so.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use osier_engine::trace::{Merged, merge};
use osier_transports::shm::Job;

/// What to do with timelines.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Write DIR/trace.json from the recordings in DIR
    ///
    /// `osier run --trace DIR` does so itself when the job ends. What a
    /// launcher that was killed has left is merged here. The recordings are
    /// removed afterwards.
    Merge {
        /// The folder that --trace or OSIER_TRACE named
        dir: PathBuf,
    },
}

/// Does it and returns the exit code.
pub fn main(command: &Command) -> ExitCode {
    let Command::Merge { dir } = command;
    match merge(dir, None) {
        Ok(merged) if merged.is_empty() => {
            eprintln!("osier: trace: nothing is recorded in {}", dir.display());
            ExitCode::FAILURE
        }
        Ok(merged) => {
            for merged in merged {
                println!("{}", summary(&merged));
            }
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("osier: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Writes the timeline of a job that has ended, and says where.
pub fn merge_job(folder: &Path, job: &Job) {
    match merge(folder, Some(job.id())) {
        Ok(merged) if merged.is_empty() => {
            eprintln!("osier: trace: no rank has recorded anything");
        }
        Ok(merged) => merged
            .iter()
            .for_each(|m| eprintln!("osier: {}", summary(m))),
        Err(e) => eprintln!("osier: {e}"),
    }
}

fn summary(merged: &Merged) -> String {
    let Merged {
        file,
        ranks,
        events,
        dropped,
        arrows,
    } = merged;
    let mut text = format!(
        "trace: {} ({ranks} ranks, {events} events, {arrows} messages from end to end)",
        file.display()
    );
    if *dropped > 0 {
        text += &format!(
            "; {dropped} older events were dropped (hint: raise OSIER_DEBUG=trace-events)"
        );
    }
    text
}
