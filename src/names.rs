//! Ranks, tags and wildcards.

use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::matching::{Pattern, TagPattern};

/// A rank in a communicator, as an argument: any integer, [`PROC_NULL`], or an
/// `Option<usize>` whose `None` means [`PROC_NULL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank(i64);

/// A source to receive from: a rank or [`ANY_SOURCE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source(i64);

/// A tag: 0 ..= 2^31 - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(i64);

/// A tag to receive: a tag or [`ANY_TAG`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagSelector(i64);

const NULL: i64 = i64::MIN;
const ANY: i64 = i64::MIN + 1;
const AT_ROOT: i64 = i64::MIN + 2;
/// Largest tag.
const MAX_TAG: i64 = i32::MAX as i64;

/// Nobody: sends to it do nothing, receives from it give an empty message.
pub const PROC_NULL: Rank = Rank(NULL);
/// In a collective call on an intercommunicator: this rank is the root.
pub const ROOT: Rank = Rank(AT_ROOT);
/// Receives from any rank.
pub const ANY_SOURCE: Source = Source(ANY);
/// Receives any tag.
pub const ANY_TAG: TagSelector = TagSelector(ANY);

macro_rules! from_integers {
    ($($name:ident)*) => {$(
        from_integers!(@ $name i32 u32 i64);

        impl From<usize> for $name {
            #[inline]
            fn from(n: usize) -> Self {
                Self(i64::try_from(n).unwrap_or(i64::MAX))
            }
        }
    )*};
    (@ $name:ident $($t:ty)*) => {$(
        impl From<$t> for $name {
            #[inline]
            fn from(n: $t) -> Self {
                // The smallest numbers have a meaning of their own.
                Self(i64::from(n).max(AT_ROOT + 1))
            }
        }
    )*};
}

from_integers!(Rank Source Tag TagSelector);

impl From<Option<usize>> for Rank {
    fn from(rank: Option<usize>) -> Self {
        rank.map_or(PROC_NULL, Rank::from)
    }
}

impl From<Option<usize>> for Source {
    fn from(rank: Option<usize>) -> Self {
        rank.map_or(Source(NULL), Source::from)
    }
}

impl From<Rank> for Source {
    fn from(rank: Rank) -> Self {
        Source(rank.0)
    }
}

impl From<Tag> for TagSelector {
    fn from(tag: Tag) -> Self {
        TagSelector(tag.0)
    }
}

#[cold]
fn no_such_rank(rank: i64, size: usize) -> Error {
    Error::new(
        ErrorKind::Rank,
        format!(
            "rank {rank} in a communicator of {size} (hint: ranks are 0 to {})",
            size - 1
        ),
    )
}

#[cold]
fn no_such_tag(tag: i64) -> Error {
    Error::new(
        ErrorKind::Tag,
        format!("tag {tag} (hint: tags are 0 to {MAX_TAG})"),
    )
}

impl Rank {
    /// Index of the peer; `None` for [`PROC_NULL`].
    #[inline]
    pub(crate) fn check(self, size: usize) -> Result<Option<u32>> {
        if (0..size as i64).contains(&self.0) {
            return Ok(Some(self.0 as u32));
        }
        if self.0 == NULL {
            return Ok(None);
        }
        Err(no_such_rank(self.0, size))
    }
}

impl Tag {
    #[inline]
    pub(crate) fn check(self) -> Result<u32> {
        if (0..=MAX_TAG).contains(&self.0) {
            return Ok(self.0 as u32);
        }
        Err(no_such_tag(self.0))
    }
}

/// Source and tag, if they are neither wildcards nor wrong.
#[inline]
pub(crate) fn exact(source: Source, tag: TagSelector, size: usize) -> Option<(u32, u32)> {
    // One comparison each: what is negative is large.
    let known = (source.0 as u64) < size as u64 && tag.0 as u64 <= MAX_TAG as u64;
    known.then_some((source.0 as u32, tag.0 as u32))
}

/// What to receive; `None`: from nobody.
#[inline]
pub(crate) fn pattern(source: Source, tag: TagSelector, size: usize) -> Result<Option<Pattern>> {
    let tag = match tag.0 {
        ANY => TagPattern::Any,
        _ => TagPattern::Exact(Tag(tag.0).check()?),
    };
    if source.0 == ANY {
        return Ok(Some(Pattern { source: None, tag }));
    }
    Ok(Rank(source.0).check(size)?.map(|source| Pattern {
        source: Some(source),
        tag,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_checked_with_a_hint() {
        assert_eq!(Rank::from(3).check(4).expect("in range"), Some(3));
        assert_eq!(PROC_NULL.check(4).expect("nobody"), None);
        assert_eq!(Rank::from(None).check(4).expect("nobody"), None);
        let e = Rank::from(4usize).check(4).expect_err("out of range");
        assert_eq!(
            e.to_string(),
            "rank 4 in a communicator of 4 (hint: ranks are 0 to 3)"
        );
        assert!(Rank::from(-1).check(4).is_err());
        assert!(Rank::from(i64::MIN).check(4).is_err());
        assert!(Tag::from(-1).check().is_err());
        assert!(Tag::from(1u32 << 31).check().is_err());
        assert!(pattern(ANY_SOURCE, ANY_TAG, 2).expect("any").is_some());
        assert!(pattern(2.into(), ANY_TAG, 2).is_err());
    }
}
