"""What the peers' scripts share: sizes, clock, medians, records.

A record is one entry of the JSON that `osier bench --json` writes too; the median is over
repetitions of about ten milliseconds each, as there.
"""

import argparse
import json
import os
import sys
import time

REPETITION = 0.01
REPETITIONS = 7


def options(*more):
    """Command line: --sizes, --json, --cpu and what a script adds."""
    parser = argparse.ArgumentParser()
    for arguments, keywords in more:
        parser.add_argument(*arguments, **keywords)
    parser.add_argument("--sizes", required=True, help="bytes of payload, separated by commas")
    parser.add_argument("--json", required=True, help="file of the records")
    parser.add_argument("--cpu", action="store_true", help="without a GPU: tries the script out")
    found = parser.parse_args()
    found.sizes = [int(size) for size in found.sizes.split(",")]
    return found


def absent(why):
    """Says why nothing is measured; the report has the last line."""
    print(why)
    sys.exit(0)


def measure(body, finish):
    """Median, least and most seconds of one `body()`; `finish()` waits for what is queued."""
    body()
    finish()
    n = 1
    while True:
        begin = time.perf_counter()
        for _ in range(n):
            body()
        finish()
        took = time.perf_counter() - begin
        if took >= REPETITION / 2:
            break
        n = int(n * min(8.0, REPETITION / max(took, 1e-9))) + 1
    return spread(repeat(body, finish, n) for _ in range(REPETITIONS))


def repeat(body, finish, n):
    begin = time.perf_counter()
    for _ in range(n):
        body()
    finish()
    return (time.perf_counter() - begin) / n


def spread(times):
    """Median, least, most."""
    times = sorted(times)
    middle = (times[(len(times) - 1) // 2] + times[len(times) // 2]) / 2
    return middle, times[0], times[-1]


class Records:
    """Records that are in their file as soon as they are there."""

    def __init__(self, file, library, device):
        self.file, self.library, self.device = file, library, device
        self.all = []

    def add(self, bench, layout, size, unit, values, ranks=1):
        """`values`: median and both extremes, in the unit."""
        value, one, other = values
        self.all.append(
            {
                "bench": bench,
                "layout": layout,
                "memory": "device",
                "transport": self.device,
                "threads": 1,
                "ranks": ranks,
                "bytes": size,
                "unit": unit,
                "value": value,
                "spread": [min(one, other), max(one, other)],
                "floor": None,
                "library": self.library,
            }
        )
        beside = f"{self.file}.new"
        with open(beside, "w") as out:
            json.dump(self.all, out, indent=1)
        os.replace(beside, self.file)
        print(f"{bench:<18} {layout:<18} {size:>12} B {value:>12.3f} {unit}", flush=True)

    def rate(self, bench, layout, size, seconds):
        """A rate in GB/s out of seconds."""
        self.add(bench, layout, size, "GB/s", [size / s / 1e9 for s in seconds])

    def time(self, bench, layout, size, seconds, ranks=2):
        """A time in microseconds out of seconds."""
        self.add(bench, layout, size, "us", [s * 1e6 for s in seconds], ranks)
