"""A run of real workers that is watched from outside: by its messages and its metrics.jsonl."""

import json
import os
import pathlib
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "train"))
from runs import environment, processes_of  # noqa: E402


class Hang(Exception):
    """Nothing has happened for too long, or the workers have ended before what was awaited."""


class Watched:
    """Processes of one run, whose metrics.jsonl is in `out`. Keeps each message with its time."""

    quiet = 60  # seconds without a message or a step: the run hangs

    def __init__(self, out, *commands, **changed):
        self.out, self.messages = out, []
        self.began = self.moved = time.monotonic()
        self._read, self._rest, self._steps = 0, b"", {}
        self.processes, self._readers, self._changed = [], [], changed
        for command, variables in commands:
            self.add(command, variables)

    def add(self, command, variables):
        """One more process of the run."""
        process = subprocess.Popen(list(map(str, command)), env=environment(**variables, **self._changed),
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                   text=True, errors="replace")
        reader = threading.Thread(target=self._listen, args=(process,))
        self.processes.append(process)
        self._readers.append(reader)
        reader.start()

    def _listen(self, process):
        for line in process.stderr:
            self.moved = time.monotonic()
            self.messages.append((self.moved, line.rstrip("\n")))
        process.stderr.close()

    @property
    def text(self):
        return "".join(f"{message}\n" for _, message in self.messages)

    def time_of(self, pattern, since=0.0):
        """When the first message that matches this compiled pattern came after `since`; else None."""
        return next((at for at, message in self.messages if at >= since and pattern.search(message)), None)

    def steps(self):
        """Rank -> the last step that it has logged."""
        try:
            with open(self.out / "metrics.jsonl", "rb") as file:
                file.seek(self._read)
                new = file.read()
        except OSError:
            return self._steps
        self._read += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            record = json.loads(line)
            self._steps[record["rank"]] = record["step"]
        if lines:
            self.moved = time.monotonic()
        return self._steps

    def running(self):
        return any(process.poll() is None for process in self.processes)

    def until(self, done, what):
        """Waits until done(self.steps()). Raises Hang."""
        while not done(self.steps()):
            if not self.running():
                raise Hang(f"it ended before {what}: steps {self._steps}")
            if time.monotonic() - self.moved > self.quiet:
                raise Hang(f"it stands still before {what}: steps {self._steps}")
            time.sleep(0.01)

    def workers(self):
        """Rank -> process id, of the living workers that the first process, a launcher, has started."""
        return processes_of(self.processes[0].pid)

    def end(self):
        """Waits for the end of all. Returns the exit codes. Raises Hang."""
        self.until(lambda steps: not self.running(), "its end")
        return self._close()

    def kill(self):
        """Ends what still runs, whatever state it is in."""
        workers = [pid for process in self.processes for pid in processes_of(process.pid).values()]
        for pid in workers:
            os.kill(pid, 9)
        for process in self.processes:
            process.kill()
        self._close()

    def _close(self):
        codes = [process.wait() for process in self.processes]
        for reader in self._readers:
            reader.join()
        return codes
