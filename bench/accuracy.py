#!/usr/bin/env python3
"""Does training without an all-reduce, or with narrow wires, cost accuracy? Runs with paired seeds;
prints JSON.

    bench/accuracy.py [--seeds N] [--workers N] [--starling PATH] [--section.key value ...]

Each seed trains the demo's two recipes, then the first of them for one epoch with each wire. All
runs of a seed start from the same initial weights, and use the same samples. Writes
out/bench/accuracy.json:

    starling, all_reduce   test accuracy of the average model, mean over the seeds, in percent
    gap                    all_reduce - starling in points, mean over the pairs; gap_deviation its
                           standard deviation
    bf16_gap, int8_gap     fp32 - that wire in the same way, and their deviations
    seeds                  per seed and run: accuracy, that of the worst single worker, seconds,
                           samples
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

from workers import ROOT, about, save

STARLING = "recipes/fashion-mnist.toml"
RUNS = {
    "starling": [STARLING],
    "all_reduce": ["recipes/fashion-mnist-all-reduce.toml"],
    **{wire: [STARLING, "--run.epochs", "1", "--mixing.wire", wire] for wire in ("fp32", "bf16", "int8")},
}
PAIRS = {"gap": ("all_reduce", "starling"), "bf16_gap": ("fp32", "bf16"), "int8_gap": ("fp32", "int8")}


def train(options, name, seed, overrides):
    out = pathlib.Path("out/bench/accuracy") / f"{name}-{seed}"
    command = [options.starling, "train", *RUNS[name], "--workers", str(options.workers), "--run.seed", str(seed),
               "--out", str(out), *overrides]
    print("bench:", *command[1:], file=sys.stderr)
    result = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    if result.returncode != 0:
        sys.exit(f"bench: {name} with seed {seed} ended with exit code {result.returncode}")
    summary = json.loads((ROOT / out / "summary.json").read_text())
    return {"accuracy": 100 * summary["accuracy"], "worst": 100 * summary["worst_accuracy"],
            "seconds": summary["seconds"], "samples": summary["samples"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="how many (default %(default)s)")
    parser.add_argument("--workers", type=int, default=4, help="of each run (default %(default)s)")
    parser.add_argument("--starling", default=str(ROOT / ".venv/bin/starling"), help="the built command")
    options, overrides = parser.parse_known_args()
    if code := subprocess.run([ROOT / "scripts/fetch-fashion-mnist"], stdout=sys.stderr).returncode:
        sys.exit(code)  # it has said why

    seeds = [{"seed": seed, **{name: train(options, name, seed, overrides) for name in RUNS}}
             for seed in range(1, options.seeds + 1)]
    result = {name: statistics.mean(seed[name]["accuracy"] for seed in seeds) for name in RUNS}
    for gap, (of, to) in PAIRS.items():
        if any(seed[of]["samples"] != seed[to]["samples"] for seed in seeds):
            sys.exit(f"bench: {of} and {to} trained on different numbers of samples: no fair comparison")
        gaps = [seed[of]["accuracy"] - seed[to]["accuracy"] for seed in seeds]
        result[gap] = statistics.mean(gaps)
        result[f"{gap}_deviation"] = statistics.stdev(gaps) if len(gaps) > 1 else None
    save({**result, "workers": options.workers, **about(), "seeds": seeds}, ROOT / "out/bench/accuracy.json")


if __name__ == "__main__":
    main()
