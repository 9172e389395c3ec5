"""fully_shard() with a mesh of two replicas of one shard: two processes that share the card, over
Gloo, and one process over NCCL. A shard is then the whole parameter, so that the run must be the
same as without shards."""

import json
import sys

from together import Failed, Workers, each, parsed, prepare, say, verdict


def network(options):
    import torch

    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(96, 256), torch.nn.Tanh(), torch.nn.Linear(256, 7)).to(options.device)


def trained(options, net, optimizer, rank):
    """The whole parameters at the end."""
    import torch

    for t in range(6):
        torch.manual_seed(10 * t + rank)
        x = torch.randn(32, 96).to(options.device)
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
    average_workers = 0
    with optimizer.consensus() as average:
        average_workers = average.workers
    optimizer.close()
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in net.parameters()]
    return torch.cat([p.detach().cpu().flatten() for p in whole]), average_workers


def work(options, job):
    import torch
    from torch.distributed.fsdp import fully_shard

    import starling

    kind = "cpu" if options.mock else "cuda"
    if not options.mock:
        torch.cuda.init()  # else the mesh would take the device of the local rank
        torch.cuda.set_device(0)
    torch.distributed.init_process_group(job["backend"])
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    mesh = torch.distributed.init_device_mesh(kind, (size, 1), mesh_dim_names=("replicate", "shard"))
    plain = network(options)
    expected, _ = trained(options, plain, starling.AdamW(plain.parameters(), lr=0.01, process_group=mesh["replicate"]), rank)
    net = network(options)
    fully_shard(net[0], mesh=mesh["shard"])
    fully_shard(net, mesh=mesh["shard"])
    end, workers = trained(options, net, starling.AdamW(net.parameters(), lr=0.01, process_group=mesh["replicate"]), rank)
    off = (end - expected).abs().max().item()
    print(json.dumps({"good": off < 1e-6 and workers == size and bool(end.isfinite().all()), "off": off}), flush=True)
    torch.distributed.destroy_process_group()


def main():
    options = parsed()
    prepare()
    for count, backend in ((1, "gloo" if options.mock else "nccl"), (2, "gloo")):
        name = f"{count} process{'es' if count > 1 else ''}, {backend}"
        try:
            with Workers(work, count, options, {"backend": backend}) as workers:
                said = each(workers)
        except Failed as error:
            say(name, "failed", str(error))
            continue
        lines = [line for of_rank in said.values() for line in of_rank]
        say(name, verdict(len(lines) == count and all(line["good"] for line in lines)), "the run without shards, up to 1e-6",
            off=max(line["off"] for line in lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
