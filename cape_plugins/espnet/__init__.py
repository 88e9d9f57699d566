"""CAPE inside ESPnet, registered on import (and by autoload) with its ASR tasks."""

import importlib
import sys
from types import ModuleType
from typing import Any

from cape_plugins.espnet.relies import RELIES

# ESPnet's ASR tasks: each has its own choices. espnet3's is a copy of espnet2's, in the same wheel.
_TASKS = ("espnet2.tasks.asr", "espnet3.systems.esp2_asr.task")


def register() -> bool:
    """Add our classes to the choices of ESPnet's ASR tasks; idempotent.

    It serves the tasks that are imported, and imports espnet2's if there is none. Autoload calls
    this while a task's module is still being executed: its choices are made, the parser has not
    read them.

    Returns:
        Whether all tasks were served: one that is still being executed may have no ASRTask yet.

    Raises:
        ImportError: ESPnet is missing, or has no ASR task of the known form.
    """
    tasks = [task for name in _TASKS if (task := sys.modules.get(name)) is not None]
    if not tasks:
        try:
            tasks = [importlib.import_module(_TASKS[0])]
        except ImportError as error:
            raise RELIES.error(str(error)) from error
    served = [_register_with(task) for task in tasks]
    return all(served)


def _register_with(task: ModuleType) -> bool:
    names = ("frontend", "specaug", "model", "encoder", "decoder")
    choices: dict[str, Any] = {name: getattr(task, f"{name}_choices", None) for name in names}
    asr_task = _asr_task(task)
    if asr_task is None or None in choices.values():
        if asr_task is None and getattr(task.__spec__, "_initializing", False):
            return False
        raise RELIES.error(f"{task.__name__} has no ASRTask with choices of encoders")

    from cape_plugins.espnet import encoder
    from cape_plugins.espnet.loading import keep_config
    from cape_plugins.espnet.paper.batches import build_task_iter_factory
    from cape_plugins.espnet.paper.frontend import CapeFbank
    from cape_plugins.espnet.paper.model import CapeASRModel
    from cape_plugins.espnet.paper.specaug import CapeSpecAug
    from cape_plugins.espnet.transformer import (
        LayerDropTransformerDecoder,
        SpeechTransformerEncoder,
    )

    for kind, name, ours in (
        ("frontend", "cape_fbank", CapeFbank),
        ("specaug", "cape_specaug", CapeSpecAug),
        ("model", "cape_asr", CapeASRModel),
        ("encoder", "cape_transformer", SpeechTransformerEncoder),
        ("encoder", "cape_conformer", encoder.CapeConformerEncoder),
        ("encoder", "cape_e_branchformer", encoder.CapeEBranchformerEncoder),
        ("encoder", "cape_branchformer", encoder.CapeBranchformerEncoder),
        ("decoder", "cape_transformer", LayerDropTransformerDecoder),
    ):
        choices[kind].classes[name] = ours
    # AbsTask leaves this method to its tasks and ASRTask has none; `iterator_type: task` calls it
    if "build_task_iter_factory" not in vars(asr_task):
        asr_task.build_task_iter_factory = classmethod(build_task_iter_factory)
    if hasattr(asr_task, "main_worker"):  # espnet3's has none
        keep_config(asr_task)
    return True


def _asr_task(module: ModuleType) -> Any:
    """ASRTask, which its module does not name yet while the class is being created."""
    if hasattr(module, "ASRTask"):
        return module.ASRTask
    abs_task = getattr(sys.modules.get("espnet2.tasks.abs_task"), "AbsTask", None)
    tasks = [] if abs_task is None else abs_task.__subclasses__()
    return {(t.__module__, t.__name__): t for t in tasks}.get((module.__name__, "ASRTask"))


register()
