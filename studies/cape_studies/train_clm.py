"""Trains a causal language model by transformers' Trainer, on the arrays of ``data.tokens``.

    python -m cape_studies.train_clm --data tokens --out run --steps 400 \\
        --config pos=alibi hidden_size=64 intermediate_size=160 num_hidden_layers=3
    python -m cape_studies.train_clm --data tokens --out run --steps 400 \\
        --model-type llama --augment pose_rope --augment-options pose_range=1024

The model is in run/model when it is trained; a training that was interrupted goes on. Of data with
train-labels.npy only what has a label there is learned.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from cape_plugins.transformers import augment_positions
from cape_studies import command
from cape_studies.command import CommandOptions, Pairs

NO_LABEL = -100  # of train-labels.npy: transformers learns nothing there


class TrainOptions(CommandOptions):
    """Train a causal language model."""

    data: Path = Field(description="folder that cape_studies.data.tokens made")
    out: Path = Field(description="folder to train into")
    model_type: str = Field("cape_llama", description="of transformers, or ours")
    config: Pairs = Field({}, description="fields of its configuration")
    augment: str | None = Field(None, description="a variant that changes positions in training")
    augment_options: Pairs = Field({}, description="its options")
    length: PositiveInt = Field(256, description="tokens of a training sequence")
    steps: PositiveInt = Field(description="updates")
    batch: PositiveInt = Field(16, description="sequences of an update, on each device")
    learning_rate: PositiveFloat = Field(1e-3, description="its highest; then cosine to 0")
    warmup: NonNegativeInt = Field(20, description="updates of warm-up")
    save: PositiveInt = Field(100, description="updates between checkpoints")
    log: PositiveInt | None = Field(
        None, description="updates between lines of the log; none: a fiftieth of all"
    )
    seed: NonNegativeInt = Field(0, description="of weights, order and positions")
    device: str = Field("cpu", description="cpu or cuda")


class Progress(transformers.TrainerCallback):
    """Says how far a training is, as cape-run reads it."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """A line for each loss."""
        if logs and "loss" in logs:
            loss = float(logs["loss"])
            print(f"step {state.global_step}/{state.max_steps} loss={loss:.3f}", flush=True)


def main(argv: list[str] | None = None) -> None:
    """``python -m cape_studies.train_clm``."""
    command.main("cape_studies.train_clm", TrainOptions, train, argv)


def train(options: TrainOptions) -> None:
    """Train, or go on.

    Raises:
        ValueError: an option is wrong, of the model or of its positions.
    """
    transformers.set_seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.data / "tokenizer")
    end = tokenizer.eos_token_id
    own = dict(vocab_size=len(tokenizer), bos_token_id=end, eos_token_id=end, pad_token_id=None)
    config = AutoConfig.for_model(options.model_type, **own | options.config)
    model = AutoModelForCausalLM.from_config(config)
    if options.augment is not None:
        augment_positions(model, options.augment, **options.augment_options)
    arguments = transformers.TrainingArguments(
        options.out,
        max_steps=options.steps,
        per_device_train_batch_size=options.batch,
        learning_rate=options.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=options.warmup,
        weight_decay=0.1,
        save_steps=options.save,
        save_total_limit=1,
        logging_steps=options.log or max(1, options.steps // 50),
        report_to=[],
        disable_tqdm=True,
        seed=options.seed,
        data_seed=options.seed,
        use_cpu=options.device == "cpu",
    )
    path = options.data / "train.npy"
    labels = options.data / "train-labels.npy"
    tokens, learned = (
        torch.from_numpy(np.load(one).astype(np.int64)).split(options.length)
        for one in (path, labels if labels.exists() else path)
    )
    data: Any = [  # all that Trainer asks for
        dict(input_ids=one, labels=other)
        for one, other in zip(tokens, learned, strict=True)
        if len(one) == options.length
    ]
    trainer = transformers.Trainer(model, arguments, train_dataset=data, callbacks=[Progress()])
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=any(options.out.glob("checkpoint-*")) or None)
    trainer.save_model(str(options.out / "model"))
    tokenizer.save_pretrained(options.out / "model")


if __name__ == "__main__":
    main()
