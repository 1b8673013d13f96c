//! Example 6: the paged cache of keys and values of one sequence, from the rank that
//! has read the prompt to the rank that goes on, with one message.
//!
//! ```text
//! cache of a rank: [layer][keys, values][page][bytes of a page]
//!
//! prefill rank, pages 7 2 9 of each layer      decode rank, pages 4 5 1
//!   layer 0  keys    . . 2 . . . . 7 . 9         . 9 . . 7 2 . . . .
//!            values  . . 2 . . . . 7 . 9   -->   . 9 . . 7 2 . . . .
//!   layer 1  ...
//! ```
//!
//! Inference engines keep the cache in pages, so that sequences may grow; the pages of a
//! sequence lie anywhere, and elsewhere at the other rank. Each side describes its own:
//! a datatype of one page per entry of its table, and that once per layer. Then a send
//! and a receive move all layers, where one copy per page and layer is usual.

use std::process::ExitCode;

use clap::Parser;
use osier::buffers::Region;
use osier::{Communicator, Datatype, Layout, Result, Type};
use osier_examples::cli::{self, say_once};
use osier_examples::exchange::{Exchange, Space, report};

/// Move the paged cache of one sequence between pairs of ranks
#[derive(Parser)]
#[command(
    name = "kv_cache",
    after_help = "Examples:
  osier run -n 2 -- kv_cache
  osier run -n 2 -- kv_cache --device --layers 80 --tokens 8192 --pages 4096
      the cache of a model with 80 layers, 8 heads of 128 numbers of 16 bits: 2.7 GB
Even ranks send to the next odd one."
)]
struct Options {
    /// Layers of the model
    #[arg(long, default_value_t = 4)]
    layers: usize,

    /// Tokens of the sequence
    #[arg(long, default_value_t = 256)]
    tokens: usize,

    /// Tokens of a page
    #[arg(long, default_value_t = 16)]
    page_tokens: usize,

    /// Heads of keys and values
    #[arg(long, default_value_t = 8)]
    heads: usize,

    /// Numbers of 16 bits in a head
    #[arg(long, default_value_t = 128)]
    head_size: usize,

    /// Pages of the cache, for all sequences
    #[arg(long, default_value_t = 64)]
    pages: usize,

    /// Keep the cache in the memory of a GPU, or of an emulated one
    #[arg(long)]
    device: bool,

    /// Repetitions, for the time
    #[arg(long, value_name = "N", default_value_t = 5)]
    repeat: usize,
}

fn main() -> ExitCode {
    cli::run(migrate)
}

/// What lies where: numbers of 16 bits.
struct Cache {
    /// Numbers of a page.
    page: usize,
    /// Pages of keys, or of values, in a layer.
    pages: usize,
    /// Layers, keys and values counted apart.
    planes: usize,
}

impl Cache {
    /// The layout of a sequence's pages in all layers.
    fn sequence(&self, table: &[usize]) -> Result<Layout> {
        let number = u16::datatype();
        let places: Vec<isize> = table
            .iter()
            .map(|p| (p * self.page).cast_signed())
            .collect();
        let pages = Type::indexed_block(self.page, &places, &number)?;
        let plane_bytes = self.pages * self.page * size_of::<u16>();
        let plane = Type::resized(0, plane_bytes.cast_signed(), &pages)?;
        Ok(Type::contiguous(self.planes, &plane)?.commit()?)
    }

    fn numbers(&self) -> usize {
        self.planes * self.pages * self.page
    }
}

/// Which pages a rank gave to the sequence, in the order of its tokens: drawn, each
/// once.
fn table(rank: usize, pages: usize, wanted: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (0..pages).collect();
    let mut state = 0x9e37_79b9_u64.wrapping_mul(rank as u64 + 1);
    for i in (1..pages).rev() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        all.swap(i, (state >> 33) as usize % (i + 1));
    }
    all.truncate(wanted);
    all
}

fn migrate(world: &Communicator, options: &Options) -> Result<u8> {
    let wanted = options.tokens.div_ceil(options.page_tokens.max(1));
    if wanted > options.pages || wanted == 0 {
        say_once(world, || {
            eprintln!(
                "kv_cache: the sequence takes {wanted} pages, the cache has {} (hint: --pages)",
                options.pages
            );
        });
        return Ok(2);
    }
    let cache = Cache {
        page: options.page_tokens * options.heads * options.head_size,
        pages: options.pages,
        planes: 2 * options.layers,
    };
    let (rank, size) = (world.rank(), world.size());
    let peer = rank ^ 1;
    let mine = table(rank, cache.pages, wanted);
    let mut exchange = Exchange::default();
    let region = Region::new(cache.sequence(&mine)?);
    // With an odd number the last rank has nobody to send to.
    match rank % 2 {
        0 if peer < size => exchange.sends.push((region, peer)),
        0 => {}
        _ => exchange.receives.push((region, peer)),
    }

    let value = |rank: usize, at: usize| (at.wrapping_mul(31) ^ (rank << 9)) as u16;
    let from: Vec<u16> = match exchange.sends.is_empty() {
        false => (0..cache.numbers()).map(|i| value(rank, i)).collect(),
        true => Vec::new(),
    };
    let mut to: Vec<u16> = match exchange.receives.is_empty() {
        false => vec![0xffff; cache.numbers()],
        true => Vec::new(),
    };
    let place = Space::of(world, options.device)?;
    let seconds = exchange.run(world, &place, &from, &mut to, options.repeat)?;

    let mut wrong = 0;
    if !to.is_empty() {
        let theirs = table(peer, cache.pages, wanted);
        // Which page of the sequence each page of the cache holds, if any.
        let mut holds = vec![None; cache.pages];
        mine.iter()
            .zip(&theirs)
            .for_each(|(here, there)| holds[*here] = Some(*there));
        for (number, page) in to.chunks(cache.page).enumerate() {
            let (plane, place) = (number / cache.pages, number % cache.pages);
            let right = |i: usize| match holds[place] {
                Some(there) => value(peer, (plane * cache.pages + there) * cache.page + i),
                None => 0xffff,
            };
            let off = page
                .iter()
                .enumerate()
                .filter(|(i, found)| **found != right(*i));
            wrong += off.count();
        }
    }
    let what = format!(
        "moved {} tokens of {} layers: {} blocks of {} bytes a sequence",
        options.tokens,
        options.layers,
        wanted * cache.planes,
        cache.page * size_of::<u16>()
    );
    report(world, &what, &place, (exchange.bytes(), seconds), wrong)
}
