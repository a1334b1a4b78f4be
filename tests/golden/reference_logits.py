#!/usr/bin/env python3
"""Logits of Transformers' GptOssForCausalLM for a checkpoint of any size, in float32 and in bfloat16.

    reference_logits.py DIR OUT [--lengths 1 127 128 129 1000 8192] [--device cuda|cpu] [--check]

The experts are dequantised exactly. The float32 run is the reference; the bfloat16 run is what a bf16
implementation loses against it, and so the measure for compare_logits. Attention is Transformers' eager
one (it knows the sinks), called for blocks of queries so that scores of long prompts fit. --check
compares the weights with what from_pretrained() makes of the folder with its own dequantisation. A 20b
needs 84 GB on the device, and its longest prompt some seconds.

OUT, little endian, i32 unless noted: "TDREF1\\0\\0", vocab, n_cases; per case n_tokens, n_rows, tokens,
rows (positions whose logits follow), f32 [n_rows, vocab] of the float32 run, the same of the bfloat16 run.
Rows are the last 64 positions and up to 64 more, evenly spaced.
"""
import argparse
import json
import os
import struct
import time

import numpy as np
import torch
from safetensors import safe_open
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.models.gpt_oss import modeling_gpt_oss as modeling

EAGER = modeling.eager_attention_forward
QUERIES = 512  # in one call of eager attention
FP4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def attention(module, query, key, value, mask, scaling, dropout=0.0, **kwargs):
    out = []
    for at in range(0, query.shape[2], QUERIES):
        part = mask[:, :, at:at + QUERIES] if mask is not None else None
        out.append(EAGER(module, query[:, :, at:at + QUERIES], key, value, part, scaling, dropout, **kwargs)[0])
    return torch.cat(out, dim=1), None


def dequantise(blocks, scales):
    """[E, rows, K/32, 16] bytes and [E, rows, K/32] exponents to [E, K, rows] floats, exactly."""
    table = torch.tensor(FP4, device=blocks.device)
    values = torch.stack((table[(blocks & 15).int()], table[(blocks >> 4).int()]), dim=-1)  # low nibble first
    values = torch.ldexp(values.flatten(-2), (scales.int() - 127).unsqueeze(-1))
    return values.flatten(-2).transpose(1, 2).contiguous()


def load(folder, device):
    with open(os.path.join(folder, "config.json")) as f:
        raw = json.load(f)
    raw.pop("quantization_config", None)
    config = GptOssConfig(**raw)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    index = os.path.join(folder, "model.safetensors.index.json")
    files = ["model.safetensors"]
    if os.path.exists(index):
        with open(index) as f:
            files = sorted(set(json.load(f)["weight_map"].values()))
    state, halves = {}, {}
    for name in files:
        with safe_open(os.path.join(folder, name), "pt", device=device) as f:
            for key in f.keys():
                if not key.endswith(("_blocks", "_scales")):
                    state[key] = f.get_tensor(key).float()
                    continue
                stem = key.rsplit("_", 1)[0]
                halves.setdefault(stem, {})[key.rsplit("_", 1)[1]] = f.get_tensor(key)
                if len(halves[stem]) == 2:
                    state[stem] = dequantise(**halves.pop(stem))
    with torch.device("meta"):
        model = GptOssForCausalLM(config)
    model.load_state_dict(state, strict=True, assign=True)
    model.model.rotary_emb = modeling.GptOssRotaryEmbedding(config).to(device)  # not in the files
    return model.eval()


def check(model, folder):
    own = GptOssForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).state_dict()
    for name, t in model.state_dict().items():
        assert torch.equal(t.cpu(), own[name].cpu().float()), name
    print(f"the weights are those of from_pretrained(): {len(own)} tensors equal")


@torch.no_grad()
def run(model, tokens, rows, device):
    ids, keep = torch.tensor([tokens], device=device), torch.tensor(rows, device=device)
    return model(input_ids=ids, use_cache=False, logits_to_keep=keep).logits[0].float().cpu().numpy()


def main():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("folder")
    a.add_argument("out")
    a.add_argument("--lengths", type=int, nargs="*", default=[1, 127, 128, 129, 1000, 8192])
    a.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a.add_argument("--check", action="store_true")
    a = a.parse_args()
    start = time.time()
    model = load(a.folder, a.device)
    print(f"loaded in {time.time() - start:.1f} s")
    if a.check:
        check(model, a.folder)
    modeling.eager_attention_forward = attention
    vocab, rng, cases = model.config.vocab_size, np.random.default_rng(1), []
    for n in a.lengths:
        rows = sorted(set(range(max(0, n - 64), n)) | set(np.linspace(0, n - 1, 64).astype(int).tolist()))
        cases.append((rng.integers(0, vocab, n).tolist(), rows))
    logits = []
    for dtype in (torch.float32, torch.bfloat16):
        start = time.time()
        for p in model.parameters():
            p.data = p.data.to(dtype)
        logits.append([run(model, tokens, rows, a.device) for tokens, rows in cases])
        print(f"{dtype}: {time.time() - start:.1f} s")
    with open(a.out, "wb") as f:
        f.write(b"TDREF1\0\0" + struct.pack("<2i", vocab, len(cases)))
        for (tokens, rows), exact, bf16 in zip(cases, *logits):
            f.write(struct.pack("<2i", len(tokens), len(rows)) + np.array(tokens + rows, "<i4").tobytes())
            f.write(exact.astype("<f4").tobytes() + bf16.astype("<f4").tobytes())
            error = np.sqrt(np.mean((bf16 - exact)**2)) / exact.std()
            same = (bf16.argmax(1) == exact.argmax(1)).mean()
            print(f"{len(tokens)} tokens, {len(rows)} rows: logits deviate by {exact.std():.3f}, bf16 from f32 by "
                  f"{error:.4f} of that; {same:.3f} have the same largest")


if __name__ == "__main__":
    main()
