"""The tests that need CUDA: on the card those that train on it as on the CPU, then those of the
mock driver. A test of the first kind that is skipped on a card has failed."""

import glob
import importlib.util
import os
import re
import subprocess
import sys

from together import parsed, say, verdict

# Program, filter, and with --mock another filter.
PROGRAMS = [
    ("device_test", "*OnAGpu*-*OnTheProcessorAreTheSameTwice", "*/fp32"),
    ("processes_test", "*OnAGpu*", "*OnAGpu*"),
    ("train_test", "*OnAGpu*", "*OnAGpu*/fashion_mnist"),
    ("cuda_kernels_test", "*", "Gpu*:CubinCache*"),
    ("device_test", "-*OnAGpu*:SchemesOnAnotherDevice.WorkersTrain*:ADriverThatFails*:*ACallThatFails*:ADeviceWithoutMemory*",
     "ADeviceThatFails*"),
]
RESULT = re.compile(r"\[ +(OK|FAILED|SKIPPED) +\] (\S+?)(?:, where .*)? \((\d+) ms\)$")
RUN = re.compile(r"\[ RUN +\] (\S+)")
STATE = {"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}


def compiler():
    """NVRTC of this Python's torch, for the tests that do not load torch."""
    folder = importlib.util.find_spec("torch").submodule_search_locations[0]
    found = [*glob.glob(f"{folder}/../nvidia/*/lib/libnvrtc.so.*"), *glob.glob(f"{folder}/lib/libnvrtc.so.*"),
             *glob.glob(f"{folder}/lib/libnvrtc-*.so*")]
    return [file for file in found if "builtins" not in file][:1]


def results(command, environment):
    """(name, state, milliseconds, what it said) of each test as it ends; then the exit code."""
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace") as process:
        said, running = [], None
        for line in process.stdout:
            if (begun := RUN.match(line)) is not None:
                said, running = [], begun[1]
            elif (ended := RESULT.match(line)) is not None:
                if running is not None:  # at the end all failed tests are listed once more
                    yield ended[2], STATE[ended[1]], int(ended[3]), " ".join(said)[:300]
                running = None
            elif line.strip():
                said.append(line.strip())
        code = process.wait()
    if running is not None or code not in (0, 1):
        yield running or command[0], "failed", 0, f"ended with exit code {code}: " + " ".join(said[-3:])[:300]


def main():
    options = parsed()
    environment = dict(os.environ)
    if (nvrtc := compiler()) and "STARLING_NVRTC" not in environment:
        environment["STARLING_NVRTC"] = os.path.abspath(nvrtc[0])
    for program, all_of_them, few in PROGRAMS:
        path = options.build / "bin" / program
        if not path.exists():
            say(program, "failed", f"there is no {path}: build with CUDA, or unpack the bundle")
            continue
        chosen = few if options.mock else all_of_them
        count = dict.fromkeys(STATE.values(), 0)
        for name, state, milliseconds, said in results([path, f"--gtest_filter={chosen}"], environment):
            on_card = "OnAGpu" in name
            if on_card and state == "skipped" and not options.mock:
                # One case of the table is for the CPU alone.
                state = "skipped" if "torch's own step" in said else "failed"
            count[state] += 1
            if on_card or state == "failed":
                say(f"{program} {name}", state, said if state != "passed" else "", ms=milliseconds)
        say(f"{program} {chosen}", verdict(not count["failed"] and sum(count.values()) > 0), **count)
    return 0


if __name__ == "__main__":
    sys.exit(main())
