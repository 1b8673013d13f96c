//! Settings of the reports about long waits: of `OSIER_STALL` and `OSIER_DEBUG`.

use crate::env::{debug, parse_duration, value};
use crate::error::Result;
use std::time::Duration;

/// How long a rank waits before it says so.
pub fn stall() -> Result<Option<Duration>> {
    match value("OSIER_STALL") {
        Some(text) => parse_duration(&text).map_err(|e| e.context("OSIER_STALL")),
        None => Ok(Some(Duration::from_secs(60))),
    }
}

/// The key of `OSIER_DEBUG` for [`patience`].
pub const PROBABLE_HANG: &str = "probable-hang";

/// How long a job stands still before it probably hangs.
pub fn patience() -> Result<Option<Duration>> {
    let asked = debug(PROBABLE_HANG, parse_duration)?;
    Ok(asked.unwrap_or(Some(Duration::from_secs(5))))
}
