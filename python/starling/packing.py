"""The parts that all kinds of `starling pack` share."""

import contextlib
import pathlib
import shutil
import sys
import tempfile


class Refusal(Exception):
    """An input is wrong: one line says what, and where."""


class MissingPackage(Exception):
    """One line: how to install it."""


def exit_code_of(command, work):
    """Runs work(), which returns an exit code or None. An error is one line on stderr. The exit
    code is then as the program's: 2 if the command line or an input is wrong, else 1."""
    try:
        return work() or 0
    except (Refusal, MissingPackage, OSError) as error:
        print(f"starling: {command}: {error}", file=sys.stderr)
        wrong_input = (Refusal, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
        return 2 if isinstance(error, wrong_input) else 1


def imported(module, package=None):
    try:
        found = __import__(module)
    except ImportError as error:
        package = package or module
        raise MissingPackage(f"needs the package {package}: {sys.executable} -m pip install {package}") from error
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
