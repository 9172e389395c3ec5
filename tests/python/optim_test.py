"""The optimizers as torch's users know them, alone, beside torch's own."""

import copy
import inspect
import pickle
import unittest
from unittest import mock

import torch
import workers
from learning import RULES, flat, loss_of, model, refusal, train
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import starling

TORCHS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.02, weight_decay=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.02),
}


class Quiet(torch.optim.SGD):
    """Loads by itself, as bitsandbytes' optimizers do."""

    def load_state_dict(self, state_dict):
        pairs = zip(self.param_groups, state_dict["param_groups"], strict=True)
        self.__setstate__({"param_groups": [{**saved, "params": group["params"]} for group, saved in pairs]})


class Alone(unittest.TestCase):
    def test_is_torchs_optimizer_of_that_name(self):
        for name, torchs in TORCHS.items():
            mine, theirs = model(), model()
            ours = RULES[name](mine.parameters())
            train(mine, ours, 20)
            train(theirs, torchs(theirs.parameters()), 20)
            self.assertLess((flat(mine) - flat(theirs)).abs().max().item(), 1e-6, name)
            self.assertIsInstance(ours, torch.optim.Optimizer)

    def test_of_a_narrow_model_torchs_steps_are_those_of_its_masters(self):
        for dtype in (torch.bfloat16, torch.float16):
            for name, torchs in TORCHS.items():
                net = model(dtype)
                masters = [p.detach().float().requires_grad_() for p in net.parameters()]
                ours, theirs = RULES[name](net.parameters()), torchs(masters)
                for t in range(20):
                    ours.zero_grad()
                    loss_of(net, t).backward()
                    for master, parameter in zip(masters, net.parameters(), strict=True):
                        master.grad = parameter.grad.float()
                    ours.step()
                    theirs.step()
                for k, (master, parameter) in enumerate(zip(masters, net.parameters(), strict=True)):
                    mine = ours.state_dict()["state"][k]["master"]
                    self.assertLess((mine - master).abs().max().item(), 1e-6, (name, dtype))
                    self.assertTrue(torch.equal(mine.to(dtype), parameter), (name, dtype))

    def test_state_dicts_go_both_ways_with_torchs(self):
        for name, torchs in TORCHS.items():
            mine, theirs = model(), model()
            ours, its = RULES[name](mine.parameters()), torchs(theirs.parameters())
            its.load_state_dict(its.state_dict())
            ours.load_state_dict(its.state_dict())  # empty so far
            train(theirs, its, 5)
            mine.load_state_dict(theirs.state_dict())
            ours.load_state_dict(its.state_dict())
            train(mine, ours, 5, 5)
            train(theirs, its, 5, 5)
            self.assertLess((flat(mine) - flat(theirs)).abs().max().item(), 1e-6, name)
            saved = ours.state_dict()
            self.assertEqual(self.copies_of_the_state(ours.load_state_dict, saved), 0)
            # torch's SGD does not count.
            self.assertEqual(saved["state"][0]["step"], 5 if name == "SGD" else 10)
            its.load_state_dict(saved)
            train(theirs, its, 1)

    def test_what_others_keep_in_the_groups_stays(self):
        optimizer = starling.AdamW(model().named_parameters())
        optimizer.param_groups[0]["tags"] = [1.5, 2.5]
        names = optimizer.param_groups[0]["param_names"]
        optimizer.load_state_dict(optimizer.state_dict())
        self.assertEqual(optimizer.param_groups[0]["param_names"], names)
        self.assertEqual(optimizer.param_groups[0]["tags"], [1.5, 2.5])

    def test_momentum_may_come_later(self):
        """By a scheduler, with a group, or in a state: from zero, like torch's."""
        ends = []
        for sgd in (starling.SGD, torch.optim.SGD):
            net = model()
            optimizer = sgd([{"params": net[0].parameters()}, {"params": net[2].parameters(), "momentum": 0.5}], lr=0.1)
            train(net, optimizer, 2)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=9)
            for t in range(5):
                train(net, optimizer, 1, 2 + t)
                schedule.step()
            ends.append(flat(net))
        self.assertLess((ends[0] - ends[1]).abs().max().item(), 1e-6)
        net, other = model(), model()
        torchs = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        train(net, torchs, 3)
        ours = starling.SGD(other.parameters())
        other.load_state_dict(net.state_dict())
        ours.load_state_dict(torchs.state_dict())
        train(net, torchs, 3, 3)
        train(other, ours, 3, 3)
        self.assertLess((flat(net) - flat(other)).abs().max().item(), 1e-6)

    def test_inner_may_load_by_itself(self):
        net = model()
        inner = torch.optim.AdamW(net.parameters(), lr=1.0)
        around = starling.Decentralized(inner)
        schedule = torch.optim.lr_scheduler.StepLR(around, 1, 0.1)
        train(net, around, 1)
        inner.load_state_dict(inner.state_dict())
        schedule.step()
        self.assertAlmostEqual(inner.param_groups[0]["lr"], 0.1)
        train(net, around, 1)
        schedule.step()
        self.assertAlmostEqual(inner.param_groups[0]["lr"], 0.01)

    def test_inner_may_load_without_calling_hooks(self):
        net = model()
        around = starling.Decentralized(Quiet(net.parameters(), lr=1.0))
        schedule = torch.optim.lr_scheduler.StepLR(around, 1, 0.1)
        train(net, around, 1)
        around.load_state_dict(copy.deepcopy(around.state_dict()))
        self.assertNotIn("round", around.inner.param_groups[0])
        schedule.step()
        self.assertAlmostEqual(around.inner.param_groups[0]["lr"], 0.1)
        around.inner.load_state_dict(around.inner.state_dict())
        train(net, around, 1)
        schedule.step()
        self.assertAlmostEqual(around.inner.param_groups[0]["lr"], 0.01)

    def test_numbers_of_other_schemes_leave_nothing_in_the_groups(self):
        for options in ({"scheme": "dsgd-ac"}, {"scheme": "push-sum"}, {"scheme": "ad-psgd"},
                        {"scheme": "sparse-loco", "one_in": 2}, {"mean_every": 2, "outer": "sgd", "outer_lr_at": "1:1"}):
            net = model()
            optimizer, other = starling.SGD(net.parameters(), topology="ring", **options), starling.SGD(net.parameters())
            train(net, optimizer, 2)
            saved, keys = optimizer.state_dict(), other.param_groups[0].keys()
            self.assertTrue(any(isinstance(value, list) for key, value in saved["param_groups"][0].items() if key != "params"))
            other.load_state_dict(saved)
            self.assertEqual(other.param_groups[0].keys(), keys, options)

    def test_hooks_after_loading_see_what_was_loaded(self):
        net = model()
        around = starling.Decentralized(torch.optim.AdamW(net.parameters()))
        for optimizer in (starling.AdamW(net.parameters()), around):
            train(net, optimizer, 3)
            saved = copy.deepcopy(optimizer.state_dict())
            train(net, optimizer, 2)
            seen = []
            optimizer.register_load_state_dict_post_hook(
                lambda o, seen=seen: seen.append((int(o.state_dict()["state"][0]["step"]), "round" in o.param_groups[0])))
            optimizer.load_state_dict(saved)
            self.assertEqual(seen, [(3, False)])

    def test_around_another_a_closure_and_hooks_are_as_torchs(self):
        ends = []
        for wrap in (lambda inner: inner, starling.Decentralized):
            net = model()
            optimizer = wrap(torch.optim.AdamW(net.parameters(), lr=0.02))
            calls, losses = [], []
            optimizer.register_step_pre_hook(lambda *_, calls=calls: calls.append("before"))
            optimizer.register_step_post_hook(lambda *_, calls=calls: calls.append("after"))

            def closure(net=net, optimizer=optimizer, calls=calls):
                calls.append("loss")
                optimizer.zero_grad()
                loss = loss_of(net, 1)
                loss.backward()
                return loss

            for _ in range(3):
                losses.append(optimizer.step(closure).item())
            ends.append((calls, losses, flat(net).tolist()))
        self.assertEqual(ends[0][0], ["before", "loss", "after"] * 3)
        self.assertEqual(*ends)

    def test_a_step_that_fails_leaves_nothing_of_a_scaler(self):
        net = model()
        optimizer = starling.AdamW(net.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        scaler.scale(loss_of(net, 1)).backward()
        fails = optimizer.register_step_pre_hook(lambda *_: 1 / 0)
        with self.assertRaises(ZeroDivisionError):
            scaler.step(optimizer)
        fails.remove()
        self.assertFalse(hasattr(optimizer, "grad_scale") or hasattr(optimizer, "found_inf"))

    def test_may_be_closed_in_the_midst_of_a_step(self):
        """Like a signal's handler, which Python calls while C++ waits."""
        net = model()
        optimizer = starling.Decentralized(torch.optim.SGD(net.parameters()))
        optimizer.inner.register_step_post_hook(lambda *_: optimizer.close())
        train(net, optimizer, 1)
        self.assertIn("closed", refusal(optimizer.step))

    def copies_of_the_state(self, call, *arguments):
        gathered = []
        whole = starling._C.OptimizerBinding.state

        def state(binding, values=True):
            gathered.append(values)
            return whole(binding, values)

        with mock.patch.object(starling._C.OptimizerBinding, "state", state):
            call(*arguments)
        self.assertGreater(len(gathered), 0)  # it is called
        return sum(gathered)

    def test_closure_hooks_clipping_and_both_zero_grads(self):
        net = model()
        optimizer = starling.AdamW(net.parameters(), lr=0.02, clip=0.5)
        seen = []
        hooks = [optimizer.register_step_pre_hook(lambda *_: seen.append("pre")),
                 optimizer.register_step_post_hook(lambda *_: seen.append("post"))]

        def closure():
            optimizer.zero_grad()
            loss = loss_of(net, 1)
            loss.backward()
            return loss

        first, later = optimizer.step(closure), optimizer.step(closure)
        self.assertLess(later.item(), first.item())
        self.assertEqual(seen, ["pre", "post"] * 2)
        for hook in hooks:
            hook.remove()
        optimizer.step()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            optimizer.step()
        self.assertIn("Optimizer.step#AdamW.step", {event.key for event in profile.key_averages()})
        self.assertEqual(len(seen), 4)
        for register in (register_optimizer_step_pre_hook, register_optimizer_step_post_hook):
            hook = register(lambda *_: seen.append("all"))
            optimizer.step()
            hook.remove()
        self.assertEqual(seen[4:], ["all"] * 2)
        optimizer.zero_grad(set_to_none=False)
        self.assertEqual(net[0].weight.grad.abs().max(), 0)
        optimizer.zero_grad(set_to_none=True)
        self.assertIsNone(net[0].weight.grad)

    def test_bad_input_gets_one_line(self):
        net = model()
        for options, kind, text in (
                ({"lr": -1.0}, ValueError, "AdamW: lr = -1 is not allowed: it must be finite and at least 0"),
                ({"wire": "int9"}, ValueError, "int9"),
                ({"topology": "rnig"}, ValueError, "rnig"),
                ({"topologie": "ring"}, TypeError,
                 "'topologie', did you mean topology?: beside the rule's there are alpha, alpha_tilde, beta, "),
                ({"topolgy": "ring"}, TypeError, "'topolgy', did you mean topology?"),
                ({"weigth_decay": 0.1}, TypeError,
                 "'weigth_decay', did you mean weight_decay?: the rule's are lr, betas, eps, weight_decay"),
                ({"learning_rate": 0.1}, TypeError, "'learning_rate', did you mean lr?"),
                ({"fused": True}, ValueError, "fused = True: leave it out, since the update is fused already"),
                ({"foreach": True}, ValueError, "foreach = True: leave it out"),
                ({"amsgrad": True}, ValueError, "starling.Decentralized(torch.optim.AdamW(.., amsgrad=True))"),
                ({"model": net.parameters()}, TypeError, "model: a generator is no torch.nn.Module"),
                ({"model": net, "buffers": [torch.zeros(1)]}, ValueError, "give model or buffers, not both"),
                ({"buffers": [torch.zeros(1).expand(3)]}, ValueError, "buffer 0 is expanded: values share memory"),
                ({"scheme": None}, TypeError, "keyword argument 'scheme': None has the wrong type"),
                ({"scheme": "chocco"}, ValueError, 'scheme "chocco" is unknown, did you mean choco?'),
                ({"gamma": 0.5}, ValueError, 'gamma = 0.5 is for scheme "choco", not "cta": use 0'),
                ({"lr": "1e-3"}, TypeError, "lr = '1e-3' is not allowed: a number"),
                ({"lr": [1e-3]}, TypeError, "lr = [0.001] is not allowed: a number"),
                ({"eps": None}, TypeError, "eps = None is not allowed: a number"),
                ({"betas": 0.9}, TypeError, "betas = 0.9 is not allowed: 2 numbers"),
                ({"betas": (0.9, "0.99")}, TypeError, "betas = (0.9, '0.99') is not allowed: 2 numbers"),
                ({"betas": (0.9, 0.99, 0.999)}, TypeError, "betas = (0.9, 0.99, 0.999) is not allowed: 2 numbers"),
                ({"buffers": net.named_parameters()}, TypeError, "buffers: a tuple is no tensor: give model.buffers()"),
                ({"max_wait": 0}, ValueError, "max_wait = 0 is not allowed: it must be above 0 and at most 1000000"),
                ({"max_wait": float("nan")}, ValueError, "max_wait = nan is not allowed: "),
                ({"max_wait": "1"}, TypeError, "keyword argument 'max_wait': '1' has the wrong type"),
                ({"max_wait": float("inf")}, ValueError, "max_wait = inf is not allowed: it must be above 0"),
                ({"clip": "much"}, TypeError, "keyword argument 'clip': 'much' has the wrong type")):
            with self.assertRaises(kind) as caught:
                starling.AdamW(net.parameters(), **options)
            self.assertIn(text, str(caught.exception))
            self.assertNotIn("\n", str(caught.exception))
        self.assertIn("timeout = inf is not allowed: it must be above 0",
                      refusal(starling._C.World.from_environment, float("inf")))
        self.assertIn("dampening = 0.5 is not allowed: 0", refusal(starling.SGD, net.parameters(), 0.1, 0.9, 0.5))
        with self.assertRaisesRegex(starling.UsageError, "it was made with amsgrad = True"):
            starling.AdamW(net.parameters()).load_state_dict(torch.optim.AdamW(net.parameters(), amsgrad=True).state_dict())
        inner = torch.optim.SGD(list(net[0].parameters()), lr=0.1)
        around = starling.Decentralized(inner)
        around.add_param_group({"params": [net[2].weight]})
        around.step()
        called = []
        around.register_state_dict_pre_hook(lambda optimizer: called.append(optimizer))
        around.register_state_dict_post_hook(lambda _, saved: {**saved, "mine": 1})
        around.register_load_state_dict_pre_hook(lambda _, saved: {key: saved[key] for key in ("state", "param_groups")})
        around.register_load_state_dict_post_hook(lambda optimizer: called.append(optimizer))
        saved = around.state_dict()
        self.assertEqual(saved["mine"], 1)
        around.load_state_dict(saved)
        self.assertEqual(called, [around, around])
        with self.assertRaisesRegex(starling.UsageError, r"LBFGS.step\(\) must be given a closure"):
            starling.Decentralized(torch.optim.LBFGS(model().parameters()))
        inner.add_param_group({"params": [net[2].bias]})
        self.assertIn("parameter group 2 was added; new parameters need add_param_group", refusal(around.step))
        with self.assertRaisesRegex(starling.UsageError, "there is no parameter to train: all have the size 0"):
            starling.SGD([torch.zeros(0, requires_grad=True)])
        optimizer = starling.SGD(net.parameters(), scheme="async-push-pull")
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(loss_of(net, 1)).backward()
        self.assertIn('scheme = "async-push-pull" does not go with a GradScaler', refusal(scaler.step, optimizer))
        optimizer = starling.AdamW(net.parameters())
        saved = optimizer.state_dict()
        del saved["state"][1]["exp_avg_sq"]
        self.assertIn('parameter 0, number 1: there is no "exp_avg_sq"', refusal(optimizer.load_state_dict, saved))
        for call in (copy.deepcopy, pickle.dumps):
            for one in (optimizer, around):
                self.assertIn("cannot be copied or pickled: save its state_dict", refusal(call, one))
        with self.assertRaisesRegex(starling.UsageError, "parameter 0 of group 1"):
            optimizer.add_param_group({"params": [torch.zeros(3, dtype=torch.float64, requires_grad=True)]})
        train(net, optimizer, 1)
        optimizer.close()
        self.assertIn("closed", refusal(optimizer.step))

    @unittest.skipUnless(torch.cuda.is_available(), "torch finds no CUDA device")
    def test_on_a_gpu_it_is_as_on_the_cpu(self):
        for name, rule in RULES.items():
            with self.subTest(name):
                ends = []
                for device in ("cpu", "cuda"):
                    torch.manual_seed(3)
                    net = torch.nn.Linear(30, 7).to(device)
                    inputs = torch.arange(16 * 30.0).view(16, 30).sin().to(device)
                    optimizer = rule(net.parameters(), clip=1.0)
                    for step in range(20):
                        optimizer.zero_grad()
                        net(inputs).square().mean().backward()
                        optimizer.step()
                        if step == 10:
                            saved = copy.deepcopy(optimizer.state_dict())
                            optimizer.step()
                            optimizer.load_state_dict(saved)
                    with optimizer.consensus() as scope:
                        self.assertEqual(scope.workers, 1)
                    ends.append(net.weight.detach().cpu())
                    optimizer.close()
                torch.testing.assert_close(ends[1], ends[0], rtol=1e-3, atol=1e-4)

    def test_torchs_defaults_may_be_spelled_out(self):
        for name in TORCHS:
            torchs = inspect.signature(getattr(torch.optim, name)).parameters
            keywords = {key: each.default for key, each in torchs.items() if key != "params"}
            keywords.pop("decoupled_weight_decay", None)
            self.assertIn("maximize", keywords)
            mine, theirs = model(), model()
            train(mine, getattr(starling, name)(mine.parameters(), **keywords), 3)
            train(theirs, getattr(torch.optim, name)(theirs.parameters(), **keywords), 3)
            self.assertLess((flat(mine) - flat(theirs)).abs().max().item(), 1e-6, name)

    def test_what_no_rule_has_is_refused_in_a_group_too(self):
        for key, value, make in (("maximize", True, starling.AdamW), ("amsgrad", True, starling.Adam),
                                 ("dampening", 0.5, starling.SGD)):
            net = model()
            said = f"a parameter group has {key} = {value}, which Starling's rules do not have"
            self.assertEqual(refusal(make, [{"params": net.parameters(), key: value}]), said)
            optimizer = make([{"params": net[0].parameters(), key: type(value)(0)}])
            self.assertEqual(refusal(optimizer.add_param_group, {"params": net[2].parameters(), key: value}), said)
            train(net, optimizer, 1)
            self.assertEqual(len(optimizer.param_groups), 1)

    def test_a_lazy_module_must_have_seen_an_input(self):
        net = torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.Linear(4, 2))
        said = "a parameter has no shape yet, since its lazy module has seen no input"
        for make in (starling.AdamW, lambda parameters: starling.Decentralized(torch.optim.AdamW(parameters))):
            self.assertIn(said, refusal(make, net.parameters()))
        optimizer = starling.AdamW(net[1].parameters())
        self.assertIn(said, refusal(optimizer.add_param_group, {"params": net[0].parameters()}))
        net(torch.ones(1, 3)).sum().backward()
        optimizer.add_param_group({"params": net[0].parameters()})
        before = flat(net[0])
        optimizer.step()
        self.assertFalse(torch.equal(flat(net[0]), before))

    def test_param_groups_that_are_edited_are_refused_at_the_next_step(self):
        """Like torch's, they would train otherwise, and here they would not."""
        more = torch.zeros(3, requires_grad=True)
        edits = {
            "has other parameters": (lambda groups: groups[0]["params"].append(more),
                                     lambda groups: groups[0].update(params=[more, *groups[0]["params"][1:]]),
                                     lambda groups: groups[0]["params"].pop()),
            "was added": (lambda groups: groups.append({**groups[0], "params": [more]}),),
            "is gone": (lambda groups: groups.clear(),)}
        for said, each in edits.items():
            for edit in each:
                for make in (RULES["AdamW"], lambda p: starling.Decentralized(torch.optim.AdamW(p))):
                    net = model()
                    optimizer = make(net.parameters())
                    train(net, optimizer, 1)
                    edit(optimizer.param_groups)
                    with self.assertRaisesRegex(starling.UsageError, f"param_groups was edited: .* {said}; .* add_param_group"):
                        optimizer.step()

    def test_a_state_goes_between_adam_and_accum_adam(self):
        """Options that the state lacks stay. With the same moments, the corrections of their bias
        are the same, so both move alike at first: the accumulated ones move once in a window."""
        for plain, accumulated in ((starling.AdamW, starling.AccumAdamW), (starling.Adam, starling.AccumAdam)):
            net = model()
            before = plain(net.parameters(), lr=0.02)
            train(net, before, 12)
            other, again = model(), model()
            after = accumulated(other.parameters(), lr=0.5, window=4)
            other.load_state_dict(net.state_dict())
            after.load_state_dict(before.state_dict())
            self.assertEqual((after.param_groups[0]["window"], after.param_groups[0]["lr"]), (4, 0.02))
            saved = after.state_dict()["state"][0]
            self.assertEqual((saved["step"], saved["accumulated_grad"].abs().max()), (48, 0))
            back = plain(again.parameters(), lr=0.5)
            again.load_state_dict(other.state_dict())
            back.load_state_dict(after.state_dict())
            for name, tensor in before.state_dict()["state"][0].items():
                self.assertTrue(torch.equal(back.state_dict()["state"][0][name], tensor), name)
            for each, its in ((net, before), (other, after), (again, back)):
                train(each, its, 1, 12)
            self.assertTrue(torch.equal(flat(again), flat(net)))
            self.assertLess((flat(other) - flat(net)).abs().max().item(), 1e-3)

    def test_steps_within_consensus_are_refused(self):
        net = model()
        for optimizer in (starling.AdamW(net.parameters()), starling.Decentralized(torch.optim.AdamW(net.parameters()))):
            train(net, optimizer, 1)
            saved = copy.deepcopy(optimizer.state_dict())
            with optimizer.consensus():
                self.assertIn("step() within consensus", refusal(optimizer.step))
                self.assertIn("within consensus", refusal(optimizer.load_state_dict, saved))
                self.assertIn("begin_again() within consensus", refusal(optimizer.begin_again))
            train(net, optimizer, 1)

    def test_help_shows_the_options(self):
        for name in (*RULES, "Decentralized"):
            said = inspect.getdoc(getattr(starling, name).__init__)
            for option, text in (("topology", "ring"), ("gamma", "choco"), ("model", "frozen"), ("wire", "int8")):
                self.assertRegex(said, rf"(?m)^{option}: .*\n    .*{text}", name)
            signature = inspect.signature(getattr(starling, name))
            self.assertNotIn("class", str(signature))
            self.assertEqual(starling.Options.__annotations__.keys() - signature.parameters.keys(), set(), name)
            self.assertNotIn("options", signature.parameters, name)

    def test_options_may_have_the_defaults_that_help_shows(self):
        for name in RULES:
            net = model()
            optimizer = getattr(starling, name)
            shown = inspect.signature(optimizer).parameters.values()
            keywords = {each.name: each.default for each in shown if each.kind is inspect.Parameter.KEYWORD_ONLY}
            self.assertEqual((keywords["topology"], keywords["one_in"], keywords["clock"], keywords["max_wait"]),
                             ("base-2", 1, "poisson", None))
            for key, value in keywords.items():
                optimizer(net.parameters(), **{key: value}).close()

    def test_refuses_another_torch(self):
        self.assertIn("built with torch 1.2.3, but torch 1.2.4 is installed",
                      starling._torch_version.complaint("1.2.3", "1.2.4+cpu"))
        self.assertIsNone(starling._torch_version.complaint("1.2.3", "1.2.3+cpu"))


if __name__ == "__main__":
    workers.main()
