"""The options of ``cape-timm-eval``."""

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from cape_studies.evaluation.options import RunOptions, Typed, once, spelled
from cape_studies.evaluation.timm.size_bins import STRATEGIES, Strategy

#: the paper's γ, or its rule in Table 6
Extent = Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["ratio", "sqrt"]


class TimmOptions(RunOptions):
    """Accuracy of image models over resolutions, with timm's data pipeline."""

    checkpoint: Annotated[list[str], Typed("[NAME=]FILE", "-c")] = Field(
        description="train.py's .pth.tar, a plain state dict, or .safetensors"
    )
    model: str | None = Field(
        None, description="timm's name of the architecture (default: the file's own record)"
    )
    model_kwargs: dict[str, Any] = Field({}, description="beside the file's own record")

    data: Annotated[list[str], Typed("DIR")] = Field([], description="folders of class folders")
    split: list[str] = Field(
        [], description="sub-folders, each a test (default: validation, or the folder itself)"
    )
    crop_pct: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="crop / resized size (default: the model's, else 0.875)"
    )

    resolutions: Annotated[list[PositiveInt], Typed("R")] = Field(
        [], description="square image sizes in pixels (default: the one trained at)"
    )
    extent: Annotated[list[Extent], Typed("G")] = Field(
        [],
        description="the paper's γ (Table 6): ratio = R / train size, sqrt = its root, or a number "
        "(default: the model's own). No effect on models without it: abspos, nopos, timm's rotary",
    )
    tta: bool = Field(False, description="average the logits over R - 32, R and R + 32")
    tta_step: PositiveInt = Field(32, description="instead of 32 pixels")
    size_bins: Annotated[list[Strategy] | None, Typed(empty=True)] = Field(
        None,
        description="score by the images' own sizes (appendix B.2) under these strategies "
        "(default: all)",
    )

    throughput: bool = Field(False, description="images per second at each resolution")
    max_batch: PositiveInt | None = Field(None, description="largest tried (default: 8192, CPU: 8)")
    runs: PositiveInt = Field(
        30, description="timed forwards, after as many to warm up; 30 as the authors"
    )

    batch_size: PositiveInt = Field(256, description="images at once, at most")
    workers: NonNegativeInt = Field(4, description="processes that load images")

    @model_validator(mode="after")
    def check(self) -> "TimmOptions":
        """Refuse what does not fit together."""
        for name in ("checkpoint", "data", "split", "resolutions", "extent", "size_bins"):
            once(getattr(self, name) or [], spelled(name))
        if not self.data and not self.throughput:
            raise ValueError("nothing to do: give --data DIR, --throughput or both")
        if self.items is not None and not self.data:
            raise ValueError("--items are images: give --data DIR")
        if bool(self.strategies) + self.tta + self.throughput > 1:
            raise ValueError(
                "--size-bins, --tta and --throughput do not go together: run them apart"
            )
        if self.strategies and {"ratio", "sqrt"} & set(self.extent):
            raise ValueError(
                "--extent ratio and sqrt need one resolution for all images: with --size-bins give "
                "numbers"
            )
        return self

    @property
    def strategies(self) -> tuple[str, ...]:
        """Of size bins; none without ``--size-bins``."""
        return STRATEGIES if self.size_bins == [] else tuple(self.size_bins or ())
