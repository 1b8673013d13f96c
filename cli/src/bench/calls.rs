//! Every collective in every form, with buffers whose results can be checked.
//!
//! Calls with a root take each rank in turn, so that none runs ahead of those that wait
//! for it: the time of a call is the time until its data is there. Contributions are
//! equal, also of calls that allow different ones.

use std::ops::{Deref, DerefMut};

use osier::buffers::HeapBuffer;
use osier::{Communicator, Datatype, Op};
use osier_collectives::Operation;

use super::device_calls::{Blocks, OnDevice};
use super::gpu::Gpu;
use super::{Bench, Failure, Result};

/// How calls are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// The call returns when it is over
    Blocking,
    /// It is begun, and then waited for; with the share that overlaps with other work
    Nonblocking,
    /// It is set up once, and started and waited for each time
    Persistent,
}

impl Form {
    pub fn name(self) -> &'static str {
        match self {
            Form::Blocking => "blocking",
            Form::Nonblocking => "non-blocking",
            Form::Persistent => "persistent",
        }
    }
}

impl Bench {
    /// The collective that it measures, if it is one of those.
    pub fn operation(self) -> Option<Operation> {
        Some(match self {
            Bench::Barrier => Operation::Barrier,
            Bench::Bcast => Operation::Bcast,
            Bench::Gather | Bench::Gatherv => Operation::Gather,
            Bench::Scatter | Bench::Scatterv => Operation::Scatter,
            Bench::Allgather | Bench::Allgatherv => Operation::Allgather,
            Bench::Alltoall | Bench::Alltoallv | Bench::Alltoallw => Operation::Alltoall,
            Bench::Reduce => Operation::Reduce,
            Bench::Allreduce => Operation::Allreduce,
            Bench::ReduceScatterBlock | Bench::ReduceScatter => Operation::ReduceScatter,
            Bench::Scan => Operation::Scan,
            Bench::Exscan => Operation::Exscan,
            Bench::NeighborAllgather | Bench::NeighborAllgatherv => Operation::NeighborAllgather,
            Bench::NeighborAlltoall | Bench::NeighborAlltoallv | Bench::NeighborAlltoallw => {
                Operation::NeighborAlltoall
            }
            _ => return None,
        })
    }
}

/// One call after another, `n` times.
pub type Repeat<'a> = &'a mut dyn FnMut(&mut dyn FnMut() -> osier::Result<()>) -> osier::Result<()>;

/// Buffers of one collective of one size.
pub struct Calls<'a> {
    bench: Bench,
    comm: &'a Communicator,
    form: Form,
    /// Bytes of a contribution, or of the vector.
    bytes: usize,
    /// Made so far; says which rank is the root.
    calls: usize,
    /// Where buffers lie, if not here.
    on_device: Option<OnDevice>,
    bytes_sent: Paged<u8>,
    bytes_got: Paged<u8>,
    sent: Paged<f64>,
    got: Paged<f64>,
}

/// Values that begin at a page, as those of the peers' programs do: on some machines copies
/// take longer for some places within pages (docs/decisions/0123).
struct Paged<T: Datatype> {
    all: Store<T>,
    start: usize,
    len: usize,
}

enum Store<T: Datatype> {
    Plain(Vec<T>),
    Heap(HeapBuffer<T>),
}

impl<T: Datatype + Default> Default for Paged<T> {
    fn default() -> Paged<T> {
        Paged {
            all: Store::Plain(Vec::new()),
            start: 0,
            len: 0,
        }
    }
}

impl<T: Datatype + Copy + Default> Paged<T> {
    const PAGE_BYTES: usize = 4096;

    fn of(values: &[T]) -> Paged<T> {
        let room = Self::PAGE_BYTES / size_of::<T>();
        Paged::within(
            Store::Plain(vec![T::default(); values.len() + room]),
            values,
        )
    }

    /// In Osier's shared heap.
    fn on_heap(comm: &Communicator, values: &[T]) -> osier::Result<Paged<T>> {
        let room = Self::PAGE_BYTES / size_of::<T>();
        Ok(Paged::within(
            Store::Heap(comm.alloc(values.len() + room)?),
            values,
        ))
    }

    fn within(all: Store<T>, values: &[T]) -> Paged<T> {
        let room = Self::PAGE_BYTES / size_of::<T>();
        let mut paged = Paged {
            all,
            start: 0,
            len: values.len(),
        };
        paged.start = paged.as_ptr().align_offset(Self::PAGE_BYTES).min(room);
        paged.copy_from_slice(values);
        paged
    }
}

impl<T: Datatype> Deref for Paged<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.all {
            Store::Plain(all) => &all[self.start..][..self.len],
            Store::Heap(all) => &all[self.start..][..self.len],
        }
    }
}

impl<T: Datatype> DerefMut for Paged<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.all {
            Store::Plain(all) => &mut all[self.start..][..self.len],
            Store::Heap(all) => &mut all[self.start..][..self.len],
        }
    }
}

fn mark(rank: usize) -> u8 {
    (1 + rank % 200) as u8
}

/// What one rank sends to another.
fn between(from: usize, to: usize) -> u8 {
    (1 + (from * 7 + to) % 200) as u8
}

fn raw(numbers: &[f64]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_ne_bytes()).collect()
}

fn part(rank: usize, i: usize) -> f64 {
    (rank + 1 + i % 7) as f64
}

/// A call in the three forms. Behind the name of the one that waits are its arguments
/// before and behind the result; those of the others stand behind them.
macro_rules! call {
    ($self:ident, $work:ident, $repeat:ident, $send:ident, $recv:ident;
     $name:ident ($($pre:expr),*; $($post:expr),*), $begin:ident, $init:ident $(, $arg:expr)*) => {{
        let comm = $self.comm;
        let (send, recv) = (&mut $self.$send, &mut $self.$recv);
        match $self.form {
            Form::Blocking => $repeat(&mut || {
                $self.calls += 1;
                comm.$name(&send[..], $($pre,)* &mut recv[..] $(, $post)*)
            }),
            Form::Nonblocking => $repeat(&mut || {
                $self.calls += 1;
                comm.scope(|s| {
                    let begun = s.$begin(&send[..], &mut recv[..] $(, $arg)*)?;
                    $work();
                    begun.wait()
                })
            }),
            Form::Persistent => {
                let mut ready = comm.$init(send.to_vec(), recv.to_vec() $(, $arg)*)?;
                let done = $repeat(&mut || {
                    $self.calls += 1;
                    ready.start()?;
                    $work();
                    ready.wait()
                });
                *recv = Paged::of(&ready.into_buffers()?.1);
                done
            }
        }
    }};
}

/// The same of calls with a root, which goes round.
macro_rules! rooted {
    ($self:ident, $work:ident, $repeat:ident, $send:ident, $recv:ident;
     $name:ident ($($pre:expr),*; $($post:expr),*), $begin:ident, $init:ident $(, $arg:expr)*; $($op:expr)?) => {{
        let comm = $self.comm;
        let size = comm.size();
        let (send, recv) = (&mut $self.$send, &mut $self.$recv);
        match $self.form {
            Form::Blocking => $repeat(&mut || {
                let root = $self.calls % size;
                $self.calls += 1;
                comm.$name(&send[..], $($pre,)* &mut recv[..] $(, $post)*, root $(, $op)?)
            }),
            Form::Nonblocking => $repeat(&mut || {
                let root = $self.calls % size;
                $self.calls += 1;
                comm.scope(|s| {
                    let begun = s.$begin(&send[..], &mut recv[..] $(, $arg)*, root $(, $op)?)?;
                    $work();
                    begun.wait()
                })
            }),
            Form::Persistent => {
                let mut ready = (0..size)
                    .map(|root| comm.$init(send.to_vec(), recv.to_vec() $(, $arg)*, root $(, $op)?))
                    .collect::<osier::Result<Vec<_>>>()?;
                let done = $repeat(&mut || {
                    let root = $self.calls % size;
                    $self.calls += 1;
                    ready[root].start()?;
                    $work();
                    ready[root].wait()
                });
                // The result of the calls in which this rank had one.
                *recv = Paged::of(&ready.swap_remove(comm.rank()).into_buffers()?.1);
                done
            }
        }
    }};
}

/// The same of calls with a buffer for each of the others.
macro_rules! many {
    ($self:ident, $work:ident, $repeat:ident; $name:ident, $begin:ident, $init:ident) => {{
        let comm = $self.comm;
        let (send, mut recv) = (
            $self.blocks(&$self.bytes_sent),
            $self.blocks(&$self.bytes_got),
        );
        let done = match $self.form {
            Form::Blocking => $repeat(&mut || comm.$name(&send, &mut recv)),
            Form::Nonblocking => $repeat(&mut || {
                comm.scope(|s| {
                    let begun = s.$begin(&send, &mut recv)?;
                    $work();
                    begun.wait()
                })
            }),
            Form::Persistent => {
                let mut ready = comm.$init(send, std::mem::take(&mut recv))?;
                let done = $repeat(&mut || {
                    ready.start()?;
                    $work();
                    ready.wait()
                });
                recv = ready.into_buffers()?.1;
                done
            }
        };
        $self.bytes_got = Paged::of(&recv.concat());
        done
    }};
}

impl<'a> Calls<'a> {
    /// Calls of `bytes` bytes. `comm` is a ring of ranks where neighbors are asked for.
    pub fn new(bench: Bench, comm: &'a Communicator, form: Form, bytes: usize) -> Calls<'a> {
        let (rank, size) = (comm.rank(), comm.size());
        let mut calls = Calls {
            bench,
            comm,
            form,
            bytes,
            calls: 0,
            on_device: None,
            bytes_sent: Paged::default(),
            bytes_got: Paged::default(),
            sent: Paged::default(),
            got: Paged::default(),
        };
        let Some(operation) = bench.operation() else {
            return calls;
        };
        if operation.reduces() {
            let elements = bytes / 8;
            let all = match operation {
                Operation::ReduceScatter => elements * size,
                _ => elements,
            };
            let sent: Vec<f64> = (0..all).map(|i| part(rank, i)).collect();
            calls.sent = Paged::of(&sent);
            calls.got = Paged::of(&vec![0.0; elements]);
            return calls;
        }
        let own = || vec![mark(rank); bytes];
        let to_each = |from: usize| -> Vec<u8> {
            (0..size)
                .flat_map(|to| vec![between(from, to); bytes])
                .collect()
        };
        let (sent, room) = match operation {
            Operation::Barrier => (Vec::new(), 0),
            Operation::Bcast => (Vec::new(), 1),
            Operation::Gather | Operation::Allgather => (own(), size),
            // All ranks have the same, for any of them may be the root.
            Operation::Scatter => (to_each(0), 1),
            Operation::Alltoall => (to_each(rank), size),
            Operation::NeighborAllgather => (own(), 2),
            _ => (vec![mark(rank); 2 * bytes], 2),
        };
        calls.bytes_sent = Paged::of(&sent);
        calls.bytes_got = Paged::of(&vec![0; room * bytes]);
        if operation == Operation::Bcast && rank == 0 {
            calls.bytes_got.fill(mark(0));
        }
        calls
    }

    /// With buffers of the same contents in Osier's shared heap.
    ///
    /// # Errors
    /// The heap has no room, or the calls have buffers of their own.
    pub fn on_heap(mut self) -> Result<Calls<'a>> {
        let many = matches!(self.bench, Bench::Alltoallw | Bench::NeighborAlltoallw);
        if many || self.form == Form::Persistent {
            return Err(Failure::usage(format!(
                "{} has no buffers in the heap here: calls with a buffer for each, and \
                 persistent ones, have none",
                self.bench.name()
            )));
        }
        let comm = self.comm;
        self.bytes_sent = Paged::on_heap(comm, &self.bytes_sent)?;
        self.bytes_got = Paged::on_heap(comm, &self.bytes_got)?;
        self.sent = Paged::on_heap(comm, &self.sent)?;
        self.got = Paged::on_heap(comm, &self.got)?;
        Ok(self)
    }

    /// With buffers of the same contents on a device.
    ///
    /// # Errors
    /// The device has no room, or the calls are none that have buffers there here.
    pub fn on_device(mut self, gpu: &Gpu, through_host: bool) -> Result<Calls<'a>> {
        if !OnDevice::can(self.bench) || self.form != Form::Blocking {
            return Err(Failure::usage(format!(
                "{} has no buffers of devices here, but in blocking calls with one at each end",
                self.bench.name()
            )));
        }
        let doubles = self.bench.operation().is_some_and(Operation::reduces);
        let (sent, got) = match doubles {
            true => (raw(&self.sent), raw(&self.got)),
            false => (self.bytes_sent.to_vec(), self.bytes_got.to_vec()),
        };
        let blocks = match self.bench.operation() {
            Some(operation) if operation.of_neighbors() => Blocks::new(2, self.bytes),
            _ if doubles => Blocks::new(self.comm.size(), self.bytes / 8),
            _ => Blocks::new(self.comm.size(), self.bytes),
        };
        let both = [&sent[..], &got[..]];
        self.on_device = Some(OnDevice::new(gpu, through_host, doubles, blocks, both)?);
        Ok(self)
    }

    /// Has results here, wherever they lie.
    ///
    /// # Errors
    /// Of the device.
    pub fn fetch(&mut self) -> Result<()> {
        let Some(on) = &self.on_device else {
            return Ok(());
        };
        let bytes = on.got()?;
        match self.bench.operation().is_some_and(Operation::reduces) {
            true => {
                let number =
                    |eight: &[u8]| f64::from_ne_bytes(eight.try_into().unwrap_or_default());
                let numbers: Vec<f64> = bytes.chunks_exact(8).map(number).collect();
                self.got = Paged::of(&numbers);
            }
            false => self.bytes_got = Paged::of(&bytes),
        }
        Ok(())
    }

    /// Makes calls; between the begin and the wait of those that have both, does other
    /// work.
    ///
    /// # Errors
    /// Of a call.
    pub fn make(&mut self, work: &dyn Fn(), repeat: Repeat<'_>) -> osier::Result<()> {
        let (bytes, size) = (self.bytes, self.comm.size());
        let all: Vec<usize> = vec![bytes; size];
        let at: Vec<usize> = (0..size).map(|r| r * bytes).collect();
        let (all, at) = (&all[..], &at[..]);
        if let Some(on) = &mut self.on_device {
            let (bench, comm, calls) = (self.bench, self.comm, &mut self.calls);
            return repeat(&mut || {
                let root = *calls % size;
                *calls += 1;
                on.call(bench, comm, root)
            });
        }
        match self.bench {
            Bench::Barrier => self.barriers(work, repeat),
            Bench::Bcast => self.broadcasts(work, repeat),
            Bench::Gather => {
                rooted!(self, work, repeat, bytes_sent, bytes_got; gather (;), igather, gather_init;)
            }
            Bench::Gatherv => {
                rooted!(self, work, repeat, bytes_sent, bytes_got; gatherv (; all, at), igatherv, gatherv_init, all, at;)
            }
            Bench::Scatter => {
                rooted!(self, work, repeat, bytes_sent, bytes_got; scatter (;), iscatter, scatter_init;)
            }
            Bench::Scatterv => {
                rooted!(self, work, repeat, bytes_sent, bytes_got; scatterv (all, at;), iscatterv, scatterv_init, all, at;)
            }
            Bench::Allgather => {
                call!(self, work, repeat, bytes_sent, bytes_got; allgather (;), iallgather, allgather_init)
            }
            Bench::Allgatherv => {
                call!(self, work, repeat, bytes_sent, bytes_got; allgatherv (; all, at), iallgatherv, allgatherv_init, all, at)
            }
            Bench::Alltoall => {
                call!(self, work, repeat, bytes_sent, bytes_got; alltoall (;), ialltoall, alltoall_init)
            }
            Bench::Alltoallv => {
                call!(self, work, repeat, bytes_sent, bytes_got; alltoallv ((all, at); (all, at)), ialltoallv, alltoallv_init, (all, at), (all, at))
            }
            Bench::Alltoallw => self.alltoallw(work, repeat),
            Bench::NeighborAlltoallw => self.neighbor_alltoallw(work, repeat),
            Bench::Reduce => {
                rooted!(self, work, repeat, sent, got; reduce (;), ireduce, reduce_init; Op::Sum)
            }
            Bench::Allreduce => {
                call!(self, work, repeat, sent, got; allreduce (; Op::Sum), iallreduce, allreduce_init, Op::Sum)
            }
            Bench::ReduceScatterBlock => {
                call!(self, work, repeat, sent, got; reduce_scatter_block (; Op::Sum), ireduce_scatter_block, reduce_scatter_block_init, Op::Sum)
            }
            Bench::ReduceScatter => {
                let counts = vec![bytes / 8; size];
                let counts = &counts[..];
                call!(self, work, repeat, sent, got; reduce_scatter (; counts, Op::Sum), ireduce_scatter, reduce_scatter_init, counts, Op::Sum)
            }
            Bench::Scan => {
                call!(self, work, repeat, sent, got; scan (; Op::Sum), iscan, scan_init, Op::Sum)
            }
            Bench::Exscan => {
                call!(self, work, repeat, sent, got; exscan (; Op::Sum), iexscan, exscan_init, Op::Sum)
            }
            Bench::NeighborAllgather => {
                call!(self, work, repeat, bytes_sent, bytes_got; neighbor_allgather (;), ineighbor_allgather, neighbor_allgather_init)
            }
            Bench::NeighborAllgatherv => {
                let (two, places) = ([bytes; 2], [0, bytes]);
                call!(self, work, repeat, bytes_sent, bytes_got; neighbor_allgatherv (; &two, &places), ineighbor_allgatherv, neighbor_allgatherv_init, &two, &places)
            }
            Bench::NeighborAlltoall => {
                call!(self, work, repeat, bytes_sent, bytes_got; neighbor_alltoall (;), ineighbor_alltoall, neighbor_alltoall_init)
            }
            Bench::NeighborAlltoallv => {
                let (two, places) = ([bytes; 2], [0, bytes]);
                call!(self, work, repeat, bytes_sent, bytes_got; neighbor_alltoallv ((&two, &places); (&two, &places)), ineighbor_alltoallv, neighbor_alltoallv_init, (&two, &places), (&two, &places))
            }
            _ => Ok(()),
        }
    }

    fn barriers(&mut self, work: &dyn Fn(), repeat: Repeat<'_>) -> osier::Result<()> {
        let comm = self.comm;
        match self.form {
            Form::Blocking => repeat(&mut || comm.barrier()),
            Form::Nonblocking => repeat(&mut || {
                let begun = comm.ibarrier()?;
                work();
                begun.wait()
            }),
            Form::Persistent => {
                let mut ready = comm.barrier_init()?;
                repeat(&mut || {
                    ready.start()?;
                    work();
                    ready.wait()
                })
            }
        }
    }

    fn broadcasts(&mut self, work: &dyn Fn(), repeat: Repeat<'_>) -> osier::Result<()> {
        let (comm, size) = (self.comm, self.comm.size());
        let data = &mut self.bytes_got;
        let calls = &mut self.calls;
        let mut next = || {
            *calls += 1;
            (*calls - 1) % size
        };
        match self.form {
            Form::Blocking => repeat(&mut || comm.bcast(&mut data[..], next())),
            Form::Nonblocking => repeat(&mut || {
                let root = next();
                comm.scope(|s| {
                    let begun = s.ibcast(&mut data[..], root)?;
                    work();
                    begun.wait()
                })
            }),
            Form::Persistent => {
                // Each root has a buffer of its own, and knows what belongs there.
                let content = vec![mark(0); data.len()];
                let mut ready = (0..size)
                    .map(|root| match root == comm.rank() {
                        true => comm.bcast_init(content.clone(), root),
                        false => comm.bcast_init(vec![0; content.len()], root),
                    })
                    .collect::<osier::Result<Vec<_>>>()?;
                let done = repeat(&mut || {
                    let root = next();
                    ready[root].start()?;
                    work();
                    ready[root].wait()
                });
                // The one that this rank has only received.
                let other = (comm.rank() + 1) % size;
                *data = Paged::of(&ready.swap_remove(other).into_buffers()?);
                done
            }
        }
    }

    fn alltoallw(&mut self, work: &dyn Fn(), repeat: Repeat<'_>) -> osier::Result<()> {
        many!(self, work, repeat; alltoallw, ialltoallw, alltoallw_init)
    }

    fn neighbor_alltoallw(&mut self, work: &dyn Fn(), repeat: Repeat<'_>) -> osier::Result<()> {
        many!(self, work, repeat; neighbor_alltoallw, ineighbor_alltoallw, neighbor_alltoallw_init)
    }

    /// Bytes for each of several others, in buffers of their own.
    fn blocks(&self, all: &[u8]) -> Vec<Vec<u8>> {
        all.chunks(self.bytes.max(1)).map(<[u8]>::to_vec).collect()
    }

    /// Where the result is wrong, if it is. To be asked after as many calls as there are
    /// ranks.
    pub fn wrong(&self) -> Option<usize> {
        let (rank, size, bytes) = (self.comm.rank(), self.comm.size(), self.bytes.max(1));
        let operation = self.bench.operation()?;
        if operation.reduces() {
            let ranks = match operation {
                Operation::Scan => 0..rank + 1,
                Operation::Exscan if rank == 0 => return None,
                Operation::Exscan => 0..rank,
                _ => 0..size,
            };
            let first = match operation {
                Operation::ReduceScatter => rank * self.got.len(),
                _ => 0,
            };
            let sum = |i: usize| ranks.clone().map(|r| part(r, first + i)).sum::<f64>();
            return (0..self.got.len()).find(|i| self.got[*i] != sum(*i));
        }
        let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
        let around = |at: usize| [left, right][at / bytes];
        let expected = |at: usize| match operation {
            Operation::Bcast => mark(0),
            Operation::Gather | Operation::Allgather => mark(at / bytes),
            Operation::Scatter => between(0, rank),
            Operation::Alltoall => between(at / bytes, rank),
            _ => mark(around(at)),
        };
        (0..self.bytes_got.len()).find(|at| self.bytes_got[*at] != expected(*at))
    }

    /// Calls until each rank was the root, so that there are results everywhere.
    pub fn once_around(&mut self) -> osier::Result<()> {
        let size = self.comm.size();
        self.make(&|| (), &mut |call| (0..size).try_for_each(|_| call()))
    }
}
