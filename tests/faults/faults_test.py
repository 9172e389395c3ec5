"""The smoke part of the fault matrix."""

import unittest

from faults import FAULTS
from matrix import run_cells
from planted import BUGS, Planted


class Matrix(unittest.TestCase):
    def test_the_most_telling_faults_in_a_ring(self):
        cells = run_cells([fault for fault in FAULTS if fault.smoke], topologies=["ring"])
        wrong = {(cell.fault.name, cell.scheme): cell.as_json() for cell in cells if cell.wrong}
        self.assertEqual(wrong, {})

    def test_the_bugs_to_plant_fit_the_sources(self):
        for bug in BUGS:
            with self.subTest(bug.name):
                Planted(bug)  # ends with an error if they do not
