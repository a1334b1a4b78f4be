#!/usr/bin/env python3
"""Encoding speed beside tiktoken's, one thread each, in one run on the same texts.

    tests/golden/oracle.sh bench/tokenizer.py build/release/bin/bench_tokenizer {vocabulary} [--check]
        [FILE...]

oracle.sh brings tiktoken and the vocabulary; files are further texts. Best of several rounds, the two
taking turns, since the machine may be busy. --check: exit 1 unless ours is at least twice as fast on prose
and code, and 1 MiB of one letter, of spaces, newlines, digits or punctuation takes at most three times what
prose takes; what misses that is measured some times more, since the best of a few rounds may still be
somebody else's.
"""
import argparse
import os
import pydoc_data.topics
import random
import re
import subprocess
import sys
import tempfile
import time

SCRIPTS = [(0x41, 0x7f), (0x391, 0x3ca), (0x410, 0x450), (0x5d0, 0x5eb), (0x620, 0x64b), (0x904, 0x93a),
           (0xe01, 0xe31), (0x3041, 0x3097), (0x4e00, 0x6000), (0xac00, 0xb000), (0x1f300, 0x1f650)]
HARD = ["one letter", "one capital", "spaces", "newlines", "digits", "carets", "punctuation"]
LINE = re.compile(r"(.+?) +([0-9.]+) MB/s")
ROUNDS = 3
TRIES = 4
CHECKED = ["English", "Python"]


def words(size):
    """Words of two to eight letters drawn at random, a line in one script each: few are tokens, so
    this is merging and little else, the worst there is. Shown, not checked."""
    r, lines, n = random.Random(1), [], 0
    while n < size:
        low, high = r.choice(SCRIPTS)
        lines.append(" ".join("".join(chr(r.randrange(low, high)) for _ in range(r.randint(2, 8)))
                              for _ in range(12)))
        n += len(lines[-1].encode())
    return "\n".join(lines)


def sources(size):
    folder, texts, n = os.path.dirname(os.__file__), [], 0
    for name in sorted(os.listdir(folder)):
        if name.endswith(".py") and n < size:
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace", newline="") as f:
                texts.append(f.read())
            n += len(texts[-1])
    return "".join(texts)


def packed_encoder(vocabulary):
    """tiktoken's, with the ids left packed, as ours are: a list of Python integers would take longer
    than the encoding of some texts."""
    import tiktoken
    import tiktoken_ext.openai_public as public
    from tiktoken.load import load_tiktoken_bpe
    public.load_tiktoken_bpe = lambda *_, **__: load_tiktoken_bpe(vocabulary)
    encode = tiktoken.get_encoding("o200k_harmony")._core_bpe.encode_to_tiktoken_buffer
    return lambda text: encode(text, set()), tiktoken.__version__


def measure(args, encode, texts, files, ours, theirs):
    """Raises the MB/s in ours and theirs, by name of the text, to the best of more rounds."""
    for _ in range(ROUNDS):
        out = subprocess.run([args.bench, args.vocabulary, *files], check=True, text=True,
                             stdout=subprocess.PIPE).stdout
        for name, rate in (m.groups() for m in map(LINE.match, out.splitlines()) if m):
            name = os.path.basename(name)
            ours[name] = max(ours.get(name, 0), float(rate))
        for name, text in texts.items():
            start = time.perf_counter()
            encode(text)
            rate = len(text.encode()) / (time.perf_counter() - start) / 1e6
            theirs[name] = max(theirs.get(name, 0), rate)


def misses(ours, theirs):
    bad = [f"{name}: {ours[name] / theirs[name]:.1f} times tiktoken's speed, not 2"
           for name in CHECKED if ours[name] < 2 * theirs[name]]
    return bad + [f"1 MiB of {name}: {ours['prose'] / ours[name]:.1f} times prose, not 3"
                  for name in HARD if ours["prose"] > 3 * ours[name]]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench")
    parser.add_argument("vocabulary")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    encode, version = packed_encoder(args.vocabulary)
    texts = {"English": "\n".join(pydoc_data.topics.topics.values()), "Python": sources(4 << 20),
             "random words": words(2 << 20)}
    for path in args.files:
        with open(path, encoding="utf-8", newline="") as f:
            texts[os.path.basename(path)] = f.read()
    ours, theirs = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        files = [os.path.join(folder, name) for name in texts]
        for path, text in zip(files, texts.values()):
            with open(path, "w", encoding="utf-8", newline="") as f:
                f.write(text)
        for _ in range(TRIES):
            measure(args, encode, texts, files, ours, theirs)
            bad = misses(ours, theirs)
            if not (args.check and bad):
                break
    print(f"{'MB/s, one thread':18} {'ours':>8} {'tiktoken ' + version:>16}")
    for name in texts:
        print(f"{name:18} {ours[name]:8.1f} {theirs[name]:16.1f}   "
              f"{ours[name] / theirs[name]:.1f} times as fast")
    print("1 MiB of one kind, times as long as prose: "
          + ", ".join(f"{name} {ours['prose'] / ours[name]:.1f}" for name in HARD))
    if args.check and bad:
        sys.exit("missed: " + "; ".join(bad))


main()
