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


class Unwritable(Exception):
    """An output cannot be written: one line says which, and why."""


def exit_code_of(command, work):
    """Runs work(), which returns an exit code or None. An error is one line on stderr. The exit
    code is then as the program's: 2 if the command line or an input is wrong, else 1."""
    try:
        return work() or 0
    except (Refusal, MissingPackage, Unwritable, OSError) as error:
        print(f"starling: {command}: {error}", file=sys.stderr)
        wrong_input = (Refusal, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
        return 2 if isinstance(error, wrong_input) else 1


def whole_number(least, most):
    """The type of an argument. Its name is what argparse says of a wrong one."""
    def parse(text):
        if not least <= int(text) <= most:
            raise ValueError
        return int(text)
    parse.__name__ = f"number from {least} to {most}"
    return parse


def imported(module, package=None):
    try:
        found = __import__(module)
    except ImportError as error:
        package = package or module
        raise MissingPackage(f"needs the package {package}: {sys.executable} -m pip install {package}") from error
    for part in module.split(".")[1:]:
        found = getattr(found, part)
    return found


@contextlib.contextmanager
def writing(out):
    """Errors of the system within are those of the output."""
    try:
        yield
    except OSError as error:
        raise Unwritable(f"{out}: cannot be written: {error.strerror or error}") from error


def wants_new(out):
    with writing(out):
        used = out.exists() and (not out.is_dir() or any(out.iterdir()))
    if used:
        raise Refusal(f"{out}: is not empty")


@contextlib.contextmanager
def appearing(out):
    """A folder beside `out` that takes its place at the end: `out` appears whole or not at all."""
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        beside = tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent)
    with beside as name:
        draft = pathlib.Path(name) / "draft"
        with writing(out):
            draft.mkdir()
        try:
            yield draft
        except OSError as error:
            if error.filename is None:  # what cannot be opened has a name, what cannot be written has none
                raise Unwritable(f"{out}: cannot be written: {error.strerror or error}") from error
            raise
        with writing(out):
            if out.exists():
                out.rmdir()
            shutil.move(draft, out)
