#!/usr/bin/env python3
"""Compares train_gpt's weights and losses with those of Hugging Face's transformers, both ways.

An export of a trained model is opened by transformers, and a model that transformers has saved is
opened by train_gpt: the loss of one sequence must agree to 1e-4. Exits with 77, for "skipped",
where torch, transformers or safetensors are missing:

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install torch transformers safetensors
    /tmp/venv/bin/python tests/check_transformers.py --train-gpt build/release/train_gpt
"""

import argparse
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

missing = [name for name in ("torch", "transformers", "safetensors")
           if importlib.util.find_spec(name) is None]
if missing:
    print(f"skipped: {' and '.join(missing)} not installed")
    sys.exit(77)

os.environ["HF_HUB_OFFLINE"] = "1"
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

SEQUENCE = 256
TOLERANCE = 1e-4
CONFIG = {"device": {"kind": "cpu"}, "budgets": {"device": "64MiB", "host": "256MiB"},
          "placement": {"param": "host", "grad": "host", "optimizer": "host"}}


class Bench:
    """A folder with a text of one sequence, so that every batch of every rank is that one."""

    def __init__(self, train_gpt, folder):
        self.train_gpt, self.folder = train_gpt, folder
        self.failed = 0
        text = " ".join(f"{i} squared is {i * i}," for i in range(100))
        self.tokens = list(text.encode()[:SEQUENCE + 1])
        (folder / "text").write_bytes(bytes(self.tokens))
        for dtype in ("fp32", "bf16"):
            config = CONFIG | {"precision": {"param": dtype}}
            (folder / f"{dtype}.json").write_text(json.dumps(config))

    def run(self, arguments, ranks=1, dtype="fp32"):
        command = [str(self.train_gpt), "--data", "text", "--batch", "1", "--eval-batches", "1",
                   "--sequence", str(SEQUENCE), "--eval-every", "1000000", "--config",
                   f"{dtype}.json", "--summary-json", "summary.json", *arguments]
        if ranks > 1:
            command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), *command]
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return subprocess.run(command, cwd=self.folder, env=os.environ | root, text=True,
                              capture_output=True, timeout=600)

    def loss_of(self, arguments, **how):
        done = self.run(arguments, **how)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        return json.loads((self.folder / "summary.json").read_text())["evals"][-1]["loss"]

    def compare(self, what, ours, theirs, tolerance=TOLERANCE):
        error = abs(ours - theirs) / theirs
        self.failed += error > tolerance
        print(f"{'ok  ' if error <= tolerance else 'FAIL'} {what}: train_gpt {ours:.7f}, "
              f"transformers {theirs:.7f}, relative difference {error:.1e}")

    def expect(self, what, condition, detail=""):
        self.failed += not condition
        print(f"{'ok  ' if condition else 'FAIL'} {what}{'' if condition else ': ' + detail}")


def loss_by_transformers(model, tokens):
    ids = torch.tensor([tokens])
    with torch.no_grad():
        logits = model(input_ids=ids[:, :-1]).logits[0].double()
    return torch.nn.functional.cross_entropy(logits, ids[0, 1:]).item()


def interleaved(weight, heads):
    """The rows as the other convention of rotary positions orders them."""
    rows, cols = weight.shape
    return weight.view(heads, 2, rows // heads // 2, cols).transpose(1, 2).reshape(rows, cols)


def open_export(bench, name):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        bench.folder / name, dtype=torch.float32, output_loading_info=True)
    odd = {key: value for key, value in info.items() if value}
    bench.expect(f"{name}: every tensor has its place", not odd, str(odd))
    return model.eval()


def check_exports(bench):
    variants = {
        "untied": (["--untied"], {}),
        "tied": (["--tied"], {}),
        "shards": (["--untied", "--export-file-size", "500KB"], {}),
        "two_ranks": (["--untied", "--export-file-size", "500KB"], {"ranks": 2}),
        "masters": (["--untied", "--export-dtype", "fp32"], {"dtype": "bf16"}),
    }
    for name, (flags, how) in variants.items():
        ours = bench.loss_of(["--preset", "tiny", "--steps", "60", "--lr", "3e-3", "--export",
                              name, *flags], **how)
        model = open_export(bench, name)
        theirs = loss_by_transformers(model, bench.tokens)
        # Parameters of 16 bits are what computed there; their masters are what was exported.
        bench.compare(f"export {name}", ours, theirs, 2e-2 if name == "masters" else TOLERANCE)
        if name == "untied":
            for layer in model.model.layers:
                for projection, heads in ((layer.self_attn.q_proj, 4), (layer.self_attn.k_proj, 2)):
                    projection.weight.data = interleaved(projection.weight.data, heads)
            other = loss_by_transformers(model, bench.tokens)
            bench.expect("the other rotary convention gives another loss",
                         abs(other - theirs) > 100 * TOLERANCE, f"{other} and {theirs}")
    bench.loss_of(["--init-from", "untied", "--steps", "0", "--export", "half", "--export-dtype",
                   "bf16"])
    theirs = load_file(bench.folder / "untied/model.safetensors")
    ours = load_file(bench.folder / "half/model.safetensors")
    bench.expect("bf16 is rounded as torch rounds",
                 all(torch.equal(ours[key], theirs[key].bfloat16()) for key in theirs))


def small_model(kind="llama", **more):
    classes = {"llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
               "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM)}
    config_class, model_class = classes[kind]
    fields = dict(vocab_size=260, hidden_size=96, intermediate_size=200, num_hidden_layers=3,
                  num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=512,
                  rms_norm_eps=1e-6, initializer_range=0.2, rope_theta=50000.0,
                  tie_word_embeddings=False)
    config = config_class(**(fields | more))
    if hasattr(config, "rope_parameters") and "rope_scaling" not in more:  # version 5
        config.rope_parameters = {"rope_type": "default", "rope_theta": 50000.0}
    torch.manual_seed(1)
    model = model_class(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.data += 0.3 * torch.randn_like(parameter)
    return model


def check_imports(bench):
    variants = {
        "single": ({}, {}, 1),
        "sharded": ({}, dict(max_shard_size="200KB"), 1),
        "sharded_two_ranks": ({}, dict(max_shard_size="200KB"), 2),
        "tied_words": (dict(tie_word_embeddings=True), {}, 1),
        "many_kv_heads": (dict(num_key_value_heads=6), {}, 1),
        "qwen2_without_biases": (dict(kind="qwen2"), {}, 1),
    }
    for name, (fields, how, ranks) in variants.items():
        model = small_model(**fields)
        if name.startswith("qwen2"):
            for layer in model.model.layers:
                for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj,
                                   layer.self_attn.v_proj):
                    projection.bias.data.zero_()
        model.save_pretrained(bench.folder / name, **how)
        ours = bench.loss_of(["--init-from", name, "--steps", "0", "--export", name + "_again"],
                             ranks=ranks)
        bench.compare(f"import {name}", ours, loss_by_transformers(model, bench.tokens))
        again = open_export(bench, name + "_again")
        theirs = model.state_dict()
        same = all(torch.equal(value, theirs[key]) for key, value in again.state_dict().items())
        bench.expect(f"{name}: out again with the same bits", same)
        bench.compare(f"export of import {name}", ours, loss_by_transformers(again, bench.tokens))
    for dtype in (torch.bfloat16, torch.float16):
        model = small_model().to(dtype)
        name = str(dtype).removeprefix("torch.")
        model.save_pretrained(bench.folder / name)
        ours = bench.loss_of(["--init-from", name, "--steps", "0"])
        # Read anew: .to() has rounded the rotary frequencies as well.
        model = transformers.AutoModelForCausalLM.from_pretrained(bench.folder / name,
                                                                  dtype=torch.float32)
        bench.compare(f"import {name}", ours, loss_by_transformers(model, bench.tokens))


def check_refusals(bench):
    def refused(name, words, model):
        model.save_pretrained(bench.folder / name)
        done = bench.run(["--init-from", name, "--steps", "0"])
        good = done.returncode == 2 and all(word in done.stderr for word in words)
        bench.expect(f"refused: {name}: {done.stderr.strip()[:160]}", good,
                     f"exit code {done.returncode}")

    model = small_model("qwen2")
    model.model.layers[1].self_attn.k_proj.bias.data[3] = 0.5
    refused("biases", ["model.layers.1.self_attn.k_proj.bias", "not all 0"], model)
    scaling = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=256, rope_theta=50000.0)
    refused("rope_scaling", ["rope_type", "llama3"], small_model(rope_scaling=scaling))
    refused("head_dim", ["head_dim"], small_model(head_dim=32))
    refused("activation", ["hidden_act"], small_model(hidden_act="gelu"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train-gpt", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    torch.set_num_threads(1)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="check_transformers_", dir="."))
    bench = Bench(arguments.train_gpt.resolve(), folder.resolve())
    check_exports(bench)
    check_imports(bench)
    check_refusals(bench)
    print(f"{bench.failed} failed" if bench.failed else "all agree")
    if not bench.failed:
        shutil.rmtree(folder)
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
