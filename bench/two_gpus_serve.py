#!/usr/bin/env python3
"""Services on two GPUs for bench/two_gpus.sh: KV transfers between their workers, decode steps while
the other worker reads prompts, and ranks that stop answering.

    two_gpus_serve.py --bin DIR --out DIR [--tables hang,transfers,interference] [--backend cuda]

Workers of more than one GPU start first: opening a second device takes as long as others load.
Models are of gpt-oss-20b's shape with random weights and tandem-tiny's tokenizer (with
--backend cpu: tandem-tiny's shape, to try this program without a GPU). Prints tables; the rows are
in DIR/transfers.csv and DIR/interference.csv, the processes' logs in DIR/logs. Steps and prompts are
timed by the workers: their /metrics and their log line transfer_done."""
import argparse
import csv
import ctypes
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TINY = os.path.join(ROOT, "models/tandem-tiny")
STREAMS = 32
libc = ctypes.CDLL(None)


def end_with_parent():
    libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def wait_for(what, look, seconds):
    """look()'s first answer that is true, or an error that says what never came."""
    end = time.monotonic() + seconds
    while True:
        got = look()
        if got:
            return got
        if time.monotonic() > end:
            raise RuntimeError(f"{what}: not within {seconds} s")
        time.sleep(0.01)


def free_ports(n):
    held = [socket.socket() for _ in range(n)]
    for s in held:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


def get(port, path):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        c.request("GET", path)
        r = c.getresponse()
        return r.status, r.read().decode()
    except OSError:
        return 0, ""
    finally:
        c.close()


def metrics(port):
    """Name with labels -> value."""
    out = {}
    for line in get(port, "/metrics")[1].splitlines():
        if line and line[0] != "#":
            name, value = line.rsplit(" ", 1)
            out[name] = float(value)
    return out


class Service:
    """A router with one prefill and one decode worker."""

    def __init__(self, o, name, prefill, decode, model, router=()):
        self.o, self.name = o, name
        self.http, workers, rpc, self.prefill_port, self.decode_port = free_ports(5)
        self.procs = {}
        to = ["--router", f"tcp://127.0.0.1:{workers}", "--backend", o.backend, "--log-level", "debug"]
        to += ["--model", model] + ([] if model == TINY else ["--random-weights", "1"])
        if model != TINY:
            to += ["--model-name", "tandem-tiny"]
        self.argv = {
            "router": ["tandem-router", "--model", TINY, "--http-listen", f"127.0.0.1:{self.http}",
                       "--workers-listen", f"tcp://127.0.0.1:{workers}",
                       "--rpc-listen", f"tcp://127.0.0.1:{rpc}", *router],
            "prefill": ["tandem-prefill", *to, *prefill,
                        "--admin-listen", f"127.0.0.1:{self.prefill_port}"],
            "decode": ["tandem-decode", *to, *decode,
                       "--admin-listen", f"127.0.0.1:{self.decode_port}"],
        }

    def log_path(self, role):
        name = re.sub(r"\W+", "-", self.name.replace("+", "").replace(" -> ", "-to-"))
        return os.path.join(self.o.out, "logs", f"{name}-{role}.log")

    def log(self, role):
        with open(self.log_path(role), errors="replace") as f:
            return f.read()

    def is_wide(self, role):
        """Whether it opens both GPUs."""
        return any("," in word for word in self.argv[role])

    def start(self, role):
        argv = self.argv[role]
        argv[0] = os.path.join(self.o.bin, argv[0])
        with open(self.log_path(role), "w") as f:
            self.procs[role] = subprocess.Popen(argv, stdout=f, stderr=subprocess.STDOUT,
                                                stdin=subprocess.DEVNULL,
                                                preexec_fn=end_with_parent)

    def ready(self):
        for role, p in self.procs.items():
            if p.poll() is not None:
                raise RuntimeError(f"{self.name}: {role} ended with {p.returncode}: "
                                   f"{self.log(role).strip().splitlines()[-1:]}")
        return get(self.http, "/ready")[0] == 200

    def stop(self):
        for p in self.procs.values():
            if p.poll() is None:
                p.kill()
            p.wait()

    def post(self, words, max_tokens, stream=False):
        """The connection and the response, whose body is still to be read."""
        body = {"model": "tandem-tiny", "max_tokens": max_tokens, "ignore_eos": True,
                "temperature": 0, "stream": stream,
                "messages": [{"role": "user", "content": " long" * words}]}
        c = http.client.HTTPConnection("127.0.0.1", self.http, timeout=60)
        c.request("POST", "/v1/chat/completions", json.dumps(body),
                  {"Content-Type": "application/json"})
        return c, c.getresponse()

    def ask(self, words, max_tokens):
        c, r = self.post(words, max_tokens)
        try:
            return r.status, r.read()
        finally:
            c.close()


# ---- KV from one worker to the other ----

def transfers_of(s):
    found = re.findall(r"transfer_done (.*)", s.log("prefill"))
    return [dict(re.findall(r"(\w+)=(\S+)", line)) for line in found]


def transfer_table(o, services):
    rows = []
    print(f"\n{'prefill -> decode':<20} {'tokens':>6} {'MB':>7} {'puts':>5} {'transport':<16} "
          f"{'prefill':>8} {'1st put':>8} {'landed':>8} {'tail ms':>8} {'share':>6}")
    for s in services:
        for words in o.lengths:
            before = len(transfers_of(s))
            runs = 4
            for _ in range(runs):
                status, body = s.ask(words, 2)
                if status != 200:
                    raise RuntimeError(f"{s.name}: {status} {body[:200]}")
            got = wait_for(f"{s.name}: transfer_done",
                           lambda: (lambda t: t if len(t) >= before + runs else None)(transfers_of(s)), 5)
            last = got[before + 1:]  # not the first: it connects
            mid = sorted(last, key=lambda t: int(t["tail_us"]))[len(last) // 2]
            n, ms = int(mid["bytes"]), {k: int(mid[k + "_us"]) / 1e3
                                        for k in ("compute", "first_put", "last_flush", "tail")}
            print(f"{s.name:<20} {mid['tokens']:>6} {n / 1e6:>7.1f} {mid['puts']:>5} "
                  f"{mid['transport'][:16]:<16} {ms['compute']:>8.2f} {ms['first_put']:>8.2f} "
                  f"{ms['last_flush']:>8.2f} {ms['tail']:>8.3f} {100 * ms['tail'] / ms['compute']:>5.1f}%", flush=True)
            rows += [[s.name, *(t[k] for k in ("tokens", "bytes", "puts", "transport", "compute_us",
                                               "first_put_us", "last_flush_us", "tail_us"))]
                     for t in got[before:]]
    print("  times in ms from the start of the prompt's prefill, median of 3 by tail; tail: what decode\n"
          "  waits for after it, and its share of the prefill")
    with open(os.path.join(o.out, "transfers.csv"), "w") as f:
        w = csv.writer(f)
        w.writerow("service,tokens,bytes,puts,transport,compute_us,first_put_us,last_flush_us,"
                   "tail_us".split(","))
        w.writerows(rows)


# ---- decode steps beside prefill ----

def share_over(before, after, name, edge):
    """Of what came between two looks at a histogram, how much lay over an edge of its buckets."""
    def came(key):
        return after[key] - before.get(key, 0)

    under = next(k for k in after if k.startswith(name + "_bucket") and f'le="{edge}"' in k)
    return 100 * (1 - came(under) / max(came(name + "_count"), 1))


def window(s, what, seconds):
    def look():
        return metrics(s.decode_port), metrics(s.prefill_port), metrics(s.http), time.monotonic()

    a = look()
    time.sleep(seconds)
    b = look()

    def mean(i, name):
        n = b[i].get(name + "_count", 0) - a[i].get(name + "_count", 0)
        return (b[i].get(name + "_sum", 0) - a[i].get(name + "_sum", 0)) / n if n else float("nan")

    step, itl = "tandem:decode_step_seconds", "vllm:inter_token_latency_seconds"
    prompts = (b[1]["vllm:request_prefill_time_seconds_count"] -
               a[1]["vllm:request_prefill_time_seconds_count"]) / (b[3] - a[3])
    row = [s.name, what, mean(0, "vllm:iteration_tokens_total"), mean(0, step) * 1e3, mean(2, itl) * 1e3,
           share_over(a[2], b[2], itl, "0.01"), prompts, mean(1, "vllm:request_prefill_time_seconds") * 1e3]
    print(f"{row[0]:<10} {row[1]:<16} {row[2]:>6.1f} {row[3]:>8.2f} {row[4]:>8.2f} {row[5]:>9.1f}% "
          f"{row[6]:>9.1f} {row[7]:>10.1f}", flush=True)
    return row


def interference(o, s):
    """Steps of STREAMS answers, alone and while prompts are read all the time."""
    stop, done = threading.Event(), [0]

    def answer():
        try:
            c, r = s.post(o.context, o.answer, stream=True)
            while not stop.is_set() and r.read1(65536):
                pass
            c.close()
        except (OSError, http.client.HTTPException) as e:
            print(f"  {s.name}: an answer failed: {e}", flush=True)

    def prompts():
        try:
            while not stop.is_set():
                done[0] += s.ask(o.load, 1)[0] == 200
        except (OSError, http.client.HTTPException) as e:
            print(f"  {s.name}: a prompt failed: {e}", flush=True)

    threads = [threading.Thread(target=answer, daemon=True) for _ in range(STREAMS)]
    for t in threads:
        t.start()
    rows, loads = [], []
    try:
        wait_for(f"{s.name}: {STREAMS} answers at once", lambda: metrics(s.decode_port).get(
            "vllm:num_requests_running", 0) >= STREAMS, 15)
        rows.append(window(s, "alone", o.window))
        loads = [threading.Thread(target=prompts, daemon=True) for _ in range(3)]
        for t in loads:
            t.start()
        wait_for(f"{s.name}: a prompt of {o.load} tokens", lambda: done[0] > 0, 15)
        rows.append(window(s, "beside prefill", o.window))
        if metrics(s.decode_port).get("vllm:num_requests_running", 0) < STREAMS:
            print(f"  {s.name}: answers ended within the window: give a longer --answer")
    finally:
        stop.set()
        for t in threads + loads:
            t.join(10)
    return rows


def interference_table(o, services):
    rows = []
    print(f"\n{STREAMS} answers at context {o.context} to {o.context + o.answer}, "
          f"prompts of {o.load} tokens one after another; ms")
    print(f"{'workers':<10} {'':<16} {'batch':>6} {'step':>8} {'ITL':>8} {'over 10 ms':>10} "
          f"{'prompts/s':>9} {'prefill ms':>10}")
    for s in services:
        rows += interference(o, s)
    with open(os.path.join(o.out, "interference.csv"), "w") as f:
        w = csv.writer(f)
        w.writerow("service,prefill,batch,step_ms,itl_ms,over_10_ms,prompts_s,prefill_ms".split(","))
        w.writerows(rows)


# ---- a rank that stops answering ----

def hang_table(services):
    print(f"\n{'decode, 2 ranks':<16} {'exit':>4} {'s after':>8} {'client':>7}  what the worker said")
    for s in services:
        answer = []

        def ask():
            try:
                answer.append(s.ask(20, 2000)[0])
            except (OSError, http.client.HTTPException) as e:
                answer.append(type(e).__name__)

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        wait_for(f"{s.name}: the fault", lambda: re.search(r"fault|--fault-step", s.log("decode")) or
                 s.procs["decode"].poll() is not None, 15)
        began = time.monotonic()
        code = wait_for(f"{s.name}: exit", lambda: (s.procs["decode"].poll() is not None) and
                        [s.procs["decode"].returncode], 20)[0]
        took = time.monotonic() - began
        asking.join(10)
        says = [l for l in s.log("decode").splitlines()
                if re.search(r"step_hangs|step_failed|did not come|status=DEVICE|made to fail", l)]
        told = answer[0] if answer else "silent"
        print(f"{s.name:<16} {code:>4} {took:>8.2f} {told:>7}  {says[-1][28:170] if says else '(nothing)'}",
              flush=True)


def shape_of_20b(o):
    with open(os.path.join(TINY, "config.json")) as f:
        c = json.load(f)
    if o.backend != "cpu":
        c.update(hidden_size=2880, intermediate_size=2880, num_attention_heads=64,
                 num_hidden_layers=24, num_local_experts=32,
                 layer_types=["sliding_attention", "full_attention"] * 12)
    folder = os.path.join(o.out, "shape")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(c, f)
    return folder


def services(o):
    model = shape_of_20b(o)
    gpu = o.backend != "cpu"

    def on(*devices):
        return ["--tp", str(len(devices)), *(["--devices", ",".join(devices)] if gpu else [])]

    a, b = o.devices
    pre = ["--max-transfers", "4", "--kv-memory", "4GiB" if gpu else "256MiB"]
    dec = ["--kv-memory", "5GiB" if gpu else "256MiB"]
    router = ["--reserve-tokens", str(o.answer)]
    made = {}
    for name, p, d in (("0 -> 1", [a], [b]), ("1 -> 1", [b], [b]), ("0+1 -> 1", [a, b], [b]),
                       ("0 -> 0+1", [a], [a, b])):
        if name in o.services:
            made[name] = Service(o, name, on(*p) + pre, on(*d) + dec, model, router)
    if "hang" not in o.tables:
        return made
    if o.tables == ["hang"]:
        made = {}
    for name, fault in (("one stops", "-400"), ("one breaks", "400")):
        made[name] = Service(o, name, on(a) + ["--kv-memory", "512MiB"],
                             on(a, b) + ["--kv-memory", "256MiB", "--step-timeout", "3s",
                                         "--fault-step", fault], TINY,
                             ["--recovery-timeout", "500ms"])
    return made


def start_all(made):
    wide = [(s, role) for s in made.values() for role in s.argv if s.is_wide(role)]
    for s, role in wide:
        s.start(role)
    for s, role in wide:
        wait_for(f"{s.name}: {role} has both GPUs", lambda: " gpu rank=1 " in s.log(role) or
                 s.procs[role].poll() is not None, 30)
    for s in made.values():
        for role in s.argv:
            if role not in s.procs:
                s.start(role)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--bin", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--backend", default="cuda", choices=["cuda", "cpu"])
    p.add_argument("--devices", default="0,1", type=lambda t: t.split(","))
    p.add_argument("--services", default="0 -> 1,1 -> 1,0+1 -> 1,0 -> 0+1", type=lambda t: t.split(","),
                   help="whose prefill and decode are on which of the two devices")
    p.add_argument("--tables", default="hang,transfers,interference", type=lambda t: t.split(","))
    p.add_argument("--lengths", default="1000,8000,32000",
                   type=lambda t: [int(x) for x in t.split(",")])
    p.add_argument("--context", default=1000, type=int, help="of the answers' prompts, about")
    p.add_argument("--answer", default=3000, type=int, help="longest answer")
    p.add_argument("--load", default=8000, type=int, help="prompts that are read meanwhile")
    p.add_argument("--window", default=1.5, type=float, help="seconds that are counted")
    o = p.parse_args()
    os.makedirs(os.path.join(o.out, "logs"), exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the workers are to be stopped
    made, failed = services(o), 0
    try:
        t0 = time.monotonic()
        start_all(made)
        up = {}
        for name, s in made.items():
            try:
                wait_for(f"{name}: ready", s.ready, max(1, 60 - (time.monotonic() - t0)))
                up[name] = s
            except RuntimeError as e:
                print(e)
                failed = 1
        print(f"services ready after {time.monotonic() - t0:.1f} s", flush=True)
        transfers = [up[n] for n in ("0 -> 1", "0+1 -> 1", "0 -> 0+1", "1 -> 1") if n in up]
        tables = {"hang": lambda: hang_table([up[n] for n in ("one stops", "one breaks") if n in up]),
                  "transfers": lambda: transfer_table(o, transfers),
                  "interference": lambda: interference_table(
                      o, [up[n] for n in ("0 -> 1", "1 -> 1") if n in up])}
        for table in tables:
            try:
                if table in o.tables:
                    tables[table]()
            except (RuntimeError, OSError, http.client.HTTPException, KeyError, IndexError) as e:
                print(f"{type(e).__name__}: {e}", flush=True)
                failed = 1
    finally:
        for s in made.values():
            s.stop()
    return failed


if __name__ == "__main__":
    sys.exit(main())
