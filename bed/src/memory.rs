//! Memory of random messages: layouts with gaps, guard bytes, known contents.

use super::dice::Rng;
use osier::buffers::{OwnedBuffer, OwnedBufferMut};
use osier::{Buffer, BufferMut, Layout, Type, View, ViewMut};
use osier_engine::view::RawView;
use std::sync::OnceLock;

/// Bytes before and after each buffer that nobody may write.
const GUARD: usize = 32;
/// What every byte holds that nothing was received into.
const CANARY: u8 = 0xC5;
/// Bytes in which a message carries its number, if it has as many.
pub(super) const NUMBER_BYTES: usize = 8;
const NUMBER_MARK: u64 = 0x5EED_0000_0000_0000;

/// Blocks of (displacement, bytes) that repeat every `extent` bytes.
struct Stripes {
    blocks: &'static [(usize, usize)],
    extent: usize,
    size: usize,
    layout: Layout,
}

const STRIPES: [(&[(usize, usize)], usize); 5] = [
    (&[(0, 1)], 2),
    (&[(0, 8)], 16),
    (&[(0, 3), (5, 4)], 12),
    (&[(4, 4)], 12),
    (&[(6, 2), (0, 3)], 9),
];

/// Number of layouts with gaps.
const LAYOUTS: usize = STRIPES.len();

fn stripes(which: usize) -> &'static Stripes {
    static BUILT: OnceLock<Vec<Stripes>> = OnceLock::new();
    let all = BUILT.get_or_init(|| {
        STRIPES
            .iter()
            .map(|(blocks, extent)| Stripes {
                blocks,
                extent: *extent,
                size: blocks.iter().map(|(_, bytes)| bytes).sum(),
                layout: layout(blocks, *extent).expect("a layout of bytes"),
            })
            .collect()
    });
    &all[which]
}

fn layout(blocks: &[(usize, usize)], extent: usize) -> Result<Layout, osier::datatype::TypeError> {
    let blocks: Vec<_> = blocks.iter().map(|(at, n)| (*n, *at as isize)).collect();
    let blocks = Type::hindexed(&blocks, &Type::of::<u8>())?;
    Type::resized(0, extent as isize, &blocks)?.commit()
}

/// Gaps or none; seldom in large messages, where they cost much time.
pub(super) fn draw_layout(rng: &mut Rng, bytes: usize) -> Option<usize> {
    rng.one_in(if bytes > 5000 { 30 } else { 3 })
        .then(|| rng.below(LAYOUTS))
}

/// The largest size up to `bytes` that a layout can have.
pub(super) fn round(layout: Option<usize>, bytes: usize) -> usize {
    layout.map_or(bytes, |l| bytes / stripes(l).size * stripes(l).size)
}

/// A buffer between guard bytes.
pub(super) struct Memory {
    pub bytes: Vec<u8>,
    layout: Option<usize>,
    /// Packed bytes.
    pub room: usize,
}

impl Memory {
    /// Room for a message; `room` is one of [`round`]'s.
    pub fn new(layout: Option<usize>, room: usize) -> Self {
        let span = layout.map_or(room, |l| room / stripes(l).size * stripes(l).extent);
        Self {
            bytes: vec![CANARY; span + 2 * GUARD],
            layout,
            room,
        }
    }

    /// Another one like it.
    pub fn fresh(&self) -> Self {
        Self::new(self.layout, self.room)
    }

    pub fn raw(&mut self) -> RawView {
        self.view_mut().raw()
    }

    /// Calls `f` with every run of memory and of packed bytes in the first
    /// `packed`.
    fn runs(&self, packed: usize, mut f: impl FnMut(usize, usize, usize)) {
        let Some(l) = self.layout.map(stripes) else {
            return f(GUARD, 0, packed);
        };
        let mut at = 0;
        for element in 0.. {
            for (displacement, bytes) in l.blocks {
                if at >= packed {
                    return;
                }
                let n = (*bytes).min(packed - at);
                f(GUARD + element * l.extent + displacement, at, n);
                at += n;
            }
        }
    }

    /// Writes a message.
    pub fn fill(&mut self, message: &[u8]) {
        let mut bytes = std::mem::take(&mut self.bytes);
        self.runs(message.len(), |at, from, n| {
            bytes[at..at + n].copy_from_slice(&message[from..from + n]);
        });
        self.bytes = bytes;
    }

    /// The first packed bytes.
    pub fn packed(&self, n: usize) -> Vec<u8> {
        let mut out = vec![0; n];
        self.runs(n, |at, to, n| {
            out[to..to + n].copy_from_slice(&self.bytes[at..at + n]);
        });
        out
    }

    /// Whether nothing but the first `packed` bytes was written; they are
    /// wiped.
    pub fn rest_is_untouched(&mut self, packed: usize) -> bool {
        let mut bytes = std::mem::take(&mut self.bytes);
        self.runs(packed, |at, _, n| bytes[at..at + n].fill(CANARY));
        self.bytes = bytes;
        self.is_untouched()
    }

    /// Whether what is behind the first `packed` bytes is still that of a
    /// message; it is wiped.
    pub fn rest_is(&mut self, packed: usize, message: &[u8]) -> bool {
        let mut bytes = std::mem::take(&mut self.bytes);
        let mut same = true;
        self.runs(message.len(), |at, from, n| {
            let skip = packed.saturating_sub(from).min(n);
            let (at, from, n) = (at + skip, from + skip, n - skip);
            same &= bytes[at..at + n] == message[from..from + n];
            bytes[at..at + n].fill(CANARY);
        });
        self.bytes = bytes;
        same
    }

    /// Whether nothing was written at all.
    pub fn is_untouched(&self) -> bool {
        let clean = [CANARY; 256];
        self.bytes.chunks(256).all(|c| *c == clean[..c.len()])
    }

    /// Overwrites what was sent, so that a late read shows.
    pub fn wipe(&mut self) {
        self.bytes.fill(CANARY);
    }
}

impl Buffer for Memory {
    fn view(&self) -> View<'_> {
        let inner = &self.bytes[GUARD..self.bytes.len() - GUARD];
        match self.layout.map(stripes) {
            None => inner.view(),
            Some(l) => View::new(inner, 0, &l.layout, self.room / l.size)
                .expect("the span was computed for it"),
        }
    }
}

impl BufferMut for Memory {
    fn view_mut(&mut self) -> ViewMut<'_> {
        let end = self.bytes.len() - GUARD;
        let inner = &mut self.bytes[GUARD..end];
        match self.layout.map(stripes) {
            None => inner.view_mut(),
            Some(l) => ViewMut::new(inner, 0, &l.layout, self.room / l.size)
                .expect("the span was computed for it"),
        }
    }
}

#[expect(
    unsafe_code,
    reason = "the bytes are a vector's, as of other owned buffers"
)]
// SAFETY: a vector's elements stay where they are when it is moved.
unsafe impl OwnedBuffer for Memory {}
#[expect(unsafe_code, reason = "as above")]
// SAFETY: as above, owned by nobody else.
unsafe impl OwnedBufferMut for Memory {}

/// Contents of a message: its number, then words that depend on it. What is
/// too short for a number depends on `envelope`.
pub(super) fn contents(number: usize, envelope: u64, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes.next_multiple_of(8)];
    let short = bytes < NUMBER_BYTES;
    let mut word = mix(if short { envelope } else { number as u64 });
    for to in out.chunks_exact_mut(8) {
        to.copy_from_slice(&word.to_le_bytes());
        word = word.wrapping_mul(0xD129_42F3_2A9B_1D05).rotate_left(23) ^ 0x9E37;
    }
    if !short {
        let mark = (number as u64 ^ NUMBER_MARK).to_le_bytes();
        out[..NUMBER_BYTES].copy_from_slice(&mark);
    }
    out.truncate(bytes);
    out
}

/// The number that a message carries.
pub(super) fn number(message: &[u8]) -> Option<usize> {
    let number = message.first_chunk::<NUMBER_BYTES>()?;
    usize::try_from(u64::from_le_bytes(*number) ^ NUMBER_MARK).ok()
}

fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
