"""The optimizer radam, as fairseq builds it."""

import torch
from fairseq import optim
from omegaconf import OmegaConf

from cape_plugins.fairseq.paper.radam import FairseqRAdamConfig

NEW = torch.tensor([1.0, -2.0])


def build(weights, **options):
    """With options as fairseq's own adam has them."""
    config = OmegaConf.structured(FairseqRAdamConfig(lr=[0.1], **options))
    config._name = "radam"
    return optim.build_optimizer(config, [weights])


def test_it_takes_the_steps_of_torch():
    ours, theirs = (torch.nn.Parameter(NEW.clone()) for _ in range(2))
    optimizer = build(ours, adam_betas="(0.8, 0.98)", weight_decay=0.01)
    expected = torch.optim.RAdam(
        [theirs], lr=0.1, betas=(0.8, 0.98), weight_decay=0.01, decoupled_weight_decay=True
    )
    for step in range(10):
        for p, step_of in ((ours, optimizer), (theirs, expected)):
            step_of.zero_grad()
            (p.square() * (step + 1)).sum().backward()
            step_of.step()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert (ours != NEW).all()
    # fairseq asks this before --fp16 makes one tensor of all weights
    assert optimizer.supports_flat_params
