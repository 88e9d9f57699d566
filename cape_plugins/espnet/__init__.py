"""CAPE inside ESPnet2: ``encoder: cape_transformer``, registered on import (and by autoload)."""

import importlib
import sys

from cape_plugins import autoload


def register() -> None:
    """Add our encoder to the choices of ESPnet's ASR task; idempotent.

    Autoload calls this while ``espnet2.tasks.asr`` is still being executed, as soon as the class
    ASRTask exists: that is before the parser reads the choices, and after they were made.

    Raises:
        ImportError: ESPnet is missing, or has no ASR task of the known form.
    """
    task = sys.modules.get("espnet2.tasks.asr")
    if task is None:
        try:
            task = importlib.import_module("espnet2.tasks.asr")
        except ImportError as error:
            raise ImportError(
                f"cape_plugins.espnet needs ESPnet ≥ 202511 ({error}): "
                "pip install 'cape-plugins[espnet]'"
            ) from error
    choices = getattr(task, "encoder_choices", None)
    if choices is None:
        if getattr(task.__spec__, "_initializing", False):
            # it is too early; autoload's hook comes back when the choices exist
            autoload.install(force=True)
            return
        raise ImportError(
            "espnet2.tasks.asr has no encoder_choices: cape_plugins.espnet knows ESPnet 202511"
        )

    from cape_plugins.espnet.encoder import CapeTransformerEncoder

    # ESPnet checks this in ClassChoices.__init__ only
    if choices.base_type is not None and not issubclass(CapeTransformerEncoder, choices.base_type):
        raise ImportError(
            f"ESPnet's encoders must be {choices.base_type}, which CapeTransformerEncoder is not: "
            "was espnet2 imported twice?"
        )
    choices.classes["cape_transformer"] = CapeTransformerEncoder


register()
