//! Inboxes of exchanges: how a rank offers its own, and opens those of the others.
//!
//! ```text
//! plain            inbox -> offers -> exchange
//! by multicast     grouping -> words -> sent -> joined: inbox -> offers -> bound, sent -> exchange
//! ```
//!
//! At each arrow of a group all ranks agree that all have come so far (its caller's duty).
//! The group, and inboxes that are bound to it, go to other ranks as descriptors: who wants
//! one asks for it under a number ([`crate::device::descriptors`]).
//!
//! # Invariants
//! 1. A number that was asked by is taken or forgotten before what has asked is dropped.
//! 2. Threads of this process find an inbox by a number for as long as its rank has it as
//!    an [`Inbox`], and then keep the memory themselves.

use crate::device::Devices;
use crate::device::descriptors::Asked;
use osier_kernels::exchange::{Exchange, INBOX_BYTES, MOST_RANKS};
use osier_kernels::handle::{Key, Piece, export_pieces};
use osier_kernels::{Context, DeviceError, Memory, MulticastGroup, MulticastWindow, Stream};
use osier_transports::cuda_ipc::{self, NAME_BYTES};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Words in which a rank offers its inbox: that it does, its number in this process, the
/// key, and how it asks for descriptors: a name, and a number for each rank.
pub const OFFER_WORDS: usize = 2 + KEY_WORDS + NAME_WORDS + MOST_RANKS;
/// Words in which rank 0 tells of a group, that it does and what it is imported by, and in
/// which others ask for it: that they do, number and name.
pub const GROUP_WORDS: usize = 2 + NAME_WORDS;

const KEY_WORDS: usize = Key::WIRE_BYTES.div_ceil(8);
const NAME_WORDS: usize = NAME_BYTES.div_ceil(8);
const NAME_AT: usize = 2 + KEY_WORDS;
const NUMBERS_AT: usize = NAME_AT + NAME_WORDS;

/// Inboxes of this process, by number (invariant 2).
static OFFERED: Mutex<BTreeMap<u64, Weak<Memory>>> = Mutex::new(BTreeMap::new());

/// Another rank, or this one.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Its rank in the job.
    pub world: u32,
    /// It is a thread of this process.
    pub here: bool,
    /// The process that it is of, if its number counts here.
    pub process: Option<u32>,
}

/// The inbox of this rank.
#[derive(Debug)]
pub struct Inbox {
    context: Context,
    memory: Arc<Memory>,
    /// Under which threads of this process find it.
    number: u64,
    /// Of one that is bound to a group: the group, how descriptors of the others are asked
    /// for, by rank, and the window, when it is bound.
    group: Option<(MulticastGroup, Vec<Option<Asked>>)>,
    window: Option<MulticastWindow>,
}

impl Inbox {
    /// On a device.
    ///
    /// # Errors
    /// The device has no room, or the driver refuses.
    pub fn new(context: &Context) -> Result<Inbox, DeviceError> {
        let memory = Exchange::inbox(&Stream::uncaptured(context)?)?;
        Ok(Inbox::of(context, memory, None))
    }

    fn of(
        context: &Context,
        memory: Arc<Memory>,
        group: Option<(MulticastGroup, Vec<Option<Asked>>)>,
    ) -> Inbox {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        offered().insert(number, Arc::downgrade(&memory));
        Inbox {
            context: context.clone(),
            memory,
            number,
            group,
            window: None,
        }
    }

    /// What the others open it by; the first word is not zero.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn offer(&self) -> Result<[u64; OFFER_WORDS], DeviceError> {
        let start = self.memory.address();
        let key = Key::of(&self.memory, start..start + self.memory.bytes() as u64)?;
        let mut words = [0; OFFER_WORDS];
        (words[0], words[1]) = (1, self.number);
        pack(&key.to_wire(), &mut words[2..NAME_AT]);
        if let Some((_, asked)) = &self.group {
            for (asked, number) in asked.iter().zip(&mut words[NUMBERS_AT..]) {
                *number = asked.as_ref().map_or(0, |asked| asked.number);
            }
            if let Some(asked) = asked.iter().flatten().next() {
                pack(&asked.name, &mut words[NAME_AT..NUMBERS_AT]);
            }
        }
        Ok(words)
    }

    /// Binds it to its group, and sends its descriptors to all who have asked in their
    /// offers. Called when all devices have joined.
    ///
    /// # Errors
    /// It has no group; the driver or the system refuses.
    pub fn bind(&mut self, rank: usize, offers: &[[u64; OFFER_WORDS]]) -> Result<(), DeviceError> {
        let none = || unavailable("an inbox without a group");
        let (group, _) = self.group.as_ref().ok_or_else(none)?;
        self.window = Some(group.bind(&self.memory)?);
        let start = self.memory.address();
        let range = start..start + self.memory.bytes() as u64;
        let pieces = export_pieces(&self.context, range)?;
        for words in offers {
            let number = words[NUMBERS_AT + rank];
            if number != 0 {
                send(number, &words[NAME_AT..NUMBERS_AT], &pieces)?;
            }
        }
        Ok(())
    }

    /// Opens the inboxes that all ranks offer, this one of rank `rank` among them. Of a
    /// group: when all have bound. Should only the kernels with multicast be missing, this
    /// rank goes on without them.
    ///
    /// # Errors
    /// One cannot be opened or reached; no more exchanges fit on the device; the driver
    /// refuses.
    pub fn exchange(
        &mut self,
        devices: &Devices,
        rank: usize,
        offers: &[[u64; OFFER_WORDS]],
        peer: impl Fn(usize) -> Peer,
    ) -> Result<Exchange, DeviceError> {
        let open = |(of, words): (usize, &[u64; OFFER_WORDS])| {
            if of == rank {
                return Ok(self.memory.clone());
            }
            self.open(devices, (of, peer(of)), words)
        };
        let all: Result<Vec<_>, _> = offers.iter().enumerate().map(open).collect();
        let mut exchange = Exchange::new(&self.context, rank, all?)?;
        if let Some(window) = &self.window {
            let _ = exchange.use_multicast(window);
        }
        Ok(exchange)
    }

    fn open(
        &self,
        devices: &Devices,
        (of, peer): (usize, Peer),
        words: &[u64; OFFER_WORDS],
    ) -> Result<Arc<Memory>, DeviceError> {
        if peer.here {
            let known = offered().get(&words[1]).and_then(Weak::upgrade);
            return known.ok_or_else(|| unavailable("an inbox that is gone"));
        }
        let key = Key::from_wire(&bytes::<{ Key::WIRE_BYTES }>(&words[2..NAME_AT]));
        let key = key.ok_or_else(|| unavailable("an offer that is no key"))?;
        let asked = self.group.as_ref().and_then(|(_, all)| all[of].as_ref());
        let pieces = asked.map_or(Ok(Vec::new()), taken)?;
        let opener = (peer.world, self.context.ordinal());
        let opened = devices.open(opener, &self.context, &key, &pieces)?;
        opened.ok_or_else(|| unavailable("no room for another mapping"))
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        offered().remove(&self.number);
    }
}

/// The multicast group of all ranks' inboxes while they join it.
#[derive(Debug)]
pub struct Grouping {
    context: Context,
    part: Part,
}

#[derive(Debug)]
enum Part {
    /// Rank 0 makes it.
    Makes(MulticastGroup, [u8; MulticastGroup::WIRE_BYTES], Vec<Piece>),
    /// Others import it.
    Imports(Asked),
}

impl Grouping {
    /// Rank 0 creates a group of `size` ranks; every other rank asks rank 0, `first`, for it.
    ///
    /// # Errors
    /// There is no multicast; the driver or the system refuses.
    pub fn new(
        devices: &Arc<Devices>,
        context: &Context,
        (rank, size): (usize, usize),
        first: Peer,
    ) -> Result<Grouping, DeviceError> {
        let part = if rank == 0 {
            let group = MulticastGroup::create(context, size, INBOX_BYTES)?;
            let (wire, descriptor) = group.export()?;
            let pieces = vec![(group.bytes() as u64, descriptor)];
            Part::Makes(group, wire, pieces)
        } else {
            Part::Imports(Asked::of(devices, first.process).map_err(refused)?)
        };
        let context = context.clone();
        Ok(Grouping { context, part })
    }

    /// What this rank tells the others; the first word is not zero.
    pub fn words(&self) -> [u64; GROUP_WORDS] {
        let mut words = [1; GROUP_WORDS];
        match &self.part {
            Part::Makes(_, wire, _) => pack(wire, &mut words[1..]),
            Part::Imports(asked) => {
                words[1] = asked.number;
                pack(&asked.name, &mut words[2..]);
            }
        }
        words
    }

    /// Rank 0 sends the descriptor to all others; they do nothing.
    ///
    /// # Errors
    /// The system refuses.
    pub fn send(&self, told: &[[u64; GROUP_WORDS]]) -> Result<(), DeviceError> {
        let Part::Makes(_, _, pieces) = &self.part else {
            return Ok(());
        };
        let mut others = told.iter().skip(1);
        others.try_for_each(|words| send(words[1], &words[2..], pieces))
    }

    /// Joins, when rank 0 has sent, and makes the inbox that is to be bound; `peers` has all
    /// ranks.
    ///
    /// # Errors
    /// The descriptor has not come; the device is on another switch, or has no room; the
    /// driver refuses.
    pub fn join(
        self,
        devices: &Arc<Devices>,
        told: &[[u64; GROUP_WORDS]],
        peers: impl IntoIterator<Item = Peer>,
    ) -> Result<Inbox, DeviceError> {
        let context = &self.context;
        let group = match self.part {
            Part::Makes(group, ..) => group,
            Part::Imports(asked) => {
                let wire: [u8; MulticastGroup::WIRE_BYTES] = bytes(&told[0][1..]);
                let pieces = taken(&asked)?;
                let [(_, descriptor)] = &pieces[..] else {
                    return Err(unavailable("a group of several descriptors"));
                };
                MulticastGroup::import(context, &wire, descriptor)?
            }
        };
        group.join(context)?;
        let memory = Exchange::inbox_for(&Stream::uncaptured(context)?, &group)?;
        let ask = |peer: Peer| match peer.here {
            true => Ok(None),
            false => Asked::of(devices, peer.process).map(Some).map_err(refused),
        };
        let asked: Result<_, _> = peers.into_iter().map(ask).collect();
        Ok(Inbox::of(context, memory, Some((group, asked?))))
    }
}

/// What was sent of descriptors that were asked for.
fn taken(asked: &Asked) -> Result<Vec<Piece>, DeviceError> {
    let taken = asked.take();
    taken.ok_or_else(|| unavailable("descriptors that have not come"))
}

fn send(number: u64, name: &[u64], pieces: &[Piece]) -> Result<(), DeviceError> {
    cuda_ipc::send(&bytes(name), number, pieces).map_err(refused)
}

fn offered() -> std::sync::MutexGuard<'static, BTreeMap<u64, Weak<Memory>>> {
    OFFERED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unavailable(why: &str) -> DeviceError {
    DeviceError::Unavailable(why.into())
}

fn refused(error: osier_transports::TransportError) -> DeviceError {
    DeviceError::Unavailable(error.to_string())
}

/// Bytes in words, the last of them filled with zeros.
fn pack(bytes: &[u8], words: &mut [u64]) {
    for (word, bytes) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut eight = [0; 8];
        eight[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(eight);
    }
}

/// The first bytes of words.
fn bytes<const N: usize>(words: &[u64]) -> [u8; N] {
    let mut all = words.iter().flat_map(|word| word.to_le_bytes());
    std::array::from_fn(|_| all.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use osier_transports::cuda_ipc::Name;

    #[test]
    fn bytes_come_out_of_words_as_they_went_in() {
        let name: Name = std::array::from_fn(|i| i as u8 + 1);
        let mut words = [0; NAME_WORDS];
        pack(&name, &mut words);
        assert_eq!(bytes::<NAME_BYTES>(&words), name);
        let key: [u8; Key::WIRE_BYTES] = std::array::from_fn(|i| !(i as u8));
        let mut words = [u64::MAX; KEY_WORDS];
        pack(&key, &mut words);
        assert_eq!(bytes::<{ Key::WIRE_BYTES }>(&words), key);
    }

    #[test]
    fn a_number_is_forgotten_with_what_has_asked() {
        let devices = Arc::new(Devices::default());
        let asked = Asked::of(&devices, None).expect("a socket");
        assert!(asked.take().is_none());
        assert_eq!(devices.descriptors.awaited(), 1);
        let file = std::fs::File::open("/dev/null").expect("a file");
        let mut words = [0; NAME_WORDS];
        pack(&asked.name, &mut words);
        send(asked.number, &words, &[(7, file.into())]).expect("sent");
        let taken = asked.take().expect("one");
        assert_eq!(taken[0].0, 7);
        let other = Asked::of(&devices, None).expect("a socket");
        assert_eq!(devices.descriptors.awaited(), 1);
        drop((asked, other));
        assert_eq!(devices.descriptors.awaited(), 0);
    }
}
