import json
import os
import pathlib
import tempfile
import unittest
import unittest.mock

from command import CommandTest

CHECKS = ["torch", "Gloo", "OpenSSL", "instructions", "kernels", "CUDA", "NVRTC", "NCCL", "memory", "sharing",
          "network", "launcher"]


def setUpModule():
    """The doctor's compiled GPU program is cached for this module, and not in the user's cache."""
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    unittest.enterModuleContext(unittest.mock.patch.dict(os.environ, XDG_CACHE_HOME=folder.name))


def processor_has(*names):
    with open("/proc/cpuinfo") as file:
        flags = next((line.split() for line in file if line.startswith("flags")), [])
    return all(name in flags for name in names)


class Doctor(CommandTest):
    def message(self, name, code, **variables):
        """The message of the check with this name."""
        checks = json.loads(self.starling("doctor", "--json", code=code, **variables))["checks"]
        return next(check["message"] for check in checks if check["name"] == name)

    def test_text(self):
        text = self.starling("doctor")
        for name in ("starling", "compiler", "torch", "Gloo", "CUDA", "NCCL", "OpenSSL", "processor", "cores", "memory",
                     "instructions", "network"):
            self.assertRegex(text, rf"\n  {name} +\S")
        checks = text.split("checks\n")[1].splitlines()
        self.assertEqual([line.split()[:2] for line in checks], [["ok", name] for name in CHECKS])

    def test_json(self):
        result = json.loads(self.starling("doctor", "--json"))
        self.assertTrue(result["ok"])
        self.assertEqual([check["name"] for check in result["checks"]], CHECKS)
        versions, machine = result["versions"], result["machine"]
        self.assertEqual(f"starling {versions['starling']}\n", self.starling("--version"))
        self.assertEqual(versions["torch"], versions["torch_headers"])
        for name in ("torch", "openssl", "gloo_headers"):
            self.assertRegex(versions[name], r"^\d+\.\d+\.\d+")
        self.assertEqual(machine["cores"], len(os.sched_getaffinity(0)))
        self.assertLessEqual(machine["available_gib"], machine["memory_gib"])
        loopback = [i for i in machine["interfaces"] if i["loopback"]]
        self.assertIn("127.0.0.1", loopback[0]["addresses"])

    def test_the_launcher(self):
        self.assertEqual(self.message("launcher", 0), "none: one worker alone, unless train --workers starts more")
        mpirun = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                  "OMPI_COMM_WORLD_LOCAL_SIZE": "3", "MASTER_PORT": "29500"}
        self.assertEqual(self.message("launcher", 0, **mpirun),
                         "mpirun: rank 1 of 3, 3 on this host, they meet at 127.0.0.1 port 29500")
        self.assertIn("set MASTER_ADDR", self.message("launcher", 1, **{**mpirun, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}))

    def test_the_compiler_for_gpus(self):
        with tempfile.TemporaryDirectory() as cache:
            message = self.message("NVRTC", 0, XDG_CACHE_HOME=cache)
            if message.startswith("absent"):
                self.skipTest(message)
            self.assertRegex(message, r"^\d+\.\d+ compiles the update for sm_80, and has (sm_)?[ \d]+; nothing runs")
            kept = list(pathlib.Path(cache).glob("starling/cuda/program-sm_80-*.cubin"))
            self.assertEqual(len(kept), 1)
            self.assertEqual(self.message("NVRTC", 0, XDG_CACHE_HOME=cache), message)
        self.assertIn("STARLING_NVRTC names: ", self.message("NVRTC", 1, STARLING_NVRTC="/nowhere/libnvrtc.so"))

    def test_the_instruction_set_of_the_kernels(self):
        best, allowed = self.message("kernels", 0, STARLING_ISA="").split(", of ")
        self.assertEqual(best, allowed.split(", ")[0])
        for isa in allowed.split(", "):
            self.assertEqual(self.message("kernels", 0, STARLING_ISA=isa), f"{isa}, of {allowed}")
        self.assertEqual(self.message("kernels", 1, STARLING_ISA="avx1024"),
                         "STARLING_ISA=avx1024 is not an instruction set that this machine and "
                         f"this build of Starling have: allowed are {allowed}")

    @unittest.skipUnless(processor_has("avx2", "fma"), "the processor has nothing that torch could leave unused")
    def test_a_problem_is_named_and_ends_with_1(self):
        text = self.starling("doctor", code=1, ATEN_CPU_CAPABILITY="default")
        best = "AVX512" if processor_has("avx512f", "avx512dq", "avx512bw", "avx512vl") else "AVX2"
        self.assertIn("\n  problem  instructions  torch uses DEFAULT though the processor has "
                      f"{best}: ATEN_CPU_CAPABILITY is set to default\n", text)
        result = json.loads(self.starling("doctor", "--json", code=1, ATEN_CPU_CAPABILITY="default"))
        self.assertFalse(result["ok"])
        self.assertEqual([check["name"] for check in result["checks"] if not check["ok"]], ["instructions"])
