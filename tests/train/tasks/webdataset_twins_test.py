"""Tar archives of webdataset and of Python's tarfile in every format train as the shards of
`starling pack images` with the same images. Needs the packages of requirements-examples.txt and the
program (environment: STARLING)."""

import io
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import unittest

import numpy
import webdataset
from PIL import Image
from twins import STARLING, train

CLASSES = ["ant", "bee", "cat"]
COUNTS = {"train": 8, "val": 3}  # of each class


def write_images(folder):
    generator = numpy.random.default_rng(1)
    for split, count in COUNTS.items():
        for name in CLASSES:
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = Image.fromarray(generator.integers(0, 256, (8, 8, 3), dtype=numpy.uint8))
                pixels.resize((40, 36 + i)).save(folder / split / name / f"{i}.jpg", quality=95)


def samples_of(folder, key):
    """The images in the order in which they are packed."""
    for label, name in enumerate(CLASSES):
        for path in sorted((folder / name).iterdir()):
            yield {"__key__": key.format(name, path.stem), "jpg": path.read_bytes(), "cls": label}


def write_by_tarfile(raw, out, form, key):
    """Two archives of each split."""
    for split in COUNTS:
        samples = list(samples_of(raw / split, key))
        middle = len(samples) // 2
        for number, part in enumerate((samples[:middle], samples[middle:])):
            with tarfile.open(out / f"{split}-{number}.tar", "w", format=form) as archive:
                folder = tarfile.TarInfo("a folder")
                folder.type = tarfile.DIRTYPE
                archive.addfile(folder)
                for sample in part:
                    for ending, data in (("cls", b"%d\n" % sample["cls"]), ("jpg", sample["jpg"]), ("txt", b"")):
                        member = tarfile.TarInfo(f"{sample['__key__']}.{ending}")
                        member.size, member.mtime = len(data), 1.5 if form == tarfile.PAX_FORMAT else 1
                        archive.addfile(member, io.BytesIO(data))


def write_by_webdataset(raw, out):
    for split in COUNTS:
        with webdataset.ShardWriter(f"{out}/{split}-%06d.tar", maxcount=5, verbose=0) as writer:
            for sample in samples_of(raw / split, "{}_{}"):
                writer.write(sample)


class Webdataset(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="starling-")))
        cls.raw = cls.folder / "raw"
        write_images(cls.raw)
        subprocess.run([STARLING, "pack", "images", cls.raw, cls.folder / "packed"], check=True, capture_output=True,
                       timeout=300, env=os.environ | {"STARLING_PYTHON": sys.executable})
        cls.expected = cls.result(cls.folder / "packed")

    @classmethod
    def result(cls, data):
        """The losses of two epochs, and what the test says."""
        keys = {"data.name": "images", "data.dir": data, "data.size": 16, "model.depth": 18, "model.stem": "3x3",
                "model.classes": len(CLASSES), "train.batch": 4, "run.epochs": 2, "optimizer.lr": 0.01, "run.threads": 1}
        _, losses, summary = train(data.with_name(data.name + "-run"), **keys)
        return losses, summary["test_loss"], summary["accuracy"]

    def check(self, name, write):
        out = self.folder / name
        out.mkdir()
        write(out)
        self.assertEqual(len(self.expected[0]), 12)
        self.assertEqual(self.result(out), self.expected)

    def test_webdatasets_own_archives(self):
        self.check("webdataset", lambda out: write_by_webdataset(self.raw, out))
        self.assertEqual(len(list((self.folder / "webdataset").iterdir())), 5 + 2)

    def test_pythons_tarfile_in_posix_and_gnu_formats(self):
        long = "d" * 90 + "/{}/" + "n" * 60 + "{}"
        for name, form, key in (("ustar", tarfile.USTAR_FORMAT, long), ("pax", tarfile.PAX_FORMAT, long + "é" * 100),
                                ("gnu", tarfile.GNU_FORMAT, long + "é" * 100)):
            with self.subTest(name):
                self.check(name, lambda out, form=form, key=key: write_by_tarfile(self.raw, out, form, key))
