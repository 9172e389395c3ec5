"""starling pack: makes the files that training reads, once, from raw data.

This file needs neither torch nor the package: `starling pack` runs it by its path.
"""

import argparse
import array
import difflib
import hashlib
import io
import itertools
import json
import pathlib
import re
import shutil
import struct
import sys

import pack_images
from packing import Refusal, appearing, exit_code_of, imported, wants_new, whole_number

END_OF_TEXT = "<|endoftext|>"
MOST_TOKENS = 1 << 16  # in a vocabulary: tokens have 16 bits
BATCH = 256  # documents that are encoded at once
FIRST_TOKEN = 2  # of sentences: before it are padding and the end of a sentence


def documents(paths):
    """The texts in files and folders, in order: a .jsonl file has one in each line, as "text";
    any other file is one."""
    for path in paths:
        if path.is_dir():
            yield from documents(sorted(path.iterdir()))
        elif not path.exists():
            raise Refusal(f"{path}: not there")
        elif path.suffix == ".jsonl":
            with open(path, "rb") as lines:
                for number, line in enumerate(lines, 1):
                    try:
                        text = json.loads(line)["text"]
                        text.encode()  # it is text, and no half of a surrogate pair is in it
                    except (ValueError, KeyError, TypeError, AttributeError) as error:
                        raise Refusal(f'{path}:{number}: wants {{"text": "..."}}') from error
                    yield text
        else:
            try:
                yield path.read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise Refusal(f"{path}: is no UTF-8 text: byte {error.start}") from error


def tokenizer_of(vocabulary):
    """A tokenizer.json, or GPT-2's two tables in a folder."""
    tokenizers = imported("tokenizers")
    path = pathlib.Path(vocabulary)
    if path.is_file():
        try:
            tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises nothing narrower
            raise Refusal(f"{path}: is no tokenizer: {error}") from error
        if tokenizer.token_to_id(END_OF_TEXT) is None:
            raise Refusal(f"{path}: has no token {END_OF_TEXT}")
        tokenizer.no_truncation()  # the file may ask for both
        tokenizer.no_padding()
        return tokenizer
    for table, merges in (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt")):
        if (path / table).exists() and (path / merges).exists():
            try:
                pairs = tokenizers.models.BPE.from_file(str(path / table), str(path / merges))
            except Exception as error:  # tokenizers raises nothing narrower
                raise Refusal(f"{path}: {table} and {merges} are no tokenizer: {error}") from error
            return with_bytes(tokenizers, tokenizers.Tokenizer(pairs))
    raise Refusal(f"{path}: wants a tokenizer.json, or a folder of encoder.json and vocab.bpe (vocab.json and "
                  "merges.txt)")


def with_bytes(tokenizers, tokenizer):
    """GPT-2's way from text to byte-pair encoding and back."""
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def vocabulary_of(tokenizer):
    """Every token is smaller. Numbers may be left out."""
    return max(tokenizer.get_vocab().values()) + 1


def learnt_tokenizer(paths, size):
    """A byte-pair encoding of `size` tokens, made from the texts as GPT-2's was made."""
    tokenizers = imported("tokenizers")
    tokenizer = with_bytes(tokenizers, tokenizers.Tokenizer(tokenizers.models.BPE()))
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, special_tokens=[END_OF_TEXT], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(documents(paths), trainer)
    return tokenizer


def is_held_out(text, share):
    """Depends on the text alone, so a document that comes twice is on one side."""
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    return number < share * 2**64


def encode(paths, tokenizer, held_out, files):
    """Writes the tokens of every document, and the end of text behind it. Returns the number of
    documents and tokens of each split."""
    numpy = imported("numpy")
    end = tokenizer.token_to_id(END_OF_TEXT)
    tokenizer.encode_special_tokens = True  # as text: a document that names the end does not end there
    counts = {split: {"documents": 0, "tokens": 0} for split in files}

    def write(batch):
        for text, encoding in zip(batch, tokenizer.encode_batch(batch, add_special_tokens=False), strict=True):
            split = "val" if is_held_out(text, held_out) else "train"
            tokens = numpy.array([*encoding.ids, end], dtype="<u2")
            files[split].write(tokens.tobytes())
            counts[split]["documents"] += 1
            counts[split]["tokens"] += len(tokens)

    batch = []
    for text in documents(paths):
        if not text:
            continue
        batch.append(text)
        if len(batch) == BATCH:
            write(batch)
            batch = []
    write(batch)
    return counts


def pack_text(options):
    out = pathlib.Path(options.out)
    wants_new(out)
    if options.vocabulary:
        tokenizer = tokenizer_of(options.vocabulary)
    else:
        tokenizer = learnt_tokenizer(options.sources, options.learn_vocabulary)
    size = vocabulary_of(tokenizer)
    if size > MOST_TOKENS:
        raise Refusal(f"{options.vocabulary}: has {size} tokens, at most {MOST_TOKENS} are allowed")
    with appearing(out) as draft:
        with open(draft / "train.bin", "wb") as train, open(draft / "val.bin", "wb") as val:
            counts = encode(options.sources, tokenizer, options.held_out, {"train": train, "val": val})
        for split, count in counts.items():
            if count["documents"] == 0:
                raise Refusal(f"no document is left for {split}.bin: give more documents, or another --held-out")
        (draft / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
        (draft / "text.json").write_text(json.dumps({"vocabulary": size, **counts}, indent=2) + "\n")
    for split, count in counts.items():
        print(f"{options.out}/{split}.bin: {count['tokens']:,} tokens of {count['documents']:,} documents",
              file=sys.stderr)
    print(f"model.vocabulary = {size}")


def lines_of(path):
    """A sentence in each line. Only a line feed ends a line."""
    try:
        with open(path, encoding="utf-8", newline="\n") as lines:
            for line in lines:
                yield line.strip()
    except UnicodeDecodeError as error:
        raise Refusal(f"{path}: is no UTF-8 text: {error.reason}") from error


def sentence_pairs(sources, targets):
    ended = object()
    for number, (source, target) in enumerate(itertools.zip_longest(lines_of(sources), lines_of(targets),
                                                                    fillvalue=ended), 1):
        if ended in (source, target):
            shorter, longer = (sources, targets) if source is ended else (targets, sources)
            raise Refusal(f"{shorter}: ends before line {number} of {longer}: line N of one translates line N of "
                          "the other")
        yield source, target


def learnt_pieces(paths, size):
    """A byte-pair encoding of `size` tokens for both languages."""
    sentencepiece = imported("sentencepiece")
    model = io.BytesIO()
    sentencepiece.set_random_generator_seed(1)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=itertools.chain.from_iterable(map(lines_of, paths)), model_writer=model,
            model_type="bpe", vocab_size=size - FIRST_TOKEN, byte_fallback=True, unk_id=0, bos_id=-1, eos_id=-1,
            pad_id=-1, input_sentence_size=4_000_000, shuffle_input_sentence=True, minloglevel=2)
    except RuntimeError as error:
        raise Refusal(f"--learn-vocabulary {size}: {str(error).split('] ')[-1]}") from error
    return model.getvalue()


def encode_pairs(sources, targets, pieces, longest, out):
    """Writes the pairs that are not empty, and have at most `longest` tokens on each side. Returns
    their numbers."""
    numpy = imported("numpy")
    lengths, left_out = array.array("q", [0]), 0
    with open(out.with_suffix(".tokens"), "w+b") as tokens:
        pairs = sentence_pairs(sources, targets)
        while batch := list(itertools.islice(pairs, BATCH)):
            sides = [pieces.encode(list(side)) for side in zip(*batch, strict=True)]
            for pair in zip(*sides, strict=True):
                if not all(1 <= len(sentence) <= longest for sentence in pair):
                    left_out += 1
                    continue
                for sentence in pair:
                    lengths.append(len(sentence))
                    tokens.write((numpy.array(sentence) + FIRST_TOKEN).astype("<u2").tobytes())
        tokens.seek(0)
        with open(out, "wb") as file:  # starling/data/pairs.h
            file.write(b"PAIR" + struct.pack("<IQ", 1, len(lengths) // 2))
            file.write(numpy.cumsum(lengths, dtype="<u8").tobytes())
            shutil.copyfileobj(tokens, file)
    out.with_suffix(".tokens").unlink()
    return {"pairs": len(lengths) // 2, "source_tokens": sum(lengths[1::2]), "target_tokens": sum(lengths[2::2]),
            "left_out": left_out}


def pack_translation(options):
    sentencepiece = imported("sentencepiece")
    out = pathlib.Path(options.out)
    wants_new(out)
    for path in (options.train_source, options.train_target, options.val_source, options.val_target):
        if not path.is_file():
            raise Refusal(f"{path}: not there")
    for paths in ((options.train_source, options.train_target), (options.val_source, options.val_target)):
        for _ in sentence_pairs(*paths):
            pass  # refuses what cannot be read, before the work
    with appearing(out) as draft:
        if options.vocabulary:
            model = pathlib.Path(options.vocabulary).read_bytes()
        else:
            model = learnt_pieces((options.train_source, options.train_target), options.learn_vocabulary)
        try:
            pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise Refusal(f"{options.vocabulary}: is no vocabulary of sentencepiece") from error
        size = pieces.get_piece_size() + FIRST_TOKEN
        if size > MOST_TOKENS:
            raise Refusal(f"{options.vocabulary}: has {size} tokens, at most {MOST_TOKENS} are allowed")
        (draft / "sentencepiece.model").write_bytes(model)
        counts = {
            "train": encode_pairs(options.train_source, options.train_target, pieces, options.longest,
                                  draft / "train.pairs"),
            "val": encode_pairs(options.val_source, options.val_target, pieces, options.longest, draft / "val.pairs")}
        for split, count in counts.items():
            if count["pairs"] == 0:
                raise Refusal(f"no pair is left for {split}.pairs: --longest is {options.longest}")
        (draft / "translation.json").write_text(json.dumps({"vocabulary": size, **counts}, indent=2) + "\n")
    for split, count in counts.items():
        print(f"{options.out}/{split}.pairs: {count['pairs']:,} pairs of {count['source_tokens']:,} and "
              f"{count['target_tokens']:,} tokens, {count['left_out']:,} left out", file=sys.stderr)
    print(f"model.vocabulary = {size}")


def encode_text(options):
    tokenizer = tokenizer_of(options.tokenizer)
    try:
        text = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise Refusal(f"stdin: is no UTF-8 text: byte {error.start}") from error
    tokens = tokenizer.encode(END_OF_TEXT + text, add_special_tokens=False).ids
    print(*tokens, sep="\n")


def decode_text(options):
    tokenizer = tokenizer_of(options.tokenizer)
    words, size = sys.stdin.read().split(), vocabulary_of(tokenizer)
    if not all(word.isdecimal() and int(word) < size for word in words):
        raise Refusal(f"stdin: wants numbers below {size}")
    sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.write(tokenizer.decode([int(word) for word in words], skip_special_tokens=False))


def share(text):
    if not 0 < float(text) < 1:
        raise ValueError
    return float(text)


share.__name__ = "number between 0 and 1"


class OneLine(argparse.ArgumentParser):
    """Its errors are one line, as the command's are, with the nearest name for a mistyped one."""

    def names(self):
        """The options of this parser and of its kinds."""
        kinds = [kind for action in self._actions if isinstance(action.choices, dict) for kind in action.choices.values()]
        return sorted({*self._option_string_actions, *(name for kind in kinds for name in kind.names())})

    def error(self, message):
        kind = re.match(r"argument KIND: invalid choice: '(.*)' \(choose from (.*)\)", message)
        option = re.match(r"unrecognized arguments: (-\S*)", message)
        known = re.findall(r"\w+", kind[2]) if kind else self.names()
        wrong = (kind or option or [None, ""])[1].split("=")[0]
        near = "".join(f", did you mean {name}?" for name in difflib.get_close_matches(wrong, known, 1))
        if kind:
            message = f"unknown kind {kind[1]!r}{near}: known are {', '.join(known)}"
        elif option:
            message = f"unknown option {option[1]!r}{near} ({self.prog} --help lists all)"
        message = re.sub(r"invalid (.*) value: (.*)", r"\2 is no \1", message)
        print(f"{self.prog.replace(' ', ': ', 1)}: {message}", file=sys.stderr)
        sys.exit(2)


def parser():
    parser = OneLine(prog="starling pack", description="Makes the files that training reads, once, from raw data.",
                     allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
                     epilog="Examples:\n  starling pack text story.txt out/story --learn-vocabulary 4096")
    kinds = parser.add_subparsers(required=True, metavar="KIND")
    text = kinds.add_parser(
        "text", allow_abbrev=False, help="train.bin and val.bin of data.name = \"text\"",
        description="Encodes texts as 16-bit tokens, in nanoGPT's layout: OUT/train.bin, OUT/val.bin, "
                    "OUT/tokenizer.json, OUT/text.json. Prints the recipe's model.vocabulary.")
    text.add_argument("sources", nargs="+", type=pathlib.Path, metavar="SOURCE",
                      help='a text, a .jsonl file with {"text": ...} in each line, or a folder of them')
    text.add_argument("out", metavar="OUT", help="the new folder")
    of = text.add_mutually_exclusive_group(required=True)
    of.add_argument("--vocabulary", metavar="PATH",
                    help="tokenizer.json, or a folder of GPT-2's encoder.json and vocab.bpe")
    of.add_argument("--learn-vocabulary", type=whole_number(257, MOST_TOKENS), metavar="N",
                    help="make a byte-pair encoding of N tokens from the texts, 257 to 65536")
    text.add_argument("--held-out", type=share, default=0.005, metavar="SHARE",
                      help="share of the documents for val.bin, between 0 and 1 (default %(default)s)")
    text.set_defaults(pack=pack_text)
    for name, does, meaning in (
            ("encode", encode_text, "the tokens of a text on stdin, behind that of the end of a text"),
            ("decode", decode_text, "the text of tokens on stdin")):
        kind = kinds.add_parser(name, allow_abbrev=False, help=meaning, description=f"Prints {meaning}.")
        kind.add_argument("tokenizer", metavar="TOKENIZER", help="tokenizer.json, or a folder of GPT-2's tables")
        kind.set_defaults(pack=does)

    pairs = kinds.add_parser(
        "translation", allow_abbrev=False, help="train.pairs and val.pairs of data.name = \"translation\"",
        description="Encodes pairs of sentences: OUT/train.pairs, OUT/val.pairs, OUT/sentencepiece.model, "
                    "OUT/translation.json. Line N of a target file translates line N of its source file. Prints the "
                    "recipe's model.vocabulary.")
    for name, meaning in (("train_source", "sentences to learn from, one a line"), ("train_target", "their translations"),
                          ("val_source", "sentences of the test"), ("val_target", "their translations")):
        pairs.add_argument(name, type=pathlib.Path, metavar=name.upper(), help=meaning)
    pairs.add_argument("out", metavar="OUT", help="the new folder")
    of = pairs.add_mutually_exclusive_group(required=True)
    of.add_argument("--vocabulary", metavar="PATH", help="a model of sentencepiece, for both languages")
    of.add_argument("--learn-vocabulary", type=whole_number(257, MOST_TOKENS), metavar="N",
                    help="make a byte-pair encoding of N tokens from the training sentences, 257 to 65536")
    pairs.add_argument("--longest", type=whole_number(1, MOST_TOKENS), default=250, metavar="N",
                       help="leave out pairs with a sentence of more tokens (default %(default)s)")
    pairs.set_defaults(pack=pack_translation)

    pack_images.add_to(kinds)
    return parser


def main():
    options = parser().parse_args()
    return exit_code_of("pack", lambda: options.pack(options))


if __name__ == "__main__":
    sys.exit(main())
