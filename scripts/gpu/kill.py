"""Two workers that share the card, in shared memory. One is killed in the middle of training, and
the other must go on."""

import json
import math
import os
import signal
import sys
import time

from together import Failed, Workers, each, finish, parsed, prepare, say, verdict

STEPS = 20


def work(options, _):
    import torch

    import starling

    count = 200_000 if options.mock else 20_000_000
    x = torch.ones(count, device=options.device).requires_grad_()
    optimizer = starling.SGD([x], lr=0.1, check_gradients=False)
    rank = starling.init().rank

    def some(steps):
        """Milliseconds of a step."""
        began = time.perf_counter()
        for _ in range(steps):
            x.grad = x.detach() - float(rank + 1)
            optimizer.step()
        finish(options.device)
        return 1e3 * (time.perf_counter() - began) / steps

    some(3)
    before = some(STEPS)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    first, after = some(1), some(STEPS)
    statistics = optimizer.statistics()
    with optimizer.consensus() as average:
        workers = average.workers
    print(json.dumps({"before_ms": before, "first_after_ms": first, "after_ms": after, "lost": len(statistics["lost"]),
                      "in_place": statistics["bytes_in_place"] / max(1, statistics["bytes_sent"]), "workers": workers,
                      "mean": x.detach().mean().item()}), flush=True)
    optimizer.close()


def main():
    options = parsed()
    prepare()
    try:
        with Workers(work, 2, options, None, STARLING_TRANSPORT="mapped") as workers:
            said = each(workers, killed=[1])
    except Failed as error:
        say("the other goes on", "failed", str(error))
        return 0
    (figures,) = said[0] or [{}]
    good = (bool(figures) and not said[1] and figures["workers"] == 1 and figures["in_place"] > 0.5
            and math.isfinite(figures["mean"]))
    say("the other goes on", verdict(good), "the average is that of 1 worker; over half of the bytes went in place",
        **{name: round(value, 4) for name, value in figures.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
