//! Errors of devices.

use osier_datatype::TypeError;
use std::ops::Range;

/// The result of what touches a device.
pub type Result<T> = std::result::Result<T, DeviceError>;

/// What failed, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is no driver, no device, or the driver lacks a function.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// The driver refused.
    #[error("{call}: {name} ({code}): {text}")]
    Driver {
        /// The driver's function.
        call: &'static str,
        /// Its result.
        code: u32,
        /// The result's name, such as `CUDA_ERROR_OUT_OF_MEMORY`.
        name: String,
        /// What the driver says about it.
        text: String,
    },
    /// Work is under way: the driver's answer to a question, of which no words are made.
    #[error("work on the device is under way")]
    NotReady,
    /// Memory of another library that was freed while it was handed over.
    #[error(
        "the {bytes} bytes at {at:#x} were freed while they were in use (hint: memory of another library has to live until the messages and the work on it are over)"
    )]
    Freed {
        /// The address.
        at: u64,
        /// Bytes that were handed over.
        bytes: usize,
    },
    /// Bytes outside of an allocation.
    #[error("bytes {start} to {end} lie outside of an allocation of {bytes} bytes", start = .range.start, end = .range.end)]
    Bounds {
        /// What was asked for, relative to the allocation.
        range: Range<i128>,
        /// The allocation's size.
        bytes: usize,
    },
    /// Two buffers of unlike size.
    #[error("cannot {what}: {from} bytes to {to} bytes")]
    Size {
        /// The operation.
        what: &'static str,
        /// Bytes given.
        from: usize,
        /// Room for them.
        to: usize,
    },
    /// Memory of one device on a stream of another.
    #[error("cannot {what} memory of device {memory} on a stream of device {stream}")]
    WrongDevice {
        /// The operation.
        what: &'static str,
        /// Where the memory is.
        memory: i32,
        /// Where the stream is.
        stream: i32,
    },
    /// A receive that would write a byte twice.
    #[error("cannot unpack {count} instances: their layout touches a byte twice")]
    Overlap {
        /// Instances.
        count: usize,
    },
    /// A copy whose source and destination share a byte.
    #[error("cannot copy: source and destination share a byte (hint: pack to other memory first)")]
    Aliased,
    /// Something that a capture cannot hold.
    #[error("cannot be captured: {0}")]
    Capture(&'static str),
    /// Pinned memory that the host asks for while a device slice of it lives.
    #[error(
        "the host cannot borrow pinned memory while a device slice of it lives (hint: drop what on_device returned, and its clones, first)"
    )]
    Shared,
    /// The layout's own complaint.
    #[error(transparent)]
    Type(#[from] TypeError),
}

impl DeviceError {
    /// The driver's result code, if the driver refused.
    pub fn code(&self) -> Option<u32> {
        match self {
            DeviceError::Driver { code, .. } => Some(*code),
            DeviceError::NotReady => Some(crate::driver::abi::NOT_READY),
            _ => None,
        }
    }

    /// Whether memory cannot be opened because other memory is open that its exporter has
    /// had at the same address, and has freed.
    pub fn is_already_mapped(&self) -> bool {
        self.code() == Some(crate::driver::ALREADY_MAPPED)
    }

    /// Whether the device, or the host's pinned memory, is used up.
    pub fn is_out_of_memory(&self) -> bool {
        self.code() == Some(crate::driver::OUT_OF_MEMORY)
    }
}
