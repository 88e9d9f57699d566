"""A small corpus, and small models."""

import shutil
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from fairseq_support import PAIRS, preprocess

if find_spec("fairseq") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """The corpus in fairseq's format."""
    return preprocess(tmp_path_factory.mktemp("corpus"), PAIRS)


@pytest.fixture
def dictionaries(data, tmp_path):
    """A folder of data without a training set."""
    for file in data.glob("dict.*"):
        shutil.copy(file, tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def dictionary():
    from fairseq.data import Dictionary

    words = Dictionary()
    for i in range(40):
        words.add_symbol(f"word{i}")
    return words


@pytest.fixture
def build(dictionary):
    """Build a tiny model from options, without a command line; its weights are perturbed."""
    import torch
    from fairseq.models import MODEL_REGISTRY
    from omegaconf import OmegaConf

    from cape_plugins.fairseq.options import aligns_source
    from cape_plugins.variants import get

    sizes = {"embed_dim": 16, "ffn_embed_dim": 32, "attention_heads": 2, "layers": 2}
    small = {f"{side}_{k}": v for side in ("encoder", "decoder") for k, v in sizes.items()}
    small |= dict(dropout=0.0, decoder_input_dim=16, decoder_output_dim=16)
    of_task = dict(add_bos_token=False, tokens_per_sample=8, max_target_positions=None)

    def make(pos="cape", *, arch="cape_transformer", train=False, seed=0, task=None, **options):
        model = MODEL_REGISTRY[arch]
        scale = {"source_scale": 1.25} if aligns_source(get(pos, axes=1)) else {}
        known = vars(model.config()).keys()
        given = {name: value for name, value in {**small, **scale}.items() if name in known}
        config = model.config(pos=pos, **{**given, **options})
        if arch == "cape_transformer_lm":  # whose options are those of the task, too
            whole = dict(model=OmegaConf.structured(config), task=of_task, common={"tpu": False})
            config = OmegaConf.create(whole).model
        torch.manual_seed(seed)
        task = task or SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
        built = model.build_model(config, task)
        # fresh weights, many of them 0 or 1, would hide that two of them change places
        for p in built.parameters():
            p.data.add_(0.05 * torch.randn_like(p))
        return built.train(train)

    return make


@pytest.fixture
def build_lm(build):
    """The same of a language model."""
    return partial(build, arch="cape_transformer_lm")


@pytest.fixture
def seen_positions(monkeypatch):
    """What variants make of positions (B, N), in order: the encoder's, then the decoder's."""
    from cape_plugins import Positions

    seen = []
    augment = Positions.augment

    def spy(*args, **kwargs):
        found = augment(*args, **kwargs)
        seen.append(found[..., 0])
        return found

    monkeypatch.setattr(Positions, "augment", spy)
    return seen
