"""Two or three workers that train together: what they learn and agree on, and what is refused."""

import copy
import json
import pathlib
import unittest

import torch
import workers
from learning import OTHERS, RULES, flat, loss_of, model, rank, refusal, train

import starling

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "optim/golden_losses.json"


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


def takes(name, net):
    """torch.optim.Muon takes matrices only."""
    return [p for p in net.parameters() if name != "Muon" or p.ndim == 2]


def around_others():
    """Decentralized over OTHERS beside both workers in plain loops: the distance to these, and
    between workers without mixing."""
    differences = {}
    for name, make in OTHERS.items():
        net = model()
        optimizer = starling.Decentralized(make(takes(name, net)), topology="complete")
        train(net, optimizer, 12, 0, rank())
        ends = []
        for mixes in (True, False):
            nets = [model(), model()]
            inners = [make(takes(name, each)) for each in nets]
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


def means():
    """Parameters and buffer after the step at which all workers take their mean."""
    ends = []
    for make in (lambda p, **o: starling.AdamW(p, lr=0.02, **o),
                 lambda p, **o: starling.Decentralized(torch.optim.AdamW(p, lr=0.02), **o)):
        net = Replacing()
        optimizer = make(net.head.parameters(), model=net, topology="ring", mean_every=3)
        train(net, optimizer, 3, 0, rank())
        ends.append([net.head.weight.flatten().tolist(), net.mean.tolist()])
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


def kept_and_set():
    """The distance of the workers one step without gradient after consensus(keep=True), with what
    of an earlier exchange is in flight; the parameters one such step after all have set theirs to 1
    and begun again; and what a `keep` that differs is refused with."""
    ends = []
    for options in ({"topology": "ring"}, {"scheme": "choco", "one_in": 4, "topology": "ring"},
                    {"scheme": "push-sum", "staleness": 1}):
        net = model()
        optimizer = starling.SGD(net.parameters(), lr=1.0, **options)
        train(net, optimizer, 4, 0, rank())
        with optimizer.consensus(keep=True):
            kept = flat(net)
        optimizer.zero_grad()
        optimizer.step()
        moved, distance = (flat(net) - kept).abs().max().item(), optimizer.consensus_distance()
        train(net, optimizer, 4, 4, rank())
        with torch.no_grad():
            for p in net.parameters():
                p.fill_(1.0)
        optimizer.begin_again()
        optimizer.zero_grad()
        optimizer.step()
        ends.append([moved, distance, (flat(net) - 1).abs().max().item()])
        differs = refusal(optimizer.consensus(keep=rank() == 0).__enter__)
        optimizer.close()
    return ends, differs


class Replacing(torch.nn.Module):
    """Has frozen parameters, and a buffer that forward() replaces."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(rank())
        self.body, self.head = torch.nn.Linear(6, 4).requires_grad_(False), torch.nn.Linear(4, 2)
        self.register_buffer("mean", torch.full((4,), float(rank())))

    def forward(self, inputs):
        hidden = self.body(inputs)
        self.mean = 0.5 * self.mean + rank()
        return self.head(hidden)


def of_a_model():
    """The frozen parameters, the average of the buffer, and this worker's own."""
    ends = []
    for make in (lambda p, **o: starling.AdamW(p, lr=0.02, **o),
                 lambda p, **o: starling.Decentralized(torch.optim.AdamW(p, lr=0.02), **o)):
        net = Replacing()
        optimizer = make([p for p in net.parameters() if p.requires_grad], model=net)
        train(net, optimizer, 3, 0, rank())
        own = net.mean
        with optimizer.consensus():
            mean = net.mean.tolist()
        ends.append([net.body.weight.flatten().tolist(), mean, own.tolist()])
        optimizer.close()
    return ends


def differing_buffers():
    return [
        refusal(starling.AdamW, model().parameters(), buffers=[each.clone() for each in buffers])
        for buffers in ([torch.full((4,), 1.5) if rank() == 0 else torch.ones(4, dtype=torch.int32)],
                        [torch.zeros(2)] * (1 + rank() % 2), [torch.zeros((2, 3) if rank() == 0 else (3, 2))])]


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
    return same, refusal(starling.AdamW, model().parameters(), topology=["ring", "complete"][rank() % 2])


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

    def test_consensus(self):
        results = workers.run(consensus, 3)
        mean = torch.tensor([own for *_, own in results]).mean(0)
        for count, restored, kept, counter, inside, _ in results:
            self.assertEqual((count, restored, kept, counter), (3, True, True, 3))
            torch.testing.assert_close(torch.tensor(inside), mean)

    def test_a_step_after_keep_or_begin_again_starts_from_the_parameters(self):
        for ends, differs in workers.run(kept_and_set, 3):
            for distances in ends:
                self.assertLess(max(distances), 1e-5, ends)
            self.assertIn("keep differs between workers", differs)

    def test_of_a_model_frozen_parameters_begin_equal_and_buffers_are_the_present_ones(self):
        for ends in zip(*workers.run(of_a_model, 3), strict=True):
            for number, (frozen, mean, own) in enumerate(ends):
                self.assertEqual(frozen, ends[0][0])
                self.assertEqual((mean, own), ([1.75] * 4, [1.75 * number] * 4))

    def test_all_are_their_mean_every_so_many_steps(self):
        for ends in zip(*workers.run(means, 3), strict=True):
            for end in ends:
                for value, other in zip(end[0], ends[0][0], strict=True):
                    self.assertAlmostEqual(value, other, places=6)
                self.assertEqual(end[1], [1.75] * 4)

    def test_buffers_that_differ_are_refused_everywhere(self):
        first, *others = workers.run(differing_buffers, 2)
        self.assertEqual(others, [first])
        for said, text in zip(first, ("buffer 0: Float 4 at worker 0, Int 4 at worker 1",
                                      "number of buffers: 1 at worker 0, 2 at worker 1",
                                      "buffer 0: Float 2x3 at worker 0, Float 3x2 at worker 1"), strict=True):
            self.assertIn(f"the workers differ in {text}", said)

    def test_groups_and_what_differs(self):
        for same, message in workers.run(groups, 3):
            self.assertEqual(same, 0)  # rank 0's
            self.assertIn("topology", message)
            self.assertIn("complete", message)

    def test_over_a_process_group(self):
        results = workers.run(over_a_group, 3)
        self.assertEqual([size for _, size in results], [2, 0, 2])
        self.assertTrue(all(0 < distance < 0.1 for distance, _ in results), results)


if __name__ == "__main__":
    workers.main()
