#!/usr/bin/env python3
"""The fault matrix: four real workers train, one thing fails, and what docs/failures.md promises
must hold. Each cell is a fault under a scheme and a topology; faults.py lists the faults.

    make faults                                 all cells
    make faults FAULTS="comes-back dies-*"      the cells of these faults

A cell is red if one of these does not hold:

  ends      each process ends, and something happens at least every 60 s until then
  named     messages name what failed, in lines of their own
  trains    the survivors train to the last step, and write the summary of all of them
  apart     a worker without an edge to the one that died loses no exchange
  sum       under cta, two workers that stay have mixed as many blocks with each other: each at both
            ends or at none, so the sum of all parameters stays
  joins     the workers that were started again have joined, and no others; a newcomer's first
            loss is nearer to those of the others than to that of a new model
  parts     while the network is parted, workers make steps or pause as the policy says
  sound     the losses of the workers without a fault stay below ten times a new model's
  learns    score and consensus distance are as without a fault
  whole     every checkpoint that is there verifies
  clean     no process, no shared memory and no half checkpoint is left

Prints a table, and writes one object per cell to out/faults/matrix.json: the times from the fault
to the first message of another worker about it, and until the worker has joined again; exchanges
lost; loss and score. out/faults/matrix.md has a line for each fault. Faults of the network need
root.
"""

import argparse
import fnmatch
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import uuid

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent / folder) for folder in (".", "../train")]
from faults import FAULTS, LATE, LOST, STEP, TRAINED, VICTIM, WORKERS, Expect, Fault, compiled  # noqa: E402
from runs import free_port, metrics_of, write_images  # noqa: E402
from watched import Hang, Watched  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CLUSTER = ROOT / "scripts/cluster"
SCHEMES, TOPOLOGIES = ("cta", "a2cid2"), ("ring", "base-2")
NONE = Fault("none", "nothing fails", Expect())
APART = 1e-3  # a consensus distance; workers that do not mix are at 0.1
EVERY = 20  # steps between checkpoints, and between tests
FIRED = re.compile(r"starling\[(\d)\]: failpoint ")
JOINED = re.compile(r"starling\[(\d)\]: this worker has joined the run after step (\d+), with the state of worker \d")
# The spare hosts wait for a file, and then run the first workers again. The store has an address of
# its own, which goes with rank 0. The shell's own messages, as of a killed process, are not shown.
ELSEWHERE = """
exec 3>&2 2>/dev/null
again=$1 workers=$2
shift 2
export MASTER_ADDR=10.99.0.200 WORLD_SIZE=$workers
if [ "$RANK" -ge "$workers" ]; then
  until [ -e "$again" ]; do sleep 0.1; done
  export RANK=$((RANK - workers))
fi
[ "$RANK" != 0 ] || ip address add "$MASTER_ADDR/24" dev eth0
("$@" 2>&3)
exit $?
"""
A_LINE = re.compile(r"(starling|cluster)(\[\d+\])?: |step \d+")


class Cell:
    def __init__(self, fault, scheme, topology, folder):
        self.fault, self.scheme, self.topology = fault, scheme, topology
        self.folder = folder
        self.out = folder / f"{fault.name}-{scheme}-{topology}"
        self.wrong, self.figures = [], {}
        self.before = shared_memory()

    def command(self):
        return [os.environ["STARLING"], "train", self.folder / "recipe.toml", "--out", self.out,
                "--mixing.scheme", self.scheme, "--mixing.topology", self.topology,
                "--run.steps", self.fault.steps, *self.fault.arguments]

    def start(self):
        changed = dict(self.fault.variables)
        if self.fault.fail:
            changed["STARLING_FAIL"] = self.fault.fail
        if self.fault.launch == "local":
            return Watched(self.out, ([*self.command(), "--workers", WORKERS], {}), **changed)
        if self.fault.on_hosts:
            return self.start_on_hosts(f"faults-{uuid.uuid4().hex[:8]}", changed)
        port = free_port("127.0.0.1")
        commands = []
        for rank in range(WORKERS):
            arguments, variables = self.fault.changed if self.fault.changed and rank == VICTIM else ((), {})
            commands.append(([*self.command(), *arguments], {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORKERS),
                "LOCAL_WORLD_SIZE": str(WORKERS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                "STARLING_TOKEN": "the-token-of-this-run", **variables}))
        late = commands.pop(LATE) if self.fault.launch == "later" else None
        run = Watched(self.out, *commands, **changed)
        run.late = late
        return run

    def start_on_hosts(self, name, variables):
        hosts, command, again = WORKERS, self.command(), self.folder / f"{name}-again"
        if self.fault.launch == "elsewhere":
            hosts += len(LOST)
            command = ["sh", "-c", ELSEWHERE, "sh", again, WORKERS, *command]
        run = Watched(self.out, ([CLUSTER, "--name", name, "--hosts", hosts, "--rate", "0", "--grace", "600",
                                  "--", *command], {}), **variables)
        run.switch, run.again = f"starling-{name}-switch", again
        run.cable = lambda way, host: subprocess.run([CLUSTER, "--name", name, way, str(host)], check=True)
        run.kill_workers_of = lambda host: kill_workers_in(f"starling-{name}-{host}")
        return run

    def run(self, undisturbed=None):
        run = self.start()
        try:
            codes, at = [], None
            if self.fault.act:
                step = TRAINED if self.fault.expect.joins else STEP
                begin = WORKERS - (self.fault.launch == "later")
                run.until(lambda steps: len(steps) == begin and min(steps.values()) >= step, f"step {step}")
                at = time.monotonic()
                self.fault.act(run)
            codes = run.end()
            self.check(run, codes, at, undisturbed)
        except Hang as hang:
            self.wrong.append(f"ends: {hang}")
        finally:
            run.kill()
        self.figures["seconds"] = time.monotonic() - run.began
        if self.wrong:
            self.figures["messages"] = run.text
        return self

    def require(self, holds, what):
        if not holds:
            self.wrong.append(what)

    def check(self, run, codes, at, undisturbed):
        expect = self.fault.expect
        if expect.code is None:
            self.require(all(code not in (0, None) for code in codes), f"ends: the exit codes are {codes}")
        else:
            self.require(set(codes) == {expect.code}, f"ends: the exit codes are {codes}, not {expect.code}")
        if self.fault.fail:
            at = run.time_of(FIRED)
            self.require(at is not None, "the fault has not come")
        self.check_messages(run, at)
        self.check_parts(run)
        if expect.result:
            self.check_result(run, undisturbed)
        left = shared_memory() - self.before
        self.require(not left, f"clean: shared memory is left: {sorted(left)}")
        self.require(not run.workers(), f"clean: workers are left: {run.workers()}")

    def check_messages(self, run, at):
        expect = self.fault.expect
        for pattern in compiled(expect.says):
            self.require(run.time_of(pattern), f"named: no message matches {pattern.pattern!r}")
        for pattern in compiled(expect.silent):
            self.require(not run.time_of(pattern), f"named: a message matches {pattern.pattern!r}")
        for _, message in run.messages:
            self.require(A_LINE.match(message), f"named: {message!r} is no line of a message")
        joined = [int(found[1]) for _, message in run.messages if (found := JOINED.search(message))]
        if expect.again:
            self.require(set(joined) == set(expect.joins), f"joins: {joined} have joined")
        elif self.fault.launch != "hosts":  # where one may join or not
            self.require(sorted(joined) == sorted(expect.joins), f"joins: {joined} have joined")
        for victim in expect.dead + expect.joins:
            saw = run.time_of(re.compile(rf"starling\[(?!{victim})\d\]: .*worker {victim}( is gone|'s block .* jumps)"),
                              at or 0)
            if saw and at:
                self.figures["detected_s"] = saw - at
            back = run.time_of(re.compile(rf"starling\[{victim}\]: this worker has joined"), at or 0)
            if back and at:
                self.figures["joined_s"] = back - at

    def check_parts(self, run):
        stands = self.fault.expect.stands
        for rank in range(WORKERS if stands is not None else 0):
            steps = run.meanwhile.get(rank, 0)
            self.require((steps == 0) == (rank in stands),
                         f"parts: worker {rank} has made {steps} steps while the network was parted")

    def check_result(self, run, undisturbed):
        expect, steps = self.fault.expect, run.steps()
        left_out = expect.dead + (expect.joins if expect.again else ())
        for rank in set(range(WORKERS)) - set(left_out):
            self.require(steps.get(rank) == self.fault.steps, f"trains: worker {rank} is at step {steps.get(rank)}")
        try:
            summary = json.loads((self.out / "summary.json").read_text())
        except OSError as error:
            self.wrong.append(f"trains: no summary: {error}")
            return
        for key in ("loss", "test_loss", "accuracy", "consensus_distance", "blocks_aborted", "workers_lost"):
            self.figures[key] = summary[key]
        lost = {} if expect.again else {"workers_lost": len(expect.dead)}
        for key, value in {"workers": WORKERS, "steps": self.fault.steps, **lost}.items():
            self.require(summary[key] == value, f"trains: {key} is {summary[key]}, not {value}")
        records = metrics_of(self.out)
        self.check_apart(records)
        self.check_sum(records)
        self.check_newcomers(run, records)
        self.check_sound(records)
        if undisturbed:
            self.require(summary["accuracy"] >= undisturbed["accuracy"] - 0.02,
                         f"learns: accuracy {summary['accuracy']}, without the fault {undisturbed['accuracy']}")
            self.require(summary["consensus_distance"] <= 3 * undisturbed["consensus_distance"] + APART,
                         f"learns: consensus distance {summary['consensus_distance']}, "
                         f"without the fault {undisturbed['consensus_distance']}")
        self.check_checkpoints()

    def check_newcomers(self, run, records):
        """Later steps tell nothing: mixing pulls any newcomer to the others."""
        new = loss_of_new(records)
        for _, message in run.messages:
            if found := JOINED.search(message):
                rank, after = map(int, found.groups())
                first = next((record["loss"] for record in records[rank] if record["step"] > after), None)
                trained = min(filter(None, (mean_loss(of, after) for other, of in records.items() if other != rank)),
                              default=new)
                if first is not None and trained < new / 3:  # else nobody has learnt much yet
                    self.require(first - trained < (new - trained) / 2, f"joins: worker {rank} begins with the loss "
                                 f"{first}, others have {trained}, a new model {new}")

    def check_sound(self, records):
        """What fails at one worker does not spread to the others."""
        new = loss_of_new(records)
        for rank in set(records) - set(self.fault.expect.dead + self.fault.expect.joins):
            worst = max(records[rank], key=lambda record: record["loss"])
            self.require(worst["loss"] < 10 * new, f"sound: worker {rank} has the loss {worst['loss']} at step "
                         f"{worst['step']}, a new model {new}")

    def check_apart(self, records):
        """The worker across the ring is no neighbour of the one that died alone."""
        dead = self.fault.expect.dead
        if self.topology != "ring" or len(dead) != 1 or "--restart" in self.fault.arguments:
            return
        across = (dead[0] + 2) % WORKERS
        lost = records[across][-1]["blocks_aborted"]
        self.require(lost == 0, f"apart: worker {across} has lost {lost} exchanges")

    def check_sum(self, records):
        """Compares the last round that both have logged. Asynchronous workers have none in common."""
        stay = set(records) - set(self.fault.expect.dead + self.fault.expect.joins)
        if self.scheme != "cta":
            return
        mixed = {rank: {record["round"]: {edge["rank"]: edge["blocks"] for edge in record["mixed"]}
                        for record in records[rank]} for rank in stay}
        self.figures["mixed"] = 0
        for one, other in itertools.combinations(sorted(stay), 2):
            last = max(set(mixed[one]) & set(mixed[other]))
            ends = mixed[one][last].get(other, 0), mixed[other][last].get(one, 0)
            self.figures["mixed"] += sum(ends)
            self.require(ends[0] == ends[1], f"sum: up to round {last} workers {one} and {other} have mixed "
                         f"{ends[0]} and {ends[1]} blocks with each other")
        self.require(len(stay) < 2 or self.figures["mixed"] > 0, "sum: nothing was mixed")

    def check_checkpoints(self):
        folder = self.out / "checkpoints"
        found = sorted(folder.glob("step-*"))
        self.require(any(not path.name.endswith(".tmp") for path in found), "whole: there is no checkpoint")
        for path in found:
            if path.name.endswith(".tmp"):
                self.wrong.append(f"clean: {path.name} is left")
                continue
            done = subprocess.run([os.environ["STARLING"], "checkpoint", "show", path], capture_output=True, text=True)
            self.require(done.returncode == 0, f"whole: {done.stderr.strip()}")

    def as_json(self):
        return {"fault": self.fault.name, "scheme": self.scheme, "topology": self.topology,
                "green": not self.wrong, "wrong": self.wrong, **self.figures}


def mean_loss(records, after):
    """Over five steps; None without any."""
    losses = [record["loss"] for record in records if after < record["step"] <= after + 5]
    return sum(losses) / len(losses) if losses else None


def loss_of_new(records):
    """The largest mean over the first five steps of a worker; 0 without any."""
    return max(filter(None, (mean_loss(of, 0) for of in records.values())), default=0)


def kill_workers_in(host):
    """The starling processes in this network namespace."""
    found = subprocess.run(["ip", "netns", "pids", host], check=True, stdout=subprocess.PIPE, text=True).stdout
    for pid in map(int, found.split()):
        if os.path.samefile(f"/proc/{pid}/exe", os.environ["STARLING"]):
            os.kill(pid, 9)


def shared_memory():
    return {path.name for path in pathlib.Path("/dev/shm").iterdir()}


def write_recipe(folder):
    data = folder / "data"
    data.mkdir()
    write_images(data, 640, 100)
    (folder / "recipe.toml").write_text(f"""
data = {{dir = "{data}", flip = false}}
model.width = 8
run.threads = 1
optimizer = {{rule = "adamw", lr = 0.003}}
train.batch = 4
checkpoint = {{every = {EVERY}, keep = 3}}
log = {{every = 1, eval_every = {EVERY}}}
""")


def may_emulate_hosts():
    return subprocess.run([CLUSTER, "--hosts", "1", "true"], capture_output=True).returncode != 125


def row(cell):
    def seconds(key):
        return f"{cell.figures[key]:7.2f}" if key in cell.figures else "      -"

    return (f"{cell.fault.name:<26}{cell.scheme:<8}{cell.topology:<8}{'red  ' if cell.wrong else 'green'}"
            f"{seconds('detected_s')}{seconds('joined_s')}{cell.figures.get('blocks_aborted', 0):8.1f}"
            f"{cell.figures.get('accuracy', float('nan')):9.3f}{cell.figures['seconds']:7.0f}")


def table(cells):
    """A line for each fault, over all of its cells."""
    text = "| fault | cells that hold | seen after, s | back after, s | lowest score |\n|-|-|-|-|-|\n"
    for fault in (NONE, *FAULTS):
        of_it = [cell for cell in cells if cell.fault is fault]
        if not of_it:
            continue

        def most(key, digits, choose=max, of_it=of_it):
            values = [cell.figures[key] for cell in of_it if key in cell.figures]
            return f"{choose(values):.{digits}f}" if values else ""

        green = sum(not cell.wrong for cell in of_it)
        text += (f"| {fault.what} | {green} of {len(of_it)} | {most('detected_s', 2)} | {most('joined_s', 1)} | "
                 f"{most('accuracy', 3, min)} |\n")
    return text


def run_cells(faults, schemes=SCHEMES, topologies=TOPOLOGIES, keep=lambda cells: None):
    """Runs the faults under these schemes and topologies. Returns their cells. keep(cells): after each."""
    cells, undisturbed = [], {}
    print(f"{'fault':<26}{'scheme':<8}{'graph':<8}{'':5}{'seen s':>7}{'back s':>7}{'lost':>8}{'score':>9}{'s':>7}")
    with tempfile.TemporaryDirectory(prefix="starling-faults-") as name:
        folder = pathlib.Path(name)
        write_recipe(folder)
        for scheme in schemes:
            for topology in topologies:
                for fault in (NONE, *faults):
                    if fault.only not in ("", scheme):
                        continue
                    cell = Cell(fault, scheme, topology, folder).run(undisturbed.get((scheme, topology)))
                    if fault is NONE:
                        undisturbed[scheme, topology] = cell.figures
                    cells.append(cell)
                    print(row(cell), flush=True)
                    for wrong in cell.wrong:
                        print(f"    {wrong}", flush=True)
                    keep(cells)
    return cells


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="names or patterns such as dies-* (default: all)")
    parser.add_argument("--list", action="store_true", help="list the faults, and run none")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out/faults", help="default: out/faults")
    options = parser.parse_args()
    chosen = [fault for fault in FAULTS
              if not options.faults or any(fnmatch.fnmatch(fault.name, each) for each in options.faults)]
    if not chosen:
        parser.error(f"no fault is named {' or '.join(options.faults)}; there are: "
                     f"{', '.join(fault.name for fault in FAULTS)}")
    if options.list:
        for fault in chosen:
            print(f"{fault.name:<26}{fault.what}")
        return 0
    if "STARLING" not in os.environ:
        parser.error("set STARLING to the path of the starling command")
    if any(fault.on_hosts for fault in chosen) and not may_emulate_hosts():
        print("matrix: no emulated hosts here, so their faults are left out: they need root", file=sys.stderr)
        chosen = [fault for fault in chosen if not fault.on_hosts]
    options.out.mkdir(parents=True, exist_ok=True)

    def keep(cells):
        (options.out / "matrix.json").write_text(json.dumps([cell.as_json() for cell in cells], indent=1) + "\n")
        (options.out / "matrix.md").write_text(table(cells))

    cells = run_cells(chosen, keep=keep)
    red = sum(bool(cell.wrong) for cell in cells)
    print(f"{len(cells)} cells, {red} red: {options.out / 'matrix.json'}, and matrix.md as a table")
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
