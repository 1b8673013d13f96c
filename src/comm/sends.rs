//! Messages of the library itself that nobody should have to wait for twice.

use osier_datatype::Datatype;
use osier_engine::error::Result;
use osier_engine::progress::cell::LaneCell;
use osier_engine::progress::core::Core;
use osier_engine::progress::lane::{Mode, Posted};
use osier_engine::view::Buffer;
use std::any::Any;

/// Sends in flight on a lane, with their data. Dropped, they complete by
/// themselves.
pub(crate) struct Sends<'a> {
    core: &'a Core,
    lane: &'a LaneCell,
    under_way: Vec<(u32, Box<dyn Any + Send>)>,
}

impl<'a> Sends<'a> {
    pub fn new(core: &'a Core, lane: &'a LaneCell) -> Self {
        Self {
            core,
            lane,
            under_way: Vec::new(),
        }
    }

    /// Begins to send; does not wait.
    #[track_caller]
    pub fn post<T: Datatype>(&mut self, data: Vec<T>, to: u32, tag: u32) -> Result<()> {
        let view = data[..].view().raw();
        let mut lane = self.lane.lock();
        let posted = lane.isend(view, to, tag, Mode::Standard);
        self.core.after(&mut lane);
        drop(lane);
        if let Posted::Pending(handle) = posted? {
            // Moving a vector leaves its elements where they are.
            self.under_way.push((handle, Box::new(data)));
        }
        Ok(())
    }

    /// Waits for all; returns the first error.
    #[track_caller]
    pub fn finish(mut self) -> Result<()> {
        while let Some(&(handle, _)) = self.under_way.last() {
            let sent = self.core.wait_on(self.lane, |lane| lane.take(handle));
            self.under_way.pop();
            sent?;
        }
        Ok(())
    }
}

impl Drop for Sends<'_> {
    fn drop(&mut self) {
        for (handle, data) in self.under_way.drain(..) {
            self.core.with(self.lane, |lane| {
                lane.set_owner(handle, data);
                lane.detach(handle);
            });
        }
    }
}
