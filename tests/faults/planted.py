#!/usr/bin/env python3
"""Whether the fault matrix can fail: takes one protection after the other out of the sources, builds
the command, and runs the cells that this protection is for. They must be red. Every source is put
back, also when this is interrupted; then the command is built again.

    planted.py [--build DIR] [BUG...]
"""

import argparse
import os
import pathlib
import subprocess
import sys
from dataclasses import dataclass

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from faults import named  # noqa: E402
from matrix import run_cells  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Bug:
    name: str
    fault: str  # whose cells must be red
    edits: tuple  # (source, text that occurs once, what stands there instead)
    schemes: tuple = ("cta", "a2cid2")


BUGS = [
    Bug("nobody-is-told-of-a-death", "dies-in-backward", (
        ("starling/transport/tcp/link.cpp",
         "local_.handler->lost(peer_, fmt::format(\"worker {}{}: {}\", peer_, where, reason));", "(void)reason;"),)),
    Bug("a-newcomer-keeps-its-own-values", "comes-back", (
        ("starling/optim/connection.cpp", "  adopt(std::move(given));\n  e.made = twin.made;", "  e.made = twin.made;"),)),
    Bug("a-newcomer-begins-a-run", "comes-back", (
        ("starling/train/trainer.cpp", "if (is_newcomer) {  // the run that it comes into has begun", "if (false) {"),)),
    Bug("values-are-not-checked", "nan-gradient", (
        ("starling/exchange/inbox.cpp", "!kernels::all_finite(chunk, *values_)",
         "!kernels::all_finite(chunk.first(0), *values_)"),
        ("starling/exchange/exchange.cpp", "  const bool is_news = !finite &&",
         "  finite = true;\n  const bool is_news = !finite &&")),
        schemes=("cta",)),
    Bug("jumps-are-not-refused", "value-jumps", (
        ("starling/exchange/usual_distance.cpp", "return usual > 0 && !(distance <= factor * usual);",
         "return usual > 0 && distance < -factor;"),)),
    Bug("an-average-waits-for-the-dead", "dies-in-average", (
        ("starling/exchange/averages.cpp", "  was_away(rank);\n  protocol_.gone(rank);", "  was_away(rank);"),),
        schemes=("cta",)),
    Bug("a-member-that-is-out-goes-on", "away-for-an-epoch", (
        ("starling/optim/connection.cpp", "  }\n  join_again();\n  return false;", "  }\n  return true;"),)),
    Bug("what-is-in-flight-is-dropped", "flaps", (
        ("starling/optim/connection.cpp", "  if (e.averages == 0) e.scheme->drain();", ""),), schemes=("cta",)),
    Bug("the-dead-stay-members", "newcomer-dies", (
        ("starling/optim/membership.cpp", "  departed_ = departed;", "  departed_.clear();"),)),
    Bug("a-donor-that-stopped-is-waited-for", "donor-stops", (
        ("starling/optim/membership.cpp", "now - asked > silent / 5 : now - heard > silent)",
         "now - asked > silent / 5 : false)"),), schemes=("cta",)),
    Bug("a-part-that-is-cut-off-goes-on", "split-pauses", (
        ("starling/optim/partition.cpp", "  if (exchange->sees_majority()) return;", "  return;"),), schemes=("cta",)),
    Bug("workers-that-started-again-are-missed", "starts-elsewhere", (
        ("starling/optim/partition.cpp", "if (unseen.contains(rank)) exchange->has_ended(rank);",
         "(void)unseen.contains(rank);"),), schemes=("cta",)),
    Bug("an-empty-store-is-that-of-a-new-run", "starts-elsewhere", (
        ("starling/optim/membership.cpp", "if (begins && (awaited == first || !world.fate(awaited).empty()))",
         "if (begins)"),), schemes=("cta",)),
    Bug("terms-are-not-compared", "other-recipe", (
        ("starling/optim/agreement.cpp", "return most_and_least[0] == -most_and_least[1];", "return true;"),),
        schemes=("cta",)),
    Bug("any-token-will-do", "wrong-token", (
        ("starling/transport/tcp/proof.cpp", "token.data(), static_cast<int>(token.size())", '"", 0 * token.size()'),),
        schemes=("cta",)),
    Bug("a-half-checkpoint-stays", "dies-in-checkpoint-rename", (
        ("starling/checkpoint/checkpoint.cpp", "(name.ends_with(kDraft) || name.ends_with(kReplaced)) && step",
         "name == \"none\" && step"),), schemes=("cta",)),
]


class Planted:
    """The sources with a bug."""

    def __init__(self, bug):
        self.kept, self.changed = {}, {}
        for name, old, new in bug.edits:
            text = self.changed.get(name) or (ROOT / name).read_text()
            if text.count(old) != 1:
                raise SystemExit(f"planted: {bug.name}: {name} has {text.count(old)} times, not once: {old}")
            self.kept.setdefault(name, (ROOT / name).read_text())
            self.changed[name] = text.replace(old, new)

    def __enter__(self):
        for name, text in self.changed.items():
            (ROOT / name).write_text(text)

    def __exit__(self, *error):
        for name, text in self.kept.items():
            (ROOT / name).write_text(text)


def build(folder):
    subprocess.run(["cmake", "--build", folder, "--target", "starling-cli"], check=True, stdout=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bugs", nargs="*", metavar="BUG", choices=[[], *(bug.name for bug in BUGS)],
                        help=f"{', '.join(bug.name for bug in BUGS)} (default: all)")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="build folder (default: build)")
    options = parser.parse_args()
    os.environ["STARLING"] = str(options.build / "bin/starling")
    missed = []
    try:
        for bug in BUGS:
            if options.bugs and bug.name not in options.bugs:
                continue
            print(f"== {bug.name}", flush=True)
            with Planted(bug):
                build(options.build)
                cells = run_cells([named(bug.fault)], schemes=bug.schemes, topologies=["ring"])
            green = [cell for cell in cells if cell.fault.name == bug.fault and not cell.wrong]
            missed += [f"{bug.name}: {cell.fault.name} under {cell.scheme} is green" for cell in green]
    finally:
        build(options.build)
    for line in missed:
        print(line)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
