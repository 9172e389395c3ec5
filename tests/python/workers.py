"""Real processes that train together.

A test's worker is a function of the test's module that takes nothing and returns a value that json
can write:

    results = workers.run(losses, 3)     # one per rank

Importing torch takes seconds, and so do the imports of the first optimizer. So all workers are
forked from one process that has imported these and the test's module, and has done nothing else:
main(). The tests run in another child of it. A worker ends like any Python process.
"""

import contextlib
import faulthandler
import itertools
import json
import multiprocessing
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import unittest

import torch
import torch._dynamo

LIMIT = 300  # seconds: a hang is a failure

_forks = None  # of the tests' process: the connection to the process that forks workers


_ports = itertools.count(20000 + os.getpid() * 97 % 11000)


def free_port():
    """Not an ephemeral port of the system, which another process could get a moment later."""
    for port in _ports:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def environments(count, more):
    """The environment of each rank, as torchrun describes it. `more`: further variables; one may be
    a function of the rank, and None removes it."""
    port = free_port()
    for rank in range(count):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count,
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1, **more}
        place = {name: value(rank) if callable(value) else value for name, value in place.items()}
        yield {name: None if value is None else str(value) for name, value in place.items()}


def ends(function, count, **more):
    """(exit code, output, its result or None) of each rank."""
    with tempfile.TemporaryDirectory() as folder:
        _forks.send((function.__name__, [*environments(count, more)], folder))
        codes = _forks.recv()
        said = [pathlib.Path(folder, f"{rank}.txt").read_text() for rank in range(count)]
        files = [pathlib.Path(folder, f"{rank}.json") for rank in range(count)]
        results = [json.loads(file.read_text()) if file.exists() else None for file in files]
    return [*zip(codes, said, results, strict=True)]


def run(function, count, **more):
    """The results of all ranks, which must all end well."""
    every = ends(function, count, **more)
    failed = [f"rank {rank} of {function.__name__} ended with exit code {code}:\n{said}"
              for rank, (code, said, _) in enumerate(every) if code != 0]
    if failed:
        raise AssertionError("\n".join(failed))
    return [result for *_, result in every]


def run_program(command, count):
    """Any program, like run(), without results."""
    started = []
    try:
        for place in environments(count, {}):
            started.append(subprocess.Popen([*command], env={**os.environ, **place}, stdin=subprocess.DEVNULL,
                                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        for rank, process in enumerate(started):
            said = process.communicate(timeout=LIMIT)[0]
            if process.returncode != 0:
                raise AssertionError(f"rank {rank} of {command[0]} ended with exit code {process.returncode}:\n{said}")
    finally:
        for process in started:
            process.kill()
            process.communicate()


def main():
    """The tests of a test's module."""
    global _forks
    here, there = multiprocessing.Pipe()
    tests = os.fork()
    if tests == 0:
        here.close()
        _forks = there
        unittest.main()
    there.close()
    while True:
        try:
            name, places, folder = here.recv()
        except EOFError:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(tests, 0)[1]))
        started = []
        for rank, place in enumerate(places):
            started.append(os.fork())
            if started[-1] == 0:
                here.close()
                return _work(name, place, pathlib.Path(folder, str(rank)))
        here.send([os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) for worker in started])


def _work(name, place, file):
    for variable, value in place.items():
        os.environ.pop(variable, None)
        if value is not None:
            os.environ[variable] = value
    with open(os.devnull) as nothing, open(file.with_suffix(".txt"), "w") as printed:
        os.dup2(nothing.fileno(), 0)
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    torch.set_num_threads(1)  # OMP_NUM_THREADS has been read already
    result = getattr(sys.modules["__main__"], name)()
    file.with_suffix(".json").write_text(json.dumps(result))
