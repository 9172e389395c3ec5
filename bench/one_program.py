#!/usr/bin/env python3
"""Runs a bench that is one program, and writes its output, with the machine and the date, to
out/bench/NAME.json.

    bench/one_program.py BUILD/bin/bench-NAME [its options]
"""

import json
import pathlib
import subprocess
import sys

from workers import ROOT, about, save


def main():
    if sys.argv[1:2] in (["-h"], ["--help"]):
        print(__doc__.strip())
        return
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    program, *options = sys.argv[1:]
    done = subprocess.run([program, *options], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:  # it has reported the reason
        sys.exit(done.returncode)
    name = pathlib.Path(program).name.removeprefix("bench-")
    save(json.loads(done.stdout) | {"machine": about()}, ROOT / f"out/bench/{name}.json")


if __name__ == "__main__":
    main()
