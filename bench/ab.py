#!/usr/bin/env python3
"""Two commands of bench_model or ops_cuda in turn, and their times side by side.

  bench/ab.py [--rounds 3] [--seconds 270] [--out DIR] 'COMMAND A' 'COMMAND B'

What two builds, or two settings of one, differ by is often less than what a GPU differs by from one
minute to the next: its clock follows its temperature. So they run as A B, B A, A B .. and a row has
the median of its rounds, with the smallest and the largest behind it; a difference within those is
none. Rows are what comes before the time (ms or us) in the file that --csv makes, which is given to
both. A command that fails, or does not end within --seconds for all, is left out and said; the exit
code is then 1. --out keeps the files and all output.

  bench/ab.py 'OLD/bench_model prefill --model 120b --experts fp8 --lengths 8k' \\
              'build/cuda/bin/bench_model prefill --model 120b --experts fp8 --lengths 8k'
"""
import argparse
import csv
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time


def rows(path):
    """{row's name: time} of a file, and the time's unit."""
    with open(path, newline="") as f:
        lines = list(csv.reader(f))
    if not lines:
        return {}, ""
    at = next(i for i, name in enumerate(lines[0]) if name in ("ms", "us"))
    return {" ".join(x[:at]): float(x[at]) for x in lines[1:] if len(x) > at}, lines[0][at]


def last_line(path):
    try:
        with open(path, errors="replace") as f:
            text = f.read().strip().rpartition("\n")[2]
    except OSError:
        return ""
    return f": {text[:200]}" if text else ""


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=270)
    p.add_argument("--out", default="")
    p.add_argument("command", nargs=2)
    o = p.parse_args()
    end = time.monotonic() + o.seconds
    out = o.out or tempfile.mkdtemp(prefix="ab-")
    os.makedirs(out, exist_ok=True)
    times, unit, failed = {}, "", False

    for r in range(o.rounds):
        for side in (0, 1) if r % 2 == 0 else (1, 0):
            name = f"{'AB'[side]}{r + 1}"
            path = os.path.join(out, name + ".csv")
            left = end - time.monotonic()
            how = "no time was left" if left < 1 else ""
            if not how:
                with open(os.path.join(out, name + ".txt"), "w") as log:
                    try:
                        code = subprocess.run(shlex.split(o.command[side]) + ["--csv", path], stdout=log,
                                              stderr=log, timeout=left).returncode
                        how = f"exit {code}" if code else "" if os.path.exists(path) else "wrote no rows"
                    except subprocess.TimeoutExpired:
                        how = "cut, no time was left"
                    except OSError as e:
                        how = str(e)
            if how:
                failed = True
                print(f"{name}: {how}{last_line(os.path.join(out, name + '.txt'))}", flush=True)
                continue
            got, unit = rows(path)
            for key, t in got.items():
                times.setdefault(key, ([], []))[side].append(t)

    width = max([len(k) for k in times] + [3])
    print(f"A: {o.command[0]}\nB: {o.command[1]}\n{'':{width}}  {'A, ' + unit:>28}  {'B, ' + unit:>28}      B/A")
    for key, both in times.items():
        cells = [f"{statistics.median(t):.3f} ({min(t):.3f}..{max(t):.3f})" if t else "-" for t in both]
        ratio = f"{statistics.median(both[1]) / statistics.median(both[0]):.3f}" if all(both) else "-"
        print(f"{key:{width}}  {cells[0]:>28}  {cells[1]:>28}  {ratio:>7}")
    print(f"{o.rounds} rounds, files in {out}")
    return 1 if failed or not times else 0


if __name__ == "__main__":
    sys.exit(main())
