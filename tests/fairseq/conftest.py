"""A small corpus, and fairseq's own commands on it."""

import os
import shlex
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

sys.path.insert(0, str(Path(__file__).parent))  # also for the processes that it starts


# of a tiny model that learns, in the order of the data
TRAIN = """
    --arch cape_transformer_tiny --encoder-normalize-before --decoder-normalize-before --dropout 0
    --optimizer adam --lr 0.005 --criterion label_smoothed_cross_entropy --batch-size 5 --cpu
    --num-workers 0 --log-format simple --seed 3 --no-epoch-checkpoints
    --required-batch-size-multiple 1
"""  # the last: else fairseq-fixed drops the rest of a batch that 8 does not divide


def run(line: str, check: bool = True, text: str = "", **env: str):
    """Run the line of one of fairseq's console commands; output and errors together.

    In a process of its own where the environment is another, else in a child of a warm one.
    """
    command, *arguments = shlex.split(line)
    if env:
        finished = subprocess.run(
            [str(Path(sys.executable).parent / command), *arguments],
            input=text,
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    else:
        import warm_fairseq

        finished = SimpleNamespace()
        finished.returncode, finished.stdout = warm_fairseq.call(command, arguments, text)
    if check and finished.returncode:
        pytest.fail(f"{command} failed:\n{finished.stdout[-5000:]}")
    return finished


@pytest.fixture(scope="session", name="run")
def run_fixture():
    return run


@pytest.fixture(scope="session")
def train_flags():
    return TRAIN


@pytest.fixture(scope="session")
def train():
    """Train a tiny model into a folder; (what is in its last checkpoint, the output)."""
    import torch

    def train(data, folder, flags="", **env):
        output = run(f"fairseq-train {data} {TRAIN} --save-dir {folder} {flags}", **env).stdout
        return torch.load(folder / "checkpoint_last.pt", weights_only=True), output

    return train


@pytest.fixture(scope="session")
def pairs():
    return PAIRS


@pytest.fixture(scope="session")
def preprocess():
    """Sentence pairs through fairseq-preprocess, as train, valid and test; gives the folder."""

    def preprocess(folder, pairs, flags=""):
        for side, language in enumerate(("en", "de")):
            (folder / f"text.{language}").write_text("".join(pair[side] + "\n" for pair in pairs))
        text = folder / "text"
        files = f"--trainpref {text} --validpref {text} --testpref {text} --destdir {folder}/bin"
        run(f"fairseq-preprocess --source-lang en --target-lang de {flags} {files}")
        return folder / "bin"

    return preprocess


@pytest.fixture(scope="session")
def data(tmp_path_factory, preprocess):
    """The corpus in fairseq's format."""
    return preprocess(tmp_path_factory.mktemp("corpus"), PAIRS)


@pytest.fixture(scope="session")
def configure():
    """A command line of fairseq-train → (fairseq's config, its task)."""
    from fairseq import options, tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    def configure(data, flags="", arch="cape_transformer_tiny"):
        arguments = [str(data), "--arch", arch, *flags.split()]
        args = options.parse_args_and_arch(options.get_training_parser(), arguments)
        config = convert_namespace_to_omegaconf(args)
        return config, tasks.setup_task(config.task)

    return configure


@pytest.fixture(scope="session")
def dictionary():
    from fairseq.data import Dictionary

    words = Dictionary()
    for i in range(40):
        words.add_symbol(f"word{i}")
    return words


def perturbed(model):
    """Fresh weights, many of them 0 or 1, would hide that two of them change places."""
    import torch

    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn_like(p))
    return model


SIZES = {"embed_dim": 16, "ffn_embed_dim": 32, "attention_heads": 2, "layers": 2}


@pytest.fixture
def build(dictionary):
    """Build a tiny translation model from options, without a command line."""
    import torch
    from fairseq.models import MODEL_REGISTRY

    from cape_plugins.fairseq.config import CapeTransformerConfig
    from cape_plugins.variants import get

    def build_model(pos="cape", *, train=False, seed=0, task=None, **options):
        sizes = {f"{side}_{k}": v for side in ("encoder", "decoder") for k, v in SIZES.items()}
        scale = {"source_scale": 1.25} if "source_scale" in get(pos).options else {}
        config = CapeTransformerConfig(pos=pos, **{**scale, "dropout": 0.0, **sizes, **options})
        torch.manual_seed(seed)
        task = task or SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
        model = MODEL_REGISTRY["cape_transformer"].build_model(config, task)
        return perturbed(model).train(train)

    return build_model


@pytest.fixture
def build_lm(dictionary):
    """Build a tiny language model from options, without a command line."""
    import torch
    from fairseq.models import MODEL_REGISTRY
    from omegaconf import OmegaConf

    from cape_plugins.fairseq.config import CapeTransformerLanguageModelConfig

    def build_model(pos="cape", *, train=False, seed=0, task=None, **options):
        sizes = {f"decoder_{k}": v for k, v in {**SIZES, "input_dim": 16, "output_dim": 16}.items()}
        config = CapeTransformerLanguageModelConfig(pos=pos, **{"dropout": 0.0, **sizes, **options})
        of_task = dict(add_bos_token=False, tokens_per_sample=8, max_target_positions=None)
        whole = dict(model=OmegaConf.structured(config), task=of_task, common={"tpu": False})
        torch.manual_seed(seed)
        task = task or SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
        config = OmegaConf.create(whole).model
        model = MODEL_REGISTRY["cape_transformer_lm"].build_model(config, task)
        return perturbed(model).train(train)

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
    """What variants make of positions, in order: the encoder's, then the decoder's."""
    from cape_plugins import PositionalEmbedding

    seen = []
    augment = PositionalEmbedding.augment

    def spy(*args, **kwargs):
        seen.append(augment(*args, **kwargs))
        return seen[-1]

    monkeypatch.setattr(PositionalEmbedding, "augment", spy)
    return seen
