//! Segments of persistent calls.
//!
//! Persistent calls start in any order, and each rank has its own (MPI 5.0, section 6.13), so
//! they have no place in the order by which sets of flags are used again. The starts of one
//! request have: the next one begins when the last one has completed on this rank. So each request has flags
//! and slots of its own, for a limited number of requests that all ranks know.
//!
//! # Invariants
//! 1. A segment is left when its request is gone and none of its calls is in flight.

use super::SegmentCalls;
use crate::exec::in_segment::IN_ORDER;
use crate::progress::lane::Lane;
use crate::progress::port::Port;

/// Calls of persistent requests in their segments, by number.
#[derive(Debug, Default)]
pub struct CallsOfPersistent {
    calls: Vec<Option<Box<Starts>>>,
    /// Requests that are gone, while a call is in flight.
    gone: Vec<u32>,
}

#[derive(Debug, Default)]
struct Starts {
    calls: SegmentCalls,
    /// The number of the next.
    next: u32,
}

impl CallsOfPersistent {
    fn starts(&mut self, of: u32) -> &mut Starts {
        let at = of as usize;
        if self.calls.len() <= at {
            self.calls.resize_with(at + 1, || None);
        }
        self.calls[at].get_or_insert_default()
    }

    fn is_quiet(&self, of: u32) -> bool {
        let starts = self.calls.get(of as usize).and_then(Option::as_ref);
        starts.is_none_or(|starts| starts.calls.begun.is_empty() && starts.calls.lent.is_empty())
    }
}

impl Port {
    /// Calls in a segment: of those in order, or of a persistent one.
    #[inline]
    pub(crate) fn calls_in(&mut self, of: u32) -> &mut SegmentCalls {
        match of {
            IN_ORDER => &mut self.in_segment,
            of => &mut self.of_persistent.starts(of).calls,
        }
    }
}

impl Lane {
    /// The number of a start of a persistent call in its segment.
    pub fn next_start(&mut self, of: u32) -> u32 {
        let starts = self.port.of_persistent.starts(of);
        let number = starts.next;
        starts.next = number.wrapping_add(1);
        number
    }

    /// A persistent request was freed: this rank leaves its segment when its call has completed.
    pub fn leaves_persistent(&mut self, of: u32) {
        self.port.of_persistent.gone.push(of);
        let mut gone = std::mem::take(&mut self.port.of_persistent.gone);
        gone.retain(|of| {
            let quiet = self.port.of_persistent.is_quiet(*of);
            if quiet {
                if let Some(starts) = self.port.of_persistent.calls.get_mut(*of as usize) {
                    *starts = None;
                }
                self.port.links.leave_collective(*of);
            }
            !quiet
        });
        self.port.of_persistent.gone = gone;
    }
}
