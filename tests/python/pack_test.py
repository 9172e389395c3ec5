"""`starling pack`. Needs the packages of requirements-pack.txt and the program (environment:
STARLING)."""

import contextlib
import errno
import io
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import numpy
from tokenizers import Tokenizer

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "python/starling"))
import packing

STARLING = os.environ["STARLING"]
TEXTS = [f"Document {i}: it's the {i}th, ünïcödé and 漢字 too.\n\n  It doesn't end here." * (i % 3 + 1) for i in range(200)]


class Packing(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "texts").mkdir()
        for i, text in enumerate(TEXTS[:100]):
            (self.folder / "texts" / f"{i:03}.txt").write_text(text)
        lines = [json.dumps({"text": text, "other": 1}) for text in TEXTS[100:]]
        (self.folder / "more.jsonl").write_text("\n".join(lines) + "\n")

    def pack(self, *arguments, largest_file=resource.RLIM_INFINITY, **environment):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

        return subprocess.run([STARLING, "pack", "text", *map(str, arguments)], capture_output=True, text=True,
                              timeout=120, env=os.environ | {"STARLING_PYTHON": sys.executable} | environment,
                              preexec_fn=limit)


class PackText(Packing):
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

    def test_all_of_a_document_is_text(self):
        texts = ["one <|endoftext|> two", "three " * 50, *TEXTS[:20]]
        (self.folder / "some.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        first = self.pack(self.folder / "some.jsonl", self.folder / "out", "--learn-vocabulary", 300, "--held-out", 0.2)
        self.assertEqual(first.returncode, 0, first.stderr)
        tokenizer = Tokenizer.from_file(str(self.folder / "out/tokenizer.json"))
        self.assertEqual(sorted(self.documents("train", tokenizer) + self.documents("val", tokenizer)), sorted(texts))
        # A tokenizer may cut and pad, and leave numbers out.
        packed = [(self.folder / f"out/{split}.bin").read_bytes() for split in ("train", "val")]
        self.folder.joinpath("out").rename(self.folder / "first")
        tokenizer.enable_truncation(8)
        tokenizer.enable_padding(length=400)
        other = json.loads(tokenizer.to_str())
        other["model"]["vocab"]["far"] = 65000
        (self.folder / "other.json").write_text(json.dumps(other))
        again = self.pack(self.folder / "some.jsonl", self.folder / "out", "--vocabulary", self.folder / "other.json",
                          "--held-out", 0.2)
        self.assertEqual((again.returncode, again.stdout), (0, "model.vocabulary = 65001\n"), again.stderr)
        self.assertEqual([(self.folder / f"out/{split}.bin").read_bytes() for split in ("train", "val")], packed)

    def test_a_prompt_is_utf_8_whatever_the_locale(self):
        done = self.pack(self.folder / "more.jsonl", self.folder / "out", "--learn-vocabulary", 300, "--held-out", 0.2)
        self.assertEqual(done.returncode, 0, done.stderr)

        def piped(kind, text):
            script = pathlib.Path(packing.__file__).with_name("pack.py")
            return subprocess.run([sys.executable, "-B", script, kind, self.folder / "out/tokenizer.json"], input=text,
                                  capture_output=True, env=os.environ | {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"})

        tokens = piped("encode", "漢字\r\n".encode())
        self.assertEqual(tokens.stdout.split()[0], b"0")  # the end of a text, as a token
        self.assertEqual(piped("decode", tokens.stdout).stdout.decode(), "<|endoftext|>漢字\r\n")
        refused = piped("encode", b"caf\xe9")
        self.assertEqual((refused.returncode, refused.stderr), (2, b"starling: pack: stdin: is no UTF-8 text: byte 3\n"))

    def test_refuses_in_one_line_and_leaves_nothing(self):
        (self.folder / "latin.txt").write_bytes(b"caf\xe9")
        for name, line in (("bad", b'{"txt": "b"}'), ("number", b'{"text": 5}'), ("latin", b'{"text": "caf\xe9"}'),
                           ("half", b'{"text": "\\ud83d"}')):
            (self.folder / f"{name}.jsonl").write_bytes(b'{"text": "a"}\n' + line + b"\n")
        (self.folder / "used").mkdir()
        (self.folder / "used" / "file").touch()
        damaged = self.folder / "damaged"
        damaged.mkdir()
        for name in ("encoder.json", "vocab.bpe"):
            (damaged / name).write_text('{"a": ')
        learn = ("--learn-vocabulary", 300)
        texts, new = self.folder / "texts", self.folder / "new"
        cases = [
            ([self.folder / "nowhere", new, *learn], f"{self.folder}/nowhere: not there"),
            ([self.folder / "latin.txt", new, *learn], f"{self.folder}/latin.txt: is no UTF-8 text: byte 3"),
            *(([self.folder / f"{name}.jsonl", new, *learn], f'{self.folder}/{name}.jsonl:2: wants {{"text": "..."}}')
              for name in ("bad", "number", "latin", "half")),
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
                self.assertEqual((done.returncode, done.stderr), (2, f"starling: pack: {message}\n"))
        done = self.pack(texts, new, "--vocabulary", damaged)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, rf"^starling: pack: {damaged}: encoder.json and vocab.bpe are no tokenizer: .*\n$")
        script = pathlib.Path(__file__).resolve().parents[2] / "python/starling/pack.py"
        for arguments, message in (
                (["imgs"], "starling: pack: unknown kind 'imgs', did you mean images?: known are text, "),
                (["text", "a", "b", *map(str, learn), "--held-ot=3"],
                 "starling: pack: unknown option '--held-ot=3', did you mean --held-out? ("),
                (["text", "a", "b", "--learn-vocabulary", "256"],
                 "starling: pack text: argument --learn-vocabulary: '256' is no number from 257 to 65536\n"),
                (["text", "a", "b", *map(str, learn), "--held-out", "2"],
                 "starling: pack text: argument --held-out: '2' is no number between 0 and 1\n"),
                (["images", "a", "b", "--quality", "x"],
                 "starling: pack images: argument --quality: 'x' is no number from 1 to 100\n")):
            with self.subTest(message):
                done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
                self.assertTrue(done.stderr.startswith(message), done.stderr)
        self.assertEqual(sorted(self.folder.iterdir()), before)
        # No input is wrong.
        done = subprocess.run([sys.executable, "-S", script, "encode", "tokenizer.json"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("needs the package tokenizers: ", done.stderr)
        done = self.pack(texts, new, STARLING_PYTHON="/nowhere/python")
        self.assertEqual(done.returncode, 1)
        self.assertIn('"/nowhere/python" cannot be started: No such file or directory', done.stderr)

    def test_an_output_that_cannot_be_written_is_no_wrong_input(self):
        texts, file = self.folder / "texts", self.folder / "more.jsonl"
        for out, why in ((file / "new", "File exists"), (file / "under" / "new", "Not a directory")):
            with self.subTest(why):
                done = self.pack(texts, out, "--learn-vocabulary", 300)
                self.assertEqual((done.returncode, done.stderr), (1, f"starling: pack: {out}: cannot be written: {why}\n"))
        before = sorted(self.folder.iterdir())
        out = self.folder / "new"
        # Root is refused nothing.
        refused = PermissionError(errno.EACCES, "Permission denied", "hidden")
        for step in ("pathlib.Path.exists", "pathlib.Path.mkdir", "tempfile.mkdtemp", "shutil.move"):
            with self.subTest(step), mock.patch(step, side_effect=refused), io.StringIO() as said:
                with contextlib.redirect_stderr(said):
                    code = packing.exit_code_of("pack", lambda: self.makes_nothing(out))
                self.assertEqual((code, said.getvalue()),
                                 (1, f"starling: pack: {out}: cannot be written: Permission denied\n"))
        self.assertEqual(sorted(self.folder.iterdir()), before)

    def test_a_full_disk_is_the_outputs(self):
        def writes():
            with packing.appearing(self.folder / "new"):
                with open("/dev/full", "wb") as file:
                    file.write(b"x")

        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(packing.exit_code_of("pack", writes), 1)
        self.assertEqual(said.getvalue(),
                         f"starling: pack: {self.folder}/new: cannot be written: No space left on device\n")
        self.assertFalse((self.folder / "new").exists())

    def test_a_file_that_does_not_fit_is_the_outputs(self):
        few, new = self.folder / "few.jsonl", self.folder / "new"
        few.write_text("".join(json.dumps({"text": letter}) + "\n" for letter in "abcdefgh"))
        before = sorted(self.folder.iterdir())
        for bytes_, file in ((10, "train.bin"), (1000, "tokenizer.json")):
            with self.subTest(file):
                done = self.pack(few, new, "--learn-vocabulary", 257, "--held-out", 0.5, largest_file=bytes_)
                self.assertEqual((done.returncode, done.stderr),
                                 (1, f"starling: pack: {new}: cannot be written: File too large\n"))
        self.assertEqual(sorted(self.folder.iterdir()), before)

    def test_an_input_that_must_not_be_read_is_a_wrong_input(self):
        def reads():
            with packing.appearing(self.folder / "new"):
                raise PermissionError(errno.EACCES, "Permission denied", "texts/001.txt")

        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(packing.exit_code_of("pack", reads), 2)
        self.assertEqual(said.getvalue(), "starling: pack: [Errno 13] Permission denied: 'texts/001.txt'\n")
        self.assertFalse((self.folder / "new").exists())

    @staticmethod
    def makes_nothing(out):
        packing.wants_new(out)
        with packing.appearing(out):
            pass


class Generate(Packing):
    """A tiny GPT-2 that has learnt the texts by heart."""

    recipe = """
[run]
steps = 300
[data]
name = "text"
[model]
layers = 2
heads = 2
width = 32
context = 32
vocabulary = 400
[optimizer]
lr = 0.01
[train]
batch = 8
[checkpoint]
every = 300
"""
    def starling(self, *arguments, code=0):
        done = subprocess.run([STARLING, *map(str, arguments)], capture_output=True, text=True, timeout=300,
                              cwd=self.folder, env=os.environ | {"STARLING_PYTHON": sys.executable})
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout if code == 0 else done.stderr

    def test_writes_what_it_has_learnt(self):
        data, run = self.folder / "data", self.folder / "run"
        self.pack(self.folder / "texts", data, "--learn-vocabulary", 400, "--held-out", 0.2)
        (self.folder / "recipe.toml").write_text(self.recipe)
        self.starling("train", "recipe.toml", "--data.dir", data, "--out", run)
        likeliest = self.starling("generate", run / "checkpoints", "--prompt", "Document 1", "--temperature", 0)
        self.assertTrue(likeliest.startswith("Document 1"), likeliest)
        self.assertIn("th, ünïcödé and 漢字 too.\n\n  It doesn't end here.", likeliest)
        self.assertNotIn("<|endoftext|>", likeliest)

        self.starling("checkpoint", "consensus", run / "checkpoints", "model.safetensors")
        (data / "tokenizer.json").rename(self.folder / "tokenizer.json")
        model = ("generate", "model.safetensors", "--tokenizer", "tokenizer.json")
        self.assertEqual(self.starling(*model, "--prompt", "Document 1", "--temperature", 0), likeliest)
        drawn = [self.starling(*model, "--temperature", 3, "--seed", seed, "--tokens", 30) for seed in (1, 1, 2)]
        self.assertEqual(drawn[0], drawn[1])
        self.assertNotEqual(drawn[0], drawn[2])

        escapes = self.starling(*model, "--prompt", "\x1b[2J\t\n\x9b", "--temperature", 0)
        self.assertTrue(escapes.startswith("\\u001B[2J\t\n\\u009B"), escapes)
        self.assertIn("tokenizer.json: wants a tokenizer.json, or a folder",
                      self.starling("generate", "model.safetensors", code=2))
        other = json.loads((self.folder / "tokenizer.json").read_text())
        other["model"]["vocab"]["<|endoftext|>"] = other["added_tokens"][0]["id"] = 1000
        (self.folder / "other.json").write_text(json.dumps(other))
        self.assertIn("other.json: has token 1000, but model.vocabulary = 400: is it the one that packed the text?",
                      self.starling(*model[:2], "--tokenizer", "other.json", code=2))
        self.assertIn("data.name = fashion-mnist: generate wants a model of text",
                      self.starling(*model, "--recipe", "/dev/null", code=2))
