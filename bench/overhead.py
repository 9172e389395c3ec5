#!/usr/bin/env python3
"""The cost of Starling in cases without a benefit: time of a step alone, memory, many workers on
one host; prints JSON.

    bench/overhead.py [--program PATH] [--workers N,N,..] [--repetitions N] [--mega N] [--out PATH]

bench/overhead.cpp says what is measured. Writes out/bench/overhead.json:

    vs_torch_fused_step   time of a training step of one worker with torch's fused AdamW (60
                          tensors, 2 million parameters), divided by the same with Starling's AdamW
                          without neighbours; medians, by turns in one process. "alone" is
                          optimizer.step()
    memory                bytes per parameter besides the parameter and its gradient, by rule and
                          wire, with one neighbour
    local                 ms of a step of a tiny model (60 tensors, 12,000 parameters) with this
                          many workers on this host, with one-peer-exponential, beside Gloo's
                          all-reduce and fused AdamW
    protections           a training step of two workers over TCP on this host (60 tensors, 2
                          million parameters) with a protection against faults, divided by the
                          same without any; medians, by turns. heartbeats; tags on all frames in
                          place of checksums; jump_guard; rejoin; all of them. Wanted: all at most
                          1.01
"""

import json
import subprocess

from workers import about, loopback, parser_of, save

RULES = ("sgd", "sgd-momentum", "adamw", "accum-adamw")
WIRES = ("fp32", "bf16", "fp16", "int8", "int4")


def main():
    parser = parser_of(__doc__, "overhead.json", program="bench-overhead")
    parser.add_argument("--workers", default="2,4,8,16", help="numbers of workers on this host (default %(default)s)")
    parser.add_argument("--repetitions", type=int, default=9, help="repetitions of 50 steps; 30 times as many for a step alone")
    parser.add_argument("--mega", type=int, default=16, help="million parameters for the measurement of memory")
    options = parser.parse_args()

    def alone(*arguments):
        command = [options.program, *map(str, arguments)]
        return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)

    local = [options.program, "local", str(options.repetitions)]
    save({
        **alone("step", 30 * options.repetitions),
        **about(),
        "repetitions": options.repetitions,
        "memory": [alone("memory", rule, wire, options.mega) for rule in RULES for wire in WIRES],
        "protections": json.loads(loopback([options.program, "protections", str(3 * options.repetitions)], 2)),
        "local": [json.loads(loopback(local, int(workers))) for workers in options.workers.split(",")],
    }, options.out)


if __name__ == "__main__":
    main()
