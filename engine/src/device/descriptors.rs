//! Outstanding requests for descriptors of other processes' memory.
//!
//! # Invariants
//! 1. A descriptor under a number that no call waits for, or from another process than
//!    the one that was asked, is closed at once.
//! 2. What has come when its number is forgotten is closed, too: none stays in the socket.

use super::{Devices, lock};
use osier_kernels::handle::Piece;
use osier_transports::TransportError;
use osier_transports::cuda_ipc::{Name, Socket};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};

/// Descriptors that are awaited, by number.
#[derive(Debug, Default)]
pub struct Descriptors(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    socket: Option<Socket>,
    awaited: HashMap<u64, Awaited>,
    asked: u64,
    random: RandomState,
}

#[derive(Debug, Default)]
struct Awaited {
    /// The process that was asked, if its number counts here.
    of: Option<u32>,
    pieces: Vec<Piece>,
    whole: bool,
}

impl Descriptors {
    /// A number to ask a process by, and where to send what was asked for.
    ///
    /// # Errors
    /// The system gives no socket.
    pub fn ask(&self, of: Option<u32>) -> Result<(u64, Name), TransportError> {
        let mut inner = lock(&self.0);
        if inner.socket.is_none() {
            inner.socket = Some(Socket::bind()?);
        }
        inner.asked += 1;
        let number = inner.random.hash_one(inner.asked);
        let awaited = Awaited {
            of,
            ..Awaited::default()
        };
        inner.awaited.insert(number, awaited);
        let name = inner.socket.as_ref().map_or([0; _], Socket::name);
        Ok((number, name))
    }

    /// All that was asked for by a number, once it is there.
    pub fn take(&self, number: u64) -> Option<Vec<Piece>> {
        let mut inner = lock(&self.0);
        inner.receive();
        if !inner.awaited.get(&number)?.whole {
            return None;
        }
        inner.awaited.remove(&number).map(|awaited| awaited.pieces)
    }

    /// How many numbers are waited for.
    pub fn awaited(&self) -> usize {
        lock(&self.0).awaited.len()
    }

    /// Nobody waits for a number any more.
    pub fn forget(&self, number: u64) {
        let mut inner = lock(&self.0);
        if inner.awaited.remove(&number).is_some() {
            inner.receive();
        }
    }
}

/// Descriptors that were asked for; nobody waits for them any more when this is dropped.
#[derive(Debug)]
pub struct Asked {
    devices: Arc<Devices>,
    /// To ask by, and where to send them.
    pub number: u64,
    pub name: Name,
}

impl Asked {
    /// Descriptors of a process, if its number counts here.
    ///
    /// # Errors
    /// The system gives no socket.
    pub fn of(devices: &Arc<Devices>, process: Option<u32>) -> Result<Self, TransportError> {
        let (number, name) = devices.descriptors.ask(process)?;
        let devices = devices.clone();
        Ok(Self {
            devices,
            number,
            name,
        })
    }

    /// All, once they are there.
    pub fn take(&self) -> Option<Vec<Piece>> {
        self.devices.descriptors.take(self.number)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.devices.descriptors.forget(self.number);
    }
}

impl Inner {
    /// Sorts what has come by number.
    fn receive(&mut self) {
        let Some(socket) = &self.socket else {
            return;
        };
        while let Some(some) = socket.receive() {
            if let Some(awaited) = self.awaited.get_mut(&some.number)
                && awaited.of.is_none_or(|process| process == some.process)
            {
                awaited.pieces.extend(some.pieces);
                awaited.whole = some.left == 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use osier_transports::cuda_ipc;

    #[test]
    fn numbers_find_their_descriptors() {
        let all = Descriptors::default();
        let file = || std::os::fd::OwnedFd::from(std::fs::File::open("/dev/null").expect("a file"));
        let [(a, name), (b, _), (c, _)] = [(); 3].map(|()| all.ask(None).expect("a socket"));
        assert!(a != b && b != c && all.take(a).is_none());
        let send = |number, n: u64| {
            let pieces: Vec<_> = (0..n).map(|i| (i, file())).collect();
            cuda_ipc::send(&name, number, &pieces).expect("sent");
        };
        send(b, 3);
        send(b ^ 1, 1); // nobody's
        send(a, 100);
        all.forget(c);
        send(c, 1);
        assert_eq!(all.take(a).expect("all").len(), 100);
        assert_eq!(all.take(b).expect("all").len(), 3);
        assert!(all.take(a).is_none() && all.take(c).is_none());
        let own = std::process::id();
        let [(d, _), (e, _)] = [own, own + 1].map(|of| all.ask(Some(of)).expect("a socket"));
        send(d, 1);
        send(e, 1);
        assert!(all.take(d).is_some() && all.take(e).is_none());
        all.forget(e);
        assert!(lock(&all.0).awaited.is_empty());
    }

    #[test]
    fn what_is_forgotten_is_closed() {
        let all = Descriptors::default();
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let [(a, name), (b, _)] = [(); 2].map(|()| all.ask(None).expect("a socket"));
        cuda_ipc::send(&name, a, &[(1, writer.into())]).expect("sent");
        let file = std::fs::File::open("/dev/null").expect("a file");
        cuda_ipc::send(&name, b, &[(2, file.into())]).expect("sent");
        all.forget(a);
        // The last writer is gone.
        let read = std::io::Read::read(&mut reader, &mut [0]);
        assert_eq!(read.expect("an end"), 0);
        assert_eq!(all.take(b).expect("it came meanwhile")[0].0, 2);
    }
}
