"""The files of examples/launch/. Kubernetes knows the objects, and each engine's two nodes train
together: two torchruns on this machine, with the variables that the engine sets. The built command
is in the environment variable STARLING, torchrun in TORCHRUN."""

import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

import yaml
from kubeflow_trainer_api import models

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "train"))
from launchers_test import outer_address  # noqa: E402
from runs import Images, environment, free_port  # noqa: E402

NODES, WORKERS, STEPS = 2, 2, 6  # workers of each node: fewer than in the files
KINDS = {
    "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
    "TrainJob": models.TrainerV1alpha1TrainJob,
    "JobSet": models.JobsetV1alpha2JobSet,
}


def objects(name):
    return list(yaml.safe_load_all((ROOT / f"examples/launch/kubernetes/{name}.yaml").read_text()))


def container_of(jobs):
    """The container and the volumes of the only job's pods."""
    job, = jobs
    pod = job["template"]["spec"]["template"]["spec"]
    container, = pod["containers"]
    return container, pod["volumes"]


def with_variables(word, variables):
    """The word as Kubernetes gives it to the process: $(NAME) is that variable."""
    return re.sub(r"\$\((\w+)\)", lambda name: variables[name[1]], word)


class Launch(Images):
    train_images, test_images = 320, 100
    recipe_text = f"[run]\nsteps = {STEPS}\nthreads = 1\n[train]\nbatch = 16\n"

    def test_kubernetes_knows_all_objects(self):
        for path in sorted((ROOT / "examples/launch/kubernetes").glob("*.yaml")):
            for given in objects(path.stem):
                with self.subTest(file=path.name, kind=given["kind"]):
                    # Keys that the kind does not have are left out.
                    self.assertEqual(KINDS[given["kind"]].from_dict(given).to_dict(), given)

    def check_token(self, container, volumes):
        volume, = volumes
        mount, = container["volumeMounts"]
        self.assertEqual(mount["name"], volume["name"])
        self.assertEqual(volume["secret"]["defaultMode"], 0o400)
        self.assertEqual(container["env"], [{"name": "STARLING_TOKEN_FILE", "value": f"{mount['mountPath']}/token"}])

    def train(self, command_of):
        """Runs the command of each node, as (words, variables)."""
        token = self.folder / "token"
        if not token.exists():
            token.write_text("a secret of these tests")
            token.chmod(0o400)
        nodes = []
        for node in range(NODES):
            words, variables = command_of(node)
            nodes.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                          text=True, cwd=self.folder,
                                          env=environment(STARLING_TOKEN_FILE=str(token), OMP_NUM_THREADS="1",
                                                          **variables)))
        said = [node.communicate(timeout=200) for node in nodes]
        self.assertEqual([node.returncode for node in nodes], [0] * NODES, said)
        summary = json.loads(said[0][0])
        self.assertEqual((summary["workers"], summary["workers_lost"], summary["steps"]), (NODES * WORKERS, 0, STEPS))
        self.assertEqual(said[1][0], "")

    def train_pods(self, command, variables_of):
        """Runs the pods' command with the variables of each, as Kubernetes does."""
        here = {"torchrun": os.environ["TORCHRUN"], "starling": os.environ["STARLING"],
                "recipes/fashion-mnist.toml": str(self.recipe), "/tmp/out": str(self.out)}
        words = [here.get(word, word) for word in command]
        self.train(lambda pod: ([with_variables(word, variables_of(pod)) for word in words], variables_of(pod)))

    @unittest.skipUnless(outer_address(), "there is no network but loopback")
    def test_pods_of_a_trainjob_train_together(self):
        runtime, job = objects("trainjob")
        container, volumes = container_of(runtime["spec"]["template"]["spec"]["replicatedJobs"])
        self.check_token(container, volumes)
        self.assertEqual(job["spec"]["runtimeRef"], {"kind": runtime["kind"], "name": runtime["metadata"]["name"]})
        trainer = job["spec"]["trainer"]
        self.assertEqual(trainer["numNodes"], NODES)
        port = free_port(outer_address())
        self.train_pods(trainer["command"] + trainer["args"], lambda pod: {
            "PET_NNODES": str(NODES), "PET_NPROC_PER_NODE": str(WORKERS), "PET_NODE_RANK": str(pod),
            "PET_MASTER_ADDR": outer_address(), "PET_MASTER_PORT": str(port)})

    @unittest.skipUnless(outer_address(), "there is no network but loopback")
    def test_pods_of_a_jobset_train_together(self):
        jobset, = objects("jobset")
        job, = jobset["spec"]["replicatedJobs"]
        container, volumes = container_of([job])
        self.check_token(container, volumes)
        self.assertEqual(job["template"]["spec"]["completions"], NODES)
        first = f"{jobset['metadata']['name']}-{job['name']}-0-0.{jobset['metadata']['name']}"
        port, = (port["containerPort"] for port in container["ports"])
        changed = {"--nproc-per-node=4": f"--nproc-per-node={WORKERS}",
                   f"--master-addr={first}": f"--master-addr={outer_address()}",
                   f"--master-port={port}": f"--master-port={free_port(outer_address())}"}
        command = container["command"] + container["args"]
        self.assertLessEqual(set(changed), set(command))
        self.train_pods([changed.get(word, word) for word in command], lambda pod: {"JOB_COMPLETION_INDEX": str(pod)})

    @unittest.skipUnless(outer_address(), "there is no network but loopback")
    def test_nodes_of_skypilot_train_together(self):
        text = (ROOT / "examples/launch/skypilot.yaml").read_text()
        task = yaml.safe_load(text)
        self.assertRegex(text, r"--secret STARLING_TOKEN\n", "a value among the arguments is seen in lists of processes")
        self.assertEqual((task["num_nodes"], task["secrets"]), (NODES, {"STARLING_TOKEN": None}))
        # A folder that looks as `setup` leaves it.
        commands = self.folder / ".venv/bin"
        commands.mkdir(parents=True)
        for name in ("torchrun", "starling"):
            (commands / name).symlink_to(os.environ[name.upper()])
        (self.folder / "recipes").mkdir()
        (self.folder / "recipes/fashion-mnist.toml").write_text(self.recipe.read_text())
        port = f"--master-port={free_port(outer_address())}"
        self.assertIn("--master-port=29500", task["run"])
        run = task["run"].replace("--master-port=29500", port)
        self.train(lambda node: (["bash", "-c", run], {
            **task["envs"], "WORKERS": str(WORKERS), "SKYPILOT_NUM_NODES": str(NODES), "SKYPILOT_NODE_RANK": str(node),
            "SKYPILOT_NODE_IPS": f"{outer_address()}\n{outer_address()}"}))
