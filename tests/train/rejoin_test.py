"""Workers that are killed, and started again while the others train."""

import os
import re
import signal

from runs import WORKERS, Run, free_port, load_tests, long  # noqa: F401

STEPS = 1000  # much more than a worker needs to come back


class Rejoin(Run):
    def start_again(self, *arguments, **changed):
        return self.start("--restart", "20", "--run.steps", str(STEPS), *map(str, arguments), **changed)

    def until_back(self, process, rank, after):
        """Waits until this worker has logged steps beyond those that all had made."""
        self.until(process, lambda steps: steps[rank] > after)

    def kill(self, process, *ranks):
        """Kills these workers, once all train. Returns the last step that one has logged."""
        ids = self.until_step(process, 10)
        last = max(records[-1]["step"] for records in self.metrics().values())
        for rank in ranks:
            os.kill(ids[rank], signal.SIGKILL)
        return last

    def check_end(self, process, *joined):
        """All finish. The workers `joined`, and no others, have joined the run."""
        _, stderr = self.finish(process, 0)
        found = re.findall(r"starling\[(\d)\]: this worker has joined the run after step (\d+), with the state of "
                           r"worker (\d)", stderr)
        self.assertEqual(sorted(int(rank) for rank, _, _ in found), sorted(joined), stderr)
        self.assertTrue(all(rank != donor for rank, _, donor in found), stderr)
        summary = self.summary()
        self.assertEqual((summary["workers"], summary["workers_lost"]), (WORKERS, 0), stderr)
        self.assertGreaterEqual(summary["worst_accuracy"], 0.9)
        for records in self.metrics().values():
            self.assertEqual(records[-1]["step"], STEPS)
        return stderr

    def check_killed(self, rank, *arguments):
        process = self.start_again(*arguments)
        last = self.kill(process, rank)
        self.until_back(process, rank, last + 5)
        stderr = self.check_end(process, rank)
        self.assertIn(f"worker {rank} was killed by signal 9; restarted", stderr)
        # It takes the others' place in the run, and repeats none of their steps.
        steps = [record["step"] for record in self.metrics()[rank]]
        self.assertEqual(steps, sorted(set(steps)))

    @long
    def test_a_killed_worker_comes_back(self):
        self.check_killed(2)

    @long  # tests/faults/ has it among its smoke tests
    def test_even_the_first(self):
        self.check_killed(0)

    @long
    def test_so_it_does_in_gossip(self):
        self.check_killed(1, "--mixing.scheme", "a2cid2", "--mixing.topology", "ring")

    @long
    def test_two_come_back_at_once(self):
        process = self.start_again("--log.eval_every", 7, "--train.ema", 0.9)
        last = self.kill(process, 0, 1)
        for rank in (0, 1):
            self.until_back(process, rank, last + 5)
        self.check_end(process, 0, 1)

    @long
    def test_a_resumed_run_is_joined_where_it_is(self):
        folder = self.out / "checkpoints"
        first = self.start("--run.steps", str(STEPS), "--checkpoint.every", "30")
        self.until(first, lambda steps: (folder / "latest").exists())
        first.terminate()
        first.communicate()
        resumed = folder / (folder / "latest").read_text().strip()
        # The checkpoint that was resumed is gone when worker 1 comes, and `latest` is another one.
        process = self.start_again("--checkpoint.every", 30, "--checkpoint.keep", 2, "--resume", folder)
        self.until(process, lambda steps: len(steps) == WORKERS and not resumed.exists())
        last = self.kill(process, 1)
        self.until_back(process, 1, last + 5)
        self.check_end(process, 1)
        steps = [record["step"] for record in self.metrics()[1]]
        self.assertEqual(steps, sorted(set(steps)))

    @long
    def test_a_donor_may_die(self):
        # Worker 2 asks worker 0 first.
        process = self.start_again(STARLING_FAIL="join:*:0:kill")
        last = self.kill(process, 2)
        for rank in (0, 2):
            self.until_back(process, rank, last + 5)
        self.check_end(process, 0, 2)

    @long
    def test_a_donor_without_memory_for_a_copy_trains_on(self):
        # Worker 2 asks worker 0 first, then worker 1.
        process = self.start_again("--run.steps", 20 * STEPS, STARLING_FAIL="join:*:0:throw")
        last = self.kill(process, 2)
        self.until_back(process, 2, last + 5)
        process.terminate()
        _, stderr = self.finish(process, 143)
        self.assertIn("starling[0]: newcomers cannot have this worker's state: failpoint", stderr)
        self.assertRegex(stderr, r"starling\[2\]: this worker has joined the run after step \d+, with the state of "
                                 r"worker 1")

    @long
    def test_a_newcomer_may_die(self):
        process = self.start("--restart", "2", "--run.steps", str(STEPS), STARLING_FAIL="join:*:2:kill,restart=any")
        self.kill(process, 2)
        _, stderr = self.finish(process, 0)
        self.assertIn("restarted in 1.0 s (2 of 2)", stderr)
        summary = self.summary()
        self.assertEqual((summary["workers"], summary["workers_lost"]), (WORKERS, 1), stderr)
        self.assertGreaterEqual(summary["worst_accuracy"], 0.9)

    @long
    def test_a_worker_that_was_left_out_comes_in_again(self):
        process = self.start_again("--run.steps", 20 * STEPS)
        ids = self.until_step(process, 10)
        os.kill(ids[1], signal.SIGSTOP)
        last = self.kill(process, 2)
        self.until_back(process, 2, last + 5)  # the others have an epoch without worker 1
        os.kill(ids[1], signal.SIGCONT)
        self.until_back(process, 1, max(records[-1]["step"] for records in self.metrics().values()))
        process.terminate()
        _, stderr = self.finish(process, 143)
        self.assertIn("starling[1]: the other workers have gone on without this one, which was away: it joins them "
                      "again", stderr)
        self.assertRegex(stderr, r"starling\[1\]: this worker has joined the run after step")

    def by_itself(self, **places):
        """A function that starts a worker without a launcher. Rank 0 hosts the store."""
        places |= {"WORLD_SIZE": str(WORKERS), "LOCAL_WORLD_SIZE": str(WORKERS), "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(free_port("127.0.0.1")), "STARLING_REJOIN": "1"}
        return lambda rank, steps=STEPS: self.start("--run.steps", str(steps), workers=0, RANK=str(rank),
                                                    LOCAL_RANK=str(rank), **places)

    def check_joined(self, *processes):
        """All finish, and the last has joined the others: after which step, with whose state."""
        said = [self.finish(process, 0)[1] for process in processes]
        joined = r"this worker has joined the run after step (\d\d+), with the state of worker (\d)"
        self.assertRegex(said[-1], joined)
        summary = self.summary()
        self.assertEqual((summary["workers"], summary["workers_lost"]), (WORKERS, 0), said)
        self.assertGreaterEqual(summary["worst_accuracy"], 0.9)
        return map(int, re.search(joined, said[-1]).groups())

    def all_train(self, begun):
        self.until(begun[0], lambda steps: len(steps) == len(begun) and min(steps.values()) >= 10)

    def test_a_worker_may_come_later(self):
        start = self.by_itself(STARLING_INITIAL_SIZE=str(WORKERS - 1))
        begun = [start(rank) for rank in range(WORKERS - 1)]
        self.all_train(begun)
        step, donor = self.check_joined(*begun, start(WORKERS - 1))
        # The time of the run goes on.
        lines = self.metrics()
        before = max(line["seconds"] for line in lines[donor] if line["step"] < step)
        self.assertGreater(lines[WORKERS - 1][0]["seconds"], before)

    @long
    def test_the_first_comes_back_to_an_empty_store_of_its_own(self):
        start = self.by_itself(STARLING_TOKEN="the-token-of-this-run")
        first, *others = (start(rank) for rank in range(WORKERS))
        self.all_train([first, *others])
        first.kill()
        first.communicate()
        self.check_joined(*others, start(0))

    @long
    def test_another_worker_hosts_the_store_while_the_first_is_away(self):
        start = self.by_itself(STARLING_TOKEN="the-token-of-this-run")
        first, second, third = (start(rank, 100 * STEPS) for rank in range(WORKERS))
        self.all_train([first, second, third])
        for gone in (first, third):
            gone.kill()
            gone.communicate()
        last = max(records[-1]["step"] for records in self.metrics().values())
        third = start(2, 100 * STEPS)
        self.until_back(third, 2, last)
        first = start(0, 100 * STEPS)
        self.until_back(first, 0, last)
        for process in (first, second, third):
            process.terminate()
        said = [self.finish(process, 143)[1] for process in (first, second, third)]
        for newcomer in (said[0], said[2]):
            self.assertIn("this worker has joined the run after step", newcomer)

    def test_none_is_left_to_join(self):
        process = self.start_again("--run.steps", 100 * STEPS)
        self.kill(process, *range(WORKERS))
        _, stderr = self.finish(process, process.wait())
        self.assertNotEqual(process.returncode, 0)
        self.assertNotIn("has joined", stderr)

    def test_what_cannot_be_joined(self):
        for arguments, why in [
            (("--mixing.scheme", "all-reduce"), "--restart is not for scheme all-reduce"),
            (("--mixing.hierarchy", "node", "--mixing.workers_per_node", 3), "--restart is not for mixing.hierarchy"),
            (("--mixing.topology", "auto"), "--restart is not for mixing.topology = auto"),
            (("--mixing.scheme", "a2cid2", "--run.ends", "together"), "--restart is not for run.ends = together"),
        ]:
            with self.subTest(why):
                self.assertIn(why, self.usage_error("--restart", "3", *map(str, arguments)))
