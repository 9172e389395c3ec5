"""Milliseconds of a step of GPT-2 small in bf16 autocast, with AdamW:

    alone           one process has the card: with torch's fused AdamW, and with Starling's
    apart           two processes share the card and exchange nothing, with both
    together        they mix, by wire: Starling's exchange overlaps with the next step
    DDP             torch's DistributedDataParallel over Gloo: NCCL refuses two ranks on a card
"""

import contextlib
import json
import math
import sys
import time

from together import Failed, Workers, finish, parsed, prepare, say, verdict

WARM_UP = 3
# Name, the optimizer, the workers that mix ("own": this one alone), the wire; DDP.
MODES = [
    ("alone, torch", "torch", "own", "", False),
    ("alone, Starling", "starling", "own", "fp32", False),
    ("two apart, torch", "torch", "own", "", False),
    ("two apart, Starling", "starling", "own", "fp32", False),
    ("two, Starling, fp32", "starling", "both", "fp32", False),
    ("two, Starling, bf16", "starling", "both", "bf16", False),
    ("two, Starling, int8", "starling", "both", "int8", False),
    ("two, DDP over Gloo", "torch", "both", "", True),
]


def measured(options, mode, own, both, batch, steps):
    """Milliseconds of a step, its loss, and the seconds that it waited."""
    import torch
    from gpt2 import GPT2, SMALL, TINY

    import starling

    name, kind, with_whom, wire, ddp = mode
    rank = torch.distributed.get_rank()
    if name.startswith("alone") and rank > 0:
        return None
    torch.manual_seed(1)
    shape = TINY if options.mock else SMALL
    with torch.device(options.device):
        model = GPT2(**shape)
    trained = model
    if ddp:
        trained = torch.nn.parallel.DistributedDataParallel(
            model, device_ids=None if options.mock else [0], process_group=both, gradient_as_bucket_view=True)
    if kind == "torch":
        optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-4, fused=True)
    else:
        optimizer = starling.AdamW(model.parameters(), lr=1e-4, wire=wire, process_group=own if with_whom == "own" else both)
    torch.manual_seed(100 + rank)
    tokens = torch.randint(shape["vocabulary"], (batch, shape["context"] + 1)).to(options.device)
    autocast = contextlib.nullcontext() if options.mock else torch.autocast("cuda", torch.bfloat16)

    def step():
        optimizer.zero_grad()
        with autocast:
            loss = trained(tokens)
        loss.backward()
        optimizer.step()
        return loss

    def some(count):
        for _ in range(count):
            loss = step()
        finish(options.device)
        return loss.item()

    some(WARM_UP)
    if not name.startswith("alone"):
        torch.distributed.barrier(both)
    waited = optimizer.statistics()["seconds_waiting"] if kind == "starling" else 0
    began = time.perf_counter()
    loss = some(steps)
    milliseconds = 1e3 * (time.perf_counter() - began) / steps
    figures = {"ms": milliseconds, "tokens_per_second": 1e3 * batch * shape["context"] / milliseconds, "loss": loss}
    if kind == "starling":
        if not name.startswith("alone"):
            torch.distributed.barrier(both)  # the first one to close loses nothing of the other's
        statistics = optimizer.statistics()
        figures["waiting_ms"] = 1e3 * (statistics["seconds_waiting"] - waited) / steps
        figures["aborted"] = statistics["aborted"]
        optimizer.close()
    return figures


def work(options, job):
    import torch

    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    both = torch.distributed.group.WORLD
    alone = [torch.distributed.new_group([each]) for each in range(2)]
    for number, mode in enumerate(MODES):
        figures = measured(options, mode, alone[rank], both, job["batch"], job["steps"])
        torch.distributed.barrier()
        if not options.mock:
            torch.cuda.empty_cache()
        if figures is not None:
            print(json.dumps({"number": number} | figures), flush=True)
    torch.distributed.destroy_process_group()


def main():
    options = parsed()
    prepare()
    job = {"batch": 2, "steps": 2} if options.mock else {"batch": 8, "steps": 20}
    milliseconds, said = {}, {}
    try:
        with Workers(work, 2, options, job, STARLING_TRANSPORT="mapped") as workers:
            for rank, line in workers.lines():
                number = line.pop("number")
                name = MODES[number][0]
                both = said.setdefault(number, {})
                both[rank] = line
                if len(both) < (1 if name.startswith("alone") else 2):
                    continue
                # Both share the card: the slower one is the step.
                figures = max(both.values(), key=lambda each: each["ms"])
                milliseconds[name] = figures["ms"]
                good = all(math.isfinite(each["loss"]) and not each.get("aborted") for each in both.values())
                say(name, verdict(good), f"batch {job['batch']} for each, mean of {job['steps']} steps", **rounded(figures))
    except Failed as error:
        say(MODES[min(len(milliseconds), len(MODES) - 1)][0], "failed", str(error))
        return 0
    ratios = {
        "starling_fp32_over_apart": milliseconds["two, Starling, fp32"] / milliseconds["two apart, Starling"],
        "ddp_over_apart": milliseconds["two, DDP over Gloo"] / milliseconds["two apart, torch"],
        "ddp_over_starling_fp32": milliseconds["two, DDP over Gloo"] / milliseconds["two, Starling, fp32"],
        "torch_over_starling_alone": milliseconds["alone, torch"] / milliseconds["alone, Starling"]}
    say("ratios of these times", "passed", **rounded(ratios))
    return 0


def rounded(figures):
    return {name: round(value, 4) for name, value in figures.items()}


if __name__ == "__main__":
    sys.exit(main())
