//! Host functions that a stream calls when its work so far is done.
//!
//! The driver calls them on a thread of its own, one after the other. They must not call
//! the driver, nor take long: they tell somebody and return.
//!
//! # Invariants
//! 1. A function lives until the stream has called it; one that was captured, as long as
//!    its graph.
//!
//! # Sources
//! CUDA Driver API reference 12.0: `cuLaunchHostFunc`.

use crate::error::{DeviceError, Result};
use crate::stream::Stream;
use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

/// A function of the host; cheap to clone.
#[derive(Clone)]
pub struct Callback(Arc<Callee>);

struct Callee(Box<dyn Fn() + Send + Sync>);

impl Callback {
    /// Makes one. It calls nothing of this crate and does not panic.
    pub fn new(function: impl Fn() + Send + Sync + 'static) -> Callback {
        Callback(Arc::new(Callee(Box::new(function))))
    }
}

impl std::fmt::Debug for Callback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Callback")
    }
}

/// Nothing may unwind into the driver.
fn run(callee: &Callee) {
    let call = std::panic::AssertUnwindSafe(|| (callee.0)());
    if std::panic::catch_unwind(call).is_err() {
        std::process::abort();
    }
}

/// Calls the callee that it owns.
unsafe extern "C" fn once(data: *mut c_void) {
    // SAFETY: `Stream::call` has given one count of it away.
    let callee = unsafe { Arc::from_raw(data.cast::<Callee>().cast_const()) };
    run(&callee);
}

/// Calls the callee of a graph.
unsafe extern "C" fn again(data: *mut c_void) {
    // SAFETY: the graph keeps it: invariant 1.
    run(unsafe { &*data.cast::<Callee>().cast_const() });
}

impl Stream {
    /// Has the host call a function when the work queued so far is done; what is queued
    /// afterwards waits until it has returned. In a capture: at each launch.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn call(&self, callback: &Callback) -> Result<()> {
        let driver = self.context().enter()?;
        if self.is_captured()? {
            self.keep(Arc::new(callback.clone()))?;
            let data = Arc::as_ptr(&callback.0).cast_mut().cast();
            // SAFETY: the graph keeps the function.
            return unsafe { driver.cuLaunchHostFunc(self.raw(), Some(again), data) };
        }
        let data = Arc::into_raw(callback.0.clone())
            .cast_mut()
            .cast::<c_void>();
        // SAFETY: the function is the owner of what it is given.
        let queued = unsafe { driver.cuLaunchHostFunc(self.raw(), Some(once), data) };
        if queued.is_err() {
            // SAFETY: nobody else has taken it.
            drop(unsafe { Arc::from_raw(data.cast::<Callee>().cast_const()) });
        }
        queued
    }

    /// Keeps something for as long as the graph lives that the stream's capture makes.
    ///
    /// # Errors
    /// There is no capture, or the driver refuses.
    pub fn keep(&self, owner: Arc<dyn Any + Send + Sync>) -> Result<()> {
        match self.capture()? {
            Some(id) => self.context().captures().keep(self, id, owner),
            None => Err(DeviceError::Capture(
                "something that a graph must keep, on a stream that is not captured",
            )),
        }
    }
}
