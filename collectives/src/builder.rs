//! Writes a rank's part as a sequential program; the dependencies follow from what
//! the steps read and write.
//!
//! An algorithm says what happens, in an order that would be right on one thread.
//! Two steps stay ordered only if they touch a piece that one of them writes, so
//! phases of different algorithms put behind each other overlap as far as their data
//! allows. Flags carry no data; they are ordered as if all of a rank's flags lay in
//! one cell that waits write and raises read: a raise follows every wait before it.
//!
//! # Invariants
//! 1. A step depends on the last writer of what it reads; on the last writer, or the
//!    readers since, of what it writes. Nothing else but what [`Builder::after`] adds.
//! 2. Scratch with slots: the first step that writes a piece waits for the last ones
//!    that used it `slots` segments before.
//! 3. Tags of different phases differ, if all ranks begin the same phases.

use crate::call::Call;
use crate::plan::{Buffer, Dep, Lengths, Operand, Part, Region, Scratch, Step};
use crate::tracks::{NONE, Readers, Track, Tracks, UNTOUCHED};

/// Collects the steps of one rank.
pub struct Builder<'a> {
    /// What is asked.
    pub call: &'a Call,
    /// Whose part it is.
    pub rank: u32,
    slots: u32,
    part: Part,
    phase: u32,
    tracks: [Tracks; 2],
    scratch: Vec<Tracks>,
    token: Track,
    readers: Readers,
    /// Dependencies of the step that is being written.
    pending: Vec<u32>,
}

/// Rounds of one phase are below this.
pub(crate) const ROUNDS: u32 = 1 << 20;

impl<'a> Builder<'a> {
    /// For `rank`, with vectors cut into `cut` pieces and pieces into `segments`;
    /// intermediate results get room for `slots` segments at a time (0: for all).
    pub fn new(call: &'a Call, rank: u32, cut: u32, segments: u32, slots: u32) -> Self {
        let tracks =
            [Buffer::Send, Buffer::Recv].map(|buffer| Tracks::new(call.pieces(rank, buffer, cut)));
        Self {
            call,
            rank,
            slots: if slots >= segments { 0 } else { slots },
            part: Part {
                rank,
                cut,
                segments,
                ..Part::default()
            },
            phase: 0,
            tracks,
            scratch: Vec::new(),
            token: UNTOUCHED,
            readers: Vec::new(),
            pending: Vec::new(),
        }
    }

    /// Pieces into which vectors are cut.
    pub fn cut(&self) -> u32 {
        self.part.cut
    }

    /// Begins a phase. Every rank calls it, whether it takes part or not.
    pub fn phase(&mut self) {
        self.phase += 1;
    }

    /// A tag for a round of this phase.
    pub fn tag(&self, round: u32) -> u32 {
        debug_assert!(round < ROUNDS);
        self.phase * ROUNDS + round
    }

    /// Room for `pieces` pieces.
    pub fn scratch(&mut self, pieces: u32) -> Buffer {
        self.scratch_like(pieces, Lengths::Rotated(0))
    }

    /// Room for `pieces` pieces of other lengths than the call's in order.
    pub fn scratch_like(&mut self, pieces: u32, lengths: Lengths) -> Buffer {
        let number = self.scratch.len() as u16;
        self.part.scratch.push(Scratch {
            pieces,
            lengths,
            slots: self.slots,
            aside: false,
            slot: false,
            changes_hands: false,
            one_reader: false,
        });
        self.scratch.push(Tracks::new(pieces));
        Buffer::Scratch(number)
    }

    /// The same in memory of the host, wherever the call's buffers lie.
    pub fn scratch_aside(&mut self, pieces: u32) -> Buffer {
        let buffer = self.scratch(pieces);
        if let Some(last) = self.part.scratch.last_mut() {
            last.aside = true;
        }
        buffer
    }

    /// The same, which peers read; if all ranks write one and read those of all others, they
    /// change hands. Segments have one place.
    pub fn slot(&mut self, pieces: u32, changes_hands: bool) -> Buffer {
        let buffer = self.scratch(pieces);
        let segments = self.part.segments;
        if let Some(last) = self.part.scratch.last_mut() {
            last.slot = true;
            last.changes_hands = changes_hands;
            last.one_reader = self.call.has_one_reader() && !changes_hands;
            last.slots = u32::from(segments > 1);
        }
        buffer
    }

    /// A slot for the shares of all other ranks, the next rank's first, which change hands.
    pub fn slot_of_shares(&mut self) -> Buffer {
        let buffer = self.slot(self.call.size - 1, true);
        let rank = self.rank;
        if let Some(last) = self.part.scratch.last_mut() {
            last.lengths = Lengths::Rotated(rank + 1);
        }
        buffer
    }

    /// A slot for this rank's contribution, where those of ranks differ.
    pub fn cell(&mut self) -> Buffer {
        let buffer = self.slot(1, false);
        let rank = self.rank;
        if let Some(last) = self.part.scratch.last_mut() {
            last.lengths = Lengths::All(rank);
        }
        buffer
    }

    /// From here on, which is the first step, flags are words of a segment that the ranks
    /// share, and steps follow one another.
    pub fn in_segment(&mut self) {
        debug_assert_eq!(self.next(), 0);
        self.part.in_segment = true;
    }

    /// Segments of the plan.
    pub fn segments(&self) -> u32 {
        self.part.segments
    }

    /// The whole vector in a buffer.
    pub fn vector(&self, buffer: Buffer) -> Region {
        Region::run(buffer, 0, self.part.cut)
    }

    /// The whole input vector.
    pub fn input(&self) -> Region {
        self.vector(self.call.input(self.rank))
    }

    /// Adds a dependency to the next step.
    pub fn after(&mut self, step: u32) {
        self.pending.push(step);
    }

    /// Number of steps so far: the id of the next.
    pub fn next(&self) -> u32 {
        self.part.steps.len() as u32
    }

    /// Sends.
    pub fn send(&mut self, to: u32, tag: u32, data: Region) -> u32 {
        self.read(data);
        self.push(Step::Send { to, tag, data })
    }

    /// Receives.
    pub fn recv(&mut self, from: u32, tag: u32, data: Region) -> u32 {
        self.write(data);
        self.push(Step::Recv { from, tag, data })
    }

    /// Copies, if the places differ.
    pub fn copy(&mut self, from: Region, to: Region) {
        if from != to && from.count > 0 {
            self.read(from);
            self.write(to);
            self.push(Step::Copy { from, to });
        }
    }

    /// `into = left op right`.
    pub fn combine(&mut self, left: Region, right: Region, into: Region) -> u32 {
        for operand in [left, right] {
            if operand != into {
                self.read(operand);
            }
        }
        self.write(into);
        self.push(Step::Combine { left, right, into })
    }

    /// Lets a rank go on.
    pub fn raise(&mut self, to: u32, tag: u32) -> u32 {
        let step = self.next();
        let token = &mut self.token;
        token.read(&mut self.readers, &mut self.pending, step);
        self.push(Step::Raise { to, tag })
    }

    /// Waits for a flag.
    pub fn wait(&mut self, from: u32, tag: u32) -> u32 {
        let step = self.next();
        self.token.write(&self.readers, &mut self.pending, step);
        self.push(Step::Await { from, tag })
    }

    /// Copies from a peer's memory, after the flags before.
    pub fn read_peer(&mut self, from: u32, data: Region, into: Region) -> u32 {
        let step = self.next();
        let token = &mut self.token;
        token.read(&mut self.readers, &mut self.pending, step);
        self.write(into);
        self.push(Step::Read { from, data, into })
    }

    /// `into = left op right`, of operands of which some are a peer's, after the flags before.
    pub fn fold(&mut self, left: Operand, right: Operand, into: Region) -> u32 {
        for operand in [left, right] {
            if operand.of.is_none() && operand.data != into {
                self.read(operand.data);
            }
        }
        self.write(into);
        self.push(Step::Fold { left, right, into })
    }

    fn read(&mut self, region: Region) {
        self.note(region, |track, readers, pending, step| {
            track.read(readers, pending, step);
        });
        if region.buffer == Buffer::Send && self.call.shares_memory() {
            // Whatever lies there will be written over at the end.
            self.note(
                Region::piece(Buffer::Recv, 0),
                |track, readers, pending, step| {
                    track.read(readers, pending, step);
                },
            );
        }
    }

    fn write(&mut self, region: Region) {
        self.note(region, |track, readers, pending, step| {
            track.write(readers, pending, step);
        });
    }

    fn note(
        &mut self,
        region: Region,
        note: impl Fn(&mut Track, &mut Readers, &mut Vec<u32>, u32),
    ) {
        let step = self.next();
        let tracks = match region.buffer {
            Buffer::Send => &mut self.tracks[0],
            Buffer::Recv => &mut self.tracks[1],
            Buffer::Scratch(k) => &mut self.scratch[k as usize],
        };
        let (readers, pending) = (&mut self.readers, &mut self.pending);
        tracks.touch(region, |track| note(track, readers, pending, step));
    }

    fn push(&mut self, step: Step) -> u32 {
        let id = self.next();
        let pending = &mut self.pending;
        if self.part.in_segment {
            pending.clear();
            pending.extend(id.checked_sub(1));
        }
        if pending.len() > 1 {
            pending.sort_unstable();
            pending.dedup();
        }
        let deps = pending.drain(..).filter(|d| *d != id);
        self.part.deps.extend(deps.map(|step| Dep { step, lag: 0 }));
        self.part.steps.push(step);
        self.part.ends.push(self.part.deps.len() as u32);
        id
    }

    /// The part.
    pub fn finish(self) -> Part {
        let mut part = self.part;
        if part.in_segment && part.segments > 1 && !part.steps.is_empty() {
            // Segments follow one another.
            let step = part.steps.len() as u32 - 1;
            part.deps.insert(0, Dep { step, lag: 1 });
            part.ends.iter_mut().for_each(|end| *end += 1);
            return part;
        }
        if self.slots == 0 || self.scratch.is_empty() {
            return part;
        }
        let mut late: Vec<(u32, Dep)> = Vec::new();
        for track in self
            .scratch
            .iter()
            .flat_map(Tracks::iter)
            .filter(|t| t.first != NONE)
        {
            let mut add = |step| {
                let lag = self.slots;
                late.push((track.first, Dep { step, lag }));
            };
            if track.readers == NONE {
                add(track.writer);
            }
            let mut at = track.readers;
            while at != NONE {
                let (step, next) = self.readers[at as usize];
                add(step);
                at = next;
            }
        }
        late.sort_unstable();
        late.dedup();
        let mut deps = Vec::with_capacity(part.deps.len() + late.len());
        let mut ends = Vec::with_capacity(part.ends.len());
        let mut late = late.into_iter().peekable();
        for step in 0..part.steps.len() as u32 {
            deps.extend_from_slice(part.after(step));
            while let Some((_, dep)) = late.next_if(|l| l.0 == step) {
                deps.push(dep);
            }
            ends.push(deps.len() as u32);
        }
        part.deps = deps;
        part.ends = ends;
        part
    }
}
