"""Under which conditions a model is tested: the columns of the CSV that say so."""

import zlib
from collections.abc import Iterable
from typing import Any

from cape_plugins.evaluation.timm import abspos_table
from cape_plugins.evaluation.timm.loading import Loaded
from cape_plugins.evaluation.timm.options import TimmOptions
from cape_plugins.evaluation.timm.results import Row
from cape_plugins.variants import VARIANTS

#: train.py's arguments that do not make another training: the seed, what has a column of its own,
#: names of places, and what belongs to the machine or to reporting.
_NO_CONDITION = {
    *("seed", "model", "model_kwargs", "img_size", "input_size", "train_img_sizes"),
    *("crop_pct", "interpolation", "mean", "std", "data", "data_dir", "class_map"),
    *("output", "experiment", "resume", "no_resume_opt", "start_epoch"),
    *("pretrained_path", "initial_checkpoint", "device", "device_modules", "local_rank"),
    *("rank", "world_size", "distributed", "workers", "pin_mem", "prefetcher"),
    *("no_prefetcher", "use_multi_epochs_loader", "log_interval", "recovery_interval"),
    *("val_interval", "checkpoint_hist", "save_images", "eval_metric", "log_wandb"),
    *("wandb_project", "wandb_tags", "wandb_resume_id", "val_split", "val_num_samples"),
}


def row_of(loaded: Loaded, options: TimmOptions, config: dict[str, Any]) -> Row:
    """A row with what is the same at every resolution, to be completed.

    Args:
        loaded: the model.
        options: of the command line.
        config: timm's data config of the test.
    """
    args = loaded.train_args
    row = Row(loaded.name, loaded.checkpoint, tta=int(options.tta))
    row.tta_step = options.tta_step if options.tta else None
    row.model_kwargs = _named((args.get("model_kwargs") or {}) | (options.model_kwargs or {}))
    row.ema = int(options.use_ema)
    row.crop_pct, row.interpolation = config["crop_pct"], config["interpolation"]
    row.mean, row.std = _listed(config["mean"]), _listed(config["std"])
    row.precision = options.amp_dtype if options.amp else "float32"
    row.seed = args.get("seed")
    row.train_size = _listed(args.get("train_img_sizes") or [loaded.train_size])
    if args:
        training = {key: args[key] for key in args if key not in _NO_CONDITION}
        training["starts_from"] = bool(args.get("initial_checkpoint") or args.get("pretrained"))
        row.training = f"{zlib.crc32(_named(training).encode()):08x}"
    if abspos_table.has_table(loaded.model):
        row.variant = "abspos"
        row.abspos_antialias = int(options.abspos_antialias)
    position: Any = getattr(getattr(loaded.model, "embeds", loaded.model), "position", None)
    if getattr(position, "pos", None) in VARIANTS:
        row.variant = position.pos
        if "max_global_shift" in VARIANTS[position.pos].options:
            local = position.max_local_shift
            row.max_global_shift = position.max_global_shift
            row.max_local_shift = "1/N" if local is None else _listed(sorted(set(local)))
            row.max_global_scale = position.max_global_scale
        if position.frequency_scale != 1:
            row.frequency_scale = position.frequency_scale
    return row


def _listed(values: Iterable[Any]) -> str:
    return " ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)


def _named(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}".replace(" ", "") for name, value in sorted(values.items()))
