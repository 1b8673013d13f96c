//! Test of the wire version against the layout of shared memory.
//!
//! Launcher and ranks may come from two builds, and only the version tells them. Who moves or
//! adds a field raises [`WIRE_VERSION`] by one and appends a line to [`VERSIONS`] here and in
//! `engine/src/wire/version.rs`. Lines that stand there are not changed.

use super::collective::{FlagLine, HEAD_OF_AT, Head, PAGE_BYTES, SLOT_BYTES};
use super::rank::Level;
use super::segment::{JobHeader, RankControl};
use super::status::StatusPage;
use super::{NOTE_BYTES, STATUS_WORDS, mailbox, ring};
use crate::contract::{AmHead, RegionKey, WIRE_VERSION};
use std::mem::{offset_of, size_of};

/// Versions, and the number of what lies in shared memory.
const VERSIONS: &[(u16, u64)] = &[
    (4, 0x3fe3_bb30_6279_3541),
    (5, 0x3fe3_bb30_6279_3541),
    (6, 0x3fe3_bb30_6279_3541),
    (7, 0x7a8e_4025_d2b2_e1c8),
    (8, 0xe595_1efc_a3eb_940b),
    (9, 0x174b_04cc_0ffb_3442),
    (10, 0x174b_04cc_0ffb_3442),
    (11, 0x174b_04cc_0ffb_3442),
    (12, 0xc4b8_d45c_0d3f_aedc),
    // Slots of 132 KiB.
    (13, 0xe14e_af4e_bb4b_c62f),
    // Messages along edges of task graphs.
    (14, 0xe14e_af4e_bb4b_c62f),
    // Several runs of a graph at once, long messages along edges.
    (15, 0xe14e_af4e_bb4b_c62f),
    // Messages between processes may be delayed.
    (16, 0xe3a5_06a4_51b7_8f27),
    // Ends of tasks are asked for; parked ranks.
    (17, 0xe3a5_06a4_51b7_8f27),
    (18, 0xe3a5_06a4_51b7_8f27),
    // Keys of windows.
    (19, 0xe3a5_06a4_51b7_8f27),
    // Slots of 256 KiB.
    (20, 0x30f1_88d3_ec4c_0c59),
    // A short access in the sync blocks of windows.
    (21, 0x30f1_88d3_ec4c_0c59),
    // Several runs of an access, in sync blocks that have 4 KiB for them.
    (22, 0x30f1_88d3_ec4c_0c59),
    // Windows with parts on devices that not all ranks reach have a second communicator.
    (23, 0x30f1_88d3_ec4c_0c59),
    (24, 0x30f1_88d3_ec4c_0c59),
    (25, 0x30f1_88d3_ec4c_0c59),
    (26, 0x30f1_88d3_ec4c_0c59),
];

macro_rules! offsets {
    ($type:ty: $($field:ident)*) => {
        [$((stringify!($field), offset_of!($type, $field))),*].to_vec()
    };
}

/// FNV-1a of the names of fields and where they lie.
fn digest() -> u64 {
    let mut places = offsets!(JobHeader: magic ranks version limit_bytes heap_window job_id
        fence_required cores note_bytes aborted creator watched checks delayed
        delay_latency_ns delay_ns_per_mib death_epoch next_granule used_bytes);
    places.extend(
        offsets!(RankControl: pid finalizes death namespace sleeping attending inbox
        segments),
    );
    places.extend([
        ("job header", size_of::<JobHeader>()),
        ("rank control", size_of::<RankControl>()),
        ("status page", size_of::<StatusPage>()),
        ("status words", STATUS_WORDS),
        ("note", NOTE_BYTES),
        ("ring cell", size_of::<ring::Cell>()),
        ("ring control", size_of::<ring::Control>()),
        ("ring part", ring::parts::PART_BYTES),
        ("mail parts", mailbox::parts::LAYOUT),
        ("mail line", size_of::<mailbox::Line>()),
        ("crossing cells", size_of::<mailbox::Cells>()),
        ("message head", size_of::<AmHead>()),
        ("region key", RegionKey::WIRE_BYTES),
        ("segment page", PAGE_BYTES as usize),
        ("segment head", size_of::<Head>()),
        ("segment's number", HEAD_OF_AT),
        ("flag line", size_of::<FlagLine>()),
        ("slot", SLOT_BYTES),
    ]);
    places.extend(Level::ALL.map(|level| ("byte ring", level.payload_bytes() as usize)));
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for (name, place) in places {
        for byte in name.bytes().chain(place.to_le_bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    hash
}

#[test]
fn a_version_stands_for_one_layout() {
    let now = (WIRE_VERSION, digest());
    assert_eq!(
        VERSIONS.last(),
        Some(&now),
        "what lies in shared memory and WIRE_VERSION have not changed together: raise the \
         version by one, and append it with {:#018x}, also in engine/src/wire/version.rs",
        now.1
    );
    for pair in VERSIONS.windows(2) {
        assert_eq!(pair[0].0 + 1, pair[1].0, "versions follow each other");
    }
}
