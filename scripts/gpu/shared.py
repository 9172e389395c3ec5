"""A step by `bench-cuda`: matrix products in the place of forward and backward, then step(). One
worker alone, then two that share the card, by wire; one of the two is killed at the end."""

import math
import sys

from together import parsed, say, verdict
from update import bench, rounded


def main():
    options = parsed()
    small = ("--parameters", "1000000", "--repetitions", "3", "--compute", "2") if options.mock else ()
    for name, workers in bench(options, "--part", "step", *small)["step"].items():
        figures = {key: value for key, value in workers.items() if not isinstance(value, dict)}
        for key, value in workers.get("killed", {}).items():
            figures[f"after_the_kill_{key}"] = value
        say(name.replace("_", " "), verdict(all(map(math.isfinite, figures.values()))), **rounded(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
