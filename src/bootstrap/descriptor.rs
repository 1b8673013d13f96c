//! Descriptors that a launcher left for this process, by number.
//!
//! # Invariants
//! 1. A descriptor that a process inherited over `exec` is not close-on-exec, or `exec` would
//!    have closed it. So the flag, which [`take`] sets, marks that this process has taken it.
//! 2. A number from outside is only given to system calls that check it; nothing here closes
//!    it or reads through it.

use super::launcher::Descriptor;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Kind of a descriptor.
pub(super) fn inspect(number: RawFd) -> Descriptor {
    // SAFETY: invariant 2: the call takes numbers only and fails for those that are not open.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if flags < 0 || !is_socket(number) {
        return Descriptor::Nothing;
    }
    match flags & libc::FD_CLOEXEC {
        0 => Descriptor::Inherited,
        _ => Descriptor::Taken,
    }
}

fn is_socket(number: RawFd) -> bool {
    let mut kind: libc::c_int = 0;
    let mut bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `kind` and `bytes` are ours for the call, and `bytes` is the size of `kind`;
    // invariant 2 for the number.
    let got = unsafe {
        libc::getsockopt(
            number,
            libc::SOL_SOCKET,
            libc::SO_TYPE,
            (&raw mut kind).cast(),
            &mut bytes,
        )
    };
    got == 0 && kind == libc::SOCK_STREAM
}

/// A copy of an inherited descriptor, which from now on is not passed on.
///
/// # Errors
/// It is not open, or was taken before.
pub(super) fn take(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: invariant 2.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the system call has just made it, so nobody else owns it.
    let copy = unsafe { OwnedFd::from_raw_fd(copy) };
    // SAFETY: invariant 2.
    let marked = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    match marked {
        0 => Ok(copy),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_socket_is_taken_once() {
        let (mut ours, its) = UnixStream::pair().expect("sockets");
        let number = its.as_fd().as_raw_fd();
        assert_eq!(inspect(number), Descriptor::Taken, "std marks its own");
        // SAFETY: a system call on a descriptor of ours.
        unsafe { libc::fcntl(number, libc::F_SETFD, 0) };
        assert_eq!(inspect(number), Descriptor::Inherited);
        let mut copy = UnixStream::from(take(number).expect("a copy"));
        assert_eq!(inspect(number), Descriptor::Taken);
        copy.write_all(b"x").expect("it writes");
        let mut byte = [0];
        ours.read_exact(&mut byte).expect("it reads");
        assert_eq!(&byte, b"x");
        drop(its);
    }

    #[test]
    fn what_is_no_socket() {
        let file = std::fs::File::open("/dev/null").expect("a file");
        assert_eq!(inspect(file.as_raw_fd()), Descriptor::Nothing);
        assert_eq!(inspect(-1), Descriptor::Nothing);
        assert_eq!(inspect(i32::MAX), Descriptor::Nothing);
        assert!(take(i32::MAX).is_err());
    }
}
