#!/usr/bin/env python3
"""One worker of bench/time_to_loss.py. It writes RANK.json into the job's folder.

    bench/time_to_loss_worker.py JOB

All systems train the same model on the same batches, from the same weights; they differ in what
exchanges. Some steps leave a snapshot of the worker's parameters, and the clock stands still
meanwhile. The loss is computed after the run.
"""

import json
import math
import os
import pathlib
import sys
import time

if sys.argv[1:2] in (["-h"], ["--help"]):  # before imports that need the package
    print(__doc__.strip())
    sys.exit()

import torch  # noqa: E402
from small_tasks import batches, task_of, validation_loss  # noqa: E402
from torch.nn.utils import clip_grad_norm_, parameters_to_vector  # noqa: E402

WARM_UP = 3  # passes before the first step
START = 2  # steps after which the clock starts: those in which DDP and Decent-DP make their buckets


def factor(job):
    """The learning rate's factor by the step: the recipe's schedule over this run's length."""
    steps = job["steps"]
    warm_up = max(1, round(job["schedule"]["warmup"] * steps))

    def cosine(step):
        final = job["schedule"]["final"]
        return final + (1 - final) * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up))) / 2

    def inverse_sqrt(step):
        return math.sqrt(warm_up / (step + 1))

    falling = {"cosine": cosine, "inverse-sqrt": inverse_sqrt}[job["schedule"]["name"]]
    return lambda step: (step + 1) / warm_up if step < warm_up else falling(step)


def groups(parameters, decay):
    """Weight decay for matrices alone."""
    return [{"params": [p for p in parameters if p.ndim >= 2], "weight_decay": decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0}]


def scheduler_of(optimizer, job):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor(job))


def torchs_step(model, trained, job):
    """The optimizer of torch's fused rule, and a step with it. trained: the model, or a wrapper."""
    rule = job["rule"]
    optimizer = getattr(torch.optim, rule["name"])(groups(list(model.parameters()), rule["weight_decay"]), lr=rule["lr"],
                                                   betas=rule["betas"], fused=True)
    scheduler = scheduler_of(optimizer, job)

    def step(batch):
        optimizer.zero_grad()
        trained(*batch).backward()
        if job["clip"]:
            clip_grad_norm_(model.parameters(), job["clip"])
        optimizer.step()
        scheduler.step()

    return optimizer, step


def by_torch(model, job):
    """DDP, or a worker that exchanges nothing."""
    system = job["system"]
    trained = model
    torch.distributed.init_process_group("gloo")
    if system["by"] == "ddp":
        buckets = {"bucket_cap_mb": system["bucket_mb"]} if "bucket_mb" in system else {}
        trained = torch.nn.parallel.DistributedDataParallel(model, **buckets)
    return torchs_step(model, trained, job)[1], torch.distributed.barrier


def by_decent_dp(model, job):
    # Decent-DP 0.2.3 does not support a check that torch has added since.
    torch.optim.Optimizer._cuda_graph_capture_health_check = lambda self: None
    import decent_dp.optim
    from decent_dp.ddp import DecentralizedDataParallel
    from loguru import logger

    logger.remove()
    torch.distributed.init_process_group("gloo")
    rule, factor_of = job["rule"], factor(job)
    values = {name: rule[name] for name in ("lr", "betas", "momentum") if name in rule}
    if "window" in rule:
        kind, values = getattr(decent_dp.optim, rule["name"]), values | {"accum_iter": rule["window"]}
    else:
        kind, values = getattr(torch.optim, rule["name"]), values | {"fused": True}
    trained = DecentralizedDataParallel(
        model, lambda named: kind([g for g in groups([p for _, p in named], rule["weight_decay"]) if g["params"]], **values),
        lambda optimizer: scheduler_of(optimizer, job), topology=job["system"]["topology"], grad_clip_norm=job["clip"])

    steps, largest = 0, 0.0

    def step(batch):
        nonlocal steps, largest
        if job["system"].get("adapts"):  # DSGD-AC: mixing follows the learning rate
            largest = max(largest, factor_of(steps))
            trained.set_adaptive_factor(factor_of(steps) / largest)
        steps += 1
        trained(*batch).backward()  # it steps inside

    return step, torch.distributed.barrier


def by_torchft(model, job):
    """DiLoCo. Each worker is a replica group of its own; rank 0 has the lighthouse."""
    import datetime
    import socket

    os.environ.setdefault("RUST_LOG", "error")
    import torchft
    from torchft.coordination import LighthouseServer
    from torchft.local_sgd import DiLoCo

    rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    system = job["system"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as to_rank_0:
        to_rank_0.connect((os.environ["MASTER_ADDR"], 1))
        own = to_rank_0.getsockname()[0]
    torch.distributed.init_process_group("gloo")  # to meet, and to say where the lighthouse is
    lighthouse, address = None, [None]
    if rank == 0:
        lighthouse = LighthouseServer(bind="[::]:0", min_replicas=workers)
        address = [f"http://{own}:{lighthouse.address().rpartition(':')[2]}"]
    torch.distributed.broadcast_object_list(address)
    store = torch.distributed.TCPStore(own, 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(pg=torchft.ProcessGroupGloo(datetime.timedelta(seconds=60)), load_state_dict=None, state_dict=None,
                              min_replica_size=workers, use_async_quorum=False, init_sync=False, rank=0, world_size=1,
                              store_addr=own, store_port=store.port, lighthouse_addr=address[0],
                              replica_id=str(rank), hostname=own)
    optimizer, step = torchs_step(model, model, job)
    parts = fragments(model, system["fragments"])
    outer = [torch.optim.SGD(part.parameters(), lr=0.7, momentum=0.9, nesterov=True) for part in parts]
    diloco = DiLoCo(manager, parts, optimizer, outer, system["every"], use_bucketization=True, bucket_cap_mb=32,
                    fragment_sync_delay=system.get("delay", 0), fragment_update_alpha=system.get("alpha", 0.0))
    diloco.__enter__()
    step.keeps = lighthouse, store, manager, diloco
    return step, torch.distributed.barrier


def fragments(model, many):
    """The model's modules in as many parts of about the same size."""
    if many == 1:
        return [model]
    parts, sizes = [torch.nn.ModuleList() for _ in range(many)], [0] * many
    modules = [module for child in model.children() for module in (child if isinstance(child, torch.nn.ModuleList) else [child])]
    for module in sorted(modules, key=lambda module: -sum(p.numel() for p in module.parameters())):
        least = sizes.index(min(sizes))
        parts[least].append(module)
        sizes[least] += sum(p.numel() for p in module.parameters())
    return parts


def by_starling(model, job):
    import starling

    rule, system = job["rule"], job["system"]
    values = {name: rule[name] for name in ("lr", "betas", "window", "momentum") if name in rule}
    options = {name: system[name] for name in ("scheme", "topology", "wire") if name in system} | system.get("more", {})
    optimizer = getattr(starling, rule["name"])(groups(list(model.parameters()), rule["weight_decay"]), **values,
                                                clip=job["clip"], model=model, **options)
    scheduler = scheduler_of(optimizer, job)

    def step(batch):
        optimizer.zero_grad()
        model(*batch).backward()
        optimizer.step()
        scheduler.step()

    return step, optimizer.consensus_distance


SYSTEMS = {"alone": by_torch, "ddp": by_torch, "decent-dp": by_decent_dp, "torchft": by_torchft, "starling": by_starling}


def bytes_sent():
    """By this host's card; None where it is not this worker's alone."""
    card = os.environ.get("GLOO_SOCKET_IFNAME")
    if card is None:
        return None
    for line in pathlib.Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counts = line.strip().partition(":")
        if name == card:
            return int(counts.split()[8])
    sys.exit(f"time_to_loss: /proc/self/net/dev: there is no card '{card}'")


def train(job, rank, workers):
    torch.set_num_threads(1)
    torch.manual_seed(job["seed"])
    task = task_of(job)
    model = task.model()
    source = batches(task, job, rank, workers)
    for batch, _ in zip(batches(task, job, rank, workers), range(WARM_UP), strict=False):
        model(*batch).backward()
    model.zero_grad()
    step, meet = SYSTEMS[job["system"]["by"]](model, job)
    torch.manual_seed(job["seed"] + 1 + rank)  # of the dropout
    kept, curve, each = [], [], []
    meet()
    for number in range(1, job["steps"] + 1):
        before = time.monotonic()
        step(next(source))
        now = time.monotonic()
        if number <= START:
            begin, paused, sent = now, 0.0, bytes_sent()
            continue
        each.append(now - before)
        if number in job["snapshots"]:
            curve.append({"step": number, "seconds": now - begin - paused,
                          "bytes": None if sent is None else bytes_sent() - sent})
            kept.append(parameters_to_vector(model.parameters()).detach())
            paused += time.monotonic() - now
    # A snapshot's loss is computed by one of the workers, of all workers' mean.
    folder = pathlib.Path(job["folder"])
    torch.stack(kept).numpy().tofile(folder / f"{rank}.f32")
    meet()
    size = len(kept[0])
    of_all = [torch.from_file(str(folder / f"{other}.f32"), size=len(kept) * size).view(-1, size) for other in range(workers)]
    parameters = list(model.eval().parameters())
    for number in range(rank, len(kept), workers):
        with torch.no_grad():
            for parameter, value in zip(parameters, torch.stack([one[number] for one in of_all]).mean(0).split(
                    [p.numel() for p in parameters]), strict=True):
                parameter.copy_(value.view_as(parameter))
        curve[number]["loss"] = validation_loss(task, model, job)
    result = {"curve": curve, "step_seconds": each, "parameters": size}
    (folder / f"{rank}.json").write_text(json.dumps(result))
    meet()


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1]) as file:
        job = json.load(file)
    train(job, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    if job["system"]["by"] != "starling":
        sys.stdout.flush()
        os._exit(0)  # Gloo's threads may still talk to a peer that has gone


if __name__ == "__main__":
    main()
