"""The faults of the matrix: what fails, and what must be true of the run afterwards. A fault is
one line of FAULTS. docs/failures.md promises what `expect` says."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

WORKERS = 4
STEP = 40  # at which the fault comes
TRAINED = 120  # or this one, where a newcomer must show what it has taken
DONOR = 3  # is asked first by VICTIM
LATE = 3  # comes later, with launch = later
VICTIM = 2  # in the ring its neighbours are 1 and 3, and 0 is none
LOST = (0, 1)  # whose hosts are lost, with launch = elsewhere


@dataclass(frozen=True)
class Expect:
    """What must be true of the run."""

    code: int | None = 0  # exit code of the launcher; None: any
    dead: tuple = ()  # workers that are not there at the end
    joins: tuple = ()  # workers that take another's state, once each
    again: bool = False  # or more often; the run may end while they are away
    says: tuple = ()  # patterns of messages
    silent: tuple = ()  # patterns that no message may match
    result: bool = True  # the survivors train to the last step, and write the results
    stands: tuple | None = None  # workers that make no step while the network is parted, as all others do; None: any


@dataclass(frozen=True)
class Fault:
    name: str
    what: str
    expect: Expect
    fail: str = ""  # STARLING_FAIL
    act: Callable | None = None  # act(run): from outside, once all have logged STEP or TRAINED
    arguments: tuple = ()
    # local: one launcher; ranks: each by itself; later: likewise, but LATE does not begin the run;
    # hosts: on emulated hosts; elsewhere: likewise, with a spare host for each of LOST
    launch: str = "local"
    variables: tuple = ()  # of the environment of all workers: (name, value)
    changed: tuple = ()  # launch = ranks: arguments and variables of worker VICTIM alone
    steps: int = 160
    only: str = ""  # for one scheme: the others do not have this place
    smoke: bool = False  # in `make test`

    @property
    def on_hosts(self):
        return self.launch in ("hosts", "elsewhere")


def dies(phase, victim=VICTIM, what="", **more):
    """SIGKILL in a phase of a step, without a restart."""
    expect = Expect(dead=(victim,), says=(rf"worker {victim} was killed by signal 9",
                                          rf"starling\[\d\]: .*worker {victim} is gone"))
    return Fault(f"dies-in-{phase}", what or f"SIGKILL in the phase {phase}", expect,
                 fail=f"{phase}:{STEP}:{victim}:kill", **more)


def returns(name, what, fail, *joins, again=False, says=(), steps=600, **more):
    """SIGKILL, and the launcher starts the worker again."""
    return Fault(name, what, Expect(joins=joins, again=again, says=says), fail=fail,
                 arguments=("--restart", "20"), steps=steps, **more)


def stand_still(seconds, *ranks):
    def act(run):
        pids = run.workers()
        for rank in ranks:
            os.kill(pids[rank], signal.SIGSTOP)
        time.sleep(seconds)
        for rank in ranks:
            os.kill(pids[rank], signal.SIGCONT)

    return act


def told_to_end(run):
    os.kill(run.workers()[VICTIM], signal.SIGTERM)


def away_for_an_epoch(run):
    """The others take worker 1 in again while VICTIM stands still."""
    pids = run.workers()
    os.kill(pids[VICTIM], signal.SIGSTOP)
    os.kill(pids[1], signal.SIGKILL)
    back = re.compile(r"starling\[1\]: this worker has joined")
    run.until(lambda steps: run.time_of(back), "worker 1 is back")
    os.kill(pids[VICTIM], signal.SIGCONT)


def goes_on_later(run):
    """DONOR, which has stopped, goes on once VICTIM has the state of another worker."""
    back = re.compile(rf"starling\[{VICTIM}\]: this worker has joined")
    run.until(lambda steps: run.time_of(back), f"worker {VICTIM} is back")
    os.kill(run.workers()[DONOR], signal.SIGCONT)


def comes_later(run):
    run.add(*run.late)


def stay_parted(run, seconds):
    """Notes in run.meanwhile how many steps each worker logs in the last third of the time."""
    time.sleep(seconds * 2 / 3)
    before = dict(run.steps())
    time.sleep(seconds / 3)
    run.meanwhile = {rank: step - before[rank] for rank, step in run.steps().items()}


def cut(host, seconds):
    def act(run):
        run.cable("--cut", host)
        stay_parted(run, seconds)
        run.cable("--mend", host)

    return act


def split(seconds):
    """Hosts 0 and 1 on one side, 2 and 3 on the other."""

    def act(run):
        def move(bridge):
            for host in (2, 3):
                subprocess.run(["ip", "-n", run.switch, "link", "set", f"port{host}", "master", bridge], check=True)

        subprocess.run(["ip", "-n", run.switch, "link", "add", "other", "type", "bridge"], check=True)
        subprocess.run(["ip", "-n", run.switch, "link", "set", "other", "up"], check=True)
        move("other")
        stay_parted(run, seconds)
        move("bridge")

    return act


def hosts_are_lost(run):
    """Nobody sees that the workers there have ended. They start again when the others pause."""
    for host in LOST:
        run.cable("--cut", host)
    for host in LOST:
        run.kill_workers_of(host)
    pauses = [re.compile(rf"starling\[{rank}\]: .* pauses: it misses workers 0, 1") for rank in (2, 3)]
    run.until(lambda steps: all(run.time_of(pattern) for pattern in pauses), "the others pause")
    stay_parted(run, 3)
    run.again.touch()


PAUSE = (("STARLING_PARTITION", "pause"),)

FAULTS = [
    *(dies(phase) for phase in ("data", "forward", "send", "optimizer", "test", "checkpoint")),
    dies("backward", smoke=True),
    dies("exchange", only="cta"),
    dies("vote", what="SIGKILL after a neighbour's block has come, before its own vote", only="cta"),
    dies("average", what="SIGKILL in an exact average"),
    dies("checkpoint-write", what="SIGKILL while its file of a checkpoint is written"),
    dies("checkpoint-rename", 0, "SIGKILL of the one that commits a checkpoint, before the rename", smoke=True),
    dies("checkpoint-latest", 0, "the same, after the rename"),
    Fault("dies-in-rendezvous", "SIGKILL while all start", Expect(
        code=1, result=False, says=(rf"worker {VICTIM} (has not come: it was killed by signal 9|is gone)",)),
        fail=f"rendezvous:0:{VICTIM}:kill"),
    # Workers 0 and 3 have no edge in base-2, so without 1 and 2 they would not mix.
    Fault("two-neighbours-die", "SIGKILL of workers 2 and 3 in one step", Expect(
        dead=(2, 3), says=("worker 2 is gone", "worker 3 is gone")),
        fail=f"forward:{STEP}:2:kill,forward:{STEP}:3:kill"),
    Fault("all-but-one-die", "SIGKILL of workers 0, 1 and 3 in one step", Expect(dead=(0, 1, 3)),
          fail=",".join(f"forward:{STEP}:{rank}:kill" for rank in (0, 1, 3))),
    Fault("exits", "exit code 3 in mid-step", Expect(
        code=3, dead=(VICTIM,), says=(rf"worker {VICTIM} failed with exit code 3",)),
        fail=f"forward:{STEP}:{VICTIM}:exit"),
    Fault("throws", "an exception in mid-step", Expect(
        code=1, dead=(VICTIM,), says=(rf"worker {VICTIM} failed with exit code 1",)),
        fail=f"forward:{STEP}:{VICTIM}:throw"),
    Fault("told-to-end", "SIGTERM to one worker", Expect(
        dead=(VICTIM,), says=(rf"worker {VICTIM} was told to end by signal 15",)), act=told_to_end),
    Fault("nan-gradient", "all gradients of one worker become NaN", Expect(
        code=1, dead=(VICTIM,), says=(rf"rank {VICTIM}: step {STEP + 1}: the loss is -?nan",)),
        fail=f"backward:{STEP}:{VICTIM}:nan", smoke=True),
    returns("comes-back", "SIGKILL, then started again", f"forward:{TRAINED}:{VICTIM}:kill", VICTIM),
    returns("first-comes-back", "the same for worker 0", f"forward:{TRAINED}:0:kill", 0, smoke=True),
    returns("two-neighbours-come-back", "the same for workers 1 and 2 at once",
            f"forward:{TRAINED}:1:kill,forward:{TRAINED}:2:kill", 1, 2),
    returns("donor-dies", "the donor of a state is killed while it gives it",
            f"forward:{TRAINED}:{VICTIM}:kill,join:*:{DONOR}:kill", VICTIM, DONOR),
    returns("donor-stops", "the donor of a state stops before it gives it, until another has given its own",
            f"forward:{TRAINED}:{VICTIM}:kill,join:*:{DONOR}:stop", VICTIM, DONOR,
            says=(rf"starling\[{VICTIM}\]: worker {DONOR} does not answer: asking another worker",
                  rf"starling\[{VICTIM}\]: this worker has joined .* the state of worker [01]"),
            act=goes_on_later, steps=2500),
    Fault("comes-later", "a worker that does not begin the run comes to it", Expect(
        joins=(LATE,)), act=comes_later, launch="later", steps=1500,
        variables=(("STARLING_REJOIN", "1"), ("STARLING_INITIAL_SIZE", str(LATE)))),
    Fault("newcomer-dies", "a worker dies whenever it takes a state", Expect(
        dead=(VICTIM,), says=(f"worker {VICTIM} stayed away",)),
        fail=f"forward:{TRAINED}:{VICTIM}:kill,join:*:{VICTIM}:kill,restart=any", arguments=("--restart", "2"),
        steps=1500),
    returns("flaps", "a worker dies again and again",
            f"forward:~0.02:{VICTIM}:kill,restart=any,seed=5", VICTIM, again=True),
    returns("nan-comes-back", "NaN gradients end a worker, which is started again",
            f"backward:{TRAINED}:{VICTIM}:nan", VICTIM),
    # It is the bias of the last class: a worker that mixes it has a loss of this size.
    Fault("value-jumps", "one value of a worker becomes 1e6, with jump_guard", Expect(
        joins=(VICTIM,), says=(rf"starling\[(?!{VICTIM})\d\]: worker {VICTIM}'s block \d+ jumps in ",
                               rf"starling\[{VICTIM}\]: this worker's parameters have jumped away"),
        silent=(rf"starling\[(?!{VICTIM})\d\]: this worker's .* jumped away",)),
        fail=f"optimizer:{TRAINED + 1}:{VICTIM}:jump=1e6",
        arguments=("--restart", "20", "--mixing.jump_guard", "20"), steps=600),
    Fault("stands-still-1s", "SIGSTOP for 1 s", Expect(silent=("is gone", "without")),
          act=stand_still(1, VICTIM)),
    Fault("stands-still-8s", "SIGSTOP for 8 s: the others go on without it, and it catches up", Expect(
        silent=("killed by signal",)), act=stand_still(8, VICTIM), steps=600),
    Fault("away-for-an-epoch", "SIGSTOP, until the others have taken in another worker", Expect(
        joins=(1, VICTIM), says=(rf"starling\[{VICTIM}\]: the other workers have gone on without this one",),
        silent=(rf"worker {VICTIM} (failed|was killed)",)),  # it joins by itself
        act=away_for_an_epoch, arguments=("--restart", "20"), steps=1500),
    Fault("sleeps", "one step of a worker takes 2 s more", Expect(silent=("is gone",)),
          fail=f"forward:{STEP}:{VICTIM}:sleep=2"),
    Fault("slow", "each step of a worker takes 30 ms more", Expect(silent=("is gone",)),
          fail=f"forward:*:{VICTIM}:sleep=0.03"),
    Fault("cut-1s", "a host's cable is pulled for 1 s", Expect(silent=("is gone",)), act=cut(VICTIM, 1),
          launch="hosts", steps=600),
    Fault("cut-12s", "a host's cable is pulled for 12 s", Expect(), act=cut(VICTIM, 12), launch="hosts",
          steps=2000),
    Fault("split-12s", "two hosts and two hosts are parted for 12 s", Expect(stands=()), act=split(12),
          launch="hosts", steps=2000),
    Fault("split-pauses", "the same with STARLING_PARTITION=pause", Expect(
        stands=(2, 3), says=(r"starling\[[23]\]: .* pauses: it misses workers 0, 1",
                             r"starling\[[23]\]: this worker sees enough of the others again")),
        act=split(12), launch="hosts", steps=2000, variables=PAUSE),
    Fault("first-cut-pauses", "the cable of the host with the store is pulled for 12 s, with pause", Expect(
        stands=(0,), says=(r"starling\[0\]: .* pauses: it misses workers ",)),
        act=cut(0, 12), launch="hosts", steps=2000, variables=PAUSE),
    Fault("starts-elsewhere", "two of four hosts are lost, with the store; their workers start on others, with pause", Expect(
        code=137, joins=LOST, stands=(0, 1, 2, 3),  # 137: of those that were killed
        says=(r"starling\[[23]\]: this worker sees enough of the others again",)),
        act=hosts_are_lost, launch="elsewhere", steps=2000, variables=(*PAUSE, ("STARLING_REJOIN", "1"))),
    Fault("other-recipe", "a worker with another model", Expect(
        code=None, result=False, says=("the workers differ in",)), launch="ranks",
        changed=(("--model.width", "12"), {})),
    Fault("wrong-token", "a worker with another token", Expect(code=None, result=False, says=("token",)),
          launch="ranks", changed=((), {"STARLING_TOKEN": "another-token-of-its-own"})),
    Fault("same-rank-twice", "two workers with the same rank", Expect(
        code=None, result=False, says=("was the run started twice|another process of this rank",)),
        launch="ranks", changed=((), {"RANK": "1"})),
]


def named(name):
    return next(fault for fault in FAULTS if fault.name == name)


def compiled(patterns):
    return [re.compile(pattern) for pattern in patterns]
