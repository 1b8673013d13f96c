//! Settings of the reports about long waits, by environment variables.

use crate::env::{parse_duration, value};
use crate::error::Result;
use std::time::Duration;

/// How long a rank waits before it says so.
pub fn stall() -> Result<Option<Duration>> {
    match value("OSIER_STALL") {
        Some(text) => parse_duration(&text).map_err(|e| e.context("OSIER_STALL")),
        None => Ok(Some(Duration::from_secs(60))),
    }
}

/// How long a job stands still before it probably hangs.
pub fn patience() -> Result<Option<Duration>> {
    match value("OSIER_PROBABLE_HANG") {
        Some(text) => parse_duration(&text).map_err(|e| e.context("OSIER_PROBABLE_HANG")),
        None => Ok(Some(Duration::from_secs(5))),
    }
}
