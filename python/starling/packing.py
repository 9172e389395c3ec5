"""The parts that all kinds of `starling pack` share."""

import contextlib
import pathlib
import shutil
import sys
import tempfile


class Refusal(Exception):
    """One line: what is wrong, and where."""


def imported(module, package=None):
    try:
        found = __import__(module)
    except ImportError as error:
        package = package or module
        raise Refusal(f"needs the package {package}: {sys.executable} -m pip install {package}") from error
    for part in module.split(".")[1:]:
        found = getattr(found, part)
    return found


def wants_new(out):
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Refusal(f"{out}: is not empty")


@contextlib.contextmanager
def appearing(out):
    """A folder beside `out` that takes its place at the end: `out` appears whole or not at all."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as name:
        draft = pathlib.Path(name) / "draft"
        draft.mkdir()
        yield draft
        if out.exists():
            out.rmdir()
        shutil.move(draft, out)
