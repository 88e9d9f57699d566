"""cape_transformer_lm: the decoder alone, which draws for itself."""

import math
import re
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("fairseq")

from fairseq.models import MODEL_REGISTRY
from omegaconf import OmegaConf

from cape_plugins.fairseq.config import CapeTransformerLanguageModelConfig
from cape_plugins.variants import get, names

EOS = 2
VARIANTS = names(1)
TOKENS = torch.tensor([[EOS, 10, 11, 12, 13], [EOS, 14, 15, 16, 17], [EOS, 9, 8, 7, 6]])


@pytest.fixture
def build_lm(dictionary):
    def build_model(pos="cape", *, train=False, **options):
        sizes = dict(embed_dim=16, input_dim=16, output_dim=16, ffn_embed_dim=32, layers=2)
        sizes = {f"decoder_{k}": v for k, v in {**sizes, "attention_heads": 2}.items()}
        config = CapeTransformerLanguageModelConfig(pos=pos, **{"dropout": 0.0, **sizes, **options})
        task = dict(add_bos_token=False, tokens_per_sample=8, max_target_positions=None)
        whole = OmegaConf.create(
            {"model": OmegaConf.structured(config), "task": task, "common": {"tpu": False}}
        )
        torch.manual_seed(0)
        model = MODEL_REGISTRY["cape_transformer_lm"].build_model(
            whole.model, SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
        )
        return model.train(train)

    return build_model


def test_training_draws_one_shift_and_scale_for_each_sample(build_lm, seen_positions):
    model = build_lm(train=True, max_local_shift=0.0, max_global_scale=2.0)
    model(TOKENS)
    (positions,) = seen_positions
    scale = positions[:, 1] - positions[:, 0]
    assert scale.unique().numel() == positions[:, 0].unique().numel() == 3
    expected = positions[:, :1] + scale[:, None] * torch.arange(5.0)
    torch.testing.assert_close(positions, expected)
    assert (positions[:, 0] / scale).abs().max() <= 5


def test_evaluation_places_tokens_at_integers(build_lm, seen_positions):
    build_lm()(TOKENS)
    torch.testing.assert_close(seen_positions[0], torch.arange(5.0).expand(3, 5))


@pytest.mark.parametrize("pos", VARIANTS)
def test_step_by_step_equals_full_and_the_future_is_not_seen(build_lm, pos):
    model = build_lm(pos, **({"relpos_context": 2} if "relpos_context" in get(pos).options else {}))
    full = model(TOKENS)[0]
    state = {}
    for step in range(1, TOKENS.shape[1] + 1):
        prefix = TOKENS[:, :step]
        last = model.decoder(prefix, incremental_state=state)[0]
        torch.testing.assert_close(last[:, 0], full[:, step - 1], rtol=0, atol=1e-5)
        torch.testing.assert_close(model(prefix)[0], full[:, :step], rtol=0, atol=1e-5)


@pytest.mark.parametrize("pos", VARIANTS)
def test_all_parameters_get_a_gradient(build_lm, pos):
    model = build_lm(pos, train=True)
    model(TOKENS)[0].square().sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("pos", ["cape", "relpos"])
def test_normformer_of_fairseq_goes_with_relative_attention_and_admin(build_lm, pos):
    scales = dict(scale_fc=True, scale_attn=True, scale_heads=True, scale_resids=True)
    model = build_lm(pos, train=True, admin_init=True, admin_scales="1,1.5,2,2.5", **scales)
    model(TOKENS)[0].square().sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


def test_the_longest_sample_follows_from_the_task(build_lm):
    model = build_lm("abspos")
    assert model.max_positions() == 8
    with pytest.raises(ValueError, match="abspos has positions 0 … 7"):
        model(torch.full((1, 9), 5))


def test_kinds_of_embeddings_of_fairseq_go_with_it(build_lm):
    model = build_lm(
        adaptive_input=True,
        adaptive_input_cutoff="10,20",
        adaptive_softmax_cutoff="10,20",
        tie_adaptive_weights=True,
        relpos_context=3,
        pos="relpos",
    )
    assert type(model.decoder.embed_tokens).__name__ == "AdaptiveInput"
    assert model.decoder.adaptive_softmax is not None
    assert len(model.decoder.layers) == 2
    build_lm(character_embeddings=True)(TOKENS[:, :2])


@pytest.fixture(scope="module")
def text(tmp_path_factory, pairs, run):
    folder = tmp_path_factory.mktemp("text")
    (folder / "text").write_text("".join(de + "\n" for _, de in pairs))
    run(
        *("fairseq-preprocess", "--only-source", "--destdir", folder / "bin"),
        *("--trainpref", folder / "text", "--validpref", folder / "text"),
        *("--testpref", folder / "text"),
    )
    return folder / "bin"


def test_it_trains_and_is_scored_by_fairseq_eval_lm(text, run, tmp_path):
    # on the way: post-norm with ADMIN, radam, and resuming with the scales of the checkpoint
    train = (
        *("fairseq-train", text, "--task", "language_modeling", "--arch", "cape_transformer_lm"),
        *("--decoder-layers", 2, "--decoder-embed-dim", 32, "--decoder-ffn-embed-dim", 64),
        *("--decoder-attention-heads", 2, "--tokens-per-sample", 12, "--dropout", 0, "--cpu"),
        *(
            "--sample-break-mode",
            "complete",
            "--batch-size",
            5,
            "--save-dir",
            tmp_path,
            "--admin-init",
        ),
        *("--optimizer", "radam", "--adam-betas", "(0.9, 0.98)", "--lr", 0.01),
        *("--lr-scheduler", "inverse_sqrt", "--warmup-updates", 10, "--num-workers", 0),
        *("--no-epoch-checkpoints", "--disable-validation", "--required-batch-size-multiple", 1),
    )
    first = run(*train, "--max-update", 40).stdout
    scales = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)["cfg"]["model"][
        "admin_scales"
    ]
    assert f"ADMIN: residual scales {scales}" in first
    assert len(scales.split(",")) == 4
    assert scales.startswith("1,")
    again = run(*train, "--max-update", 80, "--seed", 5).stdout  # would measure something else
    assert f"ADMIN: residual scales {scales}" in again
    scored = run(
        *("fairseq-eval-lm", text, "--path", tmp_path / "checkpoint_last.pt", "--cpu"),
        *(
            "--batch-size",
            10,
            "--sample-break-mode",
            "complete",
            "--required-batch-size-multiple",
            1,
        ),
        *("--tokens-per-sample", 12),
    ).stdout
    (loss,) = re.findall(r"Loss \(base 2\): ([\d.]+)", scored)
    assert float(loss) * math.log(2) < 1.5  # a uniform guess of 30 words: 3.4


def test_options_of_a_source_are_refused(text, run, tmp_path):
    failed = run(
        *("fairseq-train", text, "--task", "language_modeling", "--arch", "cape_transformer_lm"),
        *("--source-scale", 1.1, "--save-dir", tmp_path, "--cpu"),
        check=False,
    )
    assert failed.returncode
    assert "unrecognized arguments: --source-scale 1.1" in failed.stdout
