"""Runs of the program, for comparison with the same model in Python (environment: STARLING)."""

import json
import os
import subprocess

from safetensors.torch import load_file

STARLING = os.environ["STARLING"]
MASK = (1 << 64) - 1


def random_bits(*keys):
    """starling/core/random.h"""
    x = 0
    for key in keys:
        x = ((x ^ key) + 0x9E3779B97F4A7C15) & MASK
        x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
        x ^= x >> 31
    return x


def order_of(examples, epoch, seed):
    """The examples of one worker's epoch, in order: starling/data/sampler.h."""
    order = list(range(examples))
    for i in range(examples - 1, 0, -1):
        j = random_bits(seed, epoch, i) % (i + 1)
        order[i], order[j] = order[j], order[i]
    return order


def train(out, **keys):
    """Returns the weights at the end, the loss of each step, and the summary."""
    out.mkdir()
    recipe = out / "recipe.toml"
    recipe.write_text("")
    values = {"run.out": out, "schedule.name": "constant", "log.every": 1, "checkpoint.every": 1} | keys
    options = [f"--{key}={value}" for key, value in values.items()]
    subprocess.run([STARLING, "train", recipe, *options], check=True, capture_output=True, timeout=300)
    weights = out / "weights.safetensors"
    subprocess.run([STARLING, "checkpoint", "consensus", out / "checkpoints", weights], check=True,
                   stdout=subprocess.DEVNULL, timeout=300)
    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((out / "summary.json").read_text())
    return load_file(weights), [step["loss"] for step in steps], summary


def check_weights(test, start, end, expected):
    """The weights `end` are those of the state_dict `expected`, which began as `start` too.
    Rounding errors are a small part of the way that a tensor went, except where gradients are
    nothing else."""
    test.assertEqual(set(end), set(expected))
    for key, value in end.items():
        if not value.is_floating_point():
            test.assertTrue(value.equal(expected[key]), key)
            continue
        error, way, size = ((a - b).norm().item() for a, b in (
            (value, expected[key]), (expected[key], start[key]), (expected[key], 0)))
        test.assertLess(error, 0.05 * way + 1e-7 * size, f"{key}, which went {way:.1e}")
        test.assertLess(error, 1e-4 * size + 1e-5 * value.numel() ** 0.5, key)
