"""The parser at every token against openai-harmony's StreamableParser, for harmony_oracle.py.

What the reference knows of an answer (its messages, and the one that is open) is routed as the HTTP
mapping says and compared with all that ours has sent by the same token. The comparison ends where
the two part by decision: at the first token that the reference refuses, at the end of the answer
(ours takes no more), and at a header that the reference accepts but reads otherwise than the format
means it, such as a content type taken for a recipient.
"""
import codecs
import json
import re

from harmony_random import NAMES, text

CHANNELS = ("analysis", "commentary", "final")
DECLARED = sorted(set(NAMES))
CALL = re.compile(r"functions\.[A-Za-z0-9_-][A-Za-z0-9_.-]*(?<!\.)$")
GLUED = re.compile(r"(json|code|text|commentary|analysis|final|assistant)$", re.I)
TYPE = re.compile(r"(<\|constrain\|>)?[a-z]*$")
STOPS = ("<|return|>", "<|call|>", "<|endoftext|>")


def encode(ref, s):
    return ref.enc.encode(s, allowed_special="all")


def answer(r, ref):
    """Tokens of a well-formed answer, and the tools that were declared for it."""
    spell = ""
    for i in range(r.randint(0, 3)):
        spell += "<|start|>assistant" if i else ""
        if r.random() < 0.15:  # one call of several
            spell += call(r, "functions." + r.choice(NAMES + ["a.b", "other"])) + "<|end|>"
        elif r.random() < 0.15:  # of a tool that runs here, or of what is none
            name = r.choice(["python", "browser.search", "browser.open", "assistant"])
            spell += f"<|channel|>analysis to={name} code<|message|>{body(r)}<|end|>"
        else:
            spell += f"<|channel|>{r.choice(CHANNELS[:2])}<|message|>{body(r)}<|end|>"
    spell += "<|start|>assistant" if spell else ""
    if r.random() < 0.5:
        spell += f"<|channel|>final<|message|>{body(r)}<|return|>"
    else:
        spell += call(r, "functions." + r.choice(NAMES))
        spell += r.choice(["<|call|>", "<|call|>", "<|return|>"])
    tokens = encode(ref, spell)
    return tokens[:r.randrange(len(tokens) + 1)] if r.random() < 0.2 else tokens, DECLARED


def call(r, name):
    to, channel = f" to={name}", r.choice(CHANNELS[:2])
    kind = r.choice([" <|constrain|>json", "<|constrain|>json", " json", " code", ""])
    header = (f"{to}<|channel|>{channel}{kind}" if r.random() < 0.5
              else f"<|channel|>{channel}{to}{kind}")
    return (f"{header}<|message|>"
            + r.choice(["{}", '{"a":"é"}', '{"x": [1, 2]}', "", " ", body(r)]))


def body(r):
    return text(r, 8).replace("<|", "<")


def mutant(r, ref):
    tokens, declared = answer(r, ref)
    tokens = list(tokens)
    for _ in range(r.randint(1, 3)):
        at = r.randrange(len(tokens) + 1)
        kind = r.randrange(6)
        if kind == 0:
            del tokens[at:at + r.randint(1, 3)]
        elif kind == 1:
            tokens[at:at] = tokens[at:at + r.randint(1, 3)]
        elif kind == 2:
            tokens[at:at] = encode(ref, r.choice([
                "<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>",
                "<|return|>", " to=", "to=functions.a", " functions.f", "json", " final",
                "commentary", "analysis", "assistant", "user", " {", "<|start|>assistant", "\n",
                "<|channel|>final<|message|>", "<|end|><|start|>assistant<|channel|>analysis"]))
        elif kind == 3:  # half characters, and what is none
            tokens[at:at] = r.choice([[9552], [31446], [244], [31446, 244], [9552, 9552], [200],
                                      [157, 254], [126], [132990, 9552]])
        elif kind == 4:
            tokens[at:at] = [r.randrange(200000) for _ in range(r.randint(1, 2))]
        elif tokens:
            at, other = r.randrange(len(tokens)), r.randrange(len(tokens))
            tokens[at], tokens[other] = tokens[other], tokens[at]
    return tokens, declared


class View:
    """What a client has been shown: texts by kind, calls, and how many messages are closed."""

    def __init__(self):
        self.text = {"R": "", "C": ""}
        self.calls, self.closed = [], 0

    def key(self):
        return self.text["R"], self.text["C"], [tuple(c) for c in self.calls], self.closed

    def take(self, kind, s):
        if kind in self.text:
            self.text[kind] += s
        elif kind == "B":
            self.calls.append([s, ""])
        elif kind == "A":
            self.calls[-1][1] += s
        else:
            self.closed += 1


class Expected:
    """The view that the reference's reading of the tokens makes."""

    def __init__(self, declared):
        self.declared, self.view = declared, View()
        self.route = self.decoder = None

    def open(self, author, channel, recipient, content_type):
        """False where ours reads the header differently by decision."""
        name = recipient or ""
        if author.get("role") != "assistant" or channel not in CHANNELS or recipient == "":
            return False
        if not TYPE.match(content_type or ""):
            return False
        bare = name.removeprefix("functions.")
        if bare in self.declared or (CALL.match(name) and len(bare) <= 64 and not GLUED.search(name)):
            self.route = "B"
            self.view.take("B", bare)
        elif name in ("python", "browser.search", "browser.open", "browser.find"):
            self.route = "R"
        elif name in ("", "assistant"):
            self.route = "R" if channel == "analysis" else "C"
        else:
            return False
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.message = self.blank = ""
        return True

    def bytes(self, data, final=False):
        s = self.decoder.decode(data, final)
        if not s:
            return
        if self.route == "B":
            if not self.message:  # white space alone is no argument
                s, self.blank = self.blank + s, ""
                if not s.strip(" \t\r\n"):
                    self.blank = s
                    return
            self.view.calls[-1][1] += s
        else:
            if not self.message and self.view.text[self.route]:
                self.view.text[self.route] += "\n"
            self.view.text[self.route] += s
        self.message += s

    def close(self, complete=True):
        self.bytes(b"", True)
        if self.route == "B" and not self.message and complete:
            self.view.calls[-1][1] = "{}"
        self.view.closed += 1
        said = self.blank + self.message
        self.route = None
        return said


def events_by_token(trace):
    by_token = {}
    for index, kind, s in trace["events"]:
        by_token.setdefault(index, []).append((kind, s))
    return by_token


def compare(ref, driver, tokens, declared):
    """(what differs or None, how far the comparison went): "whole", "refused" by the reference, or
    "decided" otherwise."""
    trace = driver.ask(op="trace", tokens=tokens, declared=declared, end="length")
    events = events_by_token(trace)
    ours, theirs = View(), Expected(declared)
    parser = ref.oh.StreamableParser(ref.enc, ref.oh.Role.ASSISTANT)._inner
    stops = {encode(ref, s)[0] for s in STOPS}
    in_header = {encode(ref, s)[0] for s in ("<|channel|>", "<|constrain|>", "<|message|>")}
    before, state, said = "", "Header", ""

    def problem(what, i):
        shown = [f"{what} at token {i} ({ref.enc.decode(tokens[i:i + 1])!r})",
                 f"answer:  {ref.enc.decode(tokens)!r}", f"tokens:  {tokens}",
                 f"ours:    {ours.key()}", f"theirs:  {theirs.view.key()}", f"trace:   {trace}"]
        return "\n".join(shown), "differs"

    # Whatever the reference says: no event spells a control token that no text did.
    plain = ref.enc.decode([t for t in tokens if not ref.enc.is_special_token(t)])
    for _, kind, s in trace["events"]:
        if "<|" in s and "<|" not in plain:
            return problem(f"markup in {kind!r} {s!r}", 0)
    for i, token in enumerate(tokens):
        special = ref.enc.is_special_token(token)
        if state == "Header" and special and token not in in_header:
            return None, "refused"  # at its next <|message|>; until then it collects
        try:
            parser.process(token)
        except ref.oh.HarmonyError:
            return None, "refused"
        if special:  # others change no state
            before, state = state, read_state(parser)["state"]
        if special and before == "Header" and state == "Content":
            if not theirs.open(**read_state(parser)["header"]):
                return None, "decided"
            said = ""
        elif state == "Content":
            if special:
                return None, "decided"
            theirs.bytes(token_bytes(ref, token))
            said += parser.last_content_delta or ""
            if not (theirs.blank + theirs.message).startswith(said):
                return problem(f"the oracle's own reading differs from {said!r}", i)
        elif special and before == "Content":
            said = theirs.close()
            message = ref.oh.Message.from_dict(json.loads(parser.messages)[-1])
            if said != "".join(part.text for part in message.content):
                return problem(f"the oracle's own reading differs from {message}", i)
        for kind, s in events.get(i, []):
            ours.take(kind, s)
        if ours.key() != theirs.view.key():
            return problem("differs", i)
        if token in stops and before == "Content":
            reason = "tool_calls" if theirs.view.calls else "stop"
            if trace["done"] != i + 1 or trace["finish_reason"] != reason:
                return problem("another end", i)
            return None, "whole"
    if state == "Content":  # cut, by the limit of tokens
        parser.process_eos()
        said = theirs.close(complete=False)
        message = ref.oh.Message.from_dict(json.loads(parser.messages)[-1])
        if said != "".join(part.text for part in message.content):
            return problem(f"the oracle's own reading differs from {message}", len(tokens))
        for kind, s in events.get(len(tokens), []):
            ours.take(kind, s)
        if ours.key() != theirs.view.key() or trace["finish_reason"] != "length":
            return problem("another end", len(tokens))
    return None, "whole"


def read_state(parser):
    return json.loads(parser.state)


_bytes = {}


def token_bytes(ref, token):
    if token not in _bytes:
        _bytes[token] = bytes(ref.enc._inner.decode_bytes([token]))
    return _bytes[token]
