"""A router, a prefill and a decode worker on free ports, for the life of a `with` block."""

import ctypes
import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

MODEL = "models/tandem-tiny"
KEY = "sk-of-the-tests-0123456789"
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


def die_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def get(port, path):
    """Status and body of a GET; 0 where nobody answers. No proxy stands before this machine."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, ""
    except OSError:
        return 0, ""


class Service:
    def __init__(self, folder, patience, *router_options):
        self.bin = folder
        self.router_options = router_options
        self.patience = patience  # seconds that any one thing may take
        self.processes = {}
        self.ports = {}
        self.logs = tempfile.TemporaryDirectory(prefix="tandem-clients-")

    def __enter__(self):
        try:
            keys = os.path.join(self.logs.name, "keys")
            with open(keys, "w", encoding="ascii") as f:
                f.write(f"# of the tests\n{KEY}\n")
            self.spawn("router", "--http-listen", "127.0.0.1:0", "--workers-listen",
                       "tcp://127.0.0.1:0", "--date", "2025-06-28", "--api-keys", keys, *self.router_options)
            workers = self.word("router", " workers=")
            self.ports["router"] = int(self.word("router", " http_port="))
            for name in ("prefill", "decode"):
                self.spawn(name, "--router", workers, "--admin-listen", "127.0.0.1:0",
                           "--worker-id", name, "--threads", "1")
            for name in ("prefill", "decode"):
                self.ports[name] = int(self.word(name, " admin_port="))
            for name in self.ports:
                self.wait(lambda: get(self.ports[name], "/ready")[0] == 200, f"{name} is ready")
        except BaseException:
            self.show_logs()
            self.kill()
            raise
        return self

    def __exit__(self, kind, value, trace):
        """A SIGTERM and exit code 0 (which sanitizers change); a failure shows the logs."""
        try:
            for p in self.processes.values():
                p.terminate()
            codes = {n: p.wait(self.patience) for n, p in self.processes.items()}
            if kind is None and any(codes.values()):
                self.show_logs()
                raise AssertionError(f"exit codes after SIGTERM: {codes}")
        finally:
            self.kill()

    def kill(self):
        for p in self.processes.values():
            if p.poll() is None:
                p.kill()
                p.wait()
        self.logs.cleanup()

    def spawn(self, name, *options):
        self.spawn_other(name, [os.path.join(self.bin, f"tandem-{name}"), "--model", MODEL,
                                *options])

    def spawn_other(self, name, command, **more):
        with open(os.path.join(self.logs.name, name), "ab") as log:
            self.processes[name] = subprocess.Popen(
                command, **more,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent)

    def log(self, name):
        with open(os.path.join(self.logs.name, name), encoding="utf-8", errors="replace") as f:
            return f.read()

    def show_logs(self):
        for name in self.processes:
            print(f"---- {name}\n{self.log(name)[-6000:]}", flush=True)

    def word(self, name, key):
        """What follows key in a log, once its line is whole."""
        found = []

        def look():
            _, _, rest = self.log(name).partition(key)
            if "\n" in rest:
                found.append(rest.split(None, 1)[0])
            elif self.processes[name].poll() is not None:
                raise AssertionError(f"{name} ended before it said {key.strip()}")
            return found

        self.wait(look, f"{name} says {key.strip()}")
        return found[0]

    def wait(self, condition, what):
        """Look until it is so, a few milliseconds apart."""
        deadline = time.monotonic() + self.patience
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"never came true: {what}")
            time.sleep(0.005)

    def metric(self, name, key):
        status, body = get(self.ports[name], "/metrics")
        for line in body.splitlines():
            if line.startswith(key + " "):
                return float(line.split()[1])
        raise AssertionError(f"{name} shows no metric {key} (status {status})")

    def is_empty(self):
        """Neither worker holds anything of a request."""
        keys = {"decode": ("tandem:reservations_open", "tandem:quarantined_pages"),
                "prefill": ("tandem:kv_transfers_running", "tandem:prefill_queued_tokens")}
        both = ("vllm:kv_cache_usage_perc", "vllm:num_requests_running")
        return all(self.metric(n, k) == 0 for n in keys for k in keys[n] + both)
