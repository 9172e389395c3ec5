"""Saving by torch.distributed.checkpoint, and the average model as a file for other programs."""

import os
import pathlib
import tempfile
import unittest

import torch
import torch.distributed.checkpoint as dcp
import workers
from learning import OTHERS, batch, error_of, flat, model, rank, refusal, train
from safetensors import safe_open
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import starling

OPTIMIZERS = {
    "AdamW": lambda p: starling.AdamW(p, lr=0.02, wire="int8"),
    "SGD": lambda p: starling.SGD(p, lr=0.05),
    "AccumAdamW": lambda p: starling.AccumAdamW(p, lr=0.02, window=4),
    "around AdamW": lambda p: starling.Decentralized(torch.optim.AdamW(p, lr=0.02)),
    "around Lion": lambda p: starling.Decentralized(OTHERS["Lion"](p), scheme="gradient-tracking"),
    "Muon": lambda p: starling.Muon(p, lr=0.02),
}


def resumed(name, dtype):
    """Stopped, saved by all workers in one folder, and loaded into an optimizer that has never
    stepped."""
    make = OPTIMIZERS[name]
    folder = os.path.join(os.environ["FOLDER"], f"{name}-{dtype}")
    own = f"worker-{rank()}"
    ends = []
    for stops in (False, True):
        net = model(dtype)
        optimizer = make(net.parameters())
        train(net, optimizer, 5, 0, rank())
        if stops:
            weights, state = get_state_dict(net, optimizer)
            dcp.save({own: {"model": weights, "optimizer": state}}, checkpoint_id=folder)
            optimizer.close()
            net = model(dtype)
            optimizer = make(net.parameters())
            before = flat(net)
            weights, state = get_state_dict(net, optimizer)
            assert torch.equal(flat(net), before)
            # Torch has not called step().
            assert name.startswith("around") or state["param_groups"][0]["round"] == 0
            everything = {own: {"model": weights, "optimizer": state}}
            dcp.load(everything, checkpoint_id=folder)
            set_state_dict(net, optimizer, model_state_dict=everything[own]["model"],
                           optim_state_dict=everything[own]["optimizer"])
        train(net, optimizer, 5, 5, rank())
        ends.append(flat(net))
        optimizer.close()
    return (ends[0] - ends[1]).abs().max().item()


class Net(torch.nn.Module):
    """With a tied layer, buffers of two kinds, and two number formats."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(8)
        self.first, self.norm = torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6)
        self.again = torch.nn.Linear(6, 6)
        self.again.weight = self.first.weight
        self.last = torch.nn.Linear(6, 2).to(torch.bfloat16)

    def forward(self, inputs):
        return self.last(self.again(self.norm(self.first(inputs))).to(torch.bfloat16))


def exported():
    net = Net()
    optimizer = starling.AdamW(net.parameters(), lr=0.02, buffers=net.buffers())
    for t in range(4 + rank()):
        optimizer.zero_grad()
        error_of(net(batch(10 * t + rank())), batch(10 * t + rank())).backward()
        if t < 4:
            optimizer.step()
    own = {name: tensor.tolist() for name, tensor in net.state_dict().items()}
    optimizer.save_consensus(net, pathlib.Path(os.environ["FOLDER"], "average.safetensors"))
    kept = own == {name: tensor.tolist() for name, tensor in net.state_dict().items()}
    with optimizer.consensus():
        average = {name: tensor.tolist() for name, tensor in net.state_dict().items()}
    nowhere = pathlib.Path(os.environ["FOLDER"], "nowhere", "average.safetensors")
    said = refusal(optimizer.save_consensus, net, nowhere, kind=starling.Error)
    optimizer.close()
    return own, average, kept, said


def everything():
    torch.distributed.init_process_group("gloo")
    off = {name: resumed(name, torch.float32) for name in OPTIMIZERS}
    off["AdamW in bfloat16"] = resumed("AdamW", torch.bfloat16)
    result = off, exported()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return result


class Checkpoints(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.results = workers.run(everything, 3, FOLDER=cls.folder)

    def test_torchs_distributed_checkpoint_resumes_to_the_bit(self):
        for off, _ in self.results:
            self.assertEqual(off, dict.fromkeys(off, 0))

    def test_the_average_is_a_safetensors_file(self):
        file = os.path.join(self.folder, "average.safetensors")
        weights = load_file(file)
        with safe_open(file, "pt") as opened:
            self.assertEqual(opened.metadata(), {"format": "pt"})
        Net().load_state_dict(weights)  # strict: every name, also of tied parameters
        self.assertEqual(weights["last.weight"].dtype, torch.bfloat16)
        owns = [own for _, (own, *_) in self.results]
        for _, (_, average, kept, _) in self.results:
            self.assertTrue(kept)
            for name, tensor in weights.items():
                torch.testing.assert_close(torch.tensor(average[name], dtype=tensor.dtype), tensor, rtol=1e-6, atol=1e-6)
        for name in ("first.weight", "norm.running_var"):
            mean = torch.tensor([own[name] for own in owns], dtype=torch.float64).mean(0)
            torch.testing.assert_close(weights[name].double(), mean, rtol=1e-5, atol=1e-6)
        self.assertEqual(weights["norm.num_batches_tracked"].item(), 6)
        self.assertTrue(torch.equal(weights["first.weight"], weights["again.weight"]))

    def test_a_file_that_cannot_be_written(self):
        first, *others = [said for _, (*_, said) in self.results]
        self.assertRegex(first, "nowhere/average.safetensors.tmp.*: No such file or directory")
        self.assertEqual(others, ["accepted"] * 2)


if __name__ == "__main__":
    workers.main()
