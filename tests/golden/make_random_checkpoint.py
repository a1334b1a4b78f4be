#!/usr/bin/env python3
"""A checkpoint of gpt-oss's true shape with random weights, in the layout that Hugging Face ships.

    make_random_checkpoint.py DIR [--shape 20b|120b] [--layers N] [--device cuda|cpu] [--seed S]

config.json, model.safetensors.index.json and shards: bf16 tensors, and experts in MXFP4 (codes of all
values, scales over five powers of two). Where a sublayer begins, matrices have about 1/sqrt(inputs) as
standard deviation, queries, keys and the router more, so that attention and the choice of experts have
something to say. Where it ends they have a tenth or a fifth of it, so that each adds a little to the residual
stream as in a trained model: with more, bfloat16 alone would make other logits of the same weights.
On an H200 gpt-oss-20b's 13.8 GB take some seconds; DIR may be in /dev/shm.
Needs torch and numpy; what is written depends on the seed and on the device's generator.
"""
import argparse
import concurrent.futures
import json
import os
import time

import torch

SHAPES = {"20b": dict(num_hidden_layers=24, num_local_experts=32),
          "120b": dict(num_hidden_layers=36, num_local_experts=128)}
SCALES = dict(gate_up=(117, 122), down=(113, 118))  # half-open; 2^-10 .. 2^-6 and 2^-14 .. 2^-10
SHARD_BYTES = 1 << 31


def config(shape, layers):
    c = dict(architectures=["GptOssForCausalLM"], attention_bias=True, attention_dropout=0.0, eos_token_id=200002,
             experts_per_token=4, head_dim=64, hidden_act="silu", hidden_size=2880, initial_context_length=4096,
             initializer_range=0.02, intermediate_size=2880, max_position_embeddings=131072, model_type="gpt_oss",
             num_attention_heads=64, num_experts_per_tok=4, num_key_value_heads=8, output_router_logits=False,
             pad_token_id=199999, rms_norm_eps=1e-05, rope_theta=150000, router_aux_loss_coef=0.9,
             sliding_window=128, swiglu_limit=7.0, tie_word_embeddings=False, use_cache=True, vocab_size=201088,
             rope_scaling=dict(beta_fast=32.0, beta_slow=1.0, factor=32.0, original_max_position_embeddings=4096,
                               rope_type="yarn", truncate=False),
             quantization_config=dict(quant_method="mxfp4", modules_to_not_convert=[
                 "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]))
    c.update(SHAPES[shape])
    if layers:
        c["num_hidden_layers"] = layers
    c["layer_types"] = ["full_attention" if n % 2 else "sliding_attention" for n in range(c["num_hidden_layers"])]
    return c


def tensors(c):
    """(name, shape, mean, deviation) of bf16 tensors; deviation None: codes; a name: scales."""
    H, d, E, I, V = (c[k] for k in ("hidden_size", "head_dim", "num_local_experts", "intermediate_size",
                                    "vocab_size"))
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    yield "model.embed_tokens.weight", (V, H), 0, 1
    for n in range(c["num_hidden_layers"]):
        p = f"model.layers.{n}."
        yield p + "input_layernorm.weight", (H,), 1, 0.1
        yield p + "post_attention_layernorm.weight", (H,), 1, 0.1
        for m, rows, size in (("q", q, 1.2), ("k", kv, 1.2), ("v", kv, 1)):
            yield p + f"self_attn.{m}_proj.weight", (rows, H), 0, size * H**-0.5
            yield p + f"self_attn.{m}_proj.bias", (rows,), 0, 0.2
        yield p + "self_attn.o_proj.weight", (H, q), 0, 0.2 * q**-0.5
        yield p + "self_attn.o_proj.bias", (H,), 0, 0.1
        yield p + "self_attn.sinks", (c["num_attention_heads"],), 0, 1
        yield p + "mlp.router.weight", (E, H), 0, 3 * H**-0.5
        yield p + "mlp.router.bias", (E,), 0, 0.1
        for m, rows, cols in (("gate_up", 2 * I, H), ("down", H, I)):
            yield p + f"mlp.experts.{m}_proj_blocks", (E, rows, cols // 32, 16), 0, None
            yield p + f"mlp.experts.{m}_proj_scales", (E, rows, cols // 32), 0, m
            yield p + f"mlp.experts.{m}_proj_bias", (E, rows), 0, 0.1
    yield "model.norm.weight", (H,), 1, 0.1
    yield "lm_head.weight", (V, H), 0, H**-0.5


def count(shape):
    n = 1
    for s in shape:
        n *= s
    return n


def size(t):
    return count(t[1]) * (2 if isinstance(t[3], (int, float)) else 1)


def values(t, seed, device):
    name, shape, mean, deviation = t
    g = torch.Generator(device).manual_seed(seed * 1000003 + sum(ord(ch) * 257**(i % 5) for i, ch in enumerate(name)))
    if deviation is None:
        return torch.randint(-2**63, 2**63 - 1, (count(shape) // 8,), generator=g, device=device)
    if deviation in SCALES:
        return torch.randint(*SCALES[deviation], shape, generator=g, device=device, dtype=torch.uint8)
    return (torch.randn(shape, generator=g, device=device) * deviation + mean).to(torch.bfloat16)


def write(folder, name, shard, seed, device):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for t in shard:
        kind = "BF16" if isinstance(t[3], (int, float)) else "U8"
        header[t[0]] = dict(dtype=kind, shape=list(t[1]), data_offsets=[at, at + size(t)])
        at += size(t)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, name), "wb", buffering=0) as f:
        for piece in [len(text).to_bytes(8, "little"), text]:
            f.write(piece)
        for t in shard:
            data = memoryview(values(t, seed, device).cpu().view(torch.uint8).numpy().reshape(-1))
            assert len(data) == size(t), t
            while data:
                data = data[f.write(data):]


def main():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("folder")
    a.add_argument("--shape", choices=SHAPES, default="20b")
    a.add_argument("--layers", type=int, default=0)
    a.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a.add_argument("--seed", type=int, default=1)
    a = a.parse_args()
    start = time.time()
    os.makedirs(a.folder, exist_ok=True)
    c, shards, fill = config(a.shape, a.layers), [[]], 0
    for t in tensors(c):
        if fill + size(t) > SHARD_BYTES and fill:
            shards.append([])
            fill = 0
        shards[-1].append(t)
        fill += size(t)
    names = [f"model-{i:05}-of-{len(shards) - 1:05}.safetensors" for i in range(len(shards))]
    with open(os.path.join(a.folder, "config.json"), "w") as f:
        json.dump(c, f, indent=1)
    total = sum(size(t) for s in shards for t in s)
    with open(os.path.join(a.folder, "model.safetensors.index.json"), "w") as f:
        json.dump(dict(metadata=dict(total_size=total),
                       weight_map={t[0]: n for n, s in zip(names, shards) for t in s}), f)
    with concurrent.futures.ThreadPoolExecutor(8 if a.device.startswith("cuda") else 1) as pool:
        for done in [pool.submit(write, a.folder, n, s, a.seed, a.device) for n, s in zip(names, shards)]:
            done.result()
    print(f"{a.folder}: {total / 1e9:.2f} GB in {len(shards)} files, {time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
