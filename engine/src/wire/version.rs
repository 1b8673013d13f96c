//! Test of the wire version against the table of messages and their bodies.
//!
//! A number is derived from the table of messages and from the wire form of their bodies. A
//! change of either fails this test; then raise `osier_transports::WIRE_VERSION` by one and append
//! a line to [`VERSIONS`] here and in `transports/src/shm/layout.rs`. Existing lines are
//! not changed.

use super::offer::{self, Offer, Want};
use super::*;
use osier_kernels::handle::{EventHandle, Key, Made};
use osier_transports::{RegionKind, WIRE_VERSION};

/// Each version since this table exists, and the number of its messages.
const VERSIONS: &[(u16, u64)] = &[
    (4, 0x6386_983d_1989_85fe),
    (5, 0xab55_aed0_865d_0419),
    // The device of a key is its UUID.
    (6, 0xab55_aed0_865d_0419),
    (7, 0xab55_aed0_865d_0419),
    (8, 0xab55_aed0_865d_0419),
    (9, 0xab55_aed0_865d_0419),
    // Cells of a page have the length of their block at the front.
    (10, 0xab55_aed0_865d_0419),
    // Layouts of devices' memory come in parts.
    (11, 0x9d99_fc0f_23b2_ce2e),
    // Parts of 8 KiB, also in the mailbox's area.
    (12, 0x9d99_fc0f_23b2_ce2e),
    (13, 0x9d99_fc0f_23b2_ce2e),
    // Messages along edges of task graphs.
    (14, 0x74a4_221b_93c5_040f),
    // Several runs of a graph at once, long messages along edges.
    (15, 0xe008_52de_cf20_a582),
    // Messages between processes may be delayed.
    (16, 0xe008_52de_cf20_a582),
    // Ends of tasks are asked for; parked ranks.
    (17, 0xf0a0_0944_d89b_61ce),
    // Long messages of edges count as several in credit, and come in parts with their length.
    (18, 0x9fb0_d0f6_b684_3413),
    // One-sided access by messages.
    (19, 0xb3d4_e14f_dd90_6edb),
    // Slots of 256 KiB in shared memory.
    (20, 0xb3d4_e14f_dd90_6edb),
    // A short access in the sync blocks of windows.
    (21, 0xb3d4_e14f_dd90_6edb),
    // Several runs of an access, by messages and in the sync blocks of windows.
    (22, 0xb652_74a6_e9ee_f072),
    // Windows with parts on devices that not all ranks reach have a second communicator.
    (23, 0xb652_74a6_e9ee_f072),
    (24, 0xb652_74a6_e9ee_f072),
    // Agreements about failures; purposes of connections.
    (25, 0x5e49_f032_bdf3_3cda),
    // Revoked communicators.
    (26, 0x4ae2_6728_7a28_22e9),
];

/// FNV-1a over bytes, each piece with its length in front.
struct Digest(u64);

impl Digest {
    fn add(&mut self, bytes: &[u8]) {
        let length = (bytes.len() as u64).to_le_bytes();
        for byte in length.iter().chain(bytes) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

/// Of a table of messages, and of all other agreements of two lanes.
fn digest(kinds: &[Kind]) -> u64 {
    let mut digest = Digest(0xcbf2_9ce4_8422_2325);
    for kind in kinds {
        digest.add(kind.name.as_bytes());
        digest.add(&[kind.number]);
        for field in kind.fields {
            digest.add(field.as_bytes());
        }
    }
    for (name, value) in [
        ("KEYED", KEYED),
        ("CHECKED", CHECKED),
        ("ON_DEVICE", ON_DEVICE),
        ("OFFERED", OFFERED),
        ("LATE", LATE),
        ("NO_SLOTS", NO_SLOTS),
        ("DEVICE_SLOTS", DEVICE_SLOTS),
        ("LINKED", LINKED),
        ("OF_SLOTS", OF_SLOTS),
        ("OF_RECEIVE", OF_RECEIVE),
        ("OF_RUN", OF_RUN),
        ("GIVE_UP", GIVE_UP),
        ("NOT_WRITTEN", NOT_WRITTEN),
        ("NEVER", NEVER),
        ("MORE", MORE),
        ("OUTCOME_DONE", OUTCOME_DONE),
        ("OUTCOME_CANCELLED", OUTCOME_CANCELLED),
        ("OUTCOME_CLOSED", OUTCOME_CLOSED),
        ("OUTCOME_REVOKED", OUTCOME_REVOKED),
        ("RETIRED", RETIRED),
    ] {
        digest.add(name.as_bytes());
        digest.add(&value.to_le_bytes());
    }
    for bytes in [
        WINDOW_BYTES,
        TOTAL_BYTES,
        offer::LAYOUTS,
        offer::LAYOUT_PART_BYTES,
        offer::LAYOUT_BYTES,
    ] {
        digest.add(&bytes.to_le_bytes());
    }
    for body in bodies() {
        digest.add(&body);
    }
    digest.0
}

/// The wire form of a body of each kind.
fn bodies() -> Vec<Vec<u8>> {
    let key = RegionKey {
        kind: RegionKind::Process,
        owner: 0x0102_0304,
        base: 0x1112_1314_1516_1718,
        bytes: 0x2122_2324,
    };
    // A key bears the version, which is not part of its content.
    let versionless = |mut bytes: Vec<u8>, at: usize| {
        bytes[at + 2..at + 4].fill(0);
        bytes
    };
    let mut bodies = Vec::new();
    let announced = |reach| {
        let total = key.bytes;
        let (bytes, length, aux) = RtsBody { total, reach }.to_wire();
        (bytes[..length].to_vec(), aux)
    };
    let (bytes, _) = announced(Reach::Nothing);
    bodies.push(bytes);
    let (bytes, _) = announced(Reach::Key(key));
    bodies.push(versionless(bytes, TOTAL_BYTES));
    for made in Made::ALL {
        for (layout, when) in [
            (offer::LayoutRef::Contiguous, offer::When::Passed),
            (offer::LayoutRef::Absent, offer::When::Signalled),
            (
                offer::LayoutRef::Slot(7),
                offer::When::Event(EventHandle([0x5a; 64])),
            ),
        ] {
            let offer = Offer {
                key: Key {
                    made,
                    device: [0x31; 16],
                    identity: 0x4142_4344_4546_4748,
                    start: 0x51,
                    bytes: 0x61,
                    handle: [0x71; 64],
                },
                origin: 0x8182_8384,
                count: 0x9192_9394,
                layout,
                when,
            };
            bodies.push(offer.to_wire().to_vec());
        }
    }
    let share = RearPutBody {
        key,
        from: 0xa1a2_a3a4,
    };
    bodies.push(versionless(share.to_wire().to_vec(), 0));
    let want = Want {
        number: 0xb1b2_b3b4,
        socket: [0xc1; 16],
    };
    bodies.push(want.to_wire().to_vec());
    let check_body = CheckBody {
        digest: Some(SignatureDigest {
            elements: 0xd1d2,
            hash: 0xe1e2,
        }),
        types: "f64 x 6".into(),
        file: "src/main.rs".into(),
        line: 31,
        ready: true,
    };
    bodies.push(check_body.to_wire());
    bodies
}

#[test]
fn a_version_stands_for_one_table() {
    let now = (WIRE_VERSION, digest(KINDS));
    assert_eq!(
        VERSIONS.last(),
        Some(&now),
        "what lanes say to each other and WIRE_VERSION have not changed together: raise the \
         version by one, and append it with {:#018x}, also in transports/src/shm/layout.rs",
        now.1
    );
    for pair in VERSIONS.windows(2) {
        assert_eq!(pair[0].0 + 1, pair[1].0, "versions follow each other");
    }
}

#[test]
fn every_change_of_the_table_is_seen() {
    let copy = || -> Vec<Kind> {
        let each = |kind: &Kind| Kind { ..*kind };
        KINDS.iter().map(each).collect()
    };
    let now = digest(KINDS);
    assert_eq!(digest(&copy()), now);
    let mut fewer = copy();
    fewer.pop();
    let mut another = copy();
    another[3].number = 99;
    let mut renamed = copy();
    renamed[3].name = "OTHER";
    let mut more = copy();
    more[21].fields[0] = "1 = it never is, 2 = perhaps";
    let mut moved = copy();
    moved[0].fields.swap(1, 2);
    for changed in [fewer, another, renamed, more, moved] {
        assert_ne!(digest(&changed), now);
    }
    let numbers: std::collections::BTreeSet<u8> = KINDS.iter().map(|kind| kind.number).collect();
    assert_eq!(numbers.len(), KINDS.len(), "a number for each kind");
    for kind in KINDS {
        assert_eq!(name(kind.number), kind.name);
    }
}
