"""The update by `bench-cuda`: beside the speed of a copy, torch's fused AdamW, and a neighbour
mixed by torch's lerp. The goal: 0.85 of a copy's bytes per second."""

import json
import subprocess
import sys

from together import parsed, say, verdict

LEAST_SHARE = 0.85


def bench(options, *arguments):
    """The JSON of bench-cuda."""
    program = options.build / "bin/bench-cuda"
    done = subprocess.run([program, "--device", "cpu" if options.mock else "cuda", *arguments],
                          capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        sys.exit(lines[-1] if lines else f"{program} ended with exit code {done.returncode}")
    return json.loads(done.stdout)


def rounded(figures):
    return {name: round(value, 3) for name, value in figures.items()}


def main():
    options = parsed()
    small = ("--parameters", "200000", "--repetitions", "3") if options.mock else ()
    result = bench(options, "--part", "update", *small)
    for format in ("fp32", "bf16"):
        figures = rounded(result[f"update_{format}"])
        good = options.mock or format != "fp32" or figures["copy_share"] >= LEAST_SHARE
        said = f"wanted: copy_share at least {LEAST_SHARE}" if format == "fp32" else ""
        say(f"update in {format}", verdict(good), said, **figures)
    say("update with a neighbour, fp32", "passed", "a block comes from the host's memory, another goes there",
        **rounded(result["mix_fp32"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
