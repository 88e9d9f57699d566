"""A small corpus, and fairseq's own commands on it."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

PAIRS = [
    ("a dog runs", "ein hund rennt"),
    ("the dog runs", "der hund rennt"),
    ("a small dog runs fast", "ein kleiner hund rennt schnell"),
    ("the cat sleeps", "die katze schläft jetzt"),
    ("a cat sleeps on the sofa", "eine katze schläft jetzt auf dem sofa"),
    ("the small cat sees the dog", "die kleine katze sieht den hund"),
    ("the dog sees a cat", "der hund sieht eine katze"),
    ("on the sofa sleeps a dog", "auf dem sofa schläft jetzt ein hund"),
    ("runs", "rennt"),
    ("the cat runs and the dog sleeps", "die katze rennt und der hund schläft jetzt"),
]


def run(command: str, *arguments: object, check: bool = True, text: str = "", **env: str):
    """Run one of fairseq's console commands in this environment; output and errors together."""
    finished = subprocess.run(
        [str(Path(sys.executable).parent / command), *map(str, arguments)],
        input=text,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if check and finished.returncode:
        pytest.fail(f"{command} failed:\n{finished.stdout[-5000:]}")
    return finished


@pytest.fixture(scope="session", name="run")
def run_fixture():
    return run


@pytest.fixture(scope="session")
def pairs():
    return PAIRS


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """The corpus through fairseq-preprocess: train, valid and test are the same."""
    folder = tmp_path_factory.mktemp("corpus")
    for side, language in enumerate(("en", "de")):
        (folder / f"text.{language}").write_text("".join(pair[side] + "\n" for pair in PAIRS))
    text = folder / "text"
    run(
        *("fairseq-preprocess", "--source-lang", "en", "--target-lang", "de"),
        *("--trainpref", text, "--validpref", text, "--testpref", text),
        *("--destdir", folder / "bin"),
    )
    return folder / "bin"


@pytest.fixture(scope="session")
def dictionary():
    from fairseq.data import Dictionary

    words = Dictionary()
    for i in range(40):
        words.add_symbol(f"word{i}")
    return words


@pytest.fixture
def build(dictionary):
    """Build a tiny model from options, without a command line."""
    from fairseq.models import MODEL_REGISTRY

    from cape_plugins.fairseq.config import CapeTransformerConfig
    from cape_plugins.variants import get

    def build_model(pos="cape", *, train=False, seed=0, **options):
        import torch

        sizes = {"embed_dim": 16, "ffn_embed_dim": 32, "attention_heads": 2, "layers": 2}
        sizes = {f"{side}_{k}": v for side in ("encoder", "decoder") for k, v in sizes.items()}
        scale = {"source_scale": 1.25} if "source_scale" in get(pos).options else {}
        options = {**scale, "dropout": 0.0, **sizes, **options}
        torch.manual_seed(seed)
        task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
        model = MODEL_REGISTRY["cape_transformer"].build_model(
            CapeTransformerConfig(pos=pos, **options), task
        )
        return model.train(train)

    return build_model


@pytest.fixture
def assert_decodes_step_by_step():
    """Decoding token by token gives a model what decoding at once does, a reordered beam too."""
    import torch

    source = torch.tensor([[5, 6, 7, 8, 9, 2], [8, 9, 5, 4, 5, 2]])
    target = torch.tensor([[2, 10, 11, 12, 13, 14], [2, 14, 15, 16, 17, 18]])

    def assert_decodes(model, *, reordered=False):
        # two hypotheses of one sentence, or two sentences
        encoder_out = model.encoder(source[:1].expand(2, -1) if reordered else source)
        full = model.decoder(target, encoder_out=encoder_out)[0]
        order, state = torch.tensor([0, 1]), {}
        for step in range(1, target.shape[1] + 1):
            if reordered and step == 4:
                order = torch.tensor([1, 0])
                model.decoder.reorder_incremental_state_scripting(state, order)
            last = model.decoder(
                target[order, :step], encoder_out=encoder_out, incremental_state=state
            )[0]
            torch.testing.assert_close(last[:, 0], full[order, step - 1], rtol=0, atol=1e-5)

    return assert_decodes


@pytest.fixture
def seen_positions(monkeypatch):
    """The positions that become sinusoids, in order: the encoder's, then the decoder's."""
    from cape_plugins.fused import ops

    seen = []
    real = ops.add_sinusoid

    def spy(content, positions, base, frequency_scale):
        seen.append(positions[..., 0])
        return real(content, positions, base, frequency_scale)

    monkeypatch.setattr(ops, "add_sinusoid", spy)
    return seen
