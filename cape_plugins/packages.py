"""Packages of variants: to import this module is to load them all, once.

A package names a module, or a function that registers, in its entry-point group
``cape_plugins.variants``. One that fails costs one warning, which says where and how to see more;
its variants are not half there, and all others work.
"""

import traceback
from collections.abc import Iterable
from importlib.metadata import EntryPoint, distributions, entry_points

from cape_plugins import variants
from cape_plugins.autoload import warn

GROUP = "cape_plugins.variants"  # of entry points


def load(point: EntryPoint) -> None:
    """Import what an entry point names, and call it if it is a function."""
    try:
        with variants.of_package(package_of(point)):
            found = point.load()
            if point.attr:
                if isinstance(found, type) or not callable(found):
                    raise TypeError(f"{point.value} is no function: name a module, or a function")
                found()
    except (Exception, SystemExit) as error:  # `sys.exit()` would end the import of a host
        call = f"; {point.attr}()" if point.attr else ""
        what = (
            f"from {point.module} import {point.attr}{call}" if call else f"import {point.module}"
        )
        warn(
            f"cape_plugins could not load the variants of {package_of(point)} "
            f"({point.name} = {point.value}; {type(error).__name__}: {error}{_place(error)}); all "
            f"others work. To see the whole error: python -c '{what}'"
        )


def package_of(point: EntryPoint) -> str:
    """The name of the package that an entry point is of."""
    return point.dist.name if point.dist else point.module.partition(".")[0]


def _place(error: BaseException) -> str:
    """File and line of an error, of the package's own lines if it has any there."""
    if isinstance(error, SyntaxError) and error.filename:
        return f", {error.filename}:{error.lineno}"
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and "/importlib/" not in frame.filename
    ]
    of_package = [frame for frame in own if "/cape_plugins/" not in frame.filename]
    return f", {of_package[-1].filename}:{of_package[-1].lineno}" if of_package else ""


def find() -> list[EntryPoint]:
    """The entry points of all packages; one whose list cannot be read costs a warning."""
    try:
        return [*entry_points(group=GROUP)]
    except Exception:  # of a line without "=": which package has it, nobody has said
        found: dict[str, list[EntryPoint]] = {}
        for each in distributions():
            try:
                # as entry_points: the first of a name is the one that is imported
                found.setdefault(each.name, [*each.entry_points.select(group=GROUP)])
            except Exception as error:
                warn(
                    f"cape_plugins could not read the entry points of {each.name} "
                    f"({type(error).__name__}: {error}); all others work"
                )
        return [one for of in found.values() for one in of]


def load_all(points: Iterable[EntryPoint]) -> None:
    """:func:`load` each; one that names no module costs a warning, as any that fails."""
    known: list[EntryPoint] = []
    for point in points:
        try:
            known += [point] if point.module else []
        except Exception:  # Python's own has no better words for it
            of = point.dist.name if point.dist else "a package"
            warn(
                f"cape_plugins could not load the variants of {of}: its entry point {point.name} = "
                f"{point.value} is none, write module or module:function; all others work"
            )
    variants.PACKAGES.update(owners(known))
    for point in known:
        load(point)


def owners(points: Iterable[EntryPoint]) -> dict[str, str]:
    """Module → package, for the modules of entry points and the namespaces of one package alone."""
    found = {one.module: package_of(one) for one in points}
    roots: dict[str, set[str]] = {}
    for module, package in found.items():
        roots.setdefault(module.partition(".")[0], set()).add(package)
    return {root: of.pop() for root, of in roots.items() if len(of) == 1} | found


load_all(find())
