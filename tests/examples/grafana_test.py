"""examples/grafana/starling.json shows the metrics that `starling status --prometheus` prints."""

import json
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BOARD = json.loads((ROOT / "examples/grafana/starling.json").read_text())
# Metrics of which a dashboard has no need.
UNUSED = {"test_step", "worker_epoch", "worker_round"}


def emitted():
    """The type of each metric, by its name without "starling_"."""
    return dict(re.findall(r'\badd\(\s*"(\w+)", "(\w+)",', (ROOT / "cli/status_text.cpp").read_text()))


class Grafana(unittest.TestCase):
    def test_each_metric_is_one_of_the_status(self):
        types, used = emitted(), set()
        self.assertGreater(len(types), 15)
        for panel in BOARD["panels"]:
            for target in panel["targets"]:
                names = re.findall(r'starling_(\w+)\{instance="\$instance"\}', target["expr"])
                self.assertEqual(target["expr"].count("starling_"), len(names), target["expr"])
                for name in names:
                    self.assertIn(name, types)
                    self.assertEqual("rate(" in target["expr"], types[name] == "counter", target["expr"])
                used.update(names)
        self.assertEqual(used, types.keys() - UNUSED)

    def test_panels_and_variables(self):
        self.assertLessEqual({"uid", "title", "schemaVersion", "templating", "panels", "time"}, BOARD.keys())
        source, instance = BOARD["templating"]["list"]
        self.assertEqual((source["name"], source["type"], source["query"]), ("datasource", "datasource", "prometheus"))
        self.assertEqual((instance["name"], instance["definition"]), ("instance", instance["query"]["query"]))
        self.assertIn(re.search(r"starling_(\w+)", instance["definition"])[1], emitted())
        taken = set()
        for panel in (instance, *BOARD["panels"]):
            self.assertEqual(panel["datasource"], {"type": "prometheus", "uid": "${datasource}"})
        for panel in BOARD["panels"]:
            self.assertLessEqual({"id", "type", "title", "gridPos", "targets"}, panel.keys())
            place = panel["gridPos"]
            cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                     for y in range(place["y"], place["y"] + place["h"])}
            self.assertLess(max(x for x, _ in cells), 24)
            self.assertFalse(cells & taken, panel["title"])
            taken |= cells
        ids = [panel["id"] for panel in BOARD["panels"]]
        self.assertEqual(len(ids), len(set(ids)))
