"""`starling pack images`. Needs the packages of requirements-pack.txt and the program
(environment: STARLING)."""

import io
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

import google_crc32c
import numpy
from PIL import Image

STARLING = os.environ["STARLING"]


def picture(width, height, mode="RGB", seed=0):
    generator = numpy.random.default_rng(seed)
    size = (height, width) if mode == "L" else (height, width, len(mode))
    return Image.fromarray(generator.integers(0, 256, size, dtype=numpy.uint8), mode)


def images_in(path):
    """The header of a shard, its classes and images, as docs/data.md describes them."""
    data = path.read_bytes()
    magic, count, end, index, names, number, shards, classes, index_sum, header_sum = struct.unpack_from(
        "<8sQQQQIIQII", data)
    assert (magic, end) == (b"STARIMG1", len(data))
    assert header_sum == google_crc32c.value(data[:60]) and index_sum == google_crc32c.value(data[index:])
    found = data[names:].split(b"\0")[:-1]
    assert len(found) == classes and names == index + 24 * count
    images = []
    for offset, size, label, checksum in struct.iter_unpack("<QIII4x", data[index:names]):
        jpeg = data[offset:offset + size]
        assert checksum == google_crc32c.value(jpeg)
        images.append((found[label].decode(), jpeg))
    return (number, shards), [name.decode() for name in found], images


class PackImages(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.raw = self.folder / "raw"
        for split in ("train", "val"):
            for i, name in enumerate(("cat", "dög")):
                (self.raw / split / name).mkdir(parents=True)
                picture(40, 30, seed=i).save(self.raw / split / name / "a.jpg")

    def pack(self, *arguments):
        return subprocess.run([STARLING, "pack", "images", *map(str, arguments)], capture_output=True, text=True,
                              timeout=120, env=os.environ | {"STARLING_PYTHON": sys.executable})

    def packed(self, split, *arguments):
        done = self.pack(self.raw, self.folder / "out", *arguments)
        self.assertEqual((done.returncode, done.stdout), (0, "model.classes = 2\n"), done.stderr)
        paths = sorted((self.folder / "out").glob(f"{split}-*.shard"))
        images = []
        for i, path in enumerate(paths):
            (number, shards), classes, some = images_in(path)
            self.assertEqual((number, shards, classes), (i, len(paths), ["cat", "dög"]))
            images += some
        return images, done.stderr

    def test_jpegs_are_kept_and_others_become_jpegs(self):
        cat = self.raw / "train/cat"
        picture(33, 50, "L").save(cat / "b.JPEG")
        picture(20, 25).save(cat / "c.jpg", progressive=True)
        picture(20, 25, "CMYK").save(cat / "d.jpg")
        (cat / "deep").mkdir()
        picture(16, 16, "RGBA").save(cat / "deep/e.png")
        (cat / "readme.txt").write_text("no image")
        whole = (cat / "a.jpg").read_bytes()
        (cat / "f.jpg").write_bytes(whole[:len(whole) // 2])
        (cat / "g.jpg").write_bytes(b"")
        images, said = self.packed("train")
        self.assertEqual([name for name, _ in images], ["cat"] * 5 + ["dög"])
        kept = [(cat / name).read_bytes() for name in ("a.jpg", "b.JPEG", "c.jpg")]
        self.assertEqual([jpeg for _, jpeg in images[:3]], kept)
        for i, size in ((3, (20, 25)), (4, (16, 16))):
            made = Image.open(io.BytesIO(images[i][1]))
            self.assertEqual((made.format, made.mode, made.size), ("JPEG", "RGB", size))
        lines = said.splitlines()
        self.assertRegex(lines[0], f"^starling: pack: {cat}/f.jpg: is left out: .*truncated")
        self.assertRegex(lines[1], f"^starling: pack: {cat}/g.jpg: is left out: cannot identify")
        self.assertEqual(lines[2:], [f"{self.folder}/out/train-*.shard: 6 images, 2 left out",
                                     f"{self.folder}/out/val-*.shard: 2 images, 0 left out"])
        about = json.loads((self.folder / "out/images.json").read_text())
        self.assertEqual((about["classes"], about["train"]["images"], len(about["train"]["skipped"])),
                         (["cat", "dög"], 6, 2))

    def test_grey_of_16_bits_keeps_its_tones(self):
        cat, tones = self.raw / "train/cat", numpy.linspace(0, 65535, 64 * 64).astype("<u2").reshape(64, 64)
        Image.fromarray(tones).save(cat / "b.png")
        Image.fromarray(tones).save(cat / "c.tif")
        (cat / "d.pgm").write_bytes(b"P5\n64 64\n65535\n" + tones.byteswap().tobytes())
        Image.fromarray(tones.astype("float32")).save(cat / "e.tif")
        Image.fromarray(tones.astype("<i4") - 1).save(cat / "f.tif")
        images, said = self.packed("train", "--quality", 100)
        made = [Image.open(io.BytesIO(jpeg)) for name, jpeg in images[1:-1]]
        self.assertEqual([image.mode for image in made], ["L"] * 3)
        for image in made:
            self.assertLessEqual(numpy.abs(numpy.asarray(image).astype(int) - tones // 256).max(), 2)
        self.assertEqual(said.splitlines()[:2], [
            f"starling: pack: {cat / name}: is left out: has pixels of 32 bits: wants 8 or 16" for name in ("e.tif", "f.tif")])

    def test_names_a_class_without_images(self):
        (self.raw / "val/dög/a.jpg").rename(self.raw / "val/dög/a.txt")
        images, said = self.packed("val")
        self.assertEqual([name for name, _ in images], ["cat"])
        self.assertEqual(said.splitlines()[0], f"starling: pack: {self.raw}/val/dög: has no images (as 1 of 2 classes)")

    def test_only_larger_images_are_resized(self):
        dog = self.raw / "train/dög"
        picture(90, 60).save(dog / "b.jpg")
        picture(64, 96).save(dog / "c.png")
        images, _ = self.packed("train", "--resize", 32, "--quality", 80)
        sizes = [Image.open(io.BytesIO(jpeg)).size for _, jpeg in images]
        self.assertEqual(sizes, [(40, 30), (40, 30), (48, 32), (32, 48)])
        self.assertEqual(images[0][1], (self.raw / "train/cat/a.jpg").read_bytes())

    def test_shards_are_filled_to_their_size_in_order(self):
        for i in range(6):
            picture(300, 300, seed=i).save(self.raw / f"train/cat/b{i}.jpg", quality=100)
        images, _ = self.packed("train", "--shard-megabytes", 1, "--jobs", 3)
        shards = sorted((self.folder / "out").glob("train-*.shard"))
        self.assertGreater(len(shards), 1)
        for shard in shards:
            self.assertLess(shard.stat().st_size, (1 << 20) + 4096)
        raw = [(name, path.read_bytes()) for name in ("cat", "dög") for path in sorted((self.raw / "train" / name).iterdir())]
        self.assertEqual(images, raw)

    def test_refuses_in_one_line_and_leaves_nothing(self):
        (self.folder / "used").mkdir()
        (self.folder / "used/file").touch()
        (self.folder / "empty/train").mkdir(parents=True)
        for split in ("train", "val"):
            (self.folder / "other" / split / "cat").mkdir(parents=True)
        (self.folder / "other/train/eel").mkdir()
        (self.folder / "none/train/cat").mkdir(parents=True)
        (self.folder / "none/val/cat").mkdir(parents=True)
        new = self.folder / "new"
        cases = [
            ([self.raw, self.folder / "used"], f"{self.folder}/used: is not empty"),
            ([self.folder / "nowhere", new],
             f"{self.folder}/nowhere/train: is no folder: wants {self.folder}/nowhere/train/CLASS/IMAGE"),
            ([self.folder / "empty", new],
             f"{self.folder}/empty/train: has no classes: wants {self.folder}/empty/train/CLASS/IMAGE"),
            ([self.folder / "other", new], f"{self.folder}/other: train and val have different classes: eel"),
            ([self.folder / "none", new], f"{self.folder}/none/train: has no images"),
        ]
        before = sorted(self.folder.iterdir())
        for arguments, message in cases:
            with self.subTest(message):
                done = self.pack(*arguments)
                self.assertEqual((done.returncode, done.stderr), (2, f"starling: pack: {message}\n"))
        self.assertEqual(sorted(self.folder.iterdir()), before)
        self.assertEqual(self.pack(self.raw, new, "--quality", 101).returncode, 2)
