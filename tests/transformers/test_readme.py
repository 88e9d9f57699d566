"""README's code for transformers runs, on a tiny Llama in a folder of the name that it has."""

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from cape_support import ROOT, block_with


def test_readmes_model_changes_in_training_alone(sizes, tokens, tmp_path, monkeypatch):
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(tmp_path / "llama")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(block_with(ROOT / "README.md", "augment_positions", "python"), names)
    model, stock = names["model"].eval(), AutoModelForCausalLM.from_pretrained("llama").eval()
    assert torch.equal(model(tokens).logits, stock(tokens).logits)
    assert not torch.equal(model.train()(tokens).logits, stock(tokens).logits)
