//! How the end of an operation reaches those who wait for it.

pub mod hold;
pub mod ready;
