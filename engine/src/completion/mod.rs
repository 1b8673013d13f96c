//! Completion: how the end of an operation reaches its waiters.

pub mod hold;
pub mod ready;
