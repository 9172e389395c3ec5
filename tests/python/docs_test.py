"""The scripts in docs/from-*.md run, before the change and after it; the profiler shows what README.md says; every public name
has its line on the API page."""

import inspect
import os
import pathlib
import re
import tempfile
import unittest

import torch
import workers

import starling

DOCS = pathlib.Path(__file__).resolve().parent.parent.parent / "docs"


def script(page, before=False):
    """What stands in the page's diff, with the lines of one side."""
    lines = re.search(r"^```diff\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)[1].splitlines()
    assert all(line == "" or line[0] in " +-" for line in lines), page
    return "\n".join(line[1:] for line in lines if line[:1] != ("+" if before else "-"))


def execute(page, before=False):
    names = {}
    exec(compile(script(page, before), page, "exec"), names)
    return names


# ---------------------------------------------------------------- workers


def pages():
    """Each with a store of its own: Starling keeps the one that it has met at."""
    os.chdir(os.environ["FOLDER"])
    torch.manual_seed(0)  # the same data
    execute("from-ddp.md", before=True)
    before = torch.load("model.pt") if os.environ["RANK"] == "0" else {}
    os.environ["MASTER_PORT"] = os.environ["SECOND_PORT"]
    torch.manual_seed(0)
    names = execute("from-ddp.md")
    after = torch.load("model.pt") if os.environ["RANK"] == "0" else {}
    names["optimizer"].close()

    starling.world._world = None
    os.environ["MASTER_PORT"] = os.environ["THIRD_PORT"]
    torch.manual_seed(int(os.environ["RANK"]))
    optimizer = execute("from-decent-dp.md")["optimizer"]
    loaded = torch.load("model.pt") if os.environ["RANK"] == "0" else {}

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        optimizer.step()
    ranges = {event.key: event.count for event in profile.key_averages() if event.key.startswith("starling::")}
    return [sorted(before), sorted(after), len(loaded), optimizer.statistics()["committed"], ranges]


# ---------------------------------------------------------------- tests


class Docs(unittest.TestCase):
    def test_scripts_run_and_the_profiler_shows_the_step(self):
        with tempfile.TemporaryDirectory() as folder:
            ports = {"SECOND_PORT": workers.free_port(), "THIRD_PORT": workers.free_port()}
            ends = workers.run(pages, 2, FOLDER=folder, **ports)
        self.assertEqual(ends[0][0], ends[0][1])  # names of what is saved
        self.assertEqual((len(ends[0][1]), ends[0][2]), (9, 4))
        for *_, committed, ranges in ends:
            self.assertGreaterEqual(committed, 19)
            self.assertEqual(ranges, {f"starling::{name}": 1 for name in ("step", "finish", "update", "start")})

    def test_all_that_is_public_is_described(self):
        for name in starling.__all__:
            it = getattr(starling, name)
            self.assertTrue(inspect.getdoc(it), name)
            for member, value in vars(it).items() if inspect.isclass(it) else ():
                if not member.startswith("_") and (inspect.isroutine(value) or isinstance(value, property)):
                    self.assertTrue(inspect.getdoc(getattr(it, member)), f"{name}.{member}")


if __name__ == "__main__":
    workers.main()
