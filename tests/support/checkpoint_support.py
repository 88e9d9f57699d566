"""The checkpoints of tests/checkpoints: their names, and how each host loads one and uses it.

``tests/checkpoints/make.py`` made them; ``tests/test_checkpoints.py`` loads them.
"""

import gzip
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from cape_support import ROOT

FOLDER = ROOT / "tests" / "checkpoints"


def wave(*shape: int) -> Tensor:
    """Numbers in ±1 that look random. Those of a generator may change between releases of torch."""
    index = torch.arange(math.prod(shape), dtype=torch.float64)
    return (0.1 * index**2).sin().float().reshape(shape)


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """What gzip has packed, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / path.stem
        file.write_bytes(gzip.decompress(path.read_bytes()))
        yield file


class Timm:
    """A folder as ``timm.models.save_for_hf`` writes it."""

    #: folder → model and the arguments of a small one
    MADE: ClassVar = {
        "cape": ("vit_tiny_patch16_cape_224", {}),
        "ropepos": ("vit_tiny_patch16_ropepos_224", {}),
        "alibi": ("vit_tiny_patch16_alibi_224", {}),
        "naflexvit_cape": ("naflexvit_tiny_patch16_cape_gap", {}),
        "rope_cape": ("vit_small_patch16_rope_cape_224", {"img_size": 16}),
        "rope_mixed_cape": ("vit_small_patch16_rope_mixed_cape_224", {"img_size": 16}),
        "dinov3_cape": ("vit_small_patch16_dinov3_cape", {"img_size": 16}),
    }

    @staticmethod
    def load(folder: Path, **options: object) -> nn.Module:
        import timm

        import cape_plugins.timm  # noqa: F401 - registers, also where autoload is switched off

        return timm.create_model(f"local-dir:{folder}", pretrained=True, **options)

    @staticmethod
    def weights(folder: Path) -> dict[str, Tensor]:
        from safetensors.torch import load_file

        return load_file(folder / "model.safetensors")

    @staticmethod
    def outputs(model: nn.Module) -> Tensor:
        return model(wave(2, 3, 16, 16))


class Fairseq:
    """A checkpoint of fairseq-train, without the optimizer."""

    #: folder → flags
    MADE: ClassVar = {
        **{pos: f"--pos {pos}" for pos in ("cape", "rope", "alibi")},
        "relpos": "--pos relpos --relpos-context 3",
    }

    @staticmethod
    def load(folder: Path, **options: object) -> nn.Module:
        from fairseq.checkpoint_utils import load_model_ensemble_and_task

        import cape_plugins.fairseq  # noqa: F401

        # the dictionaries lie beside
        overrides = {"data": str(folder.parent), **options}
        with unpacked(folder / "checkpoint.pt.gz") as path:
            (model,), *_ = load_model_ensemble_and_task([str(path)], overrides)
        return model

    @staticmethod
    def weights(folder: Path) -> dict[str, Tensor]:
        with unpacked(folder / "checkpoint.pt.gz") as path:
            return torch.load(path, weights_only=True)["model"]

    @staticmethod
    def outputs(model: nn.Module) -> Tensor:
        pad, eos = 1, 2
        source = torch.tensor([[5, 6, 7, 8, eos], [pad, pad, 9, 10, eos]])
        target = torch.tensor([[eos, 4, 5, 6], [eos, 11, 12, pad]])
        return model(source, torch.tensor([5, 3]), target)[0][..., :5]


class Espnet:
    """``config.yaml`` and a checkpoint of asr_train."""

    #: folder → encoder and its options
    MADE: ClassVar = {
        "cape": ("cape_transformer", {"pos": "cape"}),
        "abspos": ("cape_branchformer", {"pos": "abspos", "abspos_context": 0.3}),
        "rope": ("cape_conformer", {"pos": "rope"}),
        "relpos": ("cape_conformer", {"pos": "relpos", "relpos_context": 0.12}),
        "alibi": ("cape_e_branchformer", {"pos": "alibi"}),
        "espnet_rel_pos": ("cape_conformer", {"pos": "espnet_rel_pos", "rel_pos_type": "latest"}),
        # made by that ESPnet, whose conv2d has other keys; today's reads them, not the reverse
        "rope_202511": ("cape_conformer", {"pos": "rope"}),
    }

    @staticmethod
    def load(folder: Path, **options: object) -> nn.Module:
        """As asr_inference does, and then strictly."""
        import yaml
        from espnet2.tasks.asr import ASRTask

        import cape_plugins.espnet  # noqa: F401

        config = yaml.safe_load((folder / "config.yaml").read_text())
        config["encoder_conf"] |= options
        with unpacked(folder / "model.pth.gz") as path:
            path.with_name("config.yaml").write_text(yaml.safe_dump(config))
            model, _ = ASRTask.build_model_from_file(model_file=path)
        model.load_state_dict(Espnet.weights(folder), strict=True)
        return model

    @staticmethod
    def weights(folder: Path) -> dict[str, Tensor]:
        with unpacked(folder / "model.pth.gz") as path:
            return torch.load(path, weights_only=True)

    @staticmethod
    def outputs(model: nn.Module) -> Tensor:
        encoded, _ = model.encode(wave(2, 4000), torch.tensor([4000, 3000]))
        return model.ctc.log_softmax(encoded)


HOSTS = {"timm": Timm, "fairseq": Fairseq, "espnet": Espnet}
