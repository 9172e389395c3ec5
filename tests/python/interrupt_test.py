"""Ctrl-C while a worker waits for the others, in any call: KeyboardInterrupt, long before the wait
would end by itself."""

import os
import pathlib
import signal
import tempfile
import threading
import time
import unittest

import torch
import workers
from learning import flat, loss_of, model, rank, train

import starling

AN_HOUR = 3600.0  # seconds: much more than a test may take
CASES = [("step", "cta"), ("consensus", "cta"), ("load", "cta"), ("consensus", "a2cid2"), ("load", "a2cid2"),
         ("consensus", "ad-psgd")]


def press_ctrl_c():
    """In a second, while this worker waits. A thread of Python's sends it, and needs the lock."""
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()


def wait_for(file):
    while not file.exists():
        time.sleep(0.01)


def heard(what):
    return pathlib.Path(os.environ["FOLDER"], what)


def interrupted(call, scheme):
    """Rank 0 waits for the others, which go on once they know that it waits no longer."""
    net = model()
    optimizer = starling.AdamW(net.parameters(), lr=0.02, topology="ring", scheme=scheme)
    train(net, optimizer, 3, 0, rank())
    state = optimizer.state_dict() if call == "load" else None
    count, kept = 0, True
    if rank() == 0:
        before = flat(net)
        press_ctrl_c()
        try:
            while call == "step":
                train(net, optimizer, 1)
            if call == "load":
                optimizer.load_state_dict(state)
            else:
                with optimizer.consensus():
                    pass
            raise AssertionError("it went on without being interrupted")
        except KeyboardInterrupt:
            kept = call == "step" or torch.equal(flat(net), before)
            heard(f"{call} {scheme}").touch()
    else:
        wait_for(heard(f"{call} {scheme}"))
        if call == "consensus":
            with optimizer.consensus() as average:
                count = average.workers
        elif call == "load":
            optimizer.load_state_dict(state)
    train(net, optimizer, 20, 10, rank())
    distance, lost = optimizer.consensus_distance(), optimizer.statistics()["lost"]
    optimizer.close()
    return {"count": count, "kept": kept, "distance": distance, "lost": lost}


def neighbours():
    return [interrupted(*case) for case in CASES]


def backward():
    """With all-reduce rank 1 waits in backward(). Its mean can no longer be computed: both learn of
    it."""
    net = model()
    optimizer = starling.AdamW(net.parameters(), lr=0.02, scheme="all-reduce")
    train(net, optimizer, 3, 0, rank())
    if rank() == 1:
        press_ctrl_c()
        try:
            loss_of(net, 0).backward()
            return "it went on without being interrupted"
        except KeyboardInterrupt:
            heard("backward").touch()
    else:
        wait_for(heard("backward"))
    try:
        train(net, optimizer, 2)  # rank 1's gradients are still there for the first
    except RuntimeError as error:
        return str(error)
    return "it went on"


def not_come(where, meet):
    """Rank 1 waits for rank 0, which does not come."""
    if rank() == 0:
        wait_for(heard(where))
        return
    press_ctrl_c()
    try:
        meet()
    except KeyboardInterrupt:
        heard(where).touch()
        return
    raise AssertionError(f"{where}: it went on without being interrupted")


def meeting():
    """Before there is a store; with no tensors of the other; with no optimizer; with no world of a
    group."""
    not_come("store", lambda: starling.init(timeout=AN_HOUR))
    starling.init(timeout=AN_HOUR)
    not_come("average", lambda: starling.average([torch.zeros(3)]))
    not_come("optimizer", lambda: starling.AdamW(model().parameters(), lr=0.02))
    os.environ["MASTER_PORT"] = os.environ["SECOND_PORT"]
    torch.distributed.init_process_group("gloo")
    not_come("group", lambda: starling.init(torch.distributed.group.WORLD, timeout=AN_HOUR))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


class CtrlC(unittest.TestCase):
    def run_in_folder(self, function, count, **more):
        with tempfile.TemporaryDirectory() as folder:
            return workers.run(function, count, FOLDER=folder, **more)

    def test_ends_a_wait_for_neighbours(self):
        for (call, scheme), *ends in zip(CASES, *self.run_in_folder(neighbours, 3), strict=True):
            for end in ends:
                self.assertTrue(end["kept"] or scheme != "cta")  # gossip goes on beside it
                self.assertLess(end["distance"], 0.1)
                self.assertEqual(end["lost"], [])
            if call == "consensus":
                self.assertEqual([end["count"] for end in ends], [0, 2, 2])

    def test_ends_a_wait_in_backward(self):
        first, second = self.run_in_folder(backward, 2)
        self.assertIn("worker 1 was interrupted", first)
        self.assertRegex(second, "all-reduce.* failed on rank 1: worker 1 was interrupted|its gradient a second time")

    def test_ends_a_wait_for_those_who_do_not_come(self):
        self.run_in_folder(meeting, 2, SECOND_PORT=workers.free_port())


if __name__ == "__main__":
    workers.main()
