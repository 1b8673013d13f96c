//! Osier.
