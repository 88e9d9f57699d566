"""What the tests of several folders share; pytest finds it by ``pythonpath`` in pyproject.toml."""

import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from cape_plugins import Alibi, Augmentation, Positions, patch_grid, token_positions, variants

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent  # of this environment's commands


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class AlibiFirst(Alibi):
    """In the first layer alone."""

    def acts_in(self, layer):
        return layer == 0


class Made(TorchDispatchMode):
    """The elements of the largest result under it, of any operation and of sines."""

    sines = largest = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        out = operation(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.largest = max(self.largest, out.numel())
            if operation.overloadpacket is torch.ops.aten.sin:
                self.sines = max(self.sines, out.numel())
        return out


# Variants, and a model of one layer

SEQUENCES = ("nopos", "abspos", "sinpos", "cape", "relpos", "relpos_first", "rope", "cape_rope")
SEQUENCES += ("alibi", "cape_alibi", "random", "random_rope", "pose_rope")
_OF_SEQUENCES = ("abspos", "relpos", "relpos_first", "pose_rope")
IMAGES = tuple(pos for pos in SEQUENCES if pos not in _OF_SEQUENCES)
#: (variant, axes) of all that come with this package
OURS = [(pos, 1) for pos in SEQUENCES] + [(pos, 2) for pos in IMAGES]

#: encodings of the literature, which a fixture of the same name registers
EIGHT = (
    "kerple",
    "cope",
    "xpos",
    "t5",
    "t5_shared",
    "fourier",
    "shape",
    "rotations",
    "conditional",
)

OPTIONS = dict(max_global_shift=5.0, max_local_shift=0.5, max_global_scale=1.4)
OPTIONS |= dict(abspos_context=50, relpos_context=3, random_range=9.0, pose_range=90.0)


def build(pos: str, axes: int = 1, dim: int = 12, **given: Any) -> Positions:
    """Positions of three heads and one layer, with those of OPTIONS that the variant takes."""
    taken = variants.get(pos, axes).options(axes)
    options = {name: value for name, value in OPTIONS.items() if name in taken}
    return Positions(pos, dim=dim, axes=axes, **{"heads": 3, "layers": 1, **options, **given})


def cape(**given: Any) -> Augmentation:
    """CAPE's augmentation, which only centres unless options are given."""
    return Augmentation(**{"max_global_shift": 0.0, "max_local_shift": 0.0, **given})


def places(axes: int, *lengths: int) -> Tensor:
    """Positions of sequences padded to six tokens, or of grids of 2 × 3 patches: (B, 6[, 2])."""
    tokens = token_positions(list(lengths) or [6], 6) + 0.25
    return tokens if axes == 1 else patch_grid(2, 3) + 0 * tokens[..., None]


class Layer(nn.Module):
    """A model of one layer of attention, whose parameters have been moved."""

    def __init__(self, pos: str, axes: int = 1, dim: int = 12, **given: Any) -> None:
        super().__init__()
        self.positions = build(pos, axes, dim, **given)
        (attention,) = self.positions.attentions
        self.attention = attention
        for parameter in self.parameters():
            parameter.data.add_(0.05 * torch.randn_like(parameter))

    def forward(self, content: Tensor, positions: Tensor, mask=None, **named: Any) -> Tensor:
        """(B, N, dim) → (B, N, dim)."""
        x, given = self.positions(content, positions, mask, **named)
        x = x.unflatten(2, (3, -1)).transpose(1, 2)
        return self.attention(x, x + 1, x - 1, given)[0].transpose(1, 2).flatten(2)


def odd(base: type, **methods: Any) -> type:
    """A class of a variant as a stranger writes it, with these methods."""
    return dataclass(eq=False, repr=False)(type("Odd", (base,), methods))


# What a page says


def blocks(page: Path | str, language: str = "sh") -> list[str]:
    """The fenced blocks of a page (or of a text) in a language, in their order."""
    text = page.read_text("utf-8") if isinstance(page, Path) else page
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def block_with(page: Path | str, words: str, language: str = "sh") -> str:
    """The only block in which the words stand."""
    (found,) = (block for block in blocks(page, language) if words in block)
    return found


def commands(page: Path | str) -> list[list[str]]:
    """The command lines of a page's blocks of shell, each as its words."""
    lines = "".join(blocks(page)).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


# Commands in processes of their own


def environment(**more: object) -> dict[str, str]:
    """This process's, with the commands beside this Python first and one thread."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    more = {"PATH": path, "OMP_NUM_THREADS": "1", **more}
    return {**os.environ, **{name: str(value) for name, value in more.items()}}


def run(*command: object, cwd: Path | None = None, **more: object) -> tuple[int, str]:
    """Exit status, output and errors together; ``more`` is added to the environment."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def shell(script: str, cwd: Path, **more: object) -> str:
    """What a script prints, which ends at its first error."""
    status, output = run("bash", "-euo", "pipefail", "-c", script, cwd=cwd, **more)
    assert status == 0, output[-3000:]
    return output


# On a CUDA device that is not there

fakes_cuda = pytest.mark.skipif(
    torch.version.cuda is None or torch.__version__ < "2.6",
    reason="needs a CUDA build of PyTorch; fake CUDA tensors of torch 2.5 ask a real driver",
)


class OnCuda(TorchDispatchMode):
    """Refuses tensors made elsewhere, even those that nobody mixes with tensors on CUDA.

    ``but_for``: tensors of the CPU that the host itself makes.
    """

    def __init__(self, but_for: Callable[[Tensor], bool] = lambda made: False) -> None:
        super().__init__()
        self.but_for = but_for

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        out = operation(*args, **(kwargs or {}))
        for made in tree_leaves(out):
            if isinstance(made, Tensor) and made.device.type != "cuda" and not self.but_for(made):
                raise AssertionError(f"{operation} makes a tensor on {made.device}")
        return out


def fake(value: Any) -> Any:
    """For a tensor one on CUDA of its shape and dtype, under FakeTensorMode."""
    if not isinstance(value, Tensor):
        return value
    return torch.empty(value.shape, dtype=value.dtype, device="cuda")


def on_cuda(
    module: nn.Module,
    *given: Any,
    but_for: Callable[[Tensor], bool] = lambda made: False,
    call: Callable[..., Any] | None = None,
    **named: Any,
) -> Any:
    """What a module makes of its arguments, all tensors and weights fake ones on CUDA.

    Waiting for the device (``.item()``, ``.tolist()``, ``bool(tensor)``) is an error there, and so
    are tensors of two devices in one operation. ``call(module, …)`` in place of ``module(…)``.
    """

    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *given: Any, **named: Any) -> Any:
            return (call or nn.Module.__call__)(self.module, *given, **named)

    called = Called()
    with FakeTensorMode(), OnCuda(but_for):
        state = dict([*called.named_parameters(), *called.named_buffers()])
        given, named = tree_map(fake, given), tree_map(fake, named)
        return torch.func.functional_call(called, tree_map(fake, state), given, named)


# Several threads and devices


def in_turns(models: list[nn.Module], calls: list[Callable[[nn.Module], Any]]) -> list[Any]:
    """What two calls make, each in its thread; neither enters a module before the other does.

    ``models``: of each call; they may be one.
    """
    both = threading.Barrier(2, timeout=60)

    def wait(*_: Any) -> None:
        both.wait()

    leaves = {part for model in models for part in model.modules() if not [*part.children()]}
    hooks = [leaf.register_forward_pre_hook(wait) for leaf in leaves]
    with ThreadPoolExecutor(2) as pool:
        found = [*pool.map(lambda call, model: call(model), calls, models)]
    for hook in hooks:
        hook.remove()
    return found


def replica(module: nn.Module) -> nn.Module:
    """What nn.DataParallel makes of a module for each device; its weights are no parameters."""
    copies = {each: each._replicate_for_data_parallel() for each in module.modules()}
    for each, made in copies.items():
        for name, child in each._modules.items():
            made._modules[name] = None if child is None else copies[child]
        for name, weight in each._parameters.items():
            made._parameters[name] = None
            if weight is not None:
                del made._parameters[name]
                setattr(made, name, weight.view_as(weight))
    return copies[module]
