#!/usr/bin/env python3
"""What each kernel takes in a whole model, and the time between kernels.

  bench/kernel_times.py [--last MS] [--passes KERNEL] [--device N] [--rows FILE] \\
      build/cuda/lib/libkernel_times.so COMMAND...

ops_cuda repeats one step; in a model a step's data have left the caches, and the clock is what the
board's power allows after all the others. --last leaves out what ran earlier than that many
milliseconds before the last kernel's end (loading, warming up). A kernel's `before` is the time
since the end of the one before it: negative where it starts early (programmatic launch), and then
its own time has waiting in it. --passes splits what is left at each run of a kernel whose name
contains this, and shows means for each whole pass. --device has the kernels of another GPU than the
first. COMMAND is the program itself: of several processes, each would write over what the one
before it has written.

  bench/kernel_times.py --last 600 --passes embed build/cuda/lib/libkernel_times.so \\
      build/cuda/bin/bench_model prefill --model 120b --experts fp8 --lengths 8k
"""
import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile


def short(name):
    """The function's own name out of a mangled one, with numbers of its template arguments."""
    at = 2 if name.startswith("_Z") else None
    if at is None:
        return name[:60]
    last, nested = name, name[at] == "N"
    at += nested
    while m := re.match(r"\d+", name[at:]):
        begin = at + len(m.group())
        at = begin + int(m.group())
        last = name[begin:at]
        if not nested:  # what follows are its parameters
            break
    numbers = re.findall(r"L[a-z](\d+)E", name[at:])
    return last + (f"<{', '.join(numbers)}>" if numbers else "")


def read(path, device):
    with open(path) as f:
        lines = [x.rstrip("\n").split(",", 3) for x in f]
    return sorted((int(x[0]), int(x[1]), short(x[3])) for x in lines if len(x) == 4 and int(x[2]) == device)


def passes_of(kernels, name):
    """Whole passes; the last one has no end."""
    at = [i for i, k in enumerate(kernels) if name in k[2]]
    return [kernels[a:b] for a, b in zip(at, at[1:])]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--last", type=float, default=0)
    p.add_argument("--passes", default="")
    p.add_argument("--device", type=int, default=0)
    p.add_argument("--rows", default="")
    p.add_argument("library")
    p.add_argument("command", nargs=argparse.REMAINDER)
    o = p.parse_args()
    if not o.command:
        p.error("a command to run is missing")
    if not os.path.exists(o.library):
        p.error(f"{o.library} is not there; the preset cuda builds it where the CUDA toolkit has CUPTI")
    rows = o.rows or tempfile.mkstemp(prefix="kernel-times-")[1]
    try:
        open(rows, "w").close()  # what is in it afterwards is of this run
    except OSError as e:
        p.error(f"--rows: {e}")
    env = dict(os.environ, LD_PRELOAD=os.path.abspath(o.library), TANDEM_KERNEL_TIMES=os.path.abspath(rows))
    try:
        code = subprocess.run(o.command, env=env).returncode
    except OSError as e:
        code = e
    kernels = read(rows, o.device)
    if not o.rows:
        os.unlink(rows)
    if code or not kernels:
        print(f"kernel_times.py: {o.command[0]} ended with {code}, {len(kernels)} kernels were seen", file=sys.stderr)
        return 1
    if o.last:
        kernels = [k for k in kernels if k[0] >= kernels[-1][1] - o.last * 1e6]
    parts = passes_of(kernels, o.passes) if o.passes else [kernels]
    if not parts:
        print(f"kernel_times.py: \"{o.passes}\" was not seen twice", file=sys.stderr)
        return 1

    took, before = {}, {}
    for part in parts:
        for i, (begin, end, name) in enumerate(part):
            took.setdefault(name, []).append((end - begin) / 1e3)
            if i:
                before.setdefault(name, []).append((begin - part[i - 1][1]) / 1e3)
    n, width = len(parts), max(map(len, took))
    spans = [(max(k[1] for k in part) - part[0][0]) / 1e6 for part in parts]
    print(f"{n} passes, {statistics.median(spans):.3f} ms each ({min(spans):.3f} to {max(spans):.3f})")
    print(f"{'kernel':{width}}  {'calls':>7} {'ms':>9} {'us, median':>11} {'least':>8} {'most':>8} {'before':>8}")
    for name, t in sorted(took.items(), key=lambda x: -sum(x[1])):
        gap = f"{statistics.mean(before[name]):8.2f}" if name in before else f"{'-':>8}"
        print(
            f"{name:{width}}  {len(t) / n:7.1f} {sum(t) / n / 1e3:9.3f} {statistics.median(t):11.1f} "
            f"{min(t):8.1f} {max(t):8.1f} {gap}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
