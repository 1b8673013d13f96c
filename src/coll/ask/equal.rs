//! From buffers to asks: calls with equal contributions, within a group or between two.
//!
//! On an intercommunicator a plan's ranks are those of both sides, the first side's
//! first; runs are those of the hidden communicator of both (`Inter::both`).

use super::{Ask, in_place_elsewhere, mismatch};
use crate::comm::Communicator;
use crate::comm::Inter;
use crate::names::{PROC_NULL, ROOT, Rank};
use osier_collectives::{Association, Call, Operation};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::exec::memory::{Buffers, Pieces, Sizes};
use osier_engine::exec::operator::Data;
use osier_engine::exec::run::Combiner;
use osier_engine::view::RawView;

impl Communicator {
    /// The communicator whose lane has the runs.
    #[inline]
    pub(crate) fn runs_on(&self) -> &Communicator {
        match &self.0.inter {
            None => self,
            Some(inter) => &inter.both,
        }
    }

    /// Ranks that this one exchanges data with.
    pub(crate) fn others(&self) -> usize {
        self.peer_count()
    }

    /// A call of this communicator.
    pub(crate) fn call_of(&self, operation: Operation) -> Call {
        let size = self.runs_on().size() as u32;
        match &self.0.inter {
            None => Call::new(operation, size),
            Some(inter) => Call::new(operation, size).between(inter.first_side(self.size())),
        }
    }

    /// The root as a rank of the plan; `None`: this rank's side has it, and this rank
    /// does nothing.
    pub(crate) fn plan_root(&self, root: Rank) -> Result<Option<u32>> {
        let no_root = || {
            Error::new(
                ErrorKind::Rank,
                "PROC_NULL as the root of a collective (hint: pass the rank of the root)",
            )
        };
        let Some(inter) = &self.0.inter else {
            return root.check(self.size())?.map(Some).ok_or_else(no_root);
        };
        if root == PROC_NULL {
            return Ok(None);
        }
        if root == ROOT {
            return Ok(Some(inter.both.rank() as u32));
        }
        let root = root.check(inter.remote.size())?.ok_or_else(no_root)?;
        let before = if inter.first { self.size() as u32 } else { 0 };
        Ok(Some(before + root))
    }

    /// The ask of a rank without a part in a call of its communicator.
    pub(crate) fn idle_ask(&self, name: &'static str, operation: Operation) -> Ask {
        let mut ask = Ask::new(name, self.call_of(operation), 0, Buffers::default());
        ask.idle = true;
        ask
    }

    /// Refuses what is not defined between groups.
    pub(crate) fn within(&self) -> Result<()> {
        if !self.is_inter() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Communicator,
            "not defined on an intercommunicator (hint: merge gives one communicator of both groups)",
        ))
    }

    /// In place is of one group.
    fn may_be_in_place(&self, send: Option<&RawView>) -> Option<Error> {
        (send.is_none() && self.is_inter())
            .then(|| mismatch("IN_PLACE on an intercommunicator (hint: pass a buffer)"))
    }

    pub(crate) fn barrier_ask(&self) -> Ask {
        let buffers = Buffers {
            unit: 1,
            ..Buffers::default()
        };
        Ask::new("barrier", self.call_of(Operation::Barrier), 0, buffers)
    }

    pub(crate) fn bcast_ask(&self, data: Option<RawView>, root: Rank) -> Result<Ask> {
        let Some(root) = self.plan_root(root)? else {
            return Ok(self.idle_ask("bcast", Operation::Bcast));
        };
        let data = data.unwrap_or_default();
        let call = self.call_of(Operation::Bcast).root(root);
        let bytes = data.bytes();
        let buffers = Buffers {
            recv: Pieces::Cut(data),
            send: Pieces::None,
            sizes: Sizes::Cut(bytes),
            unit: 1,
        };
        Ok(Ask::new("bcast", call, bytes, buffers))
    }

    pub(crate) fn gather_ask(
        &self,
        send: Option<RawView>,
        recv: Option<RawView>,
        root: Rank,
    ) -> Result<Ask> {
        let Some(root) = self.plan_root(root)? else {
            return Ok(self.idle_ask("gather", Operation::Gather));
        };
        let recv = recv.unwrap_or_default();
        let others = self.others();
        let receives = self.runs_on().rank() as u32 == root;
        // Between groups the root gives nothing.
        let send = match receives && self.is_inter() {
            true => Some(RawView::empty()),
            false => send,
        };
        let mut error = self.may_be_in_place(send.as_ref());
        let mut call = self.call_of(Operation::Gather).root(root);
        if send.is_none() && !self.is_inter() {
            call = call.in_place();
            if !receives {
                error = Some(in_place_elsewhere());
            }
        }
        let each = match &send {
            Some(send) if !(receives && self.is_inter()) => send.bytes(),
            _ => recv.bytes() / others,
        };
        if receives {
            error = error.or(shares(&recv, each, others));
        }
        let buffers = Buffers {
            send: equal(send.filter(|_| !(receives && self.is_inter())), each),
            recv: equal(Some(recv).filter(|_| receives), each),
            sizes: Sizes::Equal(each),
            unit: 1,
        };
        Ok(Ask::new("gather", call, each, buffers).failed(error))
    }

    pub(crate) fn allgather_ask(
        &self,
        send: Option<RawView>,
        recv: Option<RawView>,
    ) -> Result<Ask> {
        let recv = recv.unwrap_or_default();
        let others = self.others();
        let mut error = self.may_be_in_place(send.as_ref());
        let mut call = self.call_of(Operation::Allgather);
        if send.is_none() && !self.is_inter() {
            call = call.in_place();
        }
        // Between groups each side may give another amount.
        let theirs = match &send {
            Some(send) if !self.is_inter() => send.bytes(),
            _ => recv.bytes() / others,
        };
        let mine = send.as_ref().map_or(theirs, RawView::bytes);
        error = error.or(shares(&recv, theirs, others));
        let buffers = Buffers {
            send: equal(send, mine),
            recv: equal(Some(recv), theirs),
            sizes: Sizes::Equal(mine),
            unit: 1,
        };
        Ok(Ask::new("allgather", call, mine.max(theirs), buffers).failed(error))
    }

    pub(crate) fn scatter_ask(
        &self,
        send: Option<RawView>,
        recv: Option<RawView>,
        root: Rank,
    ) -> Result<Ask> {
        let Some(root) = self.plan_root(root)? else {
            return Ok(self.idle_ask("scatter", Operation::Scatter));
        };
        let send = send.unwrap_or_default();
        let others = self.others();
        let sends = self.runs_on().rank() as u32 == root;
        let mut call = self.call_of(Operation::Scatter).root(root);
        let recv = recv.filter(|_| !(sends && self.is_inter()));
        let mut error = None;
        if recv.is_none() && !self.is_inter() {
            call = call.in_place();
        }
        if recv.is_none() && !sends {
            error = Some(in_place_elsewhere());
        }
        let each = recv.as_ref().map_or(send.bytes() / others, RawView::bytes);
        if sends && send.bytes() != each * others {
            error = Some(mismatch(format!(
                "{} bytes for {others} shares of {each} (hint: make it {})",
                send.bytes(),
                each * others
            )));
        }
        let buffers = Buffers {
            send: equal(Some(send).filter(|_| sends), each),
            recv: equal(recv, each),
            sizes: Sizes::Equal(each),
            unit: 1,
        };
        Ok(Ask::new("scatter", call, each, buffers).failed(error))
    }

    pub(crate) fn alltoall_ask(&self, send: Option<RawView>, recv: Option<RawView>) -> Result<Ask> {
        let recv = recv.unwrap_or_default();
        let others = self.others();
        let mut error = self.may_be_in_place(send.as_ref());
        let mut call = self.call_of(Operation::Alltoall);
        let bytes = recv.bytes();
        let theirs = bytes / others;
        let mut mine = theirs;
        match &send {
            None if self.is_inter() => {}
            None => call = call.in_place(),
            Some(send) if self.is_inter() => {
                mine = send.bytes() / others;
                error = error.or(shares(send, mine, others));
            }
            Some(send) if send.bytes() != bytes => {
                error = Some(mismatch(format!(
                    "{} bytes to send, {bytes} to receive (hint: both have the same count)",
                    send.bytes()
                )));
            }
            Some(_) => {}
        }
        if bytes != theirs * others {
            error = Some(mismatch(format!(
                "{bytes} bytes for {others} ranks (hint: equal shares for each)"
            )));
        }
        let buffers = Buffers {
            send: equal(send, mine),
            recv: equal(Some(recv), theirs),
            sizes: Sizes::Equal(theirs),
            unit: 1,
        };
        let mut ask = Ask::new("alltoall", call, mine.max(theirs), buffers).failed(error);
        if self.reads() {
            ask.may_read();
        }
        Ok(ask)
    }

    pub(crate) fn reduce_ask(
        &self,
        send: Option<RawView>,
        recv: Option<RawView>,
        root: Rank,
        combiner: Combiner,
    ) -> Result<Ask> {
        let Some(root) = self.plan_root(root)? else {
            return Ok(self.idle_ask("reduce", Operation::Reduce));
        };
        let call = self.call_of(Operation::Reduce).root(root);
        let receives = self.runs_on().rank() as u32 == root;
        let recv = recv.filter(|_| receives);
        if receives && self.is_inter() {
            return Ok(vectors("reduce", call, None, recv, combiner));
        }
        let error = match &send {
            None if self.is_inter() => self.may_be_in_place(None),
            None if !receives => Some(in_place_elsewhere()),
            _ => None,
        };
        let call = if send.is_none() {
            call.in_place()
        } else {
            call
        };
        Ok(vectors("reduce", call, send, recv, combiner).failed(error))
    }

    pub(crate) fn allreduce_ask(
        &self,
        send: Option<RawView>,
        recv: Option<RawView>,
        combiner: Combiner,
    ) -> Result<Ask> {
        let error = self.may_be_in_place(send.as_ref());
        let mut call = self.call_of(Operation::Allreduce);
        if send.is_none() && !self.is_inter() {
            call = call.in_place();
        }
        Ok(vectors("allreduce", call, send, recv, combiner).failed(error))
    }

    pub(crate) fn scan_ask(
        &self,
        send: Option<RawView>,
        recv: Option<RawView>,
        combiner: Combiner,
    ) -> Result<Ask> {
        self.prefix_ask(Operation::Scan, send, recv, combiner)
    }

    pub(crate) fn exscan_ask(
        &self,
        send: Option<RawView>,
        recv: Option<RawView>,
        combiner: Combiner,
    ) -> Result<Ask> {
        self.prefix_ask(Operation::Exscan, send, recv, combiner)
    }

    fn prefix_ask(
        &self,
        operation: Operation,
        send: Option<RawView>,
        recv: Option<RawView>,
        combiner: Combiner,
    ) -> Result<Ask> {
        self.within()?;
        let call = Call::new(operation, self.size() as u32);
        let call = if send.is_none() {
            call.in_place()
        } else {
            call
        };
        Ok(vectors(operation.name(), call, send, recv, combiner))
    }

    pub(crate) fn reduce_scatter_block_ask(
        &self,
        send: Option<RawView>,
        recv: Option<RawView>,
        combiner: Combiner,
    ) -> Result<Ask> {
        let name = "reduce_scatter_block";
        let recv = recv.unwrap_or_default();
        let size = self.size();
        let in_place = send.is_none();
        let each = match in_place {
            true => recv.bytes() / size,
            false => recv.bytes(),
        };
        let mut error = self.may_be_in_place(send.as_ref());
        error = error.or(differ(send.as_ref(), Some(&recv)));
        let send = send.unwrap_or_else(|| recv.clone());
        if send.bytes() != each * size {
            error = error.or(Some(mismatch(format!(
                "{} bytes for {size} shares of {each} (hint: the input has one share per rank)",
                send.bytes()
            ))));
        }
        let recv = (!in_place).then_some(recv);
        if self.is_inter() {
            let shares = vec![each; size];
            let ask = self.shares_ask(name, send, recv, &shares, combiner);
            return Ok(ask.failed(error));
        }
        let ask = self.equal_shares_ask(name, send, recv, each, combiner);
        Ok(ask.failed(error))
    }

    /// Shares of a combination of as many bytes for each rank; without a result in place.
    pub(crate) fn equal_shares_ask(
        &self,
        name: &'static str,
        send: RawView,
        recv: Option<RawView>,
        each: usize,
        combiner: Combiner,
    ) -> Ask {
        let call = self.call_of(Operation::ReduceScatter);
        let call = match recv {
            None => call.in_place(),
            Some(_) => call,
        };
        let buffers = Buffers {
            send: Pieces::Equal(send, each),
            recv: Pieces::Equal(recv.unwrap_or_else(|| only_long(each)), each),
            sizes: Sizes::Equal(each),
            unit: 1,
        };
        combined(Ask::new(name, call, each, buffers), combiner)
    }

    /// Shares of a combination, of these bytes on this side's ranks.
    pub(crate) fn shares_ask(
        &self,
        name: &'static str,
        send: RawView,
        recv: Option<RawView>,
        shares: &[usize],
        combiner: Combiner,
    ) -> Ask {
        let mut call = self.call_of(Operation::ReduceScatter).varying();
        let own = shares.get(self.rank()).copied().unwrap_or(0);
        if recv.is_none() && !self.is_inter() {
            call = call.in_place();
        }
        // Both sides name as many pieces; those behind a side's own are empty.
        let pieces = call.vector_pieces() as usize;
        let each: Vec<usize> = (0..pieces)
            .map(|piece| shares.get(piece).copied().unwrap_or(0))
            .collect();
        let ranges = each.iter().scan(0, |at, bytes| {
            let start = *at;
            *at += bytes;
            Some(start..*at)
        });
        // In a slot each has room for the longest.
        let bytes = match self.is_inter() {
            true => send.bytes() / pieces,
            false => each.iter().copied().max().unwrap_or(0),
        };
        let buffers = Buffers {
            send: Pieces::Ranges(send, ranges.collect()),
            recv: Pieces::Equal(recv.unwrap_or_else(|| only_long(own)), own),
            sizes: Sizes::Each(each.into()),
            unit: 1,
        };
        combined(Ask::new(name, call, bytes, buffers), combiner)
    }
}

/// In place of a result that will lie at the front of the input.
fn only_long(bytes: usize) -> RawView {
    RawView::untyped(std::ptr::null_mut(), bytes)
}

/// With an operator that combines what is sent.
fn combined(mut ask: Ask, combiner: Combiner) -> Ask {
    let fit = match ask.buffers.send.whole() {
        Some(data) => combiner.get().fit(&Data(data)),
        None => return ask,
    };
    match fit {
        Ok(fit) => {
            ask.combine((combiner, fit));
            ask
        }
        Err(e) => ask.failed(Some(e)),
    }
}

impl Inter {
    /// Ranks of the first side, where this side has `own`.
    pub(crate) fn first_side(&self, own: usize) -> u32 {
        match self.first {
            true => own as u32,
            false => self.remote.size() as u32,
        }
    }
}

fn equal(view: Option<RawView>, each: usize) -> Pieces {
    view.map_or(Pieces::None, |view| Pieces::Equal(view, each))
}

/// That a buffer has room for equal contributions.
fn shares(recv: &RawView, each: usize, others: usize) -> Option<Error> {
    (recv.bytes() != each * others).then(|| {
        mismatch(format!(
            "{each} bytes from each of {others} ranks into {} bytes (hint: make it {})",
            recv.bytes(),
            each * others
        ))
    })
}

/// That input and result of a reduction have the same types.
fn differ(send: Option<&RawView>, recv: Option<&RawView>) -> Option<Error> {
    let (send, recv) = (send?, recv?);
    if send.alike(recv) {
        return None; // mostly
    }
    let (from, to) = (send.instance()?.uniform()?, recv.instance()?.uniform()?);
    (from != to).then(|| {
        mismatch(format!(
            "the element types differ: {from} given, {to} wanted (hint: input and result of a reduction are of one type)"
        ))
    })
}

/// A combination of vectors, at one rank or all.
fn vectors(
    name: &'static str,
    call: Call,
    send: Option<RawView>,
    recv: Option<RawView>,
    combiner: Combiner,
) -> Ask {
    let mut call = call;
    let data = send.as_ref().or(recv.as_ref());
    let bytes = data.map_or(0, RawView::bytes);
    let (fit, mut error) = match data.map(|data| combiner.get().fit(&Data(data))) {
        Some(Ok(fit)) => (Some(fit), None),
        Some(Err(e)) => (None, Some(e)),
        None => (None, None),
    };
    call.required = fit.map_or(Association::Balanced, |fit| fit.association);
    error = error.or(differ(send.as_ref(), recv.as_ref()));
    if let (Some(send), Some(recv)) = (&send, &recv)
        && send.bytes() != recv.bytes()
    {
        error = error.or(Some(mismatch(format!(
            "{} bytes into {} (hint: both have the same count)",
            send.bytes(),
            recv.bytes()
        ))));
    }
    let buffers = Buffers {
        send: send.map_or(Pieces::None, Pieces::Cut),
        recv: recv.map_or(Pieces::None, Pieces::Cut),
        sizes: Sizes::Cut(bytes),
        unit: fit.map_or(1, |fit| fit.unit),
    };
    let mut ask = Ask::new(name, call, bytes, buffers).failed(error);
    ask.combiner = fit.map(|fit| (combiner, fit));
    ask
}
