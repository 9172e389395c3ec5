"""The scripts in docs/from-*.md run, before and after the change, and the diffs there are those of
examples/python/loops. The profiler shows the ranges of docs/running.md. Every public name has a
docstring."""

import difflib
import inspect
import os
import pathlib
import re
import tempfile
import unittest

import torch
import workers
from learning import several_blocks

import starling

DOCS = pathlib.Path(__file__).resolve().parent.parent.parent / "docs"


def script(page, before=False):
    """The page's diff with the lines of one side."""
    lines = re.search(r"^```diff\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)[1].splitlines()
    assert all(line == "" or line[0] in " +-" for line in lines), page
    return "\n".join(line[1:] for line in lines if line[:1] != ("+" if before else "-"))


def execute(page, before=False):
    names = {}
    exec(compile(script(page, before), page, "exec"), names)
    return names


# ---------------------------------------------------------------- workers


def pages():
    """Each with a store of its own: Starling keeps the store at which the workers met."""
    os.chdir(os.environ["FOLDER"])
    torch.manual_seed(0)  # the same data
    execute("from-ddp.md", before=True)
    before = torch.load("model.pt") if os.environ["RANK"] == "0" else {}
    os.environ["MASTER_PORT"] = os.environ["SECOND_PORT"]
    torch.manual_seed(0)
    names = execute("from-ddp.md")
    after = torch.load("model.pt") if os.environ["RANK"] == "0" else {}
    names["optimizer"].close()

    os.environ["MASTER_PORT"] = os.environ["THIRD_PORT"]
    torch.manual_seed(int(os.environ["RANK"]))
    torch.optim.Optimizer._cuda_graph_capture_health_check = lambda self: None  # as the page says
    execute("from-decent-dp.md", before=True)
    theirs = torch.load("model.pt") if os.environ["RANK"] == "0" else {}
    torch.distributed.destroy_process_group()
    os.environ["MASTER_PORT"] = os.environ["FOURTH_PORT"]
    torch.manual_seed(int(os.environ["RANK"]))
    optimizer = execute("from-decent-dp.md")["optimizer"]
    ours = torch.load("model.pt") if os.environ["RANK"] == "0" else {}
    differences = {name: (ours[name] - tensor).abs().max().item() for name, tensor in theirs.items()}

    several = starling.AdamW(several_blocks().parameters())
    several.step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        several.step()
    ranges = {event.key: event.count for event in profile.key_averages() if event.key.startswith("starling::")}
    return [sorted(before), sorted(after), differences, optimizer.statistics()["committed"], ranges]


def decent_dps_averages():
    """Decent-DP's own code: for each call in the table of from-decent-dp.md the workers' RMS
    distance before it, after it, and after one step more with the learning rate 0."""
    torch.optim.Optimizer._cuda_graph_capture_health_check = lambda self: None  # as the page says
    from decent_dp.ddp import DecentralizedDataParallel
    from decent_dp.utils import initialize_dist

    rank, size = initialize_dist()
    found = {}
    for call, options in (("global_avg()", {}), ("global_avg(will_revert=False)", {"will_revert": False})):
        torch.manual_seed(0)
        net = torch.nn.Linear(8, 8)
        model = DecentralizedDataParallel(net, lambda named: torch.optim.SGD([p for _, p in named], lr=0.1),
                                          topology="one-peer-exp")
        torch.manual_seed(rank)

        def step(model=model):
            torch.nn.functional.mse_loss(model(torch.randn(16, 8)), torch.randn(16, 8)).backward()

        def distance(net=net):
            mine = torch.cat([p.detach().flatten() for p in net.parameters()])
            all_of_them = [torch.empty_like(mine) for _ in range(size)]
            torch.distributed.all_gather(all_of_them, mine)
            together = torch.stack(all_of_them)
            return (together - together.mean(0)).square().mean().sqrt().item()

        for _ in range(8):
            step()
        found[call] = [distance()]
        model.global_avg(**options)
        found[call].append(distance())
        for optimizer in model._optims:
            optimizer.param_groups[0]["lr"] = 0.0
        step()
        found[call].append(distance())
    return found


# ---------------------------------------------------------------- tests


class Docs(unittest.TestCase):
    def test_scripts_run_and_the_profiler_shows_the_step(self):
        with tempfile.TemporaryDirectory() as folder:
            ports = {f"{which}_PORT": workers.free_port() for which in ("SECOND", "THIRD", "FOURTH")}
            ends = workers.run(pages, 2, FOLDER=folder, **ports)
        self.assertEqual(ends[0][0], ends[0][1])  # names in the checkpoint
        self.assertEqual(len(ends[0][1]), 9)
        differences = ends[0][2]
        self.assertEqual(len(differences), 4)
        # The parameters have moved 0.01 and more. Weight decay is on all of them here, and on
        # biases alone there.
        self.assertLess(max(differences.values()), 1e-3, differences)
        self.assertLess(max(differences["0.bias"], differences["2.bias"]), 1e-5, differences)
        for *_, committed, ranges in ends:
            self.assertGreaterEqual(committed, 19)
            self.assertEqual(ranges, {"starling::step": 1} | {f"starling::{name}": 5 for name in ("finish", "update", "start")})

    def test_the_table_of_decent_dps_averages_is_what_its_code_does(self):
        page = (DOCS / "from-decent-dp.md").read_text()
        for found in workers.run(decent_dps_averages, 4):
            for call, distances in found.items():
                line = f"| `{call}` | " + " | ".join(f"{distance:.4f}" for distance in distances) + " |"
                self.assertIn(line, page)
            # Only the second one goes on from the average.
            (before, at, after), (_, _, stays) = found.values()
            self.assertGreater(after, 0.2 * before)
            self.assertLess(max(at, stays), 1e-6)

    def test_diffs_of_loops_are_those_of_the_files(self):
        shown = re.findall(r"^```diff\n(.*?)^```", (DOCS / "from-ddp.md").read_text(), re.MULTILINE | re.DOTALL)[1:]
        loops = DOCS.parent / "examples/python/loops"
        found = []
        for name in ("mnist", "imagenet", "gpt"):
            forms = [(loops / f"{name}{form}.py").read_text().splitlines() for form in ("_ddp", "")]
            lines = [line for line in list(difflib.unified_diff(*forms, n=1, lineterm=""))[2:] if not line.startswith("@@")]
            self.assertLessEqual(sum(line[0] in "+-" for line in lines), 4, name)
            found.append("\n".join([*lines, ""]))
        self.assertEqual(shown, found)

    def test_all_that_is_public_is_described(self):
        for name in starling.__all__:
            it = getattr(starling, name)
            self.assertTrue(inspect.getdoc(it), name)
            for member, value in vars(it).items() if inspect.isclass(it) else ():
                if not member.startswith("_") and (inspect.isroutine(value) or isinstance(value, property)):
                    self.assertTrue(inspect.getdoc(getattr(it, member)), f"{name}.{member}")


if __name__ == "__main__":
    workers.main()
