import json
import os
import pathlib
import tempfile
from xml.etree import ElementTree

from command import CommandTest


def profile(hosts=4, per_host=1, rate=1e8, forward=(0.02,), blocks=4, block_bytes=1e6):
    """Blocks take block_bytes / rate on a link; 40 ms are forward and backward, 4 ms updates."""
    n, count = hosts * per_host, len(forward)
    return {
        "format": "starling-profile", "version": 2,
        "units": {"time": "s", "data": "B", "rate": "B/s"},
        "hosts": [{"name": f"node{h}", "workers": list(range(h * per_host, (h + 1) * per_host)), "send": rate,
                   "receive": rate} for h in range(hosts)],
        "between": {"latency": 0},
        "inside": {"latency": 0, "rate": 1e12},
        "blocks": [{"bytes": block_bytes}] * blocks,
        "compute": [{"worker": i, "data_wait": [0] * count, "forward": list(forward),
                     "backward": [[0.02 / blocks] * count] * blocks, "update": [[0.004 / blocks] * count] * blocks}
                    for i in range(n)],
    }


class Plan(CommandTest):
    def write(self, content):
        path = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), "profile.json")
        with open(path, "w") as file:
            file.write(content if isinstance(content, str) else json.dumps(content))
        return path

    def plan(self, content, *arguments):
        return json.loads(self.starling("plan", "--profile", self.write(content), "--json", *arguments))

    def row(self, world, schedule, wire):
        return next(row for row in world["gossip"] if (row["schedule"], row["wire"]) == (schedule, wire))

    def test_where_the_link_is_hidden(self):
        plan = self.plan(profile())  # 40 ms of link behind 44 ms of compute
        self.assertEqual(plan["measured_workers"], 4)
        world, = plan["worlds"]
        self.assertEqual((world["workers"], world["extrapolated"]), (4, False))
        base = self.row(world, "base-2", "fp32")
        self.assertAlmostEqual(base["step"], 0.044, delta=0.0002)
        self.assertEqual(base["bottleneck"], "compute")
        self.assertEqual(world["recommended"],
                         {"schedule": "base-2", "wire": "fp32", "scheme": "cta", "block_bytes": 25 << 20,
                          "all_reduce_is_as_good": False})
        # All-reduce: 1.5 models; all but the first 5 ms of backward overlap.
        self.assertAlmostEqual(world["all_reduce"]["step"], 0.02 + 0.005 + 0.060 + 0.004, delta=1e-6)
        self.assertAlmostEqual(base["speed_up"], 0.089 / 0.044, delta=0.02)

    def test_where_the_link_decides(self):
        world, = self.plan(profile(rate=2e7))["worlds"]  # 200 ms of link
        base = self.row(world, "base-2", "fp32")
        self.assertAlmostEqual(base["step"], 0.2, delta=0.002)
        self.assertRegex(base["bottleneck"], "^the interface of node[0-3]$")
        self.assertAlmostEqual(self.row(world, "base-2", "bf16")["step"], 0.1, delta=0.002)
        self.assertAlmostEqual(self.row(world, "base-2", "int8")["step"], 0.05, delta=0.001)
        self.assertEqual(world["recommended"]["wire"], "int8")
        self.assertAlmostEqual(base["efficiency"], 0.22, delta=0.005)

    def test_warm_up(self):
        steps = []
        for warm_up in (0, 5):
            world, = self.plan(profile(rate=2e7), "--warm-up", str(warm_up), "--iterations", "1")["worlds"]
            steps.append(self.row(world, "base-2", "fp32")["step"])
        self.assertAlmostEqual(steps[0], 0.044, delta=1e-6)  # the first step never waits
        self.assertAlmostEqual(steps[1], 0.2, delta=0.002)

    def test_more_workers_than_were_measured(self):
        plan = self.plan(profile(hosts=2, per_host=2, forward=(0.02, 0.02, 0.04)), "--workers", "4..20")
        self.assertEqual([world["workers"] for world in plan["worlds"]], [4, 8, 16, 20])
        self.assertEqual([world["extrapolated"] for world in plan["worlds"]], [False, True, True, True])
        reduced = [world["all_reduce"]["step"] for world in plan["worlds"]]
        self.assertEqual(reduced, sorted(reduced))  # more data, and the slowest of more workers

    def test_knee(self):
        # All-reduce waits for 2 (n - 1) latencies of 5 ms for each of 4 blocks, base-2 for none.
        far = profile(rate=2e8) | {"between": {"latency": 0.005}}
        plan = self.plan(far, "--workers", "4..32")
        self.assertEqual((plan["knee"], plan["knee_of_all_reduce"]), (None, 4))
        text = self.starling("plan", "--profile", self.write(far), "--workers", "4..32")
        self.assertIn("of the ideal gain up to 32 workers, the largest requested number; with all-reduce up to 4 workers.", text)
        steps = [self.row(world, "base-2", "fp32")["step"] for world in plan["worlds"]]
        self.assertTrue(all(abs(step - 0.044) < 0.002 for step in steps), steps)

    def test_what_is_compared(self):
        world, = self.plan(profile(), "--topologies", "hypercube,ring", "--wires", "fp16,int4")["worlds"]
        self.assertEqual([(row["schedule"], row["wire"]) for row in world["gossip"]],
                         [("hypercube", "fp16"), ("hypercube", "int4"), ("ring", "fp16"), ("ring", "int4")])
        path = self.write(profile())
        self.assertIn("hypercube", self.usage_error("plan", "--profile", path, "--workers", "6", "--topologies", "hypercube"))
        self.assertIn('there is no wire "fp8"', self.usage_error("plan", "--profile", path, "--wires", "fp8"))
        self.assertIn("--topologies complete: it is not planned over modular wires alone",
                      self.usage_error("plan", "--profile", path, "--topologies", "complete", "--wires", "int8"))

    def test_a_slow_link_is_named(self):
        slow = profile() | {"links": [{"from": "node1", "to": "node2", "latency": 0, "rate": 1e7}]}
        world, = self.plan(slow)["worlds"]
        self.assertEqual(self.row(world, "complete", "fp32")["bottleneck"], "the link from node1 to node2")
        # A quarter of the model goes there as a shard, and a quarter as a mean.
        self.assertAlmostEqual(self.row(world, "complete", "fp32")["step"], 0.2, delta=0.002)
        self.assertGreater(world["all_reduce"]["step"], 0.6)  # 1.5 models, and all wait for it
        # With twice as many hosts, the copies have such a link too.
        world, = self.plan(slow, "--workers", "8")["worlds"]
        self.assertRegex(self.row(world, "complete", "fp32")["bottleneck"], r"^the link from node1( \(2\))? to node2( \(2\))?$")

    def test_on_one_host_too_who_holds_it_up_is_named(self):
        one = profile(hosts=1, per_host=4)
        one["compute"][2]["forward"] = [0.06]
        world, = self.plan(one)["worlds"]
        self.assertEqual(self.row(world, "base-2", "fp32")["bottleneck"], "the slowest workers")
        self.assertEqual(world["all_reduce"]["bottleneck"], "the slowest workers")
        one["compute"][2]["forward"] = [0.02]
        one["inside"]["rate"] = 1e7  # 100 ms for a block
        world, = self.plan(one)["worlds"]
        self.assertEqual(self.row(world, "base-2", "fp32")["bottleneck"], "the memory of node0")

    def test_block_sizes(self):
        # For 64 MB: 1 MB, 5 MB, and 8 MB as the largest blocks that exist.
        world, = self.plan(profile(blocks=8, block_bytes=8 * 2**20, rate=1e9))["worlds"]
        self.assertEqual([size["block_bytes"] for size in world["block_sizes"]], [2**20, 5 * 2**20, 25 * 2**20])
        best = min(size["step"] for size in world["block_sizes"])
        self.assertEqual(world["recommended"]["block_bytes"],
                         max(size["block_bytes"] for size in world["block_sizes"] if size["step"] <= 1.02 * best))
        self.assertTrue(any("Blocks of" in line for line in world["advice"]), world["advice"])

    def test_one_host_alone_is_the_fastest(self):
        uneven = profile()
        for worker in (0, 1, 3):
            uneven["compute"][worker]["forward"] = [0.04]
        world, = self.plan(uneven)["worlds"]
        self.assertAlmostEqual(world["one_host"]["step"], 4 * 0.04 + 0.004, delta=1e-9)

    def test_where_all_reduce_is_as_good(self):
        fast = profile(rate=1e10)
        recommended = self.plan(fast)["worlds"][0]["recommended"]
        self.assertTrue(recommended["all_reduce_is_as_good"])
        self.assertEqual(recommended["scheme"], "atc")  # no step waits
        self.assertIn("\nScheme atc: it waits for its exchange", self.starling("plan", "--profile", self.write(fast)))
        self.assertIn("\nAll-reduce takes 44.", self.starling("plan", "--profile", self.write(fast)))
        self.assertNotIn("All-reduce takes", self.starling("plan", "--profile", self.write(profile())))

    def test_measured_all_reduces_tell_of_other_numbers_of_workers(self):
        # Twice the formula's time.
        measured = profile() | {"all_reduce": [{"bytes": size, "seconds": 2 * 1.5 * size / 1e8} for size in (1e5, 1e6, 1e7)]}
        steps = [self.plan(one, "--workers", "8")["worlds"][0]["all_reduce"]["step"] for one in (profile(), measured)]
        c = 2 * 7 / 8 * 0.01  # by block
        self.assertAlmostEqual(steps[0], 0.025 + 4 * c + 0.004, delta=1e-6)
        self.assertAlmostEqual(steps[1], 0.025 + 8 * c + 0.004, delta=1e-6)

    def test_table(self):
        text = self.starling("plan", "--profile", self.write(profile()), "--workers", "4,6")
        self.assertIn("4 workers on 4 hosts\n", text)
        self.assertIn("6 workers on 6 hosts (extrapolated: 4 were measured)\n", text)
        self.assertNotIn("Blocks of", text)  # with 4 MB in all they are the same
        self.assertRegex(text, r"\nall-reduce +fp32 +89.00 ms +89.00 to 89.00 ms +49 % +1.00 +the network\n")
        self.assertRegex(text, r"\nbase-2 +fp32 +44.\d\d ms ")
        self.assertIn("\nRecommended: base-2 over fp32", text)
        self.assertIn("up to 6 workers", text)

    def test_bands(self):
        varying = profile(forward=(0.02,) * 8 + (0.04,) * 2)
        row = self.row(self.plan(varying)["worlds"][0], "base-2", "fp32")
        self.assertLess(row["low"], row["step"])
        self.assertLess(row["step"], row["high"])
        for name, best in (("efficiency", min(1, row["efficiency"] * row["step"] / row["low"])),
                           ("speed_up", row["speed_up"] * row["step"] / row["low"])):
            self.assertAlmostEqual(row[f"{name}_low"], row[name] * row["step"] / row["high"], delta=1e-9)
            self.assertAlmostEqual(row[f"{name}_high"], best, delta=1e-9)
        text = self.starling("plan", "--profile", self.write(varying))
        self.assertRegex(text, r"\nbase-2 +fp32 .* ms +\d+ to \d+ % +\d\.\d\d to \d\.\d\d +")

    def test_what_was_not_measured_is_said(self):
        world, = self.plan(profile())["worlds"]
        self.assertEqual([line for line in world["advice"] if line.startswith("Assumed: ")],
                         ["Assumed: all-reduce takes the time of its formula, because none was measured.",
                          "Assumed: exchanges with several peers at once reach the full rate of the interfaces, "
                          "because none were measured."])
        measured = profile() | {"all_reduce": [{"bytes": 1e6, "seconds": 0.1}], "shapes": [{"peers": 1, "share": 1}]}
        world, = self.plan(measured)["worlds"]
        self.assertFalse([line for line in world["advice"] if line.startswith("Assumed: ")])

    def test_a_thousand_workers(self):
        worlds = self.plan(profile(), "--workers", "8..1024", "--iterations", "2", "--warm-up", "1", "--wires", "fp32")["worlds"]
        self.assertEqual([world["workers"] for world in worlds], [8, 16, 32, 64, 128, 256, 512, 1024])

    def test_one_worker(self):
        world, = self.plan(profile(hosts=1))["worlds"]
        self.assertAlmostEqual(world["all_reduce"]["step"], 0.044, delta=1e-9)
        self.assertAlmostEqual(self.row(world, "base-2", "fp32")["step"], 0.044, delta=1e-9)

    def test_what_else_could_be_done(self):
        world, = self.plan(profile())["worlds"]
        # One host makes four passes in place of one.
        self.assertAlmostEqual(world["one_host"]["step"], 4 * 0.04 + 0.004, delta=1e-9)
        self.assertAlmostEqual(world["one_host"]["speed_up"], 0.089 / 0.164, delta=1e-6)
        # With atc only the updates are hidden.
        self.assertAlmostEqual(world["atc"]["step"], 0.04 + 0.04 + 0.001, delta=0.001)
        self.assertNotIn("one_host", self.plan(profile(hosts=1))["worlds"][0])
        # Gossip beside training: a step is the worker's own, and smaller wires carry more
        # averagings.
        self.assertAlmostEqual(world["asynchronous"]["step"], 0.044, delta=1e-6)
        rates = [world["asynchronous"]["rate"][wire] for wire in ("fp32", "bf16", "int8")]
        self.assertTrue(0 < rates[0] < rates[1] < rates[2] < 1.2, rates)

    def test_a_rate_that_the_network_does_not_carry_is_named(self):
        for rate, carried in ((1e10, True), (1e6, False)):
            said = self.starling("plan", "--profile", self.write(profile(rate=rate)))
            self.assertEqual("A higher rate than it carries gains nothing: set rate to that." in said, not carried, said)

    def test_other_schemes(self):
        def rows(content, *arguments):
            world, = self.plan(content, *arguments)["worlds"]
            return world, {(row["schedule"], row["wire"]): row["step"] for row in world["gossip"]}

        # Two vectors: 80 ms of link. Its rounds average, and modular codes are refused.
        world, steps = rows(profile(), "--scheme", "gradient-tracking")
        self.assertAlmostEqual(steps["base-2", "fp32"], 0.080, delta=0.001)
        self.assertAlmostEqual(steps["base-2", "bf16"], 0.044, delta=0.001)
        self.assertEqual({wire for _, wire in steps}, {"fp32", "bf16"})
        self.assertEqual(world["recommended"]["scheme"], "gradient-tracking")
        self.assertNotIn("atc", world)
        self.assertNotIn("asynchronous", world)
        # 200 ms of link behind four steps of 44 ms.
        world, steps = rows(profile(rate=2e7), "--every", "4")
        self.assertAlmostEqual(steps["base-2", "fp32"], 0.200 / 4, delta=0.001)
        self.assertIn("atc", world)
        # One step of the worker's own, and one in which all but an update of the first block waits.
        world, steps = rows(profile(), "--scheme", "atc", "--every", "2")
        self.assertAlmostEqual(steps["base-2", "fp32"], (0.044 + 0.04 + 0.001 + 0.04) / 2, delta=1e-6)
        # An exact mean of four is two rounds of the whole model.
        world, steps = rows(profile(), "--scheme", "local", "--mean-every", "10")
        self.assertEqual(set(steps), {("local", "fp32")})
        self.assertAlmostEqual(steps["local", "fp32"], 0.044 + 2 * 0.04 / 10, delta=1e-6)
        self.assertEqual(self.row(world, "local", "fp32")["bottleneck"], "the exact means")
        # Bytes by the shapes of the parameters.
        world, steps = rows(profile(rate=1e6), "--scheme", "power-gossip")
        self.assertAlmostEqual(steps["base-2", "fp32"], 0.044, delta=0.0005)
        self.assertEqual(world["block_sizes"], [])
        self.assertIn("Assumed: the parameters are matrices of 1024 x 1024, because a profile holds no shapes.",
                      world["advice"])
        path = self.write(profile())
        text = self.starling("plan", "--profile", path, "--scheme", "choco", "--one-in", "16", "--every", "2")
        self.assertIn("4 workers on 4 hosts, scheme choco, one in 16, every 2\n", text)
        self.assertIn("\nStep: mean time of one iteration, over those of an exchange;", text)
        self.assertNotIn("base-2", text)  # it needs one round

    def test_schemes_that_are_not_planned(self):
        path = self.write(profile())
        for arguments, said in (
                (("--scheme", "ad-psgd"), 'scheme "ad-psgd" has no exchange in its steps: its workers average in pairs '
                                          "beside training, and wait for nobody"),
                (("--scheme", "all-reduce"), 'scheme "all-reduce" has no exchange in its steps: it averages gradients '
                                             "within backward()"),
                (("--scheme", "ctaa"), 'scheme "ctaa" is unknown, did you mean cta?: '),
                (("--scheme", "choco", "--wires", "fp32,int8"), 'scheme "choco" needs wire fp32, not "int8"'),
                (("--scheme", "choco", "--topologies", "ring,base-2"), "base-2"),
                (("--scheme", "d2", "--every", "2"), "every = 2 needs scheme"),
                (("--scheme", "ceca-2p", "--topologies", "ring"), 'scheme "ceca-2p" has rounds of its own'),
                (("--mean-every", "3", "--every", "2"), "mean_every = 3 is no multiple of every = 2"),
                (("--scheme", "atc", "--html", path + ".html"), "--html draws steps that send ahead in each step")):
            self.assertIn(said, self.usage_error("plan", "--profile", path, *arguments), arguments)

    def test_failures(self):
        path = self.write(profile())
        lost = [json.loads(self.starling("plan", "--profile", path, "--json", "--failures", str(rate)))["worlds"][0]
                ["lost_to_failures"] for rate in (0, 6.5, 25)]
        self.assertEqual(lost[0], {"all_reduce": 0, "gossip": 0})
        rate = 6.5 / 1000 / 86400
        self.assertAlmostEqual(lost[1]["gossip"], rate * (3600 + 5), delta=1e-12)
        self.assertAlmostEqual(lost[1]["all_reduce"], (2 * 30 * 4 * rate) ** 0.5 + 300 * 4 * rate, delta=1e-12)
        self.assertGreater(lost[2]["all_reduce"], lost[1]["all_reduce"])
        self.assertIn("Failures, 6.5 of 1000 hosts per day: ", self.starling("plan", "--profile", path))

    def test_html(self):
        path = self.write(profile(hosts=2, per_host=2))
        page = path + ".html"
        self.starling("plan", "--profile", path, "--workers", "4..16", "--html", page)
        tree = ElementTree.parse(page).getroot()  # it is well-formed XML too
        self.assertEqual([heading.text for heading in tree.iter("h2")],
                         ["What more workers are worth", "4 workers on 2 hosts", "8 workers on 4 hosts (extrapolated)",
                          "16 workers on 8 hosts (extrapolated)"])
        self.assertEqual(len(list(tree.iter("svg"))), 4)
        text = "".join(tree.itertext())
        self.assertRegex(text, r"More workers bring at least 50 % of the ideal gain up to \d+ workers")
        for drawn in ("nothing lost", "One iteration of all-reduce, and one of what is recommended"):
            self.assertIn(drawn, text)
        for table in tree.iter("table"):
            self.assertEqual(len([row for row in table.iter("tr") if row.get("class") == "recommended"]), 1)
        self.assertNotIn("http", pathlib.Path(page).read_text())  # the page loads nothing
        self.starling("plan", "--profile", path, "--workers", "512..1024", "--html", page)
        self.assertIn(">1024</text>", pathlib.Path(page).read_text())
        self.assertIn("cannot be", self.usage_error("plan", "--profile", path, "--html", "/no/such/folder/x.html", code=1))

    def test_two_halves(self):
        whole = profile()
        first = ("format", "version", "units")
        compute = {key: whole[key] for key in (*first, "blocks", "compute")}
        network = {key: whole[key] for key in whole if key not in ("blocks", "compute")}
        network_file, compute_file = self.write(network), self.write(compute)
        plan = self.starling("plan", "--profile", network_file, "--compute", compute_file, "--json")
        self.assertEqual(plan, self.starling("plan", "--profile", self.write(whole), "--json"))
        compute["compute"] = compute["compute"][:1]  # one worker stands for all
        one_file = self.write(compute)
        one = self.run_command("plan", "--profile", network_file, "--compute", one_file, "--json")
        self.assertEqual((one.stdout, one.stderr), (plan, f"{one_file}: its one worker stands for 4 workers\n"))
        self.assertIn("it holds no compute: record it by `starling train --profile-out FILE`",
                      self.usage_error("plan", "--profile", network_file))
        self.assertIn("it holds no network (hosts)", self.usage_error("plan", "--profile", compute_file))
        self.assertIn("it holds no compute (blocks)",
                      self.usage_error("plan", "--profile", network_file, "--compute", network_file))

    def test_more_hosts_than_one_need_a_network(self):
        one = profile(hosts=1, per_host=4)
        for host in one["hosts"]:
            del host["send"], host["receive"]
        self.assertEqual(self.plan(one)["worlds"][0]["workers"], 4)
        self.assertEqual(self.plan(one, "--workers", "2")["worlds"][0]["workers"], 2)
        self.assertIn("8 workers: 4 were measured on one host",
                      self.usage_error("plan", "--profile", self.write(one), "--workers", "8"))

    def test_bad_profiles(self):
        good = json.dumps(profile(), indent=1)
        for content, message in [
                (good[:len(good) // 2], "not JSON"),
                (good.replace('"version": 2', '"version": 7'), "version must be 2, not 7"),
                (good.replace('"worker": 3', '"worker": 2'), "compute of worker 2: it is listed twice"),
                (good.replace("0.02", "-0.02", 1), "forward is -0.02 seconds, must be at least 1e-09 and at most 10000"),
                (good.replace('"receive": 100000000.0', '"receive": 1e-308', 1), "receive is 1e-308 bytes a second, must be"),
                (good.replace("0.005", "100000", 1), "is 100000 seconds, must be at least 0 and at most 10000"),
                (good.replace('"node0"', '"node\\u001b[31m"'), 'name is "node\\u001B[31m", must be printable'),
                (good.replace('"B/s"', '"Gbit/s"'), 'rate must be "B/s"')]:
            path = self.write(content)
            error = self.usage_error("plan", "--profile", path)
            self.assertTrue(error.startswith(path + ":"), error)
            self.assertIn(message, error)

    def test_wrong_arguments(self):
        path = self.write(profile())
        self.assertEqual(self.usage_error("plan"), "--profile is required")
        self.assertEqual(self.usage_error("plan", "--profile", "no/such.json"),
                         "no/such.json: cannot be opened: No such file or directory")
        for value in ("0", "4..2", "8,4", "4..", "1025", "four", "4,", "4..8,16"):
            self.assertEqual(self.usage_error("plan", "--profile", path, "--workers", value),
                             f"--workers: Value {value} must be rising numbers as in 8,12,16 or 8..64, from 1 to 1024")
