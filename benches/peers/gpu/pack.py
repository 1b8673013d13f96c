"""Packs shapes into contiguous device memory as users of torch and CuPy do: slices made
contiguous where strides describe the shape, gathers by an index of elements elsewhere.

The shapes are those of `osier bench pack --device`, by the same names and sizes.
"""

import common

found = common.options((("library",), {"choices": ["torch", "cupy"]}))
try:
    if found.library == "torch":
        import torch

        on_gpu = torch.cuda.is_available()
    else:
        import cupy

        on_gpu = cupy.cuda.runtime.getDeviceCount() > 0
except Exception as why:
    if not found.cpu:
        common.absent(f"{found.library} does not work here: {why}")
if not found.cpu and not on_gpu:
    common.absent(f"{found.library} sees no GPU")


class Torch:
    """The few calls that the shapes need."""

    name = "torch"

    def __init__(self, cpu):
        self.place = "cpu" if cpu else "cuda"
        self.device = "cpu" if cpu else torch.cuda.get_device_name(0)
        self.cpu = cpu
        self.f64, self.f32, self.f16, self.u8 = torch.float64, torch.float32, torch.float16, torch.uint8

    def empty(self, shape, kind):
        # Not zeros, which can be quicker than data.
        bytes_of = torch.empty((), dtype=kind).element_size()
        count = 1
        for side in shape:
            count *= side
        raw = torch.randint(0, 255, (count * bytes_of,), dtype=torch.uint8, device=self.place)
        return raw.view(kind).view(shape)

    def index(self, values):
        return torch.as_tensor(values, dtype=torch.int64, device=self.place)

    def contiguous(self, view):
        return view.contiguous() if not view.is_contiguous() else view.clone()

    def take(self, flat, index, axis=0):
        return flat.index_select(axis, index)

    def join(self, parts):
        return torch.cat(parts)

    def finish(self):
        if not self.cpu:
            torch.cuda.synchronize()


class Cupy:
    """As Torch; numpy stands in without a GPU."""

    name = "cupy"

    def __init__(self, cpu):
        if cpu:
            import numpy

            self.of, self.device = numpy, "cpu"
        else:
            self.of = cupy
            self.device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
        self.cpu = cpu
        self.f64, self.f32, self.f16, self.u8 = (
            self.of.float64,
            self.of.float32,
            self.of.float16,
            self.of.uint8,
        )

    def empty(self, shape, kind):
        count = self.of.dtype(kind).itemsize
        for side in shape:
            count *= side
        raw = self.of.random.randint(0, 255, count, dtype=self.of.uint8)
        return raw.view(kind).reshape(shape)

    def index(self, values):
        return self.of.asarray(values, dtype=self.of.int64)

    def contiguous(self, view):
        # A contiguous one would be handed back as it is.
        return view.copy(order="C")

    def take(self, flat, index, axis=0):
        return self.of.take(flat, index, axis=axis)

    def join(self, parts):
        return self.of.concatenate(parts)

    def finish(self):
        if not self.cpu:
            cupy.cuda.get_current_stream().synchronize()


def root(n):
    return max(1, int(n**0.5 + 0.5))


def lower(numpy, side, step):
    """Elements of the triangle below steps, column after column."""
    tops = numpy.arange(side) // step * step
    lengths = side - tops
    starts = numpy.arange(side) * side + tops
    return spans(numpy, starts, lengths)


def spans(numpy, starts, lengths):
    """All numbers of the runs."""
    ends = numpy.cumsum(lengths)
    return numpy.repeat(starts - (ends - lengths), lengths) + numpy.arange(ends[-1])


def shapes(lib, size):
    """Name, payload and the call that packs it, one after the other."""
    import numpy

    n, side = root(size // 8), root(size // 4)
    flat = lib.empty((size // 8,), lib.f64)
    yield "contiguous", size // 8 * 8, lambda: lib.contiguous(flat)
    wide = lib.empty((n, 2 * n), lib.f64)
    yield "V", n * n * 8, lambda: lib.contiguous(wide[:, :n])
    square = lib.empty((n, n), lib.f64)
    yield "transpose", n * n * 8, lambda: lib.contiguous(square.T)
    del wide, square, flat
    step = max(1, min(256, side // 4))
    stair = int(side / (1.0 + step / side) ** 0.5)
    for name, side, step in [("T", side, 1), ("stair", stair, step)]:
        chosen = lower(numpy, side, step)
        index, matrix = lib.index(chosen), lib.empty((side * side,), lib.f64)
        yield name, len(chosen) * 8, lambda: lib.take(matrix, index)
        del index, matrix
    for width, stride in [(8, 16), (64, 128)]:
        count = max(1, size // width)
        rows = lib.empty((count, stride // 4), lib.f32)
        kept = width // 4
        yield f"block-{width}-{stride}", count * width, lambda: lib.contiguous(rows[:, :kept])
        del rows
    count = max(1, size // 4)
    records = lib.empty((count, 8), lib.f32)
    yield "aos-4-of-32", count * 4, lambda: lib.contiguous(records[:, 0])
    del records
    count = max(1, size // 15)
    records = lib.empty((count, 24), lib.u8)
    members = lib.index([*range(0, 4), *range(8, 16), *range(20, 23)])
    yield "aos-15-of-24", count * 15, lambda: lib.take(records, members, 1)
    del records
    count = max(1, size // 20)
    arrays = lib.empty((25 * count,), lib.u8)
    cuts = [(0, 8), (10, 8), (20, 4)]
    yield (
        "soa-8-8-4",
        count * 20,
        lambda: lib.join([arrays[at * count : (at + long) * count] for at, long in cuts]),
    )
    del arrays
    pages = max(1, size // (128 * 256))
    cache = lib.empty((2 * pages, 128, 8, 128), lib.f16)
    order = lib.index(numpy.random.default_rng(1).permutation(2 * pages)[:pages])
    yield "kv-pages", pages * 128 * 256, lambda: lib.take(cache[:, :, 0, :], order)


def listed(lib, blocks):
    """Blocks of 1 to 4 doubles with gaps of 1 to 4."""
    import numpy

    draws = numpy.random.default_rng(1)
    lengths, gaps = draws.integers(1, 5, blocks), draws.integers(1, 5, blocks)
    starts = numpy.cumsum(lengths + gaps) - (lengths + gaps)
    chosen = spans(numpy, starts, lengths)
    index, memory = lib.index(chosen), lib.empty((int(starts[-1] + 8),), lib.f64)
    return f"indexed-{blocks}", len(chosen) * 8, lambda: lib.take(memory, index)


lib = (Torch if found.library == "torch" else Cupy)(found.cpu)
records = common.Records(found.json, lib.name, lib.device)
for size in found.sizes:
    for name, payload, pack in shapes(lib, size):
        records.rate("pack-device-pack", name, payload, common.measure(pack, lib.finish))
for blocks in [1000] if found.cpu else [100_000, 1_000_000]:
    name, payload, pack = listed(lib, blocks)
    records.rate("pack-device-pack", name, payload, common.measure(pack, lib.finish))
