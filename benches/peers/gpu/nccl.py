"""NCCL through torch.distributed, a rank on each of two GPUs: send and receive, allreduce,
bcast and reduce of doubles.
"""

import os
import time

import common


def rank(which, found, backend):
    import torch
    import torch.distributed as dist

    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", found.port
    place = "cpu" if found.cpu else f"cuda:{which}"
    if not found.cpu:
        torch.cuda.set_device(which)
    dist.init_process_group(backend, rank=which, world_size=2)
    name = "cpu" if found.cpu else torch.cuda.get_device_name(0)
    records = common.Records(found.json, backend, name) if which == 0 else None

    def finish():
        if not found.cpu:
            torch.cuda.synchronize()

    for size in found.sizes:
        count = max(1, size // 8)
        data = torch.full((count,), 1.0, dtype=torch.float64, device=place)

        def ping_pong():
            if which == 0:
                dist.send(data, 1)
                dist.recv(data, 1)
            else:
                dist.recv(data, 0)
                dist.send(data, 0)

        calls = [
            ("latency", "contiguous", ping_pong, 0.5),
            ("allreduce", backend, lambda: dist.all_reduce(data, op=dist.ReduceOp.MAX), 1.0),
            ("bcast", backend, lambda: dist.broadcast(data, 0), 1.0),
            ("reduce", backend, lambda: dist.reduce(data, 0, op=dist.ReduceOp.MAX), 1.0),
        ]
        for bench, layout, call, share in calls:
            call()
            finish()
            begin = time.perf_counter()
            for _ in range(10):
                call()
                finish()
            took = torch.tensor([(time.perf_counter() - begin) / 10], device=place)
            dist.broadcast(took, 0)
            n = max(1, int(common.REPETITION / float(took)))
            times = []
            for _ in range(common.REPETITIONS):
                begin = time.perf_counter()
                for _ in range(n):
                    call()
                    finish()
                times.append(share * (time.perf_counter() - begin) / n)
            if which == 0:
                records.time(bench, layout, count * 8, common.spread(times))
    dist.destroy_process_group()


def main():
    found = common.options((("--port",), {"default": "29511"}))
    try:
        import torch
        import torch.multiprocessing as processes
    except Exception as why:
        common.absent(f"torch does not work here: {why}")
    if not found.cpu and torch.cuda.device_count() < 2:
        common.absent("NCCL has one rank on each GPU: needs 2 GPUs")
    backend = "gloo" if found.cpu else "nccl"
    processes.spawn(rank, args=(found, backend), nprocs=2)


if __name__ == "__main__":
    main()
