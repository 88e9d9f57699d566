"""cape_transformer_lm: the decoder alone, which draws for itself."""

import math
import re

import pytest
import torch

from fairseq_support import PAIRS, run

EOS = 2
TOKENS = torch.tensor([[EOS, 10, 11, 12, 13], [EOS, 14, 15, 16, 17], [EOS, 9, 8, 7, 6]])


def test_training_draws_one_shift_and_scale_for_each_sample(build_lm, seen_positions):
    build_lm(train=True, max_local_shift=0.0, max_global_scale=2.0)(TOKENS)
    (positions,) = seen_positions
    first, scale = positions[:, :1], positions[:, 1:2] - positions[:, :1]
    assert scale.unique().numel() == first.unique().numel() == 3
    torch.testing.assert_close(positions, first + scale * torch.arange(5.0))
    assert (first / scale).abs().max() <= 5


def test_normformer_of_fairseq_goes_with_relative_attention_and_admin(build_lm):
    scales = dict(scale_fc=True, scale_attn=True, scale_heads=True, scale_resids=True)
    model = build_lm("relpos", train=True, admin_init=True, admin_scales="1,1.5,2,2.5", **scales)
    model(TOKENS)[0].square().sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


def test_the_longest_sample_follows_from_the_task(build_lm):
    model = build_lm("abspos")
    assert model.max_positions() == 8
    with pytest.raises(ValueError, match="abspos"):
        model(torch.full((1, 9), 5))


@pytest.mark.release
def test_it_trains_and_is_scored_by_fairseq_eval_lm(tmp_path):
    # on the way: post-norm with ADMIN, radam, and resuming with the scales of the checkpoint
    text, data = tmp_path / "text", tmp_path / "bin"
    text.write_text("".join(de + "\n" for _, de in PAIRS))
    files = f"--trainpref {text} --validpref {text} --testpref {text} --destdir {data}"
    run(f"fairseq-preprocess --only-source {files}")
    samples = "--sample-break-mode complete --tokens-per-sample 12 --required-batch-size-multiple 1"
    train = f"""
        fairseq-train {data} --task language_modeling --arch cape_transformer_lm --cpu {samples}
        --decoder-layers 2 --decoder-embed-dim 32 --decoder-ffn-embed-dim 64
        --decoder-attention-heads 2 --dropout 0 --admin-init --optimizer radam --lr 0.01
        --adam-betas '(0.9, 0.98)' --lr-scheduler inverse_sqrt --warmup-updates 10 --num-workers 0
        --batch-size 5 --save-dir {tmp_path} --no-epoch-checkpoints --disable-validation
    """
    first = run(f"{train} --max-update 40")
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
    scales = state["cfg"]["model"]["admin_scales"]
    assert f"admin_scales: {scales}" in first
    assert (scales[:2], scales.count(",")) == ("1,", 3)
    again = run(f"{train} --max-update 80 --seed 5")  # would measure something else
    assert f"admin_scales: {scales}" in again
    path = f"--path {tmp_path}/checkpoint_last.pt"
    scored = run(f"fairseq-eval-lm {data} {path} --cpu --batch-size 10 {samples}")
    (loss,) = re.findall(r"Loss \(base 2\): ([\d.]+)", scored)
    assert float(loss) * math.log(2) < 1.5  # a uniform guess of 30 words: 3.4
