"""The common parts of the checks: their arguments, their results, and workers that share the
card."""

import argparse
import contextlib
import json
import os
import pathlib
import selectors
import signal
import socket
import sys
import tempfile

from running import ended_with


def parsed():
    """The arguments that scripts/gpu-check gives."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    options.mock = options.device == "cpu"
    return options


def say(item, state, said="", **figures):
    """One result. `state`: passed, failed or skipped."""
    print(json.dumps({"item": item, "state": state} | ({"said": said} if said else {})
                     | ({"figures": figures} if figures else {})), flush=True)


def verdict(good):
    return "passed" if good else "failed"


def one_line(error):
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"


class Failed(Exception):
    pass


def prepare():
    """Imports for all workers what takes seconds. Nothing before a fork may use the card."""
    import torch._dynamo  # noqa: F401  # the first optimizer does that

    import starling  # noqa: F401


class Workers:
    """Processes that call work(options, job), as torchrun would describe them to it. They are
    forked, since imports take longer than most checks. Each says its results as lines of JSON."""

    def __init__(self, work, count, options, job, **more):
        self._limit = options.seconds
        self._errors, self.pids, self._codes = [], [], {}
        self._selector = selectors.DefaultSelector()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        for rank in range(count):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count,
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **more}
            errors = tempfile.TemporaryFile()
            reads, writes = os.pipe()
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                os.environ.update({name: str(value) for name, value in place.items()})
                os.dup2(writes, 1)
                os.dup2(errors.fileno(), 2)
                _worker(work, options, job)
            os.close(writes)
            self._errors.append(errors)
            self.pids.append(pid)
            self._selector.register(reads, selectors.EVENT_READ, [rank, b""])

    def lines(self, quiet=0.6, killed=()):
        """(rank, result) as they come. Raises Failed after this share of the check's time without
        one, and if a worker fails. `killed`: the ranks that may die."""
        quiet *= self._limit
        while self._selector.get_map():
            ready = self._selector.select(quiet)
            if not ready:
                self.end()
                errors = "; ".join(filter(None, map(self.error, range(len(self.pids)))))
                raise Failed(f"the workers said nothing for {quiet:.0f} s: {errors}")
            for key, _ in ready:
                rank, rest = key.data
                got = os.read(key.fd, 1 << 16)
                *whole, key.data[1] = (rest + got).split(b"\n")
                for line in whole:
                    with contextlib.suppress(ValueError):
                        said = json.loads(line)
                        if isinstance(said, dict):
                            yield rank, said
                if got:
                    continue
                self._selector.unregister(key.fd)
                os.close(key.fd)
                code = self._code(rank)
                if code != 0 and not (rank in killed and code == -signal.SIGKILL):
                    self.end()
                    raise Failed(f"worker {rank} ended with exit code {code}: {self.error(rank)}")

    def _code(self, rank):
        """The exit code of a worker that ends."""
        if rank not in self._codes:
            self._codes[rank] = os.waitstatus_to_exitcode(os.waitpid(self.pids[rank], 0)[1])
        return self._codes[rank]

    def error(self, rank):
        """The last line of its stderr."""
        self._errors[rank].seek(0)
        lines = self._errors[rank].read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""

    def end(self):
        for rank, pid in enumerate(self.pids):
            if rank not in self._codes:
                os.kill(pid, signal.SIGKILL)
                self._code(rank)
        for key in list(self._selector.get_map().values()):
            self._selector.unregister(key.fd)
            os.close(key.fd)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
        self._selector.close()
        for errors in self._errors:
            errors.close()


def _worker(work, options, job):
    def body():
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)  # OMP_NUM_THREADS has been read already
            if torch.cuda._is_in_bad_fork():
                sys.exit("CUDA was called before the workers were forked")
        work(options, job)

    ended_with(body)


def each(workers, quiet=0.6, killed=()):
    """All that every rank has said, by rank, when all have ended."""
    said = {rank: [] for rank in range(len(workers.pids))}
    for rank, line in workers.lines(quiet, killed):
        said[rank].append(line)
    return said


def finish(device):
    """Waits for the device."""
    import torch

    if device != "cpu":
        torch.cuda.synchronize()
