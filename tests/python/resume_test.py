"""Stopped and resumed from a state dict, to the bit."""

import copy
import io
import os
import unittest
from functools import partial

import torch
import workers
from learning import OTHERS, RULES, flat, loss_of, model, rank, refusal, several_blocks, train

import starling

RESUMED = (
    {},
    {"scheme": "atc", "wire": "bf16"},
    {"wire": "int8"},
    {"scheme": "choco", "topology": "ring", "one_in": 4},
    {"topology": "ring", "mean_every": 4},
    {"scheme": "local", "mean_every": 4, "outer": "nesterov"},
    {"scheme": "local", "mean_every": 4, "outer": "nesterov", "outer_warmup": 4, "outer_lr_at": "4:0.1 8:1",
     "outer_momentum_at": "4:0.95"},
    {"scheme": "atc", "every": 3, "outer": "sgd", "outer_lr": 0.5},
    {"scheme": "push-sum", "topology": "one-peer-exponential-directed", "staleness": 1},
    {"scheme": "ceca-2p"},
)


def reopened(net, optimizer, build, make):
    """A new model and optimizer with the state of these from torch.save's bytes, and that state."""
    file = io.BytesIO()
    torch.save((net.state_dict(), optimizer.state_dict()), file)
    optimizer.close()
    file.seek(0)
    weights, state = torch.load(file)
    net = build()
    optimizer = make(net.parameters())
    net.load_state_dict(weights)
    optimizer.load_state_dict(state)
    return net, optimizer, state


def off_by_a_stop(build, make, steps):
    """The difference to a run that goes on, and the state that was loaded."""
    ends = []
    for stops in (False, True):
        net = build()
        optimizer = make(net.parameters())
        train(net, optimizer, steps, 0, rank())
        if stops:
            net, optimizer, state = reopened(net, optimizer, build, make)
            assert "round" not in optimizer.param_groups[0]
        train(net, optimizer, steps, steps, rank())
        ends.append(flat(net))
        optimizer.close()
    return (ends[0] - ends[1]).abs().max().item(), state


def resume():
    """Each rule with the default options, and AdamW with all. If the environment has EVERY: each
    rule with all but the last two."""
    few = RESUMED[:4] if "EVERY" in os.environ else RESUMED[:1]
    return {f"{name} {options} {dtype}": off_by_a_stop(partial(model, dtype), partial(rule, **options), 5)[0]
            for name, rule in (RULES | {"Muon": partial(starling.Muon, lr=0.02)}).items()
            for options in (RESUMED if name == "AdamW" else few) for dtype in (torch.float32, torch.bfloat16)}


def resume_around():
    """Optimizers that Starling did not write, with schemes and wires that have a state of their
    own. Also the names of what a parameter's state has."""
    ends, kept = {}, {}
    for name, make in OTHERS.items():
        for options in ({}, {"wire": "int8"}, {"scheme": "local", "mean_every": 4, "outer": "nesterov"},
                        {"scheme": "gradient-tracking"}, {"topology": "ring", "mean_every": 4},
                        {"scheme": "push-diging", "topology": "one-peer-exponential-directed"}):
            optimizer = partial(lambda make, options, p: starling.Decentralized(make(p), **options), make, options)
            ends[f"{name} {options}"], state = off_by_a_stop(matrices, optimizer, 5)
            kept[f"{name} {options.get('scheme', 'cta')}"] = sorted(state["state"][0])
    return ends, kept


def matrices():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 16, bias=False), torch.nn.Tanh(), torch.nn.Linear(16, 2, bias=False))


def resume_in_nodes():
    """Each worker with its share of a node's state. Also the message of a worker without a
    hierarchy for it."""
    off, state = off_by_a_stop(
        several_blocks, partial(starling.AdamW, lr=0.02, hierarchy="node", workers_per_node=2), 4)
    shapes = [list(of.get("exp_avg", torch.empty(0)).shape) for of in state["state"].values()]
    plain = starling.AdamW(several_blocks().parameters(), lr=0.02, check_gradients=False)
    said = refusal(plain.load_state_dict, state, kind=starling.Error)
    plain.close()
    return off, shapes, said


def resume_gossip():
    """Asynchronous gossip: the loaded state is the saved one, to the bit, and training goes on."""
    missing, kept = [], []
    for more in ({"scheme": "a2cid2", "clock": "fixed", "eta": 0.1, "alpha_tilde": 0.8},
                 {"scheme": "swarm", "local_steps": 2, "wire": "int8"}, {"scheme": "async-push-sum"},
                 {"scheme": "async-push-pull"}):
        make = partial(starling.AdamW, lr=0.01, topology="ring", **more)
        net = model()
        optimizer = make(net.parameters())
        train(net, optimizer, 10, 0, rank())
        net, optimizer, saved = reopened(net, optimizer, model, make)
        again = optimizer.state_dict()
        for index, tensors in saved["state"].items():
            missing += [key for key in tensors if not torch.equal(tensors[key], again["state"][index][key])]
        first, second = saved["param_groups"][0], again["param_groups"][0]
        missing += [key for key in ("clock", "round", "weights") if key in first and first[key] != second[key]]
        kept.append(sorted(saved["state"][0]))
        before, furthest = loss_of(net, 7).item(), 0.0
        for t in range(10, 210):
            train(net, optimizer, 1, t, rank())
            counted = optimizer.statistics()
            # Averagings that were due at once leave 0 in the last one.
            furthest = max(furthest, counted["distance"])
            if t % 20 == 10:  # so that no worker gets further ahead
                with optimizer.consensus():
                    pass
        assert [edge["rank"] for edge in counted["edges"]] == [r for r in range(3) if r != rank()]
        averaged = sum(edge["averaged"] for edge in counted["edges"])
        assert averaged > 0 and abs(counted["rate"] * 200 / more.get("local_steps", 1) - averaged) < 1e-6
        assert all(edge["gap"] <= edge["longest_gap"] <= 200 for edge in counted["edges"])
        assert furthest > 0, (more, counted)
        with optimizer.consensus() as average:
            assert average.workers == 3
            # The loss of the average: with pushes, a worker with a small weight may be far off.
            after = loss_of(net, 7).item()
        optimizer.close()
        assert after < before, (more, before, after, counted)
    return missing, kept


def orders():
    """Model and state of five steps are loaded in each order. Five more steps follow, beside a run
    that did not stop. The difference, or the refusal."""
    ends = {}
    for make, dtype in ((RULES["AdamW"], torch.float32), (RULES["AdamW"], torch.bfloat16),
                        (lambda p: starling.Decentralized(torch.optim.AdamW(p, lr=0.02)), torch.float32)):
        net = model(dtype)
        optimizer = make(net.parameters())
        train(net, optimizer, 5, 0, rank())
        saved = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
        train(net, optimizer, 5, 5, rank())
        whole = flat(net)
        optimizer.close()
        for order in ("optimizer, model, state", "optimizer, state, model", "model, optimizer, state"):
            net, name = model(dtype), f"{order}: {type(optimizer).__name__} {dtype}"
            try:
                for what in order.split(", "):
                    if what == "optimizer":
                        optimizer = make(net.parameters())
                    if what == "model":
                        net.load_state_dict(saved[0])
                    if what == "state":
                        optimizer.load_state_dict(copy.deepcopy(saved[1]))  # which torch's would train on
                train(net, optimizer, 5, 5, rank())
                ends[name] = (flat(net) - whole).abs().max().item()
            except starling.Error as error:
                ends[name] = str(error)
            optimizer.close()
    return ends


class Resume(unittest.TestCase):
    def test_resumes_to_the_bit(self):
        for differences in workers.run(resume, 3):
            self.assertEqual({key: value for key, value in differences.items() if value != 0}, {})

    def test_any_optimizer_resumes_to_the_bit(self):
        for differences, kept in workers.run(resume_around, 3):
            self.assertEqual({key: value for key, value in differences.items() if value != 0}, {})
            self.assertEqual(kept["Muon cta"], ["momentum_buffer"])
            self.assertEqual(kept["Lion gradient-tracking"], ["m", "scheme.own", "scheme.tracked"])
            self.assertIn("col_var", kept["Adafactor cta"])

    def test_gossip_resumes_with_what_was_saved(self):
        for missing, (a2cid2, swarm, *pushes) in workers.run(resume_gossip, 3):
            self.assertEqual(missing, [])
            self.assertEqual(a2cid2, ["exp_avg", "exp_avg_sq", "step", "x_tilde"])
            self.assertEqual(swarm, ["exp_avg", "exp_avg_sq", "step"])
            self.assertEqual(pushes, [swarm, swarm])

    def test_a_hierarchy_resumes_to_the_bit(self):
        results = workers.run(resume_in_nodes, 4)
        for difference, _, said in results:
            self.assertEqual(difference, 0)
            self.assertRegex(said, "its share of the rule's state is that of worker [01] of 2 in a node, .* this worker's is all")
        sizes = [parameter.numel() for parameter in several_blocks().parameters()]
        for first, second in ((0, 1), (2, 3)):
            shares = [[shape[0] for shape in results[worker][1]] for worker in (first, second)]
            self.assertEqual([sum(pair) for pair in zip(*shares, strict=True)], sizes)
            self.assertTrue(all(sum(share) > sum(sizes) / 3 for share in shares), shares)

    def test_every_order_of_loading_is_right_or_refused(self):
        results = workers.run(orders, 3)
        self.assertEqual(len(results[0]), 9)
        for number, ends in enumerate(results):
            for name, end in ends.items():
                if not name.startswith("model"):
                    self.assertEqual(end, 0, name)
                elif number == 0:  # its model is what the constructor spreads
                    self.assertRegex(end, "worker [12] could not", name)
                else:
                    self.assertIn("make the optimizer, then load the model", end, name)


class Long(unittest.TestCase):
    def test_resumes_to_the_bit_with_every_rule(self):
        for differences in workers.run(resume, 3, EVERY=1):
            self.assertEqual({key: value for key, value in differences.items() if value != 0}, {})


if __name__ == "__main__":
    workers.main()
