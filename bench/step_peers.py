#!/usr/bin/env python3
"""One worker of bench/step.py: torch's DDP, Decent-DP, or the line itself.

    bench/step_peers.py JOB ddp BUCKET_MB
    bench/step_peers.py JOB decent-dp TOPOLOGY
    bench/step_peers.py JOB line            bytes per second that every host sends while it receives
                                            as much

JOB and the model are those of bench/step.cpp. Rank 0 prints the milliseconds of each step after the
warm-up, and the idle part of this machine's processors in that time.
"""

import json
import os
import socket
import sys
import threading
import time

from workers import Processors

LINE_SECONDS = 4
LINE_PORT = 29600


def line(rank, size, address):
    """Every worker sends to the next one and receives from the one before, as fast as TCP does."""
    listener = socket.create_server(("", LINE_PORT + rank))
    host, last = address.rsplit(".", 1)
    to = (f"{host}.{int(last) + (rank + 1) % size}", LINE_PORT + (rank + 1) % size)
    deadline = time.monotonic() + 30
    while True:
        try:
            out = socket.create_connection(to, timeout=30)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    received, _ = listener.accept()
    received.settimeout(30)

    def send():
        block = bytes(1 << 20)
        end = time.monotonic() + LINE_SECONDS
        while time.monotonic() < end:
            out.sendall(block)
        out.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    # From the first second on; until then buffers fill.
    count, begin, buffer = 0, None, bytearray(1 << 20)
    start = time.monotonic()
    while n := received.recv_into(buffer):
        now = time.monotonic()
        if begin is not None:
            count, end = count + n, now
        elif now - start > 1:
            begin = now
    sender.join()
    return {"bytes_per_second": count / (end - begin)}


def steps(job, system, detail, rank):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    compute = job["compute"][rank]
    layers = job["layers"]

    late = 0.0

    def sleep(seconds):
        """Like bench/sleeping.h: takes the excess of one sleep off the next."""
        nonlocal late
        due = time.perf_counter() + seconds - late
        time.sleep(max(0.0, due - time.perf_counter()))
        late = time.perf_counter() - due

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(context, x, weight, seconds):
            context.seconds, context.length = seconds, weight.numel()
            sleep(seconds / 3)
            return x + 1

        @staticmethod
        def backward(context, gradient):
            sleep(context.seconds * 2 / 3)
            return gradient, torch.full((context.length,), 1e-3), None

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            length = job["parameters"] // layers
            self.weights = torch.nn.ParameterList([torch.zeros(length) for _ in range(layers)])
            self.seconds = 0.0

        def forward(self, x):
            for weight in self.weights:
                x = Sleep.apply(x, weight, self.seconds)
            return x

    model = Model()
    dist.init_process_group("gloo")
    optimizer = None
    if system == "ddp":
        trained = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=float(detail))
        optimizer = torch.optim.Adam(trained.parameters(), lr=1e-4, fused=True)
    else:
        # Decent-DP 0.2.3 does not support a check that torch has added since.
        torch.optim.Optimizer._cuda_graph_capture_health_check = lambda self: None
        from decent_dp.ddp import DecentralizedDataParallel
        from loguru import logger

        logger.remove()
        trained = DecentralizedDataParallel(
            model, lambda named: torch.optim.Adam([p for _, p in named], lr=1e-4, fused=True), topology=detail
        )
    milliseconds = []
    for step, seconds in enumerate(compute):
        if step == job["warm_up"]:
            processors = Processors()
        begin = time.perf_counter()
        if optimizer:
            optimizer.zero_grad()
        model.seconds = seconds / layers
        trained(torch.zeros(1, requires_grad=True)).backward()
        if optimizer:
            optimizer.step()  # Decent-DP has stepped inside backward()
        if step >= job["warm_up"]:
            milliseconds.append(1e3 * (time.perf_counter() - begin))
    idle = processors.idle()
    dist.barrier()
    return {"step_ms": milliseconds, "idle": idle}


def main():
    if sys.argv[1:2] in (["-h"], ["--help"]):
        print(__doc__.strip())
        return
    if len(sys.argv) < 3 or (sys.argv[2], len(sys.argv)) not in (("ddp", 4), ("decent-dp", 4), ("line", 3)):
        sys.exit(__doc__)
    with open(sys.argv[1]) as file:
        job = json.load(file)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if sys.argv[2] == "line":
        result = line(rank, size, os.environ["MASTER_ADDR"])
    else:
        result = steps(job, sys.argv[2], sys.argv[3], rank)
    if rank == 0:
        print(json.dumps(result), flush=True)
    if sys.argv[2] != "line":
        os._exit(0)  # Gloo's threads may still talk to a peer that has gone


if __name__ == "__main__":
    main()
