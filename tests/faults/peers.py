#!/usr/bin/env python3
"""The same faults under other systems: torchrun with DDP and Decent-DP, torchft, and Starling.

    make faults-peers                           all faults under all systems
    make faults-peers FAULTS=killed             this fault

Four workers train the same small network, and after step 110 one of them fails. Each system has
what it needs to recover. Under torchrun there are three restarts, and a snapshot every 20 steps.
Under torchft and Starling, a worker that dies is started again at once, at most three times.

  ddp             DDP under torchrun
  ddp-own-store   the same with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
  decent-dp       Decent-DP over a ring, also with it
  torchft         torchft's DDP over Gloo, with a lighthouse
  starling        scheme cta over a ring, with STARLING_REJOIN=1

Prints a table, and writes it to out/faults/peers.md and each run to out/faults/peers.json. Figures
are medians of the runs:

  outcome         continues, restart of all, crash, or hang: no step for 120 s
  others pause    longest time between two steps of a worker that did not fail, from the fault on
  it is away      the same of the worker that failed
  steps lost      steps that a worker that did not fail did in vain
  loss            on test data, at the end, mean of the workers
"""

import argparse
import json
import os
import pathlib
import secrets
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from importlib import metadata

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
sys.path[:0] = [str(FOLDER), str(ROOT / "bench")]
from faults import VICTIM, WORKERS, stand_still  # noqa: E402
from watched import Hang, Watched  # noqa: E402
from workers import about  # noqa: E402

STEPS, STEP = 600, 110  # of the run, and of the fault: between two snapshots
QUIET = 120  # seconds without a step: the run hangs
RESTARTS = 3
# torchrun keeps one store for all starts. There, restarted workers find the addresses of dead ones
# (pytorch/pytorch#135712). With this variable each start has a store of its own.
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
TORCHRUN = {"ddp": {}, "ddp-own-store": OWN_STORE, "decent-dp": OWN_STORE}
SYSTEMS = [*TORCHRUN, "torchft", "starling"]


def kill(rank):
    return lambda job: os.kill(job.workers()[rank], signal.SIGKILL)


FAULTS = {  # name: what, the worker that fails, how
    "none": ("nothing", None, lambda job: None),
    "killed": (f"SIGKILL of worker {VICTIM}", VICTIM, kill(VICTIM)),
    "first-killed": ("SIGKILL of worker 0", 0, kill(0)),
    "stands-still": (f"SIGSTOP of worker {VICTIM} for 8 s", VICTIM, stand_still(8, VICTIM)),
}


class Job(Watched):
    """A run of one system. Starts workers again that have died, where torchrun does not."""

    def __init__(self, system, out):
        super().__init__(out)
        self.command = [FOLDER / "peer.py", system, out, STEPS]
        self.place, self.alone, self.starts, self.lighthouse = {}, {}, Counter(), None
        if system in TORCHRUN:
            self.add([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", WORKERS,
                      "--max-restarts", RESTARTS, *self.command], TORCHRUN[system])
            return
        if system == "torchft":
            os.environ.setdefault("RUST_LOG", "error")
            from torchft.coordination import LighthouseServer

            self.lighthouse = LighthouseServer(bind="[::]:0", min_replicas=1, join_timeout_ms=10000, quorum_tick_ms=100)
            self.place = {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{self.lighthouse.address().rpartition(':')[2]}"}
        else:
            (out / "store").mkdir(mode=0o700)
            self.place = {"STARLING_REJOIN": "1", "STARLING_STORE_FOLDER": str(out / "store"),
                          "STARLING_TOKEN": secrets.token_hex(32)}
        for rank in range(WORKERS):
            self.start(rank)

    def start(self, rank):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": WORKERS, "LOCAL_WORLD_SIZE": WORKERS, **self.place}
        self.add([sys.executable, *self.command], {name: str(value) for name, value in place.items()})
        self.alone[rank] = self.processes[-1]
        self.starts[rank] += 1

    def follow(self, done=lambda steps: False):
        """Until done(rank -> last step), or the end of all. Whether it is done. Raises Hang."""
        last, moved = None, time.monotonic()
        while not done(steps := dict(self.steps())):
            if steps != last:
                last, moved = steps, time.monotonic()
            if time.monotonic() - moved > QUIET:
                raise Hang(f"no step for {QUIET} s")
            codes = {rank: worker.poll() for rank, worker in self.alone.items()}
            for rank, code in codes.items():
                if code not in (None, 0) and 0 not in codes.values() and self.starts[rank] <= RESTARTS:
                    self.start(rank)
            if not self.running():
                return False
            time.sleep(0.01)
        return True

    def lines(self, rank):
        lines = map(json.loads, (self.out / "metrics.jsonl").read_text().splitlines())
        return [line for line in lines if line["rank"] == rank]

    def workers(self):
        return {rank: self.lines(rank)[-1]["pid"] for rank in range(WORKERS)}

    def kill(self):
        super().kill()
        if self.lighthouse:
            self.lighthouse.shutdown()


def pause(lines, at):
    times = [at, *(line["at"] for line in lines if line["at"] > at)]
    return max(later - earlier for earlier, later in zip(times, times[1:], strict=False))


def lost(lines, at):
    """Passes after the fault that did not make a step, or made one again."""
    before = [line for line in lines if line["at"] <= at][-1]
    passes = {line["pid"]: line["passes"] for line in lines}
    made = {line["step"] for line in lines if line["step"] > before["step"]}
    return sum(passes.values()) - before["passes"] - len(made)


def outcome_of(lines, victim, at, hangs):
    """lines: by rank."""
    others = [each for rank, each in lines.items() if rank != victim]
    ended = {rank: each for rank, each in lines.items() if each[-1]["step"] == STEPS}
    if not all(rank in ended for rank in lines if rank != victim):
        return {"outcome": "hang" if hangs else "crash"}
    again = sum(len({line["pid"] for line in each}) > 1 for each in others)
    return {
        "outcome": "continues" if not again else "restart of all" if again == len(others) else f"restart of {again}",
        "others_pause": max(pause(each, at) for each in others),
        "away": pause(lines[victim], at) if victim in ended else None,
        "lost": max(lost(each, at) for each in others),
        "loss": statistics.mean(each[-1]["loss"] for each in ended.values()),
        "losses": {rank: each[-1]["loss"] for rank, each in ended.items()},
    }


def run(system, victim, act):
    with tempfile.TemporaryDirectory(prefix="starling-peers-") as folder:
        job, at, hangs = Job(system, pathlib.Path(folder)), None, False
        try:
            if job.follow(lambda steps: len(steps) == WORKERS and min(steps.values()) >= STEP):
                at = time.monotonic()
                act(job)
                job.follow()
        except Hang:
            hangs = True
        finally:
            job.kill()
        result = {"outcome": "does not start"} if at is None else outcome_of(
            {rank: job.lines(rank) for rank in range(WORKERS)}, victim, at, hangs)
        return {**result, "messages": job.text[-20000:]}


def row(system, fault, cells):
    def median(key, digits, of=fault):
        values = [each[key] for each in cells[of] if each.get(key) is not None]
        return f"{statistics.median(values):.{digits}f}" if values else "-"

    outcomes = Counter(each["outcome"] for each in cells[fault])
    many = sum(outcomes.values())
    outcome = ", ".join(name if times == many else f"{name} ({times} of {many})" for name, times in outcomes.items())
    return (f"| {FAULTS[fault][0]} | {system} | {outcome} | {median('others_pause', 2)} | {median('away', 1)} | "
            f"{median('lost', 0)} | {median('loss', 3)} | {median('loss', 3, 'none')} |\n")


def table(result):
    text = (f"{result['date']}: {result['device']}; {', '.join(' '.join(each) for each in result['versions'].items())}; "
            f"medians of {result['runs']} runs.\n\n| fault | system | outcome | others pause, s | it is away, s | steps lost "
            "| loss | without a fault |\n|-|-|-|-|-|-|-|-|\n")
    return text + "".join(row(system, fault, cells) for fault in FAULTS for system, cells in result["cells"].items()
                          if cells.get(fault))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", metavar="FAULT", choices=[[], *FAULTS], help=f"{', '.join(FAULTS)} (default: all)")
    parser.add_argument("--systems", nargs="+", metavar="SYSTEM", default=SYSTEMS, choices=SYSTEMS,
                        help=f"{', '.join(SYSTEMS)} (default: all)")
    parser.add_argument("--runs", type=int, default=3, help="of each fault under each system, by turns (default 3)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out/faults", help="folder (default: out/faults)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by way of `finally`
    result = {**about(), "runs": options.runs, "cells": {system: {} for system in options.systems}}
    result["versions"] |= {name: metadata.version(name) for name in ("torchft", "decent-dp")}
    options.out.mkdir(parents=True, exist_ok=True)
    for _ in range(options.runs):
        for fault in dict.fromkeys(["none", *(options.faults or FAULTS)]):
            for system, cells in result["cells"].items():
                cells.setdefault(fault, []).append(seen := run(system, *FAULTS[fault][1:]))
                print(f"peers: {fault}: {system}: {seen['outcome']}", file=sys.stderr)
                (options.out / "peers.json").write_text(json.dumps(result, indent=1) + "\n")
                (options.out / "peers.md").write_text(table(result))
    print(table(result), end="")


if __name__ == "__main__":
    main()
