"""One worker of tests/faults/peers.py: trains a small network by one system.

    peer.py SYSTEM OUT STEPS

Appends a line to OUT/metrics.jsonl for each step that is done. Under torchrun, worker 0 saves a
snapshot every 20 steps, and all workers load the last one when they start.
"""

import ctypes
import datetime
import json
import os
import pathlib
import signal
import sys
import time

import torch

EVERY = 20  # steps from snapshot to snapshot
LR, BATCH, FEATURES, CLASSES = 0.01, 32, 64, 10
PAUSE = 0.02  # seconds of a step without computation, so that all systems have the same pace


class Worker:
    def __init__(self, out, steps):
        self.rank, self.steps, self.passes = int(os.environ["RANK"]), steps, 0
        self.metrics = open(out / "metrics.jsonl", "ab", buffering=0)
        self.snapshot = out / "snapshot"
        torch.manual_seed(1)
        self.centres = 0.3 * torch.randn(CLASSES, FEATURES)
        self.model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 256), torch.nn.ReLU(), torch.nn.Linear(256, CLASSES))
        self.test = self.batch(512, 0)

    def batch(self, size, seed):
        """Each class is a cloud around a fixed point."""
        source = torch.Generator().manual_seed(seed)
        labels = torch.randint(CLASSES, (size,), generator=source)
        return self.centres[labels] + torch.randn(size, FEATURES, generator=source), labels

    def backward(self, model, step):
        inputs, labels = self.batch(BATCH, 1000 * step + self.rank)
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        self.passes += 1
        time.sleep(PAUSE)

    @torch.no_grad()
    def done(self, step):
        inputs, labels = self.test
        loss = torch.nn.functional.cross_entropy(self.model(inputs), labels).item()
        line = {"rank": self.rank, "step": step, "passes": self.passes, "pid": os.getpid(), "at": time.monotonic(), "loss": loss}
        self.metrics.write(json.dumps(line).encode() + b"\n")

    def load(self):
        """The last snapshot's step and the optimizers' states. The model takes its parameters."""
        if not self.snapshot.exists():
            return 0, []
        step, model, states = torch.load(self.snapshot)
        self.model.load_state_dict(model)
        return step, states

    def save(self, step, optimizers):
        if self.rank == 0 and step % EVERY == 0:
            draft = self.snapshot.with_suffix(".draft")
            torch.save((step, self.model.state_dict(), [optimizer.state_dict() for optimizer in optimizers]), draft)
            draft.replace(self.snapshot)


def adamw(parameters, states=()):
    optimizer = torch.optim.AdamW(parameters, lr=LR)
    if states:
        optimizer.load_state_dict(states[0])
    return optimizer


def by_ddp(worker):
    """As torch's tutorial on fault tolerance with torchrun."""
    torch.distributed.init_process_group("gloo")
    begin, states = worker.load()
    optimizer = adamw(worker.model.parameters(), states)
    model = torch.nn.parallel.DistributedDataParallel(worker.model)
    for step in range(begin + 1, worker.steps + 1):
        optimizer.zero_grad()
        worker.backward(model, step)
        optimizer.step()
        worker.done(step)
        worker.save(step, [optimizer])
    torch.distributed.destroy_process_group()


def by_decent_dp(worker):
    # Decent-DP 0.2.3 does not support a check that torch has added since.
    torch.optim.Optimizer._cuda_graph_capture_health_check = lambda self: None
    from decent_dp.ddp import DecentralizedDataParallel
    from loguru import logger

    logger.remove()
    torch.distributed.init_process_group("gloo")
    (begin, states), optimizers = worker.load(), []

    def optimizer_of(named):
        optimizers.append(adamw([p for _, p in named], states[len(optimizers):]))
        return optimizers[-1]

    model = DecentralizedDataParallel(worker.model, optimizer_of, topology="ring")
    for step in range(begin + 1, worker.steps + 1):
        worker.backward(model, step)  # it steps inside
        worker.done(step)
        worker.save(step, optimizers)
    torch.distributed.destroy_process_group()


def by_torchft(worker):
    """Each worker is a replica group of its own, with the timeouts of torchft's train_ddp.py."""
    import torchft

    inner = adamw(worker.model.parameters())
    parts = {"model": worker.model, "optimizer": inner}
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=datetime.timedelta(seconds=5)), timeout=datetime.timedelta(seconds=30),
        state_dict=lambda: {name: part.state_dict() for name, part in parts.items()},
        load_state_dict=lambda states: [part.load_state_dict(states[name]) for name, part in parts.items()],
        min_replica_size=1, replica_id=f"worker_{worker.rank}", rank=0, world_size=1, hostname="127.0.0.1",
        store_addr="127.0.0.1", store_port=store.port)
    model, optimizer = torchft.DistributedDataParallel(manager, worker.model), torchft.Optimizer(manager, inner)
    while (before := manager.current_step()) < worker.steps:
        optimizer.zero_grad()
        worker.backward(model, before + 1)
        optimizer.step()
        if manager.current_step() > before:  # it drops a step in which a worker is lost
            worker.done(manager.current_step())
    manager.shutdown(wait=False)


def by_starling(worker):
    import starling

    optimizer = starling.AdamW(worker.model.parameters(), lr=LR, scheme="cta", topology="ring", model=worker.model)
    while optimizer.steps < worker.steps:
        optimizer.zero_grad()
        worker.backward(worker.model, optimizer.steps + 1)
        optimizer.step()
        if not optimizer.joined:
            worker.done(optimizer.steps)


SYSTEMS = {"ddp": by_ddp, "ddp-own-store": by_ddp, "decent-dp": by_decent_dp, "torchft": by_torchft, "starling": by_starling}


def main():
    system, out, steps = sys.argv[1:]
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends when torchrun is killed
    torch.set_num_threads(1)
    SYSTEMS[system](Worker(pathlib.Path(out), int(steps)))


if __name__ == "__main__":
    main()
