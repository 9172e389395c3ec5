"""The version of torch that the package requires (pyproject.toml). A wheel requires the one that it
is built with; the sources require any that they support."""

import contextlib
import os
import subprocess
import sys
from importlib import metadata


def torch_version():
    """The version of torch here. pip builds in an environment of its own, which lies in PYTHONPATH
    and hides the installed packages."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("torch").partition("+")[0]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run([sys.executable, "-c", "from importlib import metadata; print(metadata.version('torch'))"],
                           env=environment, capture_output=True, text=True)
    if found.returncode != 0:
        sys.exit(f"starling: {sys.executable} has no torch: install it first, and build with pip; "
                 "for another builder, install scikit-build-core too, and build without isolation")
    return found.stdout.strip().partition("+")[0]


class Requirement:
    def build_state(self, state: str) -> None:
        self._of_sources = state == "sdist"

    def dynamic_wheel(self, settings) -> dict[str, bool]:
        return {"dependencies": True}  # differs from that of the sources

    def dynamic_metadata(self, settings, project) -> dict[str, list[str]]:
        return {"dependencies": [settings["sources"] if self._of_sources else f"torch=={torch_version()}"]}
