"""scripts/gpu-check without a GPU: all its checks on the CPU with --mock; a check that fails, ends
early, hangs or says nonsense; the time of all; the two files."""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts/gpu"))

import device  # noqa: E402
import running  # noqa: E402
import together  # noqa: E402
from checks import CHECKS, DEVICE  # noqa: E402
from page import page  # noqa: E402

import tests as gtest  # noqa: E402

BUILD = sys.argv.pop(1)
UNHURRIED = ("--minutes", "90")  # the machine may have other work
PASSED = '{"item": "a", "state": "passed"}'


def gpu_check(*arguments, **environment):
    return subprocess.run([sys.executable, ROOT / "scripts/gpu-check", *arguments], env={**os.environ, **environment},
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)


def loaded():
    """The script as a module."""
    loader = importlib.machinery.SourceFileLoader("gpu_check", str(ROOT / "scripts/gpu-check"))
    script = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
    loader.exec_module(script)
    return script


class Folder(unittest.TestCase):
    def setUp(self):
        self.out = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()), "out")

    def result(self):
        return json.loads((self.out / "gpu-check.json").read_text())


class Mock(Folder):
    def test_every_check_passes_on_the_processor(self):
        done = gpu_check("--mock", *UNHURRIED, "--build", BUILD, "--out", self.out)
        result = self.result()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr + json.dumps(result, indent=1))
        self.assertEqual([check["name"] for check in result["checks"]], [check.name for check in CHECKS])
        self.assertEqual((result["passed"], result["ended"], result["mode"]), (True, True, "mock"))
        self.assertEqual(result["machine"]["device"], "cpu")
        for check in result["checks"]:
            self.assertEqual((check["status"], check["exit"], check["why"]), ("passed", 0, ""))
            self.assertLessEqual(check["seconds"], check["limit_s"])
            self.assertIn("passed", [item["state"] for item in check["items"]])
        items = {check["name"]: {item["item"]: item for item in check["items"]} for check in result["checks"]}
        for wire in ("fp32", "bf16", "fp16", "int8", "int4"):
            self.assertEqual(items["bits"][f"cta, {wire}"]["figures"]["off"], 0)
        schemes = {name.split(",")[0] for name in items["bits"]}
        self.assertGreater(len(schemes), 20)
        self.assertGreater(items["update"]["update in fp32"]["figures"]["copy_share"], 0)
        self.assertGreater(items["step"]["ratios of these times"]["figures"]["ddp_over_starling_fp32"], 0)
        html = (self.out / "gpu-check.html").read_text()
        for check in CHECKS:
            self.assertIn(check.title.replace("'", "&#x27;"), html)
        self.assertIn("Its figures say nothing about a GPU", html)
        self.assertNotIn("http", html)
        self.assertEqual(sorted(file.name for file in self.out.iterdir()), ["gpu-check.html", "gpu-check.json"])

    def test_a_check_that_fails_does_not_stop_the_others(self):
        done = gpu_check("--mock", *UNHURRIED, "--build", self.out / "nowhere", "--only", "tests,update", "--out", self.out)
        self.assertEqual(done.returncode, 1, done.stderr)
        checks = {check["name"]: check for check in self.result()["checks"]}
        self.assertEqual(list(checks), ["device", "tests", "update"])
        self.assertEqual({name: check["status"] for name, check in checks.items()},
                         {"device": "failed", "tests": "failed", "update": "failed"})
        self.assertIn("device_test", checks["tests"]["why"])
        self.assertIn("No such file", checks["update"]["why"])
        self.assertIn('<span class="state failed">failed</span>', (self.out / "gpu-check.html").read_text())
        self.assertIn("not all passed", done.stdout)

    def test_a_check_has_no_more_than_the_time_that_is_left(self):
        done = gpu_check("--mock", "--minutes", "0.06", "--build", BUILD, "--out", self.out)
        self.assertEqual(done.returncode, 1, done.stderr)
        result = self.result()
        self.assertLessEqual({check["status"] for check in result["checks"]}, {"out of time", "not run"})
        self.assertIn("minutes were used up", result["checks"][-1]["why"])
        self.assertEqual((result["passed"], result["ended"]), (False, True))

    def test_one_that_is_ended_leaves_what_it_has(self):
        command = [sys.executable, ROOT / "scripts/gpu-check", "--mock", *UNHURRIED, "--only", "bits", "--build", BUILD]

        def unignored():
            signal.signal(signal.SIGHUP, signal.SIG_DFL)

        for number in (signal.SIGTERM, signal.SIGHUP):  # by hand, and as the end of a connection
            with self.subTest(number.name), subprocess.Popen(
                    [*command, "--out", self.out], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                    text=True, preexec_fn=unignored) as process:
                self.assertIn("device", process.stdout.readline())
                self.assertIn(f"{self.out}/gpu-check.html has the results so far", process.stdout.readline())
                while self.result()["checks"][1]["status"] != "running":
                    self.assertIsNone(process.poll())
                    time.sleep(0.02)
                process.send_signal(number)
                _, said = process.communicate()
                self.assertEqual((process.returncode, said), (1, "gpu-check: interrupted: what was finished is in the files\n"))
                result = self.result()
                self.assertEqual([check["status"] for check in result["checks"]], ["passed", "interrupted"])
                self.assertIn("interrupted, with ", result["checks"][1]["why"])
                self.assertIn("interrupted", (self.out / "gpu-check.html").read_text())
                self.assertFalse(result["ended"])


class Refusals(Folder):
    def test_without_a_gpu_one_line_says_so_and_nothing_is_written(self):
        done = gpu_check("--build", BUILD, "--out", self.out, CUDA_VISIBLE_DEVICES="")
        self.assertEqual((done.returncode, done.stdout), (3, ""), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertRegex(done.stderr, r"sees no CUDA device \(.*\): run this on a machine with an NVIDIA GPU, in a container "
                         "that may use it, or run this with --mock|is built for the CPU only: .*, or run this with --mock")
        self.assertFalse(self.out.exists())

    def test_a_folder_that_cannot_be_written_to(self):
        with tempfile.NamedTemporaryFile() as file:
            done = gpu_check("--mock", "--build", BUILD, "--out", f"{file.name}/out")
            self.assertEqual((done.returncode, done.stdout, done.stderr), (
                1, "", f"gpu-check: error: the result cannot be written to {file.name}/out: {file.name} is no folder that may "
                "be written to: choose another folder with --out\n"))

    def test_an_old_python(self):
        script = loaded()
        with mock.patch.object(sys, "version_info", (3, 10, 12)), self.assertRaises(SystemExit) as ended:
            script.main()
        self.assertEqual(ended.exception.code,
                         f"gpu-check: error: {sys.executable} is Python 3.10, and 3.11 or newer is needed")

    def test_the_compiled_update_is_kept_for_all_processes(self):
        script = loaded()
        for variables in ({}, {"HOME": "/nowhere"}, {"HOME": str(self.out.parent)}, {"XDG_CACHE_HOME": "/cache"}):
            with mock.patch.dict(os.environ, {"PATH": os.environ["PATH"], **variables}, clear=True):
                cache = script.environment(pathlib.Path(BUILD)).get("XDG_CACHE_HOME")
            if variables.get("HOME") == str(self.out.parent):
                self.assertIsNone(cache)
            else:
                self.assertTrue(pathlib.Path(cache).is_absolute())

    def test_a_wrong_command_line(self):
        for arguments, reason in ((("--only", "bits,bytes"), "no check 'bytes', did you mean bits?: there are device, tests"),
                                  (("--minutes", "0"), "0 is not allowed"),
                                  (("--halp",), "--halp")):
            done = gpu_check(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertIn(reason, done.stderr)

    def test_the_list(self):
        self.assertEqual([line.split()[0] for line in gpu_check("--list").stdout.splitlines()], [c.name for c in CHECKS])


class Device(unittest.TestCase):
    @staticmethod
    def torch(cuda="13.2", sees=True, capability=(9, 0), fails=None):
        """One that says this of its device."""
        properties = types.SimpleNamespace(name="H", major=capability[0], minor=capability[1], total_memory=8e9,
                                           multi_processor_count=1)

        def ones(*_, **__):
            return fake_ones

        fake_ones = mock.MagicMock()
        (fake_ones + fake_ones).sum().item.return_value = 2000
        return types.SimpleNamespace(
            __version__="2.15.0", version=types.SimpleNamespace(cuda=cuda), ones=ones,
            cuda=types.SimpleNamespace(is_available=lambda: sees, device_count=lambda: 1,
                                       get_device_properties=mock.Mock(return_value=properties, side_effect=fails),
                                       get_device_capability=lambda _: capability, mem_get_info=lambda _: (4e9, 8e9)))

    def test_why_there_is_none(self):
        with mock.patch.object(device, "driver_version", side_effect=OSError("libnvidia-ml.so.1: not there")):
            for torch, why in ((self.torch(cuda=None), "torch 2.15.0 of .* is built for the CPU only: start gpu-check with the"),
                               (self.torch(sees=False), r"no CUDA device \(NVIDIA's driver: not known: libnvidia-ml.so.1: not")):
                self.assertRegex(device.why_no_gpu(torch), why)
        self.assertIsNone(device.why_no_gpu(self.torch()))

    def test_what_torch_and_starling_can_use(self):
        old = RuntimeError("The NVIDIA driver on your system is too old (found version 12020).\nPlease update")
        for torch, said in ((self.torch(), {DEVICE[0]: ("passed", None), DEVICE[1]: ("passed", None)}),
                            (self.torch(capability=(7, 5)),
                             {DEVICE[0]: ("failed", "Starling needs compute capability 8.0 or newer"),
                              DEVICE[1]: ("passed", None)}),
                            (self.torch(fails=old), {DEVICE[1]: (
                                "failed", "RuntimeError: The NVIDIA driver on your system is too old (found version 12020). "
                                          "(NVIDIA's driver: 535.1)")})):
            with mock.patch.object(device, "driver_version", return_value="535.1"), \
                    contextlib.redirect_stdout(io.StringIO()) as lines:
                device.use(torch, "cuda:0")
            items = [running.item_of(line) for line in lines.getvalue().splitlines()]
            self.assertEqual({item["item"]: (item["state"], item.get("said")) for item in items}, said)

    def test_the_others_do_not_run_without_it(self):
        script = loaded()

        def run(command, limit, on_item):
            self.assertIn("device.py", command[1])
            on_item({"item": DEVICE[1], "state": "failed", "said": "too old"})
            return {"status": "failed", "why": "1 of 1 failed", "exit": 0}

        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()), \
                mock.patch.multiple(script, run=run, interrupt_at=lambda *_: None), \
                mock.patch.dict(os.environ, {script.AGAIN: "1"}), \
                mock.patch.object(sys, "argv", ["gpu-check", "--out", folder]):
            self.assertEqual(script.main(), 1)
            checks = json.loads(pathlib.Path(folder, "gpu-check.json").read_text())["checks"]
        self.assertEqual([(check["status"], check["why"]) for check in checks[1:]],
                         [("not run", "torch computes on it: too old")] * (len(CHECKS) - 1))


class Running(unittest.TestCase):
    def run_program(self, program, limit=120):
        items = []
        done = running.run([sys.executable, "-c", program], limit, items.append)
        return done["status"], done["why"], items

    def test_what_a_check_may_do(self):
        failed = '{"item": "b", "state": "failed", "said": "of this"}'
        for program, status, why, count in (
                (f"print('{PASSED}')", "passed", "", 1),
                (f"print('{PASSED}'); print('{failed}')", "failed", "1 of 2 failed: b: of this", 2),
                ("print('nonsense'); print('{}'); print('[1]')", "failed", "it has checked nothing", 0),
                ("import sys; sys.exit('why\\nand where')", "failed", "and where", 0),
                (f"import sys; print('{PASSED}'); sys.exit(4)", "failed", "ended with exit code 4", 1),
                ("import os; os.kill(os.getpid(), 9)", "failed", "ended with exit code -9", 0)):
            with self.subTest(program):
                got, said, items = self.run_program(program)
                self.assertEqual((got, said, len(items)), (status, why, count))

    def test_one_that_hangs_is_ended_with_its_children_and_keeps_its_results(self):
        child = f"{sys.executable} -c 'import time; time.sleep(600)' gpu-check-test-{os.getpid()}"
        program = f"import os, time; print('{PASSED}', flush=True); os.system({child!r}); time.sleep(600)"
        status, why, items = self.run_program(program, limit=3)
        self.assertEqual((status, why, len(items)), ("out of time", "ended after its 3 s, with 1 results", 1))
        commands = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout.splitlines()
        self.assertFalse([line for line in commands if line.endswith(f"gpu-check-test-{os.getpid()}") and "sleep" in line])

    def test_a_file_is_replaced_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "file")
            for text in ("long " * 1000, "short"):
                running.write(file, text)
                self.assertEqual(file.read_text(), text)
            self.assertEqual(list(pathlib.Path(folder).iterdir()), [file])


class Together(unittest.TestCase):
    def said(self, work, seconds=120):
        options = types.SimpleNamespace(device="cpu", build=BUILD, seconds=seconds)
        with together.Workers(work, 2, options, {"job": 7}) as workers:
            try:
                return together.each(workers, 1)
            except together.Failed as error:
                return str(error)

    def test_results_come_by_rank(self):
        def work(options, job):
            print("no result")
            print(json.dumps({"rank": int(os.environ["RANK"]), "of": os.environ["WORLD_SIZE"]} | job))

        self.assertEqual(self.said(work), {rank: [{"rank": rank, "of": "2", "job": 7}] for rank in (0, 1)})

    def test_a_worker_that_fails_ends_all(self):
        def work(how):
            return lambda *_: how() if os.environ["RANK"] == "1" else time.sleep(600)

        for how, why in ((lambda: sys.exit("for a reason"), "1: for a reason"),
                         (lambda: [][1], "1: IndexError: list index out of range"),
                         (lambda: os.kill(os.getpid(), 11), "-11: ")):
            self.assertEqual(self.said(work(how)), f"worker 1 ended with exit code {why}")

    def test_workers_that_hang_are_ended(self):
        self.assertEqual(self.said(lambda *_: time.sleep(600), seconds=2), "the workers said nothing for 2 s: ")


class GoogleTest(unittest.TestCase):
    def results(self, *lines, code=0):
        program = f"import sys; print({chr(10).join(lines)!r}); sys.exit({code})"
        return [(name, state) for name, state, _, _ in gtest.results([sys.executable, "-c", program], dict(os.environ))]

    def test_each_test_has_its_result_once(self):
        lines = ("[ RUN      ] A.B", "[       OK ] A.B (5 ms)", "[ RUN      ] A.OnAGpu", "no card",
                 "[  SKIPPED ] A.OnAGpu (0 ms)", "[ RUN      ] A.C/fp32", "[  FAILED  ] A.C/fp32, where GetParam() = fp32 (7 ms)",
                 "[  FAILED  ] A.C/fp32, where GetParam() = fp32")
        self.assertEqual(self.results(*lines, code=1), [("A.B", "passed"), ("A.OnAGpu", "skipped"), ("A.C/fp32", "failed")])

    def test_a_program_that_crashes_has_failed(self):
        self.assertEqual(self.results("[ RUN      ] A.B", code=134), [("A.B", "failed")])


class Page(unittest.TestCase):
    def test_text_is_escaped_and_an_unfinished_result_says_so(self):
        check = {"name": "bits", "title": "<b>", "status": "not run", "why": "<i>", "seconds": 0, "limit_s": 0, "exit": None}
        item = {"item": "a<b", "state": "failed", "said": "x < y", "figures": {"big": 1e12, "small": 1e-7, "text": "<u>"}}
        html = page({"passed": None, "mode": "cuda", "date": "now", "seconds": 1, "minutes": 9, "machine": {},
                     "checks": [check | {"items": []}, check | {"name": "step", "items": [item]}]})
        self.assertIn("not finished", html)
        for text in ("&lt;b&gt;", "&lt;i&gt;", "a&lt;b", "x &lt; y", "&lt;u&gt;", "1000000000000", "1e-07"):
            self.assertIn(text, html)
        self.assertNotIn("<i>", html)


if __name__ == "__main__":
    unittest.main()
