"""The same run in Python and in C++ ($PROGRAM, of fifty_steps.cpp): fifty steps of three workers, equal to the bit."""

import math
import os
import pathlib
import tempfile
import unittest

import torch
import workers
from learning import rank
from safetensors.torch import load_file

import starling

RUNS = [("cta", "fp32"), ("cta", "int8"), ("atc", "bf16"), ("all-reduce", "fp32")]
FIELDS = {"m": "exp_avg", "v": "exp_avg_sq", "b": "accumulated_grad"}


def fifty_steps():
    for scheme, wire in RUNS:
        torch.manual_seed(7)
        sizes = [(32, 256), (256, 512), (512, 8)]
        parameters = [(torch.randn(rows, columns) / math.sqrt(rows)).requires_grad_() for rows, columns in sizes]
        optimizer = starling.AccumAdamW(parameters, lr=0.01, window=4, scheme=scheme, wire=wire)
        torch.manual_seed(100 + rank())
        for _ in range(50):
            hidden = inputs = torch.randn(16, 32)
            for layer in parameters[:2]:
                hidden = torch.tanh(hidden @ layer)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(hidden @ parameters[2], inputs[:, :8].sin()).backward()
            optimizer.step()
        state = {f"model.0.{p}": parameter.detach() for p, parameter in enumerate(parameters)}
        for p, saved in optimizer.state_dict()["state"].items():
            state |= {f"{field}.0.{p}": saved[name] for field, name in FIELDS.items()}
        torch.save(state, pathlib.Path(os.environ["FOLDER"], f"{scheme}-{wire}-{rank()}.pt"))
        optimizer.close()


class Equal(unittest.TestCase):
    def test_to_the_bit(self):
        with tempfile.TemporaryDirectory() as folder:
            workers.run(fifty_steps, 3, FOLDER=folder)
            workers.run_program([os.environ["PROGRAM"], folder], 3)
            for scheme, wire in RUNS:
                inner = []
                for number in range(3):
                    file = pathlib.Path(folder, f"{scheme}-{wire}-{number}")
                    ours, theirs = torch.load(f"{file}.pt"), load_file(f"{file}.safetensors")
                    inner.append(ours["model.0.1"])
                    self.assertEqual(ours.keys(), theirs.keys() - {"options.0", "steps", "rng"})
                    for name, tensor in ours.items():
                        self.assertTrue(torch.equal(tensor, theirs[name]), (scheme, wire, number, name))
                same = torch.equal(inner[0], inner[1])
                self.assertEqual(same, scheme == "all-reduce")  # each worker had its own data


if __name__ == "__main__":
    workers.main()
