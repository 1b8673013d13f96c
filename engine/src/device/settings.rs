//! Settings of messages from and to devices: of `OSIER_PINNED_LIMIT` and `OSIER_DEBUG`.

use super::pool::LEAST_LIMIT_BYTES;
use crate::env::{MOST_BYTES, bad, bounded, debug, parse_bytes, value};
use crate::error::Result;
use crate::protocol::device::{LEAST_DEVICE_SLOT_BYTES, Reductions};
use crate::protocol::select::{EAGER_LIMIT_BYTES, Pipelining};
use std::ops::RangeInclusive;

/// Bounds of `device-mappings`.
pub const MAPPINGS_BOUNDS: RangeInclusive<u64> = 0..=1 << 20;
/// Bounds of `device-mapped`, in bytes.
pub const MAPPED_BOUNDS: RangeInclusive<u64> = 0..=MOST_BYTES;

/// A part of a device's multiprocessors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// So many.
    Count(u32),
    /// So many of a hundred.
    Percent(u32),
}

impl Share {
    /// The share of this number of multiprocessors, at least 1.
    pub fn of(self, multiprocessors: u32) -> u32 {
        match self {
            Share::Count(count) => count.min(multiprocessors),
            Share::Percent(percent) => multiprocessors * percent / 100,
        }
        .max(1)
    }

    /// Parses `pack-multiprocessors`.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Config`](crate::error::ErrorKind::Config).
    pub fn parse(text: &str) -> Result<Share> {
        let trimmed = text.trim();
        let number = |digits: &str, most: u32| {
            let number: Option<u32> = digits.parse().ok();
            number.filter(|n| (1..=most).contains(n))
        };
        let share = match trimmed.strip_suffix('%') {
            Some(digits) => number(digits, 100).map(Share::Percent),
            None => number(trimmed, 1 << 16).map(Share::Count),
        };
        share.ok_or_else(|| bad(text, "share", "write a number such as 8, or 25%"))
    }
}

/// Most multiprocessors of a device that kernels of messages take.
pub fn pack_multiprocessors() -> Result<Option<Share>> {
    debug("pack-multiprocessors", Share::parse)
}

/// Default of the host memory that a rank pins for messages of devices.
pub const PINNED_LIMIT_BYTES: usize = 64 << 20;

/// The limit on the host memory that a rank pins for messages of devices, in bytes.
pub fn pinned_limit() -> Result<usize> {
    match value("OSIER_PINNED_LIMIT") {
        None => Ok(PINNED_LIMIT_BYTES),
        Some(text) => parse_pinned_limit(&text).map_err(|e| e.context("OSIER_PINNED_LIMIT")),
    }
}

/// Parses `OSIER_PINNED_LIMIT`.
///
/// # Errors
/// Of kind [`ErrorKind::Config`](crate::error::ErrorKind::Config).
pub fn parse_pinned_limit(text: &str) -> Result<usize> {
    let least = LEAST_LIMIT_BYTES as u64;
    bounded(text, least..=MOST_BYTES).map(|bytes| bytes as usize)
}

/// Default of the device memory that a rank takes for slots.
pub const DEVICE_SLOTS_BYTES: usize = 32 << 20;

/// The memory of each device that a rank takes for slots, in bytes.
pub fn device_slots() -> Result<usize> {
    let bytes = debug("device-slots", parse_device_slots)?;
    Ok(bytes.unwrap_or(DEVICE_SLOTS_BYTES))
}

/// Parses `device-slots`.
///
/// # Errors
/// Of kind [`ErrorKind::Config`](crate::error::ErrorKind::Config).
pub fn parse_device_slots(text: &str) -> Result<usize> {
    let least = 2 * LEAST_DEVICE_SLOT_BYTES as u64;
    match parse_bytes(text)? {
        0 => Ok(0),
        _ => bounded(text, least..=MOST_BYTES)
            .map(|bytes| bytes as usize)
            .map_err(|e| e.context("neither 0 nor enough")),
    }
}

/// Largest message of a device that goes at once, in bytes; `None`: as the costs say.
pub fn device_eager() -> Result<Option<usize>> {
    debug("device-eager", parse_device_eager)
}

/// Parses `device-eager`.
///
/// # Errors
/// Of kind [`ErrorKind::Config`](crate::error::ErrorKind::Config).
pub fn parse_device_eager(text: &str) -> Result<usize> {
    let most = EAGER_LIMIT_BYTES as u64;
    bounded(text, 0..=most).map(|bytes| bytes as usize)
}

/// Where reductions of a device's memory combine.
pub fn device_reductions() -> Result<Reductions> {
    let place = debug("device-reductions", parse_reductions)?;
    Ok(place.unwrap_or(Reductions::Auto))
}

/// Parses `device-reductions`.
///
/// # Errors
/// Of kind [`ErrorKind::Config`](crate::error::ErrorKind::Config).
pub fn parse_reductions(text: &str) -> Result<Reductions> {
    match text.trim() {
        "device" => Ok(Reductions::Device),
        "host" => Ok(Reductions::Host),
        "auto" => Ok(Reductions::Auto),
        _ => Err(bad(
            text,
            "word of those that are known",
            "device, host or auto",
        )),
    }
}

/// How a rank takes part in reductions that are one kernel of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OneKernel {
    /// By multicast, if it can.
    #[default]
    Auto,
    /// Without multicast.
    Plain,
    /// Not at all.
    Off,
}

/// How this rank does.
pub fn one_kernel() -> Result<OneKernel> {
    let asked = debug("one-kernel", parse_one_kernel)?;
    Ok(asked.unwrap_or_default())
}

/// Parses `one-kernel`.
///
/// # Errors
/// Of kind [`ErrorKind::Config`](crate::error::ErrorKind::Config).
pub fn parse_one_kernel(text: &str) -> Result<OneKernel> {
    match text.trim() {
        "auto" => Ok(OneKernel::Auto),
        "plain" => Ok(OneKernel::Plain),
        "off" => Ok(OneKernel::Off),
        _ => Err(bad(
            text,
            "word of those that are known",
            "auto, plain or off",
        )),
    }
}

/// When messages between devices go in slots on the device.
pub fn pipeline() -> Result<Pipelining> {
    let asked = debug("pipeline", parse_pipeline)?;
    Ok(asked.unwrap_or(Pipelining::Auto))
}

/// Parses `pipeline`.
///
/// # Errors
/// Of kind [`ErrorKind::Config`](crate::error::ErrorKind::Config).
pub fn parse_pipeline(text: &str) -> Result<Pipelining> {
    match text.trim() {
        "on" => Ok(Pipelining::On),
        "off" => Ok(Pipelining::Off),
        "auto" => Ok(Pipelining::Auto),
        _ => Err(bad(text, "word of those that are known", "on, off or auto")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_numbers_or_percent() {
        assert_eq!(Share::parse(" 8 ").expect("a number"), Share::Count(8));
        let quarter = Share::parse("25%").expect("percent");
        assert_eq!((quarter.of(132), quarter.of(2)), (33, 1));
        assert_eq!(Share::Count(500).of(132), 132);
        for bad in ["", "0", "0%", "101%", "-1", "a", "1.5"] {
            let e = Share::parse(bad).expect_err(bad);
            assert!(e.to_string().contains("hint"), "{e}");
        }
    }
}
