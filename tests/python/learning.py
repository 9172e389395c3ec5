"""The task of the workers of these tests."""

import os

import torch

import starling

RULES = {
    "SGD": lambda p, **o: starling.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, **o),
    "Adam": lambda p, **o: starling.Adam(p, lr=0.02, weight_decay=0.01, **o),
    "AdamW": lambda p, **o: starling.AdamW(p, lr=0.02, **o),
    "AccumAdam": lambda p, **o: starling.AccumAdam(p, lr=0.02, window=4, **o),
    "AccumAdamW": lambda p, **o: starling.AccumAdamW(p, lr=0.02, window=4, **o),
}


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023 (arXiv 2302.06675), as a user would write it."""

    def __init__(self, params, lr, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.add_((b1 * m + (1 - b1) * p.grad).sign(), alpha=-group["lr"])
                m.lerp_(p.grad, 1 - b2)


# Optimizers that Starling did not write.
OTHERS = {
    "Muon": lambda p: torch.optim.Muon(p, lr=0.02),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.02),
    "Lion": lambda p: Lion(p, lr=0.002),
}


def rank():
    return int(os.environ["RANK"])


def model(dtype=torch.float32):
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)).to(dtype)


def several_blocks():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 30000), torch.nn.Tanh(), torch.nn.Linear(30000, 2))


def batch(seed):
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(seed))


def error_of(outputs, inputs):
    return (outputs - inputs[:, :2].sin()).float().square().mean()


def loss_of(net, seed):
    inputs = batch(seed).to(next(net.parameters()).dtype)
    return error_of(net(inputs), inputs)


def train(net, optimizer, steps, first=0, seed=0):
    for t in range(first, first + steps):
        optimizer.zero_grad()
        loss_of(net, 1000 * seed + t).backward()
        optimizer.step()


def refusal(call, *arguments, kind=starling.UsageError, **options):
    """The message of the error with which this call ends, or "accepted"."""
    try:
        call(*arguments, **options)
    except kind as error:
        return str(error)
    return "accepted"


def flat(net):
    return torch.cat([p.detach().double().flatten() for p in net.parameters()])
