#!/usr/bin/env python3
"""The same faults under other systems: torchrun with DDP, Decent-DP, torchft, and Starling.

    make faults-peers                           all faults under all systems
    make faults-peers FAULTS="dies nan"         these faults

Four workers train the same small network; after 110 steps one thing fails. Each system is started
as its own documents say. DDP and Decent-DP run under `torchrun --max-restarts 3`, save a snapshot
every 20 steps, and load it at the start. torchft has a lighthouse, and Starling STARLING_REJOIN=1;
under both, a worker that dies is started again after 0.5 s, at most 3 times. Nothing looks for NaN.

Prints a table, and writes it to out/faults/peers.md and each run to out/faults/peers.json:

  outcome   continues, restarts all, crashes, hangs (no step for 120 s), or does not start
  pause     longest time between two steps of a worker that did not fail, after the fault
  back      time from the fault to the next step of the worker that failed
  repeated  steps that another worker had done, and did again
  NaN       workers with parameters that are not finite at the end
"""

import argparse
import json
import os
import pathlib
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent / "train"), str(ROOT / "bench")]
from runs import free_port  # noqa: E402
from watched import Hang, Watched  # noqa: E402
from workers import about  # noqa: E402

WORKERS, VICTIM = 4, 2
STEPS, STEP, EVERY = 800, 110, 20  # of the run; of the fault, between two snapshots; of a snapshot
QUIET = 120  # seconds without a step: the run hangs
RESTARTS, DELAY = 3, 0.5  # as often a worker is started again, so many seconds after its death
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nnodes", "1",
            "--nproc-per-node", WORKERS, "--max-restarts", RESTARTS]


def stand_still(seconds):
    def act(pid):
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(seconds, os.kill, (pid, signal.SIGCONT)).start()

    return act


@dataclass(frozen=True)
class Fault:
    what: str
    victim: int | None = VICTIM
    act: Callable = lambda pid: None  # act(pid of the victim)
    nan: bool = False
    away: bool = True  # the victim makes no steps for a while


FAULTS = {
    "none": Fault("nothing fails", victim=None, away=False),
    "dies": Fault(f"SIGKILL of worker {VICTIM}", act=lambda pid: os.kill(pid, signal.SIGKILL)),
    "first-dies": Fault("SIGKILL of worker 0", victim=0, act=lambda pid: os.kill(pid, signal.SIGKILL)),
    "stands-still": Fault(f"SIGSTOP of worker {VICTIM} for 8 s", act=stand_still(8)),
    "nan": Fault(f"a NaN gradient on worker {VICTIM}", nan=True, away=False),
}
SYSTEMS = {"ddp": "DDP, torchrun", "decent-dp": "Decent-DP, torchrun", "torchft": "torchft", "starling": "Starling"}
PACKAGES = {"torchft": "torchft", "decent-dp": "decent-dp"}


class Job:
    """The processes of one run."""

    def __init__(self, system, fault, out):
        self.out, self.run = out, Watched(out)
        self.command = [FOLDER / "peer.py", system, out, STEPS, EVERY, *([f"{fault.victim}:{STEP}"] if fault.nan else [])]
        self.workers, self.began, self.due = {}, Counter(), {}  # by rank, where this class starts the workers
        self.lighthouse, self.place = None, {}
        if system == "torchft":
            address = f"127.0.0.1:{free_port('127.0.0.1')}"
            self.lighthouse = subprocess.Popen(
                [pathlib.Path(sys.executable).parent / "torchft_lighthouse", "--bind", address, "--min_replicas", "1",
                 "--quorum_tick_ms", "100", "--join_timeout_ms", "10000"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.place = {"TORCHFT_LIGHTHOUSE": f"http://{address}"}
        elif system == "starling":
            meeting = out / "store"
            meeting.mkdir(mode=0o700)
            self.place = {"STARLING_REJOIN": "1", "STARLING_STORE_FOLDER": str(meeting), "STARLING_TOKEN": secrets.token_hex(32)}
        if system in ("ddp", "decent-dp"):
            self.run.add([*TORCHRUN, *self.command], {})
        else:
            for rank in range(WORKERS):
                self.start(rank)

    def start(self, rank):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": WORKERS, "LOCAL_WORLD_SIZE": WORKERS, "OMP_NUM_THREADS": 1}
        self.run.add([sys.executable, *self.command], {**{name: str(value) for name, value in place.items()}, **self.place})
        self.workers[rank] = self.run.processes[-1]
        self.began[rank] += 1

    def look_after(self):
        """Starts workers again that have died. Whether anything runs, or is yet to run."""
        codes = {rank: worker.poll() for rank, worker in self.workers.items()}
        for rank, code in codes.items():
            if code in (None, 0) or 0 in codes.values() or self.began[rank] > RESTARTS:
                self.due.pop(rank, None)
            elif time.monotonic() >= self.due.setdefault(rank, time.monotonic() + DELAY):
                del self.due[rank]
                self.start(rank)
        return bool(self.due) or self.run.running()

    def follow(self, done):
        """Until done(rank -> last step), or the end of all. Returns whether it is done. Raises
        Hang."""
        last, moved = None, time.monotonic()
        while not done(steps := dict(self.run.steps())):
            if steps != last:
                last, moved = steps, time.monotonic()
            if time.monotonic() - moved > QUIET:
                raise Hang(f"no step for {QUIET} s")
            if not self.look_after():
                return False
            time.sleep(0.01)
        return True

    def lines(self):
        """Rank -> the lines of its steps."""
        lines = {rank: [] for rank in range(WORKERS)}
        for line in (self.out / "metrics.jsonl").read_text().splitlines():
            line = json.loads(line)
            lines[line["rank"]].append(line)
        return lines

    def reason(self):
        """Why it does not start, in the words of its last error."""
        said = [message.strip() for _, message in self.run.messages if message.strip()] or ["it said nothing"]
        errors = [message for message in said if re.search(r"Error\b|error:", message)]
        return re.sub(r"^\[rank\d\]:\s*", "", (errors or said)[-1]).replace("|", "/")[:120]

    def close(self):
        for process in (*self.run.processes, *([self.lighthouse] if self.lighthouse else [])):
            process.kill()
        for entry in pathlib.Path("/proc").iterdir():  # workers of a torchrun
            try:
                if entry.name.isdigit() and str(self.out).encode() in (entry / "cmdline").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                pass
        self.run.kill()
        if self.lighthouse:
            self.lighthouse.wait()


def outcome_of(fault, lines, at, hangs):
    """The outcome and the figures of a run whose fault came at this time. lines: Job.lines()."""
    others = [rank for rank in range(WORKERS) if rank != fault.victim]
    again = sum(len({line["pid"] for line in lines[rank]}) > 1 for rank in others)
    ends = all(lines[rank][-1]["step"] == STEPS for rank in others)
    if not ends:
        outcome = "hangs" if hangs else "crashes"
    elif again:
        outcome = "restarts all" if again == len(others) else f"restarts {again} of the {len(others)} others"
    else:
        outcome = "continues"
    after = {rank: [line["at"] for line in lines[rank] if line["at"] >= at] for rank in lines}
    pauses = [later - earlier for rank in others
              for earlier, later in zip([at, *after[rank]], after[rank], strict=False)]
    steps = [[line["step"] for line in lines[rank]] for rank in others]
    return {"outcome": outcome, "pause": max(pauses) if ends else None,
            "back": after[fault.victim][0] - at if fault.away and after[fault.victim] else None,
            "repeated": max(len(each) - len(set(each)) for each in steps),
            "nan": sum(not each[-1]["finite"] for each in lines.values())}


def run(system, fault):
    with tempfile.TemporaryDirectory(prefix="starling-peers-") as folder:
        try:
            job = Job(system, fault, pathlib.Path(folder))
        except OSError as error:
            return {"outcome": f"does not start: {error.strerror}: {error.filename}"}
        hangs = False
        try:
            try:
                started = job.follow(lambda steps: len(steps) == WORKERS and min(steps.values()) >= STEP)
            except Hang:
                started = False
            if not started:
                return {"outcome": f"does not start: {job.reason()}", "messages": job.run.text[-4000:]}
            at = time.monotonic()
            if fault.victim is not None:
                fault.act(job.lines()[fault.victim][-1]["pid"])
            try:
                job.follow(lambda steps: False)
            except Hang:
                hangs = True
        finally:
            job.close()
        return {**outcome_of(fault, job.lines(), at, hangs), "messages": job.run.text[-4000:]}


def row(fault, system, runs):
    """A line of the table for these runs: each outcome, and the largest of each figure."""
    outcomes = Counter(each["outcome"] for each in runs)
    said = "; ".join(outcome if times == len(runs) else f"{outcome} ({times} of {len(runs)})"
                     for outcome, times in outcomes.items())

    def most(key, digits):
        values = [each[key] for each in runs if each.get(key) is not None]
        return f"{max(values):.{digits}f}" if values else "-"

    return (f"| {FAULTS[fault].what} | {SYSTEMS[system]} | {said} | {most('pause', 2)} | {most('back', 1)} | "
            f"{most('repeated', 0)} | {most('nan', 0)} |")


def versions():
    found = about()["versions"]
    for system, package in PACKAGES.items():
        try:
            found[system] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[system] = "not installed"
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"{', '.join(FAULTS)} (default: all)")
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--runs", type=int, default=3, help="runs of each fault under each system (default 3)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out/faults", help="folder (default: out/faults)")
    options = parser.parse_args()
    for fault in options.faults:
        if fault not in FAULTS:
            parser.error(f"no fault is named {fault}; there are: {', '.join(FAULTS)}")
    result = {**about(), "versions": versions(), "runs": options.runs, "cells": []}
    text = (f"{result['date']}: {result['device']}; {', '.join(' '.join(each) for each in result['versions'].items())}; "
            f"the largest of {options.runs} runs.\n\n"
            "| fault | system | outcome | pause, s | back, s | steps repeated | workers with NaN |\n" + "|-" * 7 + "|")
    print(text, flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    for fault in options.faults or FAULTS:
        for system in options.systems:
            runs = []
            while len(runs) < options.runs and not (runs and runs[-1]["outcome"].startswith("does not start")):
                runs.append(run(system, FAULTS[fault]))
            result["cells"].append({"fault": fault, "system": system, "runs": runs})
            print(line := row(fault, system, runs), flush=True)
            text += f"\n{line}"
            (options.out / "peers.json").write_text(json.dumps(result, indent=1) + "\n")
            (options.out / "peers.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
