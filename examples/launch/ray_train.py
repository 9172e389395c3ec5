"""Starling under Ray Train. Each worker is an actor, and Ray chooses its host:

python examples/launch/ray_train.py --workers 4
python examples/launch/ray_train.py --workers 2 4   # as many of them as the cluster has room for

Ray Train makes torch's process group before it calls train(), and Starling takes that. So
prepare_model(), which wraps in DistributedDataParallel, is left out. On several hosts, --out is a
folder that all of them see.
"""

import argparse
import json
import pathlib
import tempfile

import ray.train
import torch
from ray.train.torch import TorchTrainer

import starling

KINDS, FEATURES, SAMPLES, BATCH = 10, 16, 1024, 16


def samples(seed):
    """Points around a centre for each kind, and their kinds."""
    centres = torch.randn(KINDS, FEATURES, generator=torch.Generator().manual_seed(0))
    random = torch.Generator().manual_seed(seed)
    kinds = torch.randint(KINDS, (SAMPLES,), generator=random)
    return centres[kinds] + torch.randn(SAMPLES, FEATURES, generator=random), kinds


def train(config):
    """Runs on each worker."""
    context = ray.train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    inputs, kinds = (part[rank::workers] for part in samples(seed=1))
    test_inputs, test_kinds = samples(seed=2)
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 64), torch.nn.ReLU(), torch.nn.Linear(64, KINDS))
    optimizer = starling.AdamW(model.parameters(), lr=config["lr"], model=model)
    loss_of = torch.nn.CrossEntropyLoss()

    def test():
        with torch.no_grad():
            return loss_of(model(test_inputs), test_kinds).item()

    first = 1
    if checkpoint := ray.train.get_checkpoint():  # Ray has started the workers again
        with checkpoint.as_directory() as folder:
            saved = torch.load(pathlib.Path(folder, "run.pt"))
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"] + 1

    for epoch in range(first, config["epochs"] + 1):
        order = torch.randperm(len(kinds), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(BATCH):
            optimizer.zero_grad()
            loss_of(model(inputs[batch]), kinds[batch]).backward()
            optimizer.step()

        metrics = {"epoch": epoch, "own_loss": test()}
        with tempfile.TemporaryDirectory() as folder:
            with optimizer.consensus() as average:  # collective: the average model, in this block
                metrics |= {"loss": test(), "workers": average.workers, "distance": average.distance}
                if rank == 0:  # any number of workers can go on with it
                    saved = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save(saved, pathlib.Path(folder, "run.pt"))
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder) if rank == 0 else None)


class Metrics(ray.train.UserCallback):
    """Writes a line for each epoch, with the metrics of all workers. Ray keeps those of rank 0."""

    def __init__(self, path):
        self.path = path

    def after_report(self, run_context, metrics, checkpoint):
        with self.path.open("a") as file:
            file.write(json.dumps(metrics) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[2], metavar="N", help="how many, or the least and the most")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/ray"))
    given = parser.parse_args()
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    trainer = TorchTrainer(
        train,
        train_loop_config={"epochs": given.epochs, "lr": given.lr},
        scaling_config=ray.train.ScalingConfig(num_workers=given.workers[0] if len(given.workers) == 1 else tuple(given.workers)),
        run_config=ray.train.RunConfig(
            storage_path=str(out),
            # If a worker dies, Ray starts all again from the last checkpoint.
            failure_config=ray.train.FailureConfig(max_failures=3),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
            callbacks=[Metrics(out / "metrics.jsonl")],
        ),
    )
    result = trainer.fit()
    print(f"average of {result.metrics['workers']}: loss {result.metrics['loss']:.4f}, distance {result.metrics['distance']:.2g}")


if __name__ == "__main__":
    main()
