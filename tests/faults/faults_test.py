"""The smoke part of the fault matrix."""

import pathlib
import unittest

from faults import FAULTS
from matrix import NONE, Cell, run_cells
from planted import BUGS, Planted


class Matrix(unittest.TestCase):
    def test_the_most_telling_faults_in_a_ring(self):
        cells = run_cells([fault for fault in FAULTS if fault.smoke], topologies=["ring"])
        wrong = {(cell.fault.name, cell.scheme): cell.as_json() for cell in cells if cell.wrong}
        self.assertEqual(wrong, {})

    def test_an_exchange_that_was_mixed_at_one_end_is_red(self):
        def lines(other, *blocks):
            return [{"round": number, "mixed": [{"rank": other, "blocks": count}]} for number, count in enumerate(blocks, 1)]

        for second, wrong in (((1, 2, 3), []), ((1, 2), []),  # it is a round behind
                              ((1, 1, 2), ["sum: up to round 3 workers 0 and 1 have mixed 3 and 2 blocks with each other"]),
                              ((0, 0, 0), ["sum: up to round 3 workers 0 and 1 have mixed 3 and 0 blocks with each other"])):
            with self.subTest(second):
                cell = Cell(NONE, "cta", "ring", pathlib.Path("none"))
                cell.check_sum({0: lines(1, 1, 2, 3), 1: lines(0, *second)})
                self.assertEqual(cell.wrong, wrong)

    def test_the_bugs_to_plant_fit_the_sources(self):
        for bug in BUGS:
            with self.subTest(bug.name):
                Planted(bug)  # ends with an error if they do not
