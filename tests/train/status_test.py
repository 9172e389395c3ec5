"""`starling status` on a real run: a worker that sleeps is named with its phase, in the table, as
JSON, for Prometheus and on the page."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

from runs import WORKERS, Run, command, environment, load_tests  # noqa: F401  unittest calls load_tests

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from browser import open_page  # noqa: E402

NAME = r"starling_[a-z_]+"
SAMPLE = re.compile(rf'({NAME})(?:\{{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)+)\}})? (-?[0-9.e+-]+)')


def samples_of(text):
    """(name, labels) -> value, of a text in Prometheus' format; every line must be one of it."""
    samples, types = {}, {}
    for line in text.splitlines():
        if help_or_type := re.fullmatch(rf"# (HELP|TYPE) ({NAME}) (.+)", line):
            kind, name, rest = help_or_type.groups()
            if kind == "TYPE":
                assert rest in ("gauge", "counter") and name not in types, line
                assert (rest == "counter") == name.endswith("_total"), line
                types[name] = rest
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample, line
        name, labels, value = sample.groups()
        assert list(types)[-1] == name, f"{line}: of no family, or not beside its own"
        key = (name, frozenset(re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', labels or "")))
        assert key not in samples, line
        samples[key] = float(value)
    return samples


class Status(Run):
    def status(self, *arguments):
        return command("status", self.out, *arguments).stdout

    def until_late(self, process):
        """The status once the others wait for worker 1. Before, a busy machine may make any of them
        late."""
        while True:
            if (self.out / "metrics.jsonl").exists():
                status = json.loads(self.status("--json"))
                waiting = [worker for worker in status["workers"] if (worker["phase"] or {}).get("name") == "exchange"]
                if status["late"] == [1] and len(waiting) == WORKERS - 1:
                    return status
            self.assertIsNone(process.poll(), "the run has ended before a worker was late")
            time.sleep(0.1)

    @contextlib.contextmanager
    def served(self, *arguments):
        """The port of `starling status --serve 0` while it lives."""
        server = subprocess.Popen([os.environ["STARLING"], "status", self.out, "--serve", "0"], env=environment(),
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            port = int(re.match(r"http://127\.0\.0\.1:(\d+)/ shows ", server.stdout.readline()).group(1))
            yield port
            server.send_signal(signal.SIGINT)
            _, stderr = server.communicate()
            self.assertEqual((server.returncode, stderr), (130, ""))
        finally:
            server.kill()
            server.communicate()

    def ask(self, port, path, method="GET", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer, body

    def check_late(self, status):
        self.assertEqual((status["state"], status["late"], len(status["workers"])), ("running", [1], WORKERS))
        host = socket.gethostname()
        for worker in status["workers"]:
            self.assertEqual((worker["process"], worker["host"], worker["restarts"]), ("running", host, 0))
            self.assertGreaterEqual(worker["step"], 19)
            self.assertGreater(worker["steps_per_second"], 0)
            self.assertGreater(worker["bytes_sent"], 0)
            self.assertEqual(worker["blocks_aborted"], 0)
        phase = status["workers"][1]["phase"]
        self.assertEqual((phase["name"], phase["step"]), ("forward", 20))
        self.assertGreater(phase["seconds"], 1)

    def check_samples(self, text):
        samples = samples_of(text)
        ranks = {}
        for (name, labels), value in samples.items():
            if "rank" in dict(labels):
                ranks.setdefault(name, {})[int(dict(labels)["rank"])] = value
        self.assertEqual(ranks["starling_worker_late"], {0: 0, 1: 1, 2: 0})
        self.assertEqual(ranks["starling_worker_running"], {0: 1, 1: 1, 2: 1})
        self.assertIn({"rank": "1", "host": socket.gethostname(), "phase": "forward"},
                      [dict(labels) for name, labels in samples if name == "starling_worker_phase_seconds"])
        self.assertEqual(samples["starling_run_workers", frozenset()], WORKERS)
        for name in ("step", "epoch", "loss", "steps_per_second", "waiting_ratio", "sent_bytes_total", "restarts", "round",
                     "membership_epoch", "joins_total", "jumped_blocks_total"):
            self.assertEqual(sorted(ranks[f"starling_worker_{name}"]), [0, 1, 2])

    def test_a_straggler_is_named_with_its_phase_while_it_sleeps(self):
        process = self.start(STARLING_FAIL="forward:20:1:sleep=3600")
        try:
            self.check_late(self.until_late(process))
            text = self.status()
            self.assertRegex(text, rf"(?m)^late +worker 1 on {re.escape(socket.gethostname())}: forward of step 20 for ")
            self.assertRegex(text, r"(?m)^0 .* running ")
            self.check_samples(self.status("--prometheus"))
            with self.served() as port:
                answer, body = self.ask(port, "/status.json")
                self.assertEqual((answer.status, answer.headers["Content-Type"]), (200, "application/json"))
                self.check_late(json.loads(body))
                answer, body = self.ask(port, "/metrics")
                self.assertEqual(answer.headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
                self.check_samples(body)
                shown, console = open_page(f"http://127.0.0.1:{port}/", self.folder / "profile")
                self.assertEqual(console, [])
                self.assertRegex(shown, r'<tr class="late"><td>1</td><td>[^<]+</td><td>running</td><td>late</td>')
                self.assertEqual(len(re.findall(r'<tr class="running">', shown)), WORKERS - 1)
                self.assertRegex(shown, r"forward of step 20 for ")
                self.check_refusals(port)
        finally:
            self.kill(process)
        status = json.loads(self.status("--json"))
        self.assertEqual((status["state"], status["late"]), ("ended", []))
        self.assertEqual({worker["process"] for worker in status["workers"]}, {"gone"})

    def check_refusals(self, port):
        for method, path, code in (("GET", "/metrics.jsonl", 404), ("GET", "/../recipe.toml", 404), ("POST", "/", 405),
                                   ("DELETE", "/status.json", 405), ("GET", "/status.json?x=1", 200)):
            with self.subTest(method=method, path=path):
                self.assertEqual(self.ask(port, path, method)[0].status, code)
        for host, code in (("localhost", 200), (f"LOCALHOST:{port}", 200), ("192.0.2.1:80", 200), ("[::1]:80", 200),
                           ("example.org", 403), (f"127.0.0.1.example.org:{port}", 403), ("abc.de", 403)):
            with self.subTest(host):
                self.assertEqual(self.ask(port, "/status.json", Host=host)[0].status, code)
        answer, body = self.ask(port, "/status.json", "HEAD")
        self.assertEqual((answer.status, body), (200, ""))
        self.assertGreater(int(answer.headers["Content-Length"]), 0)
        for request, code in ((b"nonsense\r\n\r\n", b"HTTP/1.1 400 "), (b"x" * 10000, b"")):
            with socket.create_connection(("127.0.0.1", port)) as raw:
                raw.sendall(request)
                with contextlib.suppress(ConnectionResetError):
                    self.assertTrue(raw.recv(1000).startswith(code))
        with contextlib.ExitStack() as all:  # the oldest of them end
            silent = [all.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(100)]
            self.assertEqual(self.ask(port, "/status.json")[0].status, 200)
            self.assertEqual(silent[0].recv(1), b"")
        done = command("status", self.out, "--serve", port, code=1)
        self.assertEqual(done.stderr, f"starling: 127.0.0.1:{port}: cannot be listened at: Address already in use\n")

    def test_a_finished_run_is_finished(self):
        self.train("--run.steps", "4")
        status = json.loads(self.status("--json"))
        self.assertEqual((status["state"], status["late"], status["step"], status["scheme"]), ("finished", [], 4, "cta"))
        summary = self.summary()
        self.assertEqual((status["test"]["score_name"], status["test"]["score"], status["test"]["consensus_distance"]),
                         ("accuracy", summary["accuracy"], summary["consensus_distance"]))
        samples = samples_of(self.status("--prometheus"))
        self.assertEqual(samples["starling_test_score", frozenset({("score", "accuracy")})], summary["accuracy"])

    def test_wrong_input_is_one_line(self):
        self.out.mkdir()
        for arguments, said in (
                ([self.out / "none"], 'none": is no folder of a run'),
                ([self.out], "holds no run of `starling train`"),
                ([self.out, "--serve", "70000"], '--serve "70000": wants PORT or HOST:PORT'),
                ([self.out, "--serve", "http"], '--serve "http": wants PORT or HOST:PORT'),
                ([self.out, "--serve", "here:80"], "the host must be an address in numbers"),
                ([self.out, "--json", "--prometheus"], "excludes"),
                ([], "run is required")):
            with self.subTest(said):
                stderr = command("status", *arguments, code=2).stderr
                self.assertIn(said, stderr)
                self.assertEqual(stderr.count("\n"), 1, stderr)
