//! Interpreter of the kernels in Rust, word by word, on memory of the host: the oracle of plans
//! and arguments, without a device. An oracle of plans and arguments, without a driver; the
//! kernels themselves are tested apart.

use super::Plan;
use super::arguments::{Argument, Launch, Nest, Runs, Span, Strided, Tables};
use super::period::PeriodArgument;
use super::transfer::{Transfer, TransferArgument};
use super::transpose::Transpose;

/// Reads a number of `N` bytes.
///
/// # Safety
/// `at + index * N` is valid for reads of `N` bytes.
unsafe fn read<const N: usize>(at: u64, index: u64) -> [u8; N] {
    let from = (at as usize + index as usize * N) as *const [u8; N];
    // SAFETY: the caller's contract; arrays of bytes have no alignment.
    unsafe { from.read() }
}

/// # Safety
/// The argument's tables are at their addresses.
unsafe fn signed(at: u64, wide: u32, index: u64) -> i64 {
    match wide {
        // SAFETY: the caller's contract.
        0 => i32::from_ne_bytes(unsafe { read(at, index) }).into(),
        // SAFETY: the caller's contract.
        _ => i64::from_ne_bytes(unsafe { read(at, index) }),
    }
}

impl Strided {
    fn at(&self, levels: usize, width: usize, word: u64) -> i64 {
        let wide = self.range.wide != 0;
        let mut rest = self.block.quotient(word, wide);
        let mut offset = ((word - rest * self.block.value) * width as u64) as i64;
        for (k, level) in self.level[..levels].iter().enumerate() {
            let next = match k + 1 == levels {
                true => 0,
                false => level.count.quotient(rest, wide),
            };
            let index = rest
                - next
                    * if k + 1 == levels {
                        0
                    } else {
                        level.count.value
                    };
            offset = offset.wrapping_add((index as i64).wrapping_mul(level.stride));
            rest = next;
        }
        offset
    }
}

impl Nest {
    /// Where a word of the core is, without boxes and map.
    ///
    /// # Safety
    /// The tables are at their addresses.
    unsafe fn inside(&self, width: usize, word: u64) -> i64 {
        let (list, byte) = (&self.list, word * width as u64);
        if list.offsets == 0 {
            return byte as i64;
        }
        let before = |run: u32| match list.wide_before {
            // SAFETY: the caller's contract.
            0 => u64::from(u32::from_ne_bytes(unsafe { read(list.before, run.into()) })),
            // SAFETY: the caller's contract.
            _ => u64::from_ne_bytes(unsafe { read(list.before, run.into()) }),
        };
        let hint = byte >> list.shift;
        // SAFETY: the caller's contract.
        let mut low = u32::from_ne_bytes(unsafe { read(list.hints, hint) });
        // SAFETY: the caller's contract.
        let mut high = u32::from_ne_bytes(unsafe { read(list.hints, hint + 1) });
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            match before(middle) <= byte {
                true => low = middle,
                false => high = middle - 1,
            }
        }
        // SAFETY: the caller's contract.
        let offset = unsafe { signed(list.offsets, list.wide_offsets, low.into()) };
        let inside = byte - before(low);
        offset
            + match self.rows {
                0 => inside as i64,
                _ => self.box_of[0].at(width, inside / width as u64),
            }
    }

    /// # Safety
    /// The tables are at their addresses.
    unsafe fn at(&self, wide: bool, width: usize, word: u64) -> i64 {
        let mut rest = self.core.quotient(word, wide);
        let inside = word - rest * self.core.value;
        let boxes = &self.box_of[..self.boxes as usize];
        let found = boxes.iter().rfind(|each| u64::from(each.start) <= inside);
        let mut offset = match (self.map, found) {
            (_, Some(found)) => found.at(width, inside),
            // SAFETY: the caller's contract.
            (0, None) => unsafe { self.inside(width, inside) },
            (map, None) => {
                let units = 1 << self.map_shift;
                // SAFETY: the caller's contract.
                let unit = unsafe { signed(map, 0, inside / units) };
                unit + (inside % units * width as u64) as i64
            }
        };
        let used = &self.dimension[..self.dimensions as usize];
        for (k, dimension) in used.iter().enumerate() {
            let mut index = rest;
            if k + 1 < used.len() {
                rest = dimension.count.quotient(index, wide);
                index -= rest * dimension.count.value;
            }
            offset = offset.wrapping_add(match dimension.table {
                0 => (index as i64).wrapping_mul(dimension.stride),
                // SAFETY: the caller's contract.
                table => unsafe { signed(table, dimension.wide, index) },
            });
        }
        offset
    }
}

impl Runs {
    fn nest(&self) -> Nest {
        Nest {
            list: self.list,
            ..Nest::default()
        }
    }
}

impl Transpose {
    /// # Safety
    /// Both sides are valid.
    unsafe fn interpret(&self, width: usize) {
        for number in self.first..self.last {
            let (from, to) = self.places(width, number);
            let group = if self.shifted == 0 {
                width.max(4)
            } else {
                width
            } as u64;
            let suits = |at: u64, word: u64| at.is_multiple_of(word);
            assert!(
                suits(from, width as u64) && suits(to, width as u64),
                "words are aligned"
            );
            let sides = [self.from, self.to];
            let aligned = |side: &super::transpose::TileSide| {
                suits(side.at, group) && suits(side.line as u64, group)
            };
            assert!(sides.iter().all(aligned), "groups are aligned");
            // SAFETY: the caller's contract.
            unsafe { move_bytes(true, from, to, width as u64) };
        }
    }
}

impl Launch {
    /// Does what the kernel does.
    ///
    /// # Safety
    /// All addresses of the argument are of this process and valid as the kernel
    /// needs them; words are aligned.
    pub unsafe fn interpret(&self, pack: bool, origin_and_base: u64, packed: u64) {
        match &self.argument {
            Argument::Contiguous { offset, bytes } => {
                for byte in 0..*bytes {
                    // SAFETY: the caller's contract.
                    unsafe { move_bytes(pack, origin_and_base + offset + byte, packed + byte, 1) };
                }
            }
            Argument::Strided(levels, plan) => {
                let at = |word| plan.at(*levels, self.width, word);
                // SAFETY: the caller's contract.
                unsafe { move_words(pack, &plan.range, self.width as u64, at) }
            }
            Argument::Transposed(plan) => {
                let plan = if pack { *plan } else { plan.reversed() };
                // SAFETY: the caller's contract.
                unsafe { plan.interpret(self.width) }
            }
            Argument::Runs(plan) => {
                let nest = plan.nest();
                // SAFETY: the caller's contract.
                let at = |word| unsafe { nest.inside(self.width, word) };
                // SAFETY: the caller's contract.
                unsafe { move_words(pack, &plan.range, self.width as u64, at) }
            }
            Argument::General(plan) => {
                let wide = plan.range.wide != 0;
                // SAFETY: the caller's contract.
                let at = |word| unsafe { plan.nest.at(wide, self.width, word) };
                // SAFETY: the caller's contract.
                unsafe { move_words(pack, &plan.range, self.width as u64, at) }
            }
        }
    }
}

impl PeriodArgument {
    /// # Safety
    /// Both sides are valid.
    unsafe fn interpret(&self) {
        let words = &self.word[..self.words as usize];
        let place = |at: u64, step: i64, period: u64, offset: i32| {
            let period = (period as i64).wrapping_mul(step);
            at.wrapping_add_signed(period.wrapping_add(offset.into()))
        };
        for word in words {
            let places = |period: u64| {
                let from = place(self.from, self.from_step, period, word.from);
                (from, place(self.to, self.to_step, period, word.to))
            };
            for period in self.first..self.last {
                let ((from, to), bytes) = (places(period), u64::from(word.bytes));
                assert!((from | to).is_multiple_of(bytes), "words are aligned");
                // SAFETY: the caller's contract.
                unsafe { move_bytes(true, from, to, bytes) };
            }
            for cut in &self.cut {
                let (from, to) = places(cut.period);
                for k in 0..u64::from(word.bytes) {
                    let byte = u64::from(word.packed) + k;
                    if byte >= cut.from.into() && byte < cut.until.into() {
                        // SAFETY: the caller's contract.
                        unsafe { move_bytes(true, from + k, to + k, 1) };
                    }
                }
            }
        }
    }
}

impl Transfer {
    /// Does what the kernel does.
    ///
    /// # Safety
    /// As [`Launch::interpret`], for both layouts.
    pub unsafe fn interpret(&self) {
        let plan = match &self.argument {
            TransferArgument::Layouts(plan) => plan,
            // SAFETY: the caller's contract.
            TransferArgument::Transposed(plan) => return unsafe { plan.interpret(self.width) },
            // SAFETY: the caller's contract.
            TransferArgument::Periods(plan) => return unsafe { plan.interpret() },
        };
        let (width, wide) = (self.width as u64, plan.wide != 0);
        let mut byte = plan.start;
        while byte < plan.end {
            let whole = byte.is_multiple_of(width) && byte + width <= plan.end;
            let bytes = if whole { width } else { 1 };
            let (word, rest) = (byte / width, byte % width);
            // SAFETY: the caller's contract.
            let from = unsafe { plan.from.nest.at(wide, self.width, word) };
            // SAFETY: the caller's contract.
            let to = unsafe { plan.to.nest.at(wide, self.width, word) };
            let from = plan.from.layout.wrapping_add_signed(from) + rest;
            let to = plan.to.layout.wrapping_add_signed(to) + rest;
            assert!(
                !whole || (from | to).is_multiple_of(width),
                "words are aligned"
            );
            // SAFETY: the caller's contract.
            unsafe { move_bytes(true, from, to, bytes) };
            byte += bytes;
        }
    }
}

/// # Safety
/// As [`Launch::interpret`].
unsafe fn move_words(pack: bool, range: &Span, width: u64, at: impl Fn(u64) -> i64) {
    let mut byte = range.start;
    while byte < range.end {
        let whole = byte.is_multiple_of(width) && byte + width <= range.end;
        let inside = range.layout.wrapping_add_signed(at(byte / width)) + byte % width;
        let outside = range.packed + (byte - range.start);
        let bytes = if whole { width } else { 1 };
        assert!(
            !whole || (inside | outside).is_multiple_of(width),
            "words are aligned"
        );
        // SAFETY: the caller's contract.
        unsafe { move_bytes(pack, inside, outside, bytes) };
        byte += bytes;
    }
}

/// # Safety
/// Both addresses are valid.
unsafe fn move_bytes(pack: bool, inside: u64, outside: u64, bytes: u64) {
    let (from, to) = if pack {
        (inside, outside)
    } else {
        (outside, inside)
    };
    // SAFETY: the caller's contract.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes as usize) };
}

impl Plan {
    /// Where a packed byte is, relative to the origin: as a kernel with words of
    /// one byte finds it.
    pub fn offset(&self, tables: &Tables, byte: u64) -> i64 {
        let at = tables.bytes.as_ptr() as u64;
        // An odd distance between packed address and number: words of one byte.
        let Some(launch) = self.launch((tables, at), 0, byte + 1, byte..byte + 1) else {
            return 0;
        };
        let inside = match &launch.argument {
            Argument::Contiguous { offset, .. } => *offset as i64,
            Argument::Strided(levels, plan) => plan.at(*levels, launch.width, byte),
            Argument::Transposed(plan) => {
                let (from, _) = plan.places(launch.width, plan.first);
                from.wrapping_sub(self.base as u64) as i64
            }
            // SAFETY: the tables are where their bytes are.
            Argument::Runs(plan) => unsafe { plan.nest().inside(launch.width, byte) },
            // SAFETY: the tables are where their bytes are.
            Argument::General(plan) => unsafe {
                plan.nest.at(plan.range.wide != 0, launch.width, byte)
            },
        };
        self.base + inside
    }
}
