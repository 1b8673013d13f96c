//! The queues as plain vectors searched from the front: the oracle of the
//! property tests.

use super::{Envelope, Pattern};

/// Twin of [`super::PostedQueue`]; a key is the number of the post.
#[derive(Default)]
pub(super) struct NaivePosted {
    posts: u64,
    entries: Vec<(u64, Pattern, u32)>,
}

impl NaivePosted {
    pub(super) fn post(&mut self, pattern: Pattern, item: u32) -> u64 {
        self.posts += 1;
        self.entries.push((self.posts, pattern, item));
        self.posts
    }

    pub(super) fn take(&mut self, envelope: Envelope) -> Option<u32> {
        let found = (self.entries.iter()).position(|entry| entry.1.accepts(envelope))?;
        Some(self.entries.remove(found).2)
    }

    pub(super) fn cancel(&mut self, key: u64) -> Option<u32> {
        let found = self.entries.iter().position(|entry| entry.0 == key)?;
        Some(self.entries.remove(found).2)
    }

    pub(super) fn items(&self) -> Vec<u32> {
        self.entries.iter().map(|entry| entry.2).collect()
    }

    pub(super) fn take_all_from(&mut self, source: u32) -> Vec<u32> {
        (self.entries)
            .extract_if(.., |entry| entry.1.source == Some(source))
            .map(|entry| entry.2)
            .collect()
    }
}

/// Twin of [`super::UnexpectedQueue`]; a key is the number of the push.
#[derive(Default)]
pub(super) struct NaiveUnexpected {
    pushes: u64,
    entries: Vec<(u64, Envelope, u32)>,
}

impl NaiveUnexpected {
    pub(super) fn push(&mut self, envelope: Envelope, message: u32) -> u64 {
        self.pushes += 1;
        self.entries.push((self.pushes, envelope, message));
        self.pushes
    }

    pub(super) fn peek(&self, pattern: Pattern) -> Option<(u64, Envelope, u32)> {
        (self.entries.iter())
            .find(|entry| pattern.accepts(entry.1))
            .copied()
    }

    pub(super) fn take(&mut self, pattern: Pattern) -> Option<(Envelope, u32)> {
        let (key, ..) = self.peek(pattern)?;
        self.remove(key)
    }

    pub(super) fn remove(&mut self, key: u64) -> Option<(Envelope, u32)> {
        let found = self.entries.iter().position(|entry| entry.0 == key)?;
        let (_, envelope, message) = self.entries.remove(found);
        Some((envelope, message))
    }

    pub(super) fn messages(&self) -> Vec<(Envelope, u32)> {
        self.entries
            .iter()
            .map(|entry| (entry.1, entry.2))
            .collect()
    }
}
