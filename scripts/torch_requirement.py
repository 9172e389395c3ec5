"""The version of torch that the package requires (pyproject.toml). A wheel requires the one that it
is built with; the sources require any that they support."""

import os
import subprocess
import sys


def torch_version():
    """The version of the installed torch. pip builds in an environment of its own, which lies in
    PYTHONPATH and hides the installed packages."""
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
