#!/usr/bin/env python3
"""Writes tests/data/torch_trajectories.json: where PyTorch's optimizers take a few weights.

torch.optim in float64 follows 10,000 steps of gradients that an integer hash makes, the same here
and in tests/torch_trajectory_test.cpp; Lion, which torch lacks, is written below from its paper.
Two parameter groups, a schedule of the rate, and gradients clipped by their norm in some steps. Run
it by hand, from anywhere, with any recent torch:

    python3 tests/data/make_torch_trajectories.py
"""

import json
import pathlib

import torch

STEPS = 10_000
KEPT = (1, 10, 100, 1000, 10_000)
GROUP_SIZES = (32, 16)
ELEMS = sum(GROUP_SIZES)
CLIP_NORM = 1.9
GRADIENT_KEY, WEIGHT_KEY = 1, 2
MASK = (1 << 64) - 1
OUTPUT = pathlib.Path(__file__).resolve().parent / "torch_trajectories.json"


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def hashed(key, index):  # rng::at()
    return mix((mix(key) + (index + 1) * 0x9E3779B97F4A7C15) & MASK)


def gradient_numerator(step, elem):
    """Noise in [-64, 64] on a mean in [-32, 32] that drifts; eight times that in some steps."""
    noise = hashed(GRADIENT_KEY, step * ELEMS + elem) % 129 - 64
    mean = abs((step + 37 * elem) % 2048 - 1024) // 16 - 32
    return (noise + mean) * (8 if step % 50 == 0 else 1)


def gradient_exponent(elem):
    return -6 - elem % 6


def initial_weight(elem):
    return (hashed(WEIGHT_KEY, elem) % 2001 - 1000) / 1024


def rate_factor(step):
    return step / 100 if step < 100 else 1 - 0.9 * step / STEPS


class Lion(torch.optim.Optimizer):
    """Chen et al., "Symbolic Discovery of Optimization Algorithms", program 1."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for w in group["params"]:
                m = self.state[w].setdefault("m", torch.zeros_like(w))
                update = torch.sign(beta1 * m + (1 - beta1) * w.grad)
                m.copy_(beta2 * m + (1 - beta2) * w.grad)
                w -= group["lr"] * (update + group["weight_decay"] * w)


def adam_groups(decay):
    return [dict(lr=2e-3, weight_decay=decay, betas=(0.9, 0.999), eps=1e-8),
            dict(lr=5e-4, weight_decay=0.0, betas=(0.8, 0.97), eps=1e-6)]


def sgd_groups(momentum):
    if momentum:
        return [dict(lr=2e-3, weight_decay=0.01, momentum=0.9),
                dict(lr=2e-3, weight_decay=0.0, momentum=0.6)]
    return [dict(lr=2e-2, weight_decay=0.01), dict(lr=5e-3, weight_decay=0.0)]


RULES = {
    "adamw": (torch.optim.AdamW, {}, adam_groups(0.1)),
    "adam": (torch.optim.Adam, {}, adam_groups(1e-3)),
    "sgd": (torch.optim.SGD, {}, sgd_groups(False)),
    "momentum": (torch.optim.SGD, {}, sgd_groups(True)),
    "nesterov": (torch.optim.SGD, dict(momentum=0.9, nesterov=True), sgd_groups(True)),
    "adagrad": (torch.optim.Adagrad, {},
                [dict(lr=2e-2, weight_decay=1e-3, eps=1e-10),
                 dict(lr=5e-3, weight_decay=0.0, eps=1e-6)]),
    "lion": (Lion, {}, [dict(lr=1e-3, weight_decay=0.1, betas=(0.9, 0.99)),
                        dict(lr=2e-4, weight_decay=0.0, betas=(0.8, 0.97))]),
}


def split(values):
    return torch.tensor(values, dtype=torch.float64).split(GROUP_SIZES)


def trajectory(rule, gradients):
    optimizer_class, options, groups = RULES[rule]
    parameters = [torch.nn.Parameter(part.clone())
                  for part in split([initial_weight(i) for i in range(ELEMS)])]
    arguments = [dict(group, params=[p]) for group, p in zip(groups, parameters)]
    if optimizer_class is Lion:
        optimizer = Lion(arguments, {})
    else:
        optimizer = optimizer_class(arguments, lr=1.0, **options)
    weights = {}
    clipped = 0
    for step in range(1, STEPS + 1):
        for parameter, part in zip(parameters, gradients[step]):
            parameter.grad = part.clone()
        norm = torch.nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
        clipped += int(norm > CLIP_NORM)
        for group, parts in zip(groups, optimizer.param_groups):
            parts["lr"] = group["lr"] * rate_factor(step)
        optimizer.step()
        if step in KEPT:
            weights[str(step)] = torch.cat(parameters).tolist()
    print(f"{rule}: {clipped} of {STEPS} steps clipped, largest weight "
          f"{max(abs(w) for w in weights[str(STEPS)]):.3f}")
    return dict(groups=groups, clipped_steps=clipped, weights=weights)


def main():
    numerators = {step: [gradient_numerator(step, i) for i in range(ELEMS)]
                  for step in range(1, STEPS + 1)}
    gradients = {step: split([n * 2.0 ** gradient_exponent(i) for i, n in enumerate(row)])
                 for step, row in numerators.items()}
    document = dict(torch=torch.__version__, steps=STEPS, group_sizes=GROUP_SIZES,
                    clip_norm=CLIP_NORM,
                    sum_of_numerators=sum(map(sum, numerators.values())),
                    rules={rule: trajectory(rule, gradients) for rule in RULES})
    OUTPUT.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
