//! Capture of streams, graphs, their launches.

use std::ffi::{c_char, c_uint, c_void};
use std::sync::Arc;

use crate::abi::{self, Handle};
use crate::driver::{Object, State, driver, lock, stale};
use crate::fault::{Fault, In, Out, Result, entries, invalid};
use crate::graph::{CAPTURE_MODE, CAPTURE_RELAXED, Capture, Graph, UserObject};
use crate::work::{self, HostFunction};

fn begin(stream: Handle, mode: c_uint) -> Result {
    let mut state = lock()?;
    let legacy = stream <= abi::STREAM_LEGACY;
    let stream = state.stream_of(stream)?;
    if legacy {
        return Err(Fault::named(
            abi::ERROR_STREAM_CAPTURE_UNSUPPORTED,
            "the legacy default stream cannot be captured",
        ));
    }
    if mode > 2 {
        return Err(invalid(format!("no capture mode {mode}")));
    }
    if state.stream_mut(stream)?.capture.is_some() {
        return Err(Fault::named(
            abi::ERROR_ILLEGAL_STATE,
            "the stream is being captured already",
        ));
    }
    let id = state.ticket();
    let graph = state.handle(Object::Graph);
    state.captures.insert(
        graph,
        Capture {
            origin: stream,
            mode,
            thread: std::thread::current().id(),
            graph: Graph::default(),
            spoiled: false,
            id,
        },
    );
    state.stream_mut(stream)?.capture = Some((graph, Vec::new()));
    Ok(())
}

fn end(state: &mut State, stream: Handle) -> Result<Handle> {
    let Some((handle, frontier)) = state.stream_mut(stream)?.capture.clone() else {
        return Err(Fault::named(
            abi::ERROR_ILLEGAL_STATE,
            "the stream is not being captured",
        ));
    };
    if state
        .captures
        .get(&handle)
        .is_some_and(|c| c.origin != stream)
    {
        return Err(Fault::plain(abi::ERROR_STREAM_CAPTURE_UNMATCHED));
    }
    for s in state.streams.values_mut() {
        if s.capture.as_ref().is_some_and(|c| c.0 == handle) {
            s.capture = None;
        }
    }
    for e in state.events.values_mut() {
        if e.captured.as_ref().is_some_and(|c| c.0 == handle) {
            e.captured = None;
        }
    }
    let Some(capture) = state.captures.remove(&handle) else {
        return Err(Fault::plain(abi::ERROR_STREAM_CAPTURE_INVALIDATED));
    };
    if capture.spoiled {
        return Err(Fault::plain(abi::ERROR_STREAM_CAPTURE_INVALIDATED));
    }
    if !capture.graph.all_before(&frontier) {
        return Err(Fault::named(
            abi::ERROR_STREAM_CAPTURE_UNJOINED,
            "work of another stream was captured and its end is not waited for",
        ));
    }
    state.graphs.insert(handle, capture.graph);
    Ok(handle)
}

fn instantiate(out: Out<Handle>, graph: Handle) -> Result {
    let mut state = lock()?;
    let graph = state
        .graphs
        .get(&graph)
        .ok_or_else(|| stale(Object::Graph, graph))?
        .clone();
    let handle = state.handle(Object::Executable);
    state.executables.insert(handle, Arc::new(graph));
    out.set(handle)
}

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`.
const NO_DESTRUCTOR_SYNC: c_uint = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`.
const GRAPH_USER_OBJECT_MOVE: c_uint = 1;

/// Takes counts of a user object from the user.
fn give_up(state: &mut State, object: Handle, count: c_uint) -> Result<Vec<Arc<UserObject>>> {
    let counts = state
        .user_objects
        .get_mut(&object)
        .ok_or_else(|| stale(Object::UserObject, object))?;
    let left = counts
        .len()
        .checked_sub(count as usize)
        .ok_or_else(|| invalid("more counts of a user object than its user holds"))?;
    let gone = counts.split_off(left);
    if left == 0 {
        state.user_objects.remove(&object);
    }
    Ok(gone)
}

fn info(stream: Handle, status: Out<c_uint>, id: Out<u64>) -> Result<Option<Handle>> {
    let mut state = lock()?;
    let stream = state.stream_of(stream)?;
    let Some((graph, _)) = state.stream_mut(stream)?.capture.clone() else {
        status.set(0)?;
        return Ok(None);
    };
    let capture = state.captures.get(&graph);
    status.set(if capture.is_some_and(|c| c.spoiled) {
        2
    } else {
        1
    })?;
    id.set_if(capture.map_or(0, |c| c.id));
    Ok(Some(graph))
}

entries! {
    fn cuStreamBeginCapture(stream: Handle, mode: c_uint) { begin(stream, mode) }
    fn cuStreamBeginCapture_v2(stream: Handle, mode: c_uint) { begin(stream, mode) }

    fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) {
        let mut state = lock()?;
        let stream = state.stream_of(stream)?;
        let done = end(&mut state, stream);
        graph.set(*done.as_ref().unwrap_or(&0))?;
        done.map(drop)
    }

    fn cuStreamIsCapturing(stream: Handle, status: Out<c_uint>) {
        let mut state = lock()?;
        let stream = state.stream_of(stream)?;
        let Some((graph, _)) = state.stream_mut(stream)?.capture.clone() else {
            return status.set(0);
        };
        status.set(if state.captures.get(&graph).is_some_and(|c| c.spoiled) { 2 } else { 1 })
    }

    fn cuStreamGetCaptureInfo(stream: Handle, status: Out<c_uint>, id: Out<u64>) {
        info(stream, status, id).map(drop)
    }

    fn cuStreamGetCaptureInfo_v2(
        stream: Handle, status: Out<c_uint>, id: Out<u64>, graph: Out<Handle>,
        after: Out<Handle>, count: Out<usize>
    ) {
        if !after.address().is_null() || !count.address().is_null() {
            return Err(Fault::named(abi::ERROR_NOT_SUPPORTED, "handles of nodes: not yet"));
        }
        if let Some(captured) = info(stream, status, id)? {
            graph.set_if(captured);
        }
        Ok(())
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<c_uint>) {
        driver()?;
        let address = mode.address();
        if address.is_null() {
            return Err(invalid("no mode"));
        }
        // SAFETY: the caller's place for a mode, which it has set.
        let wanted = unsafe { address.read() };
        if wanted > CAPTURE_RELAXED {
            return Err(invalid(format!("no capture mode {wanted}")));
        }
        mode.set(CAPTURE_MODE.replace(wanted))
    }

    fn cuUserObjectCreate(
        out: Out<Handle>, argument: In<c_void>, destroy: Option<HostFunction>,
        count: c_uint, flags: c_uint
    ) {
        let destroy = destroy.ok_or_else(|| invalid("no destructor"))?;
        if count == 0 || flags != NO_DESTRUCTOR_SYNC {
            return Err(invalid("a user object has a first count, and the flag 1"));
        }
        let mut state = lock()?;
        let handle = state.handle(Object::UserObject);
        let object = UserObject::new(argument.address_void(), destroy);
        state.user_objects.insert(handle, vec![object; count as usize]);
        out.set(handle)
    }

    fn cuUserObjectRetain(object: Handle, count: c_uint) {
        let mut state = lock()?;
        let counts = state.user_objects.get_mut(&object)
            .ok_or_else(|| stale(Object::UserObject, object))?;
        let one = counts[0].clone();
        counts.extend(std::iter::repeat_n(one, count as usize));
        Ok(())
    }

    fn cuUserObjectRelease(object: Handle, count: c_uint) {
        let mut state = lock()?;
        give_up(&mut state, object, count).map(drop)
    }

    fn cuGraphRetainUserObject(graph: Handle, object: Handle, count: c_uint, flags: c_uint) {
        let mut state = lock()?;
        let one = state.user_objects.get(&object).map(|counts| counts[0].clone())
            .ok_or_else(|| stale(Object::UserObject, object))?;
        let counts = match flags {
            0 => vec![one; count as usize],
            GRAPH_USER_OBJECT_MOVE => give_up(&mut state, object, count)?,
            _ => return Err(invalid(format!("no flags {flags} of a user object"))),
        };
        let State { graphs, captures, .. } = &mut *state;
        let under_way = captures.get_mut(&graph).map(|c| &mut c.graph);
        let graph = under_way.or_else(|| graphs.get_mut(&graph))
            .ok_or_else(|| stale(Object::Graph, graph))?;
        graph.kept.extend(counts.into_iter().map(|one| (object, one)));
        Ok(())
    }

    fn cuGraphCreate(out: Out<Handle>, _flags: c_uint) {
        let mut state = lock()?;
        let handle = state.handle(Object::Graph);
        state.graphs.insert(handle, Graph::default());
        out.set(handle)
    }

    fn cuGraphGetNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) {
        let state = lock()?;
        let graph = state.graphs.get(&graph).ok_or_else(|| stale(Object::Graph, graph))?;
        if !nodes.address().is_null() {
            return Err(Fault::named(abi::ERROR_NOT_SUPPORTED, "handles of nodes: not yet"));
        }
        count.set(graph.nodes.len())
    }

    fn cuGraphDestroy(graph: Handle) {
        lock()?.graphs.remove(&graph).map(drop).ok_or_else(|| stale(Object::Graph, graph))
    }

    fn cuGraphInstantiateWithFlags(out: Out<Handle>, graph: Handle, _flags: u64) {
        instantiate(out, graph)
    }

    fn cuGraphInstantiate_v2(
        out: Out<Handle>, graph: Handle, _node: Out<Handle>, _log: Out<c_char>, _bytes: usize
    ) {
        instantiate(out, graph)
    }

    fn cuGraphExecDestroy(executable: Handle) {
        lock()?.executables.remove(&executable).map(drop)
            .ok_or_else(|| stale(Object::Executable, executable))
    }

    fn cuGraphUpload(executable: Handle, stream: Handle) {
        let mut state = lock()?;
        state.stream_of(stream)?;
        state.executables.get(&executable).map(drop)
            .ok_or_else(|| stale(Object::Executable, executable))
    }

    fn cuGraphLaunch(executable: Handle, stream: Handle) {
        let mut state = lock()?;
        let stream = state.stream_of(stream)?;
        state.refuse_capture(stream, "a launch of a graph (child graphs: not yet)")?;
        let graph = state.executables.get(&executable)
            .ok_or_else(|| stale(Object::Executable, executable))?.clone();
        state.submit(stream, work::graph(graph)).map(drop)
    }
}
