"""Four processes as two nodes or two replicas of two: the hierarchy, and fully_shard() on a mesh of
two dimensions."""

import functools
import gc
import os
import tempfile
import unittest
import weakref

import torch
import torch.distributed.checkpoint as dcp
import workers
from learning import batch, error_of, flat, model, rank, refusal
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import starling

RULES = {
    "AdamW": lambda p, **o: starling.AdamW(p, lr=0.02, **o),
    "SGD": lambda p, **o: starling.SGD(p, lr=0.1, momentum=0.9, **o),
}


def replica():
    return rank() // 2


def learn(net, optimizer, steps, first=0, both=False, loss=error_of):
    """The two workers of a replica have batches of their own; `both`: one worker has both."""
    for t in range(first, first + steps):
        optimizer.zero_grad()
        seeds = [4 * t + 2 * replica(), 4 * t + 2 * replica() + 1]
        for seed in seeds if both else [seeds[rank() % 2]]:
            (loss(net(batch(seed)), batch(seed)) / (2 if both else 1)).backward()
        optimizer.step()


# ---------------------------------------------------------------- hierarchy = "node"


def hierarchy():
    """Compared with one worker for each node with the batches of both."""
    torch.distributed.init_process_group("gloo")
    ends = {}
    for name, rule in RULES.items():
        net = model()
        optimizer = rule(net.parameters(), hierarchy="node", workers_per_node=2)
        learn(net, optimizer, 8)
        distance = optimizer.consensus_distance()
        optimizer.close()
        nodes = torch.distributed.new_group([0, 2])
        difference = 0.0
        if rank() % 2 == 0:
            alone = model()
            plain = rule(alone.parameters(), process_group=nodes)
            learn(alone, plain, 8, both=True)
            difference = (flat(net) - flat(alone)).abs().max().item()
            plain.close()
        ends[name] = difference, distance, flat(net).tolist()
    net = model()
    optimizer = starling.AdamW(net.parameters(), hierarchy="node", workers_per_node=2)
    net(batch(rank())).sum().backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
    clipped = refusal(optimizer.step)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(net(batch(rank())).sum()).backward()
    ends["refused"] = clipped, refusal(scaler.step, optimizer)
    optimizer.close()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return ends


class Hierarchy(unittest.TestCase):
    def test_is_gossip_between_nodes_of_their_mean_gradients(self):
        results = workers.run(hierarchy, 4)
        for result in results:
            clipped, scaled = result["refused"]
            self.assertIn(".grad was changed between backward() and step()", clipped)
            self.assertIn("does not go with a GradScaler", scaled)
        for name in RULES:
            for node in (0, 2):
                # Workers of a node.
                self.assertEqual(results[node][name][2], results[node + 1][name][2], name)
                self.assertLess(results[node][name][0], 1e-5, name)
            self.assertNotEqual(results[0][name][2], results[2][name][2], name)
            for _, distance, _ in (result[name] for result in results):
                self.assertTrue(0 < distance < 0.1, distance)


# ---------------------------------------------------------------- fully_shard()


def mesh_of_four():
    torch.distributed.init_process_group("gloo")
    return torch.distributed.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def shard(net, mesh):
    fully_shard(net[0], mesh=mesh["shard"])
    fully_shard(net, mesh=mesh["shard"])
    return net


def odd_model(device="cpu"):
    """A model whose sizes cannot be shared evenly by two workers."""
    torch.manual_seed(3)
    with torch.device(device):
        return torch.nn.Sequential(torch.nn.Linear(6, 15), torch.nn.Tanh(), torch.nn.Linear(15, 3))


def whole(parameters):
    return torch.cat([p.detach().full_tensor().double().flatten() for p in parameters])


odd_learn = functools.partial(learn, loss=lambda outputs, inputs: outputs.square().mean())


def distance(one, other):
    """sqrt(1/2 Sum_i |x_i - mean|^2 / d) of two replicas."""
    return ((one - other) / 2).square().mean().sqrt().item()


def not_sharded(mesh, make, steps):
    """The same run without shards: this worker has both batches of its replica. Returns its end,
    and the average with the other's."""
    net = odd_model()
    optimizer = make(net.parameters(), process_group=mesh["replicate"])
    odd_learn(net, optimizer, steps, both=True)
    with optimizer.consensus():
        inside = flat(net)
    optimizer.close()
    return flat(net), inside


def fully_sharded():
    mesh = mesh_of_four()
    results = {}
    around = {"around": lambda p, **o: starling.Decentralized(torch.optim.AdamW(p, lr=0.02), **o)}
    for name, make in (RULES | around).items():
        expected, average = not_sharded(mesh, make, 6)
        # Made without memory, as large models are.
        net = shard(odd_model("meta"), mesh)
        net.to_empty(device="cpu")
        for parameter, value in zip(net.parameters(), odd_model().parameters(), strict=True):
            full = distribute_tensor(value.detach(), mesh["shard"], [Shard(0)])
            with torch.no_grad():
                # Replica 0's values reach all.
                parameter.copy_(full if replica() == 0 else full * 0)
        shards = list(net.parameters())  # a gathered module has others
        optimizer = make(shards, process_group=mesh["replicate"])
        places = [p.to_local().data_ptr() for p in shards]
        started = whole(shards)
        net.double().float()  # fully_shard() gathers from elsewhere now
        odd_learn(net, optimizer, 1)
        moved = places != [p.to_local().data_ptr() for p in shards]
        arrived = not torch.equal(started, whole(shards))
        odd_learn(net, optimizer, 5, 1)
        off = (whole(shards) - expected).abs().max().item()

        # Evaluation leaves the root's parameters gathered. Neither the average nor the own
        # parameters may be stale after it.
        with torch.no_grad():
            net(batch(0))
        with optimizer.consensus() as scope:
            inside = whole(shards)
            with torch.no_grad():
                seen = net(batch(1))
            plain = odd_model()
            torch.nn.utils.vector_to_parameters(inside.float(), plain.parameters())
            inside_seen = (plain(batch(1)) - seen).abs().max().item()
        torch.nn.utils.vector_to_parameters(whole(shards).float(), plain.parameters())
        with torch.no_grad():
            own_seen = (plain(batch(1)) - net(batch(1))).abs().max().item()
        parts = torch.cat([p.to_local().detach().double().flatten() for p in shards])
        results[name] = {"moved": moved, "arrived": arrived, "off": off, "workers": scope.workers,
                         "distance": scope.distance, "whole_distance": optimizer.consensus_distance(),
                         "parts": parts.tolist(), "inside": (inside - average).abs().max().item(),
                         "inside_seen": inside_seen, "own_seen": own_seen, "end": whole(shards).tolist(),
                         "start": (started - flat(odd_model())).abs().max().item()}
        optimizer.close()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return results


def edited():
    """All workers set their parameters to 3. How far they are from it after a step without a
    learning rate."""
    mesh = mesh_of_four()
    off = {}
    for memory in ("as made", "moved"):
        net = shard(odd_model(), mesh)
        shards = list(net.parameters())
        optimizer = starling.SGD(shards, lr=0.0, process_group=mesh["replicate"])
        if memory == "moved":
            net.double().float()
        odd_learn(net, optimizer, 2)
        with torch.no_grad():
            for parameter in shards:
                parameter.copy_(parameter * 0 + 3)
        odd_learn(net, optimizer, 1, 2)
        off[memory] = (whole(shards) - 3).abs().max().item()
        optimizer.close()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return off


def saved():
    """Clipped by torch, stopped, saved with torch.distributed.checkpoint, and resumed; the average
    as one file."""
    mesh = mesh_of_four()
    folder = os.environ["FOLDER"]

    def step(net, optimizer, first, steps):
        for t in range(first, first + steps):
            optimizer.zero_grad()
            net(batch(4 * t + rank())).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()

    ends = []
    for stops in (False, True):
        net = shard(odd_model(), mesh)
        optimizer = starling.AdamW(net.parameters(), lr=0.02, wire="int8", process_group=mesh["replicate"])
        step(net, optimizer, 0, 4)
        if stops:
            own = f"replica-{replica()}"
            weights, state = get_state_dict(net, optimizer)
            moment = state["state"]["0.weight"]["exp_avg"]
            assert isinstance(moment, DTensor) and moment.shape == (15, 6), moment
            dcp.save({own: {"model": weights, "optimizer": state}}, checkpoint_id=folder)
            optimizer.close()
            net = shard(odd_model(), mesh)
            optimizer = starling.AdamW(net.parameters(), lr=0.5, wire="int8", process_group=mesh["replicate"])
            weights, state = get_state_dict(net, optimizer)
            everything = {own: {"model": weights, "optimizer": state}}
            dcp.load(everything, checkpoint_id=folder)
            set_state_dict(net, optimizer, model_state_dict=everything[own]["model"],
                           optim_state_dict=everything[own]["optimizer"])
        step(net, optimizer, 4, 4)
        ends.append(whole(net.parameters()))
        if stops:
            optimizer.save_consensus(net, os.environ["FILE"])
            with optimizer.consensus():
                average = whole(net.parameters())
        optimizer.close()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return torch.equal(*ends), average.tolist(), ends[0].tolist()


def refused():
    mesh = mesh_of_four()
    net = shard(odd_model(), mesh)
    gathered = torch.nn.Sequential(torch.nn.Linear(4, 4))
    fully_shard(gathered, mesh=mesh)
    said = []
    for parameters, options in (
            (net.parameters(), {}), (net.parameters(), {"process_group": mesh}),
            (gathered.parameters(), {"process_group": mesh["replicate"]}),
            (net.parameters(), {"process_group": mesh["shard"]}),
            (net.parameters(), {"process_group": mesh["replicate"], "clip": 1.0}),
            (net.parameters(), {"process_group": mesh["replicate"], "skip_not_finite": True}),
            (net.parameters(), {"process_group": mesh["replicate"], "scheme": "all-reduce"}),
            (net.parameters(), {"process_group": mesh["replicate"], "hierarchy": "node"})):
        said.append(refusal(starling.AdamW, parameters, lr=0.1, **options))
    optimizer = starling.AdamW(net.parameters(), lr=0.1, process_group=mesh["replicate"])
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(net(batch(0)).sum()).backward()
    said.append(refusal(scaler.step, optimizer, kind=Exception))  # torch's own, or ours
    late = torch.nn.Parameter(distribute_tensor(torch.zeros(4, dtype=torch.float64), mesh["shard"], [Shard(0)]))
    still_there = weakref.ref(late)
    said.append(refusal(optimizer.add_param_group, {"params": [late]}))
    del late
    gc.collect()
    said.append("accepted" if still_there() is not None else "gone")
    optimizer.close()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return said


class FullySharded(unittest.TestCase):
    def test_is_the_run_without_shards(self):
        results = workers.run(fully_sharded, 4)
        for result in results:
            for name, end in result.items():
                self.assertTrue(end["moved"], "the shards lie where they did: this shows nothing")
                self.assertEqual((end["arrived"], end["start"], end["workers"]), (True, 0, 2), name)
                for key in ("off", "inside", "inside_seen", "own_seen"):
                    self.assertLess(end[key], 1e-5, (name, key))
                self.assertTrue(0 < end["distance"] < 1, name)
        for name in results[0]:
            ends, parts = ([torch.tensor(result[name][key]) for result in results] for key in ("end", "parts"))
            self.assertTrue(torch.equal(ends[0], ends[1]))
            for at, result in enumerate(results):
                there = (at + 2) % 4  # the other replica's worker with the same shards
                self.assertAlmostEqual(result[name]["distance"] / distance(parts[at], parts[there]), 1, 4)
                self.assertAlmostEqual(result[name]["whole_distance"] / distance(ends[at], ends[there]), 1, 4)
            shards = [result[name]["distance"] for result in results]
            # Otherwise the test shows nothing.
            self.assertNotAlmostEqual(shards[0] / shards[1], 1, 2)

    def test_nothing_of_values_that_all_have_replaced_comes_back(self):
        self.assertEqual(workers.run(edited, 4), [{"as made": 0, "moved": 0}] * 4)

    def test_is_saved_and_resumed_to_the_bit(self):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "average.safetensors")
            results = workers.run(saved, 4, FOLDER=os.path.join(folder, "saved"), FILE=file)
            weights = load_file(file)
            self.assertEqual(os.listdir(folder).count("average.safetensors.tmp"), 0)
        self.assertEqual([equal for equal, *_ in results], [True] * 4)
        self.assertNotEqual(results[0][2], results[2][2])
        net = odd_model()
        net.load_state_dict(weights)
        for _, average, _ in results:
            torch.testing.assert_close(flat(net), torch.tensor(average, dtype=torch.float64), rtol=1e-5, atol=1e-7)

    def test_what_it_cannot_do_is_refused(self):
        for said in workers.run(refused, 4):
            for text, expected in zip(said, (
                    'say with whom they are mixed, as in process_group=mesh["replicate"]',
                    "a mesh of one dimension is needed, and this one has 2: choose one of replicate, shard",
                    "parameters are distributed over ranks [0, 1, 2, 3], and process_group mixes among ranks",
                    'give fully_shard() mesh["shard"] and the optimizer process_group=mesh["replicate"]',
                    "clip does not take sharded parameters", "skip_not_finite does not take sharded parameters",
                    'scheme "all-reduce" does not take sharded parameters', 'hierarchy "node" does not take sharded',
                    "", "parameter 0 of group 1", "gone"), strict=True):
                self.assertIn(expected, text)
                self.assertNotEqual(text, "accepted")
                self.assertNotIn("\n", text)


if __name__ == "__main__":
    workers.main()
