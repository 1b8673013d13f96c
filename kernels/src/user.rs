//! Kernels of the user, launched on a stream like the library's own.

use crate::copy::note;
use crate::device::Context;
use crate::driver::abi;
use crate::error::{DeviceError, Result};
use crate::launch::{launch_function, load_user};
use crate::memory::Memory;
use crate::stream::{Event, Stream};
use std::ffi::c_void;
use std::sync::Arc;

/// A kernel of the user, loaded on one device; its module stays until the process
/// ends.
///
/// Whoever has a binding of CUDA launches with that, and orders buffers by events. This
/// is for programs that need no more than a few kernels of their own.
#[derive(Debug, Clone)]
pub struct Kernel {
    context: Context,
    function: abi::Function,
}

impl Kernel {
    /// Loads the kernel `entry` of an image: PTX text, or a binary of the driver's
    /// kind.
    ///
    /// # Errors
    /// The driver takes no such image, or it holds no such kernel.
    pub fn load(context: &Context, image: &[u8], entry: &str) -> Result<Kernel> {
        Ok(Kernel {
            context: context.clone(),
            function: load_user(context, image, entry)?.function,
        })
    }

    /// Queues `grid` blocks of `threads` threads behind the stream's work, and returns
    /// the event behind which they are done. `touched` is the memory that the kernel
    /// uses: it outlives the launch.
    ///
    /// # Safety
    /// The kernel's one parameter is by value of a type with the layout of `A`; what
    /// it points at lies in `touched`, and the stream is ordered after the work that wrote it.
    ///
    /// # Errors
    /// The kernel is loaded on another device than the stream's, or the driver refuses.
    pub unsafe fn launch<A: Copy>(
        &self,
        stream: &Stream,
        (grid, threads): (u32, u32),
        argument: &A,
        touched: &[&Arc<Memory>],
    ) -> Result<Event> {
        if self.context != *stream.context() {
            return Err(DeviceError::WrongDevice {
                what: "launch a kernel with",
                memory: self.context.ordinal(),
                stream: stream.context().ordinal(),
            });
        }
        let mut arguments = [std::ptr::from_ref(argument).cast_mut().cast::<c_void>()];
        // SAFETY: the caller's contract.
        unsafe { launch_function(stream, self.function, grid, threads, &mut arguments) }?;
        note(stream, touched.iter().copied())
    }
}
