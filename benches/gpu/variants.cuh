// Variants of copies; instances are made by variants.py.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
struct __align__(16) pair { u64 x, y; };

static __device__ __forceinline__ u32 quotient(u32 n, u32 magic, u32 shift) {
    return ((u32)(((u64)n * magic) >> 32) + n) >> shift;
}

// A run, ITEMS words of a thread under way; as many blocks as are launched go on.
template <class T, int ITEMS> static __device__ void copy(T* to, const T* from, u64 words) {
    const u64 chunk = (u64)blockDim.x * ITEMS;
    for (u64 at = blockIdx.x * chunk + threadIdx.x; at < words; at += gridDim.x * chunk) {
        T moved[ITEMS];
#pragma unroll
        for (int k = 0; k < ITEMS; k++) if (at + k * blockDim.x < words) moved[k] = from[at + k * blockDim.x];
#pragma unroll
        for (int k = 0; k < ITEMS; k++) if (at + k * blockDim.x < words) to[at + k * blockDim.x] = moved[k];
    }
}

// Blocks of equal length at equal distances.
template <int ITEMS> static __device__ void strided(
    u64* to, const u64* from, u32 words, u32 block, u32 magic, u32 shift, u64 stride
) {
    const u32 chunk = blockDim.x * ITEMS;
    for (u32 at = blockIdx.x * chunk + threadIdx.x; at < words; at += gridDim.x * chunk) {
        u64 moved[ITEMS];
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            const u32 word = at + k * blockDim.x, row = quotient(word, magic, shift);
            if (word < words) moved[k] = from[row * stride + (word - row * block)];
        }
#pragma unroll
        for (int k = 0; k < ITEMS; k++) if (at + k * blockDim.x < words) to[at + k * blockDim.x] = moved[k];
    }
}

// A list of runs: a warp takes a chunk of CHUNK bytes, finds its run between two hints, and goes on
// from run to run. Numbers are words of 8 bytes, offsets bytes.
template <int CHUNK, int ITEMS> static __device__ void list(
    u64* to, const char* from, u32 words, const int* offsets, const u32* before, u32 runs, const u32* hints, u32 hint
) {
    const u32 lane = threadIdx.x % 32, chunk = CHUNK / 8, warps = gridDim.x * (blockDim.x / 32);
    for (u32 at = (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * chunk; at < words; at += warps * chunk) {
        const u32 stop = at + chunk < words ? at + chunk : words;
        u32 run = hints[at >> hint], high = hints[(at >> hint) + 1];
        while (run < high) {
            const u32 middle = run + (high - run + 1) / 2;
            if (before[middle] <= at) run = middle; else high = middle - 1;
        }
        for (u32 now = at; now < stop; run++) {
            const u32 next = run + 1 < runs ? before[run + 1] : words, end = next < stop ? next : stop;
            const u64* const inside = (const u64*)(from + offsets[run]) - before[run];
            for (u32 word = now + lane; word < end; word += ITEMS * 32) {
                u64 moved[ITEMS];
#pragma unroll
                for (int k = 0; k < ITEMS; k++) if (word + k * 32 < end) moved[k] = inside[word + k * 32];
#pragma unroll
                for (int k = 0; k < ITEMS; k++) if (word + k * 32 < end) to[word + k * 32] = moved[k];
            }
            now = end;
        }
    }
}

// Bytes of a core that comes again after `extent` bytes, by a map: MANY packed bytes of a lane, which
// are one access on that side.
template <int MANY, int ITEMS, bool PACK> static __device__ void bytes(
    u8* packed, u8* layout, u32 all, u32 core, u32 magic, u32 shift, u32 extent, const int* map
) {
    const u32 chunk = blockDim.x * MANY * ITEMS;
    for (u32 first = blockIdx.x * chunk; first < all; first += gridDim.x * chunk) {
        u64 unit[ITEMS];
        u8* places[ITEMS][MANY];
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            const u32 byte = first + (k * blockDim.x + threadIdx.x) * MANY;
            unit[k] = 0;
            if (byte >= all) continue;
            const u32 number = quotient(byte, magic, shift);
            u8* const base = layout + (u64)number * extent;
#pragma unroll
            for (int j = 0; j < MANY; j++) {
                places[k][j] = base + map[byte - number * core + j];
                if (PACK) unit[k] |= (u64)*places[k][j] << (8 * j);
            }
            if (PACK) continue;
            if (MANY == 1) unit[k] = packed[byte];
            else if (MANY == 2) unit[k] = *(u16*)(packed + byte);
            else if (MANY == 4) unit[k] = *(u32*)(packed + byte);
            else unit[k] = *(u64*)(packed + byte);
        }
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            const u32 byte = first + (k * blockDim.x + threadIdx.x) * MANY;
            if (byte >= all) continue;
            if (!PACK) {
#pragma unroll
                for (int j = 0; j < MANY; j++) *places[k][j] = (u8)(unit[k] >> (8 * j));
            } else if (MANY == 1) packed[byte] = (u8)unit[k];
            else if (MANY == 2) *(u16*)(packed + byte) = (u16)unit[k];
            else if (MANY == 4) *(u32*)(packed + byte) = (u32)unit[k];
            else *(u64*)(packed + byte) = unit[k];
        }
    }
}
