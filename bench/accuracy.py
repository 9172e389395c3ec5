#!/usr/bin/env python3
"""Does training without an all-reduce cost accuracy? The demo's two runs with paired seeds; prints JSON.

    bench/accuracy.py [--seeds N] [--workers N] [--starling PATH] [--section.key value ...]

Each seed trains both recipes, one after the other, from the same initial weights on the same samples. Writes
out/bench/accuracy.json:

    starling, all_reduce   test accuracy of the average model, mean over the seeds, in percent
    gap                    all_reduce - starling in points, mean over the pairs; gap_deviation its standard deviation
    seeds                  per seed: both accuracies, both worst single workers, both times
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

from workers import ROOT, save

RECIPES = {"starling": "recipes/fashion-mnist.toml", "all_reduce": "recipes/fashion-mnist-all-reduce.toml"}


def train(starling, recipe, seed, workers, out, overrides):
    command = [starling, "train", recipe, "--workers", str(workers), "--run.seed", str(seed), "--out", str(out)]
    print("bench:", *command[1:], *overrides, file=sys.stderr)
    result = subprocess.run([*command, *overrides], cwd=ROOT, stdout=subprocess.DEVNULL)
    if result.returncode != 0:
        sys.exit(f"bench: {recipe} with seed {seed} ended with exit code {result.returncode}")
    return json.loads((ROOT / out / "summary.json").read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--starling", default=str(ROOT / ".venv/bin/starling"))
    options, overrides = parser.parse_known_args()
    subprocess.run([ROOT / "scripts/fetch-fashion-mnist"], check=True, stdout=sys.stderr)

    seeds = []
    for seed in range(1, options.seeds + 1):
        pair = {"seed": seed}
        for name, recipe in RECIPES.items():
            out = pathlib.Path("out/bench/accuracy") / f"{name}-{seed}"
            summary = train(options.starling, recipe, seed, options.workers, out, overrides)
            pair[name] = 100 * summary["accuracy"]
            pair[f"{name}_worst"] = 100 * summary["worst_accuracy"]
            pair[f"{name}_seconds"] = summary["seconds"]
            pair[f"{name}_samples"] = summary["samples"]
        if pair["starling_samples"] != pair["all_reduce_samples"]:
            sys.exit("bench: the two recipes train on different numbers of samples: no fair comparison")
        seeds.append(pair)

    gaps = [pair["all_reduce"] - pair["starling"] for pair in seeds]
    result = {
        "starling": statistics.mean(pair["starling"] for pair in seeds),
        "all_reduce": statistics.mean(pair["all_reduce"] for pair in seeds),
        "gap": statistics.mean(gaps),
        "gap_deviation": statistics.stdev(gaps) if len(gaps) > 1 else None,
        "workers": options.workers,
        "seeds": seeds,
    }
    save(result, ROOT / "out/bench/accuracy.json")


if __name__ == "__main__":
    main()
