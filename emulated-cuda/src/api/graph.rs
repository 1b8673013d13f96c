//! Capture of streams, graphs, their launches.

use std::ffi::{c_char, c_uint};
use std::sync::Arc;

use crate::abi::{self, Handle};
use crate::driver::{Object, State, lock, stale};
use crate::fault::{Fault, Out, Result, entries, invalid};
use crate::graph::{Capture, Graph};
use crate::work;

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

    fn cuThreadExchangeStreamCaptureMode(mode: Out<c_uint>) {
        // Modes are of captures here, so nothing is exchanged.
        let _state = lock()?;
        if mode.address().is_null() {
            return Err(invalid("no mode"));
        }
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
