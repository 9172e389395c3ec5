"""The version of torch that the package requires (pyproject.toml). A wheel requires the one that it
is built with; the sources require any that they support."""

from importlib import metadata


class Requirement:
    def build_state(self, state: str) -> None:
        self._of_sources = state == "sdist"

    def dynamic_wheel(self, settings) -> dict[str, bool]:
        return {"dependencies": True}  # differs from that of the sources

    def dynamic_metadata(self, settings, project) -> dict[str, list[str]]:
        if self._of_sources:
            return {"dependencies": [settings["sources"]]}
        try:
            built_with = metadata.version("torch").partition("+")[0]
        except metadata.PackageNotFoundError:
            raise RuntimeError("torch is not installed here: install it first, and build with --no-build-isolation") from None
        return {"dependencies": [f"torch=={built_with}"]}
