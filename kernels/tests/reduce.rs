//! Reductions and updates by atomics on the device against the host's, bit for bit; kernels of
//! the user.

#[path = "../../tests/asked.rs"]
mod asked;
mod support;

use osier_datatype::{Basic, Element, Layout, Operator, Pair, Type, TypeError};
use osier_datatype_corpus::random::Random;
use osier_kernels::debug::Debug as _;
use osier_kernels::plan::reduction::has_kernel;
use osier_kernels::plan::update::{AtomicChange, kernel_of};
use osier_kernels::{
    Context, DeviceError, DeviceSlice, DeviceView, Ordered, Packer, Pinned, Stream, UserKernel,
    copy,
};
use support::{context, download, upload};

fn basic_of(element: Element) -> Basic {
    match element {
        Element::Basic(basic) => basic,
        Element::Pair { value, .. } => value,
    }
}

/// A number of a type, edges among them.
fn number(basic: Basic, random: &mut Random) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..basic.size()).map(|_| random.next() as u8).collect();
    let small = random.below(7) as i64 - 3;
    let sign = if small < 0 { 0x80 } else { 0 };
    match (random.below(4), basic.representation()) {
        // Small numbers meet often, zeros of both signs among them.
        (0 | 1, Basic::F64) => bytes.copy_from_slice(&(small as f64 * -0.5).to_ne_bytes()),
        (0 | 1, Basic::F32) => bytes.copy_from_slice(&(small as f32 * -0.5).to_ne_bytes()),
        (0 | 1, Basic::F16) => bytes.copy_from_slice(&[0, 0x3c | sign]),
        (0 | 1, Basic::BF16) => bytes.copy_from_slice(&[0x80, 0x3f | sign]),
        (0 | 1, Basic::C32 | Basic::C64 | Basic::Complex4) => {
            let part = match basic.size() {
                4 => Basic::F16,
                8 => Basic::F32,
                _ => Basic::F64,
            };
            bytes = [number(part, random), number(part, random)].concat();
        }
        (0, _) => bytes.fill(if small < 0 { 0xff } else { 0 }),
        (1, _) => {
            bytes.fill(if small < 0 { 0xff } else { 0 });
            bytes[0] = small as u8;
        }
        // Infinities and NaN.
        (2, Basic::F64) => {
            let special = [f64::NAN, f64::INFINITY, -0.0, f64::NEG_INFINITY, 5e-324];
            bytes.copy_from_slice(&special[random.below(5) as usize].to_ne_bytes());
        }
        (2, Basic::F32) => {
            let special = [f32::NAN, f32::INFINITY, -0.0, f32::NEG_INFINITY, 1e-45];
            bytes.copy_from_slice(&special[random.below(5) as usize].to_ne_bytes());
        }
        _ => {}
    }
    bytes
}

fn elements(element: Element, count: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count * element.size());
    for _ in 0..count {
        match element {
            Element::Basic(basic) => bytes.extend(number(basic, random)),
            Element::Pair { value, index } => {
                bytes.extend(number(value, random));
                bytes.extend(number(index, random));
            }
        }
    }
    bytes
}

/// Parts of an element that arithmetic makes, as numbers whose NaN bits are open.
fn is_nan(basic: Basic, bytes: &[u8]) -> bool {
    let high = |n: usize| u16::from_ne_bytes([bytes[n - 2], bytes[n - 1]]) & 0x7fff;
    match basic.representation() {
        Basic::F16 => high(2) > 0x7c00,
        Basic::BF16 => high(2) > 0x7f80,
        Basic::F32 => f32::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
        Basic::F64 => f64::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
        _ => false,
    }
}

/// Equal bit for bit, but for the bits of NaNs that sums and products make.
fn same(operator: Operator, basic: Basic, found: &[u8], expected: &[u8]) -> bool {
    if !matches!(operator, Operator::Sum | Operator::Product) {
        return found == expected;
    }
    let part = match basic.representation() {
        Basic::Complex4 => Basic::F16,
        Basic::C32 => Basic::F32,
        Basic::C64 => Basic::F64,
        other => other,
    };
    let mut parts = found.chunks(part.size()).zip(expected.chunks(part.size()));
    parts.all(|(a, b)| a == b || is_nan(part, a) && is_nan(part, b))
}

/// Layouts of 24 elements each: one run, strides, places, lists, with padding.
fn layouts(element: Element, random: &mut Random) -> Vec<Layout> {
    let one = match element {
        Element::Basic(basic) => Type::basic(basic),
        Element::Pair { value, index } => Type::value_index(value, index).unwrap(),
    };
    let extent = one.commit().unwrap().extent();
    let apart = extent + random.below(3) as isize * basic_of(element).alignment() as isize;
    let nested = Type::vector(3, 2, 4, &one).unwrap();
    let places: Vec<isize> = (0..24).map(|i| i * 7 % 29 * apart).collect();
    let lengths: Vec<(usize, isize)> = (0..8).map(|i| (i % 6 + 1, 9 * i as isize)).collect();
    let total: usize = lengths.iter().map(|(n, _)| n).sum();
    let list = Type::indexed(&lengths, &one).unwrap();
    let rest = Type::contiguous(24 - total.min(24), &one).unwrap();
    let odd = Type::structure(&[(5, 3, one.clone()), (19, 3 + 7 * extent, one.clone())]);
    let mut types = vec![
        Type::contiguous(24, &one).unwrap(),
        Type::hvector(4, 1, 17 * extent, &nested).unwrap(),
        Type::hvector(24, 1, apart, &one).unwrap(),
        Type::hindexed_block(1, &places, &one).unwrap(),
        odd.unwrap(),
    ];
    if total <= 24 {
        types.push(Type::structure(&[(1, 0, list), (1, 100 * extent, rest)]).unwrap());
    }
    types.iter().map(|ty| ty.commit().unwrap()).collect()
}

struct Side {
    device: DeviceSlice<u8>,
    bytes: Vec<u8>,
    origin: usize,
}

/// Device memory with elements in a layout, and noise between.
fn side(stream: &Stream, layout: &Layout, element: Element, random: &mut Random) -> Side {
    let (low, high) = layout.span(1);
    let before = random.below(2) as usize * random.below(16) as usize;
    let origin = before + (-low).max(0) as usize;
    let room = origin + high as usize + random.below(9) as usize;
    let mut bytes: Vec<u8> = (0..room).map(|_| random.next() as u8).collect();
    let packed = elements(element, layout.size() / element.size(), random);
    layout
        .unpack(&mut bytes, origin, 1, 0..packed.len(), &packed)
        .unwrap();
    Side {
        device: upload(stream, &bytes),
        bytes,
        origin,
    }
}

fn agrees(
    packer: &Packer,
    stream: &Stream,
    (operator, element): (Operator, Element),
    (right, left): (&Layout, &Layout),
    random: &mut Random,
) {
    let size = element.size();
    let (source, mut target) = (
        side(stream, right, element, random),
        side(stream, left, element, random),
    );
    let count = left.size() / size;
    let cut = |random: &mut Random| random.below(count as u64 + 1) as usize;
    let (a, b) = (cut(random), cut(random));
    let range = match random.below(2) {
        0 => 0..count * size,
        _ => a.min(b) * size..a.max(b) * size,
    };
    let mut packed = vec![0; range.len()];
    right
        .pack(&source.bytes, source.origin, 1, range.clone(), &mut packed)
        .unwrap();
    let mut result = vec![0; range.len()];
    left.pack(&target.bytes, target.origin, 1, range.clone(), &mut result)
        .unwrap();
    operator.combine(element, &mut result, &packed).unwrap();
    let view = DeviceView::new(&target.device, target.origin, left, 1).unwrap();
    let blocks = [None, Some(1), Some(3)][random.below(3) as usize];
    if random.below(2) == 0 {
        let shift = random.below(2) as usize * random.below(16) as usize;
        let moved = upload(stream, &[vec![0xa5; shift], packed.clone()].concat());
        let moved = moved.slice(shift..).unwrap().after_stream(stream);
        let left = view.after_stream(stream);
        packer
            .combine_packed(stream, operator, &moved, range.clone(), &left, blocks)
            .unwrap();
    } else {
        let right = DeviceView::new(&source.device, source.origin, right, 1).unwrap();
        let (right, left) = (right.after_stream(stream), view.after_stream(stream));
        packer
            .combine(stream, operator, &right, &left, range.clone(), blocks)
            .unwrap();
    }
    let found = download(stream, &target.device);
    let mut found_packed = vec![0; range.len()];
    left.pack(&found, target.origin, 1, range.clone(), &mut found_packed)
        .unwrap();
    let at = found_packed
        .chunks(size)
        .zip(result.chunks(size))
        .position(|(a, b)| !same(operator, basic_of(element), a, b));
    if let Some(at) = at {
        let of = |bytes: &[u8]| bytes[at * size..][..size].to_vec();
        panic!(
            "{operator} of {element}, element {at} of {range:?}: {:x?}, not {:x?}; right {:x?}",
            of(&found_packed),
            of(&result),
            of(&packed)
        );
    }
    // All else stays: elements outside of the range, and gaps.
    left.unpack(&mut target.bytes, target.origin, 1, range, &found_packed)
        .unwrap();
    assert!(found == target.bytes, "{operator} of {element}: gaps");
}

/// Layouts of 2000 elements each in runs that are found one by one, or one by one at equal
/// distances.
fn long_layouts(element: Element, _: &mut Random) -> Vec<Layout> {
    let one = Type::basic(basic_of(element));
    let size = element.size() as isize;
    let thousand = Type::contiguous(1000, &one).unwrap();
    let types = [
        Type::contiguous(2000, &one).unwrap(),
        Type::vector(2, 1000, 1003, &one).unwrap(),
        Type::hvector(4, 500, 503 * size + 1, &one).unwrap(),
        Type::structure(&[(1, 0, thousand.clone()), (1, 1007 * size, thousand)]).unwrap(),
        Type::vector(400, 5, 7, &one).unwrap(),
        Type::vector(2000, 1, 2, &one).unwrap(),
        Type::hvector(2000, 1, -3 * size, &one).unwrap(),
        Type::hvector(2000, 1, 2 * size + 1, &one).unwrap(),
    ];
    types.iter().map(|ty| ty.commit().unwrap()).collect()
}

type Layouts = fn(Element, &mut Random) -> Vec<Layout>;

fn run(rounds: usize, layouts: Layouts, elements: impl Iterator<Item = Element>) {
    let Some(context) = context() else { return };
    let stream = Stream::uncaptured(&context).unwrap();
    let packer = Packer::new(&context);
    for element in elements {
        for operator in Operator::ALL {
            // The host computes with floats that no device has.
            if operator.combine(element, &mut [], &[]).is_err() || !has_kernel(operator, element) {
                continue;
            }
            for seed in 0..rounds as u64 {
                let mut random = Random::new(seed);
                let layouts = layouts(element, &mut random);
                let any = |random: &mut Random| random.below(layouts.len() as u64) as usize;
                let (right, left) = (any(&mut random), any(&mut random));
                let sides = (&layouts[right], &layouts[left]);
                let run = std::panic::AssertUnwindSafe(|| {
                    agrees(&packer, &stream, (operator, element), sides, &mut random);
                });
                assert!(
                    std::panic::catch_unwind(run).is_ok(),
                    "{operator} of {element}, seed {seed}"
                );
            }
        }
    }
}

fn rounds(usual: usize) -> usize {
    asked::number("rounds").map_or(usual, |n| n as usize)
}

/// Every operator on every representation that has it; `OSIER_TEST=rounds=N` rounds each.
#[test]
fn numbers() {
    let basics = Basic::ALL.iter().copied();
    let representations = basics.filter(|basic| basic.representation() == *basic);
    run(rounds(12), layouts, representations.map(Element::from));
}

/// The same on runs of 500 elements and more, and on single ones at equal distances, from any
/// alignment to any other.
#[test]
fn long_runs() {
    let basics = Basic::ALL.iter().copied();
    let representations = basics.filter(|basic| basic.representation() == *basic);
    run(rounds(8), long_layouts, representations.map(Element::from));
}

/// The named pairs, and unnamed ones of all kinds of numbers.
#[test]
fn pairs() {
    let named = Pair::ALL.iter().map(|&pair| Element::from(pair));
    let unnamed = [
        (Basic::U64, Basic::U8),
        (Basic::I8, Basic::I64),
        (Basic::F16, Basic::U16),
        (Basic::BF16, Basic::I32),
        (Basic::F64, Basic::U64),
    ];
    let unnamed = unnamed.map(|(value, index)| Element::Pair { value, index });
    run(rounds(12), layouts, named.chain(unnamed));
}

/// Runs of any length, from any element on: words where both sides suit them.
#[test]
fn slices() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let packer = Packer::new(&context);
    let up = |values: &[f32]| {
        let staged = Pinned::from_slice(&context, values).unwrap();
        let place = DeviceSlice::<f32>::new(&stream, values.len()).unwrap();
        copy::copy(&stream, &staged.on_device(&stream), &place).unwrap();
        place.into_inner()
    };
    let values: Vec<f32> = (0..3001).map(|i| i as f32 * 0.3).collect();
    let mut staged = Pinned::from_slice(&context, &values).unwrap();
    for (right, left, length) in [
        (0, 0, 3001),
        (0, 0, 3000),
        (1, 5, 2995),
        (3, 3, 7),
        (2, 1, 1500),
        (3, 7, 1),
        (2, 2, 2),
    ] {
        let (from, to) = (up(&values), up(&values));
        let part = |of: &DeviceSlice<f32>, at| {
            let part = of.slice(at..at + length).unwrap();
            part.after_stream(&stream)
        };
        packer
            .combine_slices(
                &stream,
                Operator::Product,
                &part(&from, right),
                &part(&to, left),
            )
            .unwrap();
        let whole = staged.on_device(&stream);
        copy::copy(&stream, &to.after_stream(&stream), &whole).unwrap();
        drop(whole);
        let mut expected = values.clone();
        for i in 0..length {
            expected[left + i] *= values[right + i];
        }
        assert!(
            staged.host().unwrap() == expected,
            "{right}, {left}, {length}"
        );
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let packer = Packer::new(&context);
    let slice = |n| DeviceSlice::<u8>::new(&stream, n).unwrap().into_inner();
    let view = |basic, count| {
        let layout = Type::basic(basic).commit().unwrap();
        DeviceView::new(&slice(64), 0, &layout, count)
            .unwrap()
            .after_stream(&stream)
    };
    type View = Ordered<DeviceView<u8>>;
    let refused = |operator, right: &View, left: &View, range| {
        let done = packer.combine(&stream, operator, right, left, range, None);
        matches!(done, Err(DeviceError::Type(TypeError::Argument { .. })))
    };
    let (f32s, f64s) = (view(Basic::F32, 8), view(Basic::F64, 8));
    let wide = [view(Basic::Real16, 4), view(Basic::Real16, 4)];
    let bits = refused(Operator::BitOr, &view(Basic::F32, 8), &f32s, 0..32);
    assert!(bits, "bits of a float");
    assert!(
        refused(Operator::Sum, &f32s, &f64s, 0..32),
        "unlike elements"
    );
    let half = refused(Operator::Sum, &view(Basic::F64, 8), &f64s, 4..32);
    assert!(half, "half an element");
    assert!(
        refused(Operator::Sum, &wide[0], &wide[1], 0..32),
        "binary128"
    );
    let one = slice(64);
    let layout = Type::basic(Basic::F64).commit().unwrap();
    let part = |at| {
        DeviceView::new(&one, at, &layout, 4)
            .unwrap()
            .after_stream(&stream)
    };
    let aliased = packer.combine(&stream, Operator::Sum, &part(0), &part(8), 0..32, None);
    assert_eq!(aliased.unwrap_err(), DeviceError::Aliased);
    stream.synchronize().unwrap();
}

/// Adds twice the right operand; the text that a driver gets, and what the
/// emulated one runs for it.
const USER_PTX: &str = include_str!("ptx/user.ptx");

/// A child of [`kernels_of_the_user`], where the emulated driver has the kernel.
#[test]
#[ignore = "run by kernels_of_the_user"]
fn child_with_a_kernel_of_the_user() {
    let context = Context::new(0).unwrap();
    let stream = Stream::new(&context).unwrap();
    let packer = Packer::new(&context);
    // SAFETY: the kernel adds doubles, whatever the grid.
    let kernel = unsafe { UserKernel::load(&context, USER_PTX.as_bytes(), "osier_test_axpy") };
    let kernel = kernel.unwrap();
    let every_third = Type::vector(10, 1, 3, &Type::basic(Basic::F64)).unwrap();
    let dense = Type::contiguous(10, &Type::basic(Basic::F64)).unwrap();
    let values: Vec<f64> = (0..40).map(|i| 1.25 * i as f64).collect();
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
    for (right, left) in [
        (&every_third, &dense),
        (&dense, &every_third),
        (&dense, &dense),
        (&every_third, &every_third),
    ] {
        let (right, left) = (right.commit().unwrap(), left.commit().unwrap());
        let (source, target) = (upload(&stream, &bytes), upload(&stream, &bytes));
        let view = |slice, layout| {
            DeviceView::new(slice, 0, layout, 1)
                .unwrap()
                .after_stream(&stream)
        };
        let (from, to) = (view(&source, &right), view(&target, &left));
        // SAFETY: elements of 8 bytes, as the kernel takes them.
        let done = unsafe { packer.combine_with(&stream, (&kernel, 8), &from, &to, 16..72, None) };
        done.unwrap();
        let (mut a, mut b) = (vec![0; 56], vec![0; 56]);
        left.pack(&bytes, 0, 1, 16..72, &mut a).unwrap();
        right.pack(&bytes, 0, 1, 16..72, &mut b).unwrap();
        let number =
            |bytes: &[u8], i: usize| f64::from_ne_bytes(bytes[8 * i..][..8].try_into().unwrap());
        let sums: Vec<u8> = (0..7)
            .flat_map(|i| (number(&a, i) + 2.0 * number(&b, i)).to_ne_bytes())
            .collect();
        let mut expected = bytes.clone();
        left.unpack(&mut expected, 0, 1, 16..72, &sums).unwrap();
        assert!(download(&stream, &target) == expected);
    }
    // SAFETY: never launched.
    let absent = unsafe { UserKernel::load(&context, USER_PTX.as_bytes(), "osier_no_such") };
    assert!(absent.is_err());
    stream.synchronize().unwrap();
}

#[test]
fn kernels_of_the_user() {
    let Some(_context) = context() else { return };
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child_with_a_kernel_of_the_user", "--ignored"]);
    // A GPU compiles the text; the emulated driver gets the kernel compiled for the host.
    let name = osier_kernels::devices().unwrap().remove(0).name;
    if name.starts_with("Osier emulated") {
        let Some(library) = support::library_of_kernels("tests/cuda") else {
            return;
        };
        let driver = support::emulated().unwrap();
        command
            .debug("cuda-library", driver)
            .env("OSIER_EMULATED_KERNELS", library);
    }
    let child = command.output().unwrap();
    let told = [child.stdout, child.stderr].concat();
    let told = String::from_utf8_lossy(&told);
    assert!(
        child.status.success() && told.contains("1 passed"),
        "{told}"
    );
}

/// What an update leaves there, of packed elements.
fn updated(change: AtomicChange, element: Element, there: &[u8], given: &[u8]) -> Vec<u8> {
    let mut result = there.to_vec();
    match change {
        AtomicChange::Keep => {}
        AtomicChange::Replace => result.copy_from_slice(given),
        AtomicChange::CompareSwap(expected) => {
            let size = element.size();
            let both = result.chunks_mut(size).zip(given.chunks(size));
            let swapped = both.filter(|(there, _)| there[..] == expected.to_ne_bytes()[..size]);
            swapped.for_each(|(there, given)| there.copy_from_slice(given));
        }
        AtomicChange::Combine(operator) => {
            operator.combine(element, &mut result, given).unwrap();
        }
    }
    result
}

/// Updates of a range of elements leave what the host's would, and tell what was there; where
/// elements are not aligned they are refused, and nothing changes. Whether there were any.
fn updates_agree(
    packer: &Packer,
    stream: &Stream,
    (change, element): (AtomicChange, Element),
    (given, there): (&Layout, &Layout),
    random: &mut Random,
) -> bool {
    let size = element.size();
    let source = side(stream, given, element, random);
    let mut target = side(stream, there, element, random);
    let count = there.size() / size;
    let cut = |random: &mut Random| random.below(count as u64 + 1) as usize;
    let (a, b) = (cut(random), cut(random));
    let range = a.min(b) * size..a.max(b) * size;
    let packed = |layout: &Layout, bytes: &[u8], origin| {
        let mut packed = vec![0; range.len()];
        layout
            .pack(bytes, origin, 1, range.clone(), &mut packed)
            .unwrap();
        packed
    };
    let operand = packed(given, &source.bytes, source.origin);
    let was = packed(there, &target.bytes, target.origin);
    let change = match change {
        // That of an element that is there, if there is any.
        AtomicChange::CompareSwap(_) => {
            let any = was.chunks(size).nth(was.len() / size / 2);
            let mut word = [0; 8];
            word[..size].copy_from_slice(any.unwrap_or(&[0; 8][..size]));
            AtomicChange::CompareSwap(u64::from_ne_bytes(word))
        }
        other => other,
    };
    let view = DeviceView::new(&target.device, target.origin, there, 1).unwrap();
    let source = DeviceView::new(&source.device, source.origin, given, 1).unwrap();
    let before = (random.below(3) > 0).then(|| upload(stream, &vec![0xa5; range.len() + 3]));
    let before = before.map(|slice| slice.after_stream(stream));
    let queued = packer.update(
        stream,
        (change, element),
        &source.after_stream(stream),
        &view.after_stream(stream),
        before.as_ref(),
        range.clone(),
    );
    let found = download(stream, &target.device);
    let aligned = |at: isize| (target.device.address() as isize + at) % size as isize == 0;
    let fits = (there.blocks(1)).all(|(at, _)| aligned(target.origin as isize + at));
    if !fits && !range.is_empty() {
        assert!(queued.is_err(), "unaligned elements have no atomic");
        assert!(found == target.bytes);
        return false;
    }
    queued.unwrap();
    let expected = updated(change, element, &was, &operand);
    let found_packed = packed(there, &found, target.origin);
    let combined = match change {
        AtomicChange::Combine(operator) => operator,
        _ => Operator::Min,
    };
    let pairs = found_packed.chunks(size).zip(expected.chunks(size));
    for (number, (a, b)) in pairs.enumerate() {
        let number = range.start / size + number;
        assert!(
            same(combined, basic_of(element), a, b),
            "{change:?} of {element}, element {number}: {a:x?}, not {b:x?}"
        );
    }
    there
        .unpack(&mut target.bytes, target.origin, 1, range, &found_packed)
        .unwrap();
    assert!(found == target.bytes, "{change:?} of {element}: gaps");
    if let Some(before) = before {
        let told = download(stream, &before.into_inner());
        assert!(told[..was.len()] == was[..] && told[was.len()..] == [0xa5; 3]);
    }
    true
}

/// Every operator on every type that has an atomic for it, and what replaces elements.
#[test]
fn updates() {
    let Some(context) = context() else { return };
    let stream = Stream::uncaptured(&context).unwrap();
    let packer = Packer::new(&context);
    let (mut made, mut refused) = (0, 0);
    for basic in Basic::ALL.iter().copied() {
        let element = Element::from(basic);
        let operators = Operator::ALL.into_iter().map(AtomicChange::Combine);
        let others = [
            AtomicChange::Keep,
            AtomicChange::Replace,
            AtomicChange::CompareSwap(0),
        ];
        for change in operators.chain(others) {
            if kernel_of(change, element).is_none() {
                continue;
            }
            for seed in 0..rounds(6) as u64 {
                let mut random = Random::new(seed);
                let layouts = layouts(element, &mut random);
                let mut any = || random.below(layouts.len() as u64) as usize;
                let sides = (&layouts[any()], &layouts[any()]);
                let what = (change, element);
                match updates_agree(&packer, &stream, what, sides, &mut random) {
                    true => made += 1,
                    false => refused += 1,
                }
            }
        }
    }
    assert!(made > 500 && refused > 50, "{made} made, {refused} refused");
}

/// A kernel and the host add to one number in pinned memory at the same time, and no sum is lost.
#[test]
fn devices_and_the_host_add_to_one_number() {
    const KERNELS: u64 = 200;
    const OF_HOST: u64 = 100_000;
    let Some(context) = context() else { return };
    let stream = Stream::uncaptured(&context).unwrap();
    let packer = Packer::new(&context);
    let memory = osier_kernels::Memory::pinned(&context, 8).unwrap();
    let at = memory.host().unwrap();
    // SAFETY: pinned memory of this test, used by atomics alone.
    let number = unsafe { std::sync::atomic::AtomicU64::from_ptr(at.cast()) };
    number.store(0, std::sync::atomic::Ordering::Relaxed);
    let slice = DeviceSlice::<u8>::of(memory.clone()).unwrap();
    let layout = Layout::of::<u64>();
    let there = DeviceView::new(&slice, 0, &layout, 1).unwrap();
    let one = upload(&stream, &1u64.to_ne_bytes());
    let one = DeviceView::new(&one, 0, &layout, 1).unwrap();
    let sum = (AtomicChange::Combine(Operator::Sum), Basic::U64.into());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..OF_HOST {
                number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        });
        for _ in 0..KERNELS {
            let one = one.clone().after_stream(&stream);
            let there = Ordered::new(there.clone(), osier_kernels::After::Now);
            packer
                .update(&stream, sum, &one, &there, None, 0..8)
                .unwrap();
        }
    });
    stream.synchronize().unwrap();
    let found = number.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(found, KERNELS + OF_HOST);
}
