"""How the comparison with other systems names what it has seen."""

import unittest

from peers import STEPS, outcome_of

AT, VICTIM = 100.0, 2


def worker(*processes):
    """The lines of a worker. Each of its processes: pid, first and last step, time of the first."""
    return [{"pid": pid, "step": step, "passes": step - first + 1, "at": at + step - first, "loss": 1.0}
            for pid, first, last, at in processes for step in range(first, last + 1)]


def outcome(other, victim, hangs=False):
    return outcome_of({0: other, 1: other, VICTIM: victim}, VICTIM, AT, hangs)


class Outcomes(unittest.TestCase):
    def test_each_outcome(self):
        half = STEPS // 2
        early = AT - half + 0.5  # the fault comes half a step after this many steps
        on = worker((1, 1, STEPS, early))
        again = worker((1, 1, half, early), (2, half - 9, STEPS, AT + 7))
        stays_away, returns = worker((1, 1, half, early)), worker((1, 1, half, early), (2, half + 5, STEPS, AT + 5))
        for name, seen, expected in [
            ("the others go on", outcome(on, returns), ("continues", 1.0, 5.0, 0)),
            ("it stays away", outcome(on, stays_away), ("continues", 1.0, None, 0)),
            ("all start again", outcome(again, again), ("restart of all", 7.0, 7.0, 10)),
            ("crash", outcome(stays_away, stays_away), ("crash",)),
            ("hang", outcome(stays_away, stays_away, hangs=True), ("hang",)),
        ]:
            with self.subTest(name):
                got = [seen.get(key) for key in ("outcome", "others_pause", "away", "lost")][: len(expected)]
                self.assertEqual(tuple(got), expected)
