"""Real processes that train together, each a Python of its own.

A test's worker is a function of the test's module that takes nothing and returns what json can write:

    results = workers.run(losses, 3)     # one per rank
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

LIMIT = 300  # seconds: a hang is a failure


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def start(function, count, **more):
    """Popen of each rank, as torchrun's environment describes it. Its result goes to the file `result` of the process.
    `more`: further variables; one may be a function of the rank, and None removes it."""
    port = free_port()
    folder = tempfile.mkdtemp()
    started = []
    for rank in range(count):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count,
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1, **more}
        place = {name: value(rank) if callable(value) else value for name, value in place.items()}
        there = {name: value for name, value in os.environ.items() if name not in place}
        there |= {name: str(value) for name, value in place.items() if value is not None}
        result = pathlib.Path(folder, f"{rank}.json")
        command = [sys.executable, sys.modules[function.__module__].__file__, "--worker", function.__name__, result]
        process = subprocess.Popen(command, env=there, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        process.result = result
        started.append(process)
    return started


def finish(processes):
    """(exit code, what it printed, its result or None) of each."""
    ends = []
    try:
        for process in processes:
            said = process.communicate(timeout=LIMIT)[0]
            result = json.loads(process.result.read_text()) if process.result.exists() else None
            ends.append((process.returncode, said, result))
    finally:
        for process in processes:
            process.kill()
    return ends


def run(function, count, **more):
    """The results of all ranks, which must all end well."""
    ends = finish(start(function, count, **more))
    for rank, (code, said, _) in enumerate(ends):
        if code != 0:
            raise AssertionError(f"rank {rank} of {function.__name__} ended with exit code {code}:\n{said}")
    return [result for _, _, result in ends]


def main():
    """Of a test's module: its tests, or one of its workers."""
    if "--worker" not in sys.argv:
        unittest.main()
    at = sys.argv.index("--worker")
    signal.alarm(LIMIT)
    result = getattr(sys.modules["__main__"], sys.argv[at + 1])()
    pathlib.Path(sys.argv[at + 2]).write_text(json.dumps(result))
