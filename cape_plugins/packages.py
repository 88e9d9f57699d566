"""Packages of variants: to import this module is to load them all, once.

A package names a module, or a function that registers, in its entry-point group
``cape_plugins.variants``. One that fails costs one warning, which says how to see more; all others
work. As this is the import of a module, other threads wait until it has ended.
"""

from importlib.metadata import EntryPoint

from cape_plugins.autoload import entry_points, warn

GROUP = "cape_plugins.variants"  # of entry points


def load_all() -> None:
    """Import what each entry point names, and call it if it is a function."""
    for point in entry_points(GROUP):
        try:
            load(point)
        except (Exception, SystemExit) as error:  # `sys.exit()` would end the import of a host
            of = point.dist.name if point.dist else point.value
            warn(
                f"cape_plugins could not load the variants of {of} ({type(error).__name__}: "
                f"{error}); all others work. To see the whole error: python -c 'import "
                f"{point.value.partition(':')[0]}'"
            )


def load(point: EntryPoint) -> None:
    """Import what an entry point names; TypeError if that is neither a module nor a function."""
    found = point.load()
    if point.attr:
        if isinstance(found, type) or not callable(found):
            raise TypeError(f"{point.value} is no function: name a module, or a function")
        found()


load_all()
