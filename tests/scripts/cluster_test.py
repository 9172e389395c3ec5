"""scripts/cluster, on a real emulated cluster if this machine allows it. Otherwise the tests are
skipped, with its reason."""

import faulthandler
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CLUSTER = ROOT / "scripts/cluster"
sys.path.insert(0, str(ROOT / "tests/train"))
from runs import environment, write_images  # noqa: E402

STEPS = 60


def run(*arguments, **changed):
    return subprocess.run([CLUSTER, *arguments], env=environment(**changed), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True)


PROBE = run("--hosts", "1", "true")
HERE = unittest.skipIf(PROBE.returncode == 125, PROBE.stderr.strip())


class Refusals(unittest.TestCase):
    def refusal(self, *arguments):
        done = run(*arguments)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        return done.stderr

    def test_one_line_says_what_is_allowed(self):
        self.assertIn("--hosts '0' is not allowed: a number from 1 to 200", self.refusal("--hosts", "0", "true"))
        self.assertIn("--ranks '010' is not allowed", self.refusal("--ranks", "010", "true"))
        self.assertIn("--rate 'fast' is not allowed: a rate such as 1gbit", self.refusal("--rate", "fast", "true"))
        self.assertIn("--port needs a value", self.refusal("--port"))
        self.assertIn("unknown option '--host'", self.refusal("--host", "2", "true"))
        self.assertIn("no command to run", self.refusal("--hosts", "2"))

    def test_help(self):
        done = run("--help")
        self.assertEqual(done.returncode, 0)
        for option in "--hosts --ranks --rate --port --grace --name --cut --mend".split():
            self.assertIn(f" {option} ", done.stdout)

    @unittest.skipIf(os.geteuid() != 0, "only root can become somebody else")
    def test_without_root(self):
        done = subprocess.run([CLUSTER, "true"], user=65534, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (125, "cluster: no cluster here: this needs root\n"))

    @HERE
    def test_a_host_that_is_not_there_cannot_be_cut(self):
        self.assertIn("no cluster 'nobody' with a host 1 is running", self.refusal("--name", "nobody", "--cut", "1"))


@HERE
class Cluster(unittest.TestCase):
    def setUp(self):
        self.name = f"test-{uuid.uuid4().hex[:8]}"
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="starling-cluster-")))

    def run_it(self, *arguments, **changed):
        done = run("--name", self.name, *arguments, **changed)
        self.nothing_is_left()
        return done

    def nothing_is_left(self):
        self.assertEqual(list(pathlib.Path("/run/netns").glob(f"starling-{self.name}-*")), [])
        self.assertFalse((pathlib.Path("/run/starling-cluster") / self.name).exists())
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                self.assertNotIn(self.name.encode(), (entry / "environ").read_bytes(), entry)
            except OSError:
                pass

    def sleeping(self):
        """A cluster of two hosts on which every rank sleeps, and waits until they do."""
        cluster = subprocess.Popen(
            [CLUSTER, "--name", self.name, "sh", "-c", f": > {self.folder}/$RANK; sleep 1000"],
            env=environment(MARK=self.name), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True)
        while cluster.poll() is None and len(list(self.folder.iterdir())) < 2:
            time.sleep(0.02)
        self.assertIsNone(cluster.returncode)
        return cluster

    def test_every_rank_knows_its_place(self):
        keys = "RANK LOCAL_RANK NODE_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT GLOO_SOCKET_IFNAME"
        script = "echo " + " ".join(f"${key}" for key in keys.split()) + " $(cat /sys/class/net/eth0/operstate)"
        done = self.run_it("--hosts", "2", "--ranks", "2", "--port", "1234", "sh", "-c", script)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(sorted(done.stdout.splitlines()),
                         [f"{r} {r % 2} {r // 2} 4 2 10.99.0.1 1234 eth0 up" for r in range(4)])

    def test_all_have_one_token_and_a_given_one_is_kept(self):
        tokens = self.run_it("sh", "-c", "echo $STARLING_TOKEN").stdout.splitlines()
        self.assertRegex(tokens[0], "^[0-9a-f]{32}$")
        self.assertEqual(tokens[0], tokens[1])
        self.assertEqual(self.run_it("sh", "-c", "echo $STARLING_TOKEN", STARLING_TOKEN="mine").stdout, "mine\nmine\n")

    def test_both_ends_of_every_cable_are_limited(self):
        show = f"tc qdisc show dev eth0; [ $RANK = 1 ] || tc -n starling-{self.name}-switch qdisc show"
        limits = re.findall("tbf .* rate (\\S+)", self.run_it("--rate", "200mbit", "sh", "-c", show).stdout)
        self.assertEqual(limits, ["200Mbit"] * 4)
        self.assertNotIn("tbf", self.run_it("--rate", "0", "sh", "-c", show).stdout)

    def test_hosts_may_have_cards_of_their_own_rates(self):
        show = "echo $RANK $(tc qdisc show dev eth0)"
        said = self.run_it("--hosts", "3", "--rate", "50mbit,200mbit", "sh", "-c", show).stdout
        self.assertEqual(sorted(re.findall("^(\\d) .*tbf .* rate (\\S+)", said, re.MULTILINE)),
                         [("0", "50Mbit"), ("1", "200Mbit"), ("2", "200Mbit")])

    def test_the_first_to_fail_ends_the_others_and_gives_the_status(self):
        script = "[ $RANK = 1 ] || exec sleep 1000; exit 7"
        done = self.run_it("--hosts", "3", "--grace", "0", "sh", "-c", script, MARK=self.name)
        self.assertEqual(done.returncode, 7)
        self.assertEqual(sorted(done.stderr.splitlines()), [
            "cluster: rank 0 is ended 0 s later", "cluster: rank 1 has ended with status 7",
            "cluster: rank 2 is ended 0 s later"])

    def test_who_ends_within_the_grace_is_not_ended(self):
        script = f"while [ ! -e {self.folder}/1 ]; do sleep 0.05; done; echo done"
        done = self.run_it("--grace", "600", "sh", "-c", f"[ $RANK = 1 ] && {{ : > {self.folder}/1; exit 3; }}; {script}")
        self.assertEqual((done.returncode, done.stdout), (3, "done\n"))

    def test_interrupted(self):
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            for file in self.folder.iterdir():
                file.unlink()
            cluster = self.sleeping()
            cluster.send_signal(number)
            cluster.communicate()
            self.assertEqual(cluster.returncode, status)
            self.nothing_is_left()

    def test_what_a_killed_run_left_is_removed(self):
        cluster = self.sleeping()
        taken = run("--name", self.name, "true")
        self.assertEqual(taken.returncode, 2)
        self.assertIn(f"a cluster '{self.name}' is running", taken.stderr)
        cluster.kill()
        cluster.wait()
        cluster.stdout.close()
        done = run("--name", f"other-{self.name}", "true")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.nothing_is_left()

    def test_a_cable_is_pulled_and_plugged_in_again(self):
        cluster = self.sleeping()
        for cable, carries in (("--cut", "0\n"), ("--mend", "1\n")):
            done = run("--name", self.name, cable, "1")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            carrier = ["ip", "netns", "exec", f"starling-{self.name}-1", "cat", "/sys/class/net/eth0/carrier"]
            while subprocess.run(carrier, capture_output=True, text=True).stdout != carries:
                time.sleep(0.02)
        cluster.terminate()
        cluster.communicate()
        self.nothing_is_left()

    def recipe(self):
        write_images(self.folder, 480, 100)
        path = self.folder / "recipe.toml"
        path.write_text(f"""
run = {{steps = {STEPS}, threads = 1}}
data = {{dir = "{self.folder}", flip = false}}
model.width = 8
train.batch = 16
log.every = 1
""")
        return path

    def train(self, hosts, *options):
        """Each host with a folder of its own for its files."""
        train = 'starling=$1 recipe=$2 out=$3; shift 3; exec "$starling" train "$recipe" --json --out "$out/$NODE_RANK" "$@"'
        return [CLUSTER, "--name", self.name, "--hosts", str(hosts), *options, "--grace", "600", "sh", "-c", train,
                "sh", os.environ["STARLING"], self.recipe(), self.folder]

    def test_two_hosts_train(self):
        done = subprocess.run(self.train(2), env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        summary = json.loads(done.stdout)
        self.assertEqual((summary["workers"], summary["workers_lost"], summary["steps"]), (2, 0, STEPS))
        self.assertGreater(summary["bytes_sent_per_worker"], 0)
        self.assertLess(summary["consensus_distance"], 0.01)
        self.nothing_is_left()

    # Two workers on each host: shared memory inside, TCP between hosts, in one schedule.
    def test_two_hosts_with_two_workers_each_train(self):
        done = subprocess.run([*self.train(2, "--ranks", "2"), "--mixing.topology", "complete"], stdin=subprocess.DEVNULL,
                              env=environment(STARLING_LOG="info"), capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        summary = json.loads(done.stdout)
        self.assertEqual((summary["workers"], summary["workers_lost"], summary["steps"]), (4, 0, STEPS))
        self.assertEqual(summary["blocks_aborted"], 0)
        self.assertLess(summary["consensus_distance"], 1e-5)
        reads = re.findall(r"starling\[(\d)\]: mapped transport: worker (\d) reads this worker's blocks", done.stderr)
        self.assertEqual(sorted(set(reads)), [("0", "1"), ("1", "0"), ("2", "3"), ("3", "2")], done.stderr)
        over_tcp = re.findall(r"starling\[(\d)\]: mapped transport: worker (\d) .*: its blocks go over TCP", done.stderr)
        self.assertEqual(len(set(over_tcp)), 8, done.stderr)
        self.nothing_is_left()

    # Host 2 is disconnected in mid-run. The others go on without it, and it goes on alone.
    def test_a_host_is_cut_off(self):
        with open(self.folder / "said", "w+") as said:
            training = subprocess.Popen([*self.train(3), "--mixing.topology", "complete"], env=environment(),
                                        stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)
            metrics = self.folder / "0/metrics.jsonl"
            while training.poll() is None and not (metrics.exists() and metrics.stat().st_size):
                time.sleep(0.02)
            cut = run("--name", self.name, "--cut", "2")
            self.assertEqual((cut.returncode, cut.stderr), (0, ""))
            training.wait()
            said.seek(0)
            text = said.read()
        self.assertEqual(training.returncode, 0, text)
        summary = json.loads((self.folder / "0/summary.json").read_text())
        self.assertEqual((summary["workers"], summary["workers_lost"], summary["steps"]), (3, 1, STEPS), text)
        self.assertEqual((self.folder / "2/metrics.jsonl").read_text().count("\n"), STEPS, text)
        self.nothing_is_left()

    # 200 Mbit/s in each direction, but host 1 sends 50.
    def test_a_probe_measures_the_cards_and_names_the_one_that_sends_slowly(self):
        slow = "tc qdisc replace dev eth0 root tbf rate 50mbit burst 128kb latency 50ms"
        script = f'[ $RANK != 2 ] || {slow}; exec "$0" probe --seconds 20 --out "$1"'
        done = self.run_it("--hosts", "3", "--ranks", "2", "--rate", "200mbit", "--grace", "600", "sh", "-c", script,
                           os.environ["STARLING"], self.folder / "network.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        network = json.loads((self.folder / "network.json").read_text())
        self.assertEqual([host["workers"] for host in network["hosts"]], [[0, 1], [2, 3], [4, 5]])
        names = [host["name"] for host in network["hosts"]]
        for host, name in enumerate(names):
            self.assertTrue(name.endswith(f" (10.99.0.{host + 1})"), names)
        slowest, *others = sorted(network["hosts"], key=lambda host: host["send"])
        self.assertEqual(slowest["name"], names[1])
        for host in others:  # a quarter of them, by the line rate
            self.assertLess(slowest["send"], 0.5 * host["send"], network)
        self.assertGreater(network["inside"]["rate"], slowest["receive"])
        self.assertEqual([shape["peers"] for shape in network["shapes"]], [1, 2, 3, 5])
        for shape in network["shapes"]:
            self.assertGreater(shape["share"], 0, network)
        largest = network["all_reduce"][-1]
        # No line exceeds its rate.
        self.assertGreater(largest["seconds"], 0.5 * largest["bytes"] / 6.25e6)
        said = done.stdout.splitlines()
        self.assertEqual([line.split(", ")[0].split(" sends ")[0] for line in said if re.match("slow|asymmetric|far", line)],
                         [f"slow host: {names[1]}", f"asymmetric host: {names[1]}"], done.stdout)

    def test_a_probe_names_the_slow_way_between_two_hosts(self):
        slow = "tc qdisc replace dev eth0 root tbf rate 50mbit burst 128kb latency 50ms"
        script = f'[ $RANK != 1 ] || {slow}; exec "$0" probe --seconds 5 --out "$1"'
        done = self.run_it("--rate", "200mbit", "--grace", "600", "sh", "-c", script, os.environ["STARLING"],
                           self.folder / "network.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"\nasymmetric link: \S+ \(10\.99\.0\.1\) -> \S+ \(10\.99\.0\.2\) carries")


if __name__ == "__main__":
    faulthandler.dump_traceback_later(590, exit=True)  # shows which test hangs before ctest ends it
    unittest.main(verbosity=2)
