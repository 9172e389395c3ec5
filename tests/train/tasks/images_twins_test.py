"""The task `images` beside torchvision's ResNets, from the same weights: the same losses, step by
step. Needs the packages of requirements-examples.txt and the program (environment: STARLING)."""

import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy
import torch
import torchvision
from PIL import Image
from twins import STARLING, check_weights, order_of, train

SIDE, IMAGES, BATCH, STEPS = 64, 24, 8, 10
CLASSES = ["ant", "bee", "cat"]
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
DEVIATION = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


def write_images(folder):
    generator = numpy.random.default_rng(1)
    for split, count in (("train", IMAGES // 3), ("val", 3)):
        for label, name in enumerate(CLASSES):
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                coarse = Image.fromarray(generator.integers(0, 256, (6, 6 + label, 3), dtype=numpy.uint8))
                coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(folder / split / name / f"{i}.jpg", quality=95)


def tensors_of(folder):
    """All images of a split, in the order in which they are packed, as torchvision reads them."""
    pairs = [(path, label) for label, name in enumerate(CLASSES) for path in sorted((folder / name).iterdir())]
    to_tensor = torchvision.transforms.functional.pil_to_tensor
    images = torch.stack([to_tensor(Image.open(path)) for path, _ in pairs]).float() / 255
    return (images - MEAN) / DEVIATION, torch.tensor([label for _, label in pairs])


class ResNet(unittest.TestCase):
    def compare(self, depth, keys, smoothing, make_optimizer):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            write_images(folder / "raw")
            subprocess.run([STARLING, "pack", "images", folder / "raw", folder / "packed"], check=True,
                           capture_output=True, timeout=300, env=os.environ | {"STARLING_PYTHON": sys.executable})
            keys = {
                "data.name": "images", "data.dir": folder / "packed", "data.size": SIDE, "data.test_side": SIDE,
                "data.area": 1, "data.flip": "false", "model.depth": depth, "model.classes": len(CLASSES),
                "model.label_smoothing": smoothing, "train.batch": BATCH, "run.steps": STEPS} | keys
            start, _, before = train(folder / "before", **keys | {"run.steps": 1, "optimizer.lr": 1e-60})  # as a float: 0
            end, losses, after = train(folder / "after", **keys)
            images, labels = tensors_of(folder / "raw/train")
            test_images, test_labels = tensors_of(folder / "raw/val")

        twin = getattr(torchvision.models, f"resnet{depth}")(num_classes=len(CLASSES))
        twin = twin.to(memory_format=torch.channels_last)
        twin.load_state_dict(start)
        cross_entropy = torch.nn.functional.cross_entropy

        def check_test(summary):
            twin.eval()
            with torch.no_grad():
                logits = twin(test_images.contiguous(memory_format=torch.channels_last))
            twin.train()
            loss = cross_entropy(logits, test_labels).item()
            self.assertTrue(math.isclose(summary["test_loss"], loss, rel_tol=1e-5), (summary["test_loss"], loss))
            self.assertAlmostEqual(summary["accuracy"], (logits.argmax(1) == test_labels).float().mean().item(), 6)

        check_test(before)
        # The step before has changed the statistics of the batch normalisation, and nothing else.
        for module in twin.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.reset_running_stats()
        optimizer = make_optimizer(twin.parameters())
        for step in range(STEPS):
            epoch, batch = divmod(step, IMAGES // BATCH)
            chosen = order_of(IMAGES, epoch, 1)[batch * BATCH:(batch + 1) * BATCH]
            logits = twin(images[chosen].contiguous(memory_format=torch.channels_last))
            loss = cross_entropy(logits, labels[chosen], label_smoothing=smoothing)
            self.assertTrue(math.isclose(losses[step], loss.item(), rel_tol=1e-5), (step, losses[step], loss.item()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        self.assertLess(losses[-1], losses[0])
        check_test(after)
        check_weights(self, start, end, twin.state_dict())

    # Blocks that begin as the identity keep rounding errors small.
    def test_ten_steps_of_resnet_18_are_torchvisions(self):
        self.compare(18, {"optimizer.rule": "sgd", "optimizer.lr": 0.01, "optimizer.momentum": 0.9,
                          "optimizer.weight_decay": 1e-4}, 0,
                     lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4))

    def test_ten_steps_of_resnet_50_are_torchvisions(self):
        self.compare(50, {"optimizer.rule": "sgd", "optimizer.lr": 3e-4, "optimizer.momentum": 0.9,
                          "optimizer.weight_decay": 0}, 0.1,
                     lambda parameters: torch.optim.SGD(parameters, lr=3e-4, momentum=0.9))
