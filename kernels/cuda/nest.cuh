// Any layout: nested loops, regular or by a table of places, over one block or
// over a list of runs, or of rows of equal blocks, of any length.
//
// The packed stream is cut into words of one width, whatever the runs are. A warp
// takes a chunk of 512 bytes to 4 KiB of them and asks once where its first word is;
// the answer, a segment, holds for as many words as share it: those of a run, or of
// the cores in a row. All lanes ask and get the same, so nothing is exchanged between
// them. Inside of a segment a word costs an addition, a division by multiplication, or
// a search between two hints.
//
//     chunk   |......................|........    packed words
//     run     |-------|                           a long run: an addition
//     rows            |-|-|-|-|-|                 equal blocks at equal distances, or listed
//     map                       |----             a small core written out word by word
//     box                       |----|-----|      one of several boxes under three strides, or
//                                                 a listed row, which is a box under one
#pragma once
#include "osier.cuh"

const int OSIER_DIMENSIONS = 8;

struct osier_dimension {
    osier_divisor count;
    osier_i64 stride;    // without a table
    const void* table;   // places, osier_i32 or osier_i64
    osier_u32 wide;      // osier_i64
    osier_u32 unused;
};

struct osier_list {
    const void* offsets;     // osier_i32 or osier_i64; null: the core is one block
    const void* before;      // packed bytes before each run or row, osier_u32 or osier_u64
    const osier_u32* hints;  // the run or row at every (1 << shift)-th packed byte
    osier_u32 wide_offsets;
    osier_u32 wide_before;
    osier_u32 shift;
    osier_u32 runs;
};

const int OSIER_BOXES = 16;

// Blocks under up to three strides, one of several boxes of a core. A block has a number,
// which is divided by the count of the innermost loop, and so on: with each number the
// place grows by a step, which takes back what the loops inside have moved.
struct osier_box {
    osier_i64 base;
    osier_u32 start;     // words of the core before it
    osier_u32 block;     // words
    osier_u32 magic[3];  // division by a block's words, and by two counts
    osier_u32 shift[3];
    osier_i32 step[3];   // bytes
    osier_u32 unused;
};

// Where packed words are, for any layout.
struct osier_nest {
    osier_divisor core;    // words of a core
    osier_list list;
    const osier_i32* map;  // where each unit of a core is, and a few units of the next one; or null
    osier_u32 map_shift;   // words of a unit, as a power of two
    osier_u32 dimensions;
    osier_dimension dimension[OSIER_DIMENSIONS]; // innermost first
    osier_u32 boxes;       // of the core, or none
    osier_u32 rows;        // the list has rows, not runs: box 0, at a place of their own each
    osier_box box[OSIER_BOXES];
};

// Least bytes of a run that is looked up by itself.
const osier_u32 OSIER_LONG = 512;
// Least words of a row that is looked up by itself.
const osier_u32 OSIER_ROW = 128;

// One bit each: a test of bits is never made a jump by a table, which would cost more.
enum { OSIER_RUN = 1, OSIER_ROWS = 2, OSIER_MAP = 4, OSIER_LIST = 8, OSIER_ANY = 16, OSIER_BOX = 32 };

// Packed words that are found in one way.
struct osier_segment {
    osier_u8* base;      // the first word of a run; else the first core
    osier_u64 first;     // number of the first core in a table; without one it is in the base; or of a box
    osier_u64 inside;    // words of the first core, or of the box or listed row, before the segment; any: before all
    osier_u32 words;
    osier_u32 kind;
};

static __device__ __forceinline__ osier_i64 osier_signed(const void* table, bool wide, osier_u64 index) {
    return wide ? ((const osier_i64*)table)[index] : (osier_i64)((const osier_i32*)table)[index];
}

static __device__ __forceinline__ osier_i64 osier_place_of(const osier_dimension& dimension, osier_u64 index) {
    if (!dimension.table) return (osier_i64)index * dimension.stride;
    return osier_signed(dimension.table, dimension.wide, index);
}

static __device__ __forceinline__ osier_u64 osier_least(osier_u64 a, osier_u64 b) { return a < b ? a : b; }

static __device__ __forceinline__ osier_u64 osier_before(const osier_list& list, osier_u32 run) {
    return list.wide_before ? ((const osier_u64*)list.before)[run] : (osier_u64)((const osier_u32*)list.before)[run];
}

template <class T> static __device__ __forceinline__ osier_u32 osier_bisect(
    const T* before, osier_u32 low, osier_u32 high, T byte
) {
#pragma unroll 1
    while (low < high) {
        const osier_u32 middle = low + (high - low + 1) / 2;
        if (before[middle] <= byte) low = middle; else high = middle - 1;
    }
    return low;
}

// The run of a packed byte of the core.
static __device__ __forceinline__ osier_u32 osier_find_run(const osier_list& list, osier_u64 byte) {
    const osier_u64 hint = byte >> list.shift;
    const osier_u32 low = list.hints[hint], high = list.hints[hint + 1];
    return list.wide_before ? osier_bisect((const osier_u64*)list.before, low, high, byte)
                            : osier_bisect((const osier_u32*)list.before, low, high, (osier_u32)byte);
}

// The offset of a packed byte of a core with a list of runs.
static __device__ __forceinline__ osier_i64 osier_listed(const osier_list& list, osier_u64 byte) {
    const osier_u32 run = osier_find_run(list, byte);
    return osier_signed(list.offsets, list.wide_offsets, run) + (osier_i64)(byte - osier_before(list, run));
}

// The box of a word of the core.
static __device__ __forceinline__ osier_u32 osier_find_box(const osier_nest& nest, osier_u32 word) {
    osier_u32 found = 0;
#pragma unroll
    for (osier_u32 step = OSIER_BOXES / 2; step; step /= 2) {
        if (found + step < nest.boxes && nest.box[found + step].start <= word) found += step;
    }
    return found;
}

static __device__ __forceinline__ osier_u32 osier_box_quotient(const osier_box& box, int k, osier_u32 n) {
    return (__umulhi(n, box.magic[k]) + n) >> box.shift[k];
}

// Where a word of a box is, which begins at an address.
template <int W> static __device__ __forceinline__ osier_u8* osier_boxed(const osier_box& box, osier_u8* at, osier_u32 word) {
    const osier_u32 block = osier_box_quotient(box, 0, word);
    const osier_u32 middle = osier_box_quotient(box, 1, block);
    const osier_u32 outer = osier_box_quotient(box, 2, middle);
    return at + (osier_u64)word * W + (osier_i64)(osier_i32)block * box.step[0]
        + (osier_i64)(osier_i32)middle * box.step[1] + (osier_i64)(osier_i32)outer * box.step[2];
}

// The offset of a word of a core with a list of runs or of rows.
template <int W> static __device__ __forceinline__ osier_i64 osier_listed(const osier_nest& nest, osier_u64 word) {
    const osier_list& list = nest.list;
    const osier_u64 byte = word * W;
    const osier_u32 found = osier_find_run(list, byte);
    const osier_u64 inside = byte - osier_before(list, found);
    osier_i64 offset = osier_signed(list.offsets, list.wide_offsets, found) + (osier_i64)inside;
    if (nest.rows) offset += (osier_i64)(osier_i32)osier_box_quotient(nest.box[0], 0, (osier_u32)(inside / W)) * nest.box[0].step[0];
    return offset;
}

// The offset of a word of a core.
template <int W> static __device__ __forceinline__ osier_i64 osier_mapped(const osier_nest& nest, osier_u32 word) {
    const osier_u32 shift = nest.map_shift;
    return (osier_i64)nest.map[word >> shift] + (osier_i64)((word & ((1u << shift) - 1)) * W);
}

// Where any word is, without a segment.
template <int W> static __device__ __forceinline__ osier_u8* osier_word_at(
    const osier_nest& nest, osier_u8* layout, bool wide, osier_u64 word
) {
    osier_u64 rest = osier_divide(nest.core, word, wide);
    const osier_u64 inside = word - rest * nest.core.value;
    osier_i64 offset = nest.map ? osier_mapped<W>(nest, (osier_u32)inside)
        : nest.list.offsets ? osier_listed<W>(nest, inside) : (osier_i64)(inside * W);
    if (nest.boxes) {
        const osier_box& box = nest.box[osier_find_box(nest, (osier_u32)inside)];
        layout = osier_boxed<W>(box, layout + box.base, (osier_u32)inside - box.start);
        offset = 0;
    }
#pragma unroll 1
    for (osier_u32 k = 0; k < nest.dimensions; k++) {
        const osier_dimension& dimension = nest.dimension[k];
        osier_u64 index = rest;
        if (k + 1 < nest.dimensions) {
            rest = osier_divide(dimension.count, index, wide);
            index -= rest * dimension.count.value;
        }
        offset += osier_place_of(dimension, index);
    }
    return layout + offset;
}

// The segment that begins at a word, of at most `most` words.
template <int W> static __device__ __forceinline__ osier_segment osier_open(
    const osier_nest& nest, osier_u8* layout, bool wide, osier_u64 word, osier_u32 most
) {
    osier_u64 rest = osier_divide(nest.core, word, wide);
    osier_segment segment = {layout, 0, word - rest * nest.core.value, most, OSIER_RUN};
    osier_u64 first = 0, cores = 1;
    if (nest.dimensions) {
        first = rest;
        if (nest.dimensions > 1) {
            rest = osier_divide(nest.dimension[0].count, first, wide);
            first -= rest * nest.dimension[0].count.value;
        }
        cores = nest.dimension[0].count.value - first;
#pragma unroll 1
        for (osier_u32 k = 1; k < nest.dimensions; k++) {
            osier_u64 index = rest;
            if (k + 1 < nest.dimensions) {
                rest = osier_divide(nest.dimension[k].count, index, wide);
                index -= rest * nest.dimension[k].count.value;
            }
            segment.base += osier_place_of(nest.dimension[k], index);
        }
    }
    // Words of this core, of its run, and of the row of cores.
    const osier_u64 core = nest.core.value - segment.inside;
    const osier_u64 row = core + (cores - 1) * nest.core.value;
    const osier_u64 enough = osier_least(most, OSIER_LONG / W);
    const osier_u64 worth = osier_least(most, OSIER_ROW);
    if (nest.list.offsets) {
        const osier_list& list = nest.list;
        const osier_u64 byte = segment.inside * W;
        const osier_u32 found = osier_find_run(list, byte);
        const osier_u64 end = found + 1 < list.runs ? osier_before(list, found + 1) : nest.core.value * W;
        const osier_u64 run = (end - byte) / W;
        if (nest.dimensions) segment.base += osier_place_of(nest.dimension[0], first);
        if (run >= enough) {
            const osier_i64 inside = (osier_i64)(byte - osier_before(list, found));
            segment.base += osier_signed(list.offsets, list.wide_offsets, found) + inside;
            segment.words = (osier_u32)osier_least(run, most);
            if (nest.rows) {
                segment.kind = OSIER_BOX;
                segment.base -= inside;
                segment.inside = (osier_u64)inside / W;
            }
            return segment;
        }
        // Where runs are long, another one may come soon.
        const osier_u64 step = list.shift > 10 ? worth : most;
        segment.kind = OSIER_LIST;
        segment.words = (osier_u32)osier_least(core, step);
        // Short rows are found word by word: a question for each word of a list of runs would
        // cost a tenth.
        if (core >= worth && !nest.rows) return segment;
    } else if (nest.boxes) {
        if (nest.dimensions) segment.base += osier_place_of(nest.dimension[0], first);
        const osier_u32 found = osier_find_box(nest, (osier_u32)segment.inside);
        const osier_box& box = nest.box[found];
        const osier_u64 end = found + 1 < nest.boxes ? (osier_u64)nest.box[found + 1].start : nest.core.value;
        const osier_u32 word = (osier_u32)segment.inside - box.start;
        const osier_u32 run = (osier_box_quotient(box, 0, word) + 1) * box.block - word;
        segment.base += box.base;
        if (run >= enough) {
            segment.base = osier_boxed<W>(box, segment.base, word);
            segment.words = (osier_u32)osier_least(run, most);
            return segment;
        }
        segment.kind = OSIER_BOX;
        segment.first = found;
        segment.words = (osier_u32)osier_least(end - segment.inside, most);
        segment.inside = word;
        return segment;
    } else if (nest.map || (nest.dimensions && core < enough)) {
        segment.kind = nest.map ? OSIER_MAP : OSIER_ROWS;
        segment.words = (osier_u32)osier_least(row, most);
        if (nest.dimensions) {
            const osier_dimension& inner = nest.dimension[0];
            if (inner.table) segment.first = first;
            else segment.base += (osier_i64)first * inner.stride;
        }
        // Numbers inside of a row have 31 bits.
        if ((row >= worth || nest.map) && nest.core.value < 1u << 30) return segment;
    } else {
        if (nest.dimensions) segment.base += osier_place_of(nest.dimension[0], first);
        segment.base += (osier_i64)(segment.inside * W);
        segment.words = (osier_u32)osier_least(core, most);
        return segment;
    }
    segment.kind = OSIER_ANY;
    segment.base = layout;
    segment.inside = word;
    segment.words = (osier_u32)worth;
    return segment;
}

// Where a segment's words are, by number; one type per kind. BEYOND: words behind the
// segment's end may be asked for, too.
template <int W> struct osier_rows {
    static const bool BEYOND = false;
    const osier_nest& nest;
    const osier_segment& segment;
    __device__ __forceinline__ osier_i64 core(osier_u32 number) const {
        const osier_dimension& inner = nest.dimension[0];
        if (inner.table) return osier_signed(inner.table, inner.wide, segment.first + number);
        return (osier_i64)number * inner.stride;
    }
    __device__ __forceinline__ osier_u8* at(osier_u32 number) const {
        const osier_u32 word = (osier_u32)segment.inside + number;
        const osier_u32 before = osier_quotient(nest.core, word);
        return segment.base + core(before) + (osier_i64)((osier_u64)(word - before * (osier_u32)nest.core.value) * W);
    }
};

template <int W> struct osier_maps {
    static const bool BEYOND = false;
    const osier_nest& nest;
    const osier_segment& segment;
    __device__ __forceinline__ osier_u8* at(osier_u32 number) const {
        const osier_rows<W> rows = {nest, segment};
        const osier_u32 word = (osier_u32)segment.inside + number;
        const osier_u32 before = osier_quotient(nest.core, word);
        osier_u8* const start = nest.dimensions ? segment.base + rows.core(before) : segment.base;
        return start + osier_mapped<W>(nest, word - before * (osier_u32)nest.core.value);
    }
};

template <int W> struct osier_lists {
    static const bool BEYOND = false;
    const osier_nest& nest;
    const osier_segment& segment;
    __device__ __forceinline__ osier_u8* at(osier_u32 number) const {
        return segment.base + osier_listed(nest.list, (segment.inside + number) * W);
    }
};

template <int W> struct osier_boxes {
    static const bool BEYOND = true;
    const osier_nest& nest;
    const osier_segment& segment;
    __device__ __forceinline__ osier_u8* at(osier_u32 number) const {
        return osier_boxed<W>(nest.box[segment.first], segment.base, (osier_u32)segment.inside + number);
    }
};

template <int W> struct osier_anywhere {
    static const bool BEYOND = false;
    const osier_nest& nest;
    const osier_segment& segment;
    bool wide;
    __device__ __forceinline__ osier_u8* at(osier_u32 number) const {
        return osier_word_at<W>(nest, segment.base, wide, segment.inside + number);
    }
};

// Where MANY neighboring words are, if they are asked for one by one.
template <int MANY, class P> struct osier_one_by_one {
    const P& segment;
    __device__ __forceinline__ void find(osier_u32 number, osier_u8** places) const {
#pragma unroll
        for (int k = 0; k < MANY; k++) places[k] = segment.at(number + k);
    }
};

// The same by a map: one division for all of them.
template <int W, int MANY> struct osier_by_map {
    const osier_maps<W>& maps;
    __device__ __forceinline__ void find(osier_u32 number, osier_u8** places) const {
        const osier_nest& nest = maps.nest;
        const osier_u32 word = (osier_u32)maps.segment.inside + number;
        const osier_u32 before = osier_quotient(nest.core, word);
        osier_u8* const start = osier_kept(maps.segment.base + (osier_i64)before * nest.dimension[0].stride);
        const osier_u32 inside = word - before * (osier_u32)nest.core.value;
        if (nest.map_shift) {
#pragma unroll
            for (int k = 0; k < MANY; k++) places[k] = start + osier_mapped<W>(nest, inside + k);
        } else {
            const osier_i32* const map = nest.map + inside;
#pragma unroll
            for (int k = 0; k < MANY; k++) places[k] = start + map[k];
        }
    }
};

// The same in rows of blocks at a stride, none shorter than MANY words: one end of a block
// at most lies between the words.
template <int W, int MANY> struct osier_by_rows {
    const osier_rows<W>& rows;
    __device__ __forceinline__ void find(osier_u32 number, osier_u8** places) const {
        const osier_nest& nest = rows.nest;
        const osier_u32 core = (osier_u32)nest.core.value;
        const osier_u32 word = (osier_u32)rows.segment.inside + number;
        const osier_u32 before = osier_quotient(nest.core, word);
        const osier_u32 inside = word - before * core;
        const osier_i64 stride = nest.dimension[0].stride;
        osier_u8* const start = osier_kept(rows.segment.base + (osier_i64)before * stride + inside * W);
        osier_u8* const next = osier_kept(start + stride - (osier_i64)core * W);
        const osier_u32 left = core - inside;
#pragma unroll
        for (int k = 0; k < MANY; k++) places[k] = ((osier_u32)k < left ? start : next) + k * W;
    }
};

// Where neighboring words of a list of runs are: one search, then run by run, for the word
// behind a run's last one is the next run's first. Of lists of less than 4 GiB; offsets are O.
template <int W, int MANY, class O> static __device__ __forceinline__ void osier_walk_list(
    const osier_nest& nest, const osier_segment& segment, osier_u32 number, osier_u32 words, osier_u8** places
) {
    const osier_list& list = nest.list;
    const osier_u32* const before = (const osier_u32*)list.before;
    const osier_u32 byte = ((osier_u32)segment.inside + number) * W, hint = byte >> list.shift;
    osier_u32 run = osier_bisect(before, list.hints[hint], list.hints[hint + 1], byte);
    const osier_u32 core = (osier_u32)nest.core.value * W;
    osier_u32 end = run + 1 < list.runs ? before[run + 1] : core;
    const osier_u8* at = segment.base + (osier_i64)((const O*)list.offsets)[run] + (byte - before[run]);
    places[0] = (osier_u8*)at;
#pragma unroll
    for (int k = 1; k < MANY; k++) {
        at += W;
        if (byte + k * W == end && number + k < words) {
            run++;
            at = segment.base + (osier_i64)((const O*)list.offsets)[run];
            end = run + 1 < list.runs ? before[run + 1] : core;
        }
        places[k] = (osier_u8*)at;
    }
}

// Addresses of MANY words of a segment of any kind, APART words apart; words behind
// the end of the segment get no address.
template <int W, int MANY, int APART, class P> static __device__ __forceinline__ void osier_find_each(
    const P& segment, osier_u32 number, osier_u32 words, osier_u8** places
) {
#pragma unroll
    for (int k = 0; k < MANY; k++) {
        if (number + k * APART < words) places[k] = segment.at(number + k * APART);
    }
}

template <int W, int MANY, int APART> static __device__ __forceinline__ void osier_find(
    const osier_nest& nest, bool wide, const osier_segment& segment, osier_u32 number, osier_u32 words, osier_u8** places
) {
    // As many as are 8 bytes, all there.
    const bool group = APART == 1 && MANY == 8 / W && !nest.dimension[0].table && nest.dimensions && number + MANY <= words;
    if (segment.kind & OSIER_RUN) {
#pragma unroll
        for (int k = 0; k < MANY; k++) places[k] = segment.base + (osier_u64)(number + k * APART) * W;
    } else if (segment.kind & OSIER_ROWS) {
        const osier_rows<W> rows = {nest, segment};
        const osier_by_rows<W, MANY> groups = {rows};
        if (group && nest.core.value >= MANY) groups.find(number, places);
        else osier_find_each<W, MANY, APART>(rows, number, words, places);
    } else if (segment.kind & OSIER_MAP) {
        const osier_maps<W> maps = {nest, segment};
        const osier_by_map<W, MANY> groups = {maps};
        if (group) groups.find(number, places);
        else osier_find_each<W, MANY, APART>(maps, number, words, places);
    } else if (segment.kind & OSIER_LIST) {
        const osier_lists<W> lists = {nest, segment};
        const bool walked = APART == 1 && !nest.list.wide_before;
        if (walked && !nest.list.wide_offsets) osier_walk_list<W, MANY, osier_i32>(nest, segment, number, words, places);
        else if (walked) osier_walk_list<W, MANY, osier_i64>(nest, segment, number, words, places);
        else osier_find_each<W, MANY, APART>(lists, number, words, places);
    } else if (segment.kind & OSIER_BOX) {
        const osier_boxes<W> boxes = {nest, segment};
        // Arithmetic alone, so words behind the end may be asked for, too.
#pragma unroll
        for (int k = 0; k < MANY; k++) places[k] = boxes.at(number + k * APART);
    } else {
        const osier_anywhere<W> any = {nest, segment, wide};
        osier_find_each<W, MANY, APART>(any, number, words, places);
    }
}
