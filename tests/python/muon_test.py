"""starling.Muon beside torch.optim.Muon and AdamW, alone and with neighbours."""

import copy
import unittest

import torch
import workers
from learning import flat, rank, refusal

import starling

TORCHS = [
    {},
    {"nesterov": False, "momentum": 0.5},
    {"weight_decay": 0.0, "adjust_lr_fn": "match_rms_adamw"},
    {"adjust_lr_fn": "spectral_unclamped", "ns_steps": 3, "eps": 1e-6},  # unknown to torch 2.11
]


class Net(torch.nn.Module):
    """Matrices, a convolution, an embedding and biases."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.words = torch.nn.Embedding(7, 6)
        self.image = torch.nn.Conv2d(1, 4, 3)
        self.norm = torch.nn.LayerNorm(6)
        self.tall, self.wide = torch.nn.Linear(6, 16), torch.nn.Linear(20, 2)

    def forward(self, seed):
        chance = torch.Generator().manual_seed(seed)
        words = self.norm(self.words(torch.randint(7, (8,), generator=chance)))
        image = self.image(torch.randn(8, 1, 3, 3, generator=chance)).flatten(1)
        return self.wide(torch.cat([self.tall(words).tanh(), image], 1))


def loss_of(net, seed):
    return (net(seed) - torch.randn(8, 2, generator=torch.Generator().manual_seed(seed + 1))).square().mean()


def train(net, optimizers, steps, first=0, seed=0):
    for t in range(first, first + steps):
        net.zero_grad()
        loss_of(net, 1000 * seed + t).backward()
        for optimizer in optimizers:
            optimizer.step()


class Flattened(torch.optim.Muon):
    """torch.optim.Muon, which takes parameters of two dimensions only, for all dimensions."""

    def __init__(self, params, **options):
        self.originals = [*params]
        super().__init__([p.detach().flatten(1) for p in self.originals], **options)  # the same memory

    def step(self, closure=None):
        for group in self.param_groups:
            for p, original in zip(group["params"], self.originals, strict=True):
                p.grad = original.grad.flatten(1)
        super().step()


def torchs(net, **options):
    """torch's two optimizers for the net."""
    rest = [p for p in net.parameters() if p.ndim < 2 or p is net.words.weight]
    matrices = [p for p in net.parameters() if all(p is not other for other in rest)]
    adamw = torch.optim.AdamW(rest, lr=0.01, weight_decay=options.get("weight_decay", 0.1))
    return [Flattened(matrices, lr=0.02, **options), adamw]


def ours(net, **options):
    return starling.Muon(net.parameters(), lr=0.02, adamw_scale=0.5, model=net, **options)


def mixed_by_hand():
    """Three workers that mix over the complete graph, beside torch's optimizers and the same mixing
    in plain loops: the distance, and that to a worker without neighbours."""
    net = Net()
    optimizer = ours(net, topology="complete")
    train(net, [optimizer], 20, 0, rank())
    nets = [Net() for _ in range(3)]
    theirs = [torchs(each) for each in nets]
    for t in range(20):
        for i, each in enumerate(nets):
            each.zero_grad()
            loss_of(each, 1000 * i + t).backward()
        with torch.no_grad():
            for same in zip(*(each.parameters() for each in nets), strict=True):
                mean = torch.stack([p.detach() for p in same]).mean(0)
                for p in same:
                    p.copy_(mean)
        for each in theirs:
            for one in each:
                one.step()
    alone = Net()
    train(alone, torchs(alone), 20, 0, rank())
    optimizer.close()
    return [(flat(net) - flat(other)).abs().max().item() for other in (nets[rank()], alone)]


class Muon(unittest.TestCase):
    def test_is_torchs_beside_torchs_adamw(self):
        for options in TORCHS[: -1 if torch.__version__.startswith("2.11.") else None]:
            mine, theirs = Net(), Net()
            train(mine, [ours(mine, **options)], 20)
            train(theirs, torchs(theirs, **options), 20)
            self.assertLess((flat(mine) - flat(theirs)).abs().max().item(), 1e-5, options)
            self.assertGreater((flat(mine) - flat(Net())).abs().max().item(), 0.05, options)

    def test_three_workers_mix_as_in_plain_loops(self):
        for mixed, alone in workers.run(mixed_by_hand, 3):
            # A rounding of the mean may move a matrix product in bf16 by its last bit. How far that
            # goes in 20 steps depends on the processor.
            self.assertGreater(alone, 1e-2)
            self.assertLess(10 * mixed, alone)

    def test_states_go_both_ways_with_torchs(self):
        def matrices(net):
            return [net.tall.weight, net.wide.weight]

        mine, theirs = Net(), Net()
        its = torch.optim.Muon(matrices(theirs), lr=0.02)
        train(theirs, [its], 5)
        optimizer = starling.Muon(matrices(mine), lr=0.5)
        mine.load_state_dict(theirs.state_dict())
        optimizer.load_state_dict(its.state_dict())
        self.assertEqual(optimizer.param_groups[0]["lr"], 0.02)
        train(mine, [optimizer], 5, 5)
        train(theirs, [its], 5, 5)
        self.assertLess((flat(mine) - flat(theirs)).abs().max().item(), 1e-5)
        its.load_state_dict(optimizer.state_dict())
        train(theirs, [its], 1, 10)

    def test_a_matrix_has_torchs_state_and_the_rest_has_adamws(self):
        net = Net()
        optimizer = ours(net)
        self.assertEqual([(len(group["params"]), group["use_muon"]) for group in optimizer.param_groups],
                         [(8, True), (1, False)])
        kept = [sorted(state) for state in optimizer.state_dict()["state"].values()]
        matrix, rest = ["momentum_buffer", "step"], ["exp_avg", "exp_avg_sq", "step"]
        self.assertEqual(kept, [matrix, rest, rest, rest, matrix, rest, matrix, rest, rest])
        train(net, [optimizer], 3)
        saved = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
        train(net, [optimizer], 3, 3)
        again = Net()
        other = ours(again)
        again.load_state_dict(saved[0])
        other.load_state_dict(saved[1])
        train(again, [other], 3, 3)
        self.assertTrue(torch.equal(flat(again), flat(net)))

    def test_groups_say_who_takes_muon(self):
        net = Net()
        groups = [{"params": [net.tall.weight], "use_muon": False}, {"params": [net.wide.weight, net.words.weight]}]
        optimizer = starling.Muon(groups, model=net)
        self.assertEqual([group["use_muon"] for group in optimizer.param_groups], [False, True])
        optimizer.add_param_group({"params": net.image.weight, "lr": 0.5})
        train(net, [optimizer], 1)
        kept = [sorted(state)[0] for state in optimizer.state_dict()["state"].values()]
        self.assertEqual(kept, ["exp_avg", "momentum_buffer", "momentum_buffer", "momentum_buffer"])

    def test_refusals(self):
        net = Net()
        for options, text in (
                ({"ns_coefficients": (2, -1.5, 0.5)}, "(2, -1.5, 0.5) is not allowed: (3.4445, -4.775, 2.0315)"),
                ({"adjust_lr_fn": "match"}, "Muon: adjust_lr_fn = 'match' is not allowed: original, match_rms_adamw, "
                                            "spectral_unclamped or None"),
                ({"adjust_lr_fn": "match_rms_adam"}, "is not allowed, did you mean match_rms_adamw?: original"),
                ({"ns_steps": 100}, "Muon: ns_steps = 100 is not allowed"),
                ({"momentum": 1.0}, "Muon: momentum = 1 is not allowed")):  # fmt: skip
            self.assertIn(text, refusal(starling.Muon, net.parameters(), **options))
        starling.Muon(net.parameters(), adjust_lr_fn=None).close()
        its = torch.optim.Muon([net.tall.weight], ns_coefficients=(2, -1.5, 0.5))
        optimizer = starling.Muon([net.tall.weight])
        self.assertIn("state_dict: ns_coefficients = (2, -1.5, 0.5)", refusal(optimizer.load_state_dict, its.state_dict()))
        optimizer.param_groups[0]["use_muon"] = False
        net.tall.weight.grad = torch.ones(16, 6)
        self.assertIn("a parameter [16, 6] was updated as a matrix", refusal(optimizer.step))


if __name__ == "__main__":
    workers.main()
