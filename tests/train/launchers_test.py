"""Trains three workers that mpirun and mpiexec start, for real. Their paths are in the environment variables MPIRUN and
MPIEXEC, the built command's in STARLING. What srun does is shown by scripts/try-slurm."""

import json
import os
import pathlib
import socket
import subprocess
import tempfile
import unittest
import uuid

from train_test import environment, write_images

STEPS = 12


def there(name):
    return os.access(os.environ.get(name, ""), os.X_OK)


def processes_with(mark):
    """Ids of the processes that were started with this in their environment, dead ones left out."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except (OSError, PermissionError):
            pass
    return found


class Launchers(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="starling-launchers-")
        self.addCleanup(self.folder.cleanup)
        self.out = pathlib.Path(self.folder.name) / "out"
        self.recipe = pathlib.Path(self.folder.name) / "recipe.toml"
        self.recipe.write_text(f"""
[run]
steps = {STEPS}
[data]
dir = "{self.folder.name}"
flip = false
[model]
width = 4
[train]
batch = 16
[log]
every = 1
""")
        write_images(pathlib.Path(self.folder.name), "train", 480, 1)
        write_images(pathlib.Path(self.folder.name), "t10k", 100, 2)

    def run_it(self, launcher, *arguments, **changed):
        """What became of `LAUNCHER starling train`; none of its processes may be left."""
        mark = str(uuid.uuid4())
        done = subprocess.run([*launcher, os.environ["STARLING"], "train", self.recipe, "--out", self.out, *arguments],
                              env=environment(STARLING_TEST=mark, OMP_NUM_THREADS="1", **changed),
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
        self.assertEqual(processes_with(mark), [])
        return done

    def check_three_workers(self, done):
        self.assertEqual(done.returncode, 0, done.stderr)
        summary = json.loads((self.out / "summary.json").read_text())
        self.assertEqual(json.loads(done.stdout), summary)
        self.assertEqual((summary["workers"], summary["workers_lost"], summary["steps"]), (3, 0, STEPS))
        self.assertEqual(summary["samples"], 3 * 16 * STEPS)
        self.assertGreater(summary["bytes_sent_per_worker"], 0)
        records = [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual(sorted((record["rank"], record["step"]) for record in records),
                         [(rank, step) for rank in range(3) for step in range(1, STEPS + 1)])
        return summary

    # Without --mca plm isolated it asks for ssh, which is not needed on one host.
    def mpirun(self, workers):
        return [os.environ["MPIRUN"], "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "plm",
                "isolated", "--timeout", "250", "-n", str(workers)]

    @unittest.skipUnless(there("MPIRUN"), "there is no mpirun of Open MPI")
    def test_mpirun(self):
        summary = self.check_three_workers(self.run_it(self.mpirun(3), "--json"))
        self.assertGreater(summary["consensus_distance"], 0)
        self.assertLess(summary["consensus_distance"], 0.05)

    @unittest.skipUnless(there("MPIRUN"), "there is no mpirun of Open MPI")
    def test_mpirun_with_an_all_reduce_keeps_workers_equal(self):
        summary = self.check_three_workers(self.run_it(self.mpirun(3), "--json", "--mixing.scheme", "all-reduce"))
        self.assertEqual(summary["consensus_distance"], 0)

    @unittest.skipUnless(there("MPIRUN"), "there is no mpirun of Open MPI")
    def test_a_taken_port_ends_all(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            done = self.run_it(self.mpirun(2), MASTER_PORT=str(port))
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, f"starling: cannot listen at 127.0.0.1 port {port}: Address already in use: .*"
                         "MASTER_PORT")

    @unittest.skipUnless(there("MPIRUN"), "there is no mpirun of Open MPI")
    def test_two_launchers_at_once_are_refused(self):
        done = self.run_it(self.mpirun(2), "--workers", "2")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("starling: train: --workers in each of the 2 processes that mpirun has started", done.stderr)

    # MPICH's; Debian's Open MPI has a command of this name as well.
    @unittest.skipUnless(there("MPIEXEC"), "there is no mpiexec.hydra")
    def test_mpiexec(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.check_three_workers(self.run_it([os.environ["MPIEXEC"], "-n", "3"], "--json", MASTER_PORT=str(port)))
        done = self.run_it([os.environ["MPIEXEC"], "-n", "2"])
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("MASTER_PORT", done.stderr)


if __name__ == "__main__":
    unittest.main()
