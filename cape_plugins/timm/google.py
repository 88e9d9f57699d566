"""Google's ViT weights (JAX's .npz, also Big Vision's) as a state dict of timm's.

>>> weights = read("Ti_16-i21k-300ep-lr_0.001.npz")  # with the table of positions: pos_embed
"""

import re
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from cape_plugins.timm.files import fault

_PREFIXES = ("", "opt/target/", "params/", "params/img/")  # those that timm looks for
_TABLES = ("pos_embedding", "Transformer/posembed_input/pos_embedding")
_LAYOUT = "Google's layout of a ViT"
_OTHERWISE = "load it into timm's own model, and give a file of that one's state_dict()"


def read(path: str | Path, prefix: str = "", in_chans: int | None = None) -> dict[str, Tensor]:
    """Read an .npz: timm's names → weights; the table stays as in the file, (1, rows, dim).

    timm's own ViT, built with the file's sizes, converts the weights.

    Args:
        path: the .npz.
        prefix: prefix of the names in the file. The prefixes that timm knows are found without it.
        in_chans: channels of the images; the patch embedding is converted to them as timm does.

    Raises:
        ValueError: the file is missing, damaged or not an .npz, or has another architecture.
    """
    if reason := fault(path):
        raise ValueError(reason)
    try:
        return _read(path, prefix, in_chans)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise ValueError(f"{path} is damaged ({error}): copy or download it again") from error


def _read(path: str | Path, prefix: str, in_chans: int | None) -> dict[str, Tensor]:
    archive = np.load(path, allow_pickle=False)
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ValueError(f"{path} holds one array, expected an .npz in {_LAYOUT}")
    with archive:
        prefixes = [prefix] if prefix else _PREFIXES
        found = [one for one in prefixes if f"{one}embedding/kernel" in archive]
        if not found:
            raise ValueError(
                f"{path} is not in {_LAYOUT}: it has no embedding/kernel, but "
                f"{', '.join(archive.files[:3])}; give a .pth or .safetensors of a state_dict()"
            )
        options = _options(path, archive, found[0])
    if in_chans is not None:
        options["in_chans"] = in_chans
    with torch.random.fork_rng(devices=[]):  # what is drawn here is overwritten
        model = VisionTransformer(**options)
    try:
        model.load_pretrained(str(path), prefix)
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not in {_LAYOUT} throughout: {error}; {_OTHERWISE}") from error
    return dict(model.state_dict())


def _options(path: str | Path, archive: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Arguments of the timm ViT that the archive's weights fit."""
    kernel = archive[f"{prefix}embedding/kernel"]  # (height, width, channels, dim)
    names = [name.removeprefix(prefix) for name in archive if name.startswith(prefix)]
    tables = [name for name in _TABLES if name in names]
    queries = [name for name in names if re.match(r"Transformer/.*query/kernel", name)]
    hidden = [name for name in names if re.match(r"Transformer/.*Dense_0/kernel", name)]
    other = None
    if "conv_root/kernel" in names:
        other = "a ResNet before the ViT"
    elif kernel.ndim != 4:
        other = "a dense layer for patches (NaFlex)"
    elif not tables or archive[prefix + tables[0]].ndim != 3:
        other = "no table of positions (1, rows, dim)"
    elif not queries or not hidden:
        other = "no blocks of a Transformer"
    if other is not None:
        raise ValueError(f"{path} has {other}, which timm's plain ViT does not take: {_OTHERWISE}")
    rows, width = archive[prefix + tables[0]].shape[1:]
    query = archive[prefix + queries[0]]  # (dim, heads, head_dim), of scanned blocks (depth, …)
    depth = query.shape[0] if query.ndim == 4 else len(queries)
    classes = archive[f"{prefix}head/bias"].shape[-1] if "head/bias" in names else 0
    has_class_token = "cls" in names
    height, across, in_chans, _ = kernel.shape
    return dict(
        patch_size=(height, across),
        img_size=(height, across * rows),  # a table of so many rows, which timm then leaves alone
        no_embed_class=True,
        in_chans=in_chans,
        embed_dim=width,
        depth=depth,
        num_heads=query.shape[-2],
        mlp_ratio=archive[prefix + hidden[0]].shape[-1] / width,
        num_classes=classes,
        class_token=has_class_token,
        global_pool=_pool(has_class_token, "MAPHead_0/probe" in names),
        fc_norm=False,
        weight_init="skip",
    )


def _pool(has_class_token: bool, has_map_head: bool) -> str:
    if has_map_head:
        return "map"
    return "token" if has_class_token else "avg"
