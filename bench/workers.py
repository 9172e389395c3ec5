"""Starts a benchmark's workers, reads its arguments, and describes the machine."""

import argparse
import concurrent.futures
import datetime
import json
import os
import pathlib
import platform
import re
import socket
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
NO_CLUSTER = 125  # exit status of scripts/cluster if it cannot make a cluster
LIMIT = 1200  # seconds for one run of the workers


def parser_of(text, out="", program="", starling=False):
    """The arguments of a benchmark with this docstring. `out`: --out, a file in out/bench/.
    `program`, `starling`: --program and --starling, the paths of what was built."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    if program:
        parser.add_argument("--program", default=str(ROOT / "build/bin" / program), help="the built program")
    if starling:
        parser.add_argument("--starling", default=str(ROOT / "build/bin/starling"), help="the built command")
    if out:
        parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out/bench" / out, help="the file of the result")
    return parser


class NoCluster(Exception):
    pass


class RunFailed(SystemExit):
    """Ends the bench with its message, unless it is caught."""


def loopback(command, workers, transport="mapped"):
    """stdout of rank 0 of these workers on this host, in shared memory or (tcp) over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    processes = []
    for rank in range(workers):
        place = {"STARLING_TRANSPORT": transport, "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": workers,
                 "LOCAL_WORLD_SIZE": workers,
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {**os.environ, **{name: str(value) for name, value in place.items()}}
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    try:
        with concurrent.futures.ThreadPoolExecutor(workers) as threads:
            said = list(threads.map(lambda process: process.communicate(timeout=LIMIT)[0], processes))
    finally:
        for process in processes:
            process.kill()
    for rank, process in enumerate(processes):
        if process.returncode != 0:
            sys.exit(f"bench: rank {rank} of {workers} ended with exit code {process.returncode}")
    return said[0]


def emulated(command, hosts, rate, ranks=1):
    """stdout of rank 0, with `ranks` workers on each of the emulated hosts. Raises NoCluster if
    there can be none, RunFailed if a worker fails."""
    cluster = [ROOT / "scripts/cluster", "--hosts", str(hosts), "--ranks", str(ranks), "--rate", rate, "--", *command]
    with subprocess.Popen(cluster, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        try:
            said, complained = run.communicate(timeout=LIMIT)
        except BaseException:
            run.terminate()  # it ends its workers and removes its hosts
            raise
    if run.returncode == NO_CLUSTER:
        raise NoCluster(complained.strip())
    sys.stderr.write(complained)
    if run.returncode != 0:
        raise RunFailed(f"bench: {' '.join(map(str, command))} on {hosts} hosts ended with exit code {run.returncode}")
    return said


class Processors:
    """The idle part of all processors of this machine, from now on."""

    def __init__(self):
        self.begin = self.jiffies()

    @staticmethod
    def jiffies():
        with open("/proc/stat") as file:
            # User nice system idle iowait irq softirq steal.
            each = [int(word) for word in file.readline().split()[1:9]]
        return each[3] + each[4], sum(each)

    def idle(self):
        (idle, all), (idle_before, all_before) = self.jiffies(), self.begin
        return (idle - idle_before) / max(all - all_before, 1)


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def version(pattern, path):
    return re.search(pattern, path.read_text(), re.MULTILINE).group(1)


def about():
    return {"device": f"{processor()}, {os.cpu_count()} cores, Linux {platform.release()}",
            "date": datetime.date.today().isoformat(),
            "versions": {"starling": version(r"project\(starling VERSION ([0-9.]+)", ROOT / "CMakeLists.txt"),
                         "torch": version(r"^torch==([0-9.]+)", ROOT / "requirements.txt")}}


def save(result, path):
    text = json.dumps(result, indent=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
    print(text)
