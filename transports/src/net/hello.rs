//! The handshake of a connection: each end proves that it has the job's key.
//!
//! ```text
//! dialer                         acceptor
//! HELLO  who, nonce         ->
//!                           <-   ANSWER  who, nonce, proof
//! PROOF  proof              ->
//!                           <-   VERDICT accepted, or why not
//! ```
//!
//! A proof is a keyed hash over role, version, purpose, job, both identities and both nonces: what was
//! heard on another connection proves nothing on this one, and what one end has said is no
//! answer of the other. The key itself never travels here. Data are not encrypted.
//!
//! Pure: bytes come in, bytes go out. [`Dialer`] and [`Acceptor`] hold a few hundred bytes,
//! whatever a stranger sends.
//!
//! # Sources
//! HMAC: RFC 2104; SHA-256: FIPS 180-4.

use crate::contract::WIRE_VERSION;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;

const MAGIC: [u8; 6] = *b"OSIER\0";
const PROOF_BYTES: usize = 32;
const NONCE_BYTES: usize = 32;
/// Magic, version, kind, purpose, job, from, to.
const WHO_BYTES: usize = 6 + 2 + 2 + 8 + 4 + 4;
const HELLO_BYTES: usize = WHO_BYTES + NONCE_BYTES;
const ANSWER_BYTES: usize = HELLO_BYTES + PROOF_BYTES;
const VERDICT_BYTES: usize = 8;
/// The longest of them.
const LONGEST: usize = ANSWER_BYTES;

const HELLO: u8 = 1;
const ANSWER: u8 = 2;

/// The secret of a job.
#[derive(Clone, PartialEq, Eq)]
pub struct JobKey([u8; 32]);

impl fmt::Debug for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobKey(..)")
    }
}

impl JobKey {
    /// A new one.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn random() -> Result<Self, String> {
        random().map(Self)
    }

    /// In digits, for a launcher to pass on.
    pub fn to_text(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads [`JobKey::to_text`].
    pub fn of_text(text: &str) -> Option<Self> {
        let mut key = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        for (at, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(Self(key))
    }
}

/// Random bytes of the system.
fn random() -> Result<[u8; 32], String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|e| format!("random numbers of the system: {e}"))?;
    Ok(bytes)
}

/// What a connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Purpose {
    /// Messages and regions.
    Data = 1,
    /// News of ends of ranks.
    News = 2,
}

impl Purpose {
    fn of_wire(w: u8) -> Option<Self> {
        match w {
            1 => Some(Self::Data),
            2 => Some(Self::News),
            _ => None,
        }
    }
}

/// Who joins whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub purpose: Purpose,
    pub job: u64,
    /// The rank that dials, and the one that it calls.
    pub dialer: u32,
    pub acceptor: u32,
}

/// How an acceptor decides about a dialer that has proved itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Verdict {
    Accepted = 1,
    /// The acceptor calls the dialer at the same time, and its call is the one that stays.
    Crossed = 2,
    /// There is a connection already.
    There = 3,
    /// The dialer was declared dead here.
    Fenced = 4,
    /// The acceptor leaves the job.
    Leaves = 5,
}

impl Verdict {
    fn of_wire(w: u8) -> Option<Self> {
        Some(match w {
            1 => Self::Accepted,
            2 => Self::Crossed,
            3 => Self::There,
            4 => Self::Fenced,
            5 => Self::Leaves,
            _ => return None,
        })
    }
}

/// Why a handshake failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BadHello {
    /// Something else than Osier.
    Foreign,
    Version(u16),
    Job,
    /// It wants, or is, another rank.
    Rank {
        wanted: u32,
        found: u32,
    },
    Proof,
    Order,
    Closed,
    Silent,
}

impl fmt::Display for BadHello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("another program answers there"),
            Self::Version(other) => write!(
                f,
                "it speaks version {other} of the protocol, and this rank {WIRE_VERSION} (hint: all ranks run the same version of Osier)"
            ),
            Self::Job => f.write_str("a rank of another job answers there"),
            Self::Rank { wanted, found } => {
                write!(f, "rank {found} answers there, not rank {wanted}")
            }
            Self::Proof => f.write_str("it does not have the job's key"),
            Self::Order => f.write_str("it does not keep to the handshake"),
            Self::Closed => f.write_str("it closed the connection during the handshake"),
            Self::Silent => f.write_str("it did not finish the handshake in time"),
        }
    }
}

type Nonce = [u8; NONCE_BYTES];

fn proof(key: &JobKey, role: &[u8; 8], pair: Pair, nonces: [&Nonce; 2]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(&key.0).unwrap_or_else(|_| unreachable!());
    mac.update(role);
    mac.update(&WIRE_VERSION.to_le_bytes());
    mac.update(&[pair.purpose as u8]);
    mac.update(&pair.job.to_le_bytes());
    mac.update(&pair.dialer.to_le_bytes());
    mac.update(&pair.acceptor.to_le_bytes());
    mac.update(nonces[0]);
    mac.update(nonces[1]);
    mac
}

const OF_DIALER: &[u8; 8] = b"dialer\0\0";
const OF_ACCEPTOR: &[u8; 8] = b"acceptor";

fn who(kind: u8, pair: Pair) -> [u8; WHO_BYTES] {
    let mut w = [0; WHO_BYTES];
    w[..6].copy_from_slice(&MAGIC);
    w[6..8].copy_from_slice(&WIRE_VERSION.to_le_bytes());
    w[8] = kind;
    w[9] = pair.purpose as u8;
    w[10..18].copy_from_slice(&pair.job.to_le_bytes());
    w[18..22].copy_from_slice(&pair.dialer.to_le_bytes());
    w[22..26].copy_from_slice(&pair.acceptor.to_le_bytes());
    w
}

/// Parses [`who`].
fn of_who(w: &[u8], kind: u8) -> Result<Pair, BadHello> {
    let word = |at: usize| u32::from_le_bytes([w[at], w[at + 1], w[at + 2], w[at + 3]]);
    if w[..6] != MAGIC {
        return Err(BadHello::Foreign);
    }
    let version = u16::from_le_bytes([w[6], w[7]]);
    if version != WIRE_VERSION {
        return Err(BadHello::Version(version));
    }
    let purpose = Purpose::of_wire(w[9]).filter(|_| w[8] == kind);
    Ok(Pair {
        purpose: purpose.ok_or(BadHello::Order)?,
        job: u64::from(word(14)) << 32 | u64::from(word(10)),
        dialer: word(18),
        acceptor: word(22),
    })
}

fn nonce_at(w: &[u8], at: usize) -> Nonce {
    let mut nonce = [0; NONCE_BYTES];
    nonce.copy_from_slice(&w[at..at + NONCE_BYTES]);
    nonce
}

/// Bytes of a step that have come.
struct Step {
    bytes: [u8; LONGEST],
    have: usize,
    want: usize,
}

impl Step {
    fn of(want: usize) -> Self {
        Self {
            bytes: [0; LONGEST],
            have: 0,
            want,
        }
    }

    /// Where bytes go that are still wanted: no more are read than belong to the step.
    fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.have..self.want]
    }

    fn whole(&self) -> &[u8] {
        &self.bytes[..self.want]
    }
}

/// What an end does next.
#[derive(Debug)]
pub(super) enum Next {
    /// It waits for more bytes.
    Wait,
    /// It sends these, and waits.
    Say(Vec<u8>),
    /// Of an acceptor: the dialer has proved itself.
    Proved(Pair),
    /// Of a dialer: the acceptor has decided.
    Decided(Verdict),
}

/// The end that calls.
pub(super) struct Dialer {
    key: JobKey,
    pair: Pair,
    nonce: Nonce,
    step: Step,
    /// The acceptor has proved itself.
    proved: bool,
}

impl Dialer {
    /// A handshake, and the bytes to send first.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn new(key: &JobKey, pair: Pair) -> Result<(Self, Vec<u8>), String> {
        let nonce = random()?;
        let mut hello = who(HELLO, pair).to_vec();
        hello.extend(nonce);
        let dialer = Self {
            key: key.clone(),
            pair,
            nonce,
            step: Step::of(ANSWER_BYTES),
            proved: false,
        };
        Ok((dialer, hello))
    }

    /// Where bytes that have come go; [`Dialer::take`] takes them.
    pub fn room(&mut self) -> &mut [u8] {
        self.step.room()
    }

    /// Takes that many bytes that were written to [`Dialer::room`].
    pub fn take(&mut self, bytes: usize) -> Result<Next, BadHello> {
        self.step.have += bytes;
        if !self.proved && self.step.have >= WHO_BYTES {
            // What another program says may be shorter than an answer.
            of_who(self.step.whole(), ANSWER)?;
        }
        if self.step.have < self.step.want {
            return Ok(Next::Wait);
        }
        let said = self.step.whole();
        if self.proved {
            let verdict = Verdict::of_wire(said[0]).filter(|_| said[1..] == [0; 7]);
            return verdict.map(Next::Decided).ok_or(BadHello::Order);
        }
        let pair = of_who(said, ANSWER)?;
        if pair.job != self.pair.job {
            return Err(BadHello::Job);
        }
        if pair != self.pair {
            let (wanted, found) = (self.pair.acceptor, pair.acceptor);
            return Err(BadHello::Rank { wanted, found });
        }
        let theirs = nonce_at(said, WHO_BYTES);
        let nonces = [&self.nonce, &theirs];
        proof(&self.key, OF_ACCEPTOR, pair, nonces)
            .verify_slice(&said[HELLO_BYTES..])
            .map_err(|_| BadHello::Proof)?;
        let own = proof(&self.key, OF_DIALER, pair, nonces).finalize();
        self.proved = true;
        self.step = Step::of(VERDICT_BYTES);
        Ok(Next::Say(own.into_bytes().to_vec()))
    }
}

/// The end that is called.
pub(super) struct Acceptor {
    key: JobKey,
    job: u64,
    rank: u32,
    step: Step,
    /// Once it has answered: who calls, and both nonces.
    answered: Option<(Pair, Nonce, Nonce)>,
}

impl Acceptor {
    /// Of a rank that was called.
    pub fn new(key: &JobKey, job: u64, rank: u32) -> Self {
        Self {
            key: key.clone(),
            job,
            rank,
            step: Step::of(HELLO_BYTES),
            answered: None,
        }
    }

    /// Where bytes that have come go; [`Acceptor::take`] takes them.
    pub fn room(&mut self) -> &mut [u8] {
        self.step.room()
    }

    /// Takes that many bytes that were written to [`Acceptor::room`].
    pub fn take(&mut self, bytes: usize) -> Result<Next, BadHello> {
        self.step.have += bytes;
        if self.answered.is_none() && self.step.have >= WHO_BYTES {
            of_who(self.step.whole(), HELLO)?;
        }
        if self.step.have < self.step.want {
            return Ok(Next::Wait);
        }
        let said = self.step.whole();
        if let Some((pair, theirs, own)) = &self.answered {
            return proof(&self.key, OF_DIALER, *pair, [theirs, own])
                .verify_slice(said)
                .map(|()| Next::Proved(*pair))
                .map_err(|_| BadHello::Proof);
        }
        let pair = of_who(said, HELLO)?;
        if pair.job != self.job {
            return Err(BadHello::Job);
        }
        let theirs = nonce_at(said, WHO_BYTES);
        // A dialer that looks for another rank is told who answers, so that it can say so.
        let pair = Pair {
            acceptor: self.rank,
            ..pair
        };
        let own = random().map_err(|_| BadHello::Closed)?;
        let mut answer = who(ANSWER, pair).to_vec();
        answer.extend(own);
        let mac = proof(&self.key, OF_ACCEPTOR, pair, [&theirs, &own]).finalize();
        answer.extend(mac.into_bytes());
        self.answered = Some((pair, theirs, own));
        self.step = Step::of(PROOF_BYTES);
        Ok(Next::Say(answer))
    }

    /// Whether the caller has said who it is, and was answered.
    pub fn has_answered(&self) -> bool {
        self.answered.is_some()
    }

    /// What tells the dialer of a decision.
    pub fn verdict(verdict: Verdict) -> [u8; VERDICT_BYTES] {
        let mut w = [0; VERDICT_BYTES];
        w[0] = verdict as u8;
        w
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAIR: Pair = Pair {
        purpose: Purpose::Data,
        job: 0x1234_5678_9abc_def0,
        dialer: 3,
        acceptor: 5,
    };

    fn key() -> JobKey {
        JobKey([7; 32])
    }

    /// Feeds bytes in pieces; what it does at the end of them.
    macro_rules! feed {
        ($end:expr, $bytes:expr, $piece:expr) => {{
            let mut last = Ok(Next::Wait);
            for piece in $bytes.chunks($piece) {
                $end.room()[..piece.len()].copy_from_slice(piece);
                last = $end.take(piece.len());
                if last.is_err() {
                    break;
                }
            }
            last
        }};
    }

    fn said(next: Result<Next, BadHello>) -> Vec<u8> {
        match next {
            Ok(Next::Say(bytes)) => bytes,
            other => panic!("it says nothing: {other:?}"),
        }
    }

    #[test]
    fn two_ends_with_the_key_meet() {
        for piece in [1, 7, 1000] {
            let (mut dialer, hello) = Dialer::new(&key(), PAIR).expect("numbers");
            let mut acceptor = Acceptor::new(&key(), PAIR.job, 5);
            let answer = said(feed!(acceptor, hello, piece));
            let proof = said(feed!(dialer, answer, piece));
            let proved = feed!(acceptor, proof, piece);
            assert!(matches!(proved, Ok(Next::Proved(PAIR))), "{proved:?}");
            let verdict = Acceptor::verdict(Verdict::Crossed);
            let decided = feed!(dialer, verdict, piece);
            assert!(matches!(decided, Ok(Next::Decided(Verdict::Crossed))));
        }
    }

    #[test]
    fn others_are_told_apart() {
        let other = JobKey([8; 32]);
        let answers = |key: &JobKey, job, rank| {
            let (mut dialer, hello) = Dialer::new(&self::key(), PAIR).expect("numbers");
            let mut acceptor = Acceptor::new(key, job, rank);
            match feed!(acceptor, hello, 100) {
                Ok(Next::Say(answer)) => feed!(dialer, answer, 200).map(drop),
                other => other.map(drop),
            }
        };
        assert_eq!(answers(&key(), PAIR.job, 5), Ok(()));
        assert_eq!(answers(&other, PAIR.job, 5), Err(BadHello::Proof));
        assert_eq!(answers(&key(), 1, 5), Err(BadHello::Job));
        let found = BadHello::Rank {
            wanted: 5,
            found: 6,
        };
        assert_eq!(answers(&key(), PAIR.job, 6), Err(found));
        // A dialer without the key.
        let (mut dialer, hello) = Dialer::new(&other, PAIR).expect("numbers");
        let mut acceptor = Acceptor::new(&key(), PAIR.job, 5);
        let answer = said(feed!(acceptor, hello, 100));
        assert_eq!(feed!(dialer, answer, 200).map(drop), Err(BadHello::Proof));
        assert_eq!(feed!(acceptor, [9; 32], 32).map(drop), Err(BadHello::Proof));
    }

    /// What was heard on one connection proves nothing on another, nor what one end has said
    /// as an answer of the other.
    #[test]
    fn replays_prove_nothing() {
        let (mut dialer, hello) = Dialer::new(&key(), PAIR).expect("numbers");
        let mut acceptor = Acceptor::new(&key(), PAIR.job, 5);
        let answer = said(feed!(acceptor, hello, 100));
        let proof = said(feed!(dialer, answer, 200));
        let mut again = Acceptor::new(&key(), PAIR.job, 5);
        said(feed!(again, hello, 100));
        assert_eq!(feed!(again, proof, 32).map(drop), Err(BadHello::Proof));
        let mut reflected = Acceptor::new(&key(), PAIR.job, 5);
        let own = said(feed!(reflected, hello, 100));
        let back = feed!(reflected, own[HELLO_BYTES..], 32);
        assert_eq!(back.map(drop), Err(BadHello::Proof));
    }

    #[test]
    fn other_versions_and_programs_are_named_at_once() {
        let (_, hello) = Dialer::new(&key(), PAIR).expect("numbers");
        let with = |at: usize, to: u8| {
            let mut hello = hello.clone();
            hello[at] = to;
            let mut acceptor = Acceptor::new(&key(), PAIR.job, 5);
            feed!(acceptor, hello[..WHO_BYTES], 100).expect_err("refused")
        };
        assert_eq!(with(0, b'X'), BadHello::Foreign);
        assert!(matches!(with(6, 0xff), BadHello::Version(_)));
        assert_eq!(with(8, ANSWER), BadHello::Order);
        let (mut dialer, _) = Dialer::new(&key(), PAIR).expect("numbers");
        let http = b"HTTP/1.1 400 Bad Request\r\n\r\n";
        assert_eq!(feed!(dialer, http, 100).map(drop), Err(BadHello::Foreign));
    }

    proptest! {
        /// A bit that changes on the way is found, wherever it is: but in whom a dialer looks
        /// for, as the acceptor says who it is.
        #[test]
        fn no_bit_may_change(at in 0..8 * (HELLO_BYTES + ANSWER_BYTES + PROOF_BYTES)) {
            prop_assume!(!(22..26).contains(&(at / 8)));
            let (mut dialer, mut hello) = Dialer::new(&key(), PAIR).expect("numbers");
            let mut acceptor = Acceptor::new(&key(), PAIR.job, 5);
            let flip = |bytes: &mut Vec<u8>, from: usize| {
                let place = (at / 8).checked_sub(from);
                if let Some(byte) = place.and_then(|place| bytes.get_mut(place)) {
                    *byte ^= 1 << (at % 8);
                }
            };
            flip(&mut hello, 0);
            let end = (|| {
                let Next::Say(mut answer) = feed!(acceptor, hello, 100)? else {
                    return Ok(Next::Wait);
                };
                flip(&mut answer, HELLO_BYTES);
                let Next::Say(mut proof) = feed!(dialer, answer, 200)? else {
                    return Ok(Next::Wait);
                };
                flip(&mut proof, HELLO_BYTES + ANSWER_BYTES);
                feed!(acceptor, proof, 100)
            })();
            prop_assert!(!matches!(end, Ok(Next::Proved(_))), "{:?}", end);
        }

        /// Whatever a stranger sends, nothing panics, and nobody is let in.
        #[test]
        fn strangers_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut acceptor = Acceptor::new(&key(), PAIR.job, 5);
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let room = acceptor.room();
                let n = room.len().min(rest.len());
                room[..n].copy_from_slice(&rest[..n]);
                rest = &rest[n..];
                match acceptor.take(n) {
                    Ok(Next::Wait) => {}
                    Ok(other) => prop_assert!(false, "{:?}", other),
                    Err(_) => break,
                }
            }
        }

        #[test]
        fn keys_survive_the_way(key: [u8; 32]) {
            let key = JobKey(key);
            prop_assert_eq!(JobKey::of_text(&key.to_text()), Some(key));
        }
    }

    #[test]
    fn keys_are_not_shown_and_not_guessed() {
        assert_eq!(format!("{:?}", key()), "JobKey(..)");
        assert_ne!(JobKey::random(), JobKey::random());
        for bad in ["", "00", &"0".repeat(63), &"g".repeat(64), &"ä".repeat(32)] {
            assert_eq!(JobKey::of_text(bad), None, "{bad}");
        }
    }
}
