//! Costs of the machine: tables, their files, positions of ranks.
//!
//! [`cached`] returns earlier measurements, without measuring: the library never measures
//! on its own, its launcher once, before the first job of a machine.

mod agreed;
pub(crate) mod calls;
#[allow(unsafe_code, reason = "binds threads to processors")]
pub(crate) mod cores;
mod device_links;
pub(crate) mod devices;
mod distance;
pub(crate) mod hardware;
#[cfg(feature = "hwloc")]
mod hwloc;
mod machine;
mod map;
pub(crate) mod plausible;
mod recheck;
pub mod settings;
mod store;

pub(crate) use cores::confine;

pub use agreed::{Agreed, OtherState};
pub use calls::{CallCosts, ClassCosts, MessageCost, Places, WorkCost};
pub(crate) use device_links::GpuName;
pub use device_links::{GpuLink, GpuLinks, RankLinks, Way};
pub use devices::DeviceCalls;
pub use distance::{alike, line_between_ns, line_ns};
pub use machine::Machine;
pub use map::{Gpu, Part};
pub use plausible::NOT_PERMITTED_NS;
pub use recheck::Probe;
pub use store::{Cached, CostSet, Measured, Origin, cache_file, cached, load, store};

use osier_engine::error::{Error, ErrorKind};

/// Two pieces of memory that lie half a page apart within their pages: some processors copy
/// slowly if one lies just ahead of the other, and addresses of vectors are arbitrary.
pub(crate) struct Apart {
    all: Vec<f64>,
    start: usize,
    elements: usize,
}

impl Apart {
    const PAGE: usize = 4096 / size_of::<f64>();

    pub fn of(elements: usize) -> Apart {
        let all = vec![1.0; 2 * elements.next_multiple_of(Self::PAGE) + 2 * Self::PAGE];
        let start = all.as_ptr().align_offset(4096).min(Self::PAGE);
        Apart {
            all,
            start,
            elements,
        }
    }

    pub fn both(&mut self) -> (&[f64], &mut [f64]) {
        let begin = self.start;
        let second = begin + self.elements.next_multiple_of(Self::PAGE) + Self::PAGE / 2;
        let (from, to) = self.all.split_at_mut(second);
        (&from[begin..][..self.elements], &mut to[..self.elements])
    }
}

/// Error: other work disturbed a measurement.
pub(crate) fn disturbed(how: &str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("costs cannot be measured beside other work: {how} (hint: on a quiet machine)"),
    )
}
