"""Rates of variants of copies on one GPU. Usage: variants.py [run] [strided] [list] [bytes]"""

import os
import sys

import cupy as cp
import numpy as np

BYTES = 256 << 20
KINDS = sys.argv[1:] or ["run", "strided", "list", "bytes"]
U, L = np.uint32, np.uint64

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "variants.cuh")) as file:
    SOURCE = file.read()

KERNELS = {}


def kernel(name, arguments, call):
    KERNELS[name] = f'extern "C" __global__ void {name}({arguments}) {{ {call}; }}\n'
    return name


RUNS = [
    (kernel(f"run_w{w}_{i}", f"{t}* a, const {t}* b, u64 n", f"copy<{t}, {i}>(a, b, n)"), w, i)
    for w, t in ((8, "u64"), (16, "pair"))
    for i in (1, 2, 4, 8)
]
STRIDED = [
    (
        kernel(
            f"strided_{i}",
            "u64* a, const u64* b, u32 n, u32 c, u32 m, u32 s, u64 d",
            f"strided<{i}>(a, b, n, c, m, s, d)",
        ),
        i,
    )
    for i in (2, 4, 8)
]
LISTS = [
    (
        kernel(
            f"list_{c}_{i}",
            "u64* a, const char* b, u32 n, const int* o, const u32* p, u32 r, const u32* h, u32 s",
            f"list<{c}, {i}>(a, b, n, o, p, r, h, s)",
        ),
        c,
    )
    for c in (1024, 2048, 4096, 8192)
    for i in (2, 4, 8)
]
MAPS = [
    (
        kernel(
            f"{'pack' if p else 'unpack'}_{m}_{i}",
            "u8* a, u8* b, u32 n, u32 c, u32 m, u32 s, u32 e, const int* t",
            f"bytes<{m}, {i}, {'true' if p else 'false'}>(a, b, n, c, m, s, e, t)",
        ),
        m,
        i,
        p,
    )
    for m in (1, 2, 4, 8)
    for i in (1, 2, 4, 8)
    if m * i <= 32
    for p in (True, False)
]

MODULE = cp.RawModule(code=SOURCE + "".join(KERNELS.values()), options=("--std=c++17",))
MULTIPROCESSORS = cp.cuda.Device().attributes["MultiProcessorCount"]
SOURCE_BYTES = cp.empty(3 * BYTES + (1 << 20), dtype=cp.uint8)
TARGET = cp.zeros(BYTES + (1 << 20), dtype=cp.uint8)
EVENTS = [cp.cuda.Event(), cp.cuda.Event()]


def fill():
    words = SOURCE_BYTES.view(cp.uint32)
    words[:] = cp.arange(words.size, dtype=cp.uint32) * cp.uint32(2654435761)


def seconds(work, repetitions=5):
    work()
    EVENTS[0].record()
    for _ in range(repetitions):
        work()
    EVENTS[1].record()
    EVENTS[1].synchronize()
    return cp.cuda.get_elapsed_time(*EVENTS) / repetitions * 1e-3


CHECKED = set()


def tell(kind, name, arguments, payload, threads, blocks, right=None):
    function = MODULE.get_function(name)
    told = ""
    if right and (kind, name) not in CHECKED:
        TARGET[:] = 0
    took = seconds(lambda: function((blocks,), (threads,), arguments))
    if right and (kind, name) not in CHECKED:
        CHECKED.add((kind, name))
        told = "ok" if right() else "WRONG"
    print(f"{kind:8} {name:12} {threads:5} {blocks:7} {payload / took / 1e9:7.0f} {told}", flush=True)


def grids(threads, piece, all_bytes):
    resident = [MULTIPROCESSORS * k for k in (2, 3, 4, 6, 8) if 512 <= k * threads <= 2048]
    return [*resident, -(-all_bytes // (threads * piece))]


def divisor(value):
    shift = (value - 1).bit_length()
    return U(((1 << 32) * ((1 << shift) - value)) // value + 1), U(shift)


def memcpy():
    runtime, stream = cp.cuda.runtime, cp.cuda.get_current_stream().ptr
    return seconds(lambda: runtime.memcpyAsync(TARGET.data.ptr, SOURCE_BYTES.data.ptr, BYTES, 3, stream))


fill()
WORDS, TARGET_WORDS = SOURCE_BYTES.view(cp.uint64), TARGET.view(cp.uint64)
for _ in range(3):
    print(f"{'memcpy':36} {BYTES / memcpy() / 1e9:7.0f}")

if "run" in KINDS:
    n = BYTES // 8
    for name, width, items in RUNS:
        for threads in (256, 512, 1024):
            for blocks in grids(threads, width * items, BYTES):
                right = lambda: bool((TARGET_WORDS[:n] == WORDS[:n]).all())
                arguments = (TARGET, SOURCE_BYTES, L(BYTES // width))
                tell("run", name, arguments, BYTES, threads, blocks, right)

if "strided" in KINDS:
    n = 5793
    wanted = cp.concatenate([WORDS[k * 2 * n : k * 2 * n + n] for k in range(n)])
    for name, items in STRIDED:
        for threads in (256, 512, 1024):
            for blocks in grids(threads, 8 * items, n * n * 8):
                right = lambda: bool((TARGET_WORDS[: n * n] == wanted).all())
                arguments = (TARGET, SOURCE_BYTES, U(n * n), U(n), *divisor(n), L(2 * n))
                tell("strided", name, arguments, n * n * 8, threads, blocks, right)
    del wanted

if "list" in KINDS:
    side = 8192
    stair = 7936
    drawn = np.random.default_rng(3)
    short = drawn.integers(8, 256, 240000)
    shapes = {
        "triangle": (np.arange(1, side + 1), np.arange(side) * side * 8),
        "stair": ((np.arange(stair) // 256 + 1) * 256, np.arange(stair) * stair * 8),
        "short": (short, (np.cumsum(short + drawn.integers(1, 100, 240000)) - short) * 8),
    }
    for shape, (lengths, offsets) in shapes.items():
        before = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.uint32)
        words = int(lengths.sum())
        on_device, places = cp.asarray(before), cp.asarray(offsets.astype(np.int32))
        run = cp.searchsorted(on_device, cp.arange(words, dtype=cp.uint32), side="right") - 1
        start = places.astype(cp.int64) // 8 - on_device.astype(cp.int64)
        wanted = WORDS[start[run] + cp.arange(words)]
        del run
        hint = max(0, int(np.log2(words / len(lengths) * 8)))
        at = np.minimum(np.arange((words >> hint) + 2) << hint, words - 1).astype(np.uint32)
        hints = cp.asarray((np.searchsorted(before, at, side="right") - 1).astype(np.uint32))
        for name, chunk in LISTS:
            for threads in (128, 256, 512):
                warps = threads // 32
                for blocks in (MULTIPROCESSORS * 6, -(-words * 8 // (chunk * warps))):
                    right = lambda: bool((TARGET_WORDS[:words] == wanted).all())
                    lists = (places, on_device, U(len(lengths)), hints, U(hint))
                    arguments = (TARGET, SOURCE_BYTES, U(words), *lists)
                    tell(shape, name, arguments, words * 8, threads, blocks, right)
        del wanted

if "bytes" in KINDS:
    drawn = np.random.default_rng(5)
    cores = {"15of24": (np.arange(15), 24)}
    for core, runs, length, gap in (
        ("2to13", 12, (2, 14), (1, 12)),
        ("1to2", 40, (1, 3), (1, 6)),
        ("sparse", 40, (1, 3), (4, 40)),
        ("17", 4, (17, 18), (15, 16)),
    ):
        at, places = 0, []
        for _ in range(runs):
            bytes_of_run = int(drawn.integers(*length))
            places += range(at, at + bytes_of_run)
            at += bytes_of_run + int(drawn.integers(*gap))
        cores[core] = (np.array(places), at)
    for core, (places, extent) in cores.items():
        size = len(places)
        count = min((128 << 20) // size, (700 << 20) // extent) // 8 * 8
        map_ = cp.asarray(np.concatenate([places, places[:8] + extent]).astype(np.int32))
        head = cp.arange(min(size * count, 1 << 22), dtype=cp.int64)
        wanted = SOURCE_BYTES[(head // size) * extent + map_[head % size]]
        for name, many, items, packs in MAPS:
            right = (lambda: bool((TARGET[: head.size] == wanted).all())) if packs else None
            blocks = -(-size * count // (256 * many * items))
            arguments = (TARGET, SOURCE_BYTES, U(size * count), U(size), *divisor(size), U(extent), map_)
            tell(core, name, arguments, size * count, 256, blocks, right)
        fill()
