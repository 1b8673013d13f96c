//! How ranks of a machine that a foreign launcher has started find each other, and how the
//! lowest hands the others the job's descriptors: in a private folder of their user.
//!
//! ```text
//! <shared memory>/osier-<user>-<token>/     mode 0700, its name is the job's
//!     3.sock  5.sock                        a socket of each rank, before all ranks meet
//!
//! lowest     connects to each      "version, note, how many descriptors", descriptors
//! others     look who is there, accept, and say that they have it all
//! ```
//!
//! The lowest stays until they have said so: who looks behind its leave would take himself for
//! the lowest.
//!
//! Sockets of a folder do not care for networks: containers on one kernel that share the folder
//! meet there, whatever their networks are. Both ends check that the other is of their user, and
//! both say the job's token.
//!
//! # Invariants
//! 1. A descriptor that the system has just passed is owned by nobody else.
//! 2. The system call takes nothing and does not fail.

use crate::contract::{TransportError, TransportErrorKind, WIRE_VERSION};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, getsockopt, recvmsg, sendmsg, sockopt,
};
use sha2::{Digest, Sha256};
use std::fs::{self, DirBuilder};
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MAGIC: [u8; 6] = *b"OSIERM";
const HEAD_BYTES: usize = 24;
/// Descriptors of one message; the system takes at most 253.
const AT_ONCE: usize = 64;
/// Most bytes of a note.
const NOTE_BYTES: usize = 1 << 20;
/// How long a rank that was found may take to answer.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// A rank's place in the folder of its job on this machine.
#[derive(Debug)]
pub struct Meeting {
    folder: PathBuf,
    token: u64,
    rank: u32,
    listener: UnixListener,
}

fn failed(what: &str, path: &Path, e: &std::io::Error) -> TransportError {
    TransportError::os(format!("{what} {}", path.display()), e)
}

fn invalid(message: String) -> TransportError {
    TransportError::new(TransportErrorKind::Malformed, message)
}

/// The user of this process.
fn user() -> u32 {
    // SAFETY: invariant 2.
    unsafe { libc::geteuid() }
}

/// A number for a job on this machine, as long as it runs.
fn token_of(job: &str) -> u64 {
    let boot = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let hash = Sha256::new()
        .chain_update(job)
        .chain_update(boot)
        .finalize();
    let mut token = [0; 8];
    token.copy_from_slice(&hash[..8]);
    u64::from_le_bytes(token)
}

/// Where such folders are: on the mount of shared memory, else among temporary files.
pub fn meeting_place() -> PathBuf {
    let shared = Path::new("/dev/shm");
    let usable = fs::metadata(shared).is_ok_and(|data| data.is_dir());
    match usable {
        true => shared.to_owned(),
        false => std::env::temp_dir(),
    }
}

impl Meeting {
    /// Takes a rank's place in the folder of a job, by a name that no other job has.
    ///
    /// # Errors
    /// The folder cannot be made, or is not this user's alone.
    pub fn open(place: &Path, job: &str, rank: u32) -> Result<Self, TransportError> {
        let token = token_of(job);
        let folder = place.join(format!("osier-{}-{token:016x}", user()));
        let made = DirBuilder::new().mode(0o700).create(&folder);
        if let Err(e) = made
            && e.kind() != std::io::ErrorKind::AlreadyExists
        {
            return Err(failed("making the folder", &folder, &e));
        }
        let data = fs::symlink_metadata(&folder).map_err(|e| failed("the folder", &folder, &e))?;
        if !data.is_dir() || data.uid() != user() || data.mode() & 0o077 != 0 {
            return Err(TransportError::new(
                TransportErrorKind::Permission,
                format!(
                    "{} is not a folder of this user alone (hint: remove it)",
                    folder.display()
                ),
            ));
        }
        let at = socket_of(&folder, rank);
        // Of a job that was killed there.
        let _ = fs::remove_file(&at);
        let listener = UnixListener::bind(&at).map_err(|e| failed("a socket at", &at, &e))?;
        Ok(Self {
            folder,
            token,
            rank,
            listener,
        })
    }

    /// The ranks that have a place there, in order.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn present(&self) -> Result<Vec<u32>, TransportError> {
        let entries =
            fs::read_dir(&self.folder).map_err(|e| failed("the folder", &self.folder, &e))?;
        let mut ranks: Vec<u32> = entries
            .flatten()
            .filter_map(|entry| {
                entry
                    .file_name()
                    .to_str()?
                    .strip_suffix(".sock")?
                    .parse()
                    .ok()
            })
            .collect();
        ranks.sort_unstable();
        Ok(ranks)
    }

    /// Calls the given ranks. Those that cannot be reached are left out.
    pub fn call(&self, ranks: &[u32]) -> Vec<(u32, UnixStream)> {
        let call = |rank: &u32| {
            let socket = UnixStream::connect(socket_of(&self.folder, *rank)).ok()?;
            is_ours(&socket).then_some((*rank, socket))
        };
        ranks.iter().filter_map(call).collect()
    }

    /// Sends a note and descriptors to a rank that was called.
    ///
    /// # Errors
    /// It has gone.
    pub fn hand_out<'a>(
        &self,
        mut to: &UnixStream,
        note: &[u8],
        descriptors: impl Iterator<Item = BorrowedFd<'a>>,
    ) -> Result<(), TransportError> {
        let system = |e: std::io::Error| TransportError::os("handing the job out", &e);
        let all: Vec<RawFd> = descriptors.map(|fd| fd.as_raw_fd()).collect();
        let mut head = [0; HEAD_BYTES];
        head[..6].copy_from_slice(&MAGIC);
        head[6..8].copy_from_slice(&WIRE_VERSION.to_le_bytes());
        head[8..16].copy_from_slice(&self.token.to_le_bytes());
        head[16..20].copy_from_slice(&(note.len() as u32).to_le_bytes());
        head[20..24].copy_from_slice(&(all.len() as u32).to_le_bytes());
        to.write_all(&head).map_err(system)?;
        to.write_all(note).map_err(system)?;
        for some in all.chunks(AT_ONCE) {
            let control = [ControlMessage::ScmRights(some)];
            let flags = MsgFlags::MSG_NOSIGNAL;
            sendmsg::<()>(to.as_raw_fd(), &[IoSlice::new(&[1])], &control, flags, None)
                .map_err(|e| system(e.into()))?;
        }
        Ok(())
    }

    /// Waits until a rank has all that it was handed.
    ///
    /// # Errors
    /// It has gone, or takes too long.
    pub fn await_taken(&self, mut by: &UnixStream) -> Result<(), TransportError> {
        let system = |e: std::io::Error| TransportError::os("handing the job out", &e);
        by.set_read_timeout(Some(ANSWER_TIME)).map_err(system)?;
        by.read_exact(&mut [0]).map_err(system)
    }

    /// Waits for the lowest rank's call: its note, and the descriptors.
    ///
    /// # Errors
    /// Nobody has called in time, or it was no rank of this job.
    pub fn receive(&self, patience: Duration) -> Result<(Vec<u8>, Vec<OwnedFd>), TransportError> {
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let socket = self.accept(left)?;
            // A stranger that got in here is of another user only if that is root.
            if let Some(socket) = socket.filter(is_ours) {
                return self.take(&socket);
            }
        }
    }

    fn accept(&self, left: Duration) -> Result<Option<UnixStream>, TransportError> {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        use std::os::fd::AsFd;
        let mut fds = [PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, timeout) {
            Ok(n) if n > 0 => {}
            // A signal is no reason to give up.
            Err(nix::Error::EINTR) => return Ok(None),
            Ok(_) => {
                return Err(TransportError::new(
                    TransportErrorKind::Unavailable,
                    format!(
                        "rank {}: the lowest rank of this machine has not called in time",
                        self.rank
                    ),
                ));
            }
            Err(e) => return Err(TransportError::os("waiting for the job", &e.into())),
        }
        let accepted = self.listener.accept();
        let (socket, _) = accepted.map_err(|e| TransportError::os("waiting for the job", &e))?;
        let prepared = socket.set_read_timeout(Some(ANSWER_TIME));
        prepared.map_err(|e| TransportError::os("waiting for the job", &e))?;
        Ok(Some(socket))
    }

    fn take(&self, mut from: &UnixStream) -> Result<(Vec<u8>, Vec<OwnedFd>), TransportError> {
        let system = |e: std::io::Error| TransportError::os("taking the job", &e);
        let mut head = [0; HEAD_BYTES];
        from.read_exact(&mut head).map_err(system)?;
        let version = u16::from_le_bytes([head[6], head[7]]);
        if head[..6] != MAGIC || head[8..16] != self.token.to_le_bytes() {
            return Err(invalid("another job calls in this job's folder".into()));
        }
        if version != WIRE_VERSION {
            return Err(invalid(format!(
                "the lowest rank of this machine speaks version {version} of the protocol, and this one {WIRE_VERSION} (hint: all ranks run the same version of Osier)"
            )));
        }
        let number = |at: usize| {
            u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]) as usize
        };
        let (bytes, wanted) = (number(16), number(20));
        if bytes > NOTE_BYTES || wanted > super::MAX_RANKS + 2 {
            return Err(invalid(format!(
                "a note of {bytes} bytes, {wanted} descriptors"
            )));
        }
        let mut note = vec![0; bytes];
        from.read_exact(&mut note).map_err(system)?;
        let mut taken: Vec<OwnedFd> = Vec::new();
        while taken.len() < wanted {
            let before = taken.len();
            let mut byte = [0u8; 1];
            let mut parts = [IoSliceMut::new(&mut byte)];
            let mut room = nix::cmsg_space!([RawFd; AT_ONCE]);
            let flags = MsgFlags::MSG_CMSG_CLOEXEC;
            let message = recvmsg::<()>(from.as_raw_fd(), &mut parts, Some(&mut room), flags)
                .map_err(|e| system(e.into()))?;
            for control in message.cmsgs().map_err(|e| system(e.into()))? {
                if let ControlMessageOwned::ScmRights(fds) = control {
                    for fd in fds {
                        // SAFETY: invariant 1.
                        taken.push(unsafe { OwnedFd::from_raw_fd(fd) });
                    }
                }
            }
            if taken.len() == before {
                return Err(invalid("descriptors of the job are missing".into()));
            }
        }
        from.write_all(&[1]).map_err(system)?;
        Ok((note, taken))
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        let _ = fs::remove_file(socket_of(&self.folder, self.rank));
        // The last one removes it.
        let _ = fs::remove_dir(&self.folder);
    }
}

fn socket_of(folder: &Path, rank: u32) -> PathBuf {
    folder.join(format!("{rank}.sock"))
}

/// Whether the other end is a process of this user.
fn is_ours(socket: &UnixStream) -> bool {
    getsockopt(socket, sockopt::PeerCredentials).is_ok_and(|peer| peer.uid() == user())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn place(test: &str) -> PathBuf {
        let place = meeting_place().join(format!("osier-{test}-{}", std::process::id()));
        fs::create_dir_all(&place).expect("a folder");
        place
    }

    #[test]
    fn descriptors_are_handed_out_and_nothing_stays_behind() {
        let place = place("meeting");
        let open = |rank| Meeting::open(&place, "a job", rank).expect("a place");
        let (lowest, others) = (open(3), [open(5), open(9)]);
        assert_eq!(lowest.present().expect("ranks"), [3, 5, 9]);
        let files: Vec<fs::File> = (0..150)
            .map(|_| fs::File::open("/dev/null").expect("a file"))
            .collect();
        let called = lowest.call(&[4, 5, 9]);
        assert_eq!(
            called.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(),
            [5, 9]
        );
        for (_, socket) in &called {
            let fds = files.iter().map(AsFd::as_fd);
            lowest.hand_out(socket, b"a note", fds).expect("handed out");
        }
        for other in &others {
            let (note, fds) = other.receive(ANSWER_TIME).expect("the job");
            assert_eq!((note.as_slice(), fds.len()), (b"a note".as_slice(), 150));
        }
        for (_, socket) in &called {
            lowest.await_taken(socket).expect("it has it");
        }
        drop((lowest, others));
        assert_eq!(fs::read_dir(&place).expect("it is there").count(), 0);
        fs::remove_dir_all(&place).expect("it goes");
    }

    #[test]
    fn others_are_refused() {
        let place = place("refusals");
        let meeting = Meeting::open(&place, "a job", 1).expect("a place");
        let silent = meeting
            .receive(Duration::from_millis(20))
            .expect_err("nobody calls");
        assert_eq!(silent.kind(), TransportErrorKind::Unavailable);
        let at = socket_of(&meeting.folder, 1);
        let head = |version: u16, token: u64| {
            let words = [
                MAGIC.as_slice(),
                &version.to_le_bytes(),
                &token.to_le_bytes(),
                &[0; 8],
            ];
            words.concat()
        };
        for (bytes, says) in [
            (head(u16::MAX, meeting.token), "version 65535"),
            (head(WIRE_VERSION, meeting.token ^ 1), "another job"),
            (b"HELLO WORLD, HELLO WORLD".to_vec(), "another job"),
        ] {
            let mut socket = UnixStream::connect(&at).expect("it listens");
            socket.write_all(&bytes).expect("it takes it");
            let e = meeting
                .receive(ANSWER_TIME)
                .expect_err("refused")
                .to_string();
            assert!(e.contains(says), "{e}");
        }
        drop(meeting);
        // A folder that others may enter.
        let open = place.join(format!("osier-{}-{:016x}", user(), token_of("another")));
        DirBuilder::new()
            .mode(0o755)
            .create(&open)
            .expect("a folder");
        let e = Meeting::open(&place, "another", 1).expect_err("refused");
        assert_eq!(e.kind(), TransportErrorKind::Permission);
        fs::remove_dir_all(&place).expect("it goes");
    }
}
