"""A worker's identity from each launcher's variables; and averages without an optimizer."""

import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import torch
import workers
from learning import model, rank, refusal

import starling

SLURM = {"RANK": None, "WORLD_SIZE": None, "LOCAL_RANK": None, "LOCAL_WORLD_SIZE": None, "SLURM_PROCID": lambda rank: rank,
         "SLURM_STEP_NUM_TASKS": 3, "SLURM_NTASKS": 3, "SLURM_STEP_TASKS_PER_NODE": "3", "SLURM_NODEID": 0,
         "SLURM_LOCALID": lambda rank: rank, "SLURM_STEP_NODELIST": "here", "SLURM_JOB_ID": 7, "SLURM_STEP_ID": 0}


def place():
    world = starling.init()
    total = torch.tensor([float(world.rank)])
    starling.average([total])
    return [world.rank, world.size, world.local_rank, world.local_size, total.item()]


def averages():
    torch.manual_seed(rank())
    net = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Conv2d(2, 2, 3))
    net[2].to(memory_format=torch.channels_last)
    with torch.no_grad():
        net[1].running_mean.normal_()
    net[1].num_batches_tracked += rank()
    own = {name: tensor.tolist() for name, tensor in net.state_dict().items()}
    count = starling.average(net)
    seen = {"bf16": torch.full((3, 2), 1.0 + rank(), dtype=torch.bfloat16), "any": torch.tensor([rank() == 1, False]),
            "double": torch.tensor(float(rank()), dtype=torch.float64), "slice": torch.full((2, 4), float(rank()))[:, 1:3],
            "nothing": torch.empty(0), "mask": torch.tensor([1.0, -torch.inf]),
            "turn": torch.polar(torch.ones(1), torch.tensor([0.1 * (rank() - 1)]))}
    starling.average(tensor for tensor in seen.values())
    seen["turn"] = torch.view_as_real(seen["turn"]).round(decimals=5)
    again = {name: tensor.tolist() for name, tensor in net.state_dict().items()}
    return count, own, again, {name: tensor.tolist() for name, tensor in seen.items()}


def averages_over_groups():
    """Beside an optimizer that goes on, over a pair of the workers and over a mesh."""
    torch.distributed.init_process_group("gloo")
    net = model()
    optimizer = starling.SGD(net.parameters(), lr=0.1)
    pair = torch.distributed.new_group([0, 2])
    tensor = torch.tensor([1.0 + rank()])
    count = starling.average([tensor], pair) if rank() != 1 else refusal(starling.average, [tensor], pair)
    optimizer.step()
    mesh = torch.distributed.init_device_mesh("cpu", (3,), mesh_dim_names=("replicate",))
    whole = torch.tensor([1.0 + rank()])
    starling.average([whole], mesh)
    assert starling.init().size == 3  # not the pair's
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return count, tensor.item(), whole.item()


def init_comes_first():
    """init_process_group() at the same address, whose store exists already."""
    starling.init()
    torch.distributed.init_process_group("gloo")
    total = torch.tensor([1.0 + rank()])
    torch.distributed.all_reduce(total)
    mean = torch.tensor([1.0 + rank()])
    starling.average([mean])
    torch.distributed.destroy_process_group()
    starling.average([mean])  # the store has not gone with it
    return total.item(), mean.item()


def alone_before_the_group():
    """init() without a launcher is a world of one; the default group that comes later is larger."""
    assert starling.init().size == 1
    place = os.environ["FOLDER"]
    torch.distributed.init_process_group("gloo", init_method=f"file://{place}/store", rank=int(os.environ["OF"]), world_size=3)
    world = starling.init()
    assert starling.init() is world
    mean = torch.tensor([1.0 + world.rank])
    starling.average([mean])
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return world.size, mean.item()


def what_differs():
    return [refusal(starling.average, tensors)
            for tensors in ([torch.zeros(3 + rank())], [torch.zeros(2)] * (1 + rank() // 2), [torch.zeros(2).to_sparse()])]


PLACES = [[rank, 3, rank, 3, 1.0] for rank in range(3)]


class Launchers(unittest.TestCase):
    """Each starts three processes that import torch: `make test` leaves them out."""

    def launch(self, *launcher):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([*launcher, sys.executable, __file__, "--place", folder], stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=workers.LIMIT)
            self.assertEqual(done.returncode, 0, done.stderr)
            places = [json.loads(file.read_text()) for file in pathlib.Path(folder).iterdir()]
        self.assertEqual(sorted(places), PLACES)

    def test_torchrun(self):
        self.launch(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3",
                    "--no-python")

    @unittest.skipUnless(shutil.which("mpirun"), "there is no mpirun")
    def test_mpirun(self):
        self.launch("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "plm", "isolated",
                    "-n", "3")


class Variables(unittest.TestCase):
    def test_srun(self):
        self.assertEqual(sorted(workers.run(place, 3, **SLURM)), PLACES)

    def test_alone(self):
        self.assertEqual(workers.run(place, 1, RANK=None, WORLD_SIZE=None, LOCAL_RANK=None, LOCAL_WORLD_SIZE=None,
                                     MASTER_ADDR=None, MASTER_PORT=None), [[0, 1, 0, 1, 0.0]])


class Averages(unittest.TestCase):
    def test_of_a_module_and_of_tensors(self):
        results = workers.run(averages, 3)
        for count, own, average, seen in results:
            self.assertEqual(count, 3)
            for name in own:
                values = torch.tensor([other[name] for _, other, *_ in results], dtype=torch.float64)
                expected = values.amax(0) if name == "1.num_batches_tracked" else values.mean(0)
                torch.testing.assert_close(torch.tensor(average[name], dtype=torch.float64), expected, rtol=1e-6, atol=1e-6)
            self.assertEqual(seen, {"bf16": [[2.0, 2.0]] * 3, "any": [True, False], "double": 1.0,
                                    "slice": [[1.0, 1.0]] * 2, "nothing": [], "mask": [1.0, -torch.inf],
                                    "turn": [[torch.tensor((1 + 2 * math.cos(0.1)) / 3).round(decimals=5).item(), 0.0]]})

    def test_over_a_process_group_and_a_mesh(self):
        self.assertEqual(workers.run(averages_over_groups, 3), [
            [2, 2.0, 2.0], ["process_group: this worker is not a member of it: only its members may use it", 2.0, 2.0],
            [2, 2.0, 2.0]])

    def test_a_process_group_may_come_later(self):
        self.assertEqual(workers.run(init_comes_first, 3), [[6.0, 2.0]] * 3)

    def test_a_world_of_one_yields_to_a_process_group(self):
        nobody = dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
        with tempfile.TemporaryDirectory() as folder:
            results = workers.run(alone_before_the_group, 3, FOLDER=folder, OF=lambda rank: rank, **nobody)
        self.assertEqual(results, [[3, 2.0]] * 3)

    def test_what_differs_is_refused_everywhere(self):
        for refused in workers.run(what_differs, 3):
            self.assertEqual(len(refused), 3, refused)
            self.assertIn("the workers differ in tensor 0: Float 3 at worker 0, Float 4 at worker 1", refused[0])
            self.assertIn("number of tensors: 1 at worker 0, 2 at worker 2", refused[1])
            self.assertIn("tensor 0 is sparse: to be averaged it must be dense", refused[2])

    def test_a_timeout_that_is_none(self):
        for timeout in (0, -1, math.nan, math.inf):
            self.assertEqual(refusal(starling.World.from_environment, timeout),
                             f"timeout = {timeout:g} is not allowed: it must be above 0 and at most 1000000 s")

    def test_a_group_that_is_none(self):
        with self.assertRaisesRegex(TypeError, "'gloo' is neither a ProcessGroup nor a DeviceMesh"):
            starling.average([torch.zeros(1)], "gloo")


if __name__ == "__main__":
    if "--place" in sys.argv:
        here = place()
        pathlib.Path(sys.argv[-1], str(here[0])).write_text(json.dumps(here))
    else:
        workers.main()
