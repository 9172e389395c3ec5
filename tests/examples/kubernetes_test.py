"""The objects of examples/launch/kubernetes/: Kubernetes knows each, and its two pods train
together. The pods are two torchruns on this machine, with the variables that Kubernetes sets. The
built command is in the environment variable STARLING, torchrun in TORCHRUN."""

import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import unittest

import yaml
from kubeflow_trainer_api import models

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "train"))
from launchers_test import outer_address  # noqa: E402
from runs import Images, environment  # noqa: E402

PODS, WORKERS, STEPS = 2, 2, 6  # workers of each pod: fewer than in the files
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


class Kubernetes(Images):
    train_images, test_images = 320, 100
    recipe_text = f"[run]\nsteps = {STEPS}\nthreads = 1\n[train]\nbatch = 16\n"

    def test_all_objects_are_what_kubernetes_knows(self):
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

    def train(self, command, variables_of):
        """Runs the pods' command with the variables of each."""
        token = self.folder / "token"
        if not token.exists():
            token.write_text("a secret of these tests")
            token.chmod(0o400)
        here = {"torchrun": os.environ["TORCHRUN"], "starling": os.environ["STARLING"],
                "recipes/fashion-mnist.toml": str(self.recipe), "/tmp/out": str(self.out)}
        pods = []
        for pod in range(PODS):
            variables = variables_of(pod)
            words = [with_variables(here.get(word, word), variables) for word in command]
            pods.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                         text=True, cwd=self.folder,
                                         env=environment(STARLING_TOKEN_FILE=str(token), OMP_NUM_THREADS="1",
                                                         **variables)))
        said = [pod.communicate(timeout=200) for pod in pods]
        self.assertEqual([pod.returncode for pod in pods], [0] * PODS, said)
        summary = json.loads(said[0][0])
        self.assertEqual((summary["workers"], summary["workers_lost"], summary["steps"]), (PODS * WORKERS, 0, STEPS))
        self.assertEqual(said[1][0], "")

    def free_port(self):
        with socket.create_server((outer_address(), 0)) as free:
            return free.getsockname()[1]

    @unittest.skipUnless(outer_address(), "there is no network but loopback")
    def test_pods_of_a_trainjob_train_together(self):
        runtime, job = objects("trainjob")
        container, volumes = container_of(runtime["spec"]["template"]["spec"]["replicatedJobs"])
        self.check_token(container, volumes)
        self.assertEqual(job["spec"]["runtimeRef"], {"kind": runtime["kind"], "name": runtime["metadata"]["name"]})
        trainer = job["spec"]["trainer"]
        self.assertEqual(trainer["numNodes"], PODS)
        port = self.free_port()
        self.train(trainer["command"] + trainer["args"], lambda pod: {
            "PET_NNODES": str(PODS), "PET_NPROC_PER_NODE": str(WORKERS), "PET_NODE_RANK": str(pod),
            "PET_MASTER_ADDR": outer_address(), "PET_MASTER_PORT": str(port)})

    @unittest.skipUnless(outer_address(), "there is no network but loopback")
    def test_pods_of_a_jobset_train_together(self):
        jobset, = objects("jobset")
        job, = jobset["spec"]["replicatedJobs"]
        container, volumes = container_of([job])
        self.check_token(container, volumes)
        self.assertEqual(job["template"]["spec"]["completions"], PODS)
        first = f"{jobset['metadata']['name']}-{job['name']}-0-0.{jobset['metadata']['name']}"
        port, = (port["containerPort"] for port in container["ports"])
        changed = {"--nproc-per-node=4": f"--nproc-per-node={WORKERS}",
                   f"--master-addr={first}": f"--master-addr={outer_address()}",
                   f"--master-port={port}": f"--master-port={self.free_port()}"}
        command = container["command"] + container["args"]
        self.assertLessEqual(set(changed), set(command))
        self.train([changed.get(word, word) for word in command], lambda pod: {"JOB_COMPLETION_INDEX": str(pod)})


if __name__ == "__main__":
    unittest.main()
