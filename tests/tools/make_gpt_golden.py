#!/usr/bin/env python3
"""Writes tests/data/gpt_golden: right values for train_gpt's decoder from PyTorch.

Everything is computed in float64 and stored as float32; a float32 run of the same model must agree,
so that a mistake of this script that depends on precision would show. Run it from anywhere:

    python3 tests/tools/make_gpt_golden.py
"""

import json
import pathlib

import torch
import torch.nn.functional as F

CONFIG = dict(layers=2, hidden=32, heads=4, kv_heads=2, ffn=48, vocab=64, sequence=16,
              rope_theta=10000.0, norm_eps=1e-5)
BATCH = 2
OUTPUT = pathlib.Path(__file__).resolve().parent.parent / "data" / "gpt_golden"


def tensor_shapes():
    hidden, ffn, vocab = CONFIG["hidden"], CONFIG["ffn"], CONFIG["vocab"]
    kv = CONFIG["kv_heads"] * hidden // CONFIG["heads"]
    shapes = {"embed/embedding": (vocab, hidden)}
    for layer in range(CONFIG["layers"]):
        block = dict(attn_norm=(hidden,), wq=(hidden, hidden), wk=(kv, hidden), wv=(kv, hidden),
                     wo=(hidden, hidden), ffn_norm=(hidden,), w_gate=(ffn, hidden),
                     w_up=(ffn, hidden), w_down=(hidden, ffn))
        shapes.update({f"block.{layer}/{name}": shape for name, shape in block.items()})
    shapes["head/final_norm"] = (hidden,)
    shapes["head/lm_head"] = (vocab, hidden)
    return shapes


def make_weights():
    generator = torch.Generator().manual_seed(20240607)
    weights = {}
    for name, shape in tensor_shapes().items():
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        value = 1 + 0.2 * noise if len(shape) == 1 else 0.25 * noise
        weights[name] = value.float().double()  # exactly representable in float32
    return weights


def rotate(x):
    """x: (batch, heads, sequence, head_dim); element i turns with element i + head_dim / 2."""
    sequence, head_dim = x.shape[-2:]
    frequency = CONFIG["rope_theta"] ** (
        -torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.outer(torch.arange(sequence, dtype=torch.float64), frequency).to(x.dtype)
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * angle.cos() - high * angle.sin(),
                      high * angle.cos() + low * angle.sin()), dim=-1)


def block(x, w):
    batch, sequence, hidden = x.shape

    def heads(y, count):
        return y.view(batch, sequence, count, -1).transpose(1, 2)

    normed = F.rms_norm(x, (hidden,), w["attn_norm"], CONFIG["norm_eps"])
    q = rotate(heads(normed @ w["wq"].T, CONFIG["heads"]))
    k = rotate(heads(normed @ w["wk"].T, CONFIG["kv_heads"]))
    v = heads(normed @ w["wv"].T, CONFIG["kv_heads"])
    attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    x = x + attended.transpose(1, 2).reshape(batch, sequence, hidden) @ w["wo"].T
    normed = F.rms_norm(x, (hidden,), w["ffn_norm"], CONFIG["norm_eps"])
    return x + (F.silu(normed @ w["w_gate"].T) * (normed @ w["w_up"].T)) @ w["w_down"].T


def run(weights, inputs, targets, tied, dtype):
    w = {name: value.to(dtype).clone().requires_grad_() for name, value in weights.items()}
    x = F.embedding(inputs, w["embed/embedding"])
    for layer in range(CONFIG["layers"]):
        prefix = f"block.{layer}/"
        x = block(x, {n.removeprefix(prefix): t for n, t in w.items() if n.startswith(prefix)})
    x = F.rms_norm(x, (CONFIG["hidden"],), w["head/final_norm"], CONFIG["norm_eps"])
    output = w["embed/embedding"] if tied else w["head/lm_head"]
    logits = x @ output.T
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    loss.backward()
    grads = {name: value.grad for name, value in w.items() if value.grad is not None}
    return loss.detach(), grads


class Writer:
    """Appends float32 arrays to one file and remembers where each one stands."""

    def __init__(self):
        self.data = bytearray()

    def add(self, tensors):
        places = {}
        for name, value in tensors.items():
            places[name] = dict(offset=len(self.data) // 4, count=value.numel())
            self.data += value.detach().float().numpy().tobytes()
        return places


def check_against_float32(loss, grads, weights, inputs, targets, tied):
    loss32, grads32 = run(weights, inputs, targets, tied, torch.float32)
    assert abs(loss32.double() - loss) < 1e-5 * loss
    for name, value in grads.items():
        worst = (grads32[name].double() - value).abs().max() / value.abs().max()
        assert worst < 1e-4, (name, worst)


def main():
    weights = make_weights()
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(0, CONFIG["vocab"], (BATCH, CONFIG["sequence"] + 1),
                           generator=generator)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    writer = Writer()
    golden = dict(config=CONFIG, batch=BATCH, torch=torch.__version__,
                  inputs=inputs.flatten().tolist(), targets=targets.flatten().tolist(),
                  weights=writer.add(weights))
    for name, tied in (("tied", True), ("untied", False)):
        loss, grads = run(weights, inputs, targets, tied, torch.float64)
        check_against_float32(loss, grads, weights, inputs, targets, tied)
        golden[name] = dict(loss=loss.item(), gradients=writer.add(grads))
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / "golden.bin").write_bytes(writer.data)
    (OUTPUT / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
