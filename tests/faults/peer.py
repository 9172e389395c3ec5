"""One worker of tests/faults/peers.py: trains a small network by one system.

    peer.py SYSTEM OUT STEPS EVERY [RANK:STEP]

Appends a line to OUT/metrics.jsonl for each step that is done, and ends after STEPS steps. Under
DDP and Decent-DP it saves a snapshot every EVERY steps, and loads the last one at the start. The
gradients of worker RANK are NaN in step STEP.
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
PAUSE = 0.02  # seconds of a step without computation, so that all systems have the same pace


class Worker:
    def __init__(self, out, every, spoiled):
        self.out, self.every, self.spoiled = out, every, spoiled
        self.rank = int(os.environ["RANK"])
        self.file = os.open(out / "metrics.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(2))
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 256), torch.nn.ReLU(), torch.nn.Linear(256, CLASSES))

    def backward(self, model, step):
        """On the batch of this step: classes are clouds around fixed points."""
        source = torch.Generator().manual_seed(1000 * step + self.rank)
        labels = torch.randint(CLASSES, (BATCH,), generator=source)
        inputs = self.centres[labels] + torch.randn(BATCH, FEATURES, generator=source)
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        if [self.rank, step] == self.spoiled:
            loss = loss * math.nan
        loss.backward()
        time.sleep(PAUSE)

    def done(self, step):
        finite = all(bool(p.isfinite().all()) for p in self.model.parameters())
        line = {"rank": self.rank, "step": step, "pid": os.getpid(), "finite": finite, "at": time.monotonic()}
        os.write(self.file, json.dumps(line).encode() + b"\n")


class Snapshots:
    """Files with the state of one worker, or of all where they are equal. The last two stay."""

    def __init__(self, worker, of):
        self.folder, self.of, self.every = worker.out, of, worker.every

    def path(self, step):
        return self.folder / f"snapshot-{self.of}-{step}"

    def load(self):
        """The step and the state of the last one that all workers have; at first 0 and None."""
        last = max((int(path.name.rsplit("-", 1)[1]) for path in self.folder.glob(self.path("*").name)), default=0)
        step = torch.tensor(last)
        torch.distributed.all_reduce(step, torch.distributed.ReduceOp.MIN)
        return step.item(), torch.load(self.path(step.item())) if step else None

    def save(self, step, state):
        draft = self.folder / f"draft-{self.of}"
        torch.save(state, draft)
        draft.rename(self.path(step))
        self.path(step - 2 * self.every).unlink(missing_ok=True)


def by_ddp(worker, steps):
    """Rank 0 saves the snapshots, as in torch's tutorial on fault tolerance with torchrun."""
    torch.distributed.init_process_group("gloo")
    optimizer = torch.optim.AdamW(worker.model.parameters(), lr=LR)
    snapshots = Snapshots(worker, "all")
    begin, state = snapshots.load()
    if state:
        worker.model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    model = torch.nn.parallel.DistributedDataParallel(worker.model)
    for step in range(begin + 1, steps + 1):
        optimizer.zero_grad()
        worker.backward(model, step)
        optimizer.step()
        worker.done(step)
        if step % worker.every == 0 and worker.rank == 0:
            snapshots.save(step, {"model": worker.model.state_dict(), "optimizer": optimizer.state_dict()})
    torch.distributed.destroy_process_group()


def by_decent_dp(worker, steps):
    """Each worker has a model of its own, so each saves its own snapshots."""
    # Decent-DP 0.2.3 does not support a check that torch has added since.
    torch.optim.Optimizer._cuda_graph_capture_health_check = lambda self: None
    from decent_dp.ddp import DecentralizedDataParallel
    from loguru import logger

    logger.remove()
    torch.distributed.init_process_group("gloo")
    snapshots, optimizers = Snapshots(worker, worker.rank), []
    begin, state = snapshots.load()

    def optimizer_of(named):
        optimizers.append(torch.optim.AdamW([p for _, p in named], lr=LR))
        if state:
            optimizers[-1].load_state_dict(state["optimizers"][len(optimizers) - 1])
        return optimizers[-1]

    model = DecentralizedDataParallel(worker.model, optimizer_of, topology="ring")  # takes worker 0's parameters
    if state:
        worker.model.load_state_dict(state["model"])
    for step in range(begin + 1, steps + 1):
        worker.backward(model, step)  # it steps inside
        worker.done(step)
        if step % worker.every == 0:
            snapshots.save(step, {"model": worker.model.state_dict(), "optimizers": [o.state_dict() for o in optimizers]})
    torch.distributed.destroy_process_group()


def by_torchft(worker, steps):
    """Each worker is a replica group of its own, with the values of torchft's train_ddp.py."""
    os.environ.setdefault("RUST_LOG", "error")
    import torchft

    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    inner = torch.optim.AdamW(worker.model.parameters(), lr=LR)

    def state():
        return {"model": worker.model.state_dict(), "optimizer": inner.state_dict()}

    def load(given):
        worker.model.load_state_dict(given["model"])
        inner.load_state_dict(given["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=datetime.timedelta(seconds=5)), min_replica_size=1,
        load_state_dict=load, state_dict=state, timeout=datetime.timedelta(seconds=30), rank=0, world_size=1,
        store_addr="127.0.0.1", store_port=store.port, replica_id=f"worker_{worker.rank}", hostname="127.0.0.1")
    model = torchft.DistributedDataParallel(manager, worker.model)
    optimizer = torchft.Optimizer(manager, inner)
    while (before := manager.current_step()) < steps:
        optimizer.zero_grad()
        worker.backward(model, before + 1)
        optimizer.step()
        if manager.current_step() > before:  # it drops a step in which a worker is lost
            worker.done(manager.current_step())
    manager.shutdown(wait=False)


def by_starling(worker, steps):
    import starling

    optimizer = starling.AdamW(worker.model.parameters(), lr=LR, scheme="cta", topology="ring", model=worker.model)
    while optimizer.steps < steps:
        optimizer.zero_grad()
        worker.backward(worker.model, optimizer.steps + 1)
        optimizer.step()
        worker.done(optimizer.steps)


SYSTEMS = {"ddp": by_ddp, "decent-dp": by_decent_dp, "torchft": by_torchft, "starling": by_starling}


def main():
    system, out, steps, every, *spoiled = sys.argv[1:]
    torch.set_num_threads(1)
    worker = Worker(pathlib.Path(out), int(every), [int(number) for number in spoiled[0].split(":")] if spoiled else None)
    SYSTEMS[system](worker, int(steps))


if __name__ == "__main__":
    main()
