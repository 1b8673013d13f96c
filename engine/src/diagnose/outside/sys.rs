//! System calls for inspecting threads.
//!
//! # Invariants
//! 1. A system call on numbers, or on memory of ours of the length that is said, touches
//!    no other memory of the process.
//! 2. A descriptor that a system call has just returned has no other owner.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Length of a netlink header.
const HEADER: usize = 16;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const UDIAG_SHOW_PEER: u32 = 4;
const UNIX_DIAG_PEER: u16 = 2;
/// Length of `struct unix_diag_msg`.
const MESSAGE: usize = 16;

/// The inode of the socket at the other end of a Unix socket, from the kernel's `sock_diag`.
///
/// `man 7 sock_diag`: a request for one socket by its inode is answered by its attributes.
pub fn unix_peer(inode: u32) -> Option<u32> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: invariant 1.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG) };
    if fd < 0 {
        return None;
    }
    // SAFETY: invariant 2: opened above.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // nlmsghdr: length, type, flags, sequence, port; unix_diag_req: family, protocol, padding,
    // states, inode, what to show, cookie (none).
    let mut request = Vec::with_capacity(HEADER + 24);
    request.extend((HEADER as u32 + 24).to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    request.extend([0; 8]);
    request.extend([libc::AF_UNIX as u8, 0, 0, 0]);
    request.extend(u32::MAX.to_ne_bytes());
    request.extend(inode.to_ne_bytes());
    request.extend(UDIAG_SHOW_PEER.to_ne_bytes());
    request.extend([0xff; 8]);
    // SAFETY: invariant 1: `request` is a local of this length, alive for the call, which
    // reads it.
    let sent = unsafe {
        libc::send(
            socket.as_raw_fd(),
            request.as_ptr().cast(),
            request.len(),
            0,
        )
    };
    if usize::try_from(sent).ok()? != request.len() {
        return None;
    }
    let mut answer = [0u8; 512];
    // SAFETY: invariant 1: `answer` is a local of this length, alive for the call, which
    // writes it.
    let came = unsafe {
        libc::recv(
            socket.as_raw_fd(),
            answer.as_mut_ptr().cast(),
            answer.len(),
            0,
        )
    };
    peer_in(answer.get(..usize::try_from(came).ok()?)?)
}

/// The peer in an answer of `sock_diag`.
fn peer_in(answer: &[u8]) -> Option<u32> {
    let half = |bytes: &[u8]| Some(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
    if half(answer.get(4..)?)? != SOCK_DIAG_BY_FAMILY {
        return None; // an error
    }
    let mut attributes = answer.get(HEADER + MESSAGE..)?;
    loop {
        let length = usize::from(half(attributes)?);
        if half(attributes.get(2..)?)? == UNIX_DIAG_PEER {
            let peer = attributes.get(4..8)?;
            return Some(u32::from_ne_bytes(peer.try_into().ok()?));
        }
        if length < 4 {
            return None;
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}
