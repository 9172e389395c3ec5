#!/usr/bin/env python3
"""Does the planner predict the time of a step? `starling plan` beside measured runs on emulated
hosts; prints JSON.

    bench/planner.py [--only REGEX] [--again] [--least-idle SHARE]
        measures what is missing or was not idle enough
    bench/planner.py --table
        prints the table of docs/results/planner.md from the last run

Needs root: the hosts are those of scripts/cluster, whose cards have limited rates. The compute is a
sleep inside forward and backward, which varies as compute does, so that several hosts fit on a
machine with few cores. Gradients, updates and the network are real.

For each configuration `starling probe` measures the network, one run records its compute (as
`starling train --profile-out` does), and `starling plan` predicts all-reduce and every schedule
from these two. Then all of them are measured, twice in turn, and the mean counts. If the two are
more than 5 % apart, they are measured once more, and the median counts. The measurements include
the planner's recommendation among all schedules and wires, if it is another one, and torch's DDP
with buckets as large as our blocks. Measurements during which the machine was idle for less than
75 % are repeated, three times in all. The one with the most idle time counts, and a measured step
below 40 % is rejected.

Each configuration leaves its profiles and times in out/bench/planner/; predictions are made again
from these. Writes out/bench/planner.json:

    median_error, worst_error  of a step's time: |predicted / measured - 1|, of all schedules and
                               wires
    first_choice_share         share of configurations in which the recommendation of `starling
                               plan` is the fastest of the measured ones, or takes at most 3 %
                               longer
    first_choice_share_of_fp32 the same when it is asked for the measured schedules over fp32 alone,
                               so that no narrow wire hides a wrong schedule
    all_reduce_error           the same error of all-reduce against torch's DDP, the worst;
                               by_formula: without the all-reduce that the probe measured, by the
                               formula alone
    configurations             their number
    rejected                   measurements that were not idle enough, by configuration
    simulate_10000_seconds     of the model: 10,000 workers, 10 blocks, 100 iterations, on one core
    overslept                  the excess of the sleeps over their requested time: the worst run's
                               mean
    rows                       all times in ms
"""

import collections
import json
import math
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

from workers import ROOT, NoCluster, Processors, RunFailed, about, emulated, loopback, parser_of, save

PEERS = ROOT / "bench/step_peers.py"
LAYERS, SECONDS, STEPS, REPETITIONS, TRIES, PROBE_SECONDS = 8, 3, 8, 2, 3, 16
WARM_UP = 9  # steps, as in bench/planner.cpp: up to seven more, for whole periods of a schedule
IDLE_ENOUGH = 0.75
APART = 1.05
STRAGGLER, CV, VARYING = 1.5, 0.05, 0.3
WIRES = ("fp32", "bf16", "int8")  # the wires that the planner compares
RECORDED, ATC, ALL_REDUCE = "base-2 fp32", "base-2 atc", "all-reduce fp32"
# Parameters of all workers of a host, so that they cross its card in about the same time for any
# number of workers.
PARAMETERS = {"100mbit": 524_288, "250mbit": 1_048_576, "500mbit": 2_097_152, "1gbit": 4_194_304, "2gbit": 4_194_304}


def rate_of(text):
    """Bits a second of the slowest card."""
    units = {"k": 1e3, "m": 1e6, "g": 1e9}
    return min(float(rate[:-4]) * units[rate[-4]] for rate in text.split(","))


def configuration(hosts, ranks, rate, compute, vary=""):
    """`compute`: relative to the time of all parameters of a host's workers on the slowest card."""
    workers = f"{hosts} hosts" if ranks == 1 else f"{hosts} hosts with {ranks} workers each"
    return {"name": f"{workers}, {rate}, compute {compute} x link{vary and ', ' + vary}", "hosts": hosts, "ranks": ranks,
            "rate": rate, "compute": compute, "vary": vary, "parameters": PARAMETERS[min(rate.split(","), key=rate_of)] // ranks,
            "seconds": SECONDS, "probe_seconds": PROBE_SECONDS, "idle_enough": IDLE_ENOUGH}


CONFIGURATIONS = [
    configuration(2, 1, "100mbit", 1),
    configuration(2, 1, "500mbit", 0.2),
    configuration(2, 1, "500mbit", 1.5),
    configuration(2, 1, "1gbit", 0.5),
    configuration(2, 1, "1gbit", 1),
    configuration(2, 1, "2gbit", 2),
    configuration(2, 2, "250mbit", 0.5),
    configuration(2, 2, "500mbit", 2),
    configuration(2, 1, "250mbit,500mbit", 0.7),
    configuration(4, 1, "100mbit", 0.5),
    configuration(4, 1, "250mbit", 0.2),
    configuration(4, 1, "250mbit", 1),
    configuration(4, 1, "500mbit", 0.7),
    configuration(4, 1, "500mbit", 1.5),
    configuration(4, 1, "1gbit", 3),
    configuration(4, 2, "100mbit", 1),
    configuration(4, 2, "250mbit", 2),
    configuration(4, 1, "100mbit,250mbit", 1),
    configuration(4, 1, "250mbit", 1, "a straggler"),
    configuration(6, 1, "100mbit", 1),
    configuration(6, 1, "250mbit", 0.5),
    configuration(6, 1, "500mbit", 3),
    configuration(6, 1, "100mbit,250mbit", 2),
    configuration(8, 1, "100mbit", 0.5),
    configuration(8, 1, "250mbit", 1.5),
    configuration(8, 1, "100mbit", 1.5, "a straggler"),
    # These take longest.
    configuration(4, 1, "500mbit", 1.5, "varying"),
    configuration(6, 2, "100mbit", 2),
]

# Tries all of it in seconds, without root: two workers on this host, in shared memory. Compute in
# seconds.
TRIAL = {"name": "trial", "hosts": 1, "ranks": 2, "rate": "0", "compute": 0.01, "vary": "", "parameters": 524_288,
         "seconds": 0.1, "probe_seconds": 0.1, "idle_enough": 0}


def systems(config):
    """The schedules by name, in the order of `starling plan` for equal step times, all with
    different graphs. Two workers have only one to exchange with, in every round or in some; two
    hosts with two workers each have one more. base-2 records the compute."""
    hosts, ranks = config["hosts"], config["ranks"]
    schedules = ["base-2", "alternating-exp-ring"]
    if ranks > 1:
        schedules += (["hierarchical:base-2", "inner-outer:base-2"] if hosts > 2 else ["ring"]) + ["complete"]
    elif hosts == 6:
        schedules = ["base-2", "base-3", "ring", "complete"]
    elif hosts > 2:
        schedules += ["ring", "complete"]
    cta = [(schedule, "fp32") for schedule in schedules] + [("base-2", wire) for wire in WIRES[1:]]
    return {f"{schedule} {wire}": {"scheme": "cta", "topology": schedule, "wire": wire} for schedule, wire in cta} | {
        ATC: {"scheme": "atc", "topology": "base-2", "wire": "fp32"},
        ALL_REDUCE: {"scheme": "all-reduce", "topology": "base-2", "wire": "fp32"}}


def job_of(config):
    if config["rate"] == "0":
        compute = config["compute"]
    else:
        compute = config["compute"] * config["ranks"] * 4 * config["parameters"] * 8 / rate_of(config["rate"])
    cv, steps = (VARYING, 60) if config["vary"] == "varying" else (CV, STEPS)
    spread = math.sqrt(math.log(1 + cv**2))
    workers = []
    for rank in range(config["hosts"] * config["ranks"]):
        dice = random.Random(rank)
        slower = STRAGGLER if config["vary"] == "a straggler" and rank == 1 else 1
        workers.append([slower * compute * dice.lognormvariate(-(spread**2) / 2, spread) for _ in range(200)])
    return {"parameters": config["parameters"], "layers": LAYERS, "compute": workers, "seconds": config["seconds"],
            "steps": steps}


def workers_say(command, config):
    if config["rate"] == "0":
        return loopback(command, config["ranks"])
    return emulated(command, config["hosts"], config["rate"], config["ranks"])


def run(command, job, config, work):
    path = work / "job.json"
    path.write_text(json.dumps(job))
    return json.loads(workers_say([str(path) if word == "JOB" else word for word in command], config))


class MostIdle:
    """The measurement of each name with the most idle time, of up to TRIES; `kept` ones are not
    repeated."""

    def __init__(self, config, kept):
        self.of, self._enough = dict(kept), config["idle_enough"]
        self._tries = collections.Counter(dict.fromkeys(kept, TRIES))

    def wants(self, name):
        return self._tries[name] == 0 or (self._tries[name] < TRIES and self.of[name]["idle"] < self._enough)

    def takes(self, name, one):
        self._tries[name] += 1
        better = name not in self.of or one["idle"] > self.of[name]["idle"]
        if better:
            self.of[name] = one
        return better


def measured(config, kept, options, work):
    """By system: its time, and how idle the machine was; the mean of REPETITIONS runs, made in
    turn. The first of RECORDED also gives the compute, in compute.json. The planner's
    recommendation follows."""
    best = MostIdle(config, kept)
    measure_systems(config, systems(config), best, options, work)
    first = first_choice(work, options)
    measure_systems(config, first, best, options, work)
    # DDP in the same way, with as many steps as our own all-reduce.
    job, steps, warm_up = job_of(config), best.of[ALL_REDUCE]["steps"], 8
    compute = [[mine[k % len(mine)] for k in range(warm_up + steps)] for mine in job["compute"]]
    bucket = 4 * job["parameters"] / LAYERS / 2**20
    while best.wants("ddp"):
        one = run([options.python, str(PEERS), "JOB", "ddp", str(bucket)],
                  job | {"compute": compute, "warm_up": warm_up}, config, work)
        best.takes("ddp", one | {"step_ms": statistics.mean(one["step_ms"])})
    return best.of, first


def are_apart(times):
    return max(times) > APART * min(times)


def measure_systems(config, wanted, best, options, work):
    job = job_of(config)

    def runs_of(names, repetitions, profile=""):
        """By name, REPETITIONS runs of each, made in turn."""
        each = {f"{name}, {k}": name for k in range(repetitions) for name in names}
        said = run([options.program, "steps", "JOB"],
                   job | {"systems": [{"name": one} | wanted[name] for one, name in each.items()], "profile": profile},
                   config, work)  # fmt: skip
        return {name: [said[one] for one in each if each[one] == name] for name in names}

    while left := [name for name in wanted if best.wants(name)]:
        profile = work / "tried.json"
        runs = runs_of(left, REPETITIONS, str(profile) if left[0] == RECORDED else "")
        if unsteady := [name for name in left if are_apart([one["step_ms"] for one in runs[name]])]:
            for name, more in runs_of(unsteady, 1).items():
                runs[name] += more
        for name, of_name in runs.items():
            times = [one["step_ms"] for one in of_name]
            one = of_name[0] | {"step_ms": statistics.median(times), "idle": min(one["idle"] for one in of_name),
                                "repetitions_ms": times}  # fmt: skip
            if best.takes(name, one) and name == RECORDED:
                profile.rename(work / "compute.json")


def measure(config, kept, options, folder):
    """Measures what is not kept, into its folder, which changes only when all is measured."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        work = pathlib.Path(temporary) / "work"
        if kept:
            shutil.copytree(folder, work)
        else:
            work.mkdir()
        probes = MostIdle(config, {"probe": {"idle": kept["probe_idle"]}} if kept else {})
        while probes.wants("probe"):
            tried, processors = work / "tried.json", Processors()
            workers_say([options.starling, "probe", "--seconds", str(config["probe_seconds"]), "--out", str(tried)], config)
            if probes.takes("probe", {"idle": processors.idle()}):
                tried.rename(work / "network.json")
        times, first = measured(config, kept.get("systems", {}), options, work)
        said = {"configuration": config, "probe_idle": probes.of["probe"]["idle"], "first_choice": first, "systems": times}
        (work / "measured.json").write_text(json.dumps(said, indent=2))
        shutil.rmtree(folder, ignore_errors=True)
        work.rename(folder)


def is_settled(one):
    """Whether its runs agree, or their number is at its limit."""
    times = one.get("repetitions_ms", [])
    return len(times) != REPETITIONS or not are_apart(times)


def kept_of(config, options, folder):
    """The measurements with enough idle time that have settled; {} if the network or the compute
    was not idle enough."""
    if options.again or not folder.exists():
        return {}
    kept = json.loads((folder / "measured.json").read_text())
    kept["systems"] = {name: one for name, one in kept["systems"].items()
                       if one["idle"] >= options.least_idle and is_settled(one)}  # fmt: skip
    usable = kept["configuration"] == config and RECORDED in kept["systems"] and kept["probe_idle"] >= options.least_idle
    return kept if usable else {}


def is_whole(config, kept, options, folder):
    if "first_choice" not in kept:
        return False
    return {*systems(config), *first_choice(folder, options), "ddp"} <= kept["systems"].keys()


def plan(folder, options, *arguments):
    """The output of `starling plan` for the measured number of workers."""
    command = [options.starling, "plan", "--profile", folder / "network.json", "--compute", folder / "compute.json",
               "--warm-up", str(WARM_UP), "--json", *arguments]
    world, = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["worlds"]
    return world


def first_choice(folder, options, *arguments):
    """The name of its recommendation."""
    one = plan(folder, options, *arguments)["recommended"]
    name = f"{one['schedule']} {'atc' if one['scheme'] == 'atc' else one['wire']}"
    return {name: {"scheme": one["scheme"], "topology": one["schedule"], "wire": one["wire"]}}


def predictions(folder, of_systems, steps, options):
    """Milliseconds of a step by name, each over its own number of steps."""
    predicted = {}
    for name, count in steps.items():
        system = of_systems[name]
        world = plan(folder, options, "--iterations", str(count), "--topologies", system["topology"], "--wires", system["wire"])
        of = {"cta": world["gossip"][0], "atc": world["atc"], "all-reduce": world["all_reduce"]}
        predicted[name] = 1e3 * of[system["scheme"]]["step"]
    return predicted


def rows_of(folder, options, work):
    """One configuration: its predictions, its measurements, and the rejected ones."""
    kept = json.loads((folder / "measured.json").read_text())
    config, times = kept["configuration"], kept["systems"]
    rejected = [name for name, one in times.items() if one["idle"] < options.least_idle]
    if RECORDED in rejected or kept["probe_idle"] < options.least_idle:  # no base for a prediction
        return [], list(times)
    of_systems = systems(config) | kept["first_choice"]
    predicted = predictions(folder, of_systems, {name: times[name]["steps"] for name in of_systems}, options)
    network = json.loads((folder / "network.json").read_text())
    network.pop("all_reduce", None)
    (work / "network.json").write_text(json.dumps(network))
    shutil.copy(folder / "compute.json", work)
    by_formula = predictions(work, of_systems, {ALL_REDUCE: times[ALL_REDUCE]["steps"]}, options)[ALL_REDUCE]
    rows = []
    for name in [*predicted, "ddp"]:
        if name in rejected:
            continue
        one = times[name]
        row = {"configuration": config["name"], "system": name,
               "predicted_ms": predicted[ALL_REDUCE if name == "ddp" else name], "measured_ms": one["step_ms"]}
        row["error"] = row["predicted_ms"] / row["measured_ms"] - 1
        if name == "ddp":
            row["by_formula_ms"] = by_formula
        rows.append(row | {"idle": one["idle"], "overslept": one.get("overslept")})
    return rows, rejected


def good_choice(rows, chosen, wires):
    """Whether the choice is nearly the fastest of the measured ones over these wires; None if it
    was not measured."""
    gossip = {row["system"]: row["measured_ms"] for row in rows
              if row["system"] not in (ATC, ALL_REDUCE, "ddp") and row["system"].endswith(wires)}
    return gossip[chosen] <= 1.03 * min(gossip.values()) if chosen in gossip else None


def choices_of(folder, rows, options):
    """One configuration: whether the planner's first choice was a good one, and the same over fp32
    alone."""
    config = json.loads((folder / "measured.json").read_text())["configuration"]
    over_fp32 = ",".join(one["topology"] for name, one in systems(config).items()
                         if one["scheme"] == "cta" and one["wire"] == "fp32")
    first, = first_choice(folder, options)
    first_of_fp32, = first_choice(folder, options, "--topologies", over_fp32, "--wires", "fp32")
    return good_choice(rows, first, WIRES), good_choice(rows, first_of_fp32, ("fp32",))


def share_of(choices):
    known = [choice for choice in choices if choice is not None]
    return statistics.mean(known) if known else None


def largest(errors):
    return max(map(abs, errors), default=None)


def summary(folders, options):
    of_configurations, choices, rejected = [], [], {}
    with tempfile.TemporaryDirectory() as work:
        for folder in folders:
            mine, not_idle = rows_of(folder, options, pathlib.Path(work))
            of_configurations.append(mine)
            if mine:
                choices.append(choices_of(folder, mine, options))
            if not_idle:
                rejected[mine[0]["configuration"] if mine else folder.name] = not_idle
    rows = [row for mine in of_configurations for row in mine]
    errors = [abs(row["error"]) for row in rows if row["system"] != "ddp"]
    ddp = [row for row in rows if row["system"] == "ddp"]
    size = ["100", "4", "10"] if options.trial else ["10000", "10", "100"]
    simulated = subprocess.run([options.program, "simulate", *size], check=True, capture_output=True, text=True)
    return {
        "median_error": statistics.median(errors) if errors else None,
        "worst_error": largest(errors),
        "first_choice_share": share_of([choice for choice, _ in choices]),
        "first_choice_share_of_fp32": share_of([choice for _, choice in choices]),
        "all_reduce_error": {"as_measured": largest(row["error"] for row in ddp),
                             "by_formula": largest(row["by_formula_ms"] / row["measured_ms"] - 1 for row in ddp)},
        "configurations": sum(map(bool, of_configurations)),
        "rejected": rejected,
        f"simulate_{size[0]}_seconds": json.loads(simulated.stdout)["seconds"],
        "overslept": max((row["overslept"] for row in rows if row["overslept"] is not None), default=None),
        "least_idle": options.least_idle,
        "compute": "emulated: sleeps inside forward and backward", **about(), "rows": rows}


def table(result):
    """A line for each configuration."""
    print("| configuration | measured ms (the prediction's error) | idle |\n|-|-|-|")
    by_name = {}
    for row in result["rows"]:
        by_name.setdefault(row["configuration"], []).append(row)
    for name, rows in by_name.items():
        cells = ", ".join(f"{row['system'].removesuffix(' fp32')} {row['measured_ms']:.0f} ({100 * row['error']:+.1f} %)"
                          for row in rows)
        print(f"| {name} | {cells} | {100 * min(row['idle'] for row in rows):.0f} % |")


def main():
    parser = parser_of(__doc__, program="bench-planner", starling=True)
    parser.add_argument("--only", default="", help="configurations whose name this regular expression finds; else all")
    parser.add_argument("--again", action="store_true", help="measure also what was measured before")
    parser.add_argument("--least-idle", type=float, default=0.4, help="of the machine's processors in a run that counts (0.4)")
    parser.add_argument("--table", action="store_true", help="print the table of docs/results/planner.md from the last run")
    parser.add_argument("--trial", action="store_true", help="without root or limits: one small configuration, in seconds")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out/bench/planner",
                        help="folder of the measurements; the result is beside it (default out/bench/planner)")
    parser.add_argument("--python", default=str(ROOT / ".venv/bin/python"), help="a python that has torch")
    options = parser.parse_args()
    if options.table:
        return table(json.loads(options.out.with_suffix(".json").read_text()))
    chosen = [TRIAL] if options.trial else [config for config in CONFIGURATIONS if re.search(options.only, config["name"])]
    if not chosen:
        parser.error(f"--only: no configuration has '{options.only}' in its name: "
                     + "; ".join(config["name"] for config in CONFIGURATIONS))
    options.out.mkdir(parents=True, exist_ok=True)
    folders = []
    for config in chosen:
        folder = options.out / re.sub(r"[^\w.]+", "-", config["name"])
        print(f"bench: {config['name']}", file=sys.stderr)
        try:
            kept = kept_of(config, options, folder)
            if not is_whole(config, kept, options, folder):
                measure(config, kept, options, folder)
            folders.append(folder)
        except NoCluster as error:
            sys.exit(f"bench: {error}")
        except RunFailed as failed:  # the others still count; a later call measures it
            print(f"bench: {config['name']}: not measured: {failed}", file=sys.stderr)
    save(summary(folders, options), options.out.with_suffix(".json"))


if __name__ == "__main__":
    main()
