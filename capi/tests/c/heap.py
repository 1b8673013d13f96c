"""Python's own memory in the shared heap; processes that it makes have their own."""

import ctypes
import multiprocessing
import os
import subprocess
import sys


def is_shared(array):
    at = ctypes.addressof(ctypes.c_char.from_buffer(array))
    with open("/proc/self/maps") as maps:
        for line in maps:
            start, end = (int(x, 16) for x in line.split()[0].split("-"))
            if start <= at < end:
                return "osier-heap" in line
    return False


def work(queue, given):
    queue.put((given == bytes([1]) * len(given), is_shared(bytearray(1 << 20))))


def main():
    mpi = ctypes.CDLL(os.environ["MPI_LIBRARY"])
    assert not is_shared(bytearray(1 << 20))
    assert mpi.MPI_Init(None, None) == 0
    mine = bytearray([1]) * (1 << 20)
    assert is_shared(mine)
    pid = os.fork()
    if pid == 0:
        mine[:] = bytes(1 << 20)
        os._exit(0 if not is_shared(mine) and not is_shared(bytearray(1 << 20)) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert mine == bytearray([1]) * (1 << 20)
    for method in ["fork", "spawn", "forkserver"]:
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        child = context.Process(target=work, args=(queue, bytes(mine)))
        child.start()
        assert queue.get(timeout=60) == (True, False), method
        child.join()
        assert child.exitcode == 0, method
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(len, [mine] * 8) == [1 << 20] * 8
    assert subprocess.run(["true"]).returncode == 0
    assert mine == bytearray([1]) * (1 << 20)
    assert mpi.MPI_Finalize() == 0
    print("through")


if __name__ == "__main__":
    main()
