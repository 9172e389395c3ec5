"""The same run in Python and in C++ ($PROGRAM, of fifty_steps.cpp): fifty steps of three workers,
equal to the bit."""

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

RULES = {
    "SGD": lambda parameters, **options: starling.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, **options),
    "Adam": lambda parameters, **options: starling.Adam(parameters, lr=0.01, weight_decay=0.1, **options),
    "AdamW": lambda parameters, **options: starling.AdamW(parameters, lr=0.01, weight_decay=0.1, **options),
    "AccumAdamW": lambda parameters, **options: starling.AccumAdamW(parameters, lr=0.01, window=4, **options),
}
RUNS = [("SGD", "cta", "fp32"), ("Adam", "cta", "fp32"), ("AdamW", "cta", "fp32"), ("AccumAdamW", "cta", "fp32"),
        ("AccumAdamW", "cta", "int8"), ("AccumAdamW", "atc", "bf16"), ("AccumAdamW", "all-reduce", "fp32")]  # fmt: skip
FIELDS = {"m": ("exp_avg", "momentum_buffer"), "v": ("exp_avg_sq",), "b": ("accumulated_grad",)}


def fifty_steps():
    for rule, scheme, wire in RUNS:
        torch.manual_seed(7)
        sizes = [(32, 256), (256, 512), (512, 8)]
        parameters = [(torch.randn(rows, columns) / math.sqrt(rows)).requires_grad_() for rows, columns in sizes]
        optimizer = RULES[rule](parameters, scheme=scheme, wire=wire)
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
            state |= {f"{field}.0.{p}": saved[name] for field, names in FIELDS.items() for name in names if name in saved}
        torch.save(state, pathlib.Path(os.environ["FOLDER"], f"{rule}-{scheme}-{wire}-{rank()}.pt"))
        optimizer.close()


class Equal(unittest.TestCase):
    def test_to_the_bit(self):
        with tempfile.TemporaryDirectory() as folder:
            workers.run(fifty_steps, 3, FOLDER=folder)
            workers.run_program([os.environ["PROGRAM"], folder], 3)
            for rule, scheme, wire in RUNS:
                inner = []
                for number in range(3):
                    file = pathlib.Path(folder, f"{rule}-{scheme}-{wire}-{number}")
                    ours, theirs = torch.load(f"{file}.pt"), load_file(f"{file}.safetensors")
                    inner.append(ours["model.0.1"])
                    self.assertEqual(ours.keys(), theirs.keys() - {"options.0", "steps", "rng"})
                    for name, tensor in ours.items():
                        self.assertTrue(torch.equal(tensor, theirs[name]), (rule, scheme, wire, number, name))
                same = torch.equal(inner[0], inner[1])
                self.assertEqual(same, scheme == "all-reduce")  # each worker had its own data


if __name__ == "__main__":
    workers.main()
