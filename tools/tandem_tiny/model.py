"""The gpt-oss architecture at tandem-tiny's size, written for fast training.

Parameter names follow the Hugging Face checkpoint, except that expert matrices are kept as
[expert, out, in] (the axis order of the MXFP4 blocks). All experts are computed for every token
and weighted by the router, which for eight small experts is faster than sorting tokens.
"""

import functools
import math

import torch
import torch.nn.functional as F
from torch import nn

import mxfp4

CONFIG = dict(
    vocab_size=2048, hidden_size=256, intermediate_size=256, num_hidden_layers=4, num_attention_heads=16, num_key_value_heads=8,
    head_dim=64, num_local_experts=8, num_experts_per_tok=4, sliding_window=128, swiglu_limit=7.0, rms_norm_eps=1e-5,
    rope_theta=150000.0, rope_factor=32.0, beta_fast=32.0, beta_slow=1.0, original_context=4096)
ALPHA = 1.702


def rope_tables(length, config=CONFIG, device=None):
    """YaRN cosines and sines [length, head_dim / 2], the concentration factor included."""
    half = config["head_dim"] // 2
    base, factor = config["rope_theta"], config["rope_factor"]
    index = torch.arange(half, dtype=torch.float64)
    extrapolation = base ** (-index / half)
    bound = lambda beta: half * math.log(config["original_context"] / (beta * 2 * math.pi)) / math.log(base)
    low, high = bound(config["beta_fast"]), bound(config["beta_slow"])
    ramp = ((index - low) / (high - low)).clamp(0, 1)
    frequency = extrapolation / factor * ramp + extrapolation * (1 - ramp)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
    concentration = 0.1 * math.log(factor) + 1
    return (angle.cos() * concentration).float().to(device), (angle.sin() * concentration).float().to(device)


def rotate(x, cos, sin):
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def swiglu(gate, up, limit=CONFIG["swiglu_limit"]):
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(ALPHA * gate) * (up + 1)


def rms_norm(x, weight, epsilon=CONFIG["rms_norm_eps"]):
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight


def full_attention(q, k, v, sinks):
    """Causal attention with sinks through a flash kernel: one more key at position 0 whose score is
    the sink (an extra head dimension carries it) and whose value is zero."""
    b, h, s, d = q.shape
    pad = 8
    q = torch.cat([q, sinks.to(q.dtype).view(1, h, 1, 1).expand(b, h, s, 1), q.new_zeros(b, h, s, pad - 1)], -1)
    k, v = F.pad(k, (0, pad)), F.pad(v, (0, pad))
    sink_key = k.new_zeros(b, h, 1, d + pad)
    sink_key[..., d] = math.sqrt(d)
    q = torch.cat([q.new_zeros(b, h, 1, d + pad), q], 2)
    k = torch.cat([sink_key, k], 2)
    v = torch.cat([torch.zeros_like(sink_key), v], 2)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1 / math.sqrt(d))[:, :, 1:, :d]


@functools.lru_cache(maxsize=None)
def window_bias(window, dtype, device):
    """Additive mask [window, 8 + 2 * window]: the sink, seven empty columns, the chunk before, the chunk."""
    row, col = torch.arange(window)[:, None], torch.arange(2 * window)[None]
    allowed = torch.cat([torch.ones(window, 1, dtype=torch.bool), torch.zeros(window, 7, dtype=torch.bool),
                         (col > row) & (col <= row + window)], 1)
    return torch.zeros(allowed.shape).masked_fill(~allowed, -1e4).to(device=device, dtype=dtype)


def sliding_attention(q, k, v, sinks, window):
    """Window attention by chunks of the window: each chunk sees the sink, the chunk before and itself.
    Two more head dimensions carry the sink's score and rule out the chunk before the first."""
    b, h, s, d = q.shape
    n, pad = s // window, 8
    extra = torch.zeros(h, pad, dtype=q.dtype, device=q.device)
    extra[:, 1] = 1.0
    extra = torch.cat([sinks.to(q.dtype).view(h, 1), extra[:, 1:]], 1).view(1, h, 1, pad).expand(b, h, s, pad)
    q = torch.cat([q, extra], -1)

    def with_context(x, is_key):
        x = F.pad(x, (0, pad)).reshape(b, h, n, window, d + pad)
        head = x.new_zeros(b, h, 1, window, d + pad)
        sink = x.new_zeros(b, h, n, 8, d + pad)
        if is_key:
            head[..., d + 1] = -8e4
            sink[..., 0, d] = math.sqrt(d)
        return torch.cat([sink, torch.cat([head, x[:, :, :-1]], 2), x], 3).transpose(1, 2).flatten(0, 1)

    q = q.reshape(b, h, n, window, d + pad).transpose(1, 2).flatten(0, 1)
    bias = window_bias(window, q.dtype, q.device).expand(b * n, h, window, 8 + 2 * window)
    out = F.scaled_dot_product_attention(q, with_context(k, True), with_context(v, False), attn_mask=bias, scale=1 / math.sqrt(d))
    return out[..., :d].unflatten(0, (b, n)).transpose(1, 2).reshape(b, h, s, d)


class Layer(nn.Module):
    def __init__(self, index, config):
        super().__init__()
        self.config, self.sliding = config, index % 2 == 0
        hidden, inner, experts = config["hidden_size"], config["intermediate_size"], config["num_local_experts"]
        q_width = config["num_attention_heads"] * config["head_dim"]
        kv_width = config["num_key_value_heads"] * config["head_dim"]
        depth_scale = 1 / math.sqrt(2 * config["num_hidden_layers"])
        matrix = lambda *shape, scale=1.0: nn.Parameter(torch.randn(*shape) * scale / math.sqrt(shape[-1]))
        vector = lambda *shape: nn.Parameter(torch.zeros(*shape))
        self.names = {
            "input_layernorm.weight": nn.Parameter(torch.ones(hidden)), "post_attention_layernorm.weight": nn.Parameter(torch.ones(hidden)),
            "self_attn.q_proj.weight": matrix(q_width, hidden), "self_attn.q_proj.bias": vector(q_width),
            "self_attn.k_proj.weight": matrix(kv_width, hidden), "self_attn.k_proj.bias": vector(kv_width),
            "self_attn.v_proj.weight": matrix(kv_width, hidden), "self_attn.v_proj.bias": vector(kv_width),
            "self_attn.o_proj.weight": matrix(hidden, q_width, scale=depth_scale), "self_attn.o_proj.bias": vector(hidden),
            "self_attn.sinks": vector(config["num_attention_heads"]),
            "mlp.router.weight": matrix(experts, hidden), "mlp.router.bias": vector(experts),
            "mlp.experts.gate_up_proj": matrix(experts, 2 * inner, hidden), "mlp.experts.gate_up_proj_bias": vector(experts, 2 * inner),
            "mlp.experts.down_proj": matrix(experts, hidden, inner, scale=depth_scale), "mlp.experts.down_proj_bias": vector(experts, hidden),
        }
        for name, parameter in self.names.items():
            self.register_parameter(name.replace(".", "__"), parameter)

    def attention(self, x, cos, sin):
        c, p = self.config, self.names
        b, s, _ = x.shape
        t = rms_norm(x, p["input_layernorm.weight"])
        heads = lambda part: F.linear(t, p["self_attn.%s_proj.weight" % part], p["self_attn.%s_proj.bias" % part]).view(
            b, s, -1, c["head_dim"]).transpose(1, 2)
        q, k, v = rotate(heads("q"), cos, sin), rotate(heads("k"), cos, sin), heads("v")
        group = c["num_attention_heads"] // c["num_key_value_heads"]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        sinks = p["self_attn.sinks"]
        out = sliding_attention(q, k, v, sinks, c["sliding_window"]) if self.sliding else full_attention(q, k, v, sinks)
        return F.linear(out.transpose(1, 2).reshape(b, s, -1), p["self_attn.o_proj.weight"], p["self_attn.o_proj.bias"])

    def experts(self, x, quantise, real):
        c, p = self.config, self.names
        t = rms_norm(x, p["post_attention_layernorm.weight"])
        scores = F.linear(t, p["mlp.router.weight"], p["mlp.router.bias"]).float()
        top, chosen = scores.topk(c["num_experts_per_tok"], dim=-1)
        weights = torch.zeros_like(scores).scatter(-1, chosen, top.softmax(-1))
        w1, w2 = p["mlp.experts.gate_up_proj"], p["mlp.experts.down_proj"]
        if quantise:
            w1, w2 = mxfp4.fake_quantise(w1), mxfp4.fake_quantise(w2)
        b1 = p["mlp.experts.gate_up_proj_bias"]
        half = lambda start: F.linear(t, w1[:, start::2].flatten(0, 1), b1[:, start::2].flatten())
        active = swiglu(half(0), half(1)).unflatten(-1, (c["num_local_experts"], -1))
        active = active * weights.unsqueeze(-1).to(active.dtype)
        out = F.linear(active.flatten(-2), w2.transpose(0, 1).flatten(1)) + weights @ p["mlp.experts.down_proj_bias"]
        # Load balance: share of the choices times mean probability, smallest when uniform.
        share = ((weights > 0).float() * real).sum((0, 1)) / real.sum() / c["num_experts_per_tok"]
        chance = (scores.softmax(-1) * real).sum((0, 1)) / real.sum()
        return out, c["num_local_experts"] * (share.detach() * chance).sum(), share.detach()


class TandemTiny(nn.Module):
    def __init__(self, config=CONFIG):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Parameter(torch.randn(config["vocab_size"], config["hidden_size"]))
        self.layers = nn.ModuleList(Layer(i, config) for i in range(config["num_hidden_layers"]))
        self.norm = nn.Parameter(torch.ones(config["hidden_size"]))
        self.lm_head = nn.Parameter(torch.randn(config["vocab_size"], config["hidden_size"]) * 0.02)

    @functools.lru_cache(maxsize=None)
    def tables(self, length, device):
        return rope_tables(length, self.config, device)

    def forward(self, ids, quantise=False, positions=None):
        """ids [batch, length], padded with -1 at the end. Returns (logits, balance loss, expert shares);
        with `positions` (flat indices) only those rows of the logits are computed."""
        b, s = ids.shape
        window = self.config["sliding_window"]
        ids = F.pad(ids, (0, -s % window), value=-1)
        real = (ids >= 0).float().unsqueeze(-1)
        cos, sin = self.tables(ids.shape[1], ids.device)
        x = F.embedding(ids.clamp_min(0), self.embed_tokens)
        balance, shares = 0.0, []
        for layer in self.layers:
            x = x + layer.attention(x, cos, sin)
            out, loss, share = layer.experts(x, quantise, real)
            x, balance = x + out, balance + loss
            shares.append(share)
        x = x[:, :s]
        if positions is not None:
            x = x.reshape(b * s, -1)[positions]
        return F.linear(rms_norm(x, self.norm), self.lm_head), balance, torch.stack(shares)

    def tensors(self):
        """(checkpoint name, parameter) of every tensor; experts not yet quantised."""
        yield "model.embed_tokens.weight", self.embed_tokens
        for index, layer in enumerate(self.layers):
            for name, parameter in layer.names.items():
                yield "model.layers.%d.%s" % (index, name), parameter
        yield "model.norm.weight", self.norm
        yield "lm_head.weight", self.lm_head
