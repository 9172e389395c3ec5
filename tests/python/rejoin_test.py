"""A worker whose process is killed, and started again while the others train."""

import os
import pathlib
import signal
import tempfile
import unittest

import torch
import workers

import starling


def train(net, optimizer, inputs):
    """Until the step that the file STOP has, once it is there."""
    stop = pathlib.Path(os.environ["STOP"])
    while not stop.exists() or optimizer.steps < int(stop.read_text()):
        optimizer.zero_grad()
        x = inputs(optimizer.steps)
        (net(x) - x.sum(1, keepdim=True)).pow(2).mean().backward()
        optimizer.step()


def worker():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    optimizer = starling.AdamW(net.parameters(), lr=0.01, buffers=net.buffers())
    state = optimizer.state_dict()["state"]
    print(optimizer.steps, bool(state) and bool(state[0]["exp_avg"].any()), net[1].num_batches_tracked.item(), flush=True)
    own = int(os.environ["RANK"])
    train(net, optimizer, lambda step: torch.randn(8, 6, generator=torch.Generator().manual_seed(3 * step + own)))
    with optimizer.consensus() as average:
        return average.workers, optimizer.statistics()["lost"]


class Replacing(torch.nn.Module):
    """Makes a new buffer in each step, and is its own record of them."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 1)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * (1 + x.detach().mean())
        return self.layer(x)


def replacing():
    net = Replacing()
    optimizer = starling.SGD(net.parameters(), lr=0.01, model=net, check_gradients=False)
    print(optimizer.steps, net.mean.item(), flush=True)
    train(net, optimizer, lambda step: torch.zeros(8, 6))


def around():
    net = torch.nn.Linear(2, 2)
    try:
        starling.Decentralized(torch.optim.SGD(net.parameters(), lr=0.1))
    except starling.UsageError as error:
        return str(error)


class Rejoin(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.stop = pathlib.Path(self.folder, "stop")
        self.places = [*workers.environments(3, {"STARLING_REJOIN": 1, "STOP": self.stop})]

    def start(self, function, rank, name=None):
        return workers.Worker(function, self.places[rank], f"{self.folder}/{name or rank}")

    def restarted(self, function):
        """Three workers, the last of which is killed and started again: they, what each says first,
        and what the newcomer says first."""
        running = [self.start(function, rank) for rank in range(3)]
        began = [each.first_line().split() for each in running]
        self.assertEqual(running[2].kill(), -signal.SIGKILL)
        running[2] = self.start(function, 2, "newcomer")
        return running, began, running[2].first_line().split()

    def end(self, running, step):
        """Lets all train until this step. They must end well. Returns the result of each."""
        part = pathlib.Path(self.folder, "part")
        part.write_text(f"{step}")
        part.rename(self.stop)
        codes = [each.wait() for each in running]
        self.assertEqual(codes, [0] * 3, [each.said() for each in running])
        return [each.result() for each in running]

    def test_it_takes_the_others_state_and_their_step(self):
        running, began, (begins, has_state, batches) = self.restarted(worker)
        self.assertEqual(began, [["0", "False", "0"]] * 3)
        self.assertGreater(int(begins), 0)
        self.assertEqual(has_state, "True")
        self.assertGreater(int(batches), 0)  # a buffer
        self.assertEqual(self.end(running, int(begins) + 1000), [[3, []]] * 3)

    def test_it_takes_the_buffers_that_the_model_has_now(self):
        running, began, (begins, mean) = self.restarted(replacing)
        self.assertEqual(began, [["0", "0.0"]] * 3)
        # The others have trained on while it came: its state may be of an earlier step.
        self.assertLess(min(abs(float(mean) - (1 - 0.9**step)) for step in range(1, int(begins) + 1)), 1e-5)
        self.end(running, int(begins) + 1000)

    def test_a_worker_may_come_later(self):
        for place in self.places:
            place["STARLING_INITIAL_SIZE"] = "2"
        running = [self.start(worker, rank) for rank in range(2)]
        began = [each.first_line().split() for each in running]
        self.assertEqual(began, [["0", "False", "0"]] * 2)
        running.append(self.start(worker, 2))
        begins = int(running[2].first_line().split()[0])
        self.assertEqual(self.end(running, begins + 1000), [[3, []]] * 3)

    def test_an_optimizer_of_pythons_cannot(self):
        alone = self.start(around, 0)
        self.assertEqual(alone.wait(), 0, alone.said())
        self.assertIn("rejoin is not for an optimizer written in Python", alone.result())


if __name__ == "__main__":
    workers.main()
