//! Calls in which ranks contribute different amounts.
//!
//! Blocks of a buffer are given by counts and displacements, in elements. What a rank
//! sends must be as long as what its peer expects of it.

use super::ask::{Ask, mismatch};
use crate::comm::Communicator;
use crate::error::Result;
use crate::exec::memory::{Buffers, Pieces, Sizes};
use crate::exec::operator::{Data, Reduction};
use crate::exec::run::Combiner;
use crate::p2p::Rank;
use crate::p2p::view::{Buffer, BufferMut, RawView, View, ViewMut};
use crate::trace::event::{ANY, Kind};
use osier_collectives::{Call, Operation};
use osier_datatype::Datatype;

/// The blocks of a buffer of `len` elements at `data`.
fn blocks<T: Datatype>(
    what: &str,
    (data, len): (*mut T, usize),
    counts: &[usize],
    displacements: &[usize],
    ranks: usize,
) -> Result<Vec<RawView>> {
    if counts.len() != ranks || displacements.len() != ranks {
        return Err(mismatch(format!(
            "{what}: {} counts and {} displacements for {ranks} ranks",
            counts.len(),
            displacements.len()
        )));
    }
    let block = |(count, start): (&usize, &usize)| {
        let inside = start.checked_add(*count).is_some_and(|end| end <= len);
        if !inside {
            return Err(mismatch(format!(
                "{what}: {count} elements from {start} on of {len}"
            )));
        }
        Ok(RawView::of_slice(data.wrapping_add(*start), *count))
    };
    counts.iter().zip(displacements).map(block).collect()
}

fn of<T: Datatype>(data: &[T]) -> (*mut T, usize) {
    (data.as_ptr().cast_mut(), data.len())
}

fn of_mut<T: Datatype>(data: &mut [T]) -> (*mut T, usize) {
    (data.as_mut_ptr(), data.len())
}

/// Blocks that others write must not share elements.
fn disjoint(what: &str, counts: &[usize], displacements: &[usize]) -> Result<()> {
    let mut blocks: Vec<(usize, usize)> = displacements
        .iter()
        .zip(counts)
        .filter(|(_, count)| **count > 0)
        .map(|(start, count)| (*start, start.saturating_add(*count)))
        .collect();
    blocks.sort_unstable();
    match blocks.windows(2).find(|pair| pair[0].1 > pair[1].0) {
        None => Ok(()),
        Some(pair) => Err(mismatch(format!(
            "{what}: blocks from elements {} and {} on overlap",
            pair[0].0, pair[1].0
        ))),
    }
}

fn listed(
    operation: Operation,
    size: usize,
    root: Option<usize>,
    send: Result<Pieces>,
    recv: Result<Pieces>,
    sizes: Sizes,
) -> Ask {
    let mut call = Call::new(operation, size as u32).varying();
    if let Some(root) = root {
        call = call.root(root as u32);
    }
    let mut error = None;
    let mut keep = |pieces: Result<Pieces>| {
        pieces.unwrap_or_else(|e| {
            error = Some(e);
            Pieces::None
        })
    };
    let buffers = Buffers {
        send: keep(send),
        recv: keep(recv),
        sizes,
        unit: 1,
    };
    // Not all ranks know the bytes, so the plan does not depend on them.
    Ask::new(call, MIDDLE_BYTES, buffers).failed(error)
}

/// What calls whose sizes nobody knows are planned for.
const MIDDLE_BYTES: usize = 1024;

impl Communicator {
    fn group_only(&self, what: &str) -> Result<()> {
        if !self.is_inter() {
            return Ok(());
        }
        Err(crate::error::Error::new(
            crate::error::ErrorKind::Unavailable,
            format!("{what} on an intercommunicator"),
        ))
    }

    /// Collects the elements of all ranks at the root: rank r's to the r-th block of
    /// `recv`. `recv`, `counts` and `displacements` matter at the root only. Collective.
    #[track_caller]
    pub fn gatherv<T: Datatype>(
        &self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
        displacements: &[usize],
        root: impl Into<Rank>,
    ) -> Result<()> {
        let _span = self.span(Kind::Gather, ANY, ANY, size_of_val(send));
        let (size, rank) = (self.size(), self.rank());
        let result = self
            .group_only("gatherv")
            .and_then(|()| self.root(root))
            .and_then(|root| {
                let recv = match rank == root {
                    true => blocks("gatherv", of_mut(recv), counts, displacements, size)
                        .and_then(|all| disjoint("gatherv", counts, displacements).map(|()| all))
                        .map(Pieces::Listed),
                    false => Ok(Pieces::None),
                };
                let send = Ok(Pieces::Listed(vec![send.view().raw()]));
                let operation = Operation::Gather;
                self.call(listed(
                    operation,
                    size,
                    Some(root),
                    send,
                    recv,
                    Sizes::Empty,
                ))
            });
        self.reported(result.map_err(|e| e.context("gatherv")))
    }

    /// Gives each rank its block of the root's elements: the reverse of
    /// [`Communicator::gatherv`]. Collective.
    #[track_caller]
    pub fn scatterv<T: Datatype>(
        &self,
        send: &[T],
        counts: &[usize],
        displacements: &[usize],
        recv: &mut [T],
        root: impl Into<Rank>,
    ) -> Result<()> {
        let _span = self.span(Kind::Scatter, ANY, ANY, size_of_val(recv));
        let (size, rank) = (self.size(), self.rank());
        let result = self
            .group_only("scatterv")
            .and_then(|()| self.root(root))
            .and_then(|root| {
                let send = match rank == root {
                    true => blocks("scatterv", of(send), counts, displacements, size)
                        .map(Pieces::Listed),
                    false => Ok(Pieces::None),
                };
                let recv = Ok(Pieces::Listed(vec![recv.view_mut().raw()]));
                let operation = Operation::Scatter;
                self.call(listed(
                    operation,
                    size,
                    Some(root),
                    send,
                    recv,
                    Sizes::Empty,
                ))
            });
        self.reported(result.map_err(|e| e.context("scatterv")))
    }

    /// Collects the elements of all ranks at all ranks: rank r's in the r-th block. All
    /// pass the same counts. Collective.
    #[track_caller]
    pub fn allgatherv<T: Datatype>(
        &self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
        displacements: &[usize],
    ) -> Result<()> {
        let _span = self.span(Kind::Allgather, ANY, ANY, size_of_val(send));
        let size = self.size();
        let result = self.group_only("allgatherv").and_then(|()| {
            let recv = blocks("allgatherv", of_mut(recv), counts, displacements, size)
                .and_then(|all| disjoint("allgatherv", counts, displacements).map(|()| all));
            let sizes = match &recv {
                Ok(all) => all.iter().map(RawView::bytes).collect(),
                Err(_) => Vec::new(),
            };
            let own = sizes.get(self.rank()).copied();
            let send = send.view().raw();
            let send = match own {
                Some(own) if own != send.bytes() => Err(mismatch(format!(
                    "{} bytes for a block of {own}",
                    send.bytes()
                ))),
                _ => Ok(Pieces::Listed(vec![send])),
            };
            let operation = Operation::Allgather;
            let recv = recv.map(Pieces::Listed);
            self.call(listed(
                operation,
                size,
                None,
                send,
                recv,
                Sizes::Each(sizes),
            ))
        });
        self.reported(result.map_err(|e| e.context("allgatherv")))
    }

    /// Sends the r-th block to rank r, and receives one from each rank. Collective.
    #[track_caller]
    pub fn alltoallv<T: Datatype>(
        &self,
        send: &[T],
        (send_counts, send_displacements): (&[usize], &[usize]),
        recv: &mut [T],
        (recv_counts, recv_displacements): (&[usize], &[usize]),
    ) -> Result<()> {
        let _span = self.span(Kind::Alltoall, ANY, ANY, size_of_val(send));
        let size = self.size();
        let result = self.group_only("alltoallv").and_then(|()| {
            let what = "alltoallv";
            let send = blocks(what, of(send), send_counts, send_displacements, size);
            let recv = blocks(what, of_mut(recv), recv_counts, recv_displacements, size)
                .and_then(|all| disjoint(what, recv_counts, recv_displacements).map(|()| all));
            let (send, recv) = (send.map(Pieces::Listed), recv.map(Pieces::Listed));
            let operation = Operation::Alltoall;
            self.call(listed(operation, size, None, send, recv, Sizes::Empty))
        });
        self.reported(result.map_err(|e| e.context("alltoallv")))
    }

    /// As [`Communicator::alltoallv`], with a view of its own for each rank: any
    /// layouts. Collective.
    #[track_caller]
    pub fn alltoallw(&self, send: &[View<'_>], recv: &mut [ViewMut<'_>]) -> Result<()> {
        let _span = self.span(Kind::Alltoall, ANY, ANY, 0);
        let size = self.size();
        let result = self.group_only("alltoallw").and_then(|()| {
            let send: Vec<RawView> = send.iter().map(|view| view.view().raw()).collect();
            let recv: Vec<RawView> = recv.iter_mut().map(|view| view.view_mut().raw()).collect();
            let listed_all = |views: Vec<RawView>| {
                if views.len() == size {
                    return Ok(Pieces::Listed(views));
                }
                Err(mismatch(format!("{} views for {size} ranks", views.len())))
            };
            let (send, recv) = (listed_all(send), listed_all(recv));
            let operation = Operation::Alltoall;
            self.call(listed(operation, size, None, send, recv, Sizes::Empty))
        });
        self.reported(result.map_err(|e| e.context("alltoallw")))
    }

    /// Combines the elements of all ranks; rank r gets the next `counts[r]` elements of
    /// the result. All pass the same counts. Collective.
    #[track_caller]
    pub fn reduce_scatter<T: Datatype>(
        &self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
        op: impl Reduction,
    ) -> Result<()> {
        let _span = self.span(Kind::Reduce, ANY, ANY, size_of_val(send));
        let size = self.size();
        let result = self.group_only("reduce_scatter").and_then(|()| {
            if !T::DENSE {
                return Err(mismatch("elements with padding".into()));
            }
            let starts: Vec<usize> = counts
                .iter()
                .scan(0, |at, count| {
                    let start = *at;
                    *at += count;
                    Some(start)
                })
                .collect();
            let fit = op.fit(&Data(&send.view().raw()))?;
            let send = blocks("reduce_scatter", of(send), counts, &starts, size);
            let sizes = match &send {
                Ok(all) => all.iter().map(RawView::bytes).collect(),
                Err(_) => Vec::new(),
            };
            let mine = recv.view_mut().raw();
            let recv = match sizes.get(self.rank()) {
                Some(own) if *own != mine.bytes() => Err(mismatch(format!(
                    "a block of {own} bytes into {}",
                    mine.bytes()
                ))),
                _ => Ok(Pieces::Listed(vec![mine])),
            };
            let send = send.map(Pieces::Listed);
            let operation = Operation::ReduceScatter;
            let sizes = Sizes::Each(sizes);
            let mut ask = listed(operation, size, None, send, recv, sizes);
            ask.buffers.unit = fit.unit;
            // The call below waits for the run's end, so the operator outlives it.
            ask.combine((Combiner::lent(&op), fit));
            self.call(ask)
        });
        self.reported(result.map_err(|e| e.context("reduce_scatter")))
    }
}
