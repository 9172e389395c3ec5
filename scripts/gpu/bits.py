"""Every scheme with every wire that it takes, by workers that share the card. The same workers do
the same steps on the CPU, and compare. Then each scheme with parameters in bf16, with local steps
and with few values, and a hierarchy.

In rounds the bits must be the same, but for schemes whose own vectors torch computes on the card:
there each value may be off by a rounding. Schemes in pairs depend on the time: there the average
model must be the CPU's up to a tolerance, and averagings must have taken place."""

import itertools
import json
import math
import subprocess
import sys
import time

from together import Failed, Workers, one_line, parsed, prepare, say, verdict

WIRES = ("fp32", "bf16", "fp16", "int8", "int4")
STEPS = 5
STEPS_IN_PAIRS = 30
# How far the average model may be off in pairs, as a share of the way that it goes. With tracked
# gradients the way depends on the time: at most so many times as long as on the CPU, or as short.
TOLERANCE, FACTOR = 0.02, 3
# Torch multiplies and adds on their vectors, and may round that otherwise on the card. A parameter
# in bf16, below 2, may then be a step of 2^-7 off, and its next gradients add at most another one.
BY_TORCH = ("momentum-tracking", "tracking-adam", "quasi-global", "quasi-global-adam", "decentlam", "streaming-diloco",
            "push-diging")
ROUNDING, ROUNDING_OF_BF16 = 1e-4, 2**-6


def cases(options):
    """The rows of `starling schemes --markdown`, once per wire."""
    done = subprocess.run([options.build / "bin/starling", "schemes", "--markdown"], capture_output=True, text=True, check=True)
    table = itertools.takewhile(lambda line: line.startswith("|"), done.stdout.splitlines())
    heads, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table)
    made = []
    for row in (dict(zip(heads, cells, strict=True)) for cells in rows):
        for wire in WIRES if row["wires"] == "all" else row["wires"].split(", "):
            made.append({"scheme": row["scheme"].strip("`"), "wire": wire, "pairs": "in pairs" in row["exchange"],
                         "directed": "directed" in row["edges"], "mixes": "neighbours" not in row["edges"],
                         "tracks": "tracked" in row["what it does"]})
    made += more_of(options, [case for case in made if case["wire"] == "fp32"])
    first = ["cta", "atc", "all-reduce"]
    made.sort(key=lambda case: first.index(case["scheme"]) if case["scheme"] in first else len(first))
    if options.mock:  # one wire of each scheme, and all of the first
        seen = set()
        made = [case for case in made if case["scheme"] == "cta" or not (case["scheme"] in seen or seen.add(case["scheme"]))]
    return made


def more_of(options, plain):
    """The options that change what a scheme keeps or copies, each with all schemes that take it."""
    for case in plain:
        described = subprocess.run([options.build / "bin/starling", "schemes", case["scheme"]],
                                   capture_output=True, text=True, check=True).stdout
        rows = dict(line.split(None, 1) for line in described.replace("local steps", "local_steps").splitlines()
                    if len(line.split(None, 1)) == 2)
        if not case["pairs"]:
            yield case | {"with": "bf16 parameters", "narrow": True}
        if rows["local_steps"].startswith("any"):
            yield case | {"with": "local steps", "options": {"every": 2}}
        if rows["one_in"].startswith("any"):
            yield case | {"with": "few values", "options": {"one_in": 4}}
        if rows["hierarchy"] == "yes" and not options.mock:  # where all workers would be one node
            yield case | {"with": "nodes of two", "options": {"hierarchy": "node", "workers_per_node": 2}}


# ------------------------------------------------------------------------------------- a worker


def optimizer_of(case, parameters):
    """With this scheme over a topology that it takes."""
    import starling

    rule = (lambda p, **o: starling.SGD(p, lr=0.05, **o)) if case["pairs"] else (lambda p, **o: starling.AdamW(p, lr=0.05, **o))
    more = {"scheme": case["scheme"], "wire": case["wire"], "check_gradients": False, **case.get("options", {})}
    if not case["mixes"]:
        return rule(parameters, **more)
    if case["directed"]:
        return rule(parameters, topology="n-peer-exponential-1", **more)
    try:
        return rule(parameters, topology="ring", **more)
    except starling.UsageError:  # of the weights of this ring
        return rule(parameters, topology="star", **more)


def train(case, rank, device):
    """The parameters at the end, the average model, its way, and the statistics. Gradients are
    made by single operations, which have the same bits everywhere."""
    import torch

    dtype = torch.bfloat16 if case.get("narrow") else torch.float32
    parameters = [(torch.arange(math.prod(shape), dtype=torch.float32) + 100 * rank).sin().reshape(shape).to(device, dtype)
                  .requires_grad_() for shape in ((3,), (50, 100), (17,), (220, 300), (4097,))]
    optimizer = optimizer_of(case, parameters)
    begin = [p.detach().cpu().clone() for p in parameters]  # rank 0's
    for t in range(STEPS_IN_PAIRS if case["pairs"] else STEPS):
        for k, p in enumerate(parameters):
            centre = 0.5 + 0.25 * rank + 0.125 * ((t + k) % 3)
            # In pairs, one that does not depend on x, so that the average does not on the time.
            p.grad = torch.full_like(p, -centre) if case["pairs"] else p.detach() - centre
        if case["pairs"]:
            time.sleep(0.01)
        optimizer.step()
    end = [p.detach().cpu().clone() for p in parameters]
    statistics = optimizer.statistics()
    with optimizer.consensus():
        average = [p.detach().cpu().clone() for p in parameters]
    optimizer.close()
    way = max((a - b).abs().max().item() for a, b in zip(average, begin, strict=True))
    return end, average, way, statistics


def largest(one, other):
    return max((a - b).abs().max().item() for a, b in zip(one, other, strict=True))


def work(options, jobs):
    import torch

    import starling

    world = starling.init()
    for number, case in enumerate(jobs):
        said = {"number": number}
        here, average_here, way, _ = train(case, world.rank, "cpu")
        there, average_there, way_there, statistics = train(case, world.rank, options.device)
        said |= {"same": all(torch.equal(a, b) for a, b in zip(here, there, strict=True)), "off": largest(here, there),
                 "average_off": largest(average_here, average_there) / way, "ways": way_there / way,
                 "finite": all(bool(a.isfinite().all()) for a in there),
                 "averaged": sum(edge["averaged"] for edge in statistics["edges"]),
                 "committed": statistics["committed"], "aborted": statistics["aborted"]}
        print(json.dumps(said), flush=True)


# ------------------------------------------------------------------------------------- all of them


def name_of(case):
    return ", ".join(filter(None, (case["scheme"], case["wire"], case.get("with"))))


def judge(case, all_said):
    """Says the result of a case from what each worker said of it."""
    name = name_of(case)
    finite = all(said["finite"] for said in all_said)
    if case["pairs"]:
        off, averaged = max(said["average_off"] for said in all_said), sum(said["averaged"] for said in all_said)
        ways = [said["ways"] for said in all_said]
        near = all(1 / FACTOR <= each <= FACTOR for each in ways) if case["tracks"] else off <= TOLERANCE
        wanted = f"goes 1/{FACTOR} to {FACTOR} times as far" if case["tracks"] else f"is off by at most {TOLERANCE} of its way"
        say(name, verdict(finite and near and averaged > 0), f"the average model {wanted}",
            average_off=off, way_beside_the_cpu=ways[0], averaged=averaged)
        return
    same = all(said["same"] for said in all_said)
    exchanged = not case["mixes"] or all(said["committed"] > 0 and said["aborted"] == 0 for said in all_said)
    off = max(said["off"] for said in all_said)
    most = ROUNDING_OF_BF16 if case.get("narrow") else ROUNDING
    rounded = case["scheme"] in BY_TORCH and off <= most
    verb = "is" if rounded else "should have the CPU's bits, and is"
    text = "the CPU's bits" if same else f"{verb} off by at most {off:.3g}"
    say(name, verdict(finite and (same or rounded) and exchanged), text if exchanged else "blocks were lost",
        off=off, committed=min(said["committed"] for said in all_said))


def main():
    options = parsed()
    prepare()
    count = 2 if options.mock else 4
    left = cases(options)
    while left:
        done, said = 0, {}
        try:
            with Workers(work, count, options, left, STARLING_TRANSPORT="mapped") as workers:
                for _, line in workers.lines(quiet=0.35):
                    said.setdefault(line["number"], []).append(line)
                    while len(said.get(done, ())) == count:
                        judge(left[done], said[done])
                        done += 1
        except Failed as error:
            case = left[min(done, len(left) - 1)]
            say(name_of(case), "failed", str(error))
            done += 1  # the workers begin again with the next one
        left = left[done:]
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(one_line(error))
