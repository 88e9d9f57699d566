"""Makes the small checkpoints of this folder that are missing; one that is there stays as it is.

    python tests/checkpoints/make.py

They must load and give their numbers for ever: tests/test_checkpoints.py says whether they do. So
delete one only if its results are meant to change, and say so in CHANGELOG.md. For a new variant
add a line to ``MADE`` in tests/support/checkpoint_support.py.

Each is in its host's own layout, with weights off their first values. ``expected.json`` beside it
has the outputs.
"""

import gzip
import io
import json
import shutil
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parents[1])]

from checkpoint_support import HOSTS, Espnet, Fairseq, Timm, wave  # noqa: E402


def perturb(parameters: Iterable[Tensor]) -> None:
    """Move each weight: fresh ones, many of them 0 or 1, would hide that two change places."""
    for parameter in parameters:
        parameter.data.add_(0.2 * wave(*parameter.shape))


def save(content: object, path: Path) -> None:
    """As torch.save; three quarters of so small a file are padding and names."""
    torch.save(content, buffer := io.BytesIO())
    path.write_bytes(gzip.compress(buffer.getvalue(), mtime=0))


def make_timm(name: str, folder: Path) -> None:
    """``config.json`` and ``model.safetensors``."""
    import timm

    import cape_plugins.timm  # noqa: F401

    model_name, options = Timm.MADE[name]
    sizes = dict(embed_dim=8, depth=1, num_heads=1, patch_size=4, mlp_ratio=1, num_classes=5)
    model = timm.create_model(model_name, **sizes, **options)
    perturb(model.parameters())
    timm.models.save_for_hf(model, str(folder), safe_serialization=True)


def make_fairseq(name: str, folder: Path) -> None:
    """``checkpoint.pt.gz`` of one update, and the dictionaries beside the folder."""
    from fairseq_support import PAIRS, preprocess, train

    with tempfile.TemporaryDirectory() as there:
        data = preprocess(Path(there), PAIRS)
        flags = f"{Fairseq.MADE[name]} --max-update 1 --no-save-optimizer-state"
        for side in ("encoder", "decoder"):
            sizes = dict(embed_dim=8, ffn_embed_dim=8, attention_heads=2, layers=1)
            for option, value in sizes.items():
                flags += f" --{side}-{option.replace('_', '-')} {value}"
        flags += " --max-source-positions 12 --max-target-positions 12"
        state, _ = train(data, Path(there) / "out", flags)
        for language in ("en", "de"):
            shutil.copy(data / f"dict.{language}.txt", folder.parent)
    state["cfg"]["task"] |= dict(data="data-bin", source_lang="en", target_lang="de")
    state["cfg"]["checkpoint"]["save_dir"] = "checkpoints"
    state["extra_state"] = {}  # the training's metrics
    perturb(value for key, value in state["model"].items() if is_parameter(key))
    folder.mkdir()
    save(state, folder / "checkpoint.pt.gz")


def is_parameter(key: str) -> bool:
    """Whether an entry of a state dict is no record of the variant and no version."""
    return ".mark." not in key and not key.endswith(("version", "_float_tensor"))


def make_espnet(name: str, folder: Path) -> None:
    """``config.yaml``, as asr_train writes it, and ``model.pth.gz``."""
    import yaml
    from espnet2.bin.asr_train import main as asr_train
    from espnet2.tasks.asr import ASRTask

    import cape_plugins.espnet  # noqa: F401

    encoder, options = Espnet.MADE[name]
    sizes = dict(output_size=8, attention_heads=2, num_blocks=1)
    if "branchformer" in encoder:
        sizes |= dict(cgmlp_linear_units=8, cgmlp_conv_kernel=3)
    else:
        sizes |= dict(linear_units=8)
    if encoder == "cape_conformer":
        sizes |= dict(cnn_module_kernel=3, macaron_style=True)
    config = dict(
        **dict(token_type="char", token_list=["<blank>", "<unk>", "a", "b", "<sos/eos>"]),
        **dict(frontend="default", normalize="utterance_mvn"),
        frontend_conf=dict(fs=8000, n_fft=256, win_length=200, hop_length=80, n_mels=12),
        **dict(model="cape_asr", model_conf=dict(ctc_weight=1.0)),
        **dict(encoder=encoder, encoder_conf=sizes | options),
        **dict(ngpu=0, dry_run=True),
    )
    folder.mkdir()
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    asr_train(cmd=["--config", str(file), "--output_dir", str(folder)])
    written = yaml.safe_load(file.read_text()) | dict(config="train.yaml", output_dir="exp")
    file.write_text(yaml.safe_dump(written, sort_keys=False))
    model = ASRTask.build_model(Namespace(**written))
    perturb(model.parameters())
    save(model.state_dict(), folder / "model.pth.gz")


def main() -> None:
    """Make each checkpoint whose folder is missing, and its ``expected.json``."""
    for host, make in (("timm", make_timm), ("fairseq", make_fairseq), ("espnet", make_espnet)):
        for name in HOSTS[host].MADE:
            folder = HERE / host / name
            if folder.exists():
                continue
            folder.parent.mkdir(exist_ok=True)
            torch.manual_seed(0)
            make(name, folder)
            model = HOSTS[host].load(folder).eval()
            with torch.no_grad():
                found = HOSTS[host].outputs(model)
            text = json.dumps([round(value, 7) for value in found.flatten().tolist()])
            (folder / "expected.json").write_text(text + "\n")
            print(f"{folder.relative_to(HERE)}: {tuple(found.shape)}")


if __name__ == "__main__":
    main()
