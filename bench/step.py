#!/usr/bin/env python3
"""The time of a training step when the link matters: Starling beside torch's DDP and Decent-DP;
prints JSON.

    bench/step.py [--only REGEX] [--repetitions N] [--minutes N] [--rate RATE]

Workers run on the hosts of scripts/cluster (root is needed), one on each. Their compute is a sleep
inside forward and backward, so that several hosts fit on a machine with few cores; gradients,
updates and the link are real. A cell is a size of model, a number of hosts, and the ratio of the
parameters' time on the link to the compute. Each repetition runs all systems of a cell in turn.
Times are medians over the steps of a run, then over the repetitions (with jitter: means over the
steps). Writes out/bench/step.json:

    worst_over_limit    CTA with fp32 on 2 hosts: time over max(compute + update, link), the worst
                        cell and schedule. compute + update: the same processes at once, sending
                        nothing; link: the fewest bytes for that graph at the line's goodput,
                        measured in the same run
    vs_decent_dp        Decent-DP's time over ours on the same graph, the smallest ratio; fp32
    vs_ddp_at_equal     DDP's over ours with link = compute, the smallest of our schedules; fp32,
                        DDP with its defaults: with buckets of 25 MB a small model has no overlap
    vs_tuned_ddp_at_equal   the same with buckets as large as our blocks (1/8 of the model) if DDP
                        is faster with these; so too in the two below
    all_reduce_vs_ddp   DDP's time over that of our own all-reduce, the smallest ratio
    vs_ddp_jitter       DDP's over ours (one-peer-exponential, fp32) with compute times that vary:
                        lognormal, cv 0.3, link = 0.3 x compute, 2 hosts; with 4 hosts in cells
    hierarchy_vs_ring   time of alternating-exp-ring over that of the hierarchy "node" between nodes
                        with base-2: 2 hosts with two workers on each, link = 1 x compute for one of
                        them; fp32
    bf16_vs_decent_dp, int8_vs_decent_dp   Decent-DP's (ring) over ours with these on the wire, with
                        link = 6 x compute
    cells               all times in ms
"""

import json
import math
import pathlib
import random
import re
import statistics
import sys
import tempfile
import time

from workers import ROOT, NoCluster, about, emulated, parser_of, save

PEERS = ROOT / "bench/step_peers.py"
SCHEDULES = ("one-peer-ring", "one-peer-exponential", "base-2", "complete")
NARROW = ("bf16", "int8")
SAME_GRAPH = {"ring": "one-peer-ring", "complete": "complete"}  # Decent-DP's name, ours
SMALL, LARGE = 4_200_000, 25_000_000
LAYERS, WARM_UP, CV = 16, 4, 0.3


def cell(name, parameters, ratio, hosts=2, jitter=False, ranks=1):
    return {"name": name, "parameters": parameters, "link_over_compute": ratio, "hosts": hosts, "jitter": jitter,
            "ranks": ranks}


CELLS = [
    *(cell(f"17 MB, link = {r} x compute", SMALL, r) for r in (0.2, 0.5, 1, 2, 6)),
    *(cell(f"100 MB, link = {r} x compute", LARGE, r) for r in (0.5, 1, 2)),
    cell("17 MB, link = 1 x compute, 4 hosts", SMALL, 1, hosts=4),
    cell("17 MB, link = 1 x compute, 2 hosts with 2 workers each", SMALL, 1, ranks=2),
    *(cell(f"17 MB, link = 0.3 x compute, jitter, {n} hosts", SMALL, 0.3, n, jitter=True) for n in (2, 4)),
]


def often(cell):
    """Whether a limit is within the variation of step times."""
    return cell["parameters"] == SMALL and cell["hosts"] == 2 and not cell["jitter"]


def systems(cell):
    small = f"{4 * cell['parameters'] / 8 / 2**20:.2f}"
    ddp = {f"ddp {mb} MB": ["PEER", "JOB", "ddp", mb] for mb in ("25", small)}
    if cell["ranks"] > 1:
        return {"cta alternating-exp-ring fp32": ["OURS", "JOB", "cta", "alternating-exp-ring", "fp32"],
                "cta base-2 fp32, hierarchy": ["OURS", "JOB", "cta", "base-2", "fp32", "node"]}
    if cell["jitter"]:
        return ddp | {"cta one-peer-exponential fp32": ["OURS", "JOB", "cta", "one-peer-exponential", "fp32"]}
    all = {"alone": ["OURS", "JOB", "alone"]} | ddp | {"all-reduce": ["OURS", "JOB", "all-reduce"]}
    for topology in SAME_GRAPH:
        all[f"decent-dp {topology}"] = ["PEER", "JOB", "decent-dp", topology]
    for schedule in SCHEDULES:
        all[f"cta {schedule} fp32"] = ["OURS", "JOB", "cta", schedule, "fp32"]
    for wire in NARROW:
        all[f"cta base-2 {wire}"] = ["OURS", "JOB", "cta", "base-2", wire]
    return all


def fewest_bytes(schedule, workers, parameters):
    """The bytes that a worker must send in a step with fp32."""
    if schedule == "complete":
        return 4 * parameters * 2 * (workers - 1) / workers
    return 4 * parameters


def write_job(path, cell, line):
    link = 4 * cell["parameters"] / line
    compute = link / cell["link_over_compute"]
    count = WARM_UP + (80 if cell["jitter"] else max(8, math.ceil(2.5 / max(compute, link))))
    spread = math.sqrt(math.log(1 + CV**2))
    workers = []
    for rank in range(cell["hosts"] * cell["ranks"]):
        dice = random.Random(rank)
        workers.append([compute * (dice.lognormvariate(-(spread**2) / 2, spread) if cell["jitter"] else 1)
                        for _ in range(count)])
    job = {"parameters": cell["parameters"], "layers": LAYERS, "warm_up": WARM_UP, "compute": workers}
    path.write_text(json.dumps(job))
    return 1e3 * compute


def run(command, job, hosts, options, ranks=1):
    """The output of rank 0."""
    meaning = {"OURS": [options.program], "PEER": [options.python, str(PEERS)], "JOB": [str(job)]}
    command = [word for part in command for word in meaning.get(part, [part])]
    return json.loads(emulated(command, hosts, options.rate, ranks))


class Measured:
    """A cell's runs so far."""

    def __init__(self, cell, repetitions):
        self.cell, self.repetitions = cell, repetitions
        self.times, self.bytes_per_step, self.lines, self.compute = {}, {}, [], None

    def repeat(self, options, folder):
        """All its systems once more, in turn."""
        cell, job = self.cell, folder / "job.json"
        job.write_text("{}")
        self.lines.append(run(["PEER", "JOB", "line"], job, 2, options)["bytes_per_second"])
        self.compute = write_job(job, cell, statistics.median(self.lines))
        for name, command in systems(cell).items():
            print(f"bench: {cell['name']}: {name}, {len(self.lines)} of {self.repetitions}", file=sys.stderr)
            result = run(command, job, cell["hosts"], options, cell["ranks"])
            average = statistics.mean if cell["jitter"] else statistics.median
            self.times.setdefault(name, []).append(average(result["step_ms"]))
            if "bytes_per_step" in result:
                self.bytes_per_step[name] = result["bytes_per_step"]

    def medians(self):
        return self.cell | {"compute_ms": self.compute, "line_bytes_per_second": statistics.median(self.lines),
                            "ms": {name: statistics.median(all) for name, all in self.times.items()},
                            "repetitions_ms": self.times, "bytes_per_step": self.bytes_per_step}


def measure(chosen, options):
    """Everything once, then the repeated cells, while there is time."""
    end = time.monotonic() + 60 * options.minutes
    cells = [Measured(cell, options.repetitions if often(cell) else 1) for cell in chosen]
    with tempfile.TemporaryDirectory() as folder:
        for repetition in range(options.repetitions):
            for cell in cells:
                if repetition < cell.repetitions and (repetition == 0 or time.monotonic() < end):
                    cell.repeat(options, pathlib.Path(folder))
    return [cell.medians() for cell in cells]


def limit(cell, schedule):
    link = 1e3 * fewest_bytes(schedule, cell["hosts"], cell["parameters"]) / cell["line_bytes_per_second"]
    return max(cell["ms"]["alone"], link)


def tuned_ddp(cell):
    return min(ms for name, ms in cell["ms"].items() if name.startswith("ddp"))


def summary(cells):
    """Only from the measured cells."""
    steady = [c for c in cells if c["hosts"] == 2 and not c["jitter"] and c["ranks"] == 1]
    shared = [c["ms"] for c in cells if c["ranks"] > 1]
    at = lambda ratio: [c for c in steady if c["link_over_compute"] == ratio and c["parameters"] == SMALL]
    jitter = [c for c in cells if c["hosts"] == 2 and c["jitter"]]
    ours = lambda c, schedule, wire="fp32": c["ms"][f"cta {schedule} {wire}"]
    return {
        "worst_over_limit": max((ours(c, s) / limit(c, s) for c in steady for s in SCHEDULES), default=None),
        "vs_decent_dp": min((c["ms"][f"decent-dp {theirs}"] / ours(c, mine)
                             for c in steady for theirs, mine in SAME_GRAPH.items()), default=None),
        "vs_ddp_at_equal": min((c["ms"]["ddp 25 MB"] / ours(c, s) for c in at(1) for s in SCHEDULES), default=None),
        "vs_tuned_ddp_at_equal": min((tuned_ddp(c) / ours(c, s) for c in at(1) for s in SCHEDULES), default=None),
        "all_reduce_vs_ddp": min((tuned_ddp(c) / c["ms"]["all-reduce"] for c in steady), default=None),
        "hierarchy_vs_ring": min((ms["cta alternating-exp-ring fp32"] / ms["cta base-2 fp32, hierarchy"]
                                  for ms in shared), default=None),
        "vs_ddp_jitter": min((tuned_ddp(c) / ours(c, "one-peer-exponential") for c in jitter), default=None),
    } | {f"{wire}_vs_decent_dp": min((c["ms"]["decent-dp ring"] / ours(c, "base-2", wire) for c in at(6)), default=None)
         for wire in NARROW}


def main():
    parser = parser_of(__doc__, program="bench-step")
    parser.add_argument("--only", default="", help="regular expression for the names of cells (default: all)")
    parser.add_argument("--repetitions", type=int, default=3,
                        help="repetitions of the cells with 17 MB on 2 hosts (default 3); others run once")
    parser.add_argument("--minutes", type=float, default=40, help="minutes after which no further repetition begins (default 40)")
    parser.add_argument("--python", default=str(ROOT / ".venv/bin/python"), help="a python that has torch and Decent-DP")
    parser.add_argument("--rate", default="1gbit", help="rate of every host's card, in the format of tc (default 1gbit)")
    options = parser.parse_args()
    chosen = [cell for cell in CELLS if re.search(options.only, cell["name"])]
    if not chosen:
        parser.error(f"--only: no cell has '{options.only}' in its name: {'; '.join(c['name'] for c in CELLS)}")
    try:
        cells = measure(chosen, options)
    except NoCluster as error:
        sys.exit(f"bench: {error}")
    result = summary(cells) | {
        "compute": "emulated: sleeps inside forward and backward",
        "rate": options.rate, **about(), "cells": cells}
    save(result, ROOT / "out/bench/step.json")


if __name__ == "__main__":
    main()
