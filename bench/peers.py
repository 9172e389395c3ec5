#!/usr/bin/env python3
"""Each algorithm beside the peer that has it too: Decent-DP and torchft; prints JSON.

    bench/peers.py [--steps N] [--every N] [--hosts N] [--link RATIO] [--only REGEX] [--no-line]

A small GPT-2 trains on emulated hosts (root is needed) or, with --no-line, on this one. Both train
the same model on the same batches, from the same weights, in real time: bench/time_to_loss.py.
The link takes --link times as long for the fp32 parameters as a step computes. Writes
out/bench/peers.json (--out):

    same_losses   the largest difference between the final losses of a pair that computes the same
    seconds       the largest of our seconds over theirs
    pairs         by algorithm: loss, milliseconds a step, bytes sent, of theirs and ours

Both systems of a pair compute the same, but for Streaming DiLoCo: torchft's fragments are modules,
Starling's are stretches of all tensors. torchft sends pseudo-gradients in an all-reduce. DSGD-AC
in Decent-DP is a factor that the user sets, as its authors' scheme would.

Also out/bench/peers.md, the same as a table.
"""

import pathlib
import re
import sys
import tempfile

from time_to_loss import BATCH, Bench, packed_data, row, rules_of, system
from workers import ROOT, NoCluster, about, parser_of, save

SGD = {"name": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.0}


def decent_dp(**more):
    return system("decent-dp", topology="one-peer-exp", **more)


def torchft(every, fragments, **more):
    return system("torchft", every=every, fragments=fragments, **more)


def starling(scheme, topology="one-peer-exponential", **more):
    return system("starling", scheme=scheme, wire="fp32", topology=topology, more=more)


def pairs_of(every):
    """By algorithm: rule, theirs, ours, and whether both compute the same."""
    return {
        "DAdam": ("adam", decent_dp(), starling("cta"), True),
        "AccumAdam": ("accum", decent_dp(), starling("cta"), True),
        "DSGD": ("sgd", decent_dp(), starling("cta"), True),
        "DSGD-AC": ("sgd", decent_dp(adapts=True), starling("dsgd-ac", power=1.0), True),
        "DiLoCo": ("adam", torchft(every, 1), starling("local", mean_every=every, outer="nesterov"), True),
        "Streaming DiLoCo": ("adam", torchft(every, 4, delay=every // 4 - 1, alpha=0.5),
                             starling("streaming-diloco", "complete", every=every // 4, one_in=4), False),
    }


def table(result):
    link = result["link_over_compute"]
    said = (f"{result['date']}: {result['device']}.\n{result['hosts']} hosts, {result['parameters']:,} parameters, "
            f"{result['steps']} steps, {'loopback' if link is None else f'link = {link:g} x compute'}.\n\n")
    said += row(["algorithm", "peer", "loss: theirs", "ours", "ms a step: theirs", "ours", "MB sent: theirs", "ours"])
    said += "|-" * 8 + "|\n"
    for name, pair in result["pairs"].items():
        both = pair["theirs"], pair["ours"]
        said += row([name, pair["peer"], *(f"{run['loss']:.4f}" for run in both), *(f"{run['step_ms']:.0f}" for run in both),
                     *("" if run["bytes"] is None else f"{run['bytes'] / 1e6:.1f}" for run in both)])
    return said


def main():
    parser = parser_of(__doc__, "peers.json")
    parser.add_argument("--steps", type=int, default=200, help="of each algorithm (default %(default)s)")
    parser.add_argument("--every", type=int, default=40,
                        help="steps of DiLoCo between two outer steps, a multiple of 4 (default 40)")
    parser.add_argument("--hosts", type=int, default=2, help="emulated hosts (default %(default)s)")
    parser.add_argument("--link", type=float, default=3, help="link over compute (default 3)")
    parser.add_argument("--only", default="", help="regular expression for the names of algorithms (default: all)")
    parser.add_argument("--no-line", action="store_true", help="workers on this host, over loopback: no root is needed")
    parser.add_argument("--seed", type=int, default=1, help="of the run (default %(default)s)")
    parser.add_argument("--test", type=int, default=64, help="held-out examples")
    parser.add_argument("--data", type=pathlib.Path, help="the packed text (default: out/small/english, made if it is not there)")
    parser.add_argument("--vocabulary", type=int, help="of --data (default: the recipe's)")
    parser.add_argument("--python", default=sys.executable, help="a python that has torch, the peers and starling")
    parser.add_argument("--starling", default=str(ROOT / ".venv/bin/starling"), help="the command, to pack the text")
    options = parser.parse_args()
    if options.data and not (options.data / "train.bin").is_file():
        parser.error(f"--data {options.data}: there is no packed text")
    options.task, options.batch, options.alone = "text", BATCH["text"], 10
    if options.every < 4 or options.every % 4 != 0:
        parser.error(f"--every {options.every}: it must be a multiple of 4, the number of fragments")
    chosen = {name: pair for name, pair in pairs_of(options.every).items() if re.search(options.only, name)}
    if not chosen:
        parser.error(f"--only: no algorithm has '{options.only}' in its name: {', '.join(pairs_of(options.every))}")
    options.data = options.data or packed_data(options.task, options.starling)
    rules, pairs = rules_of("text"), {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, pathlib.Path(folder))
        compute_ms = bench.compute_ms()
        rate = None if options.no_line else bench.rate(options.link, compute_ms)
        for name, (kind, *systems, same) in chosen.items():
            rule, runs = rules.get(kind, SGD), []
            for of in systems:
                print(f"bench: {name}: {of['by']}", file=sys.stderr)
                run = bench.run(of, rule, options.steps, [options.steps], rate)
                runs.append({"step_ms": run["step_ms"]} | run["curve"][-1])
            pairs[name] = {"peer": systems[0]["by"], "same": same, "theirs": runs[0], "ours": runs[1]}
    same = [abs(pair["ours"]["loss"] - pair["theirs"]["loss"]) for pair in pairs.values() if pair["same"]]
    result = {"same_losses": max(same, default=None),
              "seconds": max(pair["ours"]["seconds"] / pair["theirs"]["seconds"] for pair in pairs.values()),
              "pairs": pairs, "hosts": options.hosts, "parameters": bench.parameters, "steps": options.steps,
              "link_over_compute": None if options.no_line else options.link, "rate": rate,
              "compute_ms": compute_ms, "seed": options.seed} | about()
    save(result, options.out)
    options.out.with_suffix(".md").write_text(table(result))


if __name__ == "__main__":
    try:
        main()
    except NoCluster as error:
        sys.exit(f"bench: {error} (--no-line needs none)")
