"""The messages that docs/troubleshooting.md and docs/launch.md explain, the variables of the
latter, and the failpoints of docs/failures.md, are the program's."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OTHERS = {"Address already in use"}  # the system's own


def source():
    """All of the product, with the pieces of each text joined."""
    files = [path for folder in ("starling", "cli", "python") for path in sorted((ROOT / folder).rglob("*"))
             if path.suffix in (".h", ".cpp", ".py")]
    return re.sub(r'"\s*\n\s*f?"', "", "\n".join(path.read_text() for path in files))


def messages(page):
    """The quoted messages in the first column of a page's tables of messages."""
    inside = False
    for line in (ROOT / "docs" / page).read_text().splitlines():
        inside = line.startswith("| message") or (inside and line.startswith("|"))
        if inside and not line.startswith(("| message", "|-", "| mpirun")):
            yield from re.findall(r"`([^`]+)`", line.split("|")[1])


def variables():
    """Those that a user may set, as starling/world/environment.cpp lists them."""
    source = (ROOT / "starling/world/environment.cpp").read_text()
    names = re.findall(r'"([A-Z_]+)"', re.search(r"known\{([^}]*)\}", source)[1])
    return {f"STARLING_{name}" for name in names} - {"STARLING_LAUNCHER_PID"}  # the launcher's own


class Messages(unittest.TestCase):
    def test_the_program_says_what_the_pages_explain(self):
        text = source()
        for page in ("troubleshooting.md", "launch.md"):
            found = list(messages(page))
            self.assertGreater(len(found), 8, page)
            for message in found:
                if message in OTHERS:
                    continue
                for piece in message.split("..."):
                    piece = re.sub(r"^[A-Z_]+ ", "", piece.strip(" :"))  # a variable's name is put in
                    self.assertTrue(piece in text, f"{page}: {message}")

    def test_the_table_of_variables_is_complete(self):
        table = (ROOT / "docs/launch.md").read_text().split("| variable | meaning |\n")[1].split("\n\n")[0]
        named = [name for line in table.splitlines() for name in re.findall("`(STARLING_[A-Z_]+)`", line.split("|")[1])]
        self.assertEqual(sorted(named), sorted(variables()))

    def test_the_tables_of_failpoints_are_complete(self):
        header = (ROOT / "starling/core/failpoint.h").read_text()
        phases = re.findall(r'"([a-z-]+)"', re.search(r"kNames\[\] = \{([^}]*)\}", header)[1])
        source = (ROOT / "starling/core/failpoint.cpp").read_text()
        actions = re.findall(r'"([a-z]+)"', re.search(r"kActions\{([^}]*)\}", source)[1])
        for title, known in (("phase", phases), ("action", actions)):
            table = (ROOT / "docs/failures.md").read_text().split(f"| {title} | ")[1].split("\n\n")[0]
            named = [name.split("=")[0] for line in table.splitlines()[2:]
                     for name in re.findall(r"`([^`]+)`", line.split("|")[1])]
            self.assertEqual(sorted(named), sorted(known))
