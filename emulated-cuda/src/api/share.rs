//! Handles of memory and events for other processes.

use std::collections::BTreeSet;
use std::ffi::c_uint;

use crate::abi::{self, Handle, Opaque64};
use crate::driver::{Event, Object, State, lock};
use crate::fault::{Fault, Out, Result, entries, invalid};
use crate::ipc::{Opened, SharedEvent, Ticket, namespace};
use crate::memory::{Allocation, File, Kind};
use crate::ranges::{PAGE, pages};
use crate::settings::settings;
use crate::waits::{Waits, wait_for_context};
use std::sync::Arc;

fn same_process(ticket: &Ticket) -> Result {
    match ticket.process == std::process::id() && ticket.namespace == namespace() {
        false => Ok(()),
        true => Err(Fault::named(
            abi::ERROR_INVALID_CONTEXT,
            "a handle is opened in the process that exported it",
        )),
    }
}

entries! {
    fn cuIpcGetMemHandle(out: Out<Opaque64>, address: u64) {
        let state = lock()?;
        state.current()?;
        let found = state.memory.find(address).ok_or_else(|| state.memory.unknown(address))?;
        let (Kind::Device, Some((file, offset))) = (found.kind, &found.file) else {
            return Err(invalid(format!(
                "{} has no handle (hint: only memory of cuMemAlloc has)",
                found.describe()
            )));
        };
        out.set(Ticket {
            kind: 1,
            process: std::process::id(),
            fd: file.fd() as u32,
            device: found.device as u32,
            offset: *offset,
            bytes: found.bytes,
            address: found.start,
            namespace: namespace(),
            id: found.id,
        }.seal())
    }

    fn cuIpcOpenMemHandle_v2(out: Out<u64>, handle: Opaque64, flags: c_uint) {
        let ticket = Ticket::open(&handle, 1)?;
        let mut state = lock()?;
        let context = state.current()?;
        if flags & !1 != 0 {
            return Err(invalid(format!("no flags {flags}")));
        }
        same_process(&ticket)?;
        let device = state.context(context)?.device;
        let owner = ticket.device as usize;
        // Of a device that is hidden not reported as misuse: a caller tries, and decides.
        if owner >= state.devices.len() || !settings().opens(device, owner) {
            return Err(match settings().machine.ordinal(owner) {
                None => Fault::plain(abi::ERROR_INVALID_DEVICE),
                Some(owner) => Fault::named(
                    abi::ERROR_PEER_ACCESS_UNSUPPORTED,
                    format!("this device does not reach the memory of device {owner}"),
                ),
            });
        }
        {
            // With a context goes what was open in it.
            let State { opened, memory, .. } = &mut *state;
            opened.retain(|open| memory.find(open.start).is_some());
        }
        let mut here = state.opened.iter_mut().filter(|open| open.context == context);
        if let Some(open) = here.find(|open| open.ticket == ticket) {
            open.count += 1;
            return out.set(open.start);
        }
        let mut here = state.opened.iter().filter(|open| open.context == context);
        if here.any(|open| open.ticket.overlaps(&ticket)) {
            // Not reported as misuse: a caller closes the old mapping and tries again.
            return Err(Fault::plain(abi::ERROR_ALREADY_MAPPED));
        }
        let shift = ticket.offset % PAGE;
        let length = pages(shift + ticket.bytes);
        let page = ticket.offset - shift;
        let file = File::map(ticket.descriptor()?, page, length)?;
        let region = state.memory.take_addresses(length + PAGE, PAGE)?;
        let start = state.memory.insert(Allocation {
            start: region + shift,
            bytes: ticket.bytes,
            kind: Kind::Imported,
            device: owner,
            context,
            id: 0,
            view: file.view + shift,
            region: (region, length),
            file: Some((file, ticket.offset)),
            access: 1 << owner | 1 << device,
            ready: false,
            freeing: false,
        });
        state.memory.make_ready(start)?;
        state.opened.push(Opened { ticket, context, start, count: 1 });
        out.set(start)
    }

    fn cuIpcCloseMemHandle(address: u64) {
        let mut state = lock()?;
        state.current()?;
        let found = state.memory.exact(address)?.clone();
        if found.kind != Kind::Imported {
            return Err(invalid(format!("{} was not opened by a handle", found.describe())));
        }
        let Some(at) = state.opened.iter().position(|open| open.start == address) else {
            return Err(invalid(format!("{} was not opened by a handle", found.describe())));
        };
        if state.opened[at].count > 1 {
            state.opened[at].count -= 1;
            return Ok(());
        }
        state.check_unused(found.start, found.end(), &found.describe())?;
        drop(state);
        wait_for_context(Waits::Always)?;
        let mut state = lock()?;
        // Another thread may have opened it meanwhile.
        if let Some(at) = state.opened.iter().position(|open| open.start == address) {
            state.opened[at].count -= 1;
            if state.opened[at].count == 0 {
                state.opened.swap_remove(at);
                state.memory.remove(address, None);
            }
        }
        Ok(())
    }

    fn cuIpcGetEventHandle(out: Out<Opaque64>, event: Handle) {
        let mut state = lock()?;
        let shared = state.event(event)?.shared.clone().ok_or_else(|| {
            Fault::named(abi::ERROR_INVALID_HANDLE, "the event was not created for other processes")
        })?;
        out.set(Ticket {
            kind: 2,
            process: std::process::id(),
            fd: shared.file.fd() as u32,
            device: 0,
            offset: 0,
            bytes: PAGE,
            address: event,
            namespace: namespace(),
            id: 0,
        }.seal())
    }

    fn cuIpcOpenEventHandle(out: Out<Handle>, handle: Opaque64) {
        let ticket = Ticket::open(&handle, 2)?;
        let mut state = lock()?;
        let context = state.current()?;
        same_process(&ticket)?;
        let file = File::map(ticket.descriptor()?, 0, PAGE)?;
        let event = state.handle(Object::Event);
        state.events.insert(event, Event {
            context,
            flags: abi::EVENT_INTERPROCESS | abi::EVENT_DISABLE_TIMING,
            recorded: 0,
            pending: BTreeSet::new(),
            at: None,
            captured: None,
            shared: Some(Arc::new(SharedEvent { file })),
            destroyed: false,
        });
        out.set(event)
    }
}
