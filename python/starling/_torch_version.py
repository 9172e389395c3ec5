"""Checks that the installed torch is the one that Starling was built with. Needs no torch, because
the command checks it without."""


def complaint(built_with: str, found: str) -> str | None:
    """The mistake and its remedy in one line; None if the versions agree. The part after a + does
    not count."""
    found = found.partition("+")[0]
    if found == built_with:
        return None
    return (
        f"starling was built with torch {built_with}, but torch {found} is installed: install torch=={built_with}, or build "
        "starling anew from its sources, `pip install --no-build-isolation --no-deps --force-reinstall .`"
    )
