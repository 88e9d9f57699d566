"""Small models of ours, images and padded batches, for all tests of the timm host."""

from collections.abc import Callable
from importlib.util import find_spec

import pytest
import torch

from cape_support import seeded

if find_spec("timm") is None:
    collect_ignore_glob = ["test_*.py"]

NAMES = {"vit": "vit_tiny_patch16_{}_224", "naflexvit": "naflexvit_tiny_patch16_{}_gap"}


@pytest.fixture(autouse=True)
def what_torch_may_load():
    """timm's loading for train.py ends with ``Namespace`` forbidden, which fairseq needs.

    Tests of fairseq may come later in this process.
    """
    before = torch.serialization.get_safe_globals()
    yield
    torch.serialization.add_safe_globals(before)


@pytest.fixture(scope="session")
def create() -> Callable[..., torch.nn.Module]:
    """variant, host, options → a small model, noise added to its weights unless ``fresh``."""
    import timm

    import cape_plugins.timm  # noqa: F401 - registers, also where autoload is switched off

    def make(variant="cape", host="vit", *, fresh=False, **options) -> torch.nn.Module:
        torch.manual_seed(0)
        options = dict(depth=2, num_classes=10, embed_dim=32, num_heads=2) | options
        own = dict(naflexvit=dict(init_values=1.0), eva=dict(img_size=64, dynamic_img_size=True))
        options = own.get(host, {}) | options
        model = timm.create_model(NAMES.get(host, "{}").format(variant), **options)
        for parameter in [] if fresh else model.parameters():
            parameter.data.add_(0.2 * torch.randn_like(parameter))
        return model

    return make


@pytest.fixture(scope="session")
def images() -> Callable[..., torch.Tensor]:
    """shape → normal noise, the same at every call."""
    return lambda *shape: torch.randn(*shape, generator=seeded())


@pytest.fixture(scope="session")
def several(images) -> list[torch.Tensor]:
    """Images of different sizes: grids of 4 × 6, 1 × 3 and 8 × 2 patches."""
    return [images(3, *size) for size in [(64, 96), (16, 48), (128, 32)]]


@pytest.fixture(scope="session")
def batch(several) -> Callable[..., dict]:
    """Their padded batch, as timm's NaFlex loader makes it."""

    def make(max_patches: int = 30) -> dict:
        from timm.data.naflex_dataset import NaFlexCollator
        from timm.data.naflex_transforms import Patchify

        patchify = Patchify(16)
        return NaFlexCollator(max_patches)([(patchify(image), 0) for image in several])[0]

    return make


@pytest.fixture
def load(create) -> Callable[..., torch.nn.Module]:
    """path, variant, options → a model as train.py --pretrained --pretrained-path makes it;
    train.py says head=-1: always a new head."""

    def make(path, variant="cape", host="vit", *, head=10, **options) -> torch.nn.Module:
        overlay = dict(file=str(path), num_classes=head)
        given = dict(pretrained=True, pretrained_cfg_overlay=overlay, fresh=True)
        return create(variant, host, **given, **options)

    return make


@pytest.fixture
def embedded(monkeypatch) -> list[torch.Tensor]:
    """Positions whose embedding is added at the input, in the order of the forwards."""
    from cape_plugins import Sinusoids

    found, whole = [], Sinusoids.add

    def record(self, content, positions):
        found.append(positions)
        return whole(self, content, positions)

    monkeypatch.setattr(Sinusoids, "add", record)
    return found
