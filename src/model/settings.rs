//! Settings of the costs, by environment variables.

use osier_engine::env::{bad, value};
use osier_engine::error::Result;

/// Source of the costs by which protocols and plans are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Costs {
    /// Measured by the launcher if missing.
    #[default]
    Auto,
    /// Measured by the user, or built in.
    Cached,
    /// Built in.
    BuiltIn,
}

/// The source of costs set by the user.
///
/// # Errors
/// Of kind [`ErrorKind::Config`](crate::ErrorKind::Config).
pub fn wanted() -> Result<Costs> {
    match value("OSIER_MODEL") {
        None => Ok(Costs::Auto),
        Some(text) => parse(&text).map_err(|e| e.context("OSIER_MODEL")),
    }
}

/// Parses `OSIER_MODEL`.
///
/// # Errors
/// Of kind [`ErrorKind::Config`](crate::ErrorKind::Config).
pub fn parse(text: &str) -> Result<Costs> {
    match text.trim() {
        "auto" => Ok(Costs::Auto),
        "cached" => Ok(Costs::Cached),
        "built-in" => Ok(Costs::BuiltIn),
        _ => Err(bad(
            text,
            "word of those that are known",
            "auto, cached or built-in",
        )),
    }
}
