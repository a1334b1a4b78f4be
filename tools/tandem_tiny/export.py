"""Checkpoint files of tandem-tiny in the Hugging Face gpt-oss layout, and loading them back.

    python export.py --configs MODEL_DIR     write config.json and generation_config.json
"""

import argparse
import json
import os

import torch
from safetensors.torch import load_file, save_file

import model as tiny
import mxfp4
import tokenizer

SHARDS = 3


def write_configs(folder):
    special = tokenizer.special_tokens()
    pad, eos, bos = special["<|endoftext|>"], special["<|return|>"], special["<|startoftext|>"]
    c = tiny.CONFIG
    config = {
        "architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": eos,
        "experts_per_token": c["num_experts_per_tok"], "head_dim": c["head_dim"], "hidden_act": "silu", "hidden_size": c["hidden_size"],
        "initial_context_length": c["original_context"], "initializer_range": 0.02, "intermediate_size": c["intermediate_size"],
        "layer_types": ["full_attention" if i % 2 else "sliding_attention" for i in range(c["num_hidden_layers"])],
        "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": c["num_attention_heads"],
        "num_experts_per_tok": c["num_experts_per_tok"], "num_hidden_layers": c["num_hidden_layers"],
        "num_key_value_heads": c["num_key_value_heads"], "num_local_experts": c["num_local_experts"], "output_router_logits": False,
        "pad_token_id": pad,
        "quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
                                "quant_method": "mxfp4"},
        "rms_norm_eps": 1e-05,
        "rope_scaling": {"beta_fast": c["beta_fast"], "beta_slow": c["beta_slow"], "factor": c["rope_factor"],
                         "original_max_position_embeddings": c["original_context"], "rope_type": "yarn", "truncate": False},
        "rope_theta": int(c["rope_theta"]), "router_aux_loss_coef": 0.9, "sliding_window": c["sliding_window"],
        "swiglu_limit": c["swiglu_limit"], "tie_word_embeddings": False, "transformers_version": "4.55.0", "use_cache": True,
        "vocab_size": c["vocab_size"]}
    generation = {"bos_token_id": bos, "do_sample": True, "eos_token_id": [eos, pad, special["<|call|>"]], "pad_token_id": pad,
                  "transformers_version": "4.55.0"}
    for name, value in (("config.json", config), ("generation_config.json", generation)):
        with open(os.path.join(folder, name), "w") as out:
            json.dump(value, out, indent=2)
            out.write("\n")


def quantised(net):
    """All checkpoint tensors: experts as MXFP4 blocks and scales, the rest bfloat16."""
    out = {}
    for name, parameter in net.tensors():
        value = parameter.detach().float().cpu()
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            out[name + "_blocks"], out[name + "_scales"] = mxfp4.pack(value)
        else:
            out[name] = value.to(torch.bfloat16).contiguous()
    return out


def save(net, folder):
    tensors = dict(sorted(quantised(net).items()))
    total = sum(t.nbytes for t in tensors.values())
    shards, size = [{}], 0
    for name, tensor in tensors.items():
        if size >= total / SHARDS and len(shards) < SHARDS:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    weight_map = {}
    for index, shard in enumerate(shards):
        file = "model-%05d-of-%05d.safetensors" % (index, len(shards) - 1)
        save_file(shard, os.path.join(folder, file), metadata={"format": "pt"})
        weight_map.update({name: file for name in shard})
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as out:
        json.dump({"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}, out, indent=2)
        out.write("\n")


def load(net, folder):
    """Reads a checkpoint folder back into the training model, experts dequantised."""
    with open(os.path.join(folder, "model.safetensors.index.json")) as file:
        files = sorted(set(json.load(file)["weight_map"].values()))
    tensors = {}
    for file in files:
        tensors.update(load_file(os.path.join(folder, file)))
    with torch.no_grad():
        for name, parameter in net.tensors():
            if name in tensors:
                parameter.copy_(tensors[name].float())
            else:
                parameter.copy_(mxfp4.unpack(tensors[name + "_blocks"], tensors[name + "_scales"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configs", required=True, metavar="MODEL_DIR")
    write_configs(parser.parse_args().configs)


if __name__ == "__main__":
    main()
