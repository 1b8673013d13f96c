//! A plan: for every rank, steps over pieces of named buffers.
//!
//! ```text
//! plan = call x algorithm x segments          (all ranks agree)
//! part = steps of one rank, made on demand    (nobody holds another rank's)
//! step instance = (step, segment)             (what runs)
//! ```
//!
//! A step stands for one instance per segment: instance s works on the s-th part of
//! every piece it names. Within a segment steps wait for each other as the part
//! says; a dependency with a lag reaches back that many segments, where room for a
//! few segments is used in turn. So segments overtake nothing and wait for nothing
//! but their data: a plan of several levels flows through all of them at once, and
//! its description is no longer for a longer message.
//!
//! # Invariants
//! 1. A step waits only for earlier steps of its segment, or for segments before.
//! 2. A message is told apart from all others of the plan by (from, to, tag,
//!    segment). No order between messages is needed.
//! 3. Two accesses of a rank to a piece, one of which writes, are ordered by
//!    dependencies. Reads of a peer's buffers are ordered by flags.
//! 4. Both ends of a message name equally many pieces of the same lengths.

use crate::call::Call;

/// Named memory of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buffer {
    /// The user's, read only.
    Send,
    /// The user's; the buffer of a broadcast, too.
    Recv,
    /// The plan's own, by number.
    Scratch(u16),
}

/// Pieces of a buffer: index i is piece `first + (i / run) * stride + i % run`,
/// modulo the buffer's pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// Where.
    pub buffer: Buffer,
    /// Its first piece.
    pub first: u32,
    /// Pieces.
    pub count: u32,
    /// Pieces next to each other.
    pub run: u32,
    /// From the start of one run to the next.
    pub stride: u32,
}

impl Region {
    /// One piece.
    pub const fn piece(buffer: Buffer, index: u32) -> Self {
        Self::run(buffer, index, 1)
    }

    /// `count` pieces from `first` on, around the end if need be.
    pub const fn run(buffer: Buffer, first: u32, count: u32) -> Self {
        Self {
            buffer,
            first,
            count,
            run: if count == 0 { 1 } else { count },
            stride: 0,
        }
    }

    /// `count` pieces in runs.
    pub const fn runs(buffer: Buffer, first: u32, count: u32, run: u32, stride: u32) -> Self {
        Self {
            buffer,
            first,
            count,
            run,
            stride,
        }
    }

    /// Whether its pieces lie one behind the other in a buffer of so many.
    pub fn lies_in_one(self, pieces: u32) -> bool {
        let together = self.run >= self.count || self.stride == self.run;
        self.count == 0 || (together && self.first % pieces.max(1) + self.count <= pieces)
    }

    /// The pieces, in a buffer of `pieces`.
    #[inline]
    pub fn indices(self, pieces: u32) -> impl Iterator<Item = u32> {
        let pieces = u64::from(pieces.max(1));
        (0..self.count).map(move |i| {
            let jump = u64::from(i / self.run) * u64::from(self.stride);
            let at = u64::from(self.first) + jump + u64::from(i % self.run);
            (if at < pieces { at } else { at % pieces }) as u32
        })
    }
}

/// What a combination reads: own pieces, or a peer's where they lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Whose, if they are a peer's.
    pub of: Option<u32>,
    /// Which. Of a peer as in [`Step::Read`].
    pub data: Region,
}

impl Operand {
    /// Own pieces.
    pub const fn own(data: Region) -> Self {
        Self { of: None, data }
    }

    /// A peer's.
    pub const fn of_peer(rank: u32, data: Region) -> Self {
        let of = Some(rank);
        Self { of, data }
    }
}

/// What a rank does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Sends pieces.
    Send {
        /// Whom to.
        to: u32,
        /// Tells messages to one rank apart.
        tag: u32,
        /// What.
        data: Region,
    },
    /// Receives pieces.
    Recv {
        /// Whom from.
        from: u32,
        /// The sender's.
        tag: u32,
        /// Where to.
        data: Region,
    },
    /// Copies pieces within the rank.
    Copy {
        /// Source.
        from: Region,
        /// Destination.
        to: Region,
    },
    /// `into = left op right`, piece by piece; `into` may be one of them.
    Combine {
        /// First operand.
        left: Region,
        /// Second operand.
        right: Region,
        /// The result.
        into: Region,
    },
    /// Tells a rank that it may go on.
    Raise {
        /// Whom.
        to: u32,
        /// Tells messages and flags to one rank apart.
        tag: u32,
    },
    /// Waits for a flag.
    Await {
        /// Whose.
        from: u32,
        /// The raiser's.
        tag: u32,
    },
    /// Copies pieces from a peer's buffer. Of a peer [`Buffer::Send`] is its input, wherever
    /// that lies ([`Call::input_of_peer`]), and [`Buffer::Recv`] its result.
    Read {
        /// Whose.
        from: u32,
        /// What, in the peer's buffers.
        data: Region,
        /// Where to.
        into: Region,
    },
    /// `into = left op right`, piece by piece, of which one operand or both are a peer's.
    Fold {
        /// First operand.
        left: Operand,
        /// Second operand.
        right: Operand,
        /// The result; it may be an own operand.
        into: Region,
    },
}

/// What a step waits for: `step` in its own segment, or `lag` segments before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dep {
    /// The step.
    pub step: u32,
    /// Segments back. An instance in one of the first `lag` segments does not wait.
    pub lag: u32,
}

/// The lengths of scratch pieces, in terms of the call's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lengths {
    /// Piece p is as long as piece `(p + rotated) mod pieces` of the call, which has as many or
    /// more.
    Rotated(u32),
    /// All are as long as this one.
    All(u32),
}

/// A scratch buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scratch {
    /// Pieces.
    pub pieces: u32,
    /// How long they are, where contributions differ.
    pub lengths: Lengths,
    /// Segments for which there is room; 0: for all. Segment s lies where
    /// segment s + slots will.
    pub slots: u32,
    /// It lies in memory of the host, wherever the call's buffers do.
    pub aside: bool,
    /// Peers read it: it is a slot, which stays as it is until all peers have ended their
    /// parts, or their segment.
    pub slot: bool,
    /// All ranks write such slots, and read those of all others.
    pub changes_hands: bool,
    /// One rank reads each piece of a slot.
    pub one_reader: bool,
}

/// One rank's part of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Part {
    /// The rank.
    pub rank: u32,
    /// Pieces into which a vector is cut; the same on all ranks.
    pub cut: u32,
    /// Segments; the same on all ranks.
    pub segments: u32,
    /// Own buffers.
    pub scratch: Vec<Scratch>,
    /// Flags are words of the ranks' collective segment, and no step is a message. Then steps
    /// follow one another; flags are raised in the order of their phases, and once in each.
    pub in_segment: bool,
    pub(crate) steps: Vec<Step>,
    pub(crate) deps: Vec<Dep>,
    /// Where the dependencies of each step end in `deps`.
    pub(crate) ends: Vec<u32>,
}

impl Part {
    /// All steps, in an order in which one could run them.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Whether peers read a region of this rank where it lies.
    pub fn is_slot(&self, region: Region) -> bool {
        match region.buffer {
            Buffer::Scratch(k) => self.scratch[usize::from(k)].slot,
            _ => false,
        }
    }

    /// Whether the rank raises its flag in the ranks' segment, or writes to its slot there.
    pub fn writes_for_peers(&self) -> bool {
        self.steps.iter().any(|step| match *step {
            Step::Raise { .. } => true,
            Step::Copy { to: into, .. } | Step::Read { into, .. } | Step::Fold { into, .. } => {
                self.is_slot(into)
            }
            _ => false,
        })
    }

    /// What a step waits for.
    #[inline]
    pub fn after(&self, step: u32) -> &[Dep] {
        let step = step as usize;
        let start = if step == 0 { 0 } else { self.ends[step - 1] };
        &self.deps[start as usize..self.ends[step] as usize]
    }

    /// If every step works on nothing or on pieces that lie one behind the other, all of
    /// one length, in one segment, which one thread can take step by step: pieces of the
    /// longest step or scratch buffer, at least 1.
    pub fn row_pieces(&self, call: &Call) -> Option<u32> {
        let unlike = call.varying || call.first_side.is_some() || call.operation.of_neighbors();
        if self.cut > 1 || self.segments > 1 || unlike {
            return None;
        }
        self.pieces_of_row(call)
    }

    fn pieces_of_row(&self, call: &Call) -> Option<u32> {
        let scratch = |k: u16| self.scratch.get(usize::from(k)).map_or(0, |s| s.pieces);
        let mut most = 1;
        let mut fits = |r: &Region| {
            let pieces = match r.buffer {
                Buffer::Scratch(k) => scratch(k),
                user => call.pieces(self.rank, user, self.cut.max(1)),
            };
            most = most.max(r.count);
            r.lies_in_one(pieces)
        };
        let row = self.steps.iter().all(|step| match step {
            Step::Send { data, .. } | Step::Recv { data, .. } => fits(data),
            Step::Copy { from, to } => fits(from) && fits(to),
            Step::Combine { left, right, into } => fits(left) && fits(right) && fits(into),
            Step::Raise { .. } | Step::Await { .. } => true,
            // A peer's pieces lie as one's own do.
            Step::Read { data, into, .. } => data.count == data.run && fits(into),
            Step::Fold { left, right, into } => {
                let mut operand = |o: &Operand| match o.of {
                    Some(_) => o.data.count == o.data.run,
                    None => fits(&o.data),
                };
                operand(left) && operand(right) && fits(into)
            }
        });
        let scratch = self.scratch.iter().map(|s| s.pieces).max();
        row.then_some(most.max(scratch.unwrap_or(0)))
    }

    /// The same of a plan in a segment, in any number of its own: where there are several, each
    /// step works on one piece at most.
    pub fn row_of_segment(&self, call: &Call) -> Option<u32> {
        let single = |r: &Region| self.segments == 1 || r.count <= 1;
        let singles = self.steps.iter().all(|step| match step {
            Step::Copy { from, to } => single(from) && single(to),
            Step::Read { data, into, .. } => single(data) && single(into),
            Step::Fold { into, .. } => single(into),
            _ => true,
        });
        // Of a vector that is cut, scratch is like one piece of it.
        let of_piece = |s: &Scratch| s.pieces == 1 && s.lengths == Lengths::Rotated(self.rank);
        let cuts = self.cut <= 1 || self.scratch.iter().all(|s| s.slot || of_piece(s));
        let shares = call.varying && call.operation.reduces();
        let unlike = call.first_side.is_some() || call.operation.of_neighbors() || shares;
        let row = self.pieces_of_row(call);
        row.filter(|_| singles && cuts && !unlike)
    }

    /// The same part without a step: what a test breaks plans with.
    pub fn without_step(&self, gone: u32) -> Self {
        let mut part = Self {
            steps: Vec::new(),
            deps: Vec::new(),
            ends: Vec::new(),
            scratch: self.scratch.clone(),
            ..*self
        };
        // What waited for the step waits for what the step waited for.
        let renumber = |d: Dep| Dep {
            step: d.step - u32::from(d.step > gone),
            ..d
        };
        for (at, step) in self.steps.iter().enumerate() {
            if at as u32 == gone {
                continue;
            }
            part.steps.push(*step);
            for dep in self.after(at as u32) {
                if dep.step != gone {
                    part.deps.push(renumber(*dep));
                    continue;
                }
                part.deps.extend(self.after(gone).iter().map(|d| {
                    renumber(Dep {
                        lag: d.lag + dep.lag,
                        ..*d
                    })
                }));
            }
            part.ends.push(part.deps.len() as u32);
        }
        // A step may have waited for the deleted one in an earlier segment, which
        // waited for the step itself.
        part
    }

    /// The same part with a step that waits for nothing.
    pub fn without_dependencies(&self, of: u32) -> Self {
        let mut part = self.clone();
        part.deps.clear();
        for step in 0..self.steps.len() as u32 {
            if step != of {
                part.deps.extend_from_slice(self.after(step));
            }
            part.ends[step as usize] = part.deps.len() as u32;
        }
        part
    }
}
