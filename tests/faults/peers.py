#!/usr/bin/env python3
"""The same faults under other systems: torchrun with DDP, torchft, Decent-DP, and Starling.

    make faults-peers

Four workers train the same small network; after STEP steps one thing fails. Each system is started
as its own documents say: DDP and Decent-DP by `torchrun --max-restarts 3`; torchft with a
lighthouse, and each worker started again when it dies; Starling with STARLING_REJOIN=1, and
started again likewise. Nobody writes checkpoints. Prints a table, as in docs/reliability.md, and
writes out/faults/peers.json:

  pause     the longest time between two steps of a worker that did not fail, after the fault
  back      from the fault to the next step of the worker that failed
  repeated  steps that the others made a second time
  spoiled   workers with NaN parameters at the end
  outcome   continues, restarts all, ends all, or hangs
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent / folder) for folder in (".", "../train")]
from runs import free_port  # noqa: E402
from watched import Hang, Watched  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
WORKERS, STEP, STEPS, VICTIM = 4, 40, 1200, 2
FAULTS = {"dies": f"SIGKILL of worker {VICTIM}", "first-dies": "SIGKILL of worker 0",
          "stands-still": f"SIGSTOP of worker {VICTIM} for 8 s", "nan": f"a NaN gradient on worker {VICTIM}"}


class Job:
    """A run of a system whose workers may be started again."""

    def __init__(self, system, fault, out):
        self.system, self.out = system, out
        self.spoiled = {VICTIM: [str(STEP)]} if fault == "nan" else {}
        self.victim = 0 if fault == "first-dies" else VICTIM
        self.lighthouse = None
        self.port = free_port("127.0.0.1")
        if system == "torchft":
            lighthouse = free_port("127.0.0.2")
            self.address = f"http://127.0.0.1:{lighthouse}"
            self.lighthouse = subprocess.Popen(
                [pathlib.Path(sys.executable).parent / "torchft_lighthouse", "--min_replicas", "2", "--join_timeout_ms",
                 "1000", "--bind", f"127.0.0.1:{lighthouse}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def worker(self, rank):
        return [sys.executable, FOLDER / "peer.py", self.system, self.out, str(STEPS), *self.spoiled.get(rank, [])]

    def place(self, rank):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": WORKERS, "LOCAL_WORLD_SIZE": WORKERS,
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self.port, "STARLING_REJOIN": 1}
        if self.lighthouse:
            place["LIGHTHOUSE"] = self.address
        return {name: str(value) for name, value in place.items()}

    def start(self):
        if self.system in ("ddp", "decent-dp"):
            # torchrun gives all workers one command, so a shell adds what one of them has beyond it.
            spoil = f'[ "$RANK" != {VICTIM} ] || set -- "$@" {STEP}; ' if self.spoiled else ""
            shell = f'{spoil}exec {sys.executable} {FOLDER / "peer.py"} "$@"'
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(WORKERS),
                        "--max-restarts", "3", "--master-port", str(self.port), "--no-python",
                        "sh", "-c", shell, "sh", self.system, self.out, str(STEPS)]
            return Watched(self.out, (torchrun, {}))
        return Watched(self.out, *((self.worker(rank), self.place(rank)) for rank in range(WORKERS)))

    def strike(self, run, fault):
        pid = int((self.out / f"pid-{self.victim}").read_text())
        if fault in ("dies", "first-dies"):
            os.kill(pid, signal.SIGKILL)
            if self.system in ("torchft", "starling"):
                time.sleep(0.5)
                run.add(self.worker(self.victim), self.place(self.victim) | {"STARLING_RESTARTS": "1"})
        elif fault == "stands-still":
            os.kill(pid, signal.SIGSTOP)
            time.sleep(8)
            os.kill(pid, signal.SIGCONT)

    def close(self, run):
        run.kill()
        for file in self.out.glob("pid-*"):
            try:
                os.kill(int(file.read_text()), signal.SIGKILL)
            except ProcessLookupError:
                pass
        if self.lighthouse:
            self.lighthouse.kill()
            self.lighthouse.wait()


def outcome_of(job, lines, at, hang):
    """What became of the run after the fault at this time."""
    survivors = [rank for rank in range(WORKERS) if rank != job.victim]
    after = {rank: [line["at"] for line in lines if line["rank"] == rank and line["at"] >= at] for rank in range(WORKERS)}
    pause = max((max((later - earlier for earlier, later in zip([at, *times], times, strict=False)), default=0.0)
                 for times in (after[rank] for rank in survivors)), default=0.0)
    last = {line["rank"]: line for line in lines}
    repeated = 0
    for rank in survivors:
        steps = [line["step"] for line in lines if line["rank"] == rank]
        repeated = max(repeated, len(steps) - len(set(steps)))
    if hang:
        outcome = "hangs"
    elif all(last[rank]["step"] == STEPS for rank in survivors):
        outcome = "restarts all" if repeated else "continues"
    else:
        outcome = "ends all"
    return {"outcome": outcome, "pause": pause, "repeated": repeated,
            "back": after[job.victim][0] - at if after[job.victim] else None,
            "spoiled": sum(not line["finite"] for line in last.values())}


def run(system, fault):
    with tempfile.TemporaryDirectory(prefix="starling-peers-") as folder:
        out = pathlib.Path(folder)
        job = Job(system, fault, out)
        running = job.start()
        running.quiet = 180  # torch is imported once more by each of them
        hang, at = None, None
        try:
            running.until(lambda steps: len(steps) == WORKERS and min(steps.values()) >= STEP, f"step {STEP}")
            at = time.monotonic()
            job.strike(running, fault)
            running.end()
        except Hang as error:
            if at is None:
                raise SystemExit(f"peers: {system}: {error}\n{running.text}") from None
            hang = str(error)
        finally:
            job.close(running)
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        return {"system": system, "fault": fault, **outcome_of(job, lines, at, hang)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", default=["ddp", "decent-dp", "torchft", "starling"],
                        choices=["ddp", "decent-dp", "torchft", "starling"])
    parser.add_argument("--faults", nargs="+", default=list(FAULTS), choices=list(FAULTS))
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out/faults/peers.json")
    options = parser.parse_args()
    rows = []
    print("| fault | system | outcome | pause of the others, s | back, s | steps repeated | workers with NaN |")
    print("|-" * 7 + "|")
    for fault in options.faults:
        for system in options.systems:
            row = run(system, fault)
            rows.append(row)
            back = "-" if row["back"] is None else f"{row['back']:.1f}"
            print(f"| {FAULTS[fault]} | {system} | {row['outcome']} | {row['pause']:.2f} | {back} | {row['repeated']} | "
                  f"{row['spoiled']} |", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
