"""Trains and probes with three workers that mpirun and mpiexec really start. Their paths are in the
environment variables MPIRUN and MPIEXEC, torchrun's in TORCHRUN, the built command's in STARLING.
scripts/try-slurm tests srun."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import time
import unittest
import uuid

from runs import Images, environment, free_port

STEPS = 12
ELASTIC = pathlib.Path(__file__).resolve().parent.parent.parent / "examples" / "launch" / "torchrun" / "elastic.sh"


def there(name):
    return os.access(os.environ.get(name, ""), os.X_OK)


def outer_address():
    """This machine's address in the network, or an empty text."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as toward:
        try:
            toward.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return ""
        address = toward.getsockname()[0]
    return "" if address.startswith("127.") else address


def processes_with(mark):
    """Ids of the living processes that were started with this in their environment."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except (OSError, PermissionError):
            pass
    return found


def parent_of(process):
    """Its parent's id; 0 if it has ended."""
    try:
        return int(pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def await_that(holds, what, seconds=120):
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(0.05)


class Launchers(Images):
    train_images, test_images = 480, 100
    recipe_text = f"""
[run]
steps = {STEPS}
threads = 1
[optimizer]
rule = "adam"
lr = 0.01
[train]
batch = 16
[log]
every = 1
"""

    def starling(self, launcher, *arguments, **changed):
        """The result of `LAUNCHER starling ARGUMENTS`; none of its processes may be left."""
        mark = str(uuid.uuid4())
        done = subprocess.run([*launcher, os.environ["STARLING"], *arguments],
                              env=environment(STARLING_TEST=mark, **changed),
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
        self.assertEqual(processes_with(mark), [])
        return done

    def run_it(self, launcher, *arguments, **changed):
        return self.starling(launcher, "train", self.recipe, "--out", self.out, *arguments, **changed)

    def check_probe(self, launcher, **changed):
        network = self.folder / "network.json"
        network.unlink(missing_ok=True)
        done = self.starling(launcher, "probe", "--seconds", "0.2", "--out", network, **changed)
        self.assertEqual(done.returncode, 0, done.stderr)
        # Only rank 0 prints.
        self.assertEqual(done.stdout.count("3 workers on 1 host, measured in "), 1)
        host, = json.loads(network.read_text())["hosts"]
        self.assertEqual(host["workers"], [0, 1, 2])

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

    # 0.0002; it is 0.004 if a third of the exchanges is left out.
    def check_they_agree(self, summary):
        self.assertGreater(summary["consensus_distance"], 0)
        self.assertLess(summary["consensus_distance"], 0.001)

    # It asks for ssh even if it does not need it.
    def mpirun(self, workers, *arguments):
        return [os.environ["MPIRUN"], "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--timeout", "250",
                *(arguments or ("--mca", "plm", "isolated")), "-n", str(workers)]

    @unittest.skipUnless(there("MPIRUN"), "there is no mpirun of Open MPI")
    def test_mpirun(self):
        self.check_they_agree(self.check_three_workers(self.run_it(self.mpirun(3), "--json")))
        self.check_probe(self.mpirun(3))

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

    def test_two_launchers_at_once_are_refused(self):
        two = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
               "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "1"}
        done = self.run_it([], "--workers", "2", **two)
        self.assertEqual((done.returncode, done.stderr), (
            2, "starling: train: --workers in each of the 2 processes that mpirun has started: either this command "
            "starts the workers or mpirun does\n"))

    # Two hosts by name, both of them this machine: a script that stays here replaces ssh. Each has
    # a /tmp of its own, because two daemons of Open MPI that make the same folder there disturb
    # each other.
    @unittest.skipUnless(there("MPIRUN") and outer_address(), "there is no mpirun, or no network but loopback")
    def test_mpirun_across_hosts(self):
        agent = self.folder / "agent"
        agent.write_text(f'#!/bin/sh\nexport TMPDIR="{self.folder}/$1"\nmkdir -p "$TMPDIR"\nshift\nexec sh -c "$*"\n')
        agent.chmod(0o700)
        two_hosts = self.mpirun(3, "--mca", "plm_rsh_agent", agent, "-H", "here:1,there:2", "-x", "STARLING_TOKEN",
                                "-x", "MASTER_ADDR")
        refused = self.run_it(two_hosts, STARLING_TOKEN="a secret of 20 bytes", MASTER_ADDR="")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("mpirun does not say on which host rank 0 runs: set MASTER_ADDR", refused.stderr)
        done = self.run_it(two_hosts, "--json", STARLING_TOKEN="a secret of 20 bytes", MASTER_ADDR=outer_address())
        self.check_they_agree(self.check_three_workers(done))

    # A libtorch archive has no torchrun; torch's wheel has.
    @unittest.skipUnless(there("TORCHRUN"), "there is no torchrun")
    def test_torchrun_probes_too(self):  # train_test.py trains with it
        self.check_probe([os.environ["TORCHRUN"], "--no-python", "--nproc-per-node=3", "--standalone"], OMP_NUM_THREADS="1")

    # MPICH's; Debian's Open MPI has a command of this name as well.
    # Two nodes train. One is lost, another one comes.
    @unittest.skipUnless(there("TORCHRUN") and outer_address(), "there is no torchrun, or no network but loopback")
    def test_torchruns_nodes_may_come_and_go(self):
        mark, address, steps = str(uuid.uuid4()), outer_address(), 200
        port = free_port(address)
        path = os.pathsep.join([os.path.dirname(os.environ["STARLING"]), os.environ["PATH"]])
        slow = "data:*:*:sleep=0.2"  # the run must outlast the start of a torchrun

        def node(name):
            with (self.folder / f"{name}.log").open("w") as log:
                return subprocess.Popen(
                    [os.environ["TORCHRUN"], "--no-python", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3",
                     "--monitor-interval=0.1", "--rdzv-backend=c10d", f"--rdzv-endpoint={address}:{port}",
                     f"--local-addr={address}", f"--rdzv-conf=is_host={int(name == 'first')},last_call_timeout=2",
                     ELASTIC, self.recipe, self.out, "--run.steps", str(steps), "--checkpoint-every", "5"],
                    env=environment(STARLING_TEST=mark, STARLING_FAIL=slow, STARLING_TOKEN="a secret of 20 bytes",
                                    TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1", OMP_NUM_THREADS="1", PATH=path),
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log)

        def records():
            lines = (self.out / "metrics.jsonl").read_text().splitlines() if (self.out / "metrics.jsonl").exists() else []
            return [(record["rank"], record["step"]) for record in map(json.loads, lines)]

        first, lost = node("first"), node("lost")
        try:
            await_that(lambda: (self.out / "checkpoints" / "latest").exists(), "a checkpoint of both")
            lost_step = max(step for rank, step in records())
            for process in processes_with(mark):  # the second node, with its worker
                if process == lost.pid or parent_of(process) == lost.pid:
                    os.kill(process, signal.SIGKILL)
            lost.wait()
            await_that(lambda: len({rank for rank, step in records() if step > lost_step + 5}) == 1, "a worker alone")
            came = node("came")
            await_that(lambda: None not in (first.poll(), came.poll()), "the end of both")
        except AssertionError:
            pass  # the logs say more
        finally:
            for process in processes_with(mark):
                os.kill(process, signal.SIGKILL)
        codes = [first.wait(), came.wait()]
        log = "".join((self.folder / f"{name}.log").read_text() for name in ("first", "came"))
        self.assertEqual(codes, [0, 0], log)
        summary = json.loads((self.out / "summary.json").read_text())
        self.assertEqual((summary["workers"], summary["workers_lost"], summary["steps"]), (2, 0, steps), log)

    @unittest.skipUnless(there("MPIEXEC"), "there is no mpiexec.hydra")
    def test_mpiexec(self):
        port = free_port("127.0.0.1")
        self.check_three_workers(self.run_it([os.environ["MPIEXEC"], "-n", "3"], "--json", MASTER_PORT=str(port)))
        self.check_probe([os.environ["MPIEXEC"], "-n", "3"], MASTER_PORT=str(port))
        done = self.run_it([os.environ["MPIEXEC"], "-n", "2"])
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("MASTER_PORT", done.stderr)
