//! Numbered, runnable examples.
