"""starling checkpoint: the messages if there is nothing to show. tests/train/resume_test.py has its
output."""

import pathlib
import tempfile

from command import CommandTest


class Checkpoint(CommandTest):
    def test_what_is_missing_is_named(self):
        self.assertEqual(self.usage_error("checkpoint"), "checkpoint: a command is needed: show, consensus "
                         "(starling checkpoint --help describes them)")
        self.assertIn("folder is required", self.usage_error("checkpoint", "show"))
        self.assertIn("out is required", self.usage_error("checkpoint", "consensus", "/nowhere"))

    def test_a_folder_without_a_checkpoint(self):
        with tempfile.TemporaryDirectory() as folder:
            self.refused(folder, ": there is no checkpoint: neither manifest.json nor latest is there")
            (pathlib.Path(folder) / "manifest.json").write_text("{}")
            self.refused(folder, "/manifest.json: offset 0: this is not the manifest of a checkpoint: "
                                 'no "format": "starling checkpoint"')

    def refused(self, folder, reason):
        for command in (["show", folder], ["show", folder, "--json"], ["consensus", folder, folder + "/out"]):
            self.assertEqual(self.usage_error("checkpoint", *command), folder + reason)
