"""Real processes that train together.

A test's worker is a function of the test's module that takes nothing and returns a value that json
can write:

    results = workers.run(losses, 3)     # one per rank

Importing torch takes seconds, and so do the imports of the first optimizer. So all workers are
forked from one process that has imported these and the test's module, and has done nothing else:
main(). The tests run in another child of it. A worker that returns ends like any Python process,
but without the teardown of all modules, which takes two seconds with torch. ends_test.py has that
too.
"""

import atexit
import contextlib
import faulthandler
import itertools
import json
import multiprocessing
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
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


class Worker:
    """A worker that has been started: `function` runs there, in the environment `place`. It writes
    the files FILE.out, FILE.err and FILE.json."""

    def __init__(self, function, place, file):
        self._file = pathlib.Path(file)
        _forks.send((function.__name__, place, self._file))
        self.pid = _forks.recv()

    def kill(self):
        """Returns its exit code."""
        os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def wait(self):
        """Its exit code, once it has ended. Only once."""
        _forks.send(self.pid)
        return _forks.recv()

    def said(self):
        return self._read("out") + self._read("err")

    def first_line(self):
        """The first line of its stdout, once that is there."""
        for _ in range(100 * LIMIT):
            line, *more = self._read("out").split("\n", 1)
            if more:
                return line
            time.sleep(0.01)
        raise AssertionError(f"a worker has printed no line in {LIMIT} s")

    def result(self):
        """The value that its function has returned; None, if it has not."""
        return json.loads(self._read("json") or "null")

    def _read(self, kind):
        file = self._file.with_suffix(f".{kind}")
        return file.read_text() if file.exists() else ""


def ends(function, count, **more):
    """(exit code, output, its result or None) of each rank."""
    with tempfile.TemporaryDirectory() as folder:
        started = [Worker(function, place, f"{folder}/{rank}") for rank, place in enumerate(environments(count, more))]
        codes = [worker.wait() for worker in started]
        return [(code, worker.said(), worker.result()) for code, worker in zip(codes, started, strict=True)]


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


def main(tears_down=False):
    """The tests of a test's module. With `tears_down` each worker ends with the teardown of all
    modules."""
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
            request = here.recv()
        except EOFError:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(tests, 0)[1]))
        if isinstance(request, int):
            here.send(os.waitstatus_to_exitcode(os.waitpid(request, 0)[1]))
            continue
        worker = os.fork()
        if worker == 0:
            here.close()
            _work(*request)
            if not tears_down:
                atexit._run_exitfuncs()
                sys.stdout.flush()
                os._exit(0)
            return
        here.send(worker)


def _work(name, place, file):
    for variable, value in place.items():
        os.environ.pop(variable, None)
        if value is not None:
            os.environ[variable] = value
    with open(os.devnull) as nothing, open(file.with_suffix(".out"), "w") as out, open(file.with_suffix(".err"), "w") as err:
        for number, stream in enumerate((nothing, out, err)):
            os.dup2(stream.fileno(), number)
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    torch.set_num_threads(1)  # OMP_NUM_THREADS has been read already
    result = getattr(sys.modules["__main__"], name)()
    file.with_suffix(".json").write_text(json.dumps(result))
