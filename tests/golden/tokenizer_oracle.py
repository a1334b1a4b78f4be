#!/usr/bin/env python3
"""Holds the tokenizer against the references, token for token.

    tokenizer_oracle.py --pipe build/release/bin/tokenizer_pipe --vocab o200k_base.tiktoken
    tokenizer_oracle.py --pipe build/release/bin/tokenizer_pipe --hf models/tandem-tiny

With --vocab the reference is tiktoken (and openai-harmony for the control tokens), once over the file
itself and once over a full-size tokenizer.json made from it; with --hf it is Hugging Face's
tokenizers. Run it through oracle.sh, which gets the references and the vocabulary. --mib is how
much random text to go through, --seed makes it repeatable.
"""
import argparse
import itertools
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time

AWKWARD = ["a", "b", "s", "S", "t", "re", "LL", "ve", "m", "D", "Z", "É", "é", "ß", "ǅ", "ʰ", "ˈ", "文", "字",
           "न", "मस", "ी", "्", "\u0301", "\u0300", "\u20dd", "1", "42", "٣", "Ⅷ", "½", " ", "  ", "\t", "\n", "\r",
           "\r\n", "\x0b", "\x0c", "\x85", "\xa0", "\u1680", "\u2003", "\u2028", "\u202f", "\u3000", "\u180e",
           "\u200b", "\u200d", "\ufeff", "\ufffd", "'", "’", "\u017f", "\u212a", "/", "//", ".", ",", "_", "-", "^",
           "(", "<|", "|>", "<|start|>", "{\"", "\x00", "\x01", "\x1f", "\x7f", "💖", "👩\u200d👩\u200d👧", "🫠", "🇩🇪",
           "☎\ufe0f", "👩🏽\u200d🚀", "🏴\u200d☠\ufe0f", "1\ufe0f\u20e3", "🏴\U000e0067\U000e0062\U000e007f", "\U000e0101",
           "\u0e33", "한글", "カ゛", "ﬁ", "ﷺ", "\U0001e900", "\U00010400", "\ue000", "\uffff"]
SCRIPTS = [(0x20, 0x7f), (0xa0, 0x250), (0x370, 0x400), (0x400, 0x530), (0x590, 0x600), (0x600, 0x700),
           (0x900, 0x980), (0xb80, 0xc00), (0xe00, 0xe80), (0x10a0, 0x1100), (0x1100, 0x1200), (0x1e00, 0x2000),
           (0x2000, 0x2400), (0x3040, 0x3100), (0x0, 0x20), (0x80, 0xa0), (0x300, 0x370),
           (0x700, 0x860), (0x980, 0xb80), (0xc00, 0xe00), (0xe80, 0x10a0), (0x1200, 0x1400), (0x1780, 0x18b0),
           (0x2c00, 0x2e00), (0x3400, 0x4dc0), (0x10000, 0x11000), (0x1d400, 0x1d800), (0x1e900, 0x1ef00),
           (0x20000, 0x2a6e0), (0xe0000, 0xe01f0), (0x4e00, 0xa000), (0xac00, 0xd7a4), (0x1f300, 0x1fb00)]


def packed(ids):
    return struct.pack(f"<{len(ids)}i", *ids)


def unpacked(ids):
    return list(struct.unpack(f"<{len(ids) // 4}i", ids))


class Pipe:
    def __init__(self, program, tokenizer):
        self.process = subprocess.Popen([program, tokenizer], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, kind, data, count):
        self.process.stdin.write(kind + struct.pack("<I", count) + data)
        self.process.stdin.flush()
        head = self.process.stdout.read(4)
        if len(head) != 4:
            sys.exit("the tokenizer ended: see its message above")
        return struct.unpack("<I", head)[0]

    def encode_many(self, texts):
        """As encode(), without waiting for each: what is on its way fits into the pipes."""
        out = []
        for start in range(0, len(texts), 256):
            some = texts[start:start + 256]
            assert sum(map(len, some)) <= 8192
            self.process.stdin.write(b"".join(b"e" + struct.pack("<I", len(text)) + text for text in some))
            self.process.stdin.flush()
            for _ in some:
                n, = struct.unpack("<I", self.process.stdout.read(4))
                out.append(unpacked(self.process.stdout.read(4 * n)))
        return out

    def encode_packed(self, data, kind=b"e"):
        """The ids as 32 bits each: millions of Python integers would be most of the time."""
        n = self.ask(kind, data, len(data))
        return self.process.stdout.read(4 * n)

    def encode(self, data, kind=b"e"):
        return unpacked(self.encode_packed(data, kind))

    def decode_packed(self, ids):
        n = self.ask(b"d", ids, len(ids) // 4)
        return None if n == 0xffffffff else self.process.stdout.read(n)

    def decode(self, ids):
        return self.decode_packed(packed(ids))


class Compare:
    """`reference` gives the ids of a text, packed."""

    def __init__(self, pipe, reference):
        self.pipe, self.reference = pipe, reference
        self.texts = self.bytes = self.tokens = 0

    def text(self, text, what):
        data = text.encode()
        ours, theirs = self.pipe.encode_packed(data), self.reference(text)
        if ours != theirs:
            ours, theirs = unpacked(ours), unpacked(theirs)
            at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
            sys.exit(f"{what}: differs at token {at}: ours {ours[at:at + 6]}, reference {theirs[at:at + 6]}\n{text[:400]!r}")
        if self.pipe.decode_packed(ours) != data:
            sys.exit(f"{what}: decoding gives other bytes\n{text[:400]!r}")
        self.texts += 1
        self.bytes += len(data)
        self.tokens += len(ours) // 4


def any_char(rng):
    cp = rng.randrange(0x110000 - 0x800)
    return chr(cp if cp < 0xd800 else cp + 0x800)


def random_text(rng, pieces):
    kind = rng.randrange(6)
    n = rng.choice((3, 10, 30, 200))
    if kind == 0:
        return "".join(rng.choice(AWKWARD) for _ in range(n))
    if kind == 1:
        few = rng.sample(AWKWARD, 4)
        return "".join(rng.choice(few) for _ in range(n))
    if kind == 2:
        low, high = rng.choice(SCRIPTS)
        return "".join(" " if rng.random() < 0.15 else chr(rng.randrange(low, high)) for _ in range(n))
    if kind == 3:
        return "".join(any_char(rng) for _ in range(n))
    if kind == 4:
        return "".join(rng.choice(pieces) for _ in range(n))
    return "".join(rng.choice(AWKWARD) * rng.choice((1, 1, 2, 5, 150)) for _ in range(min(n, 30)))


# One or more of each class that the pattern tells apart, and of what a contraction is made.
CLASSES = ["A", "ǅ", "b", "ʰ", "文", "\u0301", "7", "Ⅷ", " ", "\t", "\u3000", "\r", "\n", "'", "s", "L", "/", "💖"]


def every_boundary(compare, reference_batch):
    """All texts of four characters: each class before, after and between all others."""
    texts = ["".join(chars) for chars in itertools.product(CLASSES, repeat=4)]
    ours = compare.pipe.encode_many([text.encode() for text in texts])
    for text, a, b in zip(texts, ours, reference_batch(texts)):
        if a != b:
            sys.exit(f"boundaries: ours {a}, reference {b} for {text!r}")
    print(f"  equal: every text of four out of {len(CLASSES)} kinds of characters ({len(texts)})")


def every_code_point(compare):
    """Each one where its class decides: before a contraction, a line break, a letter, after a space."""
    for start in range(0, 0x110000, 64):
        chars = [chr(cp) for cp in range(start, start + 64) if not 0xd800 <= cp < 0xe000]
        compare.text("".join(f"{c}'s {c}/\nA{c}aB'{c} {c}\t{c}{c}1" for c in chars), f"U+{start:04X}..")


def source_files(limit):
    folder, seen = os.path.dirname(os.__file__), 0
    for name in sorted(os.listdir(folder)):
        if name.endswith(".py") and seen < limit:
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace", newline="") as f:
                text = f.read()
            seen += len(text)
            yield name, text


def compare_texts(compare, pieces, args, everything):
    rng = random.Random(args.seed)
    if everything:
        every_code_point(compare)
        print(f"  equal: each of {0x110000 - 0x800} code points between others ({compare.bytes} bytes)")
    for name, text in source_files(4 << 20):
        compare.text(text, name)
    end = compare.bytes + int(args.mib * (1 << 20)) // (1 if everything else 10)
    while compare.bytes < end:
        compare.text(random_text(rng, pieces), f"random text, seed {args.seed}")
    print(f"  equal: {compare.texts} texts, {compare.bytes} bytes, {compare.tokens} tokens")


def compare_bytes(pipe, reference, seed):
    """Bytes that are no UTF-8: U+FFFD for each maximal invalid part, as Python decodes them."""
    rng = random.Random(seed)
    for _ in range(20000):
        data = bytearray("".join(rng.choice(AWKWARD) for _ in range(8)).encode())
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.choice((0x80, 0xbf, 0xc0, 0xe0, 0xed, 0xf0, 0xf4, 0xf5, 0xff, 0x41))
        data = bytes(data[:rng.randrange(len(data)) + 1])
        if pipe.encode(data) != reference(data.decode(errors="replace")):
            sys.exit(f"invalid UTF-8: differs for {data!r}")
    print("  equal: 20000 texts that are not UTF-8")


def compare_specials(pipe, encoding, seed):
    rng = random.Random(seed)
    names = list(encoding.special_tokens_set)
    for _ in range(3000):
        text = "".join(rng.choice(names) if rng.random() < 0.4 else rng.choice(AWKWARD) for _ in range(12))
        if pipe.encode(text.encode(), b"s") != encoding.encode(text, allowed_special="all"):
            sys.exit(f"special tokens: differs for {text!r}")
        if pipe.encode(text.encode()) != encoding.encode_ordinary(text):
            sys.exit(f"special tokens in ordinary text: differs for {text!r}")
    for token in range(encoding.n_vocab + 3):
        try:
            want = encoding.decode_single_token_bytes(token)
        except KeyError:
            want = None
        got = pipe.decode([token])
        if got != want and token != 200018:  # which of its two names is printed is open
            sys.exit(f"token {token}: ours {got!r}, reference {want!r}")
    print("  equal: special tokens, and the bytes of every id")


def compare_speed(pipe, encoding):
    text = "".join(text for _, text in source_files(4 << 20))
    data = text.encode()
    best = {}
    for name, run in (("ours, through a pipe", lambda: pipe.encode(data)), ("tiktoken", lambda: encoding.encode_ordinary(text))):
        for _ in range(3):
            start = time.perf_counter()
            run()
            best[name] = min(best.get(name, 1e9), time.perf_counter() - start)
    print("  speed on Python sources: " + ", ".join(f"{name} {len(data) / t / 1e6:.1f} MB/s" for name, t in best.items()))


def write_json(ranks, specials, pattern, path, form):
    """What gpt-oss ships: every split of every token as a merge, in the order of the whole's id."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    alphabet = {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(rest)}}
    shown = {token: "".join(alphabet[b] for b in token) for token in ranks}
    merges = []
    for token in sorted(ranks, key=ranks.get):
        splits = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += sorted(splits, key=lambda s: (ranks[s[0]], ranks[s[1]]))
    pairs = [[shown[a], shown[b]] if form == "pairs" else f"{shown[a]} {shown[b]}" for a, b in merges]
    spec = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": name, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for name, i in specials.items()],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": form == "pairs",
                  "vocab": {shown[token]: rank for token, rank in ranks.items()}, "merges": pairs}}
    with open(path, "w", encoding="utf-8") as f:
        json.dump(spec, f, ensure_ascii=form != "pairs", indent=2 if form == "pairs" else None)
    print(f"  {len(merges)} merges as {form}, {os.path.getsize(path)} bytes", end="")


def harmony_check(pipe, vocab):
    import openai_harmony
    os.environ["TIKTOKEN_ENCODINGS_BASE"] = os.path.dirname(os.path.abspath(vocab))
    harmony = openai_harmony.load_harmony_encoding(openai_harmony.HarmonyEncodingName.HARMONY_GPT_OSS)
    conversation = openai_harmony.Conversation.from_messages([
        openai_harmony.Message.from_role_and_content(openai_harmony.Role.USER, "".join(AWKWARD))])
    ids = harmony.render_conversation_for_completion(conversation, openai_harmony.Role.ASSISTANT)
    ours = pipe.encode(b"<|start|>user<|message|>", b"s") + pipe.encode("".join(AWKWARD).encode())
    ours += pipe.encode(b"<|end|><|start|>assistant", b"s")
    if ids != ours:
        sys.exit(f"openai-harmony: differs\nours      {ours}\nreference {ids}")
    print("openai-harmony: equal on a rendered conversation")


def run_vocab(args):
    import tiktoken
    import tiktoken_ext.openai_public as public
    from tiktoken.load import load_tiktoken_bpe
    public.load_tiktoken_bpe = lambda *_, **__: load_tiktoken_bpe(args.vocab)
    encoding = tiktoken.get_encoding("o200k_harmony")
    ranks = load_tiktoken_bpe(args.vocab)
    pieces = [t for t in (token.decode(errors="ignore") for token in ranks) if t]
    specials = {}
    for name, token in sorted(encoding._special_tokens.items(), key=lambda item: item[1]):
        if name != "<|endofprompt|>":
            specials[name] = token
    print(f"tiktoken {tiktoken.__version__}, {args.vocab}")
    pipe = Pipe(args.pipe, args.vocab)
    encode_packed = lambda text: bytes(memoryview(encoding._core_bpe.encode_to_tiktoken_buffer(text, set())))
    compare = Compare(pipe, encode_packed)
    every_boundary(compare, lambda texts: encoding.encode_ordinary_batch(texts, num_threads=2))
    compare_texts(compare, pieces, args, everything=True)
    compare_bytes(pipe, encoding.encode_ordinary, args.seed)
    compare_specials(pipe, encoding, args.seed)
    compare_speed(pipe, encoding)
    harmony_check(pipe, args.vocab)
    with tempfile.TemporaryDirectory() as folder:
        for form in ("pairs", "strings"):
            print("tiktoken against a tokenizer.json:")
            path = os.path.join(folder, "tokenizer.json")
            write_json(ranks, specials, encoding._pat_str, path, form)
            start = time.perf_counter()
            pipe = Pipe(args.pipe, folder if form == "pairs" else path)
            pipe.encode(b"x")
            print(f", opened in {time.perf_counter() - start:.2f} s")
            compare_texts(Compare(pipe, encode_packed), pieces, args, everything=False)
            if form == "pairs":
                run_hf(args, path)


def run_hf(args, path):
    import tokenizers
    if os.path.isdir(path):
        path = os.path.join(path, "tokenizer.json")
    with open(path, encoding="utf-8") as f:
        spec = json.load(f)
    spec["added_tokens"] = []  # so that special names are text, as in ours
    reference = tokenizers.Tokenizer.from_str(json.dumps(spec))
    pieces = [piece.replace("Ġ", " ") for piece in spec["model"]["vocab"]]
    print(f"tokenizers {tokenizers.__version__}, {path}")
    pipe = Pipe(args.pipe, path)
    encode = lambda text: packed(reference.encode(text, add_special_tokens=False).ids)
    compare_texts(Compare(pipe, encode), pieces, args, everything=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipe", required=True, help="the program tokenizer_pipe")
    parser.add_argument("--vocab", help="o200k_base.tiktoken")
    parser.add_argument("--hf", help="a tokenizer.json or its folder")
    parser.add_argument("--mib", type=float, default=4)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if not args.vocab and not args.hf:
        parser.error("neither --vocab nor --hf says what to compare")
    if args.vocab:
        run_vocab(args)
    if args.hf:
        run_hf(args, args.hf)
    print(f"[       OK ] tokenizer_oracle (seed {args.seed})")


if __name__ == "__main__":
    main()
