"""A ping-pong of device buffers through the MPI library that mpi4py has here, if that library
takes device memory. Starts itself again under its mpiexec.
"""

import os
import shutil
import subprocess
import sys
import time

import common

found = common.options()
try:
    import mpi4py

    mpi4py.rc.initialize = "OMPI_COMM_WORLD_RANK" in os.environ or "PMI_RANK" in os.environ
    from mpi4py import MPI
except Exception as why:
    common.absent(f"mpi4py has no MPI library here: {why}")

name = MPI.Get_library_version().split(",")[0].split("\n")[0].strip()
if not MPI.Is_initialized():
    mpiexec = shutil.which("mpiexec") or shutil.which("mpirun")
    if mpiexec is None:
        common.absent(f"{name}, and no mpiexec that starts it")
    if "Open MPI" in name:
        told = subprocess.run(["ompi_info", "--parsable", "--all"], capture_output=True, text=True)
        if "mpi_built_with_cuda_support:value:true" not in told.stdout:
            common.absent(f"{name} does not take device memory")
    elif "MPICH" in name or "mpich" in name:
        os.environ["MPIR_CVAR_ENABLE_GPU"] = "1"
    command = [mpiexec, "-n", "2", sys.executable, *sys.argv]
    if os.geteuid() == 0 and "Open MPI" in name:
        command.insert(1, "--allow-run-as-root")
    ended = subprocess.run(command)
    if ended.returncode != 0:
        common.absent(f"{name} does not take device memory: it ended with {ended.returncode}")
    sys.exit(0)

import cupy

comm = MPI.COMM_WORLD
me, peer = comm.rank, 1 - comm.rank
device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
records = common.Records(found.json, name, device) if me == 0 else None
for size in found.sizes:
    out = cupy.full((size,), 1 + me, dtype=cupy.uint8)
    into = cupy.zeros((size,), dtype=cupy.uint8)
    cupy.cuda.get_current_stream().synchronize()

    def trips(n):
        begin = time.perf_counter()
        for _ in range(n):
            if me == 0:
                comm.Send([out, MPI.BYTE], peer)
                comm.Recv([into, MPI.BYTE], peer)
            else:
                comm.Recv([into, MPI.BYTE], peer)
                comm.Send([out, MPI.BYTE], peer)
        return (time.perf_counter() - begin) / n / 2

    trips(2)
    n = comm.bcast(max(1, int(common.REPETITION / (2 * trips(10)))), 0)
    times = [trips(n) for _ in range(common.REPETITIONS)]
    if int(into[-1]) != 2 - me:
        raise SystemExit(f"{size} bytes arrived wrong")
    if me == 0:
        records.time("latency", "contiguous", size, common.spread(times))
