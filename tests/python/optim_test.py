"""The optimizers as torch's users know them: alone against torch's own, and three processes
together."""

import contextlib
import copy
import faulthandler
import inspect
import io
import json
import os
import pathlib
import pickle
import signal
import sys
import tempfile
import time
import unittest
from unittest import mock

import torch
import workers
from learning import flat, loss_of, model, rank, several_blocks, train
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import starling

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "optim/golden_losses.json"
RULES = {
    "SGD": lambda p, **o: starling.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, **o),
    "Adam": lambda p, **o: starling.Adam(p, lr=0.02, weight_decay=0.01, **o),
    "AdamW": lambda p, **o: starling.AdamW(p, lr=0.02, **o),
    "AccumAdam": lambda p, **o: starling.AccumAdam(p, lr=0.02, window=4, **o),
    "AccumAdamW": lambda p, **o: starling.AccumAdamW(p, lr=0.02, window=4, **o),
}
TORCHS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.02, weight_decay=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.02),
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


# Optimizers without a rule of ours. Muon takes matrices only.
OTHERS = {
    "Muon": lambda net: torch.optim.Muon([p for p in net.parameters() if p.ndim == 2], lr=0.02),
    "Adafactor": lambda net: torch.optim.Adafactor(net.parameters(), lr=0.02),
    "Lion": lambda net: Lion(net.parameters(), lr=0.002),
}


# ---------------------------------------------------------------- workers


def golden():
    """The run of tests/optim/golden_test.cpp, in the same letters."""

    def waves(rows, columns, phase, scale):
        return (torch.sin(torch.arange(rows * columns, dtype=torch.float32) * 1.7 + phase) * scale).view(rows, columns)

    losses = {}
    for name, rule in RULES.items():
        for scheme in ("cta", "atc", "all-reduce"):
            inner = waves(4, 8, 0.3, 0.5).requires_grad_()
            outer = waves(8, 1, 0.8, 0.5).requires_grad_()
            inputs = waves(16, 4, rank(), 1)
            targets = inputs.sum(1, keepdim=True).tanh()
            optimizer = rule([inner, outer], topology="base-2", scheme=scheme)
            all_losses = []
            for _ in range(10):
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(torch.tanh(inputs @ inner) @ outer, targets)
                loss.backward()
                optimizer.step()
                all_losses.append(loss.item())
            losses[name, scheme] = all_losses
            optimizer.close()
    return [[*key, value] for key, value in losses.items()]


def around():
    """Decentralized(torch's AdamW) beside our AdamW: the same numbers up to rounding, and both
    workers agree."""
    nets, distances = [], []
    for make in (lambda p: starling.AdamW(p, lr=0.02),
                 lambda p: starling.Decentralized(torch.optim.AdamW(p, lr=0.02))):
        net = model()
        optimizer = make(net.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
        for t in range(12):
            train(net, optimizer, 1, t, rank())
            scheduler.step()
        nets.append(flat(net))
        distances.append(optimizer.consensus_distance())
        assert optimizer.param_groups[0]["lr"] == 0.005
    return (nets[0] - nets[1]).abs().max().item(), distances


RESUMED = (
    {},
    {"scheme": "atc", "wire": "bf16"},
    {"wire": "int8"},
    {"scheme": "choco", "topology": "ring", "one_in": 4},
    {"scheme": "push-sum", "topology": "one-peer-exponential-directed", "staleness": 1},
    {"scheme": "ceca-2p"},
)


def resume(every=False):
    """Stopped and restarted from torch.save's bytes, beside one that goes on. Each rule with the
    default options, and AdamW with all. `every`: each rule with all but the last two."""
    differences = {}
    for name, rule in RULES.items():
        for options in RESUMED if name == "AdamW" else RESUMED[:4] if every else RESUMED[:1]:
            for dtype in (torch.float32, torch.bfloat16):
                ends = []
                for stops in (False, True):
                    net = model(dtype)
                    optimizer = rule(net.parameters(), **options)
                    train(net, optimizer, 5, 0, rank())
                    if stops:
                        file = io.BytesIO()
                        torch.save((net.state_dict(), optimizer.state_dict()), file)
                        optimizer.close()
                        file.seek(0)
                        net = model(dtype)
                        optimizer = rule(net.parameters(), **options)
                        weights, state = torch.load(file)
                        net.load_state_dict(weights)
                        optimizer.load_state_dict(state)
                        assert "round" not in optimizer.param_groups[0]
                    train(net, optimizer, 5, 5, rank())
                    ends.append(flat(net))
                    optimizer.close()
                differences[f"{name} {options} {dtype}"] = (ends[0] - ends[1]).abs().max().item()
    return differences


def resume_every():
    return resume(every=True)


def resume_in_nodes():
    """Like resume(), each worker with its share of a node's state. Also the message of a worker
    without a hierarchy for it."""
    options = {"lr": 0.02, "hierarchy": "node", "workers_per_node": 2}
    ends, shapes, said = [], [], ""
    for stops in (False, True):
        net = several_blocks()
        optimizer = starling.AdamW(net.parameters(), **options)
        train(net, optimizer, 4, 0, rank())
        if stops:
            file = io.BytesIO()
            torch.save((net.state_dict(), optimizer.state_dict()), file)
            optimizer.close()
            file.seek(0)
            net = several_blocks()
            optimizer = starling.AdamW(net.parameters(), **options)
            weights, state = torch.load(file)
            net.load_state_dict(weights)
            optimizer.load_state_dict(state)
            shapes = [list(of.get("exp_avg", torch.empty(0)).shape) for of in state["state"].values()]
            plain = starling.AdamW(several_blocks().parameters(), lr=0.02, check_gradients=False)
            try:
                plain.load_state_dict(state)
            except starling.Error as error:
                said = str(error)
            plain.close()
        train(net, optimizer, 4, 4, rank())
        ends.append(flat(net))
        optimizer.close()
    return (ends[0] - ends[1]).abs().max().item(), shapes, said


def resume_gossip():
    """Asynchronous gossip: the loaded state is the saved one, to the bit, and training goes on."""
    missing, kept = [], []
    for more in ({"scheme": "a2cid2", "clock": "fixed", "eta": 0.1, "alpha_tilde": 0.8},
                 {"scheme": "swarm", "local_steps": 2, "wire": "int8"}, {"scheme": "async-push-sum"},
                 {"scheme": "async-push-pull"}):
        options = {"lr": 0.01, "topology": "ring", **more}
        net = model()
        optimizer = starling.AdamW(net.parameters(), **options)
        train(net, optimizer, 10, 0, rank())
        saved = optimizer.state_dict()
        state = copy.deepcopy((net.state_dict(), saved))
        optimizer.close()
        net = model()
        optimizer = starling.AdamW(net.parameters(), **options)
        net.load_state_dict(state[0])
        optimizer.load_state_dict(state[1])
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


def overflow():
    """Mixed precision with a scaler, and an overflow on rank 1 in step 3: it skips its own update,
    and mixes."""
    ends = []
    for around in (False, True):
        net = model()
        inner = torch.optim.AdamW(net.parameters(), lr=0.02)
        optimizer = starling.Decentralized(inner) if around else starling.AdamW(net.parameters(), lr=0.02)
        ends.append([*overflowed(net, optimizer), flat(net).tolist()])
        if around:
            assert {state["step"].item() for state in inner.state.values()} == {7 if rank() == 1 else 8}
        optimizer.close()
    return ends


def overflowed(net, optimizer):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
    skipped = []
    for t in range(8):
        optimizer.zero_grad()
        loss = loss_of(net, 100 * rank() + t)
        if t == 3 and rank() == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        skipped.append(optimizer.statistics()["skipped"])
    statistics = optimizer.statistics()
    return skipped, statistics["aborted"], optimizer.consensus_distance(), bool(flat(net).isfinite().all())


def scaled():
    """With a scaler, and with one whose gradients are unscaled and clipped first: the distance to
    the same run without. By SGD, whose steps are proportional to its gradients."""
    differences = []
    for clips in (False, True):
        for make in (lambda p: starling.SGD(p, lr=0.1),
                     lambda p: starling.Decentralized(torch.optim.SGD(p, lr=0.1))):
            ends = []
            for scales in (False, True):
                net = model()
                optimizer = make(net.parameters())
                scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3, enabled=scales)
                for t in range(8):
                    optimizer.zero_grad()
                    scaler.scale(loss_of(net, 100 * rank() + t)).backward()
                    if clips:
                        scaler.unscale_(optimizer)
                        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3)
                    scaler.step(optimizer)
                    scaler.update()
                ends.append(flat(net))
                optimizer.close()
            differences.append((ends[0] - ends[1]).abs().max().item())
    return differences


def leaves_nothing():
    """The numbers of threads and descriptors after each of four closed optimizers, by scheme."""
    left = {}
    for scheme in ("cta", "a2cid2", "all-reduce", "around"):
        for _ in range(4):
            net = model()
            if scheme == "around":
                optimizer = starling.Decentralized(torch.optim.SGD(net.parameters(), lr=0.1))
            else:
                optimizer = starling.SGD(net.parameters(), lr=0.1, topology="ring", scheme=scheme)
            train(net, optimizer, 3, 0, rank())
            with optimizer.consensus():  # no worker leaves before the others are done
                pass
            del optimizer
            time.sleep(0.3)  # rank 0's store closes its clients' connections with a delay
            left.setdefault(scheme, []).append([len(os.listdir(f"/proc/self/{kind}")) for kind in ("task", "fd")])
    return left


def closed_within():
    """An average is open when the optimizer ends; and rank 0 is gone when the average is saved."""
    net = model()
    optimizer = starling.SGD(net.parameters(), lr=0.1)
    with torch.no_grad():
        net[0].weight.add_(rank())
    own = flat(net)
    with optimizer.consensus() as average:
        assert not torch.equal(flat(net), own)
        optimizer.close()
        assert torch.equal(flat(net), own)
    seen = average.workers, average.first

    optimizer = starling.SGD(net.parameters(), lr=0.1)
    if rank() == 0:
        optimizer.close()
        return seen, 0
    file = pathlib.Path(os.environ["FOLDER"], "average.safetensors")
    optimizer.save_consensus(net, file)
    with optimizer.consensus() as average:  # it is written afterwards
        return seen, average.first if file.exists() else "no file"


def consensus():
    net = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4))
    optimizer = starling.SGD(net.parameters(), lr=0.1, buffers=net.buffers())
    for _ in range(1 + rank()):  # counters differ
        net(torch.full((3, 6), float(rank())) + torch.randn(3, 6))
    own = copy.deepcopy(net.state_dict())
    with optimizer.consensus() as average:
        inside = copy.deepcopy(net.state_dict())
    restored = all(torch.equal(net.state_dict()[key], own[key]) for key in own)
    with optimizer.consensus(keep=True):
        pass
    kept = all(torch.equal(net.state_dict()[key], inside[key]) for key in own)
    return (average.workers, restored, kept, inside["1.num_batches_tracked"].item(),
            inside["1.running_mean"].tolist(), own["1.running_mean"].tolist())


def of_a_model():
    """Frozen parameters, and a buffer that forward() replaces: the frozen ones, the average of the
    buffer, and this worker's own."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(rank())
            self.body, self.head = torch.nn.Linear(6, 4).requires_grad_(False), torch.nn.Linear(4, 2)
            self.register_buffer("mean", torch.full((4,), float(rank())))

        def forward(self, inputs):
            hidden = self.body(inputs)
            self.mean = 0.5 * self.mean + rank()
            return self.head(hidden)

    ends = []
    for make in (lambda p, **o: starling.AdamW(p, lr=0.02, **o),
                 lambda p, **o: starling.Decentralized(torch.optim.AdamW(p, lr=0.02), **o)):
        net = Net()
        optimizer = make([p for p in net.parameters() if p.requires_grad], model=net)
        train(net, optimizer, 3, 0, rank())
        own = net.mean
        with optimizer.consensus():
            mean = net.mean.tolist()
        ends.append([net.body.weight.flatten().tolist(), mean, own.tolist()])
        optimizer.close()
    return ends


def differing_buffers():
    said = []
    for buffers in ([torch.full((4,), 1.5) if rank() == 0 else torch.ones(4, dtype=torch.int32)],
                    [torch.zeros(2)] * (1 + rank() % 2), [torch.zeros((2, 3) if rank() == 0 else (3, 2))]):
        try:
            starling.AdamW(model().parameters(), buffers=[each.clone() for each in buffers])
            said.append("accepted")
        except starling.UsageError as error:
            said.append(str(error))
    return said


def orders():
    """Model and state of five steps are loaded in each order. Five more steps follow, beside a run
    that did not stop. The difference, or the refusal."""
    ends = {}
    for dtype in (torch.float32, torch.bfloat16):
        for make in (RULES["AdamW"], lambda p: starling.Decentralized(torch.optim.AdamW(p, lr=0.02))):
            if make is not RULES["AdamW"] and dtype != torch.float32:
                continue
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


def alone_to_an_average():
    """Only rank 0 comes; the others have left."""
    net = model()
    optimizer = starling.AdamW(net.parameters(), lr=0.02)
    train(net, optimizer, 3, 0, rank())
    if rank() != 0:
        return 0
    with optimizer.consensus() as average:
        return average.workers


def around_others():
    """Decentralized over OTHERS beside both workers in plain loops: the distance to these, and
    between workers without mixing."""
    differences = {}
    for name, make in OTHERS.items():
        net = model()
        optimizer = starling.Decentralized(make(net), topology="complete")
        train(net, optimizer, 12, 0, rank())
        ends = []
        for mixes in (True, False):
            nets = [model(), model()]
            inners = [make(each) for each in nets]
            for t in range(12):
                for i in range(2):
                    inners[i].zero_grad()
                    loss_of(nets[i], 1000 * i + t).backward()
                if mixes:
                    mixed = [[p for group in inner.param_groups for p in group["params"]] for inner in inners]
                    with torch.no_grad():
                        for p, q in zip(*mixed, strict=True):
                            p.copy_((p + q) / 2)
                            q.copy_(p)
                for inner in inners:
                    inner.step()
            ends.append((flat(nets[rank()]) - flat(net)).abs().max().item())
        differences[name] = ends
        optimizer.close()
    return differences


def groups():
    """A parameter group added during training, with its own options. Differences between workers
    are refused everywhere."""
    net = model()
    layers = list(net.children())
    optimizer = starling.AdamW(layers[0].parameters(), lr=0.02)
    train(net, optimizer, 2, 0, rank())
    with torch.no_grad():
        layers[2].weight.fill_(rank())
    optimizer.add_param_group({"params": layers[2].parameters(), "lr": 0.0, "weight_decay": 0.0})
    optimizer.zero_grad()
    optimizer.step()
    same = layers[2].weight.abs().max().item()
    try:
        starling.AdamW(model().parameters(), topology=["ring", "complete"][rank() % 2])
    except starling.UsageError as error:
        return same, str(error)
    return same, "accepted"


def over_a_group():
    """The world of torch.distributed's default group, and one of two of its three workers; every
    second value is sent."""
    torch.distributed.init_process_group("gloo")
    net = model()
    optimizer = starling.AdamW(net.parameters(), lr=0.02, one_in=2)
    assert starling.init() is starling.init() and starling.init().size == 3
    train(net, optimizer, 6, 0, rank())
    distance = optimizer.consensus_distance()
    pair = torch.distributed.new_group([0, 2])
    size = 0
    if rank() != 1:
        world = starling.init(pair)
        size = world.size
        net = model()
        starling.SGD(net.parameters(), world=world).step()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return distance, size


def ends_badly():
    """Rank 1 leaves in the way that the environment names; the others go on."""
    net = model()
    optimizer = starling.AdamW(net.parameters(), lr=0.02)
    for t in range(6):
        if t == 3 and rank() == 1:
            how = os.environ["HOW"]
            if how == "interrupt":
                raise KeyboardInterrupt  # uncaught
            if how == "exception":
                raise RuntimeError("a fault of the user's")
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "delete":  # and this process goes on until the others are done
                del optimizer
                for _ in range(3000):
                    if len(os.listdir(os.environ["FOLDER"])) == 2:
                        return None
                    time.sleep(0.02)
                raise AssertionError("the others wait for an optimizer that is gone")
            if how == "exit":
                sys.exit(3)  # the optimizer is still there
            if how == "at once":
                os._exit(4)
        train(net, optimizer, 1, t, rank())
    pathlib.Path(os.environ["FOLDER"], str(rank())).touch()
    return optimizer.statistics()["rounds"]


def forked():
    """The end of each process that is forked from this one in the middle of training, as Python
    does; and that this goes on."""
    net = model()
    optimizer = starling.AdamW(net.parameters(), lr=0.02)
    train(net, optimizer, 3, 0, rank())
    codes = []
    faulthandler.cancel_dump_traceback_later()  # of workers.py: a child would wait for its thread
    for how in ("exit", "delete", "step", "within an average"):
        with optimizer.consensus() if how == "within an average" else contextlib.nullcontext():
            child = os.fork()
            if child == 0:
                signal.alarm(60)  # a hang is a failure
                if how == "delete":
                    del optimizer
                if how == "step":
                    optimizer.step()  # refused
                sys.exit(7)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        train(net, optimizer, 3, 3 * len(codes), rank())
    return codes, optimizer.consensus_distance(), optimizer.statistics()


# ---------------------------------------------------------------- tests


class Alone(unittest.TestCase):
    def test_is_torchs_optimizer_of_that_name(self):
        for name, torchs in TORCHS.items():
            mine, theirs = model(), model()
            ours = RULES[name](mine.parameters())
            train(mine, ours, 20)
            train(theirs, torchs(theirs.parameters()), 20)
            self.assertLess((flat(mine) - flat(theirs)).abs().max().item(), 1e-6, name)
            self.assertIsInstance(ours, torch.optim.Optimizer)

    def test_of_a_narrow_model_torchs_steps_are_those_of_its_masters(self):
        for dtype in (torch.bfloat16, torch.float16):
            for name, torchs in TORCHS.items():
                net = model(dtype)
                masters = [p.detach().float().requires_grad_() for p in net.parameters()]
                ours, theirs = RULES[name](net.parameters()), torchs(masters)
                for t in range(20):
                    ours.zero_grad()
                    loss_of(net, t).backward()
                    for master, parameter in zip(masters, net.parameters(), strict=True):
                        master.grad = parameter.grad.float()
                    ours.step()
                    theirs.step()
                for k, (master, parameter) in enumerate(zip(masters, net.parameters(), strict=True)):
                    mine = ours.state_dict()["state"][k]["master"]
                    self.assertLess((mine - master).abs().max().item(), 1e-6, (name, dtype))
                    self.assertTrue(torch.equal(mine.to(dtype), parameter), (name, dtype))

    def test_state_dicts_go_both_ways_with_torchs(self):
        for name, torchs in TORCHS.items():
            mine, theirs = model(), model()
            ours, its = RULES[name](mine.parameters()), torchs(theirs.parameters())
            its.load_state_dict(its.state_dict())
            ours.load_state_dict(its.state_dict())  # empty so far
            train(theirs, its, 5)
            mine.load_state_dict(theirs.state_dict())
            ours.load_state_dict(its.state_dict())
            train(mine, ours, 5, 5)
            train(theirs, its, 5, 5)
            self.assertLess((flat(mine) - flat(theirs)).abs().max().item(), 1e-6, name)
            saved = ours.state_dict()
            self.assertEqual(self.copies_of_the_state(ours.load_state_dict, saved), 0)
            # torch's SGD does not count.
            self.assertEqual(saved["state"][0]["step"], 5 if name == "SGD" else 10)
            its.load_state_dict(saved)
            train(theirs, its, 1)

    def test_what_others_keep_in_the_groups_stays(self):
        optimizer = starling.AdamW(model().named_parameters())
        optimizer.param_groups[0]["tags"] = [1.5, 2.5]
        names = optimizer.param_groups[0]["param_names"]
        optimizer.load_state_dict(optimizer.state_dict())
        self.assertEqual(optimizer.param_groups[0]["param_names"], names)
        self.assertEqual(optimizer.param_groups[0]["tags"], [1.5, 2.5])

    def test_momentum_may_come_later(self):
        """By a scheduler, with a group, or in a state: from zero, like torch's."""
        ends = []
        for sgd in (starling.SGD, torch.optim.SGD):
            net = model()
            optimizer = sgd([{"params": net[0].parameters()}, {"params": net[2].parameters(), "momentum": 0.5}], lr=0.1)
            train(net, optimizer, 2)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=9)
            for t in range(5):
                train(net, optimizer, 1, 2 + t)
                schedule.step()
            ends.append(flat(net))
        self.assertLess((ends[0] - ends[1]).abs().max().item(), 1e-6)
        net, other = model(), model()
        torchs = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        train(net, torchs, 3)
        ours = starling.SGD(other.parameters())
        other.load_state_dict(net.state_dict())
        ours.load_state_dict(torchs.state_dict())
        train(net, torchs, 3, 3)
        train(other, ours, 3, 3)
        self.assertLess((flat(net) - flat(other)).abs().max().item(), 1e-6)

    def test_inner_may_load_by_itself(self):
        net = model()
        inner = torch.optim.AdamW(net.parameters(), lr=1.0)
        around = starling.Decentralized(inner)
        schedule = torch.optim.lr_scheduler.StepLR(around, 1, 0.1)
        train(net, around, 1)
        inner.load_state_dict(inner.state_dict())
        schedule.step()
        self.assertAlmostEqual(inner.param_groups[0]["lr"], 0.1)
        train(net, around, 1)
        schedule.step()
        self.assertAlmostEqual(inner.param_groups[0]["lr"], 0.01)

    def test_hooks_after_loading_see_what_was_loaded(self):
        net = model()
        around = starling.Decentralized(torch.optim.AdamW(net.parameters()))
        for optimizer in (starling.AdamW(net.parameters()), around):
            train(net, optimizer, 3)
            saved = copy.deepcopy(optimizer.state_dict())
            train(net, optimizer, 2)
            seen = []
            optimizer.register_load_state_dict_post_hook(
                lambda o, seen=seen: seen.append((int(o.state_dict()["state"][0]["step"]), "round" in o.param_groups[0])))
            optimizer.load_state_dict(saved)
            self.assertEqual(seen, [(3, False)])

    def test_around_another_a_closure_and_hooks_are_as_torchs(self):
        ends = []
        for wrap in (lambda inner: inner, starling.Decentralized):
            net = model()
            optimizer = wrap(torch.optim.AdamW(net.parameters(), lr=0.02))
            calls, losses = [], []
            optimizer.register_step_pre_hook(lambda *_, calls=calls: calls.append("before"))
            optimizer.register_step_post_hook(lambda *_, calls=calls: calls.append("after"))

            def closure(net=net, optimizer=optimizer, calls=calls):
                calls.append("loss")
                optimizer.zero_grad()
                loss = loss_of(net, 1)
                loss.backward()
                return loss

            for _ in range(3):
                losses.append(optimizer.step(closure).item())
            ends.append((calls, losses, flat(net).tolist()))
        self.assertEqual(ends[0][0], ["before", "loss", "after"] * 3)
        self.assertEqual(*ends)

    def test_a_step_that_fails_leaves_nothing_of_a_scaler(self):
        net = model()
        optimizer = starling.AdamW(net.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        scaler.scale(loss_of(net, 1)).backward()
        fails = optimizer.register_step_pre_hook(lambda *_: 1 / 0)
        with self.assertRaises(ZeroDivisionError):
            scaler.step(optimizer)
        fails.remove()
        self.assertFalse(hasattr(optimizer, "grad_scale") or hasattr(optimizer, "found_inf"))

    def test_may_be_closed_in_the_midst_of_a_step(self):
        """Like a signal's handler, which Python calls while C++ waits."""
        net = model()
        optimizer = starling.Decentralized(torch.optim.SGD(net.parameters()))
        optimizer.inner.register_step_post_hook(lambda *_: optimizer.close())
        train(net, optimizer, 1)
        with self.assertRaisesRegex(starling.UsageError, "closed"):
            optimizer.step()

    def copies_of_the_state(self, call, *arguments):
        gathered = []
        whole = starling._C.OptimizerBinding.state

        def state(binding, values=True):
            gathered.append(values)
            return whole(binding, values)

        with mock.patch.object(starling._C.OptimizerBinding, "state", state):
            call(*arguments)
        self.assertGreater(len(gathered), 0)  # it is called
        return sum(gathered)

    def test_closure_hooks_clipping_and_both_zero_grads(self):
        net = model()
        optimizer = starling.AdamW(net.parameters(), lr=0.02, clip=0.5)
        seen = []
        hooks = [optimizer.register_step_pre_hook(lambda *_: seen.append("pre")),
                 optimizer.register_step_post_hook(lambda *_: seen.append("post"))]

        def closure():
            optimizer.zero_grad()
            loss = loss_of(net, 1)
            loss.backward()
            return loss

        first, later = optimizer.step(closure), optimizer.step(closure)
        self.assertLess(later.item(), first.item())
        self.assertEqual(seen, ["pre", "post"] * 2)
        for hook in hooks:
            hook.remove()
        optimizer.step()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            optimizer.step()
        self.assertIn("Optimizer.step#AdamW.step", {event.key for event in profile.key_averages()})
        self.assertEqual(len(seen), 4)
        for register in (register_optimizer_step_pre_hook, register_optimizer_step_post_hook):
            hook = register(lambda *_: seen.append("all"))
            optimizer.step()
            hook.remove()
        self.assertEqual(seen[4:], ["all"] * 2)
        optimizer.zero_grad(set_to_none=False)
        self.assertEqual(net[0].weight.grad.abs().max(), 0)
        optimizer.zero_grad(set_to_none=True)
        self.assertIsNone(net[0].weight.grad)

    def test_bad_input_gets_one_line(self):
        net = model()
        for options, kind, text in (
                ({"lr": -1.0}, ValueError, "AdamW: lr = -1 is not allowed: it must be finite and at least 0"),
                ({"wire": "int9"}, ValueError, "int9"),
                ({"topology": "rnig"}, ValueError, "rnig"),
                ({"topologie": "ring"}, TypeError,
                 "'topologie', did you mean 'topology'?: beside the rule's there are alpha_tilde, block_bytes, buffers, "),
                ({"topolgy": "ring"}, TypeError, "'topolgy', did you mean 'topology'?"),
                ({"fused": True}, ValueError, "fused = True: leave it out, since the update is fused already"),
                ({"foreach": True}, ValueError, "foreach = True: leave it out"),
                ({"amsgrad": True}, ValueError, "starling.Decentralized(torch.optim.AdamW(.., amsgrad=True))"),
                ({"model": net.parameters()}, TypeError, "model: a generator is no torch.nn.Module"),
                ({"model": net, "buffers": [torch.zeros(1)]}, ValueError, "give model or buffers, not both"),
                ({"buffers": [torch.zeros(1).expand(3)]}, ValueError, "buffer 0 is expanded: values share memory"),
                ({"scheme": None}, TypeError, "keyword argument 'scheme': None has the wrong type"),
                ({"scheme": "chocco"}, ValueError, 'scheme "chocco" is unknown, did you mean choco?'),
                ({"gamma": 0.5}, ValueError, 'gamma = 0.5 is for scheme "choco", not "cta": use 0'),
                ({"lr": "1e-3"}, TypeError, "lr = '1e-3' is not allowed: a number"),
                ({"buffers": net.named_parameters()}, TypeError, "buffers: a tuple is no tensor: give model.buffers()"),
                ({"clip": "much"}, TypeError, "keyword argument 'clip': 'much' has the wrong type")):
            with self.assertRaises(kind) as caught:
                starling.AdamW(net.parameters(), **options)
            self.assertIn(text, str(caught.exception))
            self.assertNotIn("\n", str(caught.exception))
        with self.assertRaisesRegex(starling.UsageError, "dampening = 0.5 is not allowed: 0"):
            starling.SGD(net.parameters(), 0.1, 0.9, 0.5)
        with self.assertRaisesRegex(starling.UsageError, "it was made with amsgrad = True"):
            starling.AdamW(net.parameters()).load_state_dict(torch.optim.AdamW(net.parameters(), amsgrad=True).state_dict())
        inner = torch.optim.SGD(list(net[0].parameters()), lr=0.1)
        around = starling.Decentralized(inner)
        around.add_param_group({"params": [net[2].weight]})
        around.step()
        called = []
        around.register_state_dict_pre_hook(lambda optimizer: called.append(optimizer))
        around.register_state_dict_post_hook(lambda _, saved: {**saved, "mine": 1})
        around.register_load_state_dict_pre_hook(lambda _, saved: {key: saved[key] for key in ("state", "param_groups")})
        around.register_load_state_dict_post_hook(lambda optimizer: called.append(optimizer))
        saved = around.state_dict()
        self.assertEqual(saved["mine"], 1)
        around.load_state_dict(saved)
        self.assertEqual(called, [around, around])
        with self.assertRaisesRegex(starling.UsageError, r"LBFGS.step\(\) must be given a closure"):
            starling.Decentralized(torch.optim.LBFGS(model().parameters()))
        inner.add_param_group({"params": [net[2].bias]})
        with self.assertRaisesRegex(starling.UsageError, "parameter group 2 was added; new parameters need add_param_group"):
            around.step()
        with self.assertRaisesRegex(starling.UsageError, "there is no parameter to train: all have the size 0"):
            starling.SGD([torch.zeros(0, requires_grad=True)])
        optimizer = starling.SGD(net.parameters(), scheme="async-push-pull")
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(loss_of(net, 1)).backward()
        with self.assertRaisesRegex(starling.UsageError, 'scheme = "async-push-pull" does not go with a GradScaler'):
            scaler.step(optimizer)
        optimizer = starling.AdamW(net.parameters())
        saved = optimizer.state_dict()
        del saved["state"][1]["exp_avg_sq"]
        with self.assertRaisesRegex(starling.UsageError, 'parameter 0, number 1: there is no "exp_avg_sq"'):
            optimizer.load_state_dict(saved)
        for call in (copy.deepcopy, pickle.dumps):
            for one in (optimizer, around):
                with self.assertRaisesRegex(starling.UsageError, "cannot be copied or pickled: save its state_dict"):
                    call(one)
        with self.assertRaisesRegex(starling.UsageError, "parameter 0 of group 1"):
            optimizer.add_param_group({"params": [torch.zeros(3, dtype=torch.float64, requires_grad=True)]})
        train(net, optimizer, 1)
        optimizer.close()
        with self.assertRaisesRegex(starling.UsageError, "closed"):
            optimizer.step()

    @unittest.skipUnless(torch.cuda.is_available(), "torch finds no CUDA device")
    def test_on_a_gpu_it_is_as_on_the_cpu(self):
        for name, rule in RULES.items():
            with self.subTest(name):
                ends = []
                for device in ("cpu", "cuda"):
                    torch.manual_seed(3)
                    net = torch.nn.Linear(30, 7).to(device)
                    inputs = torch.arange(16 * 30.0).view(16, 30).sin().to(device)
                    optimizer = rule(net.parameters(), clip=1.0)
                    for step in range(20):
                        optimizer.zero_grad()
                        net(inputs).square().mean().backward()
                        optimizer.step()
                        if step == 10:
                            saved = copy.deepcopy(optimizer.state_dict())
                            optimizer.step()
                            optimizer.load_state_dict(saved)
                    with optimizer.consensus() as scope:
                        self.assertEqual(scope.workers, 1)
                    ends.append(net.weight.detach().cpu())
                    optimizer.close()
                torch.testing.assert_close(ends[1], ends[0], rtol=1e-3, atol=1e-4)

    def test_torchs_defaults_may_be_spelled_out(self):
        for name in TORCHS:
            torchs = inspect.signature(getattr(torch.optim, name)).parameters
            keywords = {key: each.default for key, each in torchs.items() if key != "params"}
            keywords.pop("decoupled_weight_decay", None)
            self.assertIn("maximize", keywords)
            mine, theirs = model(), model()
            train(mine, getattr(starling, name)(mine.parameters(), **keywords), 3)
            train(theirs, getattr(torch.optim, name)(theirs.parameters(), **keywords), 3)
            self.assertLess((flat(mine) - flat(theirs)).abs().max().item(), 1e-6, name)

    def test_param_groups_that_are_edited_are_refused_at_the_next_step(self):
        """Like torch's, they would train otherwise, and here they would not."""
        more = torch.zeros(3, requires_grad=True)
        edits = {
            "has other parameters": (lambda groups: groups[0]["params"].append(more),
                                     lambda groups: groups[0].update(params=[more, *groups[0]["params"][1:]]),
                                     lambda groups: groups[0]["params"].pop()),
            "was added": (lambda groups: groups.append({**groups[0], "params": [more]}),),
            "is gone": (lambda groups: groups.clear(),)}
        for said, each in edits.items():
            for edit in each:
                for make in (RULES["AdamW"], lambda p: starling.Decentralized(torch.optim.AdamW(p))):
                    net = model()
                    optimizer = make(net.parameters())
                    train(net, optimizer, 1)
                    edit(optimizer.param_groups)
                    with self.assertRaisesRegex(starling.UsageError, f"param_groups was edited: .* {said}; .* add_param_group"):
                        optimizer.step()

    def test_a_state_goes_between_adam_and_accum_adam(self):
        """Options that the state lacks stay. With the same moments, the corrections of their bias
        are the same, so both move alike at first: the accumulated ones move once in a window."""
        for plain, accumulated in ((starling.AdamW, starling.AccumAdamW), (starling.Adam, starling.AccumAdam)):
            net = model()
            before = plain(net.parameters(), lr=0.02)
            train(net, before, 12)
            other, again = model(), model()
            after = accumulated(other.parameters(), lr=0.5, window=4)
            other.load_state_dict(net.state_dict())
            after.load_state_dict(before.state_dict())
            self.assertEqual((after.param_groups[0]["window"], after.param_groups[0]["lr"]), (4, 0.02))
            saved = after.state_dict()["state"][0]
            self.assertEqual((saved["step"], saved["accumulated_grad"].abs().max()), (48, 0))
            back = plain(again.parameters(), lr=0.5)
            again.load_state_dict(other.state_dict())
            back.load_state_dict(after.state_dict())
            for name, tensor in before.state_dict()["state"][0].items():
                self.assertTrue(torch.equal(back.state_dict()["state"][0][name], tensor), name)
            for each, its in ((net, before), (other, after), (again, back)):
                train(each, its, 1, 12)
            self.assertTrue(torch.equal(flat(again), flat(net)))
            self.assertLess((flat(other) - flat(net)).abs().max().item(), 1e-3)

    def test_steps_within_consensus_are_refused(self):
        net = model()
        for optimizer in (starling.AdamW(net.parameters()), starling.Decentralized(torch.optim.AdamW(net.parameters()))):
            train(net, optimizer, 1)
            saved = copy.deepcopy(optimizer.state_dict())
            with optimizer.consensus():
                with self.assertRaisesRegex(starling.UsageError, r"step\(\) within consensus"):
                    optimizer.step()
                with self.assertRaisesRegex(starling.UsageError, "within consensus"):
                    optimizer.load_state_dict(saved)
            train(net, optimizer, 1)

    def test_help_shows_the_options(self):
        for name in (*RULES, "Decentralized"):
            said = inspect.getdoc(getattr(starling, name).__init__)
            for option, text in (("topology", "ring"), ("gamma", "choco"), ("model", "frozen"), ("wire", "int8")):
                self.assertRegex(said, rf"(?m)^{option}: .*\n    .*{text}", name)
            self.assertNotIn("class", str(inspect.signature(getattr(starling, name))))

    def test_refuses_another_torch(self):
        self.assertIn("built with torch 1.2.3, but torch 1.2.4 is installed",
                      starling._torch_version.complaint("1.2.3", "1.2.4+cpu"))
        self.assertIsNone(starling._torch_version.complaint("1.2.3", "1.2.3+cpu"))


class Together(unittest.TestCase):
    def test_learns_what_cpp_learns(self):
        golden_losses = json.loads(GOLDEN.read_text())
        for lines in zip(*workers.run(golden, 3), strict=True):
            name, scheme, _ = lines[0]
            means = torch.tensor([losses for _, _, losses in lines], dtype=torch.float64).mean(0)
            expected = torch.tensor(golden_losses[name][scheme], dtype=torch.float64)
            self.assertLess(((means - expected) / expected).abs().max().item(), 1e-5, f"{name} {scheme}")

    def test_around_optimizers_that_nobody_here_wrote(self):
        for differences in workers.run(around_others, 2):
            for name, (mixed, alone) in differences.items():
                self.assertLess(mixed, 2e-3, name)  # Muon's own rounding is to bf16
                self.assertGreater(alone, 5 * mixed + 1e-3, name)

    def test_around_torchs_optimizer(self):
        for difference, distances in workers.run(around, 3):
            self.assertLess(difference, 1e-5)
            self.assertTrue(all(0 < distance < 0.1 for distance in distances), distances)

    def test_resumes_to_the_bit(self):
        for differences in workers.run(resume, 3):
            self.assertEqual({key: value for key, value in differences.items() if value != 0}, {})

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

    def test_an_overflow_on_one_worker_skips_its_update_and_no_exchange(self):
        for number, (ours, around) in enumerate(workers.run(overflow, 3)):
            self.assertEqual(ours[0], [0, 0, 0, 1, 1, 1, 1, 1] if number == 1 else [0] * 8)
            for _, aborted, distance, finite, _ in (ours, around):
                self.assertEqual(aborted, 0)
                self.assertTrue(finite)
                self.assertLess(distance, 0.1)
            self.assertLess((torch.tensor(ours[-1]) - torch.tensor(around[-1])).abs().max().item(), 1e-5)

    def test_a_scaler_changes_nothing(self):
        for differences in workers.run(scaled, 2):
            self.assertLess(max(differences), 1e-6)

    def test_who_goes_leaves_no_thread_and_no_descriptor(self):
        for left in workers.run(leaves_nothing, 2):
            for scheme, counts in left.items():
                # The first one may have initialized parts of torch, and a connection of the store
                # may open or close at this moment.
                for begun, end in zip(counts[1], counts[-1], strict=True):
                    self.assertLessEqual(end, begun + 1, (scheme, counts))

    def test_a_forked_process_ends_and_takes_nothing_with_it(self):
        for codes, distance, statistics in workers.run(forked, 2):
            self.assertEqual(codes, [7, 7, 1, 7])
            self.assertLess(distance, 0.1)
            self.assertEqual((statistics["lost"], statistics["aborted"]), ([], 0))

    def test_consensus(self):
        results = workers.run(consensus, 3)
        mean = torch.tensor([own for *_, own in results]).mean(0)
        for count, restored, kept, counter, inside, _ in results:
            self.assertEqual((count, restored, kept, counter), (3, True, True, 3))
            torch.testing.assert_close(torch.tensor(inside), mean)

    def test_of_a_model_frozen_parameters_begin_equal_and_buffers_are_the_present_ones(self):
        for ends in zip(*workers.run(of_a_model, 3), strict=True):
            for number, (frozen, mean, own) in enumerate(ends):
                self.assertEqual(frozen, ends[0][0])
                self.assertEqual((mean, own), ([1.75] * 4, [1.75 * number] * 4))

    def test_buffers_that_differ_are_refused_everywhere(self):
        first, *others = workers.run(differing_buffers, 2)
        self.assertEqual(others, [first])
        for said, text in zip(first, ("buffer 0: Float 4 at worker 0, Int 4 at worker 1",
                                      "number of buffers: 1 at worker 0, 2 at worker 1",
                                      "buffer 0: Float 2x3 at worker 0, Float 3x2 at worker 1"), strict=True):
            self.assertIn(f"the workers differ in {text}", said)

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

    def test_an_average_says_who_has_left_before_it(self):
        (_, said, count), *_ = workers.ends(alone_to_an_average, 3)
        self.assertEqual(count, 1, said)
        for other in (1, 2):
            self.assertIn(f"an average goes on without worker {other}, which has left before it", said)

    def test_ends_within_an_average_and_saves_without_rank_0(self):
        with tempfile.TemporaryDirectory() as folder:
            results = workers.run(closed_within, 3, FOLDER=folder)
        self.assertEqual(results, [[[3, 0], 0], [[3, 0], 1], [[3, 0], 1]])

    def test_groups_and_what_differs(self):
        for same, message in workers.run(groups, 3):
            self.assertEqual(same, 0)  # rank 0's
            self.assertIn("topology", message)
            self.assertIn("complete", message)

    def test_over_a_process_group(self):
        results = workers.run(over_a_group, 3)
        self.assertEqual([size for _, size in results], [2, 0, 2])
        self.assertTrue(all(0 < distance < 0.1 for distance, _ in results), results)

    def test_a_worker_that_ends_badly_costs_the_others_nothing(self):
        for how, code in (("exception", 1), ("interrupt", -signal.SIGINT), ("kill", -signal.SIGKILL), ("delete", 0), ("exit", 3),
                          ("at once", 4)):
            with tempfile.TemporaryDirectory() as folder:
                ends = workers.ends(ends_badly, 3, HOW=how, FOLDER=folder)
            self.assertEqual([code for code, *_ in ends], [0, code, 0], (how, [said for _, said, _ in ends]))
            self.assertTrue(all(ends[other][2] >= 6 for other in (0, 2)))
            # A fault is said at the neighbours that still train, and nobody else's end is.
            said = [ends[other][1] for other in (0, 2)]
            heard = any("worker 1 has left with an error: going on without it" in each for each in said)
            self.assertEqual(heard, how in ("exception", "interrupt"), (how, said))


class Long(unittest.TestCase):
    def test_resumes_to_the_bit_with_every_rule(self):
        for differences in workers.run(resume_every, 3):
            self.assertEqual({key: value for key, value in differences.items() if value != 0}, {})


if __name__ == "__main__":
    workers.main()
