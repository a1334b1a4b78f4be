#!/usr/bin/env python3
"""Makes tokenizer.json beside it: a byte-level BPE vocabulary of a few hundred tokens.

It has what the tests of the Harmony format need and nothing else: every byte, the words of the
format (with "commentary" in two tokens, as in the real vocabulary), the control tokens under ids of
their own, some reserved ones, and one id without a piece. Run it after a change here.
"""
import json
import pathlib

WORDS = ["comment", "ary", "analysis", "final", " final", "assistant", "user", "system",
         "developer", "functions", " functions", "=functions", "json", " json", "code", " code",
         " to", "channel", "start", "message", "hello", " the", " answer", "Answer", '{"', '":',
         '"}', "{}", "Use", " add", ".add", "  "]
SPECIALS = ["<|startoftext|>", "<|call|>", "<|reserved_1|>", "<|message|>", "<|start|>", "<|end|>",
            "<|channel|>", "<|return|>", "<|constrain|>", "<|reserved_2|>", "<|endoftext|>"]

LETTERS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join([
    r"[^\r\n\p{L}\p{N}]?" + LETTERS[0] + "*" + LETTERS[1] + "+" + CONTRACTION,
    r"[^\r\n\p{L}\p{N}]?" + LETTERS[0] + "+" + LETTERS[1] + "*" + CONTRACTION,
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])


def alphabet():
    """The characters that stand for bytes in tokenizer.json."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    chars, rest = {}, 0
    for b in range(256):
        if b in printable:
            chars[b] = chr(b)
        else:
            chars[b] = chr(0x100 + rest)
            rest += 1
    return chars


def main():
    here = pathlib.Path(__file__).parent
    chars = alphabet()
    vocab = {chars[b]: b for b in range(256)}
    merges = []
    for word in WORDS:
        symbols = [chars[b] for b in word.encode()]
        for n in range(1, len(symbols)):
            left, right = "".join(symbols[:n]), symbols[n]
            if left + right not in vocab:
                vocab[left + right] = len(vocab)
                merges.append([left, right])
    first = len(vocab)
    added = [{"id": first + i + (i >= 3), "content": name, "special": True}  # one id is left out
             for i, name in enumerate(SPECIALS)]
    doc = {
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated",
                 "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        },
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    }
    (here / "tokenizer.json").write_text(json.dumps(doc, indent=0) + "\n")


main()
