#!/usr/bin/env python3
"""Seconds until a loss: Starling beside torch's DDP and Decent-DP, on emulated hosts; prints JSON.

    bench/time_to_loss.py [--task text|translation] [--hosts N] [--steps N] [--longer FACTOR]
        [--lr X ..] [--window N] [--only REGEX] [--quick]
    bench/time_to_loss.py --document out/bench/time_to_loss.json

One worker on each host of scripts/cluster (root is needed) trains a small GPT-2 (or Transformer) in
real time. All systems run the same model in Python on the same packed data, from the same weights,
so only the exchange differs. The rate of the hosts' cards makes the fp32 parameters take 1 x, then
3 x, as long on the link as a step without an exchange computes. The compute is measured first. Rule
and schedule are those of recipes/small; AdamW and AccumAdamW have their recipes' learning rates, or
with --lr these for AdamW, and AccumAdamW's in the recipes' proportion.

The systems that average gradients train for --steps. The others see gradients of their own, and
train --longer times as many steps; the schedule is stretched to the length of a run. The loss is
that of the average model on held-out data, computed after the run from snapshots. The goal is the
loss at the end of DDP's run. Writes out/bench/time_to_loss.json (--out):

    fp32_vs_ddp    seconds until the goal of Starling's fastest system in fp32, over DDP's seconds;
                   link = compute (wanted: at most 0.7)
    int8_vs_ddp    the same in int8, with link = 3 x compute (wanted: at most 0.4)
    vs_decent_dp   Starling's fastest over Decent-DP's fastest; the larger of both settings (wanted:
                   at most 1)
    missing        why a key has no value
    settings       per system: steps, seconds and bytes until the goal; the three over DDP's; the
                   curve of the loss against steps, seconds and bytes (of one worker, on the wire)

Also out/bench/time_to_loss.md, the same as tables. --document puts these into
docs/results/measurements.md, where scripts/pictures finds what it draws.
"""

import argparse
import json
import pathlib
import re
import runpy
import statistics
import sys
import tempfile
import tomllib

from workers import ROOT, NoCluster, about, emulated, loopback, save

WORKER = ROOT / "bench/time_to_loss_worker.py"
LINE = ROOT / "bench/step_peers.py"
PAYLOAD = 0.957  # of a card's bits, with TCP over Ethernet
SHAPES = {"text": {"context": 128, "width": 128, "heads": 4, "layers": 4},
          "translation": {"width": 128, "heads": 4, "layers": 2, "dropout": 0.1}}
DATA = {"text": "out/small/english", "translation": "out/small/ende"}
BATCH = {"text": 4, "translation": 16}  # examples
SNAPSHOTS = 20
PAGE = ROOT / "docs/results/measurements.md"
BEGIN, END = "<!-- Written by bench/time_to_loss.py --document: begin -->\n", "<!-- end -->\n"


def system(by, rule="adam", ratios=(1, 3), **more):
    return {"by": by, "rule": rule, "ratios": ratios} | more


def starling(rule="adam", ratios=(1, 3), **more):
    return system("starling", rule, ratios, scheme="cta", **more)


SYSTEMS = {
    "DDP": system("ddp"),
    "DDP, buckets of 1/8": system("ddp", ratios=(1,), bucket_mb="an eighth"),
    "Starling all-reduce": system("starling", ratios=(1,), scheme="all-reduce"),
    "Decent-DP, DAdam": system("decent-dp", topology="one-peer-exp"),
    "Decent-DP, AccumAdam": system("decent-dp", "accum", topology="one-peer-exp"),
    "Starling DAdam": starling(topology="base-2", wire="fp32"),
    "Starling AccumAdam": starling("accum", ratios=(1,), topology="base-2", wire="fp32"),
    "Starling AccumAdam, AER": starling("accum", ratios=(1,), topology="alternating-exp-ring", wire="fp32"),
    "Starling DAdam, int8": starling(ratios=(3,), topology="base-2", wire="int8"),
    "Starling AccumAdam, int8": starling("accum", ratios=(3,), topology="base-2", wire="int8"),
}


def averages_gradients(system):
    return system["by"] in ("alone", "ddp") or system.get("scheme") == "all-reduce"


# ---------------------------------------------------------------- from curves to keys


def reached(curve, goal):
    """Steps, seconds and bytes until the loss is the goal, linear between two snapshots; None:
    never."""
    for before, at in zip([None, *curve], curve, strict=False):
        if at["loss"] <= goal:
            if before is None:
                return {key: at[key] for key in ("step", "seconds", "bytes")}
            part = (before["loss"] - goal) / (before["loss"] - at["loss"])
            return {key: None if at[key] is None else before[key] + part * (at[key] - before[key])
                    for key in ("step", "seconds", "bytes")}
    return None


def judged(runs):
    """The runs of a setting with their way to the goal, which is set here. runs: of --lr, the best
    one of each system counts."""
    ends = [run["curve"][-1] for run in runs if run["name"] == "DDP"]
    if not ends:
        return None
    ddp = min(ends, key=lambda end: end["loss"])
    for run in runs:
        run["goal"] = reached(run["curve"], ddp["loss"])
        run["over_ddp"] = run["goal"] and {key: run["goal"][key] / ddp[key] if ddp[key] else None
                                           for key in ("step", "seconds", "bytes")}
    return {"loss": ddp["loss"], "seconds": ddp["seconds"]}


def fastest(runs, wanted):
    """Seconds until the goal of the fastest of these; None: none reached it, or none ran."""
    return min((run["goal"]["seconds"] for run in runs if run["goal"] and wanted(run)), default=None)


def gossip(run, wire=None):
    return run["by"] == "starling" and run["scheme"] != "all-reduce" and wire in (None, run["wire"])


def summary(settings):
    """The keys, and why one has no value."""
    keys, missing = {"fp32_vs_ddp": None, "int8_vs_ddp": None, "vs_decent_dp": None}, {}
    of_both = []
    for ratio, key, wire in ((1, "fp32_vs_ddp", "fp32"), (3, "int8_vs_ddp", "int8")):
        at = next((s for s in settings if s["link_over_compute"] == ratio), None)
        if at is None or at["goal"] is None:
            missing[key] = f"DDP did not run with link = {ratio} x compute"
            continue
        ours = fastest(at["runs"], lambda run, wire=wire: gossip(run, wire))
        if ours is None:
            missing[key] = f"no run in {wire} reached DDP's loss: --longer gives more steps"
        else:
            keys[key] = ours / at["goal"]["seconds"]
        best, theirs = fastest(at["runs"], gossip), fastest(at["runs"], lambda run: run["by"] == "decent-dp")
        if best is not None and theirs is not None:
            of_both.append(best / theirs)
    if of_both:
        keys["vs_decent_dp"] = max(of_both)
    else:
        missing["vs_decent_dp"] = "in no setting did runs of both reach DDP's loss"
    return keys | {"missing": missing}


# ---------------------------------------------------------------- as tables

PERCENT = range(5, 101, 5)


def loss_at(curve, seconds):
    """Between two snapshots; None: the run has ended, or has left none yet."""
    for before, at in zip(curve, curve[1:], strict=False):
        if before["seconds"] <= seconds <= at["seconds"]:
            part = (seconds - before["seconds"]) / (at["seconds"] - before["seconds"])
            return before["loss"] + part * (at["loss"] - before["loss"])
    return None


def row(cells):
    return "| " + " | ".join(cells) + " |\n"


def tables(result):
    """Markdown for docs/results/measurements.md, which scripts/pictures reads."""
    said = (f"{result['date']}: {result['device']}.\n"
            f"{result['hosts']} hosts, {result['parameters']:,} parameters, batches of {result['batch']}, "
            f"seed {result['seed']}.\n"
            f"A step computes for {result['compute_ms']:.0f} ms. DDP and the all-reduce train for {result['steps']} steps.\n\n")
    for at in result["settings"]:
        title, goal = f"link = {at['link_over_compute']} x compute", at["goal"]
        if goal is None:
            continue
        said += row([title, "learning rate", "ms a step", "steps", "loss at the end", "seconds to the goal", "seconds over DDP's",
                     "steps over DDP's", "bytes over DDP's"]) + "|-" * 9 + "|\n"
        for run in at["runs"]:
            over = run["over_ddp"] or dict.fromkeys(("seconds", "step", "bytes"))
            said += row([run["name"], f"{run['rule']['lr']:g}", f"{run['step_ms']:.0f}", str(run["steps"]),
                         f"{run['curve'][-1]['loss']:.3f}", f"{run['goal']['seconds']:.1f}" if run["goal"] else "never",
                         *("" if over[key] is None else f"{over[key]:.2f}" for key in ("seconds", "step", "bytes"))])
        said += "\n" + row([f"loss, {title}", *(f"{percent} %" for percent in PERCENT)]) + "|-" * (1 + len(PERCENT)) + "|\n"
        for run in at["runs"]:
            losses = [loss_at(run["curve"], percent / 100 * goal["seconds"]) for percent in PERCENT]
            said += row([run["name"], *("" if loss is None else f"{loss:.3f}" for loss in losses)])
        said += "\n"
    return said


def document(path):
    """Puts the tables of this result into the page."""
    text = PAGE.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        sys.exit(f"bench: {PAGE}: there is no place for the tables: {BEGIN.strip()} .. {END.strip()}")
    PAGE.write_text(before + begin + tables(json.loads(path.read_text())).rstrip("\n") + "\n" + end + after)


# ---------------------------------------------------------------- runs


def recipe_of(task, twin=""):
    with open(ROOT / f"recipes/small/{task}{twin}.toml", "rb") as file:
        return tomllib.load(file)


def rules_of(task, lr=None, window=None):
    """Adam's rule and the accumulating one, from the recipe and its twin. lr: Adam's. None: the
    recipe's."""
    names = {"adam": "Adam", "adamw": "AdamW", "accum-adam": "AccumAdam", "accum-adamw": "AccumAdamW"}
    rules = {}
    twin = recipe_of(task, "-all-reduce")["optimizer"]
    for kind, own in (("adam", twin), ("accum", recipe_of(task)["optimizer"])):
        rules[kind] = {"name": names[own["rule"]], "betas": own["betas"], "weight_decay": own.get("weight_decay", 0.0),
                       "lr": own["lr"] * (1 if lr is None else lr / twin["lr"])}
        if "window" in own:
            rules[kind]["window"] = window or own["window"]
    return rules


def packed_data(task, starling):
    """The folder of the small task's data, made if it is not there."""
    runpy.run_path(str(ROOT / "scripts/demo"), run_name="demo")["TASKS"][task].get_data(starling)
    return ROOT / DATA[task]


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        recipe = recipe_of(options.task)
        self.job = {"task": options.task, "data": str(options.data),
                    "shape": SHAPES[options.task] | {"vocabulary": options.vocabulary or recipe["model"]["vocabulary"]},
                    "batch": options.batch, "seed": options.seed, "test": options.test,
                    "schedule": {"name": recipe["schedule"]["name"], "warmup": recipe["schedule"]["warmup"],
                                 "final": recipe["schedule"].get("final", 0.0)},
                    "clip": recipe["train"].get("clip", 0.0), "folder": str(folder)}
        self.parameters = None

    def line(self, rate):
        """Bytes per second that a host sends while it receives as many."""
        job = self.folder / "job.json"
        job.write_text("{}")
        said = emulated([self.options.python, str(LINE), str(job), "line"], 2, rate)
        return json.loads(said)["bytes_per_second"]

    def run(self, system, rule, steps, snapshots, rate):
        for left in self.folder.iterdir():
            left.unlink()
        job = self.folder / "job.json"
        if system.get("bucket_mb") == "an eighth":
            system = system | {"bucket_mb": 4 * self.parameters / 8 / 2**20}
        job.write_text(json.dumps(self.job | {"system": system, "rule": rule, "steps": steps, "snapshots": snapshots}))
        command = [self.options.python, str(WORKER), str(job)]
        if rate is None:
            loopback(command, self.options.hosts, "tcp")
        else:
            emulated(command, self.options.hosts, rate)
        workers = [json.loads((self.folder / f"{rank}.json").read_text()) for rank in range(self.options.hosts)]
        self.parameters = workers[0]["parameters"]
        curve = []
        for points in zip(*(worker["curve"] for worker in workers), strict=True):
            curve.append({
                "step": points[0]["step"],
                "seconds": max(point["seconds"] for point in points),  # of the slowest worker
                "bytes": None if points[0]["bytes"] is None else statistics.mean(point["bytes"] for point in points),
                "loss": next(point["loss"] for point in points if "loss" in point)})
        return {"step_ms": 1e3 * statistics.median(second for worker in workers for second in worker["step_seconds"]),
                "curve": curve}

    def compute_ms(self):
        """The time of a step without an exchange, while all workers compute."""
        options = self.options
        rule, rate = rules_of(options.task)["adam"], None if options.no_line else "0"
        return self.run({"by": "alone"}, rule, options.alone, [options.alone], rate)["step_ms"]

    def rate(self, ratio, compute_ms):
        """The card's rate. On it the parameters take `ratio` times as long as a step computes."""
        needed = 4 * self.parameters / (ratio * compute_ms / 1e3)  # bytes per second
        return f"{round(8 * needed / PAYLOAD / 1e3)}kbit"

    def setting(self, ratio, compute_ms):
        options, rate, line = self.options, None, None
        if not options.no_line:
            rate = self.rate(ratio, compute_ms)
            line = self.line(rate)
        runs = []
        for lr in options.lr or [None]:
            rules = rules_of(options.task, lr, options.window)
            for name, system in SYSTEMS.items():
                if ratio not in system["ratios"] or not re.search(options.only, name):
                    continue
                steps = options.steps if averages_gradients(system) else round(options.longer * options.steps)
                snapshots = sorted({round(steps * (i + 1) / SNAPSHOTS) for i in range(SNAPSHOTS)} - {0})
                rule = rules[system["rule"]]
                print(f"bench: link = {ratio} x compute: {name}, {rule['name']} with lr {rule['lr']:g}, {steps} steps",
                      file=sys.stderr)
                result = self.run(system, rule, steps, snapshots, rate)
                print(f"bench: {result['step_ms']:.1f} ms a step, loss {result['curve'][-1]['loss']:.4f} after "
                      f"{result['curve'][-1]['seconds']:.1f} s", file=sys.stderr)
                runs.append({"name": name} | system | {"rule": rule, "steps": steps} | result)
        goal = judged(runs)
        link = None if line is None else 4 * self.parameters / line / (compute_ms / 1e3)
        return {"link_over_compute": ratio, "measured_link_over_compute": link, "rate": rate,
                "line_bytes_per_second": line, "goal": goal, "runs": runs}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=SHAPES, default="text", help="what the systems learn (default %(default)s)")
    parser.add_argument("--hosts", type=int, default=2, help="emulated hosts (default %(default)s)")
    parser.add_argument("--steps", type=int, help="of the systems that average gradients (default 400)")
    parser.add_argument("--longer", type=float, default=1.35, help="the steps of the others over these (default 1.35)")
    parser.add_argument("--lr", type=float, nargs="+", help="learning rates of Adam's rule to try (default: the recipe's)")
    parser.add_argument("--window", type=int, help="steps in a window of AccumAdam (default: the recipe's)")
    parser.add_argument("--batch", type=int, help="examples of a worker's batch (default: 4 windows, 16 pairs)")
    parser.add_argument("--seed", type=int, default=1, help="of the run (default %(default)s)")
    parser.add_argument("--test", type=int, help="held-out examples (default 64)")
    parser.add_argument("--ratios", type=int, nargs="+", default=[1, 3], choices=[1, 3], help="link over compute")
    parser.add_argument("--only", default="", help="regular expression for the names of systems (default: all)")
    parser.add_argument("--quick", action="store_true", help="20 steps: checks that all systems run, in 3 minutes")
    parser.add_argument("--no-line", action="store_true", help="workers on this host, over loopback: no root is needed")
    parser.add_argument("--data", type=pathlib.Path, help="the packed data (default: out/small/.., made if it is not there)")
    parser.add_argument("--vocabulary", type=int, help="of --data (default: the recipe's)")
    parser.add_argument("--python", default=sys.executable, help="a python that has torch, Decent-DP and starling")
    parser.add_argument("--starling", default=str(ROOT / ".venv/bin/starling"), help="the command, to pack the data")
    parser.add_argument("--out", type=pathlib.Path,
                        help="default: out/bench/time_to_loss.json, or time_to_loss-TASK-HOSTS.json for others than text and 2")
    parser.add_argument("--document", type=pathlib.Path, metavar="JSON",
                        help="measures nothing: puts the tables of this result into docs/results/measurements.md")
    options = parser.parse_args()
    if options.document:
        return document(options.document)
    for name, least in (("hosts", 2), ("longer", 1), ("test", 1), ("steps", 4), ("batch", 1), ("window", 1)):
        if (value := getattr(options, name)) is not None and value < least:
            parser.error(f"--{name} {value}: at least {least} is needed")
    if not any(re.search(options.only, name) for name in SYSTEMS):
        parser.error(f"--only: no system has '{options.only}' in its name: {'; '.join(SYSTEMS)}")
    if options.data and not options.data.is_dir():
        parser.error(f"--data {options.data}: there is no such folder")
    options.batch = options.batch or BATCH[options.task]
    other = "" if (options.task, options.hosts) == ("text", 2) else f"-{options.task}-{options.hosts}"
    options.out = options.out or ROOT / f"out/bench/time_to_loss{other}.json"
    options.alone = 10 if options.quick else 40
    options.steps = options.steps or (20 if options.quick else 400)
    options.test = options.test or (16 if options.quick else 64)
    options.data = options.data or packed_data(options.task, options.starling)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, pathlib.Path(folder))
        try:
            compute_ms = bench.compute_ms()
            print(f"bench: {bench.parameters} parameters, a step computes for {compute_ms:.1f} ms", file=sys.stderr)
            settings = [bench.setting(ratio, compute_ms) for ratio in options.ratios]
        except NoCluster as error:
            sys.exit(f"bench: {error}")
    result = summary(settings) | {
        "task": options.task, "hosts": options.hosts, "steps": options.steps, "longer": options.longer, "seed": options.seed,
        "batch": options.batch, "parameters": bench.parameters, "compute_ms": compute_ms, **about(), "settings": settings}
    save(result, options.out)
    options.out.with_suffix(".md").write_text(tables(result))


if __name__ == "__main__":
    main()
