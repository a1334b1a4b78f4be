"""Byte-level BPE tokenizer of tandem-tiny: training, and encoding of rendered segments.

Ids are ranks: single bytes are 0..255, merge k makes id 256+k, so "merge the adjacent pair whose
bytes have the lowest id" and the merges list give the same result. Control tokens sit at the top
of the vocabulary in the order of o200k_harmony.

    python tokenizer.py --out MODEL_DIR [--samples 60000] [--seed 11]
"""

import argparse
import collections
import functools
import heapq
import json
import os
import random

import regex
import tokenizers

import data
import harmony

VOCAB_SIZE = 2048
SPECIAL_BASE = VOCAB_SIZE - 32
SPECIAL_NAMES = {0: "startoftext", 1: "endoftext", 4: "return", 5: "constrain", 7: "channel", 8: "start", 9: "end", 10: "message", 14: "call"}
PATTERN = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


def special_tokens():
    names = [SPECIAL_NAMES.get(i, "reserved_%d" % (SPECIAL_BASE + i)) for i in range(VOCAB_SIZE - SPECIAL_BASE)]
    return {"<|%s|>" % name: SPECIAL_BASE + i for i, name in enumerate(names)}


def byte_characters():
    """The printable stand-ins that byte-level BPE files use for bytes, in id order."""
    plain = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    rest = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


# ---------------------------------------------------------------- training

def mergeable(left, right, words):
    """Numbers stay single digits, and a letter never joins a mark or a space before it, so that a
    word has the same tokens wherever it stands (names can then be copied token by token). The one
    exception is a space before a whole common lower-case word."""
    joined = left + right
    if any(48 <= b <= 57 for b in joined):
        return False
    if left == b" " and right in words:
        return True
    letters = [65 <= b <= 90 or 97 <= b <= 122 or b >= 128 for b in joined]
    return all(letters) or not any(letters)


def common_words(pieces, least):
    words = set()
    for piece, count in pieces.items():
        if piece[:1] == b" " and len(piece) > 2 and count >= least and piece[1:].isalpha() and piece[1:].islower():
            words.add(piece[1:])
    return words


def train_merges(pieces, count):
    """Greedy BPE over {piece bytes: weight}; ties go to the byte-wise smaller pair."""
    words = common_words(pieces, sorted(pieces.values())[-700])
    splits = [[bytes([b]) for b in piece] for piece in pieces]
    weights = list(pieces.values())
    totals, where = collections.Counter(), collections.defaultdict(set)
    for index, parts in enumerate(splits):
        for pair in zip(parts, parts[1:]):
            totals[pair] += weights[index]
            where[pair].add(index)
    heap = [(-total, pair) for pair, total in totals.items()]
    heapq.heapify(heap)
    merges, made = [], set()
    while len(merges) < count:
        negative, pair = heapq.heappop(heap)
        if totals[pair] != -negative or not mergeable(*pair, words):
            continue
        joined = pair[0] + pair[1]
        assert joined not in made, "two ways to make one token"
        made.add(joined)
        merges.append(pair)
        touched = set()
        for index in list(where[pair]):
            parts = splits[index]
            for old in zip(parts, parts[1:]):
                totals[old] -= weights[index]
                where[old].discard(index)
                touched.add(old)
            merged, i = [], 0
            while i < len(parts):
                if i + 1 < len(parts) and (parts[i], parts[i + 1]) == pair:
                    merged.append(joined)
                    i += 2
                else:
                    merged.append(parts[i])
                    i += 1
            splits[index] = merged
            for new in zip(merged, merged[1:]):
                totals[new] += weights[index]
                where[new].add(index)
                touched.add(new)
        for changed in touched:
            if totals[changed] > 0:
                heapq.heappush(heap, (-totals[changed], changed))
    return merges


def build(samples, seed):
    rng = random.Random(seed)
    splitter = regex.compile(PATTERN)
    counts = collections.Counter()
    for _ in range(samples):
        conv = data.sample(rng)
        for is_special, value in harmony.render_prompt(conv) + harmony.render_completion(conv["target"]):
            if not is_special:
                counts.update(splitter.findall(value))
    # The square root keeps the fixed system text from taking every merge.
    pieces = {piece.encode(): int(count**0.5 * 16) for piece, count in sorted(counts.items()) if count > 1}
    merges = train_merges(pieces, SPECIAL_BASE - 256)
    names = byte_characters()
    shown = lambda raw: "".join(names[b] for b in raw)
    vocab = {char: index for index, char in enumerate(names.values())}
    for left, right in merges:
        vocab[shown(left + right)] = len(vocab)
    added = [{"id": i, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for name, i in special_tokens().items()]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": True, "vocab": vocab,
                  "merges": [[shown(left), shown(right)] for left, right in merges]}}


# ---------------------------------------------------------------- use

class Encoder:
    """Encodes segments: control tokens by name, text always as ordinary text."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            spec = json.load(file)
        self.special = {token["content"]: token["id"] for token in spec["added_tokens"]}
        self.names = {i: name for name, i in self.special.items()}
        ordinary = dict(spec, added_tokens=[])
        self.ordinary = tokenizers.Tokenizer.from_str(json.dumps(ordinary))
        self.text_ids = functools.lru_cache(maxsize=4096)(lambda value: self.ordinary.encode(value, add_special_tokens=False).ids)

    def letter_tokens(self):
        """Every token of at least two ASCII letters."""
        words = (name for name, _ in sorted(self.ordinary.get_vocab().items()))
        return [word for word in words if len(word) > 1 and word.isascii() and word.isalpha()]

    def encode(self, segments):
        ids = []
        for is_special, value in segments:
            if is_special:
                ids.append(self.special[value])
            elif len(value) < 400:
                ids += self.text_ids(value)
            else:
                ids += self.ordinary.encode(value, add_special_tokens=False).ids
        return ids

    def decode(self, ids):
        out, run = [], []
        for i in ids:
            if i in self.names:
                out += [self.ordinary.decode(run), self.names[i]]
                run = []
            else:
                run.append(i)
        return "".join(out + [self.ordinary.decode(run)])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--samples", type=int, default=60000)
    parser.add_argument("--seed", type=int, default=11)
    args = parser.parse_args()
    spec = build(args.samples, args.seed)
    names = special_tokens()
    with open(os.path.join(args.out, "tokenizer.json"), "w", encoding="utf-8") as out:
        json.dump(spec, out, ensure_ascii=False, indent=1)
        out.write("\n")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, "model_max_length": 131072,
        "bos_token": "<|startoftext|>", "eos_token": "<|return|>", "pad_token": "<|endoftext|>",
        "model_input_names": ["input_ids", "attention_mask"],
        "added_tokens_decoder": {str(i): {"content": name, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                                          "special": True} for name, i in names.items()}}
    with open(os.path.join(args.out, "tokenizer_config.json"), "w", encoding="utf-8") as out:
        json.dump(config, out, indent=2)
        out.write("\n")
    print("%d tokens, %d merges" % (len(spec["model"]["vocab"]), len(spec["model"]["merges"])))


if __name__ == "__main__":
    main()
