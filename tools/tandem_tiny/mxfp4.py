"""MXFP4: blocks of 32 values along the last axis, 4-bit floats with one power-of-two scale each."""

import torch

VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
BLOCK = 32


def _round_codes(scaled):
    """Nearest magnitude code (0..7) of non-negative values; ties go to the even code."""
    code = torch.zeros_like(scaled, dtype=torch.int32)
    for index in range(7):
        middle = (VALUES[index] + VALUES[index + 1]) / 2
        above = scaled > middle if index % 2 == 0 else scaled >= middle
        code += above
    return code


def encode(weight):
    """Returns (codes 0..15, exponents) of a float tensor whose last axis is a multiple of 32.

    Of the two power-of-two scales around max/6 the one with the smaller squared error is taken.
    """
    blocks = weight.float().reshape(*weight.shape[:-1], -1, BLOCK)
    peak = blocks.abs().amax(-1, keepdim=True).clamp_min(2.0**-100)
    high = torch.ceil(torch.log2(peak / 6.0)).clamp(-120, 120)
    table = torch.tensor(VALUES, device=weight.device)
    best = None
    for exponent in (high, high - 1):
        scale = torch.exp2(exponent)
        code = _round_codes(blocks.abs() / scale)
        error = (table[code.long()] * scale - blocks.abs()).square().sum(-1, keepdim=True)
        if best is None:
            best = (error, code, exponent)
        else:
            better = error < best[0]
            best = (error, torch.where(better, code, best[1]), torch.where(better, exponent, best[2]))
    _, code, exponent = best
    code = code + 8 * ((blocks < 0) & (code > 0)).int()
    return code, exponent


def decode(code, exponent):
    table = torch.tensor(VALUES + [-v for v in VALUES], device=code.device)
    blocks = table[code.long()] * torch.exp2(exponent)
    return blocks.reshape(*blocks.shape[:-2], -1)


def pack(weight):
    """Checkpoint form: (_blocks uint8 [..., n/32, 16], _scales uint8 [..., n/32])."""
    code, exponent = encode(weight)
    blocks = (code[..., 0::2] | (code[..., 1::2] << 4)).to(torch.uint8)
    return blocks.contiguous(), (exponent[..., 0] + 127).to(torch.uint8).contiguous()


def unpack(blocks, scales):
    code = torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(-2)
    return decode(code, (scales.float() - 127).unsqueeze(-1))


def _rounded(magnitude, scale):
    """Nearest value on the 4-bit grid, ties to the even code, by arithmetic instead of a table."""
    scaled = magnitude / scale
    step = torch.where(scaled < 2, 0.5, torch.where(scaled < 4, 1.0, 2.0))
    return (torch.round(scaled / step) * step).clamp(max=6.0) * scale


def nearest(weight):
    """decode(*encode(weight)), in fewer operations."""
    blocks = weight.float().reshape(*weight.shape[:-1], -1, BLOCK)
    magnitude = blocks.abs()
    peak = magnitude.amax(-1, keepdim=True).clamp_min(2.0**-100)
    high = torch.exp2(torch.ceil(torch.log2(peak / 6.0)).clamp(-120, 120))
    first, second = _rounded(magnitude, high), _rounded(magnitude, high / 2)
    first_error = (first - magnitude).square().sum(-1, keepdim=True)
    second_error = (second - magnitude).square().sum(-1, keepdim=True)
    return torch.copysign(torch.where(second_error < first_error, second, first), blocks).reshape(weight.shape)


def fake_quantise(weight):
    """Rounded values forward, identity gradient backward."""
    with torch.no_grad():
        rounded = nearest(weight)
    return weight + (rounded - weight).detach()
