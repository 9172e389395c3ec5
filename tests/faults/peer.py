#!/usr/bin/env python3
"""One worker of tests/faults/peers.py: trains a small network by one system.

    peer.py SYSTEM OUT STEPS [NAN]

Appends a line for each step to OUT/metrics.jsonl, as `starling train` does. With NAN, this worker's
gradients are NaN in that step. Ends after the step STEPS.
"""

import datetime
import json
import math
import os
import pathlib
import sys
import time

import torch

LR, BATCH, FEATURES, CLASSES = 0.01, 32, 64, 10
PAUSE = 0.02  # seconds of a step in which nothing is computed: so all systems go at one pace


def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 256), torch.nn.ReLU(), torch.nn.Linear(256, CLASSES))


def batches(rank):
    """Endless, different on each worker: classes are clouds around fixed points."""
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(2))
    source = torch.Generator().manual_seed(100 + rank)
    while True:
        labels = torch.randint(CLASSES, (BATCH,), generator=source)
        yield centres[labels] + torch.randn(BATCH, FEATURES, generator=source), labels


class Worker:
    def __init__(self, out, rank, spoiled):
        self.file = os.open(out / "metrics.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.rank, self.spoiled = rank, spoiled
        self.model, self.source = network(), batches(rank)

    def backward(self, model, step):
        inputs, labels = next(self.source)
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        if step == self.spoiled:
            loss = loss * math.nan
        loss.backward()
        time.sleep(PAUSE)
        return loss.item()

    def log(self, step, loss):
        finite = all(bool(p.isfinite().all()) for p in self.model.parameters())
        os.write(self.file, json.dumps({"rank": self.rank, "step": step, "loss": loss if math.isfinite(loss) else None,
                                        "finite": finite, "at": time.monotonic()}).encode() + b"\n")


def by_ddp(worker, steps):
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(worker.model)
    optimizer = torch.optim.AdamW(worker.model.parameters(), lr=LR)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss = worker.backward(model, step)
        optimizer.step()
        worker.log(step, loss)


def by_decent_dp(worker, steps):
    # Decent-DP 0.2.3 does not support a check that torch has added since.
    torch.optim.Optimizer._cuda_graph_capture_health_check = lambda self: None
    from decent_dp.ddp import DecentralizedDataParallel
    from loguru import logger

    logger.remove()
    torch.distributed.init_process_group("gloo")
    model = DecentralizedDataParallel(worker.model, lambda named: torch.optim.AdamW([p for _, p in named], lr=LR),
                                      topology="ring")
    for step in range(1, steps + 1):
        worker.log(step, worker.backward(model, step))  # it steps inside


def by_torchft(worker, steps):
    """Each worker is a replica group of its own, as in torchft's train_ddp.py."""
    os.environ.setdefault("RUST_LOG", "error")
    import torchft

    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    inner = torch.optim.AdamW(worker.model.parameters(), lr=LR)

    def state():
        return {"model": worker.model.state_dict(), "optimizer": inner.state_dict()}

    def load(given):
        worker.model.load_state_dict(given["model"])
        inner.load_state_dict(given["optimizer"])

    seconds = datetime.timedelta(seconds=5)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=seconds), min_replica_size=2, load_state_dict=load, state_dict=state,
        timeout=seconds, rank=0, world_size=1, store_addr="127.0.0.1", store_port=store.port,
        lighthouse_addr=os.environ["LIGHTHOUSE"], replica_id=f"worker-{worker.rank}", hostname="127.0.0.1")
    model = torchft.DistributedDataParallel(manager, worker.model)
    optimizer = torchft.Optimizer(manager, inner)
    while manager.current_step() < steps:
        step = manager.current_step() + 1
        optimizer.zero_grad()
        loss = worker.backward(model, step)
        optimizer.step()
        worker.log(step, loss)
    manager.shutdown(wait=False)


def by_starling(worker, steps):
    import starling

    optimizer = starling.AdamW(worker.model.parameters(), lr=LR, scheme="cta", topology="ring", model=worker.model)
    while optimizer.steps < steps:
        optimizer.zero_grad()
        step = optimizer.steps + 1
        loss = worker.backward(worker.model, step)
        optimizer.step()
        worker.log(step, loss)


SYSTEMS = {"ddp": by_ddp, "decent-dp": by_decent_dp, "torchft": by_torchft, "starling": by_starling}


def main():
    if sys.argv[1:2] in (["-h"], ["--help"]):
        print(__doc__.strip())
        return
    system, out, steps, *spoiled = sys.argv[1:]
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    pathlib.Path(out, f"pid-{rank}").write_text(str(os.getpid()))
    SYSTEMS[system](Worker(pathlib.Path(out), rank, int(spoiled[0]) if spoiled else None), int(steps))


if __name__ == "__main__":
    main()
