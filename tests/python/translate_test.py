"""`starling pack translation` and `starling translate`. Needs the packages of
requirements-pack.txt and the program (environment: STARLING)."""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy
import sacrebleu
import sentencepiece

STARLING = os.environ["STARLING"]
DIGITS = (
    "zero one two three four five six seven eight nine".split(),
    "null eins zwei drei vier fünf sechs sieben acht neun".split())
VAL = range(1000, 3000, 37)
TRAIN = [number for number in range(3, 3000) if number not in VAL]


def sentence(number):
    """In both languages."""
    return [" ".join(words[int(digit)] for digit in str(number)) for words in DIGITS]


def run(*arguments, **more):
    return subprocess.run([STARLING, *map(str, arguments)], capture_output=True, text=True, timeout=600,
                          env=os.environ | {"STARLING_PYTHON": sys.executable}, **more)


class Translation(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        for split, numbers in (("train", TRAIN), ("val", VAL)):
            for language, lines in zip(("en", "de"), zip(*map(sentence, numbers), strict=True), strict=True):
                (self.folder / f"{split}.{language}").write_text("\n".join(lines) + "\n")
        self.texts = [self.folder / name for name in ("train.en", "train.de", "val.en", "val.de")]

    def sentences(self, split):
        data = (self.folder / "out" / f"{split}.pairs").read_bytes()
        kind, version, pairs = struct.unpack_from("<4sIQ", data)
        self.assertEqual((kind, version), (b"PAIR", 1))
        places = numpy.frombuffer(data, "<u8", 2 * pairs + 1, 16).tolist()
        tokens = numpy.frombuffer(data, "<u2", offset=16 + 8 * len(places)).tolist()
        self.assertEqual(len(tokens), places[-1])
        return [tokens[a:b] for a, b in zip(places, places[1:], strict=False)]

    def test_the_files_are_the_sentences(self):
        with open(self.folder / "val.de", "a") as german, open(self.folder / "val.en", "a") as english:
            german.write("漢字 fünf\nsechs\n\n")
            english.write("kanji\u2028five\n\nsix\n")
        done = run("pack", "translation", *self.texts, self.folder / "out", "--learn-vocabulary", 330)
        self.assertEqual((done.returncode, done.stdout), (0, "model.vocabulary = 330\n"), done.stderr)
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(self.folder / "out/sentencepiece.model"))
        for split, numbers in (("train", TRAIN), ("val", VAL)):
            packed = self.sentences(split)
            self.assertTrue(all(2 <= token < 330 for tokens in packed for token in tokens))
            texts = pieces.decode([[token - 2 for token in tokens] for tokens in packed])
            expected = [text for number in numbers for text in sentence(number)]
            if split == "val":
                expected += ["kanji five", "漢字 fünf"]
            self.assertEqual(texts, expected)
        about = json.loads((self.folder / "out/translation.json").read_text())
        self.assertEqual((about["vocabulary"], about["val"]["pairs"], about["val"]["left_out"]),
                         (330, len(VAL) + 1, 2))

        # The same again, by the vocabulary that was made, without the longest sentences.
        packed = self.sentences("train")
        longest = max(map(len, packed)) - 1
        self.folder.joinpath("out").rename(self.folder / "first")
        again = run("pack", "translation", *self.texts, self.folder / "out", "--longest", longest, "--vocabulary",
                    self.folder / "first/sentencepiece.model")
        self.assertEqual(again.returncode, 0, again.stderr)
        pairs = zip(packed[::2], packed[1::2], strict=True)
        expected = [tokens for pair in pairs if max(map(len, pair)) <= longest for tokens in pair]
        self.assertLess(len(expected), len(packed))
        self.assertEqual(self.sentences("train"), expected)

    def test_a_translation_gives_no_commands_to_a_terminal(self):
        scripts = pathlib.Path(__file__).resolve().parents[2] / "python/starling"
        code = r"import translate; print(translate.printable('\x1b[2J\tä\u202e\x9b'))"
        done = subprocess.run([sys.executable, "-B", "-c", code], cwd=scripts, capture_output=True, encoding="utf-8",
                              env=os.environ | {"PYTHONUTF8": "1"})
        self.assertEqual(done.stdout, "\\u001B[2J\tä\\u202E\\u009B\n", done.stderr)

    def test_meteor_is_its_formula(self):
        sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python/starling"))
        import translate

        # m matched words of h and r, in c chunks.
        def formula(m, h, r, c):
            P, R = m / h, m / r
            return 10 * P * R / (R + 9 * P) * (1 - (c / m) ** 3 / 2)

        german, english = translate.Meteor("german"), translate.Meteor("english")
        cases = [(german, "Die Katze sitzt", "die Katze sitzt", formula(3, 3, 3, 1)),
                 # "Katzen" and "Matten" have the stems of "Katze" and "Matte".
                 (german, "die Katzen sass auf den Matten", "die Katze sass auf der Matte", formula(5, 6, 6, 2)),
                 (english, "die Katzen sass auf den Matten", "die Katze sass auf der Matte", formula(3, 6, 6, 2)),
                 (german, "ja, gut", "gut, ja", formula(3, 3, 3, 3)),
                 # No synonyms: WordNet would match these two.
                 (english, "the car", "the automobile", formula(1, 2, 2, 1)),
                 (german, "nichts", "etwas", 0)]
        for meteor, translation, reference, wanted in cases:
            with self.subTest(translation):
                self.assertAlmostEqual(meteor.sentence_score(translation, reference), wanted)
        self.assertAlmostEqual(german.corpus_score(["ja", "nichts"], ["ja", "etwas"]), 100 * formula(1, 1, 1, 1) / 2)

    def test_translates_text_that_it_has_learnt(self):
        done = run("pack", "translation", *self.texts, self.folder / "out", "--learn-vocabulary", 330)
        self.assertEqual(done.returncode, 0, done.stderr)
        recipe = self.folder / "recipe.toml"
        recipe.write_text(f"""
            [run]
            steps = 400
            out = "{self.folder}/run"
            [data]
            name = "translation"
            dir = "{self.folder}/out"
            [model]
            layers = 1
            heads = 4
            width = 64
            inner = 128
            vocabulary = 330
            [optimizer]
            rule = "adam"
            lr = 0.003
            [schedule]
            warmup = 0.1
            [train]
            batch = 600
            [checkpoint]
            every = 400
            """)
        done = run("train", recipe, "--workers", 2)
        self.assertEqual(done.returncode, 0, done.stderr)
        summary = json.loads((self.folder / "run/summary.json").read_text())
        self.assertGreater(summary["token_bleu"], 0.9)
        vocabulary = self.folder / "out/sentencepiece.model"
        source, target = ((self.folder / f"val.{language}").read_text() for language in ("en", "de"))
        done = run("translate", self.folder / "run/checkpoints", vocabulary, "--reference", self.folder / "val.de",
                   input=source)
        self.assertEqual(done.returncode, 0, done.stderr)
        said = done.stdout.splitlines()
        bleu = sacrebleu.corpus_bleu(said, [target.splitlines()])
        self.assertGreater(bleu.score, 90)
        self.assertEqual(done.stderr.splitlines()[0], str(bleu))
        self.assertRegex(done.stderr.splitlines()[1], r"^nrefs:1\|.*\|version:")
        self.assertEqual(len(done.stderr.splitlines()), 2)
        done = run("translate", self.folder / "run/checkpoints", vocabulary, "--reference", self.folder / "val.de",
                   "--meteor", "german", input=source)
        self.assertEqual((done.returncode, done.stdout.splitlines()), (0, said), done.stderr)
        self.assertEqual(done.stderr.splitlines()[0], str(bleu))
        self.assertRegex(done.stderr.splitlines()[2], r"^METEOR = (9\d|100)\.\d\d$")
        self.assertRegex(done.stderr.splitlines()[3], r"^match:exact\+stem\|stem:snowball-german\|synonyms:no\|.*nltk-")
        # One sentence by itself is translated alike, and an empty line stays one.
        alone = run("translate", self.folder / "run/checkpoints", vocabulary, input=f"\n{source.splitlines()[7]}\n")
        self.assertEqual(alone.stdout, f"\n{said[7]}\n")

        refused = run("translate", self.folder / "run/checkpoints", "--tokens", input="5 6\n5 1 6\n")
        self.assertEqual((refused.returncode, refused.stderr),
                         (2, 'starling: stdin:2: "1": wants tokens from 2 to 329\n'))
        refused = run("translate", self.folder / "run/checkpoints", input="")
        self.assertEqual((refused.returncode, refused.stderr), (
            2, "starling: translate: give the vocabulary, a sentencepiece.model; or --tokens without one\n"))
        refused = run("translate", self.folder / "run/checkpoints", vocabulary, "--meteor", "german", input="")
        self.assertEqual((refused.returncode, refused.stderr),
                         (2, "starling: translate: --meteor compares with a --reference\n"))
        refused = run("translate", self.folder / "run/checkpoints", vocabulary, "--reference", self.folder / "val.de",
                      "--meteor", "de", input=source)
        self.assertEqual((refused.returncode, refused.stderr.count("\n")), (2, 1))
        self.assertIn("--meteor de: is no language of the Snowball stemmers: arabic, danish, ", refused.stderr)
        refused = run("translate", self.folder / "run/checkpoints", vocabulary, "--reference", recipe, input="a\n")
        self.assertEqual((refused.returncode, refused.stderr.count("\n")), (2, 1))
        self.assertIn("recipe.toml: has ", refused.stderr)
        refused = run("translate", self.folder / "run/checkpoints", recipe, input="a\n")
        self.assertEqual((refused.returncode, refused.stderr),
                         (2, f"starling: translate: {recipe}: is no vocabulary of sentencepiece\n"))

    def test_refuses_in_one_line_and_leaves_nothing(self):
        (self.folder / "latin").write_bytes(b"caf\xe9\n")
        (self.folder / "short").write_text("one\n")
        new, learn = self.folder / "new", ("--learn-vocabulary", 330)
        english, german = self.texts[:2]
        cases = [
            ([english, self.folder / "nowhere", *self.texts[2:], new, *learn], f"{self.folder}/nowhere: not there"),
            ([english, german, english, self.folder / "short", new, *learn],
             f"{self.folder}/short: ends before line 2 of {english}: line N of one translates line N of the other"),
            ([english, self.folder / "latin", *self.texts[2:], new, *learn],
             f"{self.folder}/latin: is no UTF-8 text: invalid continuation byte"),
            ([*self.texts, self.folder, *learn], f"{self.folder}: is not empty"),
            ([*self.texts, new, "--vocabulary", english], f"{english}: is no vocabulary of sentencepiece"),
            ([*self.texts, new, *learn, "--longest", 1], "no pair is left for val.pairs: --longest is 1"),
        ]
        before = sorted(self.folder.iterdir())
        for arguments, message in cases:
            with self.subTest(message):
                done = run("pack", "translation", *arguments)
                self.assertEqual((done.returncode, done.stderr), (2, f"starling: pack: {message}\n"))
        done = run("pack", "translation", *self.texts, new, "--learn-vocabulary", 260)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1))
        self.assertIn("pack: --learn-vocabulary 260: Vocabulary size is smaller than required_chars", done.stderr)
        self.assertEqual(sorted(self.folder.iterdir()), before)
