"""TLS in front of Tandem, by the files of deploy/tls: HAProxy for HTTP, stunnel for RPC.

    test_tls.py --bin FOLDER [--slow] [CASE ...]

Certificates are made by the openssl command. Lines and closing line are as cmocka's; "not run"
(exit 77) where a program is missing."""

import os
import shutil
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request

import openai

from cases import main
from service import KEY

MODEL = "tandem-tiny"
SUM = [{"role": "user", "content": "What is 12 plus 30?"}]
ANSWER = "12 + 30 = 42."
COUNT = [{"role": "user", "content": "Count from 1 to 100."}]
NEEDED = ("haproxy", "stunnel", "openssl")


def program(name):
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def openssl(*args):
    subprocess.run([program("openssl"), *args], check=True, capture_output=True)


class Certificates:
    """A CA, and certificates of it for localhost: one file each, with the key."""

    def __init__(self, folder):
        self.folder = folder
        self.ca = self.authority("ca")
        self.site = self.signed("site", "ca")
        self.gateway = self.signed("gateway", "ca")
        self.authority("other")
        self.stranger = self.signed("stranger", "other")

    def path(self, name):
        return os.path.join(self.folder, name)

    def authority(self, name):
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                "-days", "2", "-subj", f"/CN={name}", "-keyout", self.path(f"{name}.key"),
                "-out", self.path(f"{name}.pem"))
        return self.path(f"{name}.pem")

    def signed(self, name, by):
        key, csr, crt, ext = (self.path(f"{name}.{e}") for e in ("key", "csr", "crt", "ext"))
        with open(ext, "w", encoding="ascii") as f:
            f.write("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                "-subj", f"/CN={name}", "-keyout", key, "-out", csr)
        openssl("x509", "-req", "-in", csr, "-days", "2", "-CA", self.path(f"{by}.pem"),
                "-CAkey", self.path(f"{by}.key"), "-CAcreateserial", "-extfile", ext, "-out", crt)
        both = self.path(f"{name}.both.pem")
        with open(both, "wb") as out:
            for part in (crt, key):
                with open(part, "rb") as f:
                    out.write(f.read())
        return both


def same(got, want):
    assert got == want, f"got {got!r}, want {want!r}"


class Context:
    def __init__(self, service, slow):
        self.service = service
        self.certificates = certificates = Certificates(service.logs.name)
        self.port = free_port()
        service.spawn_other("haproxy", [program("haproxy"), "-db", "-f", "deploy/tls/haproxy.cfg"],
                            env={**os.environ, "TANDEM_TLS_BIND": f"127.0.0.1:{self.port}",
                                 "TANDEM_TLS_CERT": certificates.site,
                                 "TANDEM_TLS_ROUTER": f"127.0.0.1:{service.ports['router']}"})
        self.tls = ssl.create_default_context(cafile=certificates.ca)
        self.url = f"https://localhost:{self.port}"
        service.wait(lambda: self.get("/ready") == 200, "HAProxy has found the router")
        self.client = self.sdk(KEY)

    def sdk(self, key):
        return openai.OpenAI(base_url=self.url + "/v1", api_key=key, max_retries=0,
                             timeout=self.service.patience,
                             http_client=openai.DefaultHttpx2Client(verify=self.tls))

    def get(self, path):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}),
                                             urllib.request.HTTPSHandler(context=self.tls))
        try:
            with opener.open(self.url + path, timeout=10) as answer:
                return answer.status
        except urllib.error.HTTPError as e:
            return e.code
        except OSError:
            return 0

    def close(self):
        self.client.close()
        for name, p in self.service.processes.items():  # theirs end by signals, not with 0
            if name == "haproxy" or "-" in name:
                p.kill()
                p.wait()
        self.service.processes = {n: p for n, p in self.service.processes.items()
                                  if n in ("router", "prefill", "decode")}

    def chat(self, messages=None, **more):
        return self.client.chat.completions.create(model=MODEL, messages=messages or SUM,
                                                   temperature=0, **more)


# ---- HTTP ----


def test_tls_answers_whole_and_streamed(c):
    same(c.chat().choices[0].message.content, ANSWER)
    text = "".join(p.delta.content or "" for chunk in c.chat(stream=True) for p in chunk.choices)
    same(text, ANSWER)
    long = [{"role": "user", "content": "12345 " * 60000}]
    try:
        c.chat(long)
        raise AssertionError("a long prompt was answered")
    except openai.BadRequestError as e:
        same(e.code, "context_length_exceeded")


def test_tls_a_stream_comes_as_it_is_made(c):
    with c.chat(COUNT, stream=True, max_tokens=2000, extra_body={"ignore_eos": True}) as stream:
        for _ in zip(range(3), stream):
            pass
        same(c.service.metric("decode", "vllm:num_requests_running"), 1)
    c.service.wait(c.service.is_empty, "the stream that was closed is canceled")


def test_tls_a_client_that_leaves_is_noticed(c):
    try:
        c.chat(COUNT, max_tokens=8000, extra_body={"ignore_eos": True}, timeout=0.5)
        raise AssertionError("no time-out")
    except openai.APITimeoutError:
        pass
    c.service.wait(c.service.is_empty, "the answer that nobody waits for is canceled")
    same(c.service.metric("router", "vllm:num_requests_running"), 0)


def test_tls_keys_and_paths(c):
    with c.sdk("sk-another-key-0123456789") as client:
        try:
            client.models.list()
            raise AssertionError("admitted")
        except openai.AuthenticationError as e:
            same(e.code, "invalid_api_key")
    same([c.get(p) for p in ("/health", "/ready", "/metrics", "/v1/models")],
         [200, 200, 404, 401])


def test_tls_is_tls(c):
    with socket.create_connection(("127.0.0.1", c.port), timeout=10) as s:
        modern = ssl.create_default_context(cafile=c.certificates.ca)
        modern.set_alpn_protocols(["h2"])
        with modern.wrap_socket(s, server_hostname="localhost") as t:
            same(t.selected_alpn_protocol(), "h2")
            assert t.version() in ("TLSv1.2", "TLSv1.3"), t.version()
    for context in (ssl.create_default_context(),  # does not know the CA
                    c.tls):  # nor is this the server's name
        with socket.create_connection(("127.0.0.1", c.port), timeout=10) as s:
            try:
                context.wrap_socket(s, server_hostname="localhost" if context is not c.tls
                                    else "elsewhere.example")
                raise AssertionError("the certificate was taken")
            except ssl.SSLCertVerificationError:
                pass
    with socket.create_connection(("127.0.0.1", c.port), timeout=10) as s:
        s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert not s.recv(100).startswith(b"HTTP/1.1 200"), "answered without TLS"


# ---- RPC ----


def stunnel(c, name, config, **values):
    """A file of deploy/tls with this machine's ports and files in place of those that it names."""
    with open(f"deploy/tls/{config}", encoding="ascii") as f:
        text = f.read()
    for old, new in values.items():
        assert old in text, old
        text = text.replace(old, str(new))
    path = c.certificates.path(f"{name}.conf")
    with open(path, "w", encoding="ascii") as f:
        f.write(text)
    c.service.spawn_other(name, [program("stunnel"), path])


def ask(c, ports, *more):
    return subprocess.run(
        [os.path.join(c.service.bin, "tandem-ask"), "--router", f"tcp://127.0.0.1:{ports['rpc']}",
         "--listen", f"tcp://127.0.0.1:{ports['events']}",
         "--advertise", f"tcp://127.0.0.1:{ports['dial']}", *more, "What is 12 plus 30?"],
        capture_output=True, timeout=c.service.patience * 2, check=False, text=True)


def tunnels(c, name, certificate):
    """A pair of stunnels as in deploy/tls; the gateway has this certificate."""
    ports = {k: free_port() for k in ("router_tls", "gateway_tls", "rpc", "events", "dial")}
    rpc = c.service.word("router", "rpc_listening url=").rsplit(":", 1)[1]
    stunnel(c, f"{name}-router", "stunnel-router.conf", **{
        "0.0.0.0:7443": f"127.0.0.1:{ports['router_tls']}", "127.0.0.1:7002": f"127.0.0.1:{rpc}",
        "127.0.0.1:7500": f"127.0.0.1:{ports['dial']}",
        "gateway.example:7443": f"127.0.0.1:{ports['gateway_tls']}",
        "checkHost = gateway.example": "checkHost = localhost",
        "/etc/tandem/tls/router.pem": c.certificates.site,
        "/etc/tandem/tls/ca.pem": c.certificates.ca})
    stunnel(c, f"{name}-gateway", "stunnel-gateway.conf", **{
        "0.0.0.0:7443": f"127.0.0.1:{ports['gateway_tls']}",
        "127.0.0.1:7501": f"127.0.0.1:{ports['events']}",
        "127.0.0.1:7002": f"127.0.0.1:{ports['rpc']}",
        "router.example:7443": f"127.0.0.1:{ports['router_tls']}",
        "checkHost = router.example": "checkHost = localhost",
        "/etc/tandem/tls/gateway.pem": certificate,
        "/etc/tandem/tls/ca.pem": c.certificates.ca})

    def listens():
        for port in (ports["rpc"], ports["dial"]):
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", port)) != 0:
                    return False
        return True

    c.service.wait(listens, "both stunnels listen")
    return ports


def test_tls_rpc_through_stunnel(c):
    done = ask(c, tunnels(c, "good", c.certificates.gateway))
    assert done.returncode == 0 and ANSWER in done.stdout, (done.stdout, done.stderr)


def test_tls_rpc_needs_a_certificate_of_the_ca(c):
    done = ask(c, tunnels(c, "bad", c.certificates.stranger), "--timeout", "1s")
    assert done.returncode != 0 and ANSWER not in done.stdout, done.stdout


# ---- last: it ends the router ----


def test_tls_without_a_router_is_503(c):
    c.service.processes["router"].terminate()
    c.service.wait(lambda: c.get("/health") == 503, "HAProxy says that there is no router")


if __name__ == "__main__":
    missing = [n for n in NEEDED if program(n) is None]
    if missing:
        print(f"[  SKIPPED ] test_tls: there is no {', '.join(missing)}")
        sys.exit(77)
    sys.exit(main(globals(), "test_tls_", Context, "--rpc-listen", "tcp://127.0.0.1:0"))
