"""`starling pack`. Needs the packages of requirements-examples.txt and the program (environment:
STARLING)."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy
from tokenizers import Tokenizer

STARLING = os.environ["STARLING"]
TEXTS = [f"Document {i}: it's the {i}th, ünïcödé and 漢字 too.\n\n  It doesn't end here." * (i % 3 + 1) for i in range(200)]


class PackText(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        (self.folder / "texts").mkdir()
        for i, text in enumerate(TEXTS[:100]):
            (self.folder / "texts" / f"{i:03}.txt").write_text(text)
        lines = [json.dumps({"text": text, "other": 1}) for text in TEXTS[100:]]
        (self.folder / "more.jsonl").write_text("\n".join(lines) + "\n")

    def pack(self, *arguments, **environment):
        return subprocess.run([STARLING, "pack", "text", *map(str, arguments)], capture_output=True, text=True,
                              timeout=120, env=os.environ | {"STARLING_PYTHON": sys.executable} | environment)

    def documents(self, split, tokenizer):
        tokens = numpy.fromfile(self.folder / "out" / f"{split}.bin", dtype="<u2").tolist()
        end = tokenizer.token_to_id("<|endoftext|>")
        self.assertEqual(tokens[-1], end)
        documents, document = [], []
        for token in tokens:
            if token == end:
                documents.append(tokenizer.decode(document))
                document = []
            else:
                document.append(token)
        return documents

    def test_the_files_are_the_texts(self):
        done = self.pack(self.folder / "texts", self.folder / "more.jsonl", self.folder / "out",
                         "--learn-vocabulary", 400, "--held-out", 0.2)
        self.assertEqual((done.returncode, done.stdout), (0, "model.vocabulary = 400\n"), done.stderr)
        tokenizer = Tokenizer.from_file(str(self.folder / "out" / "tokenizer.json"))
        train, val = self.documents("train", tokenizer), self.documents("val", tokenizer)
        self.assertEqual(sorted(train + val), sorted(TEXTS))
        self.assertEqual(train, [text for text in TEXTS if text in set(train)])  # in order
        self.assertTrue(20 <= len(val) <= 60, len(val))
        about = json.loads((self.folder / "out" / "text.json").read_text())
        self.assertEqual((about["vocabulary"], about["train"]["documents"]), (400, len(train)))
        self.assertEqual(about["val"]["tokens"] * 2, (self.folder / "out" / "val.bin").stat().st_size)
        self.assertEqual(self.documents("val", tokenizer), val)

        # The same again, by the vocabulary that was made: GPT-2's two tables hold it too.
        model = json.loads((self.folder / "out" / "tokenizer.json").read_text())["model"]
        (self.folder / "tables").mkdir()
        (self.folder / "tables" / "encoder.json").write_text(json.dumps(model["vocab"]))
        merges = [" ".join(pair) for pair in model["merges"]]
        (self.folder / "tables" / "vocab.bpe").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
        for vocabulary in (self.folder / "out" / "tokenizer.json", self.folder / "tables"):
            again = self.pack(self.folder / "texts", self.folder / "more.jsonl", self.folder / "again",
                              "--vocabulary", vocabulary, "--held-out", 0.2)
            self.assertEqual(again.returncode, 0, again.stderr)
            for name in ("train.bin", "val.bin"):
                self.assertEqual((self.folder / "again" / name).read_bytes(), (self.folder / "out" / name).read_bytes())
            for file in (self.folder / "again").iterdir():
                file.unlink()

    def test_refuses_in_one_line_and_leaves_nothing(self):
        (self.folder / "latin.txt").write_bytes(b"caf\xe9")
        (self.folder / "bad.jsonl").write_text('{"text": "a"}\n{"txt": "b"}\n')
        (self.folder / "used").mkdir()
        (self.folder / "used" / "file").touch()
        learn = ("--learn-vocabulary", 300)
        texts, new = self.folder / "texts", self.folder / "new"
        cases = [
            ([self.folder / "nowhere", new, *learn], f"{self.folder}/nowhere: not there"),
            ([self.folder / "latin.txt", new, *learn], f"{self.folder}/latin.txt: is no UTF-8 text: byte 3"),
            ([self.folder / "bad.jsonl", new, *learn], f'{self.folder}/bad.jsonl:2: wants {{"text": "..."}}'),
            ([texts, self.folder / "used", *learn], f"{self.folder}/used: is not empty"),
            ([texts, new, "--vocabulary", texts], f"{texts}: wants a tokenizer.json, or a folder of encoder.json and "
             "vocab.bpe (vocab.json and merges.txt)"),
            ([texts, new, *learn, "--held-out", 1e-9],
             "no document is left for val.bin: give more documents, or another --held-out"),
        ]
        before = sorted(self.folder.iterdir())
        for arguments, message in cases:
            with self.subTest(message):
                done = self.pack(*arguments)
                self.assertEqual((done.returncode, done.stderr), (1, f"starling: pack: {message}\n"))
        self.assertEqual(sorted(self.folder.iterdir()), before)
        done = self.pack(texts, new, STARLING_PYTHON="/nowhere/python")
        self.assertEqual(done.returncode, 1)
        self.assertIn('"/nowhere/python" cannot be started: No such file or directory', done.stderr)


if __name__ == "__main__":
    unittest.main()
