"""Runs one check of scripts/gpu-check as a process with a time limit."""

import atexit
import contextlib
import json
import os
import runpy
import selectors
import signal
import sys
import tempfile
import time
import traceback

STATES = ("passed", "failed", "skipped")
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def write(path, text):
    """Readers see the old file or the new one, never a part."""
    new = path.with_name(path.name + ".tmp")
    with open(new, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def item_of(line):
    """A line of a check's stdout as an item of the result; None: it is none."""
    with contextlib.suppress(ValueError):
        item = json.loads(line)
        if isinstance(item, dict) and isinstance(item.get("item"), str) and item.get("state") in STATES:
            return item
    return None


def last_line(file):
    file.seek(0)
    lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""


def ended_with(body):
    """Calls body() and ends this process as Python would, but for the teardown of all modules,
    which takes seconds with torch."""
    code = 1
    try:
        body()
        atexit._run_exitfuncs()
        code = 0
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


class Process:
    """The program, in a session of its own. A Python script of this Python is run in a fork of this
    process, if this one has imported torch: imports take longer than most checks."""

    def __init__(self, command, out, errors):
        sys.stdout.flush()
        self.pid = os.fork()
        self.code = None
        if self.pid == 0:
            ended_with(lambda: self._become(list(map(str, command)), out, errors))

    @staticmethod
    def _become(command, out, errors):
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        with open(os.devnull) as nothing:
            for number, file in enumerate((nothing.fileno(), out, errors)):
                os.dup2(file, number)
        if "torch" not in sys.modules or command[:1] != [sys.executable] or not command[1].endswith(".py"):
            os.execvp(command[0], command)
        sys.argv = command[1:]
        runpy.run_path(command[1], run_name="__main__")

    def wait(self, until):
        """Whether it has ended; at the latest at this time."""
        while self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() >= until:
                break
            else:
                time.sleep(0.02)
        return self.code is not None

    def end(self):
        """Ends it and what it has started. A process that the driver holds is left behind."""
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait(time.monotonic() + 10)


def lines_of(stream, until):
    """The lines that come from a pipe, until its end or this time."""
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while selector.select(max(0, until - time.monotonic())):
            if not (got := os.read(stream, 1 << 16)):
                break
            *whole, rest = (rest + got).split(b"\n")
            yield from whole


def run(command, limit, on_item):
    """Calls on_item for each line of stdout that is an item. Returns the entries "status", "why"
    and "exit" of the result."""
    count = {state: [] for state in STATES}
    until = time.monotonic() + limit
    reads, writes = os.pipe()
    with tempfile.TemporaryFile() as errors, open(reads, "rb", buffering=0) as stream:
        # An exception in a hook of fork() is lost. One right after it leaves the process.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        process = Process(command, writes, errors.fileno())
        os.close(writes)
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
            for line in lines_of(stream.fileno(), until):
                if (item := item_of(line)) is not None:
                    count[item["state"]].append(item)
                    on_item(item)
            late = not process.wait(until)
        finally:
            process.end()
        said = last_line(errors)
    code = process.code
    done = sum(map(len, count.values()))
    if count["failed"]:
        first = count["failed"][0]
        why = ": ".join(filter(None, [f"{len(count['failed'])} of {done} failed", first["item"], str(first.get("said", ""))]))
        return {"status": "failed", "why": why[:500], "exit": code}
    if late:
        return {"status": "out of time", "why": f"ended after its {limit:.0f} s, with {done} results", "exit": code}
    if code != 0:
        return {"status": "failed", "why": said or f"ended with exit code {code}", "exit": code}
    if not count["passed"]:
        return {"status": "failed", "why": said or "it has checked nothing", "exit": code}
    return {"status": "passed", "why": "", "exit": code}

