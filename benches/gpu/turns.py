"""Two processes in turn on one GPU: what an operation of each costs, alone and in turn."""

import multiprocessing
import time
from multiprocessing import shared_memory

ROUNDS = 100
NAMES = (
    "kernel kernel_first d2h_8 d2h_4M h2d_8 h2d_4K h2d_24K h2d_28K h2d_64K h2d_1M h2d_4M "
    "h2d_rows_8 h2d_rows_4K h2d_rows_16K d2d_64K d2d_4M batch_h2d_8 batch_d2d_64K word "
    "pageable_h2d_4M pageable_d2h_4M"
).split()


def operations():
    import cupy as cp
    import numpy as np
    from cuda.bindings import driver

    runtime, stream = cp.cuda.runtime, cp.cuda.Stream(non_blocking=True)
    first = cp.cuda.Stream(non_blocking=True, priority=-5)
    a, b = (cp.zeros(8 << 20, dtype=cp.uint8) for _ in range(2))
    a, b = a.data.ptr, b.data.ptr
    pinned = cp.cuda.alloc_pinned_memory(8 << 20)
    pageable = np.zeros(8 << 20, dtype=np.uint8)
    code = 'extern "C" __global__ void one(char* a, char* b) { a[threadIdx.x] = b[threadIdx.x]; }'
    one = cp.RawKernel(code, "one")
    # Kept as long as the operations.
    keep = (pinned, pageable)

    def kernel(on):
        with on:
            one((1,), (8,), (np.uint64(a), np.uint64(b)))
        on.synchronize()

    def copy(to, source, count, kind):
        def work():
            runtime.memcpyAsync(to, source, count, kind, stream.ptr)
            stream.synchronize()

        return work

    def rows(count):
        def work():
            half = count // 2
            runtime.memcpy2DAsync(a, half, pinned.ptr, half, half, 2, 1, stream.ptr)
            stream.synchronize()

        return work

    def batch(to, source, count):
        """Asks for what overlaps with computation."""

        def work():
            how = driver.CUmemcpyAttributes()
            how.srcAccessOrder = driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
            how.flags = 1
            places = [driver.CUdeviceptr(to)], [driver.CUdeviceptr(source)], [count], 1
            told = driver.cuMemcpyBatchAsync(*places, [how], [0], 1, driver.CUstream(stream.ptr))
            assert int(told[0]) == 0, told
            stream.synchronize()

        return work

    def word():
        told = driver.cuStreamWriteValue32(driver.CUstream(stream.ptr), driver.CUdeviceptr(a), 7, 0)
        assert int(told[0]) == 0, told
        stream.synchronize()

    sizes = {"8": 8, "4K": 4 << 10, "16K": 16 << 10, "24K": 24 << 10, "28K": 28 << 10}
    sizes |= {"64K": 64 << 10, "1M": 1 << 20, "4M": 4 << 20}
    made = {"kernel": lambda: kernel(stream), "kernel_first": lambda: kernel(first), "word": word}
    made |= {f"d2h_{name}": copy(pinned.ptr, a, count, 2) for name, count in sizes.items()}
    made |= {f"h2d_{name}": copy(a, pinned.ptr, count, 1) for name, count in sizes.items()}
    made |= {f"d2d_{name}": copy(b, a, count, 3) for name, count in sizes.items()}
    made |= {f"h2d_rows_{name}": rows(count) for name, count in sizes.items()}
    made["pageable_h2d_4M"] = copy(a, pageable.ctypes.data, 4 << 20, 1)
    made["pageable_d2h_4M"] = copy(pageable.ctypes.data, a, 4 << 20, 2)
    made["batch_h2d_8"] = batch(a, pinned.ptr, 8)
    made["batch_d2d_64K"] = batch(b, a, 64 << 10)
    return made, keep


def worker(rank, ranks, name, told):
    import numpy as np

    made, _keep = operations()
    memory = shared_memory.SharedMemory(name)
    flags = np.ndarray((64,), dtype=np.int64, buffer=memory.buf)
    for number, kind in enumerate(NAMES):
        work = made[kind]
        for _ in range(20):
            work()
        base = number * ranks * ROUNDS
        flags[8 + rank] = number + 1
        while min(flags[8 : 8 + ranks]) < number + 1:
            pass
        begun = time.perf_counter()
        for turn in range(base + rank, base + ranks * ROUNDS, ranks):
            while flags[0] != turn:
                pass
            work()
            flags[0] = turn + 1
        while flags[0] != base + ranks * ROUNDS:
            pass
        if rank == 0:
            told.put((time.perf_counter() - begun) / (ranks * ROUNDS) * 1e6)
        flags[16 + rank] = number + 1
        while min(flags[16 : 16 + ranks]) < number + 1:
            pass
    del flags
    memory.close()


def measured(ranks):
    memory, told = shared_memory.SharedMemory(create=True, size=4096), multiprocessing.Queue()
    arguments = [(rank, ranks, memory.name, told) for rank in range(ranks)]
    workers = [multiprocessing.Process(target=worker, args=each) for each in arguments]
    for each in workers:
        each.start()
    times = [told.get(timeout=60) for _ in NAMES]
    for each in workers:
        each.join(10)
    memory.close()
    memory.unlink()
    return times


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    print(f"{'us':18} {'alone':>8} {'in turn':>8}")
    for row in zip(NAMES, measured(1), measured(2)):
        print("{:18} {:8.1f} {:8.1f}".format(*row))
