//! Last-writer tracking for the inference of dependencies.
//!
//! ```text
//! few pieces, or many touched one by one:  a track for each
//! else:                                    a track for each run of pieces touched alike
//! ```
//!
//! Of a vector cut into 65,536 pieces, a rank of Rabenseifner's algorithm knows 17 runs.

use crate::plan::Region;

pub(crate) const NONE: u32 = u32::MAX;

/// So many runs are looked after; of more, each piece is.
const FEW: usize = 64;

#[derive(Clone, Copy)]
pub(crate) struct Track {
    pub(crate) writer: u32,
    /// Head of a list in [`Readers`].
    pub(crate) readers: u32,
    /// Who wrote it first.
    pub(crate) first: u32,
}

pub(crate) const UNTOUCHED: Track = Track {
    writer: NONE,
    readers: NONE,
    first: NONE,
};

/// Lists of steps that read since the last write: (step, next).
pub(crate) type Readers = Vec<(u32, u32)>;

impl Track {
    /// Step `step` reads: it waits for the writer.
    pub(crate) fn read(&mut self, readers: &mut Readers, pending: &mut Vec<u32>, step: u32) {
        if self.writer != NONE && pending.last() != Some(&self.writer) {
            pending.push(self.writer);
        }
        if self.readers == NONE || readers[self.readers as usize].0 != step {
            readers.push((step, self.readers));
            self.readers = readers.len() as u32 - 1;
        }
    }

    /// Step `step` writes: it waits for those who read, or else for the writer.
    pub(crate) fn write(&mut self, readers: &Readers, pending: &mut Vec<u32>, step: u32) {
        if self.readers == NONE {
            if self.writer != NONE && pending.last() != Some(&self.writer) {
                pending.push(self.writer);
            }
        } else {
            // Those who read it have waited for who wrote it.
            let mut at = self.readers;
            while at != NONE {
                let (reader, next) = readers[at as usize];
                pending.push(reader);
                at = next;
            }
        }
        if self.first == NONE {
            self.first = step;
        }
        self.writer = step;
        self.readers = NONE;
    }
}

/// The tracks of a buffer.
pub(crate) enum Tracks {
    Each(Vec<Track>),
    /// Where runs end, in order; the last one's end is the number of pieces.
    Runs(Vec<(u32, Track)>),
}

impl Tracks {
    pub(crate) fn new(pieces: u32) -> Self {
        match pieces as usize <= FEW {
            true => Self::Each(vec![UNTOUCHED; pieces as usize]),
            false => Self::Runs(vec![(pieces, UNTOUCHED)]),
        }
    }

    fn pieces(&self) -> u32 {
        match self {
            Self::Each(tracks) => tracks.len() as u32,
            Self::Runs(runs) => runs.last().map_or(0, |r| r.0),
        }
    }

    /// All that anybody touched, or did not: at least one of each kind.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Track> {
        let (each, runs): (&[Track], &[(u32, Track)]) = match self {
            Self::Each(tracks) => (tracks, &[]),
            Self::Runs(runs) => (&[], runs),
        };
        each.iter().chain(runs.iter().map(|r| &r.1))
    }

    /// Touches all pieces of a region.
    pub(crate) fn touch(&mut self, region: Region, mut touch: impl FnMut(&mut Track)) {
        let pieces = self.pieces();
        let mut at = 0;
        while at < region.count {
            if let Self::Each(tracks) = self {
                for piece in region.indices(pieces).skip(at as usize) {
                    touch(&mut tracks[piece as usize]);
                }
                return;
            }
            // One run, or what lies of it before the buffer's end.
            let jump = u64::from(at / region.run) * u64::from(region.stride);
            let place = u64::from(region.first) + jump + u64::from(at % region.run);
            let start = (place % u64::from(pieces)) as u32;
            let together = (region.run - at % region.run).min(region.count - at);
            let count = together.min(pieces - start);
            self.touch_run(start, start + count, &mut touch);
            at += count;
        }
    }

    fn touch_run(&mut self, start: u32, end: u32, touch: &mut impl FnMut(&mut Track)) {
        let Self::Runs(runs) = self else { return };
        let mut split = |at: u32| {
            let found = runs.partition_point(|r| r.0 <= at);
            let begins = found.checked_sub(1).map_or(0, |before| runs[before].0);
            if begins != at && found < runs.len() {
                let track = runs[found].1;
                runs.insert(found, (at, track));
                return found + 1;
            }
            found
        };
        let first = split(start);
        let last = split(end);
        for (_, track) in &mut runs[first..last] {
            touch(track);
        }
        if runs.len() > FEW {
            let mut tracks = Vec::with_capacity(self.pieces() as usize);
            if let Self::Runs(runs) = self {
                for (end, track) in runs {
                    tracks.resize(*end as usize, *track);
                }
            }
            *self = Self::Each(tracks);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Buffer;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        /// As if each piece had a track.
        #[test]
        fn runs_are_as_pieces(
            pieces in 65u32..300,
            regions in proptest::collection::vec((0u32..400, 0u32..300, 1u32..40, 0u32..80), 1..60),
            whole: bool,
        ) {
            let mut runs = Tracks::new(pieces);
            let mut each = Tracks::Each(vec![UNTOUCHED; pieces as usize]);
            prop_assert!(matches!(runs, Tracks::Runs(_)));
            for (step, (first, count, run, stride)) in regions.into_iter().enumerate() {
                let region = match whole {
                    true => Region::run(Buffer::Send, first, count.min(pieces)),
                    false => Region::runs(Buffer::Send, first, count.min(pieces), run, run + stride),
                };
                for tracks in [&mut runs, &mut each] {
                    tracks.touch(region, |track| {
                        track.writer = step as u32;
                        track.first = track.first.min(step as u32);
                    });
                }
                let of = |tracks: &Tracks| -> Vec<(u32, u32)> {
                    match tracks {
                        Tracks::Each(all) => all.iter().map(|t| (t.writer, t.first)).collect(),
                        Tracks::Runs(runs) => {
                            let mut all = Vec::new();
                            for (end, track) in runs {
                                all.resize(*end as usize, (track.writer, track.first));
                            }
                            all
                        }
                    }
                };
                prop_assert_eq!(of(&runs), of(&each));
            }
        }
    }
}
