"""Runs what examples/python/ has, as its users do: under torchrun, and the notebook by nbconvert. Without network."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent.parent / "examples/python"
LIMIT = 240  # seconds: a hang is a failure


def run(folder, *command, **more):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "NO_COLOR": "1", **more}
    process = subprocess.Popen(
        [sys.executable, "-m", *map(str, command)], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)  # fmt: skip
    try:
        said = process.communicate(timeout=LIMIT)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # torchrun's workers too
        raise AssertionError(f"{command}: not done after {LIMIT} s:\n{process.communicate()[0]}") from None
    if process.returncode != 0:
        raise AssertionError(f"{command}: exit code {process.returncode}:\n{said}")
    return said


class Examples(unittest.TestCase):
    def example(self, name):
        with tempfile.TemporaryDirectory() as folder:
            said = run(folder, "torch.distributed.run", "--standalone", "--nproc-per-node", 2, EXAMPLES / name)
            written = [file.name for file in pathlib.Path(folder).rglob("*.safetensors")]
        loss, distance = re.search(r"^average of 2: loss (\S+), distance (\S+)$", said, re.MULTILINE).groups()
        self.assertLess(float(loss), 1.5)  # log 24 = 3.2 knows nothing
        self.assertGreater(float(distance), 0)  # nobody averages the gradients
        return written

    def test_trainer(self):
        self.assertEqual(self.example("with_trainer.py"), ["model.safetensors"])

    def test_accelerate(self):
        self.assertEqual(self.example("with_accelerate.py"), ["model.safetensors"])

    def test_lightning(self):
        self.example("with_lightning.py")

    def test_notebook(self):
        with tempfile.TemporaryDirectory() as folder:
            command = ("--to", "notebook", "--execute", "--output-dir", folder, EXAMPLES / "topologies.ipynb")
            run(folder, "nbconvert", *command, IPYTHONDIR=folder, MPLCONFIGDIR=folder, JUPYTER_RUNTIME_DIR=folder)
            notebook = json.loads(pathlib.Path(folder, "topologies.ipynb").read_text())
        outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
        self.assertEqual(sum("image/png" in output.get("data", ()) for output in outputs), 1)
        said = "".join("".join(output.get("text", ())) for output in outputs)
        distances = [float(distance) for distance in re.findall(r"distance ([\d.]+)", said)]
        self.assertEqual(len(distances), 3, said)
        self.assertEqual(distances, sorted(distances, reverse=True), said)  # ring, base-2, complete


if __name__ == "__main__":
    unittest.main()
