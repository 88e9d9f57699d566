"""CAPE in fairseq: models, architectures, and the optimizer of ADMIN, chosen by name.

Importing this package registers them, as ``cape_plugins.autoload`` does by itself and ``--user-dir
integrations/fairseq/user_dir`` on request.
"""

from importlib import import_module


# Before any import of fairseq: the autoload hook calls this in the middle of that import, when
# this module has run no further than here.
def register() -> None:
    """Add the models, their architectures and ``radam`` to fairseq's registries.

    Idempotent; safe early (it imports fairseq; ImportError where that fails), late, twice, and
    while fairseq is still being imported, once its sub-packages ``models`` and ``optim`` are there.
    """
    try:
        import_module("fairseq")  # may come back here through the hook; then the rest is done
    except ImportError as error:
        raise ImportError(
            f"cape_plugins.fairseq needs fairseq ({error}): pip install 'cape-plugins[fairseq]'"
        ) from error
    import_module(f"{__name__}.radam").register_radam()
    import_module(f"{__name__}.architectures").register_architectures()


register()
