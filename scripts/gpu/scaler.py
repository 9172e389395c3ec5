"""torch.amp.GradScaler with two workers that share the card. A loss scale is a power of two, so
that a run with a scaler must have the bits of one without. After an overflow on one worker, that
worker only mixes, and all goes on. At last fp16 autocast, as users have it."""

import json
import math
import sys

from together import Failed, Workers, each, parsed, prepare, say, verdict


def makers():
    import torch

    import starling

    return {"Starling's SGD": lambda p: starling.SGD(p, lr=0.1),
            "Starling's AdamW": lambda p: starling.AdamW(p, lr=0.05),
            "around torch's SGD": lambda p: starling.Decentralized(torch.optim.SGD(p, lr=0.1))}


def loss_of(parameters, rank, t):
    """Its gradient is x - c."""
    return sum(((p - (0.25 * rank + 0.125 * ((t + k) % 3))) ** 2).sum() for k, p in enumerate(parameters)) * 0.5


def trained(make, options, rank, scales, overflow=None):
    import torch

    parameters = [torch.arange(n, dtype=torch.float32).sin().to(options.device).requires_grad_() for n in (5000, 17, 66_000)]
    optimizer = make(parameters)
    scaler = torch.amp.GradScaler("cpu" if options.mock else "cuda", init_scale=2.0**10, growth_interval=1000, enabled=scales)
    for t in range(8):
        optimizer.zero_grad()
        loss = loss_of(parameters, rank, t)
        if t == overflow and rank == 1:
            loss = loss * math.inf
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    statistics, scale = optimizer.statistics(), scaler.get_scale()
    end = torch.cat([p.detach().cpu() for p in parameters])
    distance = optimizer.consensus_distance()
    optimizer.close()
    return end, statistics, scale, distance


def autocast(options, rank):
    """Losses of a small network under autocast with a scaler."""
    import torch

    import starling

    kind = "cpu" if options.mock else "cuda"
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)).to(options.device)
    optimizer = starling.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler(kind)
    torch.manual_seed(100 + rank)
    x = torch.randn(256, 64).to(options.device)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        with torch.autocast(kind, torch.bfloat16 if options.mock else torch.float16):
            loss = torch.nn.functional.mse_loss(model(x).float(), x.sin())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    optimizer.close()
    return losses[0], losses[-1], scaler.get_scale()


def work(options, _):
    import torch

    import starling

    rank = starling.init().rank
    for name, make in makers().items():
        plain, scaled = (trained(make, options, rank, scales)[0] for scales in (False, True))
        print(json.dumps({"item": f"{name}: the bits of a run without a scaler", "good": torch.equal(plain, scaled),
                          "figures": {"off": (plain - scaled).abs().max().item()}}), flush=True)
        end, statistics, scale, distance = trained(make, options, rank, True, overflow=3)
        good = (bool(end.isfinite().all()) and math.isfinite(distance) and statistics["aborted"] == 0
                and scale == 2.0 ** (9 if rank == 1 else 10))
        print(json.dumps({"item": f"{name}: an overflow on one worker", "good": good,
                          "figures": {"distance": distance, "aborted": statistics["aborted"], "scale": scale}}), flush=True)
    first, last, scale = autocast(options, rank)
    print(json.dumps({"item": "autocast", "good": last < 0.5 * first,
                      "figures": {"first_loss": first, "last_loss": last, "scale": scale}}), flush=True)


def main():
    options = parsed()
    prepare()
    try:
        with Workers(work, 2, options, None, STARLING_TRANSPORT="mapped") as workers:
            said = each(workers)
    except Failed as error:
        say("GradScaler", "failed", str(error))
        return 0
    for pair in zip(*said.values(), strict=True):
        figures = {f"{name}_{rank}": value for rank, line in enumerate(pair) for name, value in line["figures"].items()}
        say(pair[0]["item"], verdict(all(line["good"] for line in pair)), **figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
