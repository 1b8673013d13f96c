//! What a task sees while it is called: its messages, its output ports, its place.
//!
//! # Invariants
//! 1. The messages of a firing are released after its call, and nobody writes to their slots
//!    before.
//! 2. The element type of a port is compared with `T` before memory is read or written as
//!    elements of `T`; both ends of an edge have one type.
//! 3. A slice of a message borrows the context; what takes the memory borrows it mutably.
//! 4. A view borrows its memory, and lies inside it; its packed form has as many bytes as it says.

use crate::child::{Argument, Child, LocalGraph};
use crate::describe::{Event, In, Out};
use crate::event::Signal;
use crate::instance::{Fired, Instance};
use crate::shape::TaskShape;
use crate::task::TaskError;
use osier_datatype::{Datatype, Signature};
use osier_engine::view::{RawView, View, ViewMut};
use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// The call of a task.
pub struct Context<'a> {
    instance: &'a Instance,
    own: &'a TaskShape,
    task: u32,
    firing: u64,
    lines: Cell<bool>,
    fired: RefCell<&'a mut dyn Fired>,
}

/// A message, and the task that sent it.
#[derive(Clone, Copy)]
pub struct Received<'a, T> {
    instance: &'a Instance,
    input: u32,
    /// Its elements.
    pub elements: &'a [T],
}

impl<T> Received<'_, T> {
    /// Coordinates of the producer.
    pub fn from(&self) -> Vec<usize> {
        let (family, number, _) = self.producer();
        self.instance.shape.coordinates(family, number)
    }

    /// Number of the producer in its family, in row-major order.
    pub fn from_number(&self) -> u64 {
        self.producer().1
    }

    /// Copies the elements to where a datatype says.
    ///
    /// # Errors
    /// The view is of other elements, or of another number of them.
    pub fn copy_to(&self, mut view: ViewMut<'_>) -> Result<(), TaskError>
    where
        T: Datatype,
    {
        unpack(self.elements, &mut view)
    }

    /// Label of the edge.
    pub fn label(&self) -> u32 {
        self.instance.shape.inputs[self.input as usize].label
    }

    fn producer(&self) -> (u32, u64, u32) {
        self.instance.shape.inputs[self.input as usize].producer
    }
}

/// The messages of a firing on the edges into a port.
struct Messages<'c, 'a, T> {
    cx: &'c Context<'a>,
    edges: Range<u32>,
    /// The edge that it is at, and the messages that are left of it.
    input: u32,
    next: u32,
    left: u32,
    elements: PhantomData<T>,
}

impl<'c, T: Datatype> Iterator for Messages<'c, '_, T> {
    type Item = Received<'c, T>;

    #[inline]
    fn next(&mut self) -> Option<Received<'c, T>> {
        let instance = self.cx.instance;
        while self.left == 0 {
            self.input = self.edges.next()?;
            (self.next, self.left) = instance.offered(self.input);
        }
        let number = self.next;
        (self.next, self.left) = (number.wrapping_add(1), self.left - 1);
        Some(Received {
            instance,
            input: self.input,
            elements: self.cx.read(self.input, number),
        })
    }
}

impl<'a> Context<'a> {
    #[inline]
    pub(crate) fn new(
        instance: &'a Instance,
        task: u32,
        firing: u64,
        fired: &'a mut dyn Fired,
    ) -> Self {
        Self {
            instance,
            own: &instance.shape.tasks[task as usize],
            task,
            firing,
            lines: Cell::new(false),
            fired: RefCell::new(fired),
        }
    }

    /// Whether a message that was put waits for room.
    #[inline]
    pub(crate) fn has_lines(&self) -> bool {
        self.lines.get()
    }

    /// Coordinates of the task.
    pub fn at(&self) -> Vec<usize> {
        self.instance.shape.at(self.task)
    }

    /// Number of the task in its family, in row-major order.
    pub fn number(&self) -> u64 {
        self.own.number
    }

    /// Number of the run, counted from 1; the same on all ranks.
    pub fn run(&self) -> u32 {
        self.instance.run
    }

    /// What the run was begun with ([`Context::begin`]), if it is of this type.
    pub fn argument<A: Any + Send + Sync>(&self) -> Option<&A> {
        self.instance.argument.as_ref()?.downcast_ref()
    }

    /// Begins a run of a child graph on this rank, by the workers of this run, with something
    /// that its tasks may ask for. It raises the event when its last task has ended; several may
    /// be under way at once. The run of this task does not end before.
    ///
    /// # Panics
    /// The event is of another family.
    pub fn begin(&self, graph: &LocalGraph, argument: Argument, event: Event) -> Child {
        let instance = self.instance;
        let signal = instance.events.signal_of_child(self.output(event.output));
        instance.children.begin(instance, graph, argument, signal)
    }

    /// What fires the task once more when it waits for an event: to be raised by any thread, as
    /// often as something has happened, also as a waker of futures.
    ///
    /// # Panics
    /// The event is of another family.
    pub fn signal(&self, event: Event) -> Signal {
        self.instance.events.signal(self.output(event.output))
    }

    /// Calls of `execute` before this one.
    pub fn firing(&self) -> u64 {
        self.firing
    }

    /// The task's priority.
    pub fn priority(&self) -> i32 {
        self.instance.tasks[self.task as usize]
            .priority
            .load(Ordering::Relaxed)
    }

    /// Sets the task's priority, from its next firing on.
    pub fn set_priority(&self, priority: i32) {
        let state = &self.instance.tasks[self.task as usize];
        state.priority.store(priority, Ordering::Relaxed);
    }

    /// The edges into a port.
    ///
    /// # Panics
    /// The port is of another family or graph.
    #[inline]
    fn edges<T: 'static>(&self, port: In<T>) -> Range<u32> {
        let (shape, own) = (&*self.instance.shape, self.own);
        let fits = port.0 == own.family && port.1 < own.types.end - own.types.start;
        if !fits || shape.input_types[(own.types.start + port.1) as usize] != TypeId::of::<T>() {
            foreign_port(std::any::type_name::<T>());
        }
        shape.edges_into(own, port.1)
    }

    #[inline]
    fn read<T: Datatype>(&self, input: u32, number: u32) -> &[T] {
        // SAFETY: invariant 1: callers name a message of this firing.
        let (at, len) = unsafe { self.instance.message(input, number) };
        if len == 0 {
            return &[];
        }
        // SAFETY: invariants 1, 2 and 3: elements of `T`, there as long as `self` is borrowed.
        unsafe { std::slice::from_raw_parts(at.cast(), len) }
    }

    /// The number of edges into a port.
    pub fn edges_into<T: Datatype>(&self, port: In<T>) -> usize {
        self.edges(port).len()
    }

    /// The message of this firing on the one edge into a port; `None` if there is none, or
    /// no edge.
    ///
    /// # Panics
    /// The port has several edges ([`Context::each`]), or is of another family.
    #[inline]
    pub fn get<T: Datatype>(&self, port: In<T>) -> Option<&[T]> {
        let edges = self.edges(port);
        if edges.len() > 1 {
            several_edges(edges.len());
        }
        let (first, offered) = self.instance.offered(edges.clone().next()?);
        (offered > 0).then(|| self.read(edges.start, first))
    }

    /// The messages of this firing on the edges into a port, in the order of their
    /// producers' families and numbers, whatever the placement.
    ///
    /// # Panics
    /// The port is of another family.
    #[inline]
    pub fn each<T: Datatype>(&self, port: In<T>) -> impl Iterator<Item = Received<'_, T>> {
        Messages {
            cx: self,
            edges: self.edges(port),
            input: 0,
            next: 0,
            left: 0,
            elements: PhantomData,
        }
    }

    /// The message of this firing on the one edge into a port, as a vector: without a copy if
    /// it is longer than a slot and this task its only consumer on this rank. `get` finds an
    /// empty message afterwards.
    ///
    /// # Panics
    /// As [`Context::get`].
    pub fn take<T: Datatype>(&mut self, port: In<T>) -> Option<Vec<T>> {
        let edges = self.edges(port);
        if edges.len() > 1 {
            several_edges(edges.len());
        }
        let input = edges.clone().next()?;
        let (first, offered) = self.instance.offered(input);
        if offered == 0 {
            return None;
        }
        // SAFETY: invariants 1 and 3: a message of this firing, of which no slice is left.
        match unsafe { self.instance.take(input, first) } {
            // SAFETY: invariant 2: the memory of a vector of `T`.
            Some((at, len, room)) => Some(unsafe { Vec::from_raw_parts(at.cast(), len, room) }),
            None => Some(self.read(input, first).to_vec()),
        }
    }

    /// The output port of the task, and what it consists of.
    #[inline]
    fn output<T: 'static>(&self, port: Out<T>) -> u32 {
        let output = self.own.outputs.start + port.1;
        let fits = port.0 == self.own.family && output < self.own.outputs.end;
        if !fits || self.instance.outputs[output as usize].id != TypeId::of::<T>() {
            foreign_port(std::any::type_name::<T>());
        }
        output
    }

    /// Sends a message to all consumers of an output port: a copy of these elements. It
    /// never waits; without room the message waits at the port, and the task does not fire
    /// again before it has left.
    ///
    /// # Panics
    /// The port is of another family.
    #[inline]
    pub fn put<T: Datatype>(&self, port: Out<T>, message: &[T]) {
        let output = self.output(port);
        let mut fired = self.fired.borrow_mut();
        let from = message.as_ptr().cast();
        // SAFETY: invariant 2: elements of the port's type.
        unsafe {
            let fired = &mut **fired;
            self.instance
                .put(output, from, message.len(), &self.lines, fired);
        }
    }

    /// As [`Context::put`], of the elements that a datatype picks out of a buffer: a column, a
    /// face, a triangle.
    ///
    /// # Errors
    /// The view is of other elements than those of the port, or of elements with gaps.
    ///
    /// # Panics
    /// As [`Context::put`].
    pub fn put_view<T: Datatype>(&self, port: Out<T>, view: &View<'_>) -> Result<(), TaskError> {
        let output = self.output(port);
        let raw = view.as_raw();
        let len = elements_of::<T>(raw, "a put")?;
        let pack = |to: *mut u8| {
            // SAFETY: invariant 4: there is room for all bytes of the view.
            unsafe { raw.pack(0..raw.bytes(), to) }
        };
        let mut fired = self.fired.borrow_mut();
        self.instance
            .put_packed(output, len, &pack, &self.lines, &mut **fired);
        Ok(())
    }

    /// As [`Context::get`], to where a datatype says: false if there is no message.
    ///
    /// # Errors
    /// The view is of other elements than those of the port, or of another number of them than
    /// the message.
    ///
    /// # Panics
    /// As [`Context::get`].
    pub fn get_into<T: Datatype>(
        &self,
        port: In<T>,
        mut view: ViewMut<'_>,
    ) -> Result<bool, TaskError> {
        match self.get(port) {
            Some(elements) => unpack(elements, &mut view).map(|()| true),
            None => Ok(false),
        }
    }

    /// As [`Context::put`], of a vector whose memory goes with the message: without a copy if
    /// all consumers are on this rank and there is room; a long one leaves for other ranks from
    /// where it lies.
    ///
    /// # Panics
    /// As [`Context::put`].
    pub fn give<T: Datatype>(&self, port: Out<T>, message: Vec<T>) {
        let output = self.output(port);
        let mut message = std::mem::ManuallyDrop::new(message);
        let (from, len, room) = (message.as_mut_ptr(), message.len(), message.capacity());
        let mut fired = self.fired.borrow_mut();
        // SAFETY: invariant 2: a vector of the port's type, forgotten if it went.
        let went = unsafe {
            let vector = (from.cast(), len, room);
            self.instance
                .give(output, vector, &self.lines, &mut **fired)
        };
        drop(fired);
        if !went {
            let message = std::mem::ManuallyDrop::into_inner(message);
            self.put(port, &message);
        }
    }
}

/// How many elements of `T` a view has.
fn elements_of<T: Datatype>(view: &RawView, what: &str) -> Result<usize, TaskError> {
    let element = T::layout();
    let len = view.bytes().checked_div(element.size()).unwrap_or(0);
    let whole = T::DENSE && len * element.size() == view.bytes() && view.as_device().is_none();
    let same = |signature: Signature| signature == element.signature().repeat(len as u64);
    match whole && view.signature().is_none_or(same) {
        true => Ok(len),
        false => Err(format!(
            "{what} of a view of {} bytes that are no elements of {} without gaps",
            view.bytes(),
            std::any::type_name::<T>()
        )
        .into()),
    }
}

fn unpack<T: Datatype>(elements: &[T], view: &mut ViewMut<'_>) -> Result<(), TaskError> {
    let raw = view.as_raw();
    let len = elements_of::<T>(raw, "a get")?;
    if len != elements.len() {
        let text = format!(
            "a message of {} elements for a view of {len}",
            elements.len()
        );
        return Err(text.into());
    }
    // SAFETY: invariant 4: the view is borrowed mutably, and takes as many bytes.
    unsafe { raw.unpack(0..raw.bytes(), elements.as_ptr().cast()) };
    Ok(())
}

#[cold]
fn foreign_port(of: &str) -> ! {
    panic!("a port of {of} that this task's family has not (hint: ports are of one family)")
}

#[cold]
fn several_edges(edges: usize) -> ! {
    panic!("a port with {edges} edges has no single message (hint: Context::each)")
}
