#!/usr/bin/env python3
"""Golden numbers from Transformers' GptOssForCausalLM (float32, eager attention).

    make_golden.py make            two small random checkpoints under tests/golden/data, recorded
    make_golden.py record DIR OUT  any checkpoint folder in the Hugging Face layout

Needs torch (CPU), transformers >= 5, safetensors, numpy. The checkpoints are published-layout folders
with MXFP4 experts; what the model sees is the exactly dequantised weights, so a server that reads the
folder must reproduce these logits up to float32 rounding.

A .golden file, little endian, i32 unless noted: "TDGOLD2\\0", vocab, n_cases; per case n_prompt,
n_rows, n_greedy, prompt ids, rows (positions whose logits follow), then twice f32 logits [n_rows,
vocab] and greedy continuation ids: as computed, and with keys (after RoPE) and values rounded to
bf16 before attention sees them, as a bf16 cache does.
"""
import argparse
import json
import os
import struct

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.models.gpt_oss import modeling_gpt_oss as modeling

HERE = os.path.dirname(os.path.abspath(__file__))
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
GREEDY = 256
EAGER = modeling.eager_attention_forward


def dequantise(blocks, scales):
    """[E, rows, K/32, 16] bytes and [E, rows, K/32] exponents to [E, rows, K] floats, exactly."""
    low, high = FP4[(blocks & 15).long()], FP4[(blocks >> 4).long()]
    values = torch.stack((low, high), dim=-1).flatten(-2)  # low nibble first
    values = torch.ldexp(values, (scales.int() - 127).unsqueeze(-1))
    return values.flatten(-2)


def load(folder):
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
    tensors = {}
    for name in files:
        with safe_open(os.path.join(folder, name), "pt") as f:
            tensors.update({k: f.get_tensor(k) for k in f.keys()})
    state = {}
    for name, t in tensors.items():
        if name.endswith("_scales"):
            continue
        if name.endswith("_blocks"):
            t = dequantise(t, tensors[name[: -len("blocks")] + "scales"])
            name, t = name[: -len("_blocks")], t.transpose(1, 2).contiguous()
        state[name] = t.float()
    model = GptOssForCausalLM(config)
    model.load_state_dict(state, strict=True)
    return model.float().eval()


@torch.no_grad()
def run(model, prompt, rows):
    """Logits of some rows, a greedy continuation, and its smallest margin."""
    cache, ids, greedy, margin = None, torch.tensor([prompt]), [], float("inf")
    while True:
        r = model(input_ids=ids, past_key_values=cache, use_cache=True)
        if cache is None:
            logits = r.logits[0, rows].float().numpy()
        cache = r.past_key_values
        if len(greedy) == GREEDY:
            return logits, greedy, margin
        top = r.logits[0, -1].float().topk(2).values
        margin = min(margin, (top[0] - top[1]).item())
        greedy.append(int(r.logits[0, -1].argmax()))
        ids = torch.tensor([[greedy[-1]]])


def rounded(module, query, key, value, *args, **kwargs):
    key, value = key.bfloat16().float(), value.bfloat16().float()
    return EAGER(module, query, key, value, *args, **kwargs)


def record(model, prompts, out):
    vocab = model.config.vocab_size
    body = b""
    for prompt in prompts:
        n = len(prompt)
        rows = {n // 2, n - 1}
        if vocab < 1000:  # as many as stay small
            rows |= {0, 1, min(n - 1, 127), min(n - 1, 128), n - 2}
        rows = sorted(rows)
        body += struct.pack("<3i", n, len(rows), GREEDY) + np.array(prompt + rows, "<i4").tobytes()
        for kind, attention in (("f32", EAGER), ("bf16", rounded)):
            modeling.eager_attention_forward = attention
            logits, greedy, margin = run(model, prompt, rows)
            body += logits.astype("<f4").tobytes() + np.array(greedy, "<i4").tobytes()
            print(f"{out}: prompt of {n}, {kind} cache: {len(set(greedy))} different tokens, "
                  f"smallest margin {margin:.2e}, largest logit {np.abs(logits).max():.3f}")
    modeling.eager_attention_forward = EAGER
    with open(out, "wb") as f:
        f.write(b"TDGOLD2\0" + struct.pack("<2i", vocab, len(prompts)) + body)


def make(name, seed, lengths, **config):
    """A random checkpoint in the published layout, and its golden file."""
    rng = np.random.default_rng(seed)
    c = dict(architectures=["GptOssForCausalLM"], model_type="gpt_oss", attention_bias=True,
             rms_norm_eps=1e-5, swiglu_limit=7.0, sliding_window=128, rope_theta=150000,
             tie_word_embeddings=False, max_position_embeddings=131072, hidden_act="silu",
             eos_token_id=0, pad_token_id=1, quantization_config={"quant_method": "mxfp4"})
    c.update(config)
    H, d, E, I, V = (c[k] for k in ("hidden_size", "head_dim", "num_local_experts",
                                    "intermediate_size", "vocab_size"))
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    tensors = {}

    def bf16(key, *shape, scale=1.0, base=0.0):
        x = base + scale * rng.standard_normal(shape)
        tensors[key] = torch.tensor(x, dtype=torch.float32).to(torch.bfloat16)

    def mxfp4(key, rows, cols, spread):
        tensors[key + "_blocks"] = torch.tensor(
            rng.integers(0, 256, (E, rows, cols // 32, 16), dtype=np.uint8))
        tensors[key + "_scales"] = torch.tensor(
            rng.integers(spread[0], spread[1], (E, rows, cols // 32), dtype=np.uint8))

    bf16("model.embed_tokens.weight", V, H)
    bf16("model.norm.weight", H, scale=0.1, base=1)
    bf16("lm_head.weight", V, H, scale=0.3)
    for n in range(c["num_hidden_layers"]):
        p = f"model.layers.{n}."
        bf16(p + "input_layernorm.weight", H, scale=0.1, base=1)
        bf16(p + "post_attention_layernorm.weight", H, scale=0.1, base=1)
        for m, rows in (("q", q), ("k", kv), ("v", kv)):
            bf16(p + f"self_attn.{m}_proj.weight", rows, H, scale=0.15)
            bf16(p + f"self_attn.{m}_proj.bias", rows, scale=0.2)
        bf16(p + "self_attn.o_proj.weight", H, q, scale=0.1)
        bf16(p + "self_attn.o_proj.bias", H, scale=0.2)
        bf16(p + "self_attn.sinks", c["num_attention_heads"])
        bf16(p + "mlp.router.weight", E, H, scale=0.3)
        bf16(p + "mlp.router.bias", E, scale=0.2)
        mxfp4(p + "mlp.experts.gate_up_proj", 2 * I, H, (122, 126))
        bf16(p + "mlp.experts.gate_up_proj_bias", E, 2 * I, scale=0.2)
        mxfp4(p + "mlp.experts.down_proj", H, I, (120, 124))
        bf16(p + "mlp.experts.down_proj_bias", E, H, scale=0.2)
    folder = os.path.join(HERE, "data", name)
    os.makedirs(folder, exist_ok=True)
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(c, f, indent=1)
        f.write("\n")
    prompts = [rng.integers(0, V, n).tolist() for n in lengths]
    record(load(folder), prompts, os.path.join(HERE, "data", name + ".golden"))


def rope(original):
    return dict(rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0,
                original_max_position_embeddings=original, truncate=False)


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sub = args.add_subparsers(dest="command", required=True)
    sub.add_parser("make")
    rec = sub.add_parser("record")
    rec.add_argument("folder")
    rec.add_argument("out")
    rec.add_argument("--lengths", type=int, nargs="*", default=[300], help="of random prompts")
    rec.add_argument("--text", nargs="*", default=[], help="prompts for the folder's tokenizer.json")
    a = args.parse_args()
    torch.set_num_threads(1)  # the models are too small to share out
    if a.command == "record":
        model = load(a.folder)
        rng = np.random.default_rng(1)
        prompts = [rng.integers(0, model.config.vocab_size, n).tolist() for n in a.lengths]
        if a.text:
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_file(os.path.join(a.folder, "tokenizer.json"))
            prompts += [tokenizer.encode(t, add_special_tokens=False).ids for t in a.text]
        record(model, prompts, a.out)
        return
    # Within the original context; groups of two query heads.
    make("published", 1, [5, 200], num_hidden_layers=2, hidden_size=64, num_attention_heads=8,
         num_key_value_heads=4, head_dim=16, num_local_experts=4, num_experts_per_tok=2,
         experts_per_token=2, intermediate_size=64, vocab_size=128, rope_scaling=rope(4096),
         layer_types=["sliding_attention", "full_attention"])
    # Prompts past the window and past YaRN's original context; four of eight experts.
    make("stretched", 2, [300, 700], num_hidden_layers=2, hidden_size=64, num_attention_heads=4,
         num_key_value_heads=2, head_dim=32, num_local_experts=8, num_experts_per_tok=4,
         experts_per_token=4, intermediate_size=32, vocab_size=96, rope_scaling=rope(256),
         layer_types=["sliding_attention", "full_attention"])


if __name__ == "__main__":
    main()
