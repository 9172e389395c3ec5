"""Practices of training loops that must work the same with Starling's optimizers as with torch's.

Most are compared with plain loops: three replicas in one process, mixed by hand, each stepped by
torch's AdamW,

    x_i <- mean_j x_j, then AdamW with the gradient of the x_i before,

which is combine-then-adapt on the complete graph.
"""

import copy
import io
import itertools
import shutil
import tempfile
import unittest

import torch
import workers
from learning import batch, error_of, flat, loss_of, model, rank, refusal, several_blocks, train
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import update_bn
from torch.utils.checkpoint import checkpoint

import starling

N = 3
STEPS = 6


def ours(parameters, **options):
    return starling.AdamW(parameters, lr=0.02, weight_decay=0.1, topology="complete", **options)


def theirs(parameters):
    return torch.optim.AdamW(parameters, lr=0.02, weight_decay=0.1)


def off_plain_loops(build, backward, clip=0.0, set_to_none=True, decays=False, **options):
    """The largest difference of this worker's parameters to those of plain loops, and the distance
    that they have moved. backward(net, i, t): the work of worker i in step t before step()."""
    nets = [build() for _ in range(N)]
    optimizers = [theirs(net.parameters()) for net in nets]
    schedulers = [StepLR(optimizer, 2, 0.1) for optimizer in optimizers]
    mine = build()
    start = flat(mine)
    optimizer = ours(mine.parameters(), clip=clip, **options)
    scheduler = StepLR(optimizer, 2, 0.1)
    cleared = options.get("clear_gradients", False)
    for t in range(STEPS):
        for i, (net, its) in enumerate(zip(nets, optimizers, strict=True)):
            its.zero_grad(set_to_none=set_to_none)
            backward(net, i, t)
            if clip:
                torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
        with torch.no_grad():
            for replicas in zip(*(net.parameters() for net in nets), strict=True):
                mean = torch.stack(replicas).double().mean(0)
                for replica in replicas:
                    replica.copy_(mean)
        for its in optimizers:
            its.step()
        if not cleared:
            optimizer.zero_grad(set_to_none=set_to_none)
        backward(mine, rank(), t)
        optimizer.step()
        if decays:
            for each in (*schedulers, scheduler):
                each.step()
    optimizer.close()
    return (flat(mine) - flat(nets[rank()])).abs().max().item(), (flat(mine) - start).abs().max().item()


def plain_backward(net, i, t):
    loss_of(net, 10 * t + i).backward()


def accumulated(net, i, t):
    for part in range(4):
        (loss_of(net, 100 * t + 10 * part + i) / 4).backward()


def clipped(net, i, t):
    plain_backward(net, i, t)
    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)


def autocast(net, i, t):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_of(net, 10 * t + i)
    loss.backward()


def recomputed(net, i, t):
    inputs = batch(10 * t + i)
    error_of(net[2](checkpoint(net[:2], inputs, use_reentrant=False)), inputs).backward()


class Branches(torch.nn.Module):
    """A model of which a worker may use only one part."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.first, self.second, self.never = torch.nn.Linear(6, 2), torch.nn.Linear(6, 2), torch.nn.Linear(6, 2)


def one_branch(net, i, t):
    inputs = batch(10 * t + i)
    error_of((net.second if (i + t) % 3 == 0 else net.first)(inputs), inputs).backward()


def tied():
    torch.manual_seed(5)
    net = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 6), torch.nn.Linear(6, 2))
    net[2].weight = net[0].weight
    return net


def images():
    torch.manual_seed(6)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3))
    return net.to(memory_format=torch.channels_last)


def of_images(net, i, t):
    inputs = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(10 * t + i))
    net(inputs.to(memory_format=torch.channels_last)).square().mean().backward()
    assert net[0].weight.is_contiguous(memory_format=torch.channels_last)


PLAIN = {
    "a learning rate that a scheduler changes": lambda: off_plain_loops(model, plain_backward, decays=True),
    "accumulation": lambda: off_plain_loops(model, accumulated),
    "clipping by the global norm": lambda: off_plain_loops(model, accumulated, clip=0.05),
    "clipping by clip_grad_norm_": lambda: off_plain_loops(model, clipped),
    "clipping by the norm of several blocks": lambda: off_plain_loops(several_blocks, plain_backward, clip=0.05),
    "zero_grad(set_to_none=False)": lambda: off_plain_loops(Branches, one_branch, set_to_none=False),
    "clear_gradients": lambda: off_plain_loops(Branches, one_branch, set_to_none=False, clear_gradients=True),
    "unused parameters": lambda: off_plain_loops(Branches, one_branch),
    "tied parameters": lambda: off_plain_loops(tied, plain_backward),
    "channels_last": lambda: off_plain_loops(images, of_images),
    "activation checkpointing": lambda: off_plain_loops(model, recomputed),
}


def accumulated_under_all_reduce():
    """With no_sync() and without: the same, except for the sent bytes."""
    ends, sent = [], []
    for syncs in (True, False):
        net = model()
        optimizer = starling.AdamW(net.parameters(), lr=0.02, scheme="all-reduce")
        for t in range(STEPS):
            optimizer.zero_grad()
            if syncs:
                (loss_of(net, 10 * t + rank()) / 2).backward()
            else:
                with optimizer.no_sync():
                    with optimizer.no_sync():
                        pass
                    (loss_of(net, 10 * t + rank()) / 2).backward()
            (loss_of(net, 10 * t + 5 + rank()) / 2).backward()
            optimizer.step()
        ends.append(flat(net))
        sent.append(optimizer.statistics()["bytes_sent"])
        optimizer.close()
    return (ends[0] - ends[1]).abs().max().item(), sent[0] / sent[1]


def begun_differently():
    torch.manual_seed(100 + rank())
    net = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4))
    net[1].running_mean.normal_()
    optimizer = starling.SGD(net.parameters(), lr=0.1, buffers=net.buffers())
    optimizer.close()
    return [tensor.tolist() for tensor in net.state_dict().values()]


class Codes(torch.Tensor):
    """Keeps its values in two other tensors, like a quantized weight."""

    @staticmethod
    def __new__(cls, codes, scales):
        made = torch.Tensor._make_wrapper_subclass(cls, codes.shape)
        made.codes, made.scales = codes, scales
        return made

    def __tensor_flatten__(self):
        return ["codes", "scales"], None

    @staticmethod
    def __tensor_unflatten__(inner, _, size, stride):
        return Codes(**inner)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(args[0].codes, args[0].scales)
        raise NotImplementedError(func)


def begun_with_codes():
    """The refusals if they are to be trained, averaged or written; and this worker's values in the
    end."""
    net = torch.nn.Linear(6, 2)
    codes = Codes(torch.full((3,), 7 + rank(), dtype=torch.uint8), torch.full((2,), 0.5 + rank()))
    said = [refusal(starling.SGD, [*net.parameters(), torch.nn.Parameter(codes)]),
            refusal(starling.SGD, net.parameters(), buffers=[codes])]
    net.frozen = torch.nn.Parameter(codes, requires_grad=False)
    optimizer = starling.SGD([net.weight, net.bias], model=net)
    said.append(refusal(optimizer.save_consensus, net, "is-not-written"))
    optimizer.close()
    return said, net.frozen.codes.tolist(), net.frozen.scales.tolist()


def evaluated():
    """With batch norm: by each worker's own model, by the average one, and by the average one with
    statistics of its own. Also the state that evaluation leaves behind."""
    torch.manual_seed(7)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    optimizer = starling.SGD(net.parameters(), lr=0.1, buffers=net.buffers())
    for t in range(STEPS):
        optimizer.zero_grad()
        # So that the workers' statistics differ.
        inputs = batch(10 * t + rank()) * (1 + rank()) + rank()
        error_of(net(inputs), inputs).backward()
        optimizer.step()
    net.eval()
    own = copy.deepcopy(net.state_dict())
    alone = error_of(net(batch(1)), batch(1)).item()
    with optimizer.consensus():
        together = error_of(net(batch(1)), batch(1)).item()
        update_bn([batch(seed) for seed in range(2, 6)], net)
        seen = torch.stack([net[0](batch(seed)) for seed in range(2, 6)])
        recalibrated = error_of(net(batch(1)), batch(1)).item(), (net[1].running_mean - seen.mean((0, 1))).abs().max().item()
    kept = all(torch.equal(tensor, own[name]) for name, tensor in net.state_dict().items())
    optimizer.close()
    return alone, together, recalibrated, kept


def uneven():
    """Workers with different numbers of batches."""
    net = model()
    optimizer = starling.AdamW(net.parameters(), lr=0.02, topology="ring")
    for t in range(5 + 4 * rank()):
        optimizer.zero_grad()
        loss_of(net, 10 * t + rank()).backward()
        optimizer.step()
    with optimizer.consensus() as average:
        inside = flat(net)
    statistics = optimizer.statistics()
    optimizer.close()
    return average.workers, inside.tolist(), average.distance, statistics["lost"]


def skipped():
    """Worker i's gradient is i + 1, and worker 1 skips three steps with `continue`; then all mix
    without gradients. Returns the error of the average relative to the remaining gradients, the
    distance of the workers, and the number of exchanges that this one has begun."""
    net = model()
    start = flat(net)
    optimizer = starling.SGD(net.parameters(), lr=0.01, topology="ring")
    for t in range(18):
        for parameter in net.parameters():
            parameter.grad = torch.full_like(parameter, rank() + 1.0 if t < 8 else 0.0)
        if t in (3, 4, 5) and rank() == 1:
            continue
        optimizer.step()
    with optimizer.consensus() as average:
        moved = flat(net) - start
    rounds = optimizer.statistics()["rounds"]
    optimizer.close()
    return (moved + 0.01 * (8 * 1 + 5 * 2 + 8 * 3) / N).abs().max().item(), average.distance, rounds


def resumed_in_mid_epoch():
    """From a file, with random numbers continuing where they stopped. The largest difference to a
    run that did not stop."""
    data = torch.utils.data.TensorDataset(torch.stack([batch(seed)[0] for seed in range(60)]))
    sampler = torch.utils.data.DistributedSampler(data, N, rank(), seed=3)
    loader = torch.utils.data.DataLoader(data, 4, sampler=sampler)

    def start():
        net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 2))
        return net, ours(net.parameters())

    def go_on(net, optimizer, epoch, first, last):
        sampler.set_epoch(epoch)
        for (inputs,) in itertools.islice(loader, first, last):
            optimizer.zero_grad()
            error_of(net(inputs), inputs).backward()
            optimizer.step()

    ends = []
    for stops in (False, True):
        torch.manual_seed(20 + rank())
        net, optimizer = start()
        go_on(net, optimizer, 0, 0, None)
        go_on(net, optimizer, 1, 0, 3)
        if stops:
            file = io.BytesIO()
            torch.save((net.state_dict(), optimizer.state_dict(), torch.get_rng_state()), file)
            optimizer.close()
            file.seek(0)
            net, optimizer = start()
            weights, state, random = torch.load(file)
            net.load_state_dict(weights)
            optimizer.load_state_dict(state)
            torch.set_rng_state(random)
        go_on(net, optimizer, 1, 3, None)
        ends.append(flat(net))
        optimizer.close()
    return (ends[0] - ends[1]).abs().max().item()


def refused_by_one(make=ours, damage=lambda saved: saved["state"][0].pop("exp_avg_sq")):
    """Worker 1's state is incomplete: each worker's message, whether it keeps its old state, and
    how many then average."""
    net = model()
    optimizer = make(net.parameters())
    train(net, optimizer, 1, seed=rank())
    had = repr(optimizer.state_dict())
    saved = copy.deepcopy(optimizer.state_dict())
    saved["param_groups"][0]["lr"] = 0.5
    saved["state"][1]["exp_avg"] += 1
    if rank() == 1:
        damage(saved)
    said = refusal(optimizer.load_state_dict, saved, kind=(starling.Error, ValueError))
    kept = repr(optimizer.state_dict()) == had
    train(net, optimizer, 1, seed=rank())
    with optimizer.consensus() as scope:
        return said, kept, scope.workers


def refused_by_one_around():
    return refused_by_one(
        lambda parameters: starling.Decentralized(torch.optim.AdamW(parameters, lr=0.01)),
        lambda saved: saved["param_groups"][0]["params"].pop(),
    )


def everything():
    """One start of three processes for all: torch's import is most of it."""
    results = {name: off() for name, off in PLAIN.items()}
    results["autocast"] = off_plain_loops(model, autocast)
    for each in (accumulated_under_all_reduce, begun_differently, begun_with_codes, evaluated, resumed_in_mid_epoch,
                 refused_by_one, refused_by_one_around, uneven, skipped):
        results[each.__name__] = each()
    return results


def compiled():
    # Without vectors: torch would first try each instruction set, in a process of its own.
    torch._inductor.config.cpp.vec_isa_ok = False
    torch._inductor.config.compile_threads = 1
    net = model()
    plain = model()
    fast = torch.compile(net)
    optimizer, its = ours(fast.parameters()), ours(plain.parameters())
    train(fast, optimizer, STEPS, seed=rank())
    train(plain, its, STEPS, seed=rank())
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1, torch._dynamo.utils.counters
    with optimizer.consensus():
        inside = (fast(batch(1)) - net(batch(1))).abs().max().item()
    return (flat(net) - flat(plain)).abs().max().item(), inside, optimizer.statistics()["aborted"]


class Semantics(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.results = workers.run(everything, N)

    def of(self, name):
        return [result[name] for result in self.results]

    def test_plain_loops(self):
        for name in PLAIN:
            with self.subTest(name):
                for off, moved in self.of(name):
                    self.assertLess(off, 1e-5)
                    self.assertGreater(moved, 0.01)

    def test_autocast(self):
        # bfloat16 rounds a difference in the last bit to one of 1/256.
        for off, moved in self.of("autocast"):
            self.assertLess(off, 2e-3)
            self.assertGreater(moved, 0.05)

    def test_accumulation_under_all_reduce_sends_once(self):
        for off, times in self.of("accumulated_under_all_reduce"):
            self.assertLess(off, 1e-6)
            self.assertEqual(times, 2)

    def test_workers_begin_equal(self):
        first, *others = self.of("begun_differently")
        self.assertEqual(others, [first] * 2)

    def test_frozen_codes_begin_equal(self):
        for said, *values in self.of("begun_with_codes"):
            for text, expected in zip(said, ("a parameter is a Codes, which keeps its values in other tensors",
                                             "buffer 0 is a subclass that keeps its values elsewhere",
                                             "save_consensus: frozen is a Codes, "), strict=True):
                self.assertIn(expected, text)
            self.assertEqual(values, [[7] * 3, [0.5] * 2])

    def test_evaluation_of_the_average_is_the_same_everywhere(self):
        alone, together, recalibrated, kept = zip(*self.of("evaluated"), strict=True)
        self.assertEqual(kept, (True,) * N)
        self.assertLess(max(together) - min(together), 1e-6)
        again, off = zip(*recalibrated, strict=True)
        self.assertLess(max(again) - min(again), 1e-6)
        self.assertLess(max(off), 1e-5)
        self.assertNotAlmostEqual(again[0], together[0], 4)
        self.assertGreater(max(alone) - min(alone), 1e-4)

    def test_resumes_in_mid_epoch(self):
        self.assertEqual(self.of("resumed_in_mid_epoch"), [0.0] * N)

    def test_a_state_that_one_worker_cannot_load_is_refused_by_all(self):
        for by, why in (("refused_by_one", 'there is no "exp_avg_sq"'), ("refused_by_one_around", "doesn't match the size")):
            said, kept, took_part = zip(*self.of(by), strict=True)
            self.assertIn(why, said[1])
            for others in (said[0], said[2]):
                self.assertIn("worker 1", others)
            self.assertEqual(kept, (True,) * N)
            self.assertEqual(took_part, (N,) * N)

    def test_uneven_inputs_end(self):
        first, *others = self.of("uneven")
        self.assertTrue(0 < first[2] < 0.2, first[2])
        for result in (first, *others):
            self.assertEqual((result[0], result[3]), (N, []))
            torch.testing.assert_close(torch.tensor(result[1]), torch.tensor(first[1]), rtol=1e-5, atol=1e-6)

    def test_steps_that_are_skipped_cost_their_gradients_alone(self):
        off, distance, rounds = zip(*self.of("skipped"), strict=True)
        self.assertLess(max(off), 1e-6)
        # A worker that no longer mixes stays where its last gradient has moved it.
        self.assertLess(max(distance), 1e-6)
        self.assertLess(rounds[1], rounds[0])


class Compiled(unittest.TestCase):
    @unittest.skipUnless(shutil.which("g++"), "there is no g++, which torch.compile needs")
    def test_torch_compile(self):
        with tempfile.TemporaryDirectory() as folder:
            results = workers.run(compiled, 2, TORCHINDUCTOR_CACHE_DIR=folder)
        for off, inside, aborted in results:
            self.assertLess(off, 1e-5)
            self.assertLess(inside, 1e-5)
            self.assertEqual(aborted, 0)


if __name__ == "__main__":
    workers.main()
