//! Checks of a lane (`OSIER_CHECK`).
//!
//! ```text
//! sender     CHECK (types, source line), start with CHECKED
//! receiver   keeps CHECK until the start comes, compares when they meet
//! ```
//!
//! # Invariants
//! 1. A lane that checks sends every start by the slow path, right behind its
//!    CHECK; its peers stay `blocked`, so that no start takes another path.
//! 2. A start that is marked CHECKED is no start that a receive takes directly.
//! 3. What an operation has claimed is given back when its memory is.

use super::arrival::Arrival;
use super::lane::Lane;
use super::op::{Mode, Op, Rare};
use super::port::{Port, describe};
use super::suspend;

use crate::check::{Check, Checks, Claim, Side, Site, mismatch};
use crate::diagnose::report::communicator;
use crate::matching::Envelope;
use crate::site::file_line;
use crate::view::{RawView, sum};
use crate::wire::{self, CheckBody};
use osier_transports::{Incoming, PostError};
use std::collections::HashMap;
use std::panic::Location;

/// A lane's part in checking.
pub struct LaneCheck {
    checks: Checks,
    /// The CHECK of the next start of each peer.
    received: HashMap<u32, Box<CheckBody>>,
    /// What a run that posts now was called by.
    acts_for: Option<Site>,
}

/// What is checked of one operation.
pub(crate) struct OpCheck {
    /// Its CHECK was posted.
    posted: bool,
    /// The program's call that posted it.
    site: Site,
    /// Checksum of its memory when it was posted.
    sum: Option<u64>,
    _claim: Option<Claim>,
}

impl LaneCheck {
    /// Whether operations claim their memory. Not where a layer above knows better for how
    /// long it is theirs.
    fn claims(&self) -> bool {
        self.checks.has(Check::Buffers) && !self.checks.is_foreign()
    }

    /// The program's call that posts something now.
    fn site(&self, line: &'static Location<'static>) -> Site {
        self.acts_for.unwrap_or_else(|| self.checks.site(line))
    }
}

impl Port {
    /// An operation gives its memory back.
    #[cold]
    pub(crate) fn followed(&mut self, handle: u32) {
        let rare = self.ops.get_mut(handle).and_then(|op| op.rare.as_mut());
        let Some(follow) = rare.and_then(|rare| rare.check.take()) else {
            return;
        };
        let (Some(check), Some(op)) = (&self.check, self.ops.get(handle)) else {
            return;
        };
        if let Some(before) = follow.sum
            && sum(&op.view) != before
        {
            let what = self.in_communicator(self.describe(handle));
            let text = format!(
                "a buffer has changed while it was sent: {what}\n  sent at {}\n  (hint: leave the buffer alone until the request is complete)\n",
                follow.site
            );
            check.checks.report(Check::Buffers, text);
        }
    }

    /// Posts the CHECK of a start, unless that has been done.
    pub(crate) fn tell(&mut self, handle: u32) -> Result<(), PostError> {
        let Some(op) = self.ops.get_mut(handle) else {
            return Ok(());
        };
        let posted = |rare: &Rare| rare.check.as_ref().is_some_and(|check| check.posted);
        if op.rare.as_deref().is_none_or(posted) {
            return Ok(());
        }
        let signature = op.view.signature();
        let check = op.rare.as_ref().and_then(|rare| rare.check.as_ref());
        let site = check.map_or(op.site.into(), |check| check.site);
        let (file, line) = site.parts();
        let body = CheckBody {
            digest: signature.as_ref().map(|s| s.digest()),
            types: signature.map_or_else(String::new, |s| s.to_string()),
            file,
            line,
            ready: op.mode == Mode::Ready,
        }
        .to_wire();
        let head = wire::head(wire::CHECK, 0, handle, 0);
        let fill = |to: *mut u8| {
            // SAFETY: invariant 2 of `protocols`: room for the body.
            unsafe { std::ptr::copy_nonoverlapping(body.as_ptr(), to, body.len()) }
        };
        self.links.post_with(op.peer, head, body.len(), fill)?;
        if let Some(check) = op.rare.as_mut().and_then(|rare| rare.check.as_mut()) {
            check.posted = true;
        }
        Ok(())
    }

    fn in_communicator(&self, what: String) -> String {
        format!("{what}, communicator {}", communicator(self.context))
    }
}

impl Lane {
    /// Has everything checked from here on; before the first message.
    pub fn check_with(&mut self, checks: Checks) {
        self.port.peers.block();
        self.port.check = Some(Box::new(LaneCheck {
            checks,
            received: HashMap::new(),
            acts_for: None,
        }));
    }

    /// Switches checks of this communicator off: all members do before their first message.
    pub fn check_nothing(&mut self) {
        self.port.check = None;
    }

    /// Begins to follow an operation.
    #[inline]
    pub(crate) fn follow(&mut self, handle: u32) {
        if self.port.check.is_some() {
            self.follow_on(handle);
        }
    }

    #[cold]
    fn follow_on(&mut self, handle: u32) {
        let Some(check) = &self.port.check else {
            return;
        };
        let Some(op) = self.port.ops.get(handle) else {
            return;
        };
        let mut follow = OpCheck {
            posted: false,
            site: check.site(op.site),
            sum: None,
            _claim: None,
        };
        if check.claims() {
            let what = self.port.in_communicator(self.port.describe(handle));
            let writes = op.is_receive();
            follow._claim = Some(check.checks.claim(&op.view, writes, what, follow.site));
            follow.sum = (!writes).then(|| sum(&op.view));
        }
        if let Some(rare) = self.port.rare(handle) {
            rare.check = Some(Box::new(follow));
        }
    }

    /// Finds other uses of a view, for a receive that completes at once.
    pub(crate) fn follow_shortly(
        &self,
        view: &RawView,
        peer: u32,
        tag: u32,
        site: &'static Location<'static>,
    ) {
        if let Some(check) = &self.port.check
            && check.claims()
        {
            let what = describe(
                "receive from",
                Some(peer),
                tag,
                view.bytes(),
                &self.port.links,
            );
            let what = self.port.in_communicator(what);
            drop(check.checks.claim(view, true, what, check.site(site)));
        }
    }

    pub(crate) fn on_check(&mut self, message: &Incoming) -> bool {
        let Some(check) = &mut self.port.check else {
            return false;
        };
        let mut body = vec![0; message.payload.len()];
        if body.len() > CheckBody::MAX_BYTES {
            return false;
        }
        // SAFETY: invariant 1 of `protocols`: not released yet, as long as the vector.
        unsafe {
            std::ptr::copy_nonoverlapping(message.payload.as_ptr(), body.as_mut_ptr(), body.len());
        }
        match CheckBody::from_wire(&body) {
            Some(check_body) => {
                check.received.insert(message.peer, Box::new(check_body));
                true
            }
            None => false,
        }
    }

    /// The CHECK of the start that is being handled.
    #[inline]
    pub(crate) fn take_check_body(&mut self, peer: u32, aux: u16) -> Option<Box<CheckBody>> {
        if aux & wire::CHECKED == 0 {
            return None;
        }
        self.port.check.as_mut()?.received.remove(&peer)
    }

    /// Compares a message of `bytes` bytes with the receive that it has met.
    #[cold]
    pub(crate) fn compare_op(
        &self,
        handle: u32,
        check_body: &CheckBody,
        peer: u32,
        tag: u32,
        bytes: usize,
    ) {
        if let Some(op) = self.port.ops.get(handle) {
            let site = self.site_of(op);
            self.compare_at(&op.view, check_body, peer, tag, bytes, site);
        }
    }

    /// As [`Lane::compare_op`], for a receive that needs no operation.
    #[cold]
    pub(crate) fn compare(
        &self,
        view: &RawView,
        check_body: &CheckBody,
        peer: u32,
        tag: u32,
        bytes: usize,
        site: &'static Location<'static>,
    ) {
        if let Some(check) = self.port.check.as_ref() {
            self.compare_at(view, check_body, peer, tag, bytes, check.site(site));
        }
    }

    fn compare_at(
        &self,
        view: &RawView,
        check_body: &CheckBody,
        peer: u32,
        tag: u32,
        bytes: usize,
        site: Site,
    ) {
        let Some(lane) = self.port.check.as_ref() else {
            return;
        };
        let check = &lane.checks;
        // A message that is too long is an error of its own.
        if !check.has(Check::Signature) || bytes > view.bytes() {
            return;
        }
        let (Some(sent), Some(expected)) = (check_body.digest, view.signature()) else {
            return;
        };
        if expected.admits(sent) {
            return;
        }
        let what = describe("receive from", Some(peer), tag, bytes, &self.port.links);
        let sent_at = file_line(&check_body.file, check_body.line);
        let sent = Side {
            types: &check_body.types,
            bytes,
            site: &sent_at,
        };
        let expected = Side {
            types: &expected.to_string(),
            bytes: view.bytes(),
            site: &{
                let (file, line) = site.parts();
                file_line(&file, line)
            },
        };
        let text = mismatch(&self.port.in_communicator(what), &sent, &expected);
        check.report(Check::Signature, text);
    }

    /// A message in ready mode has met no receive.
    #[cold]
    pub(crate) fn not_posted(&self, check_body: &CheckBody, envelope: Envelope, bytes: usize) {
        let Some(check) = self.port.check.as_ref().map(|check| &check.checks) else {
            return;
        };
        if !check.has(Check::Ready) || self.port.refusing {
            return;
        }
        let Envelope { source, tag } = envelope;
        let what = describe("receive from", Some(source), tag, bytes, &self.port.links);
        let text = format!(
            "a ready-mode send came before its receive was posted: {}\n  sent at {}\n  (hint: post the receive before the sender calls rsend, or call send)\n",
            self.port.in_communicator(what),
            file_line(&check_body.file, check_body.line)
        );
        check.report(Check::Ready, text);
    }

    /// The program's call that posted an operation.
    pub(crate) fn site_of(&self, op: &Op) -> Site {
        let check = op.rare.as_ref().and_then(|rare| rare.check.as_ref());
        check.map_or(op.site.into(), |check| check.site)
    }

    /// Has what is posted from here on named by the call that began a run; `None`: by the
    /// call that this thread is in.
    #[inline]
    pub(crate) fn act_for(&mut self, site: Option<Site>) {
        if let Some(check) = &mut self.port.check {
            check.acts_for = site;
        }
    }

    /// Reports messages that have come and that no call will receive, each once. Only
    /// of programs in C: in Rust dropping a receive says that its message is not wanted.
    #[cold]
    pub fn report_unreceived(&mut self, checks: &Checks) {
        let asked = checks.has(Check::Leaks) && checks.is_foreign();
        if !asked || suspend::unwinds() || self.is_revoked() {
            return;
        }
        let all: Vec<u32> = self.arrivals.handles().collect();
        for arrival in all {
            let Some(arrived) = self.arrivals.get_mut(arrival) else {
                continue;
            };
            // A matched probe has given out what is not queued: that is a handle.
            let poison = matches!(arrived.what, Arrival::Poison { .. });
            if arrived.queued.take().is_none() || poison || arrived.envelope.is_internal() {
                continue;
            }
            let (Envelope { source, tag }, bytes) = (arrived.envelope, arrived.what.bytes());
            let sent = match &arrived.check_body {
                Some(check_body) => format!(
                    "  sent at {}\n",
                    file_line(&check_body.file, check_body.line)
                ),
                None => String::new(),
            };
            let what = describe("message from", Some(source), tag, bytes, &self.port.links);
            let what = self.port.in_communicator(what);
            let text = format!("leak: a message was never received: {what}\n{sent}");
            checks.report(Check::Leaks, text);
        }
    }

    /// Reports the operations, and the messages, that are left when the rank leaves.
    pub fn report_leaks(&mut self, checks: &Checks) {
        self.report_unreceived(checks);
        for handle in self.port.ops.handles() {
            let Some(op) = self.port.ops.get(handle) else {
                continue;
            };
            let what = match (op.is_done(), op.detached) {
                (true, _) => "is complete, and its result was not taken",
                (_, true) => "was detached, and never ends",
                _ => "was never completed",
            };
            let site = self.site_of(op);
            let posted = match checks.is_foreign() && !site.is_foreign() {
                true => String::new(),
                false => format!("  posted at {site}\n"),
            };
            let text = format!(
                "leak: a request {what}: {}\n{posted}",
                self.port.in_communicator(self.port.describe(handle)),
            );
            checks.report(Check::Leaks, text);
        }
    }
}
