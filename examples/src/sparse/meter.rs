//! Progress of a rank's supernodes, reported by any of its workers.

use crate::progress::Progress;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Supernodes that are factored.
#[derive(Debug)]
pub struct Meter {
    /// None: nothing is drawn.
    progress: Option<Mutex<Progress>>,
    done: AtomicUsize,
}

impl Meter {
    /// Of a number of supernodes; silent unless `visible`.
    pub fn new(supernodes: usize, visible: bool) -> Self {
        let progress = || Mutex::new(Progress::new("supernode", supernodes, true));
        Self {
            progress: visible.then(progress),
            done: AtomicUsize::new(0),
        }
    }

    /// One more is factored.
    pub fn factored(&self) {
        let Some(progress) = &self.progress else {
            return;
        };
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        // Otherwise another worker draws.
        if let Ok(mut progress) = progress.try_lock() {
            progress.advance(done);
        }
    }

    /// All is done; the bar stays.
    pub fn finish(&self) {
        let Some(progress) = &self.progress else {
            return;
        };
        if let Ok(mut progress) = progress.lock() {
            std::mem::replace(&mut *progress, Progress::Silent).finish();
        }
    }
}
