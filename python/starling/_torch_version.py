"""Is the installed torch the one that Starling was built with? Needs no torch: the command asks as well, without it."""


def complaint(built_with: str, found: str) -> str | None:
    """One line of what is wrong and what to do; None where the versions agree. What follows a + does not count."""
    found = found.partition("+")[0]
    if found == built_with:
        return None
    return (
        f"starling was built with torch {built_with}, but torch {found} is installed: install torch=={built_with}, or build "
        "starling anew from its sources, `pip install --no-build-isolation --no-deps --force-reinstall .`"
    )
