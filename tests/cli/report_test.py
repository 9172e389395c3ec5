import json
import pathlib
import re
import sys
import tempfile
from xml.etree import ElementTree

from command import CommandTest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from browser import open_page

TITLES = ["Training loss", "Test accuracy of the average model", "Test loss of the average model", "Learning rate",
          "Consensus distance", "Sent per worker and step", "Waiting for neighbours", "Spread over the workers"]
AXES = ("steps", "seconds", "bytes")

# Counts the charts that are seen against each axis, and finds texts that leave their chart.
LOOK = """<script>
const seen = {}, outside = [];
for (const axis of ["steps", "seconds", "bytes"]) {
  document.querySelector(`label[for=${axis}]`).click();
  const charts = [...document.querySelectorAll("svg")].filter(svg => svg.getBoundingClientRect().height > 0);
  seen[axis] = charts.map(svg => svg.closest("div").className);
  for (const svg of charts) {
    const box = svg.getBoundingClientRect();
    for (const text of svg.querySelectorAll("text")) {
      const own = text.getBoundingClientRect();
      if (own.left < box.left - 1 || own.right > box.right + 1 || own.top < box.top - 1 || own.bottom > box.bottom + 1)
        outside.push(text.textContent);
    }
  }
}
document.body.dataset.seen = JSON.stringify({seen, outside});
</script></body>"""


class Report(CommandTest):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="starling-report-")))

    def run_of(self, name, workers=2, steps=30, lr=0.1, tests=True, **more):
        """A folder as `starling train` leaves it."""
        out = self.folder / name
        out.mkdir()
        lines = [{"rank": rank, "step": step, "epoch": step / 10, "samples": 32 * step, "seconds": 0.5 * step,
                  "loss": 2 / step + 0.1 * rank, "lr": lr, "waiting_share": 0.04 * rank, "bytes_sent": 4_000_000 * step}
                 for step in range(1, steps + 1) for rank in range(workers)]
        self.write(out / "metrics.jsonl", *lines)
        if tests:
            self.write(out / "tests.jsonl", *({"step": step, "seconds": 0.5 * step, "test_loss": 1 / step,
                                               "accuracy": 1 - 1 / step, "consensus_distance": 0.001 * step}
                                              for step in sorted({steps // 3 + 1, steps // 2 + 1, steps})))
        settings = {"optimizer.lr": lr, "mixing.scheme": '"cta"', "mixing.topology": '"ring"', **more}
        (out / "recipe.toml").write_text('data.name = "fashion-mnist"\n' +
                                         "".join(f"{key} = {value}\n" for key, value in settings.items()))
        return out

    def summary(self, out, **more):
        self.write(out / "summary.json", {
            "schedule": "ring", "workers": 2, "workers_lost": 0, "steps": 30, "seconds": 15.0, "loss": 0.12, "test_loss": 0.3,
            "accuracy": 0.9125, "worst_accuracy": 0.9, "consensus_distance": 0.03, "bytes_sent_per_worker": 120_000_000,
            "bytes_computed": False, "waiting_share": 0.02, **more})

    def write(self, path, *objects):
        path.write_text("".join(json.dumps(each) + "\n" for each in objects))

    def report(self, *runs):
        """(the page's tree, stdout)"""
        page = self.folder / "page.html"
        said = self.starling("report", *map(str, runs), "--out", str(page))
        self.assertTrue(said.endswith(f"\nwritten to {page}: open it in a browser\n"), said)
        self.assertNotIn("http", page.read_text())  # it loads nothing
        self.assertNotIn("<script", page.read_text())
        return ElementTree.parse(page).getroot(), said  # it is well-formed XML too

    def charts(self, tree, axis="steps"):
        """title -> <svg>"""
        found = [part.find("svg") for part in tree.iter("div") if part.get("class") == f"by-{axis}"]
        return {next(text.text for text in svg.iter("text") if text.get("class") == "title"): svg for svg in found}

    def tables(self, tree):
        """Those of final figures, of differing settings, and of all: first cell -> the others"""
        return [{row[0].text: [cell.text for cell in row[1:]] for row in table.iter("tr")} for table in tree.iter("table")]

    def test_runs_side_by_side(self):
        first = self.run_of("first")
        self.summary(first)
        second = self.run_of("second", lr=0.2, workers=3, steps=60, **{"mixing.one_in": 4})
        tree, _ = self.report(first, second)
        for axis in AXES:
            charts = self.charts(tree, axis)
            self.assertEqual(list(charts), TITLES)
            for title, svg in charts.items():
                self.assertEqual([group.get("class") for group in svg.iter("g")], ["c0", "c1"], title)
        key = tree.find(".//nav")
        self.assertEqual([(part.get("class"), part.tail) for part in key.iter("span")],
                         [("key c0", "first"), ("key c1", "second")])
        figures, differ, every = self.tables(tree)
        self.assertEqual(figures[None], ["first", "second"])
        self.assertEqual(figures["run"], ["finished", "not finished"])
        self.assertEqual(figures["workers"], ["2", "3"])
        self.assertEqual((figures["scheme"], figures["topology"]), (["cta", "cta"], ["ring", "ring"]))
        self.assertEqual(figures["steps"], ["30", "60"])
        self.assertEqual(figures["time of training"], ["15.0 s", "30.0 s"])
        self.assertEqual(figures["test accuracy, average model"], ["91.25 %", "98.33 %"])
        self.assertEqual(figures["test accuracy, worst worker"], ["90.00 %", "-"])
        self.assertEqual(figures["sent per worker"], ["120.0 MB", "240.0 MB"])
        self.assertEqual(figures["waiting for neighbours"], ["2.0 %", "4.0 %"])
        self.assertEqual(differ, {"key": ["first", "second"], "workers": ["2", "3"], "optimizer.lr": ["0.1", "0.2"],
                                  "mixing.one_in": ["-", "4"]})
        self.assertEqual(every["mixing.topology"], ['"ring"', '"ring"'])
        self.assertEqual(len(every), 7)
        self.assertIsNotNone(tree.find(".//details//table"))

    def test_lines_are_drawn_where_the_numbers_are(self):
        out = self.run_of("one", steps=4)
        tree, _ = self.report(out)

        def points(axis, title):
            line = self.charts(tree, axis)[title].find(".//polyline")
            return [tuple(map(float, point.split(","))) for point in line.get("points").split()]

        left, right, bottom, top = 72, 464, 252, 36  # of the frame
        for axis in AXES:
            self.assertEqual([x for x, _ in points(axis, "Learning rate")], [left + (right - left) * i / 4 for i in (1, 2, 3, 4)])
        self.assertEqual({y for _, y in points("steps", "Learning rate")}, {top})  # 0.1, from 0
        # 4 MB in each step, on an axis that ends at 4
        self.assertEqual({y for _, y in points("steps", "Sent per worker and step")}, {top})
        # 2 % of up to 4 %
        self.assertEqual({y for _, y in points("steps", "Waiting for neighbours")}, {(top + bottom) / 2})
        band = self.charts(tree)["Training loss"].find(".//polygon").get("points").split()
        self.assertEqual(len(band), 8)
        texts = [text.text for text in self.charts(tree, "bytes")["Training loss"].iter("text")]
        self.assertIn("sent per worker, MB", texts)
        self.assertEqual([text for text in texts if re.fullmatch(r"\d+", text)], ["0", "5", "10", "15"])
        self.assertIn("loss, mean of the workers", texts)

    def test_long_runs_are_thinned(self):
        tree, _ = self.report(self.run_of("long", steps=5000, workers=1))
        line = self.charts(tree)["Training loss"].find(".//polyline").get("points").split()
        self.assertEqual(len(line), 400)
        self.assertIsNotNone(self.charts(tree)["Training loss"].find(".//polygon"))  # what a mean hides
        self.assertIn("One worker alone has none.", "".join(tree.itertext()))

    def test_the_terminal_shows_the_loss(self):
        _, said = self.report(self.run_of("a"), self.run_of("b", steps=15))
        lines = said.splitlines()
        self.assertEqual(lines[0], "training loss:   * a   o b")
        self.assertTrue(all(len(line) <= 78 for line in lines[:-1]), said)
        marks = [set(line) & set("*o") for line in lines[1:15]]
        self.assertTrue(any("*" in row for row in marks) and any("o" in row for row in marks), said)
        self.assertTrue({"*", "o"} & (marks[1] | marks[2]), said)  # the curves fall from the top ..
        self.assertIn("*", marks[12] | marks[13])  # .. to the bottom
        self.assertTrue(lines[17].endswith("time of training, s"), said)

    def test_texts_of_files_are_escaped(self):
        evil = "<script>alert(1)</script>"
        (self.folder / "<b>").mkdir()
        out = self.run_of("<b>/x", **{"run.name": f"'{evil}'", "run.other": '"a\\u0000\\u202e&\'b"'})
        other = self.run_of("x")
        self.report(out, other)
        page = (self.folder / "page.html").read_text()
        self.assertIn(f'"{evil}"'.replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;"), page)
        self.assertIn("&lt;b&gt;/x", page)  # two folders of one name: by their paths
        self.assertNotIn("<b>", page)
        self.assertIn("\\u0000\\u202E&amp;'b", page)

    def test_a_simulated_run(self):
        out = self.folder / "virtual"
        out.mkdir()
        (out / "recipe.toml").write_text('data.name = "text"\nmixing.scheme = "cta"\n')
        self.write(out / "cluster.json", {"workers": 4, "gigabits": 0.5})
        self.write(out / "simulate.jsonl", *(
            {"seconds": 100 * k, "gradients": 40 * k, "epochs": k, "bytes_sent": 80_000 * k, "loss": 2 / k, "loss_least": 1 / k,
             "loss_most": 3 / k, "lr": 0.1, "waiting_share": 0.5, "test_loss": 1 / k, "perplexity": 30 / k,
             "consensus_distance": None} for k in range(1, 20)))
        tree, _ = self.report(out, self.run_of("real"))
        titles = list(self.charts(tree))
        self.assertEqual(titles[1:3], ["Test perplexity of the average model", "Test accuracy of the average model"])
        figures, differ, _ = self.tables(tree)
        self.assertEqual(figures["run"], ["simulated", "not finished"])
        self.assertEqual(figures["time of training"], ["1900.0 s, virtual", "15.0 s"])
        self.assertEqual(figures["test perplexity, average model"], ["1.58", "-"])
        self.assertEqual(figures["sent per worker"], ["380.0 KB", "120.0 MB"])
        self.assertEqual(differ["cluster.gigabits"], ["0.5", "-"])

    def test_default_place(self):
        out = self.run_of("run", tests=False)
        self.assertIn(f"written to {out}/report.html", self.starling("report", str(out)))
        text = "".join(ElementTree.parse(out / "report.html").getroot().itertext())
        self.assertIn("No run has this. log.eval_every tests the average model during the run.", text)

    def test_folders_that_are_no_runs(self):
        self.assertIn("RUN", self.usage_error("report").upper())
        empty = self.folder / "empty"
        empty.mkdir()
        page = self.folder / "page.html"
        self.assertEqual(self.usage_error("report", str(empty), "--out", str(page)),
                         f"{empty}: is no folder of a run: there is no metrics.jsonl of `starling train`, nor a simulate.jsonl")
        good, bad = self.run_of("good"), self.run_of("bad")
        lines = (bad / "metrics.jsonl").read_text().splitlines()
        (bad / "metrics.jsonl").write_text("\n".join([*lines[:4], lines[4][:30]]) + "\n")
        self.assertRegex(self.usage_error("report", str(good), str(bad), "--out", str(page)),
                         rf"^{re.escape(str(bad))}/metrics\.jsonl:5: not JSON: ")
        self.assertEqual(self.usage_error("report", *[str(good)] * 17), "report: 17 runs: at most 16 fit into one page")
        self.assertFalse(page.exists())
        self.assertIn("cannot be", self.usage_error("report", str(good), "--out", "/no/such/folder/x.html", code=1))

    def test_all_charts_are_seen_in_a_browser(self):
        runs = [self.run_of(name, steps=steps, tests=tests) for name, steps, tests in
                (("one", 30, True), ("with-a-rather-long-name", 2000, True), ("untested", 7, False))]
        self.report(*runs)
        page = self.folder / "page.html"
        shown, console = open_page(page, self.folder / "profile")
        self.assertEqual(console, [])
        self.assertEqual(shown.count("<svg"), 3 * len(TITLES))
        # The same page with a script that moves the switch. It shows too that the console is heard.
        page.write_text(page.read_text().replace("</body>", '<script>console.error("heard")</script>' + LOOK))
        shown, console = open_page(page, self.folder / "profile")
        self.assertIn("heard", " ".join(console))
        looked = json.loads(re.search(r'data-seen="([^"]*)"', shown)[1].replace("&quot;", '"'))
        self.assertEqual(looked["seen"], {axis: [f"by-{axis}"] * len(TITLES) for axis in AXES})
        self.assertEqual(looked["outside"], [])
