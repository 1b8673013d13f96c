//! Layouts and messages of more than 2 and 4 GiB: places of 64 bits in lists, packed bytes of
//! 64 bits before their runs, numbers of words behind 2^31. The host's side is the blocks that
//! the types were made of; what is not touched of many gigabytes costs nothing.

#[path = "support/sparse.rs"]
mod sparse;
mod support;

use osier_datatype::{Basic, Element, Layout, Operator, Type};
use osier_datatype_corpus::random::Random;
use osier_kernels::plan::Plan;
use osier_kernels::plan::arguments::{Argument, Tables};
use osier_kernels::plan::transfer::{PlacedPlan, Transfer, TransferArgument};
use osier_kernels::{DeviceView, Packer, Stream};
use sparse::{Sparse, run_alone};
use std::ops::Range;
use support::context;

const GIB: usize = 1 << 30;

/// A layout and its blocks: where each is, and its bytes.
struct Made {
    layout: Layout,
    count: usize,
    blocks: Vec<(usize, usize)>,
}

impl Made {
    /// Blocks of bytes at any places, as a type of words.
    fn listed(word: usize, blocks: Vec<(usize, usize)>) -> Made {
        let unit = Type::contiguous(word, &Type::basic(Basic::U8)).unwrap();
        let list: Vec<(usize, isize)> = blocks
            .iter()
            .map(|&(at, bytes)| (bytes / word, at as isize))
            .collect();
        Made {
            layout: Type::hindexed(&list, &unit).unwrap().commit().unwrap(),
            count: 1,
            blocks,
        }
    }

    fn bytes(&self) -> usize {
        self.blocks.iter().map(|&(_, bytes)| bytes).sum()
    }

    fn room(&self) -> usize {
        self.layout.span(self.count).1 as usize
    }

    /// What a range of packed bytes is, block by block.
    fn runs(&self, range: &Range<usize>) -> Vec<(usize, usize)> {
        let (mut packed, mut runs) = (0, Vec::new());
        for &(at, bytes) in &self.blocks {
            let (from, until) = (range.start.max(packed), range.end.min(packed + bytes));
            if from < until {
                runs.push((at + from - packed, until - from));
            }
            packed += bytes;
        }
        runs
    }
}

/// Short blocks of so many words in all, in clusters that lie 1.5 GiB apart.
fn clusters(word: usize, words: usize, random: &mut Random) -> Vec<(usize, usize)> {
    let mut blocks = Vec::new();
    let mut left = words;
    for cluster in 0.. {
        let mut at = cluster * 3 * GIB / 2;
        let mut here = if cluster == 3 {
            left
        } else {
            left.min(words / 4)
        };
        while here > 0 {
            let block = here.min(1 + random.below(5) as usize);
            blocks.push((at, block * word));
            at += (block + 1 + random.below(3) as usize) * word;
            here -= block;
            left -= block;
        }
        if left == 0 {
            break;
        }
    }
    blocks
}

struct Device<'a> {
    packer: Packer,
    stream: &'a Stream,
}

impl Device<'_> {
    /// Pack to any address, and unpack from there.
    fn packs(&self, made: &Made, range: &Range<usize>, odd: usize) {
        let runs = made.runs(range);
        let mut memory = Sparse::new(self.stream, made.room(), 1);
        memory.touch(&runs);
        let room = range.len() + odd;
        let [mut packed, mut fresh] = [2, 3].map(|seed| Sparse::new(self.stream, room, seed));
        let inside = [(odd, range.len())];
        packed.touch(&inside);
        fresh.touch(&inside);
        let view = DeviceView::new(&memory.device, 0, &made.layout, made.count).unwrap();
        let view = view.after_stream(self.stream);
        let part = |of: &Sparse<'_>| {
            let part = of.device.slice(odd..room).unwrap();
            part.after_stream(self.stream)
        };
        (self.packer)
            .pack(self.stream, &view, range.clone(), &part(&packed), None)
            .unwrap();
        packed.scatter(&inside, &memory.gather(&runs));
        packed.check(&format!("pack {range:?}"));
        (self.packer)
            .unpack(self.stream, &part(&fresh), range.clone(), &view, None)
            .unwrap();
        memory.scatter(&runs, &fresh.gather(&inside));
        memory.check(&format!("unpack {range:?}"));
    }

    fn copies(&self, from: &Made, to: &Made, range: &Range<usize>) {
        let (reads, writes) = (from.runs(range), to.runs(range));
        let mut source = Sparse::new(self.stream, from.room(), 4);
        let mut target = Sparse::new(self.stream, to.room(), 5);
        source.touch(&reads);
        target.touch(&writes);
        let view = |memory: &Sparse<'_>, made: &Made| {
            let view = DeviceView::new(&memory.device, 0, &made.layout, made.count).unwrap();
            view.after_stream(self.stream)
        };
        let views = [view(&source, from), view(&target, to)];
        (self.packer)
            .copy(self.stream, &views[0], &views[1], range.clone(), None)
            .unwrap();
        target.scatter(&writes, &source.gather(&reads));
        target.check(&format!("copy {range:?}"));
        // Sums of bytes, on top of that.
        let element = Element::from(Basic::U8);
        let (mut sums, packed) = (target.gather(&writes), source.gather(&reads));
        Operator::Sum.combine(element, &mut sums, &packed).unwrap();
        (self.packer)
            .combine(
                self.stream,
                Operator::Sum,
                &views[0],
                &views[1],
                range.clone(),
                None,
            )
            .unwrap();
        target.scatter(&writes, &sums);
        target.check(&format!("sum {range:?}"));
    }
}

/// What a launch of a layout says: whether places and packed bytes of its list have 64 bits,
/// and numbers of words.
fn wide(made: &Made, range: &Range<usize>) -> (bool, bool, bool) {
    let plan = Plan::new(&made.layout, made.count).unwrap();
    let tables = Tables::new(&plan);
    let range = range.start as u64..range.end as u64;
    // Packed bytes at an address that suits their numbers.
    let packed = (1 << 45) + range.start;
    let launch = plan.launch((&tables, 1 << 20), 1 << 44, packed, range);
    match launch.unwrap().argument {
        Argument::General(general) => {
            let list = general.nest.list;
            let wide = [list.wide_offsets, list.wide_before, general.range.wide];
            let [offsets, before, words] = wide.map(|wide| wide != 0);
            (offsets, before, words)
        }
        Argument::Runs(runs) => (runs.list.wide_offsets != 0, false, false),
        Argument::Strided(_, strided) => (false, false, strided.range.wide != 0),
        Argument::Transposed(_) | Argument::Contiguous { .. } => (false, false, false),
    }
}

fn both_ways(device: &Device<'_>, layouts: &[&Made; 2], range: &Range<usize>) {
    for (k, made) in layouts.iter().enumerate() {
        device.packs(made, range, 0);
        device.packs(made, range, 1 + k);
    }
    device.copies(layouts[0], layouts[1], range);
    device.copies(layouts[1], layouts[0], range);
}

#[test]
fn places_of_64_bits() {
    run_alone("child_places_of_64_bits");
}

/// Lists of short blocks across 4.5 GiB, with words of all widths.
#[test]
#[ignore = "run by places_of_64_bits"]
fn child_places_of_64_bits() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let device = Device {
        packer: Packer::new(&context),
        stream: &stream,
    };
    let mut random = Random::new(11);
    for word in [1, 2, 4, 8, 16] {
        // So many that cores are not written out.
        let words = 9000;
        let made = [(); 2].map(|()| Made::listed(word, clusters(word, words, &mut random)));
        let all = 0..words * word;
        let cut = all.end / 5 + 3..all.end - all.end / 7;
        for range in [all, cut] {
            for made in &made {
                assert_eq!(wide(made, &range), (true, false, false), "words of {word}");
            }
            both_ways(&device, &[&made[0], &made[1]], &range);
        }
    }
}

#[test]
fn packed_bytes_of_64_bits() {
    run_alone("child_packed_bytes_of_64_bits");
}

/// Lists with more than 4 GiB of packed bytes before the short blocks that are moved, and so
/// numbers of words behind 2^31 where these are narrow.
#[test]
#[ignore = "run by packed_bytes_of_64_bits"]
fn child_packed_bytes_of_64_bits() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let device = Device {
        packer: Packer::new(&context),
        stream: &stream,
    };
    let mut random = Random::new(13);
    for word in [1, 2, 4, 8] {
        let words = 3000;
        let made = [(); 2].map(|()| {
            // Two long blocks, of 4.5 GiB and 12 together, and short ones behind them.
            let long = 9 * GIB / 2 + random.below(1000) as usize * word;
            let rest = 12 * GIB - long;
            let mut blocks = vec![(0, long), (long + 24 * word, rest)];
            let behind = 12 * GIB + 4096;
            let short = clusters(word, words, &mut random);
            blocks.extend(short.iter().map(|&(at, bytes)| (behind + at, bytes)));
            Made::listed(word, blocks)
        });
        let end = made[0].bytes();
        assert_eq!(end, made[1].bytes());
        let ranges = [
            12 * GIB - 2000..end,
            end - words * word / 2 + 3..end - 7,
            9 * GIB / 2 - 4000..9 * GIB / 2 + word * 1000 + 4000,
        ];
        for range in ranges {
            for made in &made {
                let (_, before, words) = wide(made, &range);
                assert!(before, "words of {word}");
                assert_eq!(words, range.end / word >= 1 << 31, "words of {word}");
            }
            both_ways(&device, &[&made[0], &made[1]], &range);
        }
    }
}

#[test]
fn words_behind_two_billion() {
    run_alone("child_words_behind_two_billion");
}

/// Blocks at strides, columns, and arrays of records, at their ends behind 2^31 words.
#[test]
#[ignore = "run by words_behind_two_billion"]
fn child_words_behind_two_billion() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let device = Device {
        packer: Packer::new(&context),
        stream: &stream,
    };
    let byte = Type::basic(Basic::U8);
    let count = (1 << 31) + 5000;
    for (word, block, stride) in [(1, 1, 3), (1, 3, 5), (2, 2, 6), (4, 4, 12), (4, 12, 20)] {
        let rows = |stride: usize| {
            let bytes = count * word;
            let ty = Type::hvector(bytes / block, block, stride as isize, &byte).unwrap();
            let layout = ty.commit().unwrap();
            // Of these blocks the last ones alone are looked at.
            let last = bytes / block;
            let first = last - 6000;
            let mut blocks = vec![(usize::MAX / 2, first * block)];
            blocks.extend((first..last).map(|k| (k * stride, block)));
            Made {
                layout,
                count: 1,
                blocks,
            }
        };
        let made = [rows(stride), rows(stride + word)];
        let end = made[0].bytes();
        for range in [
            end - 5000 * block..end,
            end - 4999 * block + word..end - word,
        ] {
            for made in &made {
                assert!(wide(made, &range).2, "blocks of {block} bytes");
            }
            both_ways(&device, &[&made[0], &made[1]], &range);
        }
    }
    // A matrix of bytes by columns.
    let side = 50_000;
    let column = Type::hvector(side, 1, side as isize + 3, &byte).unwrap();
    let columns = Type::hvector(side, 1, 1, &column).unwrap();
    let first = side - 200;
    let mut blocks = vec![(usize::MAX / 2, first * side)];
    for column in first..side {
        blocks.extend((0..side).map(|row| (row * (side + 3) + column, 1)));
    }
    let made = Made {
        layout: columns.commit().unwrap(),
        count: 1,
        blocks,
    };
    let end = made.bytes();
    // Parts of few rows each touch few pages.
    for range in [end - 900..end, end - side - 700..end - side + 400] {
        device.packs(&made, &range, 0);
        device.packs(&made, &range, 1);
    }
    // Records: their period is in the argument, so words have no numbers there.
    let records = |places: [isize; 3], extent: isize| {
        let fields = [(4, places[0]), (8, places[1]), (3, places[2])];
        let fields: Vec<_> = fields
            .iter()
            .map(|&(bytes, at)| (bytes, at, byte.clone()))
            .collect();
        let record = Type::structure(&fields).unwrap();
        let record = Type::resized(0, extent, &record).unwrap();
        let count = (1 << 32) / 15;
        let layout = record.commit().unwrap();
        let first = count - 1000;
        let mut blocks = vec![(usize::MAX / 2, first * 15)];
        for k in first..count {
            let at = |field: usize| (k as isize * extent + places[field]) as usize;
            blocks.extend([(at(0), 4), (at(1), 8), (at(2), 3)]);
        }
        Made {
            layout,
            count,
            blocks,
        }
    };
    let made = [records([0, 8, 20], 24), records([4, 8, 0], 16)];
    let end = made[0].bytes();
    for range in [end - 15_000..end, end - 14_000..end - 4] {
        let plans = made
            .each_ref()
            .map(|made| Plan::new(&made.layout, made.count).unwrap());
        let tables = plans.each_ref().map(Tables::new);
        let side = |k: usize| PlacedPlan {
            plan: &plans[k],
            tables: &tables[k],
            tables_at: 1 << 20,
            origin: 1 << 44,
        };
        let transfer = Transfer::new(side(0), side(1), range.start as u64..range.end as u64);
        let argument = transfer.unwrap().argument;
        assert!(matches!(argument, TransferArgument::Periods(_)));
        both_ways(&device, &[&made[0], &made[1]], &range);
    }
}
