"""starling.data reads what `starling pack` writes. Needs the packages of requirements-pack.txt and
the program (environment: STARLING)."""

import itertools
import os
import pathlib
import pickle
import struct
import subprocess
import sys
import tempfile
import unittest

import google_crc32c
import numpy
import torch
from PIL import Image
from torch.utils.data import DataLoader

import starling
from starling import data


class DataTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.file = self.folder / "file"

    def refused(self, make, *parts):
        with self.assertRaises(starling.Error) as caught:
            make()
        for part in parts:
            self.assertIn(part, str(caught.exception))

    def write(self, content):
        self.file.write_bytes(content)

    def sent(self, examples):
        """The same for a process that is not forked."""
        told = pickle.dumps(examples)
        self.assertNotIn(b"torch", told)  # the bytes of the files would be a tensor's
        again = pickle.loads(told)
        self.assertEqual(len(again), len(examples))
        return again


class Text(DataTest):
    def test_windows_and_the_tokens_behind(self):
        self.write(numpy.arange(65500, 65530, dtype="<u2").tobytes())
        texts = data.Text(self.file, context=7, first=2)
        self.assertEqual(len(texts), 3)
        for i in (0, 2, -1):
            tokens, targets = texts[i]
            begin = 65502 + 7 * (i % 3)
            self.assertEqual((tokens.tolist(), tokens.dtype), (list(range(begin, begin + 7)), torch.int64))
            self.assertEqual(targets.tolist(), list(range(begin + 1, begin + 8)))
        self.assertRaises(IndexError, lambda: texts[3])
        for one, other in zip(self.sent(texts)[1], texts[1], strict=True):
            self.assertTrue(torch.equal(one, other))

    def test_refusals(self):
        self.refused(lambda: data.Text(self.folder / "none", 4), "none: cannot be mapped: ")
        for content, why in ((b"", "cannot be mapped"), (b"abc", "within a token"), (b"12345678", "too few for a window")):
            self.write(content)
            self.refused(lambda: data.Text(self.file, 4), str(self.file), why)
        for context, first in ((0, 0), (4, -1)):
            self.refused(lambda context=context, first=first: data.Text(self.file, context, first),
                         f"context = {context}, first = {first}: wants at least 1 and 0")


class Pairs(DataTest):
    def content(self, *sentences):
        places = numpy.cumsum([0, *map(len, sentences)], dtype="<u8").tobytes()
        tokens = numpy.array(sum(sentences, []), dtype="<u2").tobytes()
        return b"PAIR" + struct.pack("<IQ", 1, len(sentences) // 2) + places + tokens

    def test_sentences(self):
        sentences = [[2, 3, 65535], [4], [5, 6], [7, 8, 9, 10]]
        self.write(self.content(*sentences))
        pairs = data.Pairs(self.file)
        self.assertEqual(len(pairs), 2)
        self.assertEqual([sentence.tolist() for pair in (pairs[0], pairs[1]) for sentence in pair], sentences)
        self.assertEqual([sentence.tolist() for sentence in self.sent(pairs)[1]], sentences[2:])

    def test_refusals(self):
        whole = self.content([2, 3], [4])
        places, far = struct.pack("<3Q", 0, 3, 3), struct.pack("<5Q", 0, 2**63 - 1, 2**63, 2**64 - 1, 3)
        for content, why in ((b"PAIR", "no file of sentence pairs"), (b"SHOE" + whole[4:], "no file of sentence pairs"),
                             (whole[:30], "breaks off"), (whole[:-2], "should have 6"), (whole + b"12", "should have 6"),
                             (whole[:16] + places + whole[40:], "a sentence is empty"),
                             (b"PAIR" + struct.pack("<IQ", 1, 2) + far + whole[40:], "begins behind its end"),
                             (whole[:8] + struct.pack("<Q", 2**60) + whole[16:], "breaks off")):
            self.write(content)
            self.refused(lambda: data.Pairs(self.file), str(self.file), why)
        self.write(self.content([2, 3], [4], [5], [6, 1]))
        self.refused(lambda: data.Pairs(self.file)[-1], f"{self.file}: pair 1: token 1: wants at least 2")


class Images(DataTest):
    def setUp(self):
        super().setUp()
        self.files = []
        for split, count in (("train", 5), ("val", 1)):
            for label, name in enumerate(("ant", "bee")):
                place = self.folder / "raw" / split / name
                place.mkdir(parents=True)
                for i in range(count):
                    pixels = numpy.random.default_rng(10 * label + i).integers(0, 256, (20 + i, 30, 3), dtype=numpy.uint8)
                    Image.fromarray(pixels).save(place / f"{i}.jpg")
        subprocess.run([os.environ["STARLING"], "pack", "images", self.folder / "raw", self.folder / "out"], check=True,
                       capture_output=True, timeout=120, env=os.environ | {"STARLING_PYTHON": sys.executable})
        self.shard = self.folder / "out" / "train-00000.shard"

    def test_the_images_are_those_of_the_folder(self):
        images = data.Images(self.folder / "out", "train", lambda image: image.tobytes())
        self.assertEqual((len(images), images.classes), (10, ["ant", "bee"]))
        expected = {(Image.open(path).tobytes(), label) for label, name in enumerate(images.classes)
                    for path in (self.folder / "raw/train" / name).iterdir()}
        self.assertEqual(set(images[i] for i in range(10)), expected)
        image, _ = data.Images(self.folder / "out", "val")[1]
        self.assertEqual(image.size, (30, 20))
        again = self.sent(data.Images(self.folder / "out", "train"))
        self.assertEqual((again.classes, again[7][1]), (images.classes, images[7][1]))

    def test_refusals(self):
        whole = self.shard.read_bytes()

        def damaged(at):
            self.shard.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:])
            return data.Images(self.folder / "out", "train")

        self.refused(lambda: damaged(0), str(self.shard), "no shard of images")
        self.refused(lambda: damaged(20), str(self.shard), "its header is damaged")
        self.refused(lambda: damaged(len(whole) - 3), str(self.shard), "its index is damaged")
        images = damaged(70)  # within the first image
        self.refused(lambda: images[0], f"{self.shard}: image 0: its checksum is wrong")
        images[1]
        index = struct.unpack_from("<Q", whole, 24)[0]
        far = bytearray(whole)
        struct.pack_into("<Q", far, index, 2**63)  # the place of an image, with the right sums
        struct.pack_into("<I", far, 56, google_crc32c.value(bytes(far[index:])))
        struct.pack_into("<I", far, 60, google_crc32c.value(bytes(far[:60])))
        self.shard.write_bytes(far)
        images = data.Images(self.folder / "out", "train")
        self.refused(lambda: images[0], f"{self.shard}: image 0: its checksum is wrong")
        self.shard.write_bytes(whole[:-1])
        self.refused(lambda: data.Images(self.folder / "out", "train"), f"has {len(whole) - 1} bytes, and should have")
        self.refused(lambda: data.Images(self.folder / "out", "test"), "test-00000.shard: cannot be mapped")


class Batches(unittest.TestCase):
    examples = torch.arange(50)

    def some(self, count, **options):
        batches = data.Batches(self.examples, 4, collate=lambda batch: [int(i) for i in batch],
                               **{"rank": 0, "world_size": 1, "seed": 3} | options)
        return list(itertools.islice(batches, count))

    def test_an_epoch_shuffles_what_the_workers_share(self):
        for workers in (1, 2, 3):
            per_epoch = 50 // 4 // workers
            epochs = [[self.some(2 * per_epoch, rank=rank, world_size=workers)[epoch * per_epoch:][:per_epoch]
                       for rank in range(workers)] for epoch in (0, 1)]
            for epoch in epochs:
                members = sum(sum(epoch, []), [])
                self.assertEqual(len(members), 4 * workers * per_epoch)
                self.assertEqual(len(set(members)), len(members))
            self.assertNotEqual(epochs[0], epochs[1])
        self.assertNotEqual(self.some(5), self.some(5, seed=4))

    def test_numbers_have_a_range(self):
        for wrong in ({"step": -1}, {"rank": 2, "world_size": 2}, {"rank": -1}):
            with self.assertRaisesRegex(starling.UsageError, "batch = 4, step = .*: wants at least"):
                self.some(1, **wrong)
        with self.assertRaisesRegex(starling.UsageError, "batch = 0, .*: wants at least 1"):
            data.Batches(self.examples, 0)
        self.assertNotEqual(self.some(5, seed=2**64 - 1), self.some(5, seed=2**64 - 2))

    def test_a_run_goes_on_where_it_stood(self):
        self.assertEqual(self.some(20, step=17), self.some(37)[17:])

    def test_other_workers_take_the_rest_of_the_epoch(self):
        # 12 batches of 4 in an epoch. Two workers have had 2 or 8 batches each.
        for taken in (2, 8):
            for workers in (1, 3, 4):
                with self.subTest(taken=taken, workers=workers):
                    before = [(2, taken)]
                    epochs = {}
                    for rank in range(2):
                        for number, batch in enumerate(self.some(taken, rank=rank, world_size=2)):
                            epochs.setdefault(number // 6, []).extend(batch)
                    rest = 12 - 2 * taken % 12
                    for rank in range(workers):
                        mine = self.some(rest // workers + 12 // workers, rank=rank, world_size=workers, before=before)
                        last = taken // 6
                        epochs.setdefault(last, []).extend(sum(mine[: rest // workers], []))
                        epochs.setdefault(last + 1, []).extend(sum(mine[rest // workers :], []))
                        self.assertEqual(self.some(3, rank=rank, world_size=workers, before=[*before, (workers, 2)]),
                                         self.some(5, rank=rank, world_size=workers, before=before)[2:])
                    for members in epochs.values():
                        self.assertEqual(len(set(members)), len(members))
                        self.assertGreater(len(members), 48 - 4 * workers)
        with self.assertRaisesRegex(starling.UsageError, "batch = 4: 50 examples are too few for 13 workers"):
            self.some(1, before=[(13, 1)])

    def test_processes_of_the_loader_change_nothing(self):
        expected = self.some(30)
        for processes in (0, 1, 2):
            batches = data.Batches(self.examples, 4, seed=3, rank=0, world_size=1)
            loader = DataLoader(batches, batch_size=None, num_workers=processes)
            self.assertEqual([batch.tolist() for batch in itertools.islice(loader, 30)], expected, processes)

    def test_the_world_is_the_optimizers(self):
        self.assertEqual(data.Batches(self.examples, 4).per_epoch, 12)  # alone, without a launcher
        with self.assertRaisesRegex(starling.UsageError, "batch = 26: 50 examples are too few for 2 workers"):
            data.Batches(self.examples, 26, rank=1, world_size=2)
