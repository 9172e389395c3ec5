"""starling.watch in real workers: its figures are those of the statistics (Watch), and Weights &
Biases, MLflow and the Trainer hold them (Loggers, which needs requirements-watch.txt and
requirements-examples.txt). Without network."""

import copy
import json
import os
import pathlib
import struct
import tempfile
import time
import unittest
import unittest.mock

import torch
import workers
from learning import loss_of, model, rank, train

import starling
from starling import watch

COUNTS = {"rounds", "skipped_rounds", "round", "membership", "joins", "committed", "aborted", "jumped", "late", "bytes_sent",
          "bytes_in_place", "payload_sent", "directed_aborted", "seconds_waiting", "skipped", "lost",
          "waiting_share"}  # fmt: skip
OF_PAIRS = {"rate", "distance", "gradients_of_all", "questions/asked", "questions/refused", "questions/unanswered",
            "questions/dropped", "edge/{}/averaged", "edge/{}/gap", "edge/{}/longest_gap", "edge/{}/distance"}  # fmt: skip


def named(names, edge):
    return sorted("starling/" + name.format(edge) for name in names)


class Frozen:
    """An optimizer whose statistics stand still."""

    def __init__(self, optimizer):
        self.kept, self.consensus_distance = optimizer.statistics(), optimizer.consensus_distance

    def statistics(self):
        return copy.deepcopy(self.kept)


# ---------------------------------------------------------------- workers


def of_rounds():
    """The figures after some steps, in which the other worker sleeps, and the statistics."""
    net = model()
    optimizer = starling.AdamW(net.parameters(), lr=0.02, model=net, scheme="cta", check_gradients=False)
    before = time.monotonic()
    figures = watch.Figures(optimizer)
    waited, begin = optimizer.statistics()["seconds_waiting"], time.monotonic()
    for t in range(6):
        if rank() == 1:
            time.sleep(0.2)
        train(net, optimizer, 1, first=t, seed=rank())
    waited = optimizer.statistics()["seconds_waiting"] - waited
    end = time.monotonic()
    found = figures()
    after = time.monotonic()
    share = found["starling/waiting_share"]
    between = waited / (after - before) <= share <= waited / (end - begin)
    again = [figures()["starling/waiting_share"] for _ in range(1 + 5 * rank())]  # no worker waits for another here
    train(net, optimizer, 2, first=6)
    frozen = Frozen(optimizer)
    exact = watch.Figures(frozen)(consensus_distance=True)
    return found, between, again, exact, frozen.kept, optimizer.consensus_distance()


def of_pairs():
    net = model()
    optimizer = starling.AdamW(net.parameters(), lr=0.02, model=net, scheme="a2cid2", check_gradients=False)
    first = watch.Figures(optimizer)()
    met = torch.zeros(1)
    while met < 1:  # on both workers
        train(net, optimizer, 20, seed=rank())
        frozen = Frozen(optimizer)
        met.fill_(frozen.kept["distance"] > 0)
        starling.average([met])
    found = watch.Figures(frozen)()
    kept = copy.deepcopy(frozen.kept)
    # Another neighbour, with which there was no averaging yet, and a number that is not finite.
    frozen.kept["edges"].append({"rank": 7, "averaged": 0, "gap": 4.0, "longest_gap": 4, "distance": 0.0})
    frozen.kept["rate"] = float("nan")
    frozen.kept["lost"] = [7]
    return first, found, kept, watch.Figures(frozen)()


def logs():
    """The loops of docs/running.md."""
    import mlflow
    import wandb

    os.chdir(os.environ["FOLDER"])
    net = model()
    optimizer = starling.AdamW(net.parameters(), lr=0.02, model=net, scheme="a2cid2", check_gradients=False)
    frozen = Frozen(optimizer)
    figures = watch.Figures(frozen)
    wandb.init(project="starling", group="run", name=f"rank {rank()}")
    mlflow.start_run(run_name=f"rank {rank()}")
    logged = []
    for step in range(6):
        loss = loss_of(net, 10 * step + rank())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 2 == 1:
            frozen.kept = optimizer.statistics()
            logged.append({"loss": loss.item(), **figures()})
            wandb.log(logged[-1], step=step)
            mlflow.log_metrics(logged[-1], step=step)
    mlflow.end_run()
    wandb.finish()
    return logged


def in_trainer():
    import transformers

    os.chdir(os.environ["FOLDER"])
    args = transformers.TrainingArguments(
        output_dir=".", max_steps=6, logging_steps=2, eval_strategy="steps", eval_steps=6, save_strategy="no",
        per_device_train_batch_size=4, average_tokens_across_devices=False, use_cpu=True, disable_tqdm=True,
        report_to=["wandb", "mlflow"])  # fmt: skip
    shape = transformers.GPT2Config(vocab_size=8, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0,
                                    eos_token_id=0)  # fmt: skip
    net = transformers.GPT2LMHeadModel(shape)
    generator = torch.Generator().manual_seed(1)
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(8, (64, 8), generator=generator)]
    optimizer = starling.AdamW(net.parameters(), lr=1e-2, model=net)
    trainer = transformers.Trainer(model=net, args=args, train_dataset=rows, eval_dataset=rows, optimizers=(optimizer, None))

    class OwnGradients(transformers.TrainerCallback):
        def on_train_begin(self, *_, **__):
            starling.no_all_reduce(trainer.model_wrapped)

    trainer.add_callback(OwnGradients())
    watch.add_to_trainer(trainer, optimizer, consensus_distance=True)
    trainer.train()
    torch.distributed.destroy_process_group()
    return trainer.state.log_history


# ---------------------------------------------------------------- tests


class Watch(unittest.TestCase):
    def assert_are(self, found, statistics):
        """The figures' values are those of the statistics."""
        json.dumps(found, allow_nan=False)
        edges = {edge["rank"]: edge for edge in statistics["edges"]}
        for name, value in found.items():
            self.assertIsInstance(value, float, name)
            first, *rest = name.removeprefix("starling/").split("/")
            if first == "edge":
                self.assertEqual(value, edges[int(rest[0])][rest[1]], name)
            elif first == "questions":
                self.assertEqual(value, statistics["questions"][rest[0]], name)
            elif first == "lost":
                self.assertEqual(value, len(statistics["lost"]))
            elif first not in ("waiting_share", "consensus_distance"):
                self.assertEqual(value, statistics[first], name)

    def test_figures_of_a_scheme_with_rounds(self):
        results = workers.run(of_rounds, 2)
        for worker, (found, between, again, exact, statistics, distance) in enumerate(results):
            self.assertEqual(sorted(found), named(COUNTS, 1 - worker))
            self.assertTrue(between, found)
            self.assertEqual(set(again), {0.0})  # since the call before
            self.assertEqual(sorted(exact), named(COUNTS | {"consensus_distance"}, 1 - worker))
            self.assert_are(exact, statistics)
            self.assertGreater(exact["starling/bytes_sent"], 0)
            self.assertGreater(distance, 0)
            self.assertEqual(exact["starling/consensus_distance"], distance)
        self.assertGreater(results[0][0]["starling/waiting_share"], 0)

    def test_figures_of_a_scheme_in_pairs(self):
        for worker, (first, found, statistics, changed) in enumerate(workers.run(of_pairs, 2)):
            other = 1 - worker
            names = COUNTS | OF_PAIRS
            unknown = {"distance", "edge/{}/gap", "edge/{}/distance"}  # unless the other one was fast
            self.assertLessEqual(set(named(names - unknown, other)), first.keys())
            self.assertLessEqual(first.keys(), set(named(names, other)))
            self.assertEqual(sorted(found), named(names, other))
            self.assert_are(found, statistics)
            self.assertGreater(found[f"starling/edge/{other}/distance"], 0)
            self.assertEqual(found[f"starling/edge/{other}/distance"], found["starling/distance"])
            for name in "starling/edge/7/averaged", "starling/edge/7/longest_gap":
                self.assertIn(name, changed)
            for name in "starling/edge/7/gap", "starling/edge/7/distance", "starling/rate":
                self.assertNotIn(name, changed)
            self.assertEqual(changed["starling/lost"], 1)


def wandb_records(content):
    """The records of a .wandb file: a header of seven bytes, then LevelDB's log format, which has
    parts of records in blocks of 32 KB."""
    place, record = 7, b""
    while place + 7 <= len(content):
        if (left := -place % 32768) and left < 7:
            place += left  # the end of a block has no room for a part
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # the whole record, or its last part
            yield record
            record = b""


class Loggers(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.place = {"FOLDER": self.folder, "WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": self.folder,
                      "HF_HUB_OFFLINE": "1", "MLFLOW_ALLOW_FILE_STORE": "true",
                      "MLFLOW_TRACKING_URI": lambda rank: f"file://{self.folder}/mlflow-{rank}"}

    def in_wandb(self):
        """The rows that each worker's run has, by the name of the run."""
        from wandb.proto import wandb_internal_pb2

        found = {}
        for file in self.folder.glob("wandb/offline-run-*/*.wandb"):
            name, rows = None, []
            for data in wandb_records(file.read_bytes()):
                record = wandb_internal_pb2.Record.FromString(data)
                if record.WhichOneof("record_type") == "run":
                    name = record.run.display_name
                elif record.WhichOneof("record_type") == "history":
                    row = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
                    rows.append({key: value for key, value in row.items() if not key.startswith("_")})  # not wandb's own
            found[name] = rows
        return found

    def in_mlflow(self, worker):
        """By the name of each metric its values."""
        from mlflow import MlflowClient

        with unittest.mock.patch.dict(os.environ, MLFLOW_ALLOW_FILE_STORE="true"):
            client = MlflowClient(f"file://{self.folder}/mlflow-{worker}")
        (run,) = client.search_runs(["0"])
        return {name: [metric.value for metric in client.get_metric_history(run.info.run_id, name)]
                for name in run.data.metrics}

    def test_a_loop_logs_to_both(self):
        logged = workers.run(logs, 2, **self.place)
        rows = self.in_wandb()
        for worker, mine in enumerate(logged):
            self.assertEqual(len(mine), 3)
            self.assertIn(f"starling/edge/{1 - worker}/averaged", mine[0])
            self.assertEqual(rows[f"rank {worker}"], mine)
            names = {name for each in mine for name in each}
            self.assertEqual(self.in_mlflow(worker),
                             {name: [each[name] for each in mine if name in each] for name in names})

    def test_the_trainers_reporters_get_them(self):
        histories = workers.run(in_trainer, 2, **self.place)
        for worker, history in enumerate(histories):
            names = named(COUNTS | {"consensus_distance"}, 1 - worker)
            self.assertEqual(["loss" in entry for entry in history], [True] * 3 + [False] * 2)  # training, evaluation, summary
            for entry in history:
                own = sorted(name for name in entry if name.startswith("starling/"))
                self.assertEqual(own, names if "loss" in entry else [])
            json.dumps(history, allow_nan=False)
        training = histories[0][:3]
        self.assertEqual([entry["starling/consensus_distance"] for entry in training],
                         [entry["starling/consensus_distance"] for entry in histories[1][:3]])
        self.assertGreater(training[0]["starling/consensus_distance"], 0)
        (rows,) = self.in_wandb().values()
        metrics = self.in_mlflow(0)
        for name in named(COUNTS | {"consensus_distance"}, 1):
            values = [entry[name] for entry in training]
            self.assertEqual([row[f"train/{name}"] for row in rows if f"train/{name}" in row], values)
            self.assertEqual(metrics[name], values)


if __name__ == "__main__":
    workers.main()
