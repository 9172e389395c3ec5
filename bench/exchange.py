#!/usr/bin/env python3
"""Starling's exchange with mixing beside Gloo's send and receive with lerp_, by turns in the same
processes; prints JSON.

    bench/exchange.py [--program PATH] [--workers N,N,..] [--kilobytes N,N,..] [--repetitions N]
                      [--volume MEGABYTES] [--rate RATE | --no-line] [--out PATH]

It runs on this machine, where no link limits, once in shared memory (the default of workers on one
host) and once over loopback TCP (STARLING_TRANSPORT=tcp). It also runs on hosts emulated by
scripts/cluster, each with a card of 1 Gbit/s (root only; without root those figures are missing,
and `missing` says so). bench/exchange.cpp says what a worker does. Figures are medians over the
repetitions. Gloo is the faster (for CPU time: the cheaper) of its two forms, in the same blocks as
Starling or in a single tensor. For two workers, the worst over the sizes from 4 MB on:

    mapped_vs_gloo   time of Gloo's exchange with mixing, divided by that in shared memory
    mapped_vs_own    at 64 MB (else the largest size): time of the exchange with mixing in shared
                     memory, divided by that of the same mixing with a block of the worker's own
                     instead, and no exchange
    tcp_line_share   bytes of parameters that cross the emulated link per second and direction, both
                     at once, with mixing, as part of the line rate (of which headers of Ethernet,
                     IP and TCP take 4 to 5 %)
    tcp_vs_gloo      throughput of the exchange alone on loopback, divided by Gloo's;
                     tcp_vs_gloo_mixed: with mixing
    cpu_vs_gloo      CPU time of all workers per GB that they send on loopback, divided by Gloo's,
                     for the exchange alone; cpu_vs_gloo_mixed: with mixing, where Starling also
                     writes the next wire block and checks that it is finite
and
    latency_vs_gloo  a round trip of 64 KB on loopback, from one training thread to the other's and
                     back, divided by Gloo's, each in its best repetition; of a frame with its
                     checksum, not of an exchange, which also needs votes (see the row of 64 KB)
    idle_cpu_share   CPU time of a worker per second in which it waits for a neighbour
    control_under_load_ms  time of a control frame from one I/O thread to the other's while blocks
                     fill the emulated link in both directions: half of a round trip, the median
                     (votes wait this long)
"""

import json
import statistics
import sys

from workers import NoCluster, about, emulated, loopback, parser_of, save

LARGE = 4 << 20


def rows(measured, line=None):
    """The table of one number of workers: medians per size."""
    table = []
    for size in measured["sizes"]:
        seconds = {name: statistics.median(each) for name, each in size["seconds"].items()}
        cpu = {name: statistics.median(each) for name, each in size["cpu"].items()}
        row = {
            "workers": measured["workers"],
            "bytes": size["bytes"],
            "blocks": size["blocks"],
            "in_place": size["in_place"],
            "ms": {name: 1e3 * each for name, each in seconds.items()},
            "cpu_seconds_per_gigabyte": cpu,
        }
        for end in ("", "_unmixed"):
            ours, theirs = "starling" + end, [name + end for name in ("gloo", "gloo_whole") if name + end in seconds]
            if ours in seconds:
                row["vs_gloo" + end] = min(seconds[name] for name in theirs) / seconds[ours]
                row["cpu_vs_gloo" + end] = cpu[ours] / min(cpu[name] for name in theirs)
        if "own" in seconds:
            row["vs_own"] = seconds["starling"] / seconds["own"]
        if line:
            row["line_share"] = size["bytes"] / seconds["starling"] / line
            row["gloo_line_share"] = row["line_share"] / row["vs_gloo"]
        table.append(row)
    return table


def of_two(table, key, choose):
    found = [row[key] for row in table if row["workers"] == 2 and row["bytes"] >= LARGE]
    return choose(found) if found else None


def percentiles(seconds):
    """The value at this part of sorted values, in milliseconds."""
    return {f"p{p}": 1e3 * seconds[(len(seconds) - 1) * p // 100] for p in (50, 99)}


def bytes_per_second(rate):
    return int(rate[:-4]) * {"k": 1e3, "m": 1e6, "g": 1e9}[rate[-4]] / 8


def main():
    parser = parser_of(__doc__, "exchange.json", program="bench-exchange")
    parser.add_argument("--workers", default="2,4,8", help="numbers of workers (default %(default)s)")
    parser.add_argument("--kilobytes", default="64,256,1024,4096,16384,65536", help="sizes of the model (default %(default)s)")
    parser.add_argument("--repetitions", type=int, default=5, help="repetitions of each measurement (default %(default)s)")
    parser.add_argument("--volume", type=int, default=128,
                        help="MB that a worker sends per repetition, at least eight times the size; half of it on the link")
    parser.add_argument("--rate", default="1gbit", help="rate of a host's card, in the format of tc (default %(default)s)")
    parser.add_argument("--no-line", action="store_true", help="leave the emulated link out")
    parser.add_argument("--idle", type=int, default=5, help="seconds of waiting for an absent block")
    parser.add_argument("--round-trips", type=int, default=300, help="for the latency (default %(default)s)")
    options = parser.parse_args()

    def program(volume, repetitions, *more):
        return [options.program, "--kilobytes", options.kilobytes, "--volume", str(volume), "--repetitions",
                str(repetitions), *more]

    why, unlimited, mapped, limited, two = {}, [], [], [], {}
    for workers in map(int, options.workers.split(",")):
        print(f"bench: {workers} workers, loopback", file=sys.stderr)
        trips = ["--round-trips", str(options.round_trips)] if workers == 2 else []
        idle = ["--idle", str(options.idle)] if workers == 2 else []
        measured = json.loads(loopback(program(options.volume, options.repetitions, *trips, *idle), workers, "tcp"))
        unlimited += rows(measured)
        if workers == 2:
            two["loopback"] = measured
        print(f"bench: {workers} workers, shared memory", file=sys.stderr)
        command = program(options.volume, options.repetitions, "--unmixed", "0")
        mapped += rows(json.loads(loopback(command, workers)))
        reason = "--no-line" if options.no_line else None
        if not reason:
            print(f"bench: {workers} hosts, {options.rate}", file=sys.stderr)
            command = program(options.volume // 2 or 1, options.repetitions, "--unmixed", "0", *trips)
            try:
                measured = json.loads(emulated(command, workers, options.rate))
                limited += rows(measured, bytes_per_second(options.rate))
                if workers == 2:
                    two["line"] = measured
            except NoCluster as error:
                reason = str(error)
        if reason:
            why["tcp_line_share"] = why["control_under_load_ms"] = reason

    latency = {name: min(each) for name, each in two.get("loopback", {}).get("latency", {}).items()}
    control = {where: percentiles(measured["under_load"]) for where, measured in two.items() if "under_load" in measured}
    result = {
        "mapped_vs_gloo": of_two(mapped, "vs_gloo", min),
        "mapped_vs_own": max(mapped, key=lambda row: (row["workers"] == 2, row["bytes"]))["vs_own"],
        "tcp_line_share": of_two(limited, "line_share", min),
        "tcp_vs_gloo": of_two(unlimited, "vs_gloo_unmixed", min),
        "tcp_vs_gloo_mixed": of_two(unlimited, "vs_gloo", min),
        "cpu_vs_gloo": of_two(unlimited, "cpu_vs_gloo_unmixed", max),
        "cpu_vs_gloo_mixed": of_two(unlimited, "cpu_vs_gloo", max),
        "latency_vs_gloo": latency["starling"] / latency["gloo"] if latency else None,
        "idle_cpu_share": two.get("loopback", {}).get("idle"),
        "control_under_load_ms": control.get("line", {}).get("p50"),
        "missing": sorted(why),
        "why": why,
        "line_rate_is": f"{options.rate}, the cards' limit",
        "round_trip_us": {name: 1e6 * each for name, each in latency.items()},
        "control_ms": control,
        **about(),
        "repetitions": options.repetitions,
        "mapped": mapped,
        "loopback": unlimited,
        "line": limited,
    }
    save(result, options.out)


if __name__ == "__main__":
    main()
