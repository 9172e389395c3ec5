"""The card, its driver, torch, and whether the module `starling` loads. Ends with 3 if there is no
GPU."""

import ctypes
import os
import platform
import subprocess
import sys
import sysconfig

from checks import DEVICE, MODULE, NO_GPU
from together import one_line, parsed, say, verdict

OLDEST = (8, 0)  # compute capability, as in starling/kernels/cuda/gpu.cpp


def driver_version():
    """By NVIDIA's management library, which comes with the driver."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    text = ctypes.create_string_buffer(96)
    if library.nvmlInit_v2() != 0 or library.nvmlSystemGetDriverVersion(text, len(text)) != 0:
        raise OSError("NVIDIA's management library does not say the driver's version")
    return text.value.decode()


def driver():
    try:
        return driver_version()
    except (OSError, AttributeError) as error:  # AttributeError: an older library
        return f"not known: {error}"


def card(torch):
    properties = torch.cuda.get_device_properties(0)
    return {"device": properties.name, "driver": driver(), "capability": f"{properties.major}.{properties.minor}",
            "memory_gigabytes": round(properties.total_memory / 1e9, 1),
            "free_gigabytes": round(torch.cuda.mem_get_info(0)[0] / 1e9, 1),
            "multiprocessors": properties.multi_processor_count, "devices": torch.cuda.device_count()}


def why_no_gpu(torch):
    """One line; None if torch sees a GPU."""
    of = f"torch {torch.__version__} of {sys.executable}"
    other = "or run this with --mock, which runs the checks on the CPU"
    if torch.version.cuda is None:
        return f"{of} is built for the CPU only: start gpu-check with the Python whose torch is built for CUDA, {other}"
    if not torch.cuda.is_available():
        return (f"{of} sees no CUDA device (NVIDIA's driver: {driver()}): run this on a machine with an NVIDIA GPU, in a "
                f"container that may use it, {other}")
    return None


def use(torch, device):
    """Says whether torch can use the device, and Starling too."""
    try:
        figures = card(torch)
        old = torch.cuda.get_device_capability(0) < OLDEST
        said = f"Starling needs compute capability {OLDEST[0]}.{OLDEST[1]} or newer" if old else ""
        say(DEVICE[0], verdict(not old), said, **figures)
        a = torch.ones(1000, device=device)
        say(DEVICE[1], verdict((a + a).sum().item() == 2000))
    except (RuntimeError, AssertionError) as error:  # as of a driver that is too old for torch
        say(DEVICE[1], "failed", f"{one_line(error)} (NVIDIA's driver: {driver()})")


def processor():
    with open("/proc/cpuinfo") as file:
        return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), platform.machine())


def why_not_loaded(options, error):
    """The module is for one version of Python."""
    there = sorted(file.name for file in (options.build / "python/starling").glob("_C.*.so"))
    wanted = f"_C.{sysconfig.get_config_var('SOABI')}.so"
    if not there or wanted in there:
        return one_line(error)
    return (f"{options.build}/python has {', '.join(there)}, and Python {platform.python_version()} needs {wanted}: start "
            "gpu-check with the Python that the module was built for, or build it with "
            f"PYTHONS={sysconfig.get_python_version()}")


def doctor(options):
    """The exit code of `starling doctor`, and its last line."""
    done = subprocess.run([options.build / "bin/starling", "doctor"], capture_output=True, text=True)
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return done.returncode, said[-1] if said else ""


def main():
    options = parsed()
    other = "start gpu-check with the Python that has torch, as in PYTHON scripts/gpu-check"
    try:
        import torch
    except ImportError as error:
        print(f"{sys.executable} has no torch ({one_line(error)}): {other}", file=sys.stderr)
        return NO_GPU
    if not options.mock and (why := why_no_gpu(torch)):
        print(why, file=sys.stderr)
        return NO_GPU
    if options.mock:
        say(DEVICE[0], "passed", "none: this is a run on the CPU", device="cpu")
    else:
        use(torch, options.device)
    say("torch", "passed", torch=torch.__version__, cuda=torch.version.cuda, python=platform.python_version())
    say("the host", "passed", processor=processor(), cores=os.cpu_count(), system=platform.platform())
    try:
        import starling

        say(MODULE, "passed", starling=starling.__version__)
    except ImportError as error:
        say(MODULE, "failed", why_not_loaded(options, error))
    try:
        code, said = doctor(options)
        say("starling doctor", verdict(code == 0), said)
    except OSError as error:
        say("starling doctor", "failed", one_line(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
