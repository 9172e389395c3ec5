#!/usr/bin/env python3
"""The claim of A2CiD2's paper (arXiv 2306.08289, tables 3 to 5) on Fashion-MNIST, by `starling
simulate`: on a ring, continuous momentum is worth as much as twice the rate of averagings. There
are about 90 runs of some minutes, one on each processor. Finished runs are not repeated.

    bench/a2cid2_study.py [--workers N,N,..] [--seeds N] [--epochs X] [--jobs N] [--out FOLDER]
                          [--plot FILE.svg]

FOLDER (out/bench/a2cid2) gets two files. runs.jsonl has a line for each run. table.md has the final
accuracy of the average model in percent, mean and standard deviation over the seeds, and the
workers' distance to it. Every worker goes through the whole set in an order of its own, as in the
paper, or has a shard of it. FILE.svg gets the accuracies as a picture (by matplotlib, of
requirements-examples.txt). All runs have the same total number of gradients, X passes over the set.
The learning rate is scaled with the number of workers, as in the paper, because each worker makes
fewer steps in proportion. Compute times vary (cv 0.2).
"""

import concurrent.futures
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from workers import ROOT, about, parser_of

RUNS = {  # name of a row: scheme, topology, rate
    "ring, momentum, rate 1": ("a2cid2", "ring", 1),
    "ring, rate 1": ("ad-psgd", "ring", 1),
    "ring, rate 2": ("ad-psgd", "ring", 2),
    "exponential, rate 1": ("ad-psgd", "static-exponential", 1),
    "complete, rate 1": ("ad-psgd", "complete", 1),
}
SPLITS = {"whole": "the whole set", "iid": "a shard of the set"}
RECIPE = """
[run]
threads = 1
ends = "together"
[model]
width = 8
[optimizer]
rule = "sgd"
momentum = 0.9
weight_decay = 5e-4
[schedule]
warmup = 0.1
[train]
batch = 32
"""


LR = 0.0125  # per worker


def asked(options):
    for seed in range(1, options.seeds + 1):
        for split in SPLITS:
            for workers in options.workers:
                for name in RUNS:
                    yield {"split": split, "workers": workers, "seed": seed, "run": name, "epochs": options.epochs,
                           "lr": LR * workers}


def simulate(one, options):
    print(f"study: {one}", file=sys.stderr)
    scheme, topology, rate = RUNS[one["run"]]
    with tempfile.TemporaryDirectory(prefix="starling-study-") as temporary:
        folder = pathlib.Path(temporary)
        recipe = folder / "recipe.toml"
        recipe.write_text(RECIPE)
        said = subprocess.run(
            [options.starling, "simulate", recipe, "--workers", str(one["workers"]), "--cv", "0.2", "--look-every", "1e6",
             "--json", "--out", folder / "run", "--run.seed", str(one["seed"]), "--run.epochs", str(one["epochs"]),
             "--optimizer.lr", str(one["lr"]), "--data.split", one["split"],
             "--mixing.scheme", scheme, "--mixing.topology", topology, "--mixing.rate", str(rate)],
            stdout=subprocess.PIPE, text=True, check=True).stdout
    last = json.loads(said.splitlines()[-1])
    return one | {key: last[key] for key in ("accuracy", "test_loss", "consensus_distance", "seconds", "gradients")}


def found(done, split, workers, name):
    return [one for one in done if (one["split"], one["workers"], one["run"]) == (split, workers, name)]


def percent(runs):
    """Mean and standard deviation of the runs' accuracies."""
    accuracy = [100 * one["accuracy"] for one in runs]
    return statistics.mean(accuracy), statistics.stdev(accuracy) if len(accuracy) > 1 else 0


def table(done, options):
    text = ""
    for split, has in SPLITS.items():
        text += f"\nEvery worker has {has}:\n\n| |"
        text += "|".join(f" {n} workers | distance " for n in options.workers) + "|\n|-|" + "-|-|" * len(options.workers) + "\n"
        for name in RUNS:
            text += f"| {name} |"
            for workers in options.workers:
                runs = found(done, split, workers, name)
                if not runs:
                    text += " | |"
                    continue
                distance = statistics.mean(one["consensus_distance"] for one in runs)
                text += " {:.2f} ± {:.2f} |".format(*percent(runs)) + f" {distance:.2g} |"
            text += "\n"
    return text


def plot(done, options):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "starling"
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(SPLITS), figsize=(11, 4), sharey=True, layout="constrained")
    for panel, (split, has) in zip(panels, SPLITS.items(), strict=True):
        for k, name in enumerate(RUNS):
            points = [(position + (k - 2) / 20, *percent(found(done, split, workers, name)))
                      for position, workers in enumerate(options.workers)]
            x, mean, spread = zip(*points, strict=True)
            panel.errorbar(x, mean, spread, marker="o", capsize=3, label=name)
        panel.set_title(f"every worker has {has}")
        panel.set_xticks(range(len(options.workers)), options.workers)
        panel.set_xlabel("workers")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("accuracy, %")
    panels[0].legend()
    figure.savefig(options.plot, metadata={"Date": None})


def main():
    parser = parser_of(__doc__, starling=True)
    parser.add_argument("--workers", type=lambda text: [int(n) for n in text.split(",")], default=[16, 32, 64],
                        help="numbers of simulated workers (default 16,32,64)")
    parser.add_argument("--seeds", type=int, default=3, help="how many (default %(default)s)")
    parser.add_argument("--epochs", type=float, default=4, help="passes over the set (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time (one for each processor)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out/bench/a2cid2", help="folder of the runs and tables")
    parser.add_argument("--plot", type=pathlib.Path, help="draw the accuracies")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    runs = options.out / "runs.jsonl"
    wanted = list(asked(options))
    known = [json.loads(line) for line in runs.read_text().splitlines()] if runs.exists() else []
    # Without runs of other options.
    done = [old for old in known if any(one.items() <= old.items() for one in wanted)]
    left = [one for one in wanted if not any(one.items() <= old.items() for old in done)]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for finished in concurrent.futures.as_completed([pool.submit(simulate, one, options) for one in left]):
            done.append(finished.result())
            with runs.open("a") as file:
                file.write(json.dumps(done[-1] | about()) + "\n")
            (options.out / "table.md").write_text(table(done, options))
    print(table(done, options))
    if options.plot:
        plot(done, options)


if __name__ == "__main__":
    main()
