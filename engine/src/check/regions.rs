//! Claims of buffers that a C program hands over until its request completes.
//!
//! A Rust program cannot touch what a request has borrowed, and a claim lives as long as
//! the operation. A C program has its buffer back when it has completed the request, however
//! early the message left. So its layer holds a [`Region`] for each buffer, and the lanes
//! claim nothing.

use super::{Check, Checks, Claim, Site};
use crate::view::{RawView, View, ViewMut, sum};
use std::ops::Range;

/// Memory that an operation reads or writes.
#[derive(Clone)]
pub struct Region {
    view: RawView,
    writes: bool,
}

impl Region {
    /// What an operation reads; `None` if that is nothing, or on a device.
    pub fn read(view: &View<'_>) -> Option<Region> {
        Self::of(view.as_raw(), false)
    }

    /// What an operation writes, as [`Region::read`].
    pub fn written(view: &ViewMut<'_>) -> Option<Region> {
        Self::of(view.as_raw(), true)
    }

    /// What an operation reads of a buffer that others of its kind write.
    pub fn read_of(view: &ViewMut<'_>) -> Option<Region> {
        Self::of(view.as_raw(), false)
    }

    fn of(view: &RawView, writes: bool) -> Option<Region> {
        let here = view.bytes() > 0 && view.as_device().is_none();
        here.then(|| Region {
            view: view.clone(),
            writes,
        })
    }

    /// Whether the operation writes it.
    pub fn is_written(&self) -> bool {
        self.writes
    }

    /// Whether one of two is written and the other one read, in the same bytes.
    pub fn mixes_with(&self, other: &Region) -> bool {
        self.writes != other.writes && self.view.overlaps(&other.view)
    }

    /// The addresses of its bytes, as runs in the order in which they are packed.
    pub fn runs(&self, f: impl FnMut(Range<usize>)) {
        self.view.runs(f);
    }

    /// Bytes and types.
    fn describe(&self) -> String {
        let bytes = self.view.bytes();
        match self.view.signature() {
            Some(signature) => format!("{bytes} bytes ({signature})"),
            None => format!("{bytes} bytes"),
        }
    }
}

/// A right to a region, until the program has completed the request.
pub struct Hold {
    checks: Checks,
    region: Region,
    site: Site,
    /// Its checksum when it was handed over.
    sum: Option<u64>,
    _claim: Claim,
}

impl Checks {
    /// Claims a region for the call at `site`; reports a claim that conflicts with it.
    pub fn hold(&self, region: &Region, site: Site) -> Hold {
        let what = region.describe();
        Hold {
            checks: self.clone(),
            region: region.clone(),
            site,
            sum: None,
            _claim: self.claim(&region.view, region.writes, what, site),
        }
    }
}

impl Hold {
    /// What it holds.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The operation continues after its call: memory that it reads must not change from now on.
    pub fn seal(&mut self) {
        self.sum = (!self.region.writes).then(|| sum(&self.region.view));
    }

    /// The program has completed the request. Not to be called if the memory is gone.
    pub fn end(self) {
        if let Some(before) = self.sum
            && sum(&self.region.view) != before
        {
            let (what, site) = (self.region.describe(), self.site);
            let text = format!(
                "a buffer has changed before its request was completed: {what}\n  handed over at {site}\n  (hint: leave the buffer alone until MPI_Wait or MPI_Test has completed the request)\n"
            );
            self.checks.report(Check::Buffers, text);
        }
    }
}
