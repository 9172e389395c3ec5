#!/usr/bin/env python3
"""Asynchronous gossip (A2CiD2 on a ring, rate 1): the cost of a slow, a stopped and a dead worker
for the others; how fast the momentum brings workers together; whether `starling simulate` predicts
the time of a real run. Prints JSON.

    bench/async.py [--program PATH] [--starling PATH] [--repetitions N] [--seconds S] [--stopped S]
                   [--no-line]

Four workers on this machine, whose gradient is a sleep of 50 ms; gossip and updates of a million
parameters are real. Writes out/bench/async.json:

    ring64_decay_gain          64 virtual workers that only gossip on a ring: how many times faster
                               they converge with continuous momentum than without (wanted: at least
                               10)
    slow_worker_others_speed   one of four takes four times as long: steps a second of the others,
                               over those of the same processes without gossip; the slowest (wanted:
                               at least 0.97). `slow_worker` has the same for CTA and all-reduce, by
                               turns with it
    stopped_worker_others_loss one is stopped for 5 s: the part of their steps that the others lose
                               in that time; the worst (wanted: below 0.03)
    killed_worker_others_loss  the same after a kill (wanted: at most 0.03)
    simulate_vs_real_error     time to the same training loss, simulated against real, on 4 hosts of
                               scripts/cluster (root); the worse of CTA and A2CiD2 (wanted: at most
                               0.1). `missing` says so if a gradient's real computation takes 2 % of
                               its time or more, because the simulation then leaves a part of it out
"""

import bisect
import gzip
import json
import os
import pathlib
import random
import select
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

from workers import NoCluster, about, emulated, parser_of, save

WORKERS, PARAMETERS, COMPUTE, SLOWER = 4, 1_000_000, 0.05, 4


class Workers:
    """bench-async pace on this host, in processes that may be stopped and killed."""

    def __init__(self, program, folder, scheme, topology, seconds, slower=1):
        compute = [COMPUTE] * (WORKERS - 1) + [COMPUTE * slower]
        waits = scheme in ("cta", "all-reduce")  # then all make the same number of steps
        steps = [round(seconds / (max(compute) if waits else each)) for each in compute]
        job = folder / "job.json"
        job.write_text(json.dumps({"parameters": PARAMETERS, "compute": compute, "steps": steps}))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.processes = []
        for rank in range(WORKERS):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": WORKERS, "LOCAL_WORLD_SIZE": WORKERS,
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            environment = {**os.environ, **{name: str(value) for name, value in place.items()}}
            self.processes.append(subprocess.Popen([program, "pace", job, scheme, topology], env=environment,
                                                   stdout=subprocess.PIPE))

    def begun(self):
        """Returns when all have made a step."""
        for rank, process in enumerate(self.processes):
            if not select.select([process.stdout], [], [], 300)[0] or process.stdout.readline() != b"begun\n":
                sys.exit(f"bench: rank {rank} made no step")

    def signal(self, rank, number):
        self.processes[rank].send_signal(number)
        return time.monotonic()

    def ends(self, dead=()):
        """The end times of each worker's steps, by rank."""
        ends = {}
        for rank, process in enumerate(self.processes):
            code = process.wait(timeout=300)  # a pipe holds all of its output
            said = process.stdout.read().decode().splitlines()
            if rank in dead:
                continue
            if code != 0:
                sys.exit(f"bench: rank {rank} ended with exit code {code}")
            ends[rank] = json.loads(said[-1])["ends"]
        return ends


def step_time(ends):
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def done_by(ends, at):
    """The number of steps in this time; of an unfinished step its part."""
    k = bisect.bisect(ends, at)
    return k if k in (0, len(ends)) else k + (at - ends[k - 1]) / (ends[k] - ends[k - 1])


def others(ends):
    return [ends[rank] for rank in range(WORKERS - 1)]


def slow_worker(options, folder):
    """Per scheme the others' speed, of the slowest of them."""
    speeds = {}
    for repetition in range(options.repetitions):
        alone = Workers(options.program, folder, "alone", "ring", options.seconds, SLOWER).ends()
        for scheme, topology in (("a2cid2", "ring"), ("cta", "base-2"), ("all-reduce", "ring")):
            print(f"bench: one slow worker, {scheme}, {repetition + 1} of {options.repetitions}", file=sys.stderr)
            ends = Workers(options.program, folder, scheme, topology, options.seconds, SLOWER).ends()
            speeds.setdefault(scheme, []).append(min(step_time(without) / step_time(with_it)
                                                     for without, with_it in zip(others(alone), others(ends), strict=True)))
    return {scheme: statistics.median(each) for scheme, each in speeds.items()}


def lost_steps(ends, at, seconds):
    def lost(one):
        before, now, after = (done_by(one, at + k * seconds) for k in (-1, 0, 1))
        return 1 - (after - now) / (now - before)

    return max(lost(one) for one in others(ends))


def harmed_worker(options, folder, done, lasts, harm, dead=()):
    """The steps that the others lose; lasts: the run, in units of options.stopped. harm(workers)
    returns when it began."""
    losses = []
    for repetition in range(options.repetitions):
        print(f"bench: one {done} worker, {repetition + 1} of {options.repetitions}", file=sys.stderr)
        workers = Workers(options.program, folder, "a2cid2", "ring", lasts * options.stopped)
        workers.begun()
        time.sleep(1.2 * options.stopped)
        at = harm(workers)
        losses.append(lost_steps(workers.ends(dead), at, options.stopped))
    return statistics.median(losses)


def stopped_worker(options, folder):
    def stop(workers):
        at = workers.signal(WORKERS - 1, signal.SIGSTOP)
        time.sleep(options.stopped)
        workers.signal(WORKERS - 1, signal.SIGCONT)
        return at

    return harmed_worker(options, folder, "stopped", 4, stop)


def killed_worker(options, folder):
    def kill(workers):
        return workers.signal(WORKERS - 1, signal.SIGKILL)

    return harmed_worker(options, folder, "killed", 3.5, kill, dead=[WORKERS - 1])


# --- simulated against real ---

STEPS, GRADIENT, GIGABITS = 120, 0.6, 0.001
COMPUTED = 0.02  # most of a gradient's time


def write_data(folder):
    """Ten kinds of bright squares in noise, in the format of Fashion-MNIST's files."""
    folder.mkdir()
    for name, count, seed in (("train", 3840, 1), ("t10k", 100, 2)):
        dice, images, labels = random.Random(seed), bytearray(), bytearray()
        for _ in range(count):
            label = dice.randrange(10)
            image = bytearray(dice.randrange(150) for _ in range(28 * 28))
            top, left = 2 + 10 * (label // 4), 1 + 7 * (label % 4)
            for y in range(top, top + 6):
                image[28 * y + left : 28 * y + left + 5] = bytes([200] * 5)
            images += image
            labels.append(label)
        with gzip.open(folder / f"{name}-images-idx3-ubyte.gz", "wb") as file:
            file.write(struct.pack(">IIII", 0x803, count, 28, 28) + images)
        with gzip.open(folder / f"{name}-labels-idx1-ubyte.gz", "wb") as file:
            file.write(struct.pack(">II", 0x801, count) + labels)


def time_to(target, times, losses):
    for i, loss in enumerate(losses):
        if loss <= target:
            if i == 0:
                return times[0]
            part = (losses[i - 1] - target) / (losses[i - 1] - loss)
            return times[i - 1] + part * (times[i] - times[i - 1])
    sys.exit(f"bench: a run never came to a training loss of {target}")


def binned(times, losses, width):
    """The mean loss of each interval, at its end."""
    bins = {}
    for at, loss in zip(times, losses, strict=True):
        bins.setdefault(int(at / width), []).append(loss)
    return [(k + 1) * width for k in sorted(bins)], [statistics.mean(bins[k]) for k in sorted(bins)]


def simulated_and_real(options, folder):
    write_data(folder / "data")
    recipe = folder / "recipe.toml"
    recipe.write_text(f"""
[run]
steps = {STEPS}
threads = 1
out = "{folder}/run"
[data]
dir = "{folder}/data"
[model]
width = 8
[optimizer]
rule = "adam"
lr = 0.003
[train]
batch = 8
""")
    results = {}
    for scheme, topology in (("cta", "base-2"), ("a2cid2", "ring")):
        print(f"bench: simulated beside real, {scheme}", file=sys.stderr)
        keys = ["--mixing.scheme", scheme, "--mixing.topology", topology]
        width = 8 * GRADIENT
        said = subprocess.run([options.starling, "simulate", recipe, "--workers", str(WORKERS), "--gradient", str(GRADIENT),
                               "--gigabits", str(GIGABITS), "--look-every", str(width), "--json", *keys],
                              stdout=subprocess.PIPE, text=True, check=True).stdout
        looks = [json.loads(line) for line in said.splitlines()]
        simulated = [look["seconds"] for look in looks], [look["loss"] for look in looks]
        said = json.loads(emulated([options.program, "learn", str(recipe), str(GRADIENT), *keys], WORKERS,
                                   f"{round(GIGABITS * 1e6)}kbit"))
        real = binned(said["ends"], said["losses"], width)
        target = (simulated[1][0] + min(simulated[1])) / 2
        seconds = time_to(target, *simulated), time_to(target, *real)
        results[scheme] = {"simulated_seconds": seconds[0], "real_seconds": seconds[1], "loss": target,
                           "error": abs(seconds[0] / seconds[1] - 1), "computed_share": said["computed_share"]}
    return results


def main():
    parser = parser_of(__doc__, "async.json", program="bench-async", starling=True)
    parser.add_argument("--repetitions", type=int, default=3, help="repetitions of each measurement (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=10, help="seconds of a run with a slow worker")
    parser.add_argument("--stopped", type=float, default=5, help="seconds of the stop, and of the runs around a kill")
    parser.add_argument("--no-line", action="store_true", help="leave out the emulated hosts")
    options = parser.parse_args()
    decay = json.loads(subprocess.run([options.program, "decay"], stdout=subprocess.PIPE, text=True, check=True).stdout)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        slow = slow_worker(options, folder)
        stopped = stopped_worker(options, folder)
        killed = killed_worker(options, folder)
        simulated, missing = None, "--no-line"
        if not options.no_line:
            try:
                simulated = simulated_and_real(options, folder)
                computed = max(each["computed_share"] for each in simulated.values())
                missing = None if computed < COMPUTED else f"{computed:.3f} of a gradient's time was computed, not slept"
            except NoCluster as error:
                missing = str(error)
    save({
        "ring64_decay_gain": decay["gain"],
        "slow_worker_others_speed": slow["a2cid2"],
        "stopped_worker_others_loss": stopped,
        "killed_worker_others_loss": killed,
        "simulate_vs_real_error": max(each["error"] for each in simulated.values()) if missing is None else None,
        "missing": {"simulate_vs_real_error": missing} if missing else {},
        **about(),
        "compute": "emulated: a gradient is a sleep",
        "repetitions": options.repetitions,
        "decay": decay,
        "slow_worker": slow,
        "simulated_beside_real": simulated,
    }, options.out)


if __name__ == "__main__":
    main()
