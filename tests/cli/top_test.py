"""`starling top` in a terminal: the picture in ptys of several sizes, and in tmux."""

import fcntl
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import termios
import time
import unittest

from command import CommandTest

TIME_LIMIT = 60
LINES = 24
FORWARD = 2  # among the phases of starling/core/failpoint.h
LATE, LATE_WITHOUT_COLOUR, PLAIN = "30;43", "1", "0"


class Screen:
    """As much of a terminal as the command uses. It fails on any other sequence."""

    def __init__(self, columns, lines):
        self.resize(columns, lines)
        self.modes, self.history = {}, []
        self.rest = ""
        self.clear()

    def resize(self, columns, lines):
        """The picture is of the earlier size until the command clears it."""
        self.columns, self.lines = columns, lines
        self.stale = True

    def clear(self):
        self.cells, self.styles = {}, {}
        self.x = self.y = 0
        self.style = PLAIN
        self.beyond = []  # what did not fit
        self.stale = False

    def feed(self, text):
        text = self.rest + text
        whole = re.match(r"(?:[^\x1b]|\x1b\[\??[0-9;]*[A-Za-z])*", text).end()
        self.rest = text[whole:]
        for control, key, character in re.findall(r"\x1b\[(\??[0-9;]*)([A-Za-z])|([^\x1b])", text[:whole]):
            self.obey(control, key) if key else self.put(character)

    def obey(self, control, key):
        if key in "hl" and control in ("?1049", "?25", "?7"):
            self.modes[control] = key == "h"
            self.history.append(control + key)
        elif (control, key) == ("", "H"):
            self.x = self.y = 0
        elif (control, key) == ("2", "J"):
            self.clear()
        elif key == "m":
            self.style = control
        else:
            raise AssertionError(f"the command sent ESC [ {control} {key}")

    def put(self, character):
        if character == "\r":
            self.x = 0
        elif character == "\n":
            self.y += 1
        elif self.x >= self.columns or self.y >= self.lines:
            self.beyond.append((self.x, self.y, character))
        else:
            assert character.isprintable(), repr(character)
            self.cells[self.x, self.y], self.styles[self.y] = character, self.style
            self.x += 1

    def text(self):
        return [self.line(y) for y in range(self.lines)]

    def line(self, y):
        return "".join(self.cells.get((x, y), " ") for x in range(self.columns)).rstrip()


class Session:
    """The command in a terminal of its own. If it `leads`, the terminal is its controlling one.
    Else it can be stopped: nobody would continue the leader of a session."""

    def __init__(self, arguments, columns, lines, leads=True, **environment):
        self.ours, self.terminal = pty.openpty()
        self.screen = Screen(columns, lines)
        self.set_size(columns, lines)
        self.mode = termios.tcgetattr(self.terminal)
        without = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        self.process = subprocess.Popen([os.environ["STARLING"], "top", *arguments], env={**without, **environment},
                                        stdin=self.terminal, stdout=self.terminal, stderr=subprocess.PIPE, text=True,
                                        **({"start_new_session": True,
                                            "preexec_fn": lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)} if leads
                                           else {"process_group": 0}))

    def set_size(self, columns, lines):
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, columns, lines):
        self.screen.resize(columns, lines)
        self.set_size(columns, lines)

    def press(self, keys):
        os.write(self.ours, keys)

    def read(self, seconds):
        """Whether anything came."""
        if not select.select([self.ours], [], [], seconds)[0]:
            return False
        self.screen.feed(os.read(self.ours, 1 << 16).decode())
        return True

    def until(self, seen):
        """The lines of the screen once seen(lines). Nothing may be beyond the screen then."""
        end = time.monotonic() + TIME_LIMIT
        while self.screen.stale or self.screen.rest or not seen(self.screen.text()):
            assert time.monotonic() < end, "\n".join(self.screen.text())
            assert self.process.poll() is None, self.process.stderr.read()
            self.read(0.1)
        while self.read(0):  # the rest of the picture
            pass
        assert not self.screen.beyond, self.screen.beyond
        return self.screen.text()

    def ended(self):
        """(exit code, stderr); the screen has everything that came."""
        end = time.monotonic() + TIME_LIMIT
        while self.process.poll() is None:  # it may wait until its output is read
            assert time.monotonic() < end
            self.read(0.1)
        while self.read(0):
            pass
        return self.process.returncode, self.process.stderr.read()

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()
        os.close(self.ours)
        os.close(self.terminal)


class Top(CommandTest):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="starling-top-")))
        self.out = self.folder / "run"
        (self.out / "phases").mkdir(parents=True)
        (self.out / "recipe.toml").write_text('mixing.scheme = "cta"\nmixing.topology = "ring"\n')

    def log(self, rank, step, **more):
        with open(self.out / "metrics.jsonl", "a") as file:
            file.write(json.dumps({"rank": rank, "step": step, "epoch": step / 10, "seconds": 0.5 * step, "loss": 1 / step,
                                   "waiting_share": 0.25, "bytes_sent": 1_000_000 * step, "blocks_aborted": 0, **more}) + "\n")

    def phase(self, rank, workers, step, seconds):
        """A worker that lives as long as this test, in `forward` for so many seconds. Its file is
        as starling/core/phases.cpp has it."""
        file = self.enterContext(open(self.out / "phases" / f"worker-{rank}", "w+b"))
        now = time.time()
        file.write(struct.pack("=16siiiiqd64sqdqdqd", b"starling phases", rank, workers, 0, 1, os.getpid(), now,
                               socket.gethostname().encode()[:63], step * 256 + FORWARD + 1, now - seconds, 0, 0, 0, 0))
        file.flush()
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def workers(self, count, late=(), silent=()):
        for rank in range(count):
            self.phase(rank, count, 20, 1000 if rank in late else 0)
            if rank in silent:
                continue
            # Steps of 0.5 s would make every worker late that this slow test does not renew.
            for step in (20, 21):
                self.log(rank, step + rank, seconds=50.0 * (step + rank), waiting_share=0.01 * (rank * 7 % 10))

    def top(self, columns=120, lines=LINES, every="100ms", **more):
        session = Session([self.out, "--every", every], columns, lines, **more)
        self.addCleanup(session.close)
        return session

    def check_restored(self, session):
        self.assertEqual(session.screen.modes, {"?1049": False, "?25": True, "?7": True})
        self.assertEqual(session.screen.history[-1], "?1049l")
        self.assertEqual(termios.tcgetattr(session.terminal), session.mode)

    def table(self, lines):
        """header -> cells, by the places of the headers; without the line of the keys."""
        top = next(y for y, line in enumerate(lines) if line.startswith("worker "))
        starts = [match.start() for match in re.finditer(r"(?<!\S)\S+(?: \S+)*", lines[top])]
        names = re.split(r"  +", lines[top])
        rows = [line for line in lines[top + 1:-1] if re.match(r"\d+  ", line)]
        return {name: [row[begin:end].strip() for row in rows]
                for name, begin, end in zip(names, starts, [*starts[1:], None], strict=True)}

    def test_columns_fit_and_the_important_ones_stay(self):
        self.workers(3, late=[1])
        session = self.top(columns=120)
        lines = session.until(lambda lines: lines[-1].startswith("q quit"))
        self.assertTrue(lines[0].startswith(f"run        running, cta over ring, 3 workers, in {self.out}"[:120]), lines)
        self.assertRegex(lines[1], r"^progress   step 22, epoch 2\.20, 0\.02 steps/s$")
        wide = self.table(lines)
        self.assertLessEqual({"worker", "process", "step", "loss", "steps/s", "waiting", "phase"}, set(wide))
        self.assertEqual(wide["worker"], ["1", "0", "2"])  # the late one first
        self.assertEqual(wide["step"], ["22", "21", "23"])
        self.assertRegex(wide["phase"][0], r"^forward of step 20 for 1\d\d\d\.\d s$")
        for columns in (60, 20, 3, 1):
            session.resize(columns, LINES)
            lines = session.until(lambda lines: lines[-1].startswith("q"))
            self.assertEqual(lines[-1], "q quit  p pause  s sort: rank"[:columns].rstrip())
            if columns == 60:
                narrow = self.table(lines)
                self.assertLess(set(narrow), set(wide))
                self.assertLessEqual({"worker", "process", "phase"}, set(narrow))
                self.assertEqual(narrow["phase"][1][:18], "forward of step 20")
        session.resize(60, 1)
        session.until(lambda lines: lines == ["q quit  p pause  s sort: rank"])
        session.press(b"q")
        self.assertEqual(session.ended(), (0, ""))
        self.check_restored(session)

    def test_a_new_line_appears_unless_paused(self):
        self.log(0, 1)
        session = self.top(columns=80)
        session.until(lambda lines: any(re.match(r"0 .* 1 ", line) for line in lines))
        self.assertEqual(session.screen.modes, {"?1049": True, "?25": False, "?7": False})
        self.assertNotEqual(termios.tcgetattr(session.terminal), session.mode)
        self.log(0, 777)
        session.until(lambda lines: any(re.match(r"0 .* 777 ", line) for line in lines))
        session.press(b"p")
        session.until(lambda lines: lines[-1].startswith("paused"))
        self.log(0, 888)
        self.log(1, 888)
        session.press(b"s")  # a paused picture is sorted too
        session.until(lambda lines: lines[-1].endswith("sort: step"))
        session.read(0.5)
        self.assertFalse(any("888" in line for line in session.screen.text()))
        session.press(b"p")
        session.until(lambda lines: sum("888" in line for line in lines) == 3)
        (self.out / "summary.json").write_text("{}")
        session.until(lambda lines: lines[0].startswith("run        finished"))
        session.press(b"q")
        self.assertEqual(session.ended(), (0, ""))

    def test_sorting(self):
        self.workers(6, silent=[3])  # nothing is known of it
        self.log(4, 3)
        session = self.top()
        for name, order in (("rank", "012345"), ("step", "401253"), ("waiting", "415203"), ("rank", "012345")):
            lines = session.until(lambda lines, name=name: lines[-1].endswith(f"sort: {name}"))
            self.assertEqual("".join(self.table(lines)["worker"]), order, name)
            session.press(b"s")

    def test_a_low_screen_shows_late_workers_and_counts_the_others(self):
        self.workers(30, late=[28, 29])
        session = self.top(lines=16)
        lines = session.until(lambda lines: lines[-1].startswith("q quit"))
        table = self.table(lines)
        self.assertEqual(table["worker"][:3], ["28", "29", "0"])
        self.assertEqual(lines[-2], f"{30 - len(table['worker'])} more workers")
        top = next(y for y, line in enumerate(lines) if line.startswith("worker "))
        self.assertEqual([session.screen.styles[y] for y in range(top + 1, top + 4)], [LATE, LATE, PLAIN])
        session.resize(120, 5)
        lines = session.until(lambda lines: lines[-1].startswith("q quit") and lines[1].startswith("worker"))
        self.assertEqual(self.table(lines)["worker"], ["28"])
        self.assertEqual(lines[-2], "29 more workers, 1 of them late")

    def test_no_color(self):
        self.workers(2, late=[1])
        session = self.top(NO_COLOR="1")
        lines = session.until(lambda lines: lines[-1].startswith("q quit"))
        top = next(y for y, line in enumerate(lines) if line.startswith("worker "))
        self.assertEqual(session.screen.styles[top + 1], LATE_WITHOUT_COLOUR)

    def test_signals_restore_the_terminal(self):
        self.log(0, 1)
        for send, code in ((lambda session: session.process.send_signal(signal.SIGTERM), 128 + signal.SIGTERM),
                           (lambda session: session.press(b"\x03"), 128 + signal.SIGINT),
                           (lambda session: session.process.send_signal(signal.SIGHUP), 128 + signal.SIGHUP)):
            with self.subTest(code=code):
                session = self.top(every="1h")
                session.until(lambda lines: lines[-1].startswith("q quit"))
                send(session)
                self.assertEqual(session.ended(), (code, ""))
                self.check_restored(session)

    def test_a_stop_gives_the_terminal_back_until_it_goes_on(self):
        self.log(0, 1)
        for leads in (False, True):
            with self.subTest(leads=leads):
                self.check_stop(self.top(leads=leads), leads)

    def check_stop(self, session, leads):
        session.until(lambda lines: lines[-1].startswith("q quit"))
        session.process.send_signal(signal.SIGTSTP)
        if not leads:
            os.waitid(os.P_PID, session.process.pid, os.WSTOPPED)
            while session.read(0):
                pass
            self.check_restored(session)
            session.process.send_signal(signal.SIGCONT)
        session.until(lambda lines: lines[-1].startswith("q quit") and session.screen.history.count("?1049h") == 2)
        session.press(b"q")
        self.assertEqual(session.ended(), (0, ""))
        self.check_restored(session)
        self.assertEqual(session.screen.history.count("?1049h"), 2)

    def test_a_run_that_goes_away_is_said(self):
        self.log(0, 1)
        session = self.top()
        session.until(lambda lines: lines[-1].startswith("q quit"))
        self.out.rename(self.folder / "elsewhere")
        lines = session.until(lambda lines: lines[0].startswith(f'no new figures: "{self.out}": is no folder of a run'[:120]))
        self.assertEqual(self.table(lines)["step"], ["1"])
        (self.folder / "elsewhere").rename(self.out)
        session.until(lambda lines: lines[0].startswith("run "))

    def test_without_a_terminal(self):
        self.log(0, 1)
        self.assertEqual(self.usage_error("top", self.out),
                         "top: stdin and stdout must be a terminal; `starling status RUN` prints the table once")
        self.assertIn("RUN", self.usage_error("top").upper())
        self.assertIn("--every: ", self.usage_error("top", self.out, "--every", "1ms"))

    def test_what_is_no_run_leaves_the_screen_alone(self):
        shutil.rmtree(self.out)
        session = self.top()
        code, said = session.ended()
        self.assertEqual((code, said), (2, f'starling: "{self.out}": is no folder of a run\n'))
        self.assertEqual(session.screen.history, [])

    @unittest.skipUnless(shutil.which("tmux"), "tmux is not installed")
    def test_in_tmux(self):
        """A terminal that is not this test's own: it shows the table, and what was there before."""
        self.workers(2, late=[1])
        tmux = ["tmux", "-f", "/dev/null", "-S", self.folder / "socket"]
        environment = {**os.environ, "TERM": "xterm", "STARLING_TOP_RUN": str(self.out)}
        self.addCleanup(subprocess.run, [*tmux, "kill-server"], stderr=subprocess.DEVNULL)
        subprocess.run([*tmux, "new-session", "-d", "-x", "60", "-y", "12",
                        'echo before; "$STARLING" top "$STARLING_TOP_RUN"; echo "code $?"; exec sleep 1000'],
                       env=environment, check=True)

        def shown(seen):
            end = time.monotonic() + TIME_LIMIT
            while True:
                text = subprocess.run([*tmux, "capture-pane", "-p"], check=True, stdout=subprocess.PIPE, text=True).stdout
                if seen(text):
                    return text.splitlines()
                self.assertLess(time.monotonic(), end, text)
                time.sleep(0.1)

        lines = shown(lambda text: "q quit" in text)
        self.assertEqual(len(lines), 12)
        self.assertTrue(lines[-1].startswith("q quit  p pause  s sort: rank"), lines)
        self.assertEqual(self.table(lines)["worker"], ["1", "0"])
        subprocess.run([*tmux, "send-keys", "q"], check=True)
        self.assertEqual(shown(lambda text: "code" in text)[:2], ["before", "code 0"])
