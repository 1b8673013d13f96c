//! From buffers to asks: calls in which ranks contribute different amounts.
//!
//! Blocks of a buffer are given by counts and displacements, in elements: of slices in
//! theirs, of views in instances of the layout, as MPI counts them. What a rank sends must
//! be as long as what its peer expects of it.

use super::{Ask, in_place_elsewhere, mismatch};
use crate::comm::Communicator;
use crate::names::Rank;
use osier_collectives::{Call, Operation};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::exec::memory::{Buffers, Pieces, Sizes};
use osier_engine::exec::run::Combiner;
use osier_engine::view::RawView;
use osier_kernels::Driver;
use osier_transports::shm::SLOT_BYTES;
use std::ops::Range;

/// Counts and displacements, in elements, of one block per rank.
pub(crate) type Blocks<'a> = (&'a [usize], &'a [usize]);

/// Bytes for which calls of unknown size are planned.
pub(crate) const MIDDLE_BYTES: usize = 1024;

/// Packed bytes of an element.
pub(crate) fn element(view: &RawView) -> Result<usize> {
    view.element_bytes().ok_or_else(|| {
        Error::new(
            ErrorKind::Datatype,
            "counts of elements in data of unknown type (hint: pass a slice, or a view)",
        )
    })
}

/// The blocks of a buffer, as ranges of its packed bytes.
pub(crate) fn ranges(
    view: &RawView,
    (counts, displacements): Blocks<'_>,
    ranks: usize,
    what: &str,
) -> Result<Vec<Range<usize>>> {
    if counts.len() != ranks || displacements.len() != ranks {
        return Err(mismatch(format!(
            "{} counts and {} displacements for {ranks} {what} (hint: one of each per block)",
            counts.len(),
            displacements.len()
        )));
    }
    let each = element(view)?;
    let len = view.bytes().checked_div(each).unwrap_or(0);
    let range = |(count, start): (&usize, &usize)| {
        let inside = start.checked_add(*count).is_some_and(|end| end <= len);
        if !inside && each > 0 {
            return Err(mismatch(format!(
                "a block of {count} elements from element {start} on in a buffer of {len} (hint: counts and displacements are in elements)"
            )));
        }
        Ok(start * each..(start + count) * each)
    };
    counts.iter().zip(displacements).map(range).collect()
}

/// As [`ranges`], of memory that others write: blocks must not share elements.
pub(crate) fn apart(
    view: &RawView,
    blocks: Blocks<'_>,
    ranks: usize,
    what: &str,
) -> Result<Vec<Range<usize>>> {
    let all = ranges(view, blocks, ranks, what)?;
    let mut sorted: Vec<_> = all.iter().filter(|r| !r.is_empty()).collect();
    sorted.sort_unstable_by_key(|r| r.start);
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0].end > pair[1].start) {
        let each = element(view)?.max(1);
        return Err(mismatch(format!(
            "blocks from elements {} and {} on overlap (hint: blocks to receive into share no element)",
            pair[0].start / each,
            pair[1].start / each
        )));
    }
    Ok(all)
}

/// A call with these pieces, or with what is wrong with them.
pub(crate) fn listed(
    name: &'static str,
    call: osier_collectives::Call,
    send: Result<Pieces>,
    recv: Result<Pieces>,
    sizes: Vec<usize>,
) -> Ask {
    let mut error = None;
    let mut keep = |pieces: Result<Pieces>| {
        pieces.unwrap_or_else(|e| {
            error = error.take().or(Some(e));
            Pieces::None
        })
    };
    let buffers = Buffers {
        send: keep(send),
        recv: keep(recv),
        sizes: match sizes.is_empty() {
            true => Sizes::Empty,
            false => Sizes::Each(sizes.into()),
        },
        unit: 1,
    };
    // Not all ranks know the bytes, so the plan does not depend on them.
    Ask::new(name, call.varying(), MIDDLE_BYTES, buffers).failed(error)
}

impl Ask {
    /// With the plan of equal contributions, of blocks that are equal.
    fn of_equal_blocks(self, each: usize) -> Ask {
        let call = Call {
            varying: false,
            ..self.call
        };
        let sizes = Sizes::Equal(each);
        let buffers = Buffers {
            sizes,
            ..self.buffers
        };
        Ask::new(self.name, call, each, buffers).failed(self.error)
    }
}

/// Whether all blocks that all ranks read have room in their slots, as all ranks know.
#[inline]
pub(crate) fn in_slots(recv: &RawView, counts: &[usize]) -> bool {
    let most = counts.iter().copied().max().unwrap_or(0);
    let bytes = recv
        .element_bytes()
        .and_then(|bytes| bytes.checked_mul(most));
    bytes.is_some_and(|bytes| bytes <= SLOT_BYTES)
}

fn placed(view: RawView, ranges: Result<Vec<Range<usize>>>) -> Result<Pieces> {
    Ok(Pieces::Ranges(view, ranges?.into()))
}

fn whole(view: RawView) -> Pieces {
    let bytes = view.bytes();
    Pieces::Equal(view, bytes)
}

fn lens(ranges: &Result<Vec<Range<usize>>>) -> Vec<usize> {
    ranges.as_ref().map_or_else(
        |_| Vec::new(),
        |ranges| ranges.iter().map(ExactSizeIterator::len).collect(),
    )
}

impl Communicator {
    fn in_place_within(&self) -> Result<()> {
        match self.is_inter() {
            false => Ok(()),
            true => Err(mismatch(
                "IN_PLACE on an intercommunicator (hint: pass a buffer)",
            )),
        }
    }

    pub(crate) fn gatherv_ask(
        &self,
        send: Option<RawView>,
        recv: Option<RawView>,
        counts: &[usize],
        displacements: &[usize],
        root: Rank,
    ) -> Result<Ask> {
        let Some(root) = self.plan_root(root)? else {
            return Ok(self.idle_ask("gatherv", Operation::Gather));
        };
        let mut call = self.call_of(Operation::Gather).root(root);
        let receives = self.runs_on().rank() as u32 == root;
        let recv = match receives {
            false => Ok(Pieces::None),
            true => {
                let recv = recv.unwrap_or_default();
                let all = apart(&recv, (counts, displacements), self.others(), "ranks");
                placed(recv, all)
            }
        };
        let send = match send {
            _ if receives && self.is_inter() => Ok(Pieces::None),
            Some(send) => Ok(whole(send)),
            None => {
                call = call.in_place();
                self.in_place_within().and_then(|()| match receives {
                    true => Ok(Pieces::None),
                    false => Err(in_place_elsewhere()),
                })
            }
        };
        Ok(listed("gatherv", call, send, recv, Vec::new()))
    }

    pub(crate) fn scatterv_ask(
        &self,
        send: Option<RawView>,
        recv: Option<RawView>,
        counts: &[usize],
        displacements: &[usize],
        root: Rank,
    ) -> Result<Ask> {
        let Some(root) = self.plan_root(root)? else {
            return Ok(self.idle_ask("scatterv", Operation::Scatter));
        };
        let mut call = self.call_of(Operation::Scatter).root(root);
        let sends = self.runs_on().rank() as u32 == root;
        let send = match sends {
            false => Ok(Pieces::None),
            true => {
                let send = send.unwrap_or_default();
                let all = ranges(&send, (counts, displacements), self.others(), "ranks");
                placed(send, all)
            }
        };
        let recv = match recv {
            _ if sends && self.is_inter() => Ok(Pieces::None),
            Some(recv) => Ok(whole(recv)),
            None => {
                call = call.in_place();
                self.in_place_within().and_then(|()| match sends {
                    true => Ok(Pieces::None),
                    false => Err(in_place_elsewhere()),
                })
            }
        };
        Ok(listed("scatterv", call, send, recv, Vec::new()))
    }

    pub(crate) fn allgatherv_ask(
        &self,
        send: Option<RawView>,
        recv: Option<RawView>,
        counts: &[usize],
        displacements: &[usize],
    ) -> Result<Ask> {
        let recv = recv.unwrap_or_default();
        let mut call = self.call_of(Operation::Allgather);
        let all = apart(&recv, (counts, displacements), self.others(), "ranks");
        // Between groups the bytes of this side are not known to all.
        let sizes = match self.is_inter() {
            true => Vec::new(),
            false => lens(&all),
        };
        let send = match send {
            None => {
                call = call.in_place();
                self.in_place_within().map(|()| Pieces::None)
            }
            Some(send) => match sizes.get(self.rank()) {
                Some(own) if *own != send.bytes() => Err(mismatch(format!(
                    "{} bytes to send for a block of {own} bytes (hint: the count of this rank is that of its data)",
                    send.bytes()
                ))),
                _ => Ok(whole(send)),
            },
        };
        let each = self.equal_blocks(counts).zip(recv.element_bytes());
        let fits = in_slots(&recv, counts);
        let mut ask = listed("allgatherv", call, send, placed(recv, all), sizes);
        if let Some((count, bytes)) = each {
            return Ok(ask.of_equal_blocks(count.saturating_mul(bytes)));
        }
        if !fits {
            ask.not_in_segment();
        }
        Ok(ask)
    }

    pub(crate) fn alltoallv_ask(
        &self,
        send: Option<RawView>,
        recv: Option<RawView>,
        send_blocks: Blocks<'_>,
        recv_blocks: Blocks<'_>,
    ) -> Result<Ask> {
        let recv = recv.unwrap_or_default();
        let mut call = self.call_of(Operation::Alltoall);
        let into = apart(&recv, recv_blocks, self.others(), "ranks");
        let sizes = lens(&into);
        let send = match send {
            None => {
                call = call.in_place();
                self.in_place_within().map(|()| Pieces::None)
            }
            Some(send) => {
                let all = ranges(&send, send_blocks, self.others(), "ranks");
                placed(send, all)
            }
        };
        Ok(listed("alltoallv", call, send, placed(recv, into), sizes))
    }

    pub(crate) fn alltoallw_ask(&self, send: Vec<RawView>, recv: Vec<RawView>) -> Result<Ask> {
        let others = self.others();
        let all = |views: Vec<RawView>| match views.len() == others {
            true => Ok(Pieces::Listed(views.into())),
            false => Err(mismatch(format!(
                "{} buffers for {others} ranks (hint: one per rank)",
                views.len()
            ))),
        };
        let call = self.call_of(Operation::Alltoall);
        Ok(listed("alltoallw", call, all(send), all(recv), Vec::new()))
    }

    pub(crate) fn reduce_scatter_ask(
        &self,
        send: Option<RawView>,
        recv: Option<RawView>,
        counts: &[usize],
        combiner: Combiner,
    ) -> Result<Ask> {
        let recv = recv.unwrap_or_default();
        let size = self.size();
        let in_place = send.is_none();
        let send = send.unwrap_or_else(|| recv.clone());
        let each = element(&send)?;
        let shares: Vec<usize> = counts.iter().map(|count| count * each).collect();
        let (own, total) = (shares.get(self.rank()), shares.iter().sum::<usize>());
        let mut error = None;
        if counts.len() != size {
            error = Some(mismatch(format!(
                "{} counts for {size} ranks (hint: one per rank)",
                counts.len()
            )));
        } else if total != send.bytes() {
            error = Some(mismatch(format!(
                "counts of {total} bytes for {} bytes to send (hint: counts add up to the elements given)",
                send.bytes()
            )));
        } else if let Some(own) = own.filter(|own| !in_place && **own != recv.bytes()) {
            error = Some(mismatch(format!(
                "a block of {own} bytes into a buffer of {} (hint: its count is that of this rank)",
                recv.bytes()
            )));
        }
        if in_place && error.is_none() {
            error = self.in_place_within().err();
        }
        let recv = (!in_place).then_some(recv);
        let name = "reduce_scatter";
        let ask = match self.equal_shares(&shares) {
            Some(each) => self.equal_shares_ask(name, send, recv, each, combiner),
            None => self.shares_ask(name, send, recv, &shares, combiner),
        };
        Ok(ask.failed(error))
    }

    /// The count of each block, if counts are equal, which all ranks know of an allgatherv: it has
    /// the plan of equal contributions then, unless memory may lie on devices, whose plans ask
    /// where blocks lie.
    #[inline]
    pub(crate) fn equal_blocks(&self, counts: &[usize]) -> Option<usize> {
        let count = self.equal_shares(counts)?;
        (!Driver::is_there()).then_some(count)
    }

    /// The share of each rank, if shares are equal: by that alone, which all ranks know, for
    /// their plans must be one.
    #[inline]
    pub(crate) fn equal_shares(&self, shares: &[usize]) -> Option<usize> {
        let (&first, rest) = shares.split_first()?;
        let equal = shares.len() == self.size() && rest.iter().all(|share| *share == first);
        (equal && !self.is_inter()).then_some(first)
    }
}
