"""The task `cifar-10` beside torchvision's transforms and its ResNet-18, with the first layer of
A2CiD2's authors, from the same weights: the same losses, step by step. Needs the packages of
requirements-examples.txt and the program (environment: STARLING)."""

import math
import pathlib
import tempfile
import unittest

import numpy
import torch
import torchvision
from torchvision.transforms import functional
from twins import check_weights, order_of, random_bits, train

IMAGES, TESTS, BATCH, STEPS, PAD, SEED = 20, 12, 10, 5, 4, 1
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def write_data(folder):
    """Returns the training and the test images, with their labels."""
    generator = numpy.random.default_rng(1)
    images = generator.integers(0, 256, (IMAGES + TESTS, 3, 32, 32), dtype=numpy.uint8)
    labels = generator.integers(0, 10, IMAGES + TESTS, dtype=numpy.uint8)
    records = [bytes([label]) + image.tobytes() for label, image in zip(labels, images, strict=True)]
    for i in range(5):
        (folder / f"data_batch_{i + 1}.bin").write_bytes(b"".join(records[i * IMAGES // 5:(i + 1) * IMAGES // 5]))
    (folder / "test_batch.bin").write_bytes(b"".join(records[IMAGES:]))
    images, labels = torch.from_numpy(images), torch.from_numpy(labels).long()
    return images[:IMAGES], labels[:IMAGES], images[IMAGES:], labels[IMAGES:]


def moved(image, number, epoch):
    """RandomCrop(32, padding=PAD) and RandomHorizontalFlip, by the random numbers of the task."""
    seed = random_bits(random_bits(SEED, epoch), number)
    left, top = (random_bits(seed, which) % (2 * PAD + 1) for which in (0, 1))
    image = functional.crop(functional.pad(image, PAD), top, left, 32, 32)
    return functional.hflip(image) if random_bits(seed, 2) & 1 else image


def normalized(images):
    return functional.normalize(images.float() / 255, MEAN, DEVIATION).contiguous(memory_format=torch.channels_last)


class Cifar10(unittest.TestCase):
    def test_steps_of_resnet_18_are_torchvisions(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            images, labels, test_images, test_labels = write_data(folder)
            keys = {"data.name": "cifar-10", "data.dir": folder, "train.batch": BATCH, "run.steps": STEPS, "run.seed": SEED,
                    "optimizer.rule": "sgd", "optimizer.lr": 0.01, "optimizer.momentum": 0.9,
                    "optimizer.weight_decay": 5e-4, "optimizer.decay": "matrices"}
            start, _, _ = train(folder / "before", **keys | {"run.steps": 1, "optimizer.lr": 1e-60})  # as a float: 0
            end, losses, after = train(folder / "after", **keys)

        twin = torchvision.models.resnet18(num_classes=10)
        twin.conv1 = torch.nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
        twin.maxpool = torch.nn.Identity()
        twin = twin.to(memory_format=torch.channels_last)
        twin.load_state_dict(start)
#The step before has changed the statistics of the batch normalisation, and nothing else.
        for module in twin.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.reset_running_stats()
        parameters = list(twin.parameters())
        optimizer = torch.optim.SGD([{"params": [p for p in parameters if p.dim() > 1], "weight_decay": 5e-4},
                                     {"params": [p for p in parameters if p.dim() == 1]}], lr=0.01, momentum=0.9)
        cross_entropy = torch.nn.functional.cross_entropy
        for step in range(STEPS):
            epoch, batch = divmod(step, IMAGES // BATCH)
            chosen = order_of(IMAGES, epoch, SEED)[batch * BATCH:(batch + 1) * BATCH]
            loss = cross_entropy(twin(normalized(torch.stack([moved(images[i], i, epoch) for i in chosen]))), labels[chosen])
            self.assertTrue(math.isclose(losses[step], loss.item(), rel_tol=1e-5), (step, losses[step], loss.item()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        twin.eval()
        with torch.no_grad():
            logits = twin(normalized(test_images))
        loss = cross_entropy(logits, test_labels).item()
        self.assertTrue(math.isclose(after["test_loss"], loss, rel_tol=1e-4), (after["test_loss"], loss))
        self.assertAlmostEqual(after["accuracy"], (logits.argmax(1) == test_labels).float().mean().item(), 6)
        check_weights(self, start, end, twin.state_dict())
