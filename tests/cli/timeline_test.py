import json
import pathlib
import tempfile

from command import CommandTest

SECOND = 10**9


def text(rank, start=0, spans=((0, 1),), workers=2, dropped=0):
    """A worker's file in the format of core/timeline.cpp. spans: begin and length in
    microseconds."""
    about = {"format": "starling-timeline-1", "rank": rank, "workers": workers, "start_unix_ns": start, "dropped": dropped}
    head = json.dumps({"displayTimeUnit": "ms", "otherData": about})[:-1] + ',"traceEvents":[\n'
    events = [{"ph": "M", "name": "process_name", "pid": rank, "tid": 1, "args": {"name": f"worker {rank}"}}]
    events += [{"ph": "X", "name": "forward", "pid": rank, "tid": 1, "ts": ts, "dur": dur, "args": {"step": 1}}
               for ts, dur in spans]
    return head + ",\n".join(map(json.dumps, events)) + "\n]}\n"


class Timeline(CommandTest):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="starling-timeline-")))

    def write(self, rank, content):
        (self.folder / f"timeline-{rank}.json").write_text(content)

    def merged(self, name="timeline.json"):
        return json.loads((self.folder / name).read_text())["traceEvents"]

    def error(self, *arguments, code=2):
        """The one line of a failed merge, which leaves nothing behind."""
        before = sorted(self.folder.iterdir())
        said = self.usage_error("timeline", *(arguments or [self.folder]), code=code)
        self.assertEqual(sorted(self.folder.iterdir()), before)
        return said.replace(f"{self.folder}/", "")

    def test_clocks_are_aligned(self):
        self.write(0, text(0, 100 * SECOND + 500, [(1, 2), (10.125, 0.5)]))
        self.write(1, text(1, 100 * SECOND, [(1, 2)]))
        self.assertEqual(self.starling("timeline", self.folder),
                         f"3 spans of 2 of 2 workers\nwritten to {self.folder}/timeline.json: "
                         "open it in https://ui.perfetto.dev or chrome://tracing\n")
        spans = [(e["pid"], e["ts"], e["dur"]) for e in self.merged() if e["ph"] == "X"]
        self.assertEqual(spans, [(0, 1.5, 2), (0, 10.625, 0.5), (1, 1, 2)])
        names = [e["args"]["name"] for e in self.merged() if e["name"] == "process_name"]
        self.assertEqual(names, ["worker 0", "worker 1"])

    def test_out_and_a_second_merge(self):
        for rank in range(2):
            self.write(rank, text(rank))
        self.starling("timeline", self.folder)
        # The merged one is no input.
        self.starling("timeline", self.folder, "--out", self.folder / "all.json")
        self.assertEqual(self.merged("all.json"), self.merged())
        self.assertIn(f"written to {self.folder}/\\u001B[2J: ",
                      self.starling("timeline", self.folder, "--out", self.folder / "\x1b[2J"))

    def test_says_what_is_missing(self):
        self.write(1, text(1, workers=4, dropped=3))
        self.write(3, text(3, workers=4))
        done = self.run_command("timeline", self.folder)
        self.assertEqual(done.returncode, 0)
        self.assertIn("2 spans of 2 of 4 workers\n", done.stdout)
        self.assertEqual(done.stderr,
                         "starling: no timeline of worker 0, 2: killed, or on another host\n"
                         "starling: 3 later spans did not fit: log.timeline_from and log.timeline_to choose steps\n")

    def test_nothing_to_merge(self):
        self.assertEqual(self.error("/nowhere"), "/nowhere: cannot be read: No such file or directory")
        self.assertEqual(self.error(), f"{self.folder}: there is no timeline-R.json: a run with log.timeline = true "
                                       "leaves one per worker")

    def test_a_file_that_is_cut_off(self):  # tests/train/timelines_test.cpp has all other mistakes
        self.write(0, text(0)[:-3])
        self.write(1, text(1))
        self.assertEqual(self.error(), "timeline-0.json:4: is cut off: the file has no end")

    def test_a_result_that_cannot_be_written(self):
        self.write(0, text(0, workers=1))
        self.assertEqual(self.error(self.folder, "--out", "/nowhere/x.json", code=1),
                         "/nowhere/x.json: cannot be written: No such file or directory")
