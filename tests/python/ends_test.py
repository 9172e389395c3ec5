"""Workers that end, well or badly: what they leave behind, and how the others go on."""

import contextlib
import faulthandler
import importlib.util
import os
import pathlib
import signal
import sys
import tempfile
import time
import unittest

import torch
import workers
from learning import flat, model, rank, train

import starling

# The code of a worker that an interrupt ends. At its end torch imports tabulate, if that is there,
# and Python then forgets the interrupt.
INTERRUPTED = 1 if importlib.util.find_spec("tabulate") else -signal.SIGINT


def leaves_nothing():
    """The numbers of threads and descriptors after each of four closed optimizers, by scheme."""
    left = {}
    for scheme in ("cta", "a2cid2", "all-reduce", "around"):
        for _ in range(4):
            net = model()
            if scheme == "around":
                optimizer = starling.Decentralized(torch.optim.SGD(net.parameters(), lr=0.1))
            else:
                optimizer = starling.SGD(net.parameters(), lr=0.1, topology="ring", scheme=scheme)
            train(net, optimizer, 3, 0, rank())
            with optimizer.consensus():  # no worker leaves before the others are done
                pass
            del optimizer
            time.sleep(0.3)  # rank 0's store closes its clients' connections with a delay
            left.setdefault(scheme, []).append([len(os.listdir(f"/proc/self/{kind}")) for kind in ("task", "fd")])
    return left


def closed_within():
    """An average is open when the optimizer ends; and rank 0 is gone when the average is saved."""
    net = model()
    optimizer = starling.SGD(net.parameters(), lr=0.1)
    with torch.no_grad():
        net[0].weight.add_(rank())
    own = flat(net)
    with optimizer.consensus() as average:
        assert not torch.equal(flat(net), own)
        optimizer.close()
        assert torch.equal(flat(net), own)
    seen = average.workers, average.first

    optimizer = starling.SGD(net.parameters(), lr=0.1)
    if rank() == 0:
        optimizer.close()
        return seen, 0
    file = pathlib.Path(os.environ["FOLDER"], "average.safetensors")
    optimizer.save_consensus(net, file)
    with optimizer.consensus() as average:  # it is written afterwards
        return seen, average.first if file.exists() else "no file"


def alone_to_an_average():
    """Only rank 0 comes; the others have left."""
    net = model()
    optimizer = starling.AdamW(net.parameters(), lr=0.02)
    train(net, optimizer, 3, 0, rank())
    if rank() != 0:
        return 0
    with optimizer.consensus() as average:
        return average.workers


def ends_badly():
    """Rank 1 leaves in the way that the environment names; the others go on."""
    net = model()
    optimizer = starling.AdamW(net.parameters(), lr=0.02)
    for t in range(6):
        if t == 3 and rank() == 1:
            how = os.environ["HOW"]
            if how == "interrupt":
                raise KeyboardInterrupt  # uncaught
            if how == "exception":
                raise RuntimeError("a fault of the user's")
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "delete":  # and this process goes on until the others are done
                del optimizer
                for _ in range(3000):
                    if len(os.listdir(os.environ["FOLDER"])) == 2:
                        return None
                    time.sleep(0.02)
                raise AssertionError("the others wait for an optimizer that is gone")
            if how == "exit":
                sys.exit(3)  # the optimizer is still there
            if how == "at once":
                os._exit(4)
        train(net, optimizer, 1, t, rank())
    pathlib.Path(os.environ["FOLDER"], str(rank())).touch()
    return optimizer.statistics()["rounds"]


def forked():
    """The end of each process that is forked from this one in the middle of training, as Python
    does; and that this goes on."""
    net = model()
    optimizer = starling.AdamW(net.parameters(), lr=0.02)
    train(net, optimizer, 3, 0, rank())
    codes = []
    faulthandler.cancel_dump_traceback_later()  # of workers.py: a child would wait for its thread
    for how in ("exit", "delete", "step", "within an average"):
        with optimizer.consensus() if how == "within an average" else contextlib.nullcontext():
            child = os.fork()
            if child == 0:
                signal.alarm(60)  # a hang is a failure
                if how == "delete":
                    del optimizer
                if how == "step":
                    optimizer.step()  # refused
                sys.exit(7)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        train(net, optimizer, 3, 3 * len(codes), rank())
    return codes, optimizer.consensus_distance(), optimizer.statistics()


class Ends(unittest.TestCase):
    def test_who_goes_leaves_no_thread_and_no_descriptor(self):
        for left in workers.run(leaves_nothing, 2):
            for scheme, counts in left.items():
                # The first one may have initialized parts of torch, and a connection of the store
                # may open or close at this moment.
                for begun, end in zip(counts[1], counts[-1], strict=True):
                    self.assertLessEqual(end, begun + 1, (scheme, counts))

    def test_a_forked_process_ends_and_takes_nothing_with_it(self):
        for codes, distance, statistics in workers.run(forked, 2):
            self.assertEqual(codes, [7, 7, 1, 7])
            self.assertLess(distance, 0.1)
            self.assertEqual((statistics["lost"], statistics["aborted"]), ([], 0))

    def test_an_average_says_who_has_left_before_it(self):
        (_, said, count), *_ = workers.ends(alone_to_an_average, 3)
        self.assertEqual(count, 1, said)
        for other in (1, 2):
            self.assertIn(f"an average goes on without worker {other}, which has left before it", said)

    def test_ends_within_an_average_and_saves_without_rank_0(self):
        with tempfile.TemporaryDirectory() as folder:
            results = workers.run(closed_within, 3, FOLDER=folder)
        self.assertEqual(results, [[[3, 0], 0], [[3, 0], 1], [[3, 0], 1]])

    def test_a_worker_that_ends_badly_costs_the_others_nothing(self):
        for how, code in (("exception", 1), ("interrupt", INTERRUPTED), ("kill", -signal.SIGKILL), ("delete", 0), ("exit", 3),
                          ("at once", 4)):
            with tempfile.TemporaryDirectory() as folder:
                ends = workers.ends(ends_badly, 3, HOW=how, FOLDER=folder)
            self.assertEqual([code for code, *_ in ends], [0, code, 0], (how, [said for _, said, _ in ends]))
            self.assertTrue(all(ends[other][2] >= 6 for other in (0, 2)))
            # A fault is said at the neighbours that still train, and nobody else's end is.
            said = [ends[other][1] for other in (0, 2)]
            heard = any("worker 1 has left with an error: going on without it" in each for each in said)
            self.assertEqual(heard, how in ("exception", "interrupt"), (how, said))


if __name__ == "__main__":
    workers.main(tears_down=True)
