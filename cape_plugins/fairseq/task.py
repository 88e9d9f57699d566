"""The task ``cape_translation``: fairseq's ``translation`` under a name of ours.

It adds nothing: BOS, positions and the source scale are the model's, so that both tasks (and any
other for translation) give the same in training and in generation.
"""

from fairseq.tasks import TASK_REGISTRY, register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask

TASK = "cape_translation"


class CapeTranslationTask(TranslationTask):
    """Translate from one language into another, as fairseq's ``translation`` does."""


def register_cape_translation() -> None:
    """Add ``cape_translation`` to fairseq's tasks, unless it is there."""
    if TASK not in TASK_REGISTRY:
        register_task(TASK, dataclass=TranslationConfig)(CapeTranslationTask)
