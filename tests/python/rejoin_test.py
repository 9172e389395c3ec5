"""A worker whose process is killed, and started again while the others train."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import workers

WORKER = """
import os, pathlib, sys, torch, starling
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
optimizer = starling.AdamW(net.parameters(), lr=0.01, buffers=net.buffers())
state = optimizer.state_dict()["state"]
print(optimizer.steps, bool(state) and bool(state[0]["exp_avg"].any()), net[1].num_batches_tracked.item(), flush=True)
stop = pathlib.Path(sys.argv[1])  # has the last step, once it is known
while not stop.exists() or optimizer.steps < int(stop.read_text()):
    optimizer.zero_grad()
    generator = torch.Generator().manual_seed(3 * optimizer.steps + int(os.environ["RANK"]))
    x = torch.randn(8, 6, generator=generator)
    (net(x) - x.sum(1, keepdim=True)).pow(2).mean().backward()
    optimizer.step()
with optimizer.consensus() as average:
    print(average.workers, optimizer.statistics()["lost"], flush=True)
"""

# The model makes a new buffer in each step, and is its own record of them.
REPLACING = """
import os, pathlib, sys, torch, starling
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 1)
        self.register_buffer("mean", torch.zeros(()))
    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * (1 + x.detach().mean())
        return self.layer(x)
net = Net()
optimizer = starling.SGD(net.parameters(), lr=0.01, model=net, check_gradients=False)
print(optimizer.steps, net.mean.item(), flush=True)
stop = pathlib.Path(sys.argv[1])
while not stop.exists() or optimizer.steps < int(stop.read_text()):
    optimizer.zero_grad()
    net(torch.zeros(8, 6)).pow(2).mean().backward()
    optimizer.step()
"""

AROUND = """
import torch, starling
net = torch.nn.Linear(2, 2)
try:
    starling.Decentralized(torch.optim.SGD(net.parameters(), lr=0.1))
except starling.UsageError as error:
    print(error)
"""


class Rejoin(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.stop = pathlib.Path(folder.name, "stop")
        self.part = pathlib.Path(folder.name, "part")
        self.places = [*workers.environments(3, {"STARLING_REJOIN": 1})]

    def start(self, rank, text=WORKER):
        process = subprocess.Popen([sys.executable, "-c", text, self.stop], env={**os.environ, **self.places[rank]},
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def restarted(self, text):
        """Three workers, the last of which is killed and started again: they, what each says first,
        and what the newcomer says first."""
        running = [self.start(rank, text) for rank in range(3)]
        began = [process.stdout.readline().split() for process in running]
        running[2].kill()
        running[2].wait()
        running[2] = self.start(2, text)
        return running, began, running[2].stdout.readline().split()

    def end(self, running, step):
        """Lets all train until this step. They must end well. Returns the words of each."""
        self.part.write_text(f"{step}")
        self.part.rename(self.stop)
        ends = []
        for process in running:
            said, warned = process.communicate(timeout=workers.LIMIT)
            self.assertEqual(process.returncode, 0, warned)
            ends.append(said)
        return ends

    def test_it_takes_the_others_state_and_their_step(self):
        running, began, (begins, has_state, batches) = self.restarted(WORKER)
        self.assertEqual(began, [["0", "False", "0"]] * 3)
        self.assertGreater(int(begins), 0)
        self.assertEqual(has_state, "True")
        self.assertGreater(int(batches), 0)  # a buffer
        self.assertEqual(self.end(running, int(begins) + 3000), ["3 []\n"] * 3)

    def test_it_takes_the_buffers_that_the_model_has_now(self):
        running, began, (begins, mean) = self.restarted(REPLACING)
        self.assertEqual(began, [["0", "0.0"]] * 3)
        self.assertAlmostEqual(float(mean), 1 - 0.9 ** int(begins), delta=1e-5)
        self.end(running, int(begins) + 1000)

    def test_an_optimizer_of_pythons_cannot(self):
        said = self.start(0, AROUND).communicate(timeout=workers.LIMIT)[0]
        self.assertIn("rejoin is not for an optimizer written in Python", said)


if __name__ == "__main__":
    unittest.main()
