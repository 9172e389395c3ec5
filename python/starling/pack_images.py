"""starling pack images: a folder of images becomes shards. docs/data.md describes their format."""

import concurrent.futures
import io
import json
import os
import pathlib
import struct
import sys

from packing import Refusal, appearing, imported, wants_new, whole_number

MAGIC = b"STARIMG1"
HEADER = struct.Struct("<8sQQQQIIQI")  # and its checksum
HEADER_BYTES = 64
ENTRY = struct.Struct("<QIII4x")
ENDINGS = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
MOST_PIXELS = 1 << 26  # that training reads
BATCH = 256  # images that are read at once


class Broken(Exception):
    """An image that is left out."""


def of_8_bits(image):
    """Grey pixels of 16 bits as their high bytes: convert() alone would make most of them white."""
    low, high = image.getextrema()
    if image.mode == "F" or low < 0 or high >= 1 << 16:
        raise Broken("has pixels of 32 bits: wants 8 or 16")
    return image.convert("I").point(lambda pixel: pixel / 256).convert("L")


def jpeg_of(path, shorter, quality):
    """The bytes of a grey or RGB JPEG: those of the file, if it is one of the wanted size."""
    image_module = imported("PIL.Image", "pillow")
    data = path.read_bytes()
    try:
        with image_module.open(io.BytesIO(data)) as image:
            width, height = image.size
            large = shorter and min(width, height) > shorter
            if image.format == "JPEG" and image.mode in ("L", "RGB") and not large and width * height <= MOST_PIXELS:
                image.load()  # it is whole
                return data
            pixels = of_8_bits(image) if image.mode[0] in "IF" else image
            pixels = pixels.convert("L" if pixels.mode in ("1", "L") else "RGB")
            if large:
                size = [round(side * shorter / min(width, height)) for side in (width, height)]
                pixels = pixels.resize(size, image_module.Resampling.LANCZOS)
            if pixels.width * pixels.height > MOST_PIXELS:
                raise Broken(f"has more than {MOST_PIXELS} pixels: --resize makes it smaller")
            out = io.BytesIO()
            pixels.save(out, "JPEG", quality=quality)
            return out.getvalue()
    except Broken:
        raise
    except Exception as error:  # Pillow's readers raise all kinds
        raise Broken(" ".join(str(error).split()) or type(error).__name__) from error


class Writer:
    """The shards of a split."""

    def __init__(self, folder, split, classes, shard_bytes):
        self.crc32c = imported("google_crc32c", "google-crc32c")
        self.folder, self.split, self.classes, self.shard_bytes = folder, split, classes, shard_bytes
        self.files, self.headers, self.entries = [], [], []
        self.images = 0
        self.file = None

    def add(self, label, jpeg):
        if self.file and self.file.tell() + len(jpeg) > self.shard_bytes:
            self.finish()
        if not self.file:
            self.files.append(self.folder / f"{self.split}-{len(self.files):05}.shard")
            self.file = open(self.files[-1], "wb")
            self.file.write(bytes(HEADER_BYTES))
        self.entries.append(ENTRY.pack(self.file.tell(), len(jpeg), label, self.crc32c.value(jpeg)))
        self.file.write(jpeg)
        self.images += 1

    def finish(self):
        """Writes index and names, and remembers the header, which needs the number of shards."""
        entries, names = b"".join(self.entries), b"".join(os.fsencode(name) + b"\0" for name in self.classes)
        index = self.file.tell()
        self.file.write(entries + names)
        self.headers.append((len(self.entries), self.file.tell(), index, index + len(entries),
                             self.crc32c.value(entries + names)))
        self.file.close()
        self.file, self.entries = None, []

    def close(self):
        if self.file:
            self.finish()
        for number, (path, header) in enumerate(zip(self.files, self.headers, strict=True)):
            images, end, index, names, index_sum = header
            text = HEADER.pack(MAGIC, images, end, index, names, number, len(self.files), len(self.classes), index_sum)
            with open(path, "r+b") as file:
                file.write(text + struct.pack("<I", self.crc32c.value(text)))


def classes_of(folder):
    if not folder.is_dir():
        raise Refusal(f"{folder}: is no folder: wants {folder}/CLASS/IMAGE")
    classes = sorted(each.name for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))
    if not classes:
        raise Refusal(f"{folder}: has no classes: wants {folder}/CLASS/IMAGE")
    return classes


def images_of(folder):
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS and path.is_file())


def write_split(folder, writer, options, skipped):
    def read(item):
        try:
            return jpeg_of(item[1], options.resize, options.quality)
        except Broken as error:
            return error

    items = [(label, path) for label, name in enumerate(writer.classes) for path in images_of(folder / name)]
    empty = sorted(set(range(len(writer.classes))) - {label for label, _ in items})
    if items and empty:
        print(f"starling: pack: {folder / writer.classes[empty[0]]}: has no images (as {len(empty)} of "
              f"{len(writer.classes)} classes)", file=sys.stderr)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for begin in range(0, len(items), BATCH):
            some = items[begin:begin + BATCH]
            for (label, path), jpeg in zip(some, pool.map(read, some), strict=True):
                if isinstance(jpeg, Broken):
                    skipped.append(f"{path}: {jpeg}")
                    print(f"starling: pack: {path}: is left out: {jpeg}", file=sys.stderr)
                else:
                    writer.add(label, jpeg)


def pack(options):
    wants_new(options.out)
    imported("PIL.Image", "pillow")
    classes = classes_of(options.folder / "train")
    if (found := classes_of(options.folder / "val")) != classes:
        different = sorted(set(found) ^ set(classes))
        raise Refusal(f"{options.folder}: train and val have different classes: {different[0]}")
    about, lines = {"classes": classes}, []
    with appearing(options.out) as draft:
        for split in ("train", "val"):
            writer, skipped = Writer(draft, split, classes, options.shard_megabytes << 20), []
            write_split(options.folder / split, writer, options, skipped)
            if writer.images == 0:
                raise Refusal(f"{options.folder / split}: has no images")
            writer.close()
            about[split] = {"images": writer.images, "shards": len(writer.files), "skipped": skipped}
            lines.append(f"{options.out}/{split}-*.shard: {writer.images:,} images, {len(skipped):,} left out")
        (draft / "images.json").write_text(json.dumps(about, indent=2) + "\n")
    print(*lines, sep="\n", file=sys.stderr)
    print(f"model.classes = {len(classes)}")


def add_to(kinds):
    images = kinds.add_parser(
        "images", allow_abbrev=False, help="shards of data.name = \"images\"",
        description="Packs FOLDER/train/CLASS/IMAGE and FOLDER/val/CLASS/IMAGE into OUT/train-*.shard and "
                    "OUT/val-*.shard. A JPEG is kept byte for byte, if it is grey or RGB and need not be resized; other "
                    "formats that Pillow reads become JPEGs. Broken images are left out and named. Prints the recipe's "
                    "model.classes.")
    images.add_argument("folder", type=pathlib.Path, metavar="FOLDER", help="the folder of train/ and val/")
    images.add_argument("out", type=pathlib.Path, metavar="OUT", help="the new folder")
    images.add_argument("--resize", type=whole_number(1, 1 << 14), metavar="SIDE",
                        help="make the shorter side of larger images SIDE pixels")
    images.add_argument("--quality", type=whole_number(1, 100), default=95, metavar="Q",
                        help="of JPEGs that are made, 1 to 100 (default %(default)s)")
    images.add_argument("--shard-megabytes", type=whole_number(1, 1 << 20), default=1024, metavar="N",
                        help="the most in a shard (default %(default)s)")
    images.add_argument("--jobs", type=whole_number(1, 1024), default=os.cpu_count(), metavar="N",
                        help="threads that read images (default: one for each core)")
    images.set_defaults(pack=pack)
