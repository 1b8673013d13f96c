//! How the end of an operation reaches those who wait for it.

pub(crate) mod hold;
pub(crate) mod ready;
