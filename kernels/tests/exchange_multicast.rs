//! Multicast groups for exchanges: that they are used, between ranks of a process and of two,
//! and what is refused. All lengths and operators are in `exchange.rs`.

mod support;

use osier_datatype::{Basic, Element, Operator};
use osier_kernels::debug::Debug as _;
use osier_kernels::exchange::{Combination, Exchange, INBOX_BYTES, Verdict};
use osier_kernels::handle::{Key, export_pieces};
use osier_kernels::{
    Context, DeviceError, DeviceSlice, DeviceView, Kind, Memory, MulticastGroup, MulticastWindow,
    Ordered, Stream,
};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use support::{download, upload};

const CASE: &str = "TEST_CASE";
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
const ON: (&str, &str) = ("OSIER_EMULATED_MULTICAST", "1");

/// A case of this file, in a process of its own with these settings.
fn case(case: &str, driver: std::path::PathBuf) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env("OSIER_EMULATED_GPUS", "3")
        .env(CASE, case)
        .debug("cuda-library", driver);
    command
}

fn passes(name: &str, set: &[(&str, &str)]) {
    let Some(driver) = support::emulated() else {
        return;
    };
    let settings = set.iter().copied();
    let child = case(name, driver).envs(settings).output().unwrap();
    let told = String::from_utf8_lossy(&child.stdout);
    let also = String::from_utf8_lossy(&child.stderr);
    assert!(
        child.status.success() && told.contains("1 passed"),
        "{name} with {set:?}: {told}{also}"
    );
}

#[test]
#[ignore = "run by the others"]
fn child() {
    match std::env::var(CASE).as_deref() {
        Ok("stores") => stores(),
        Ok("refused") => refused(),
        Ok("unavailable") => unavailable(),
        Ok("parent") => parent(),
        Ok("peer") => peer(),
        other => panic!("no case {other:?}"),
    }
}

#[test]
fn words_reach_all_inboxes_at_once() {
    passes("stores", &[ON]);
}

#[test]
fn other_groups_and_memory_are_refused() {
    passes("refused", &[ON]);
}

#[test]
fn a_device_without_multicast_says_so() {
    passes("unavailable", &[]);
    passes("unavailable", &[ON, ("OSIER_EMULATED_MIG", "2")]);
    let no_manager = ("OSIER_EMULATED_FAIL", "cuMulticastCreate:1:802");
    passes("unavailable", &[ON, no_manager]);
}

#[test]
fn two_processes_share_a_group() {
    passes("parent", &[ON]);
    // Each sees its own device alone.
    passes("parent", &[ON, (VISIBLE, "0")]);
}

fn stream(device: i32) -> Stream {
    drop(support::context());
    Stream::new(&Context::new(device).unwrap()).unwrap()
}

/// All devices of a group, with their windows.
fn windows(streams: &[Stream]) -> Vec<MulticastWindow> {
    let first = streams[0].context();
    let group = MulticastGroup::create(first, streams.len(), INBOX_BYTES).unwrap();
    for stream in streams {
        group.join(stream.context()).unwrap();
    }
    let inboxes = streams.iter().map(|s| Exchange::inbox_for(s, &group));
    let window = |inbox: osier_kernels::Result<Arc<Memory>>| group.bind(&inbox.unwrap());
    inboxes.map(|inbox| window(inbox).unwrap()).collect()
}

fn sum() -> Combination {
    Combination::of(Operator::Sum, Element::Basic(Basic::F64)).unwrap()
}

/// What a rank gives, and what becomes of all.
fn given(rank: usize, count: usize) -> Vec<u8> {
    let number = |i: usize| (10 * i + rank) as f64;
    (0..count).flat_map(|i| number(i).to_ne_bytes()).collect()
}

fn summed(ranks: usize, count: usize) -> Vec<u8> {
    let number = |i: usize| (0..ranks).map(|rank| (10 * i + rank) as f64).sum::<f64>();
    (0..count).flat_map(|i| number(i).to_ne_bytes()).collect()
}

fn view(of: &DeviceSlice<u8>, stream: &Stream) -> Ordered<DeviceView<u8>> {
    DeviceView::of(of).unwrap().after_stream(stream)
}

/// One exchange of all these ranks, in place, of `ranks` in all.
fn run(sides: &[(usize, &Stream, &Exchange)], ranks: usize, count: usize) {
    let launched: Vec<_> = sides
        .iter()
        .map(|&(rank, stream, exchange)| {
            let memory = upload(stream, &given(rank, count));
            let both = view(&memory, stream);
            let launched = exchange.launch(stream, (sum(), 0), &both, &both).unwrap();
            (stream, memory, launched)
        })
        .collect();
    for (stream, memory, launched) in launched {
        assert_eq!(download(stream, &memory), summed(ranks, count));
        assert_eq!(launched.verdict().unwrap(), Some(Verdict::Fine));
    }
}

/// Whether a rank's own words are in its own inbox, where multicast alone stores them: of the
/// second exchange, or of the third, which is long. The first one clears its words.
fn has_own(inbox: &Arc<Memory>, stream: &Stream, rank: usize, long: bool) -> bool {
    const SLOT: usize = 4096;
    let at = match long {
        false => rank * 4 * SLOT,
        true => (2 * 8 * 4 + (8 + rank) * 16) * SLOT,
    };
    let all = DeviceSlice::<u8>::of(inbox.clone()).unwrap();
    let slot = download(stream, &all.slice(at..at + SLOT).unwrap());
    slot.iter().any(|byte| *byte != 0)
}

/// Two ranks with multicast and one without understand each other.
fn stores() {
    let streams = [0, 1, 2].map(stream);
    let windows = windows(&streams);
    let inboxes: Vec<_> = windows.iter().map(|w| w.bound().clone()).collect();
    let mut exchanges: Vec<_> = streams
        .iter()
        .enumerate()
        .map(|(rank, s)| Exchange::new(s.context(), rank, inboxes.clone()).unwrap())
        .collect();
    for rank in [0, 2] {
        exchanges[rank].use_multicast(&windows[rank]).unwrap();
    }
    for (number, count) in [10, 100, 5000].into_iter().enumerate() {
        let sides: Vec<_> = (0..3).map(|r| (r, &streams[r], &exchanges[r])).collect();
        run(&sides, 3, count);
        if number > 0 {
            let of = |rank: usize| has_own(&inboxes[rank], &streams[rank], rank, number == 2);
            assert_eq!([0, 1, 2].map(of), [true, false, true]);
        }
    }
    // Who lets go of a group takes nothing away from the others' kernels.
    let (stream, exchange) = (&streams[0], &exchanges[0]);
    let memory = upload(stream, &given(0, 10));
    let both = view(&memory, stream);
    let launched = exchange.launch(stream, (sum(), 0), &both, &both).unwrap();
    drop(windows);
    exchanges.truncate(1);
    exchanges[0].stop();
    stream.synchronize().unwrap();
    assert_eq!(launched.verdict().unwrap(), Some(Verdict::Stopped));
    drop(exchanges);
    drop(inboxes);
    osier_kernels::reap();
}

fn refused() {
    let streams = [0, 1, 2].map(stream);
    let of_two = windows(&streams[..2]);
    let of_three = windows(&streams);
    let inboxes: Vec<_> = of_three.iter().map(|w| w.bound().clone()).collect();
    let context = streams[0].context();
    let mut exchange = Exchange::new(context, 0, inboxes.clone()).unwrap();
    for window in [&of_two[0], &of_three[1]] {
        let refused = exchange.use_multicast(window);
        assert!(
            matches!(refused, Err(DeviceError::Unavailable(_))),
            "{refused:?}"
        );
    }
    exchange.use_multicast(&of_three[0]).unwrap();
    let mut exchange = Exchange::new(context, 0, vec![of_two[0].bound().clone(); 3]).unwrap();
    assert!(exchange.use_multicast(&of_two[0]).is_err());
    // Plain memory, memory that is too small or in pieces, a device that has not joined.
    let group = of_two[0].group();
    let plain = Exchange::inbox(&streams[0]).unwrap();
    let small = Memory::allocate(&streams[0], Kind::Mapped, 1).unwrap();
    let pieces = Memory::in_pieces(context, &[group.bytes(); 2]).unwrap();
    let stranger = Exchange::inbox_for(&streams[2], group).unwrap();
    for memory in [plain, small, pieces, stranger] {
        let refused = group.bind(&memory);
        assert!(refused.is_err(), "{refused:?}");
    }
    // The group is full, and a wire form is checked.
    assert!(group.join(streams[2].context()).is_err());
    let (wire, descriptor) = group.export().unwrap();
    assert!(MulticastGroup::import(context, &wire[1..], &descriptor).is_err());
    let file = OwnedFd::from(File::open("/dev/null").unwrap());
    assert!(MulticastGroup::import(context, &wire, &file).is_err());
}

fn unavailable() {
    let stream = stream(0);
    let made = MulticastGroup::create(stream.context(), 2, INBOX_BYTES);
    let Err(DeviceError::Unavailable(why)) = made else {
        panic!("{made:?}");
    };
    let lacks = "device 0 has no multicast (hint: it takes capability 9.0 and an NVSwitch)";
    let wanted = match stream.context().has_multicast() {
        true => "CUDA_ERROR_SYSTEM_NOT_READY",
        false => lacks,
    };
    assert!(why.contains(wanted), "{why}");
    // What is loaded ahead has no part in it.
    assert!(stream.context().prepare(|| {}));
}

/// Bytes as text, for another process.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

/// A descriptor for another process, which opens it while this one lives.
fn named(descriptor: &OwnedFd) -> String {
    let process = std::process::id();
    format!("/proc/{process}/fd/{}", descriptor.as_raw_fd())
}

fn opened(name: &str) -> OwnedFd {
    let mut options = File::options();
    options.read(true).write(true).open(name).unwrap().into()
}

/// What another process opens an inbox by; the descriptor is to be kept.
fn exported(inbox: &Arc<Memory>) -> (String, Vec<(u64, OwnedFd)>) {
    let range = inbox.address()..inbox.address() + inbox.bytes() as u64;
    let key = Key::of(inbox, range.clone()).unwrap();
    let pieces = export_pieces(inbox.context(), range).unwrap();
    let text = format!("{} {}", hex(&key.to_wire()), named(&pieces[0].1));
    (text, pieces)
}

fn open(context: &Context, text: &str) -> Arc<Memory> {
    let (key, descriptor) = text.split_once(' ').unwrap();
    let key = Key::from_wire(&unhex(key)).unwrap();
    key.open(context, &[(key.bytes, opened(descriptor))])
        .unwrap()
}

/// A line that the other process has told.
fn hear(lines: &mut impl BufRead) -> String {
    loop {
        let mut line = String::new();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "the other is gone");
        if let Some((_, told)) = line.split_once("told: ") {
            return told.trim_end().into();
        }
    }
}

/// Exchanges of both lengths with another process, of which one is this rank's.
fn between(rank: usize, stream: &Stream, window: &MulticastWindow, other: Arc<Memory>) {
    let own = window.bound().clone();
    let inboxes = match rank {
        0 => vec![own, other],
        _ => vec![other, own],
    };
    let mut exchange = Exchange::new(stream.context(), rank, inboxes).unwrap();
    exchange.use_multicast(window).unwrap();
    for (number, count) in [10, 100, 5000, 1, 1025, 8000, 64].into_iter().enumerate() {
        run(&[(rank, stream, &exchange)], 2, count);
        if matches!(number, 1 | 2) {
            assert!(has_own(window.bound(), stream, rank, number == 2));
        }
    }
}

fn parent() {
    let stream = stream(0);
    let context = stream.context();
    let group = MulticastGroup::create(context, 2, INBOX_BYTES).unwrap();
    let (wire, descriptor) = group.export().unwrap();
    let inbox = Exchange::inbox_for(&stream, &group).unwrap();
    let (text, _pieces) = exported(&inbox);
    let mut command = Command::new(std::env::current_exe().unwrap());
    if std::env::var_os(VISIBLE).is_some() {
        command.env(VISIBLE, "1");
    }
    let mut child: Child = command
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env(CASE, "peer")
        .env(
            "TEST_GROUP",
            format!("{} {}", hex(&wire), named(&descriptor)),
        )
        .env("TEST_INBOX", text)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut to = child.stdin.take().unwrap();
    group.join(context).unwrap();
    let other = open(context, &hear(&mut lines));
    let window = group.bind(&inbox).unwrap();
    writeln!(to, "told: bound").unwrap();
    assert_eq!(hear(&mut lines), "bound");
    between(0, &stream, &window, other);
    assert_eq!(hear(&mut lines), "done");
    drop(to);
    assert!(child.wait().unwrap().success());
}

fn peer() {
    let stream = stream(i32::from(std::env::var_os(VISIBLE).is_none()));
    let context = stream.context();
    let group = std::env::var("TEST_GROUP").unwrap();
    let (wire, descriptor) = group.split_once(' ').unwrap();
    let group = MulticastGroup::import(context, &unhex(wire), &opened(descriptor)).unwrap();
    assert_eq!(group.devices(), 2);
    group.join(context).unwrap();
    let inbox = Exchange::inbox_for(&stream, &group).unwrap();
    let (text, _pieces) = exported(&inbox);
    println!("told: {text}");
    let other = open(context, &std::env::var("TEST_INBOX").unwrap());
    let window = group.bind(&inbox).unwrap();
    println!("told: bound");
    assert_eq!(hear(&mut std::io::stdin().lock()), "bound");
    between(1, &stream, &window, other);
    println!("told: done");
    // Until the other has let go: it may still store here.
    let mut rest = String::new();
    std::io::stdin().read_line(&mut rest).unwrap();
}
