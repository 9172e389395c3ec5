"""Starling's optimizers on a model that other code has wrapped in DistributedDataParallel, and the
detection by the first gradients."""

import itertools
import unittest

import torch
import workers
from learning import rank, refusal
from starling._gradients import _read
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

import starling


class Net(torch.nn.Module):
    """With a batch norm, and a parameter that rank 0 does not use."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.body = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Tanh())
        self.head, self.other = torch.nn.Linear(16, 2), torch.nn.Linear(16, 2)

    def forward(self, inputs):
        return (self.head if rank() == 0 else self.other)(self.body(inputs))


def train(net, optimizer, steps, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(8, 6, generator=generator)).square().mean().backward()
        optimizer.step()


def refused(net, seed, **options):
    """The optimizer's messages in five steps."""
    optimizer = starling.AdamW(net.parameters(), lr=0.02, **options)
    try:
        train(net, optimizer, 5, seed)
    except starling.UsageError as error:
        return str(error)
    finally:
        optimizer.close()
    return ""


# ---------------------------------------------------------------- workers


def everything():  # in one start, because importing torch takes long
    torch.distributed.init_process_group("gloo")
    ddp = torch.nn.parallel.DistributedDataParallel

    def linear():
        torch.manual_seed(3)
        return torch.nn.Linear(6, 2)

    averaged_twice = refused(ddp(linear()), rank())
    reached = starling.no_all_reduce(torch.nn.Sequential(ddp(linear())))
    assert starling.no_all_reduce(reached) is reached
    own = refused(reached, rank())
    # Turns DistributedDataParallel's averaging on again.
    again = starling.no_all_reduce(ddp(linear()))
    again.require_backward_grad_sync = True
    again = refused(again, rank()) + refused(starling.no_all_reduce(ddp(linear(), static_graph=True)), rank())

    compressed = ddp(linear())
    compressed.register_comm_hook(None, fp16_compress_hook)
    hooked = [refusal(starling.no_all_reduce, compressed) for _ in range(2)]

    net = starling.no_all_reduce(ddp(Net()))
    optimizer = starling.AdamW(net.parameters(), lr=0.02, buffers=net.buffers())
    train(net, optimizer, 5, rank())
    unused = (net.module.other if rank() == 0 else net.module.head).weight.grad is None
    mean = net.module.body[1].running_mean.tolist()
    ends = {"averaged_twice": averaged_twice, "own": own, "again": again, "hooked": hooked, "unused": unused, "mean": mean,
            "distance": optimizer.consensus_distance(), "same": same_data(), "steps": late()}  # fmt: skip
    torch.distributed.destroy_process_group()
    return ends


def same_data():
    return [
        refused(torch.nn.Linear(6, 2), seed=0),
        refused(torch.nn.Linear(6, 2), seed=0, check_gradients=False),
        refused(torch.nn.Linear(6, 2), seed=0, scheme="all-reduce"),
        refused(torch.nn.Linear(6, 2), seed=0, hierarchy="node", workers_per_node=2),
        refused(torch.nn.Linear(6, 2), seed=rank()),
    ]


def late():
    """The first gradients are zero; around torch's SGD. Returns at which of the others it is
    refused."""
    net = torch.nn.Linear(6, 2)
    optimizer = starling.Decentralized(torch.optim.SGD(net.parameters(), lr=0.02))
    net.weight.grad = torch.zeros_like(net.weight)
    optimizer.step()
    for step in itertools.count(1):
        net.weight.grad = torch.ones_like(net.weight)
        try:
            optimizer.step()
        except starling.UsageError:
            return step
        assert step < 20


# ---------------------------------------------------------------- tests


class WrappedModels(unittest.TestCase):
    def test_together(self):
        ends = workers.run(everything, 2)
        for number, end in enumerate(ends):
            self.assertIn(f"worker {number} had the same gradient in its first step as worker {1 - number}",
                          end["averaged_twice"])  # fmt: skip
            self.assertIn("starling.no_all_reduce(model)", end["averaged_twice"])
            self.assertNotIn("\n", end["averaged_twice"])
            self.assertEqual((end["own"], end["again"]), ("", ""))
            self.assertEqual(len(end["hooked"]), 2)
            for said in end["hooked"]:
                self.assertIn("has a communication hook already", said)
            self.assertTrue(end["unused"])
            self.assertGreater(end["distance"], 0)
            said, *others = end["same"]
            self.assertIn("check_gradients=False", said)
            self.assertEqual(others, [""] * 4)
            self.assertEqual(end["steps"], 2)
        self.assertNotEqual(ends[0]["mean"], ends[1]["mean"])

    def test_alone(self):
        net = torch.nn.Linear(6, 2)
        self.assertIs(starling.no_all_reduce(net), net)
        self.assertEqual(refused(net, 0), "")

    def test_what_others_write_to_the_store_is_no_gradient(self):
        self.assertEqual(_read("0x1.8p+1 0x1p-1"), (3.0, 0.5))
        for text in (None, "", "3", "none of these", "0x1p1 0x1p1 0x1p1", "0x1p9999 0x1p1"):
            self.assertIsNone(_read(text), text)


if __name__ == "__main__":
    workers.main()
