"""starling translate: text into tokens, through the program, and back.

`starling translate` runs this file by its path, as: PROGRAM VOCABULARY REFERENCE LANGUAGE
ARGUMENT.. The program with these arguments reads and writes tokens. With a REFERENCE, its BLEU goes
to stderr, and with a LANGUAGE its METEOR.
"""

import re
import subprocess
import sys

from packing import Refusal, exit_code_of, imported

FIRST_TOKEN = 2  # before it: padding and the end of a sentence
DISTURBS_A_LINE = re.compile(r"[\x00-\x08\x0A-\x1F\x7F-\x9F\u061C\u200E\u200F\u2028-\u202E\u2066-\u2069]")


def printable(line):
    """As core/text.h: a model's text gives no commands to a terminal. Tabs stay."""
    return DISTURBS_A_LINE.sub(lambda found: f"\\u{ord(found[0]):04X}", line)


def lines_of(data, name):
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError as error:
        raise Refusal(f"{name}: is no UTF-8 text: byte {error.start}") from error
    return lines[:-1] if lines[-1] == "" else lines


class Meteor:
    """nltk's METEOR: exact words, then stems of the language. It leaves out WordNet's synonyms."""

    def __init__(self, language):
        self.nltk = imported("nltk")
        self.score_of = imported("nltk.translate.meteor_score", "nltk").single_meteor_score
        snowball = imported("nltk.stem.snowball", "nltk").SnowballStemmer
        languages = [name for name in snowball.languages if name != "porter"]
        if language not in languages:
            raise Refusal(f"--meteor {language}: is no language of the Snowball stemmers: {', '.join(languages)}")
        self.language = language
        self.stemmer = snowball(language)
        self.tokens_of = imported("sacrebleu.tokenizers.tokenizer_13a", "sacrebleu").Tokenizer13a()

    @staticmethod
    def synsets(_):  # of nltk's WordNet
        return []

    def sentence_score(self, translation, reference):
        words = [self.tokens_of(text).split() for text in (reference, translation)]
        return self.score_of(*words, stemmer=self.stemmer, wordnet=self)

    def corpus_score(self, translations, references):
        """The mean over the sentences, in percent."""
        scores = [self.sentence_score(*pair) for pair in zip(translations, references, strict=True)]
        return 100 * sum(scores) / len(scores) if scores else 0.0

    def signature(self):
        return f"match:exact+stem|stem:snowball-{self.language}|synonyms:no|tok:13a|case:lc|version:nltk-{self.nltk.__version__}"


def translate(program, vocabulary, reference, language, arguments):
    sentencepiece = imported("sentencepiece")
    sacrebleu = imported("sacrebleu") if reference else None
    meteor = Meteor(language) if language else None
    try:
        pieces = sentencepiece.SentencePieceProcessor(model_file=vocabulary)
    except (OSError, RuntimeError) as error:
        raise Refusal(f"{vocabulary}: is no vocabulary of sentencepiece") from error
    sources = lines_of(sys.stdin.buffer.read(), "stdin")
    if reference:
        with open(reference, "rb") as file:
            references = lines_of(file.read(), reference)
        if len(references) != len(sources):
            raise Refusal(f"{reference}: has {len(references)} lines, stdin has {len(sources)}")
    tokens = [" ".join(str(piece + FIRST_TOKEN) for piece in line) for line in pieces.encode(sources)]
    done = subprocess.run([program, *arguments], input="".join(line + "\n" for line in tokens), stdout=subprocess.PIPE,
                          text=True)
    if done.returncode != 0:
        return done.returncode  # it has said why
    found = [[int(token) - FIRST_TOKEN for token in line.split()] for line in done.stdout.splitlines()]
    largest = max((piece for line in found for piece in line), default=0)
    if largest >= pieces.get_piece_size():
        raise Refusal(f"{vocabulary}: has {pieces.get_piece_size()} pieces, the model knows more: it is another one's")
    translations = pieces.decode(found)
    sys.stdout.reconfigure(encoding="utf-8")
    for line in translations:
        print(printable(line))
    if reference:
        bleu = sacrebleu.BLEU()
        print(f"{bleu.corpus_score(translations, [references])}\n{bleu.get_signature()}", file=sys.stderr)
    if meteor:
        print(f"METEOR = {meteor.corpus_score(translations, references):.2f}\n{meteor.signature()}", file=sys.stderr)
    return 0


def main():
    program, vocabulary, reference, language, *arguments = sys.argv[1:]
    return exit_code_of("translate", lambda: translate(program, vocabulary, reference, language, arguments))


if __name__ == "__main__":
    sys.exit(main())
