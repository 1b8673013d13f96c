"""A ping-pong of two processes on one GPU as users of torch and CuPy do it: each opens the
other's buffer (CUDA IPC), copies into it, waits for the copy and tells the other by a flag
in shared memory. Half of the round trip.
"""

import multiprocessing
import multiprocessing.shared_memory
import time

import common

LAYOUTS = ["contiguous", "matrix", "triangle"]
# A peer that is silent for so long is gone.
SILENCE = 60.0


class Flags:
    """A number for each side, which the other waits for."""

    def __init__(self, name=None):
        create = name is None
        self.memory = multiprocessing.shared_memory.SharedMemory(name, create, 128)
        if create:
            self.memory.buf[:] = bytes(128)
        self.words = self.memory.buf.cast("q")

    def tell(self, side, number):
        self.words[8 * side] = number

    def wait(self, side, number):
        words, at, looks = self.words, 8 * side, 0
        end = None
        while words[at] < number:
            looks += 1
            if looks % 1_000_000 == 0:
                now = time.monotonic()
                end = end or now + SILENCE
                if now > end:
                    raise SystemExit("the other process is silent")

    def close(self):
        self.words.release()
        self.memory.close()


def root(n):
    return max(1, int(n**0.5 + 0.5))


def triangle(numpy, side):
    columns = numpy.arange(side)
    lengths = side - columns
    ends = numpy.cumsum(lengths)
    starts = columns * side + columns
    return numpy.repeat(starts - (ends - lengths), lengths) + numpy.arange(ends[-1])


def elements(layout, size):
    """Payload, and doubles of the memory around it."""
    if layout == "contiguous":
        return size // 8 * 8, size // 8
    if layout == "matrix":
        n = root(size // 8)
        return n * n * 8, 2 * n * n
    side = root(size // 4)
    return side * (side + 1) // 2 * 8, side * side


class Torch:
    name = "torch"

    def __init__(self, cpu):
        import torch

        self.torch, self.cpu = torch, cpu
        if not cpu and not torch.cuda.is_available():
            raise RuntimeError("no GPU")
        self.place = "cpu" if cpu else "cuda"
        self.device = "cpu" if cpu else torch.cuda.get_device_name(0)

    def allocate(self, count, value):
        made = self.torch.full((count,), value, dtype=self.torch.float64, device=self.place)
        return made.share_memory_() if self.cpu else made

    def export(self, memory):
        # Its pickle is a handle.
        import torch.multiprocessing.reductions  # noqa: F401

        return memory

    def open(self, handle, count):
        return handle

    def index(self, values):
        return self.torch.as_tensor(values, device=self.place)

    def view(self, flat, n):
        return flat.view(n, 2 * n)[:, :n]

    def copier(self, layout, size, source, target):
        if layout == "contiguous":
            return lambda: target.copy_(source)
        if layout == "matrix":
            n = root(size // 8)
            to, out = self.view(target, n), self.view(source, n)
            return lambda: to.copy_(out)
        import numpy

        index = self.index(triangle(numpy, root(size // 4)))
        return lambda: target.index_copy_(0, index, source.index_select(0, index))

    def finish(self):
        if not self.cpu:
            self.torch.cuda.synchronize()

    def first(self, memory):
        return float(memory[0])


class Cupy:
    name = "cupy"

    def __init__(self, cpu):
        if cpu:
            raise RuntimeError("CuPy has no memory that another process opens without a GPU")
        import cupy

        self.cupy = cupy
        if cupy.cuda.runtime.getDeviceCount() == 0:
            raise RuntimeError("no GPU")
        # Memory of a pool cannot be opened by its own address.
        cupy.cuda.set_allocator(None)
        self.device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()

    def allocate(self, count, value):
        return self.cupy.full((count,), value, dtype=self.cupy.float64)

    def export(self, memory):
        return self.cupy.cuda.runtime.ipcGetMemHandle(memory.data.ptr)

    def open(self, handle, count):
        address = self.cupy.cuda.runtime.ipcOpenMemHandle(handle)
        memory = self.cupy.cuda.UnownedMemory(address, count * 8, self)
        pointer = self.cupy.cuda.MemoryPointer(memory, 0)
        return self.cupy.ndarray((count,), self.cupy.float64, pointer)

    def copier(self, layout, size, source, target):
        if layout == "contiguous":
            return lambda: self.cupy.copyto(target, source)
        if layout == "matrix":
            n = root(size // 8)
            to, out = (flat.reshape(n, 2 * n)[:, :n] for flat in (target, source))
            return lambda: self.cupy.copyto(to, out)
        import numpy

        index = self.cupy.asarray(triangle(numpy, root(size // 4)))

        def put():
            target[index] = source[index]

        return put

    def finish(self):
        self.cupy.cuda.get_current_stream().synchronize()

    def first(self, memory):
        return float(memory[0])


def library(name, cpu):
    return (Torch if name == "torch" else Cupy)(cpu)


def side(which, found, flag_name, pipe, answers):
    """One process; the first measures."""
    flags = Flags(flag_name)
    lib = library(found.library, found.cpu)
    records = common.Records(found.json, lib.name, lib.device) if which == 0 else None
    number = 0
    for size in found.sizes:
        for layout in LAYOUTS:
            payload, count = elements(layout, size)
            if payload == 0 or (layout != "contiguous" and size < 4096):
                continue
            source, inbox = lib.allocate(count, 1.0 + which), lib.allocate(count, 0.0)
            lib.finish()
            pipe.send(lib.export(inbox))
            target = lib.open(pipe.recv(), count)
            copy = lib.copier(layout, size, source, target)

            def send():
                nonlocal number
                number += 1
                copy()
                lib.finish()
                flags.tell(which, number)

            def trips(n):
                for _ in range(n):
                    if which == 0:
                        send()
                        flags.wait(1, number)
                    else:
                        flags.wait(0, number + 1)
                        send()

            if which == 0:
                pipe.send(1)
                trips(1)
                pipe.send(20)
                begin = time.perf_counter()
                trips(20)
                n = max(1, int(common.REPETITION / ((time.perf_counter() - begin) / 20)))
                times = []
                for _ in range(common.REPETITIONS):
                    pipe.send(n)
                    begin = time.perf_counter()
                    trips(n)
                    times.append((time.perf_counter() - begin) / n / 2)
                pipe.send(0)
                records.time("latency", layout, payload, common.spread(times))
            else:
                while n := pipe.recv():
                    trips(n)
            if lib.first(inbox) != 2.0 - which:
                raise SystemExit(f"{layout} of {payload} bytes arrived wrong")
            # Both are done before memory goes.
            pipe.send("done")
            pipe.recv()
            del target, copy
    flags.close()
    answers.put(which)


def main():
    found = common.options((("library",), {"choices": ["torch", "cupy"]}))
    start = multiprocessing.get_context("spawn")
    if found.library == "torch":
        try:
            import torch.multiprocessing as start_of_torch
        except Exception as why:
            common.absent(f"torch does not work here: {why}")
        start = start_of_torch.get_context("spawn")
    else:
        try:
            import cupy  # noqa: F401
        except Exception as why:
            common.absent(f"cupy does not work here: {why}")
    flags = Flags()
    one, other = start.Pipe()
    answers = start.Queue()
    both = [
        start.Process(target=side, args=(which, found, flags.memory.name, pipe, answers))
        for which, pipe in [(0, one), (1, other)]
    ]
    for process in both:
        process.start()
    for process in both:
        process.join()
    flags.close()
    flags.memory.unlink()
    if any(process.exitcode for process in both):
        raise SystemExit("a process has failed")


if __name__ == "__main__":
    main()
