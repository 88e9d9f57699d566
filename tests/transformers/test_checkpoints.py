"""Folders of weights: shards, the mark, weights of transformers' own Llama, PEFT."""

import json
import logging
import os

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import cape_plugins.transformers  # noqa: F401 - registers
from cape_plugins import Given, PositionalAttention, Variant, register_variant
from cape_plugins.attention import with_heads

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def saved(create, tmp_path):
    """variant → its model, and its folder."""

    def make(pos, **options):
        model = create(pos, **options)
        for parameter in model.parameters():
            parameter.data.add_(0.1 * torch.randn_like(parameter))
        model.save_pretrained(tmp_path)
        return model, tmp_path

    return make


def change(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@torch.no_grad()
def test_a_folder_of_shards_is_the_same_model(saved, tokens, tmp_path):
    model, _ = saved("relpos")
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert sum(name.endswith(".safetensors") for name in os.listdir(tmp_path)) > 1
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(again(tokens).logits, model(tokens).logits)


def test_a_folder_has_what_push_to_hub_uploads_and_no_code(saved):
    _, folder = saved("alibi")
    assert {*os.listdir(folder)} == {"config.json", "generation_config.json", "model.safetensors"}


@pytest.mark.parametrize(("pos", "other"), [("cape_rope", "rope"), ("nopos", "alibi")])
def test_another_variants_weights_are_refused(saved, create, pos, other):
    _, folder = saved(pos)
    change(folder, pos=other, **({"max_global_scale": 1.0} if other == "cape_rope" else {}))
    with pytest.raises(ValueError, match=f"{pos}.*{other}"):
        AutoModelForCausalLM.from_pretrained(folder)
    with pytest.raises(ValueError, match=pos):
        create(other).load_state_dict(create(pos).state_dict())


def test_an_option_that_changes_results_is_compared_and_one_of_training_told(saved, caplog):
    _, folder = saved("cape_rope", max_global_scale=1.2)
    change(folder, max_global_scale=1.4)
    with caplog.at_level(logging.WARNING):
        model = AutoModelForCausalLM.from_pretrained(folder)
    assert "max_global_scale" in caplog.text
    assert model.state_dict()["model.positions.mark.max_global_scale"] == pytest.approx(1.4)
    change(folder, frequency_scale=2.0)
    with pytest.raises(ValueError, match="frequency_scale"):
        AutoModelForCausalLM.from_pretrained(folder)


def test_a_mark_with_an_option_too_few_is_compared_by_the_others(saved):
    _, folder = saved("cape_rope", max_global_scale=1.2)
    weights = load_file(folder / "model.safetensors")
    del weights["model.positions.mark.max_local_shift"]  # as an older checkpoint may lack one
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert AutoModelForCausalLM.from_pretrained(folder)
    change(folder, frequency_scale=2.0)
    with pytest.raises(ValueError, match="frequency_scale"):
        AutoModelForCausalLM.from_pretrained(folder)


@torch.no_grad()
def test_weights_of_transformers_llama_load(sizes, tokens, tmp_path):
    from cape_plugins.transformers.models import CapeLlamaConfig, CapeLlamaForCausalLM

    stock = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
    stock.save_pretrained(tmp_path)
    config = CapeLlamaConfig.from_pretrained(tmp_path, pos="cape_rope", max_global_scale=1.2)
    model, info = CapeLlamaForCausalLM.from_pretrained(
        tmp_path, config=config, output_loading_info=True
    )
    assert not info["missing_keys"] | info["unexpected_keys"]
    torch.testing.assert_close(model.eval()(tokens).logits, stock(tokens).logits, rtol=0, atol=1e-5)
    assert model.state_dict()["model.positions.mark.max_global_scale"] == pytest.approx(1.2)


class Turns(PositionalAttention):
    """Rotary as half of all code has it: a buffer that is not saved, and no parameters."""

    def __post_init__(self):
        super().__post_init__()
        half = self.sizes.head_dim // 2
        self.register_buffer("inv_freq", 100.0 ** (-torch.arange(half) / half), persistent=False)

    def prepare(self, queries, keys, mask, dtype):
        rows = [one.nan_to_num(0.0)[..., :1] * self.inv_freq for one in (queries, keys)]
        return Given(*rows, with_heads(mask))

    def embed(self, x, rows):
        cos, sin = (torch.cat([of(rows[:, None])] * 2, -1) for of in (torch.cos, torch.sin))
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin


class Gains(Turns):
    """The same with a parameter, which is ½ at first."""

    def __post_init__(self):
        super().__post_init__()
        self.gain = torch.nn.Parameter(torch.full((1,), 0.5))
        self.register_buffer("kept", torch.ones(1))

    def embed(self, x, rows):
        return super().embed(x, rows) * self.gain


@pytest.fixture(autouse=True)
def registered(own_table):
    """Both have names while a test of this file runs."""
    register_variant("turns_unsaved", Variant(attends=Turns))
    register_variant("gains_unsaved", Variant(attends=Gains))


@pytest.mark.parametrize("pos", ["turns_unsaved", "gains_unsaved"])
@torch.no_grad()
def test_buffers_that_are_not_saved_have_their_numbers(saved, tokens, pos):
    model, folder = saved(pos)
    again = AutoModelForCausalLM.from_pretrained(folder).eval()
    torch.testing.assert_close(again(tokens).logits, model(tokens).logits)


def test_buffers_that_are_saved_stay_as_the_folder_has_them(create, tmp_path):
    model = create("gains_unsaved")
    model.model.layers[0].self_attn.positional.kept.fill_(0.25)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert [layer.self_attn.positional.kept.item() for layer in again.model.layers] == [0.25, 1.0]


def test_what_a_folder_has_not_begins_as_a_new_model(sizes, tmp_path):
    from cape_plugins.transformers.models import CapeLlamaConfig, CapeLlamaForCausalLM

    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(tmp_path)
    config = CapeLlamaConfig.from_pretrained(tmp_path, pos="gains_unsaved")
    model = CapeLlamaForCausalLM.from_pretrained(tmp_path, config=config)
    model.model.layers[1].self_attn.positional.gain.data.fill_(3.0)
    model.save_pretrained(tmp_path / "other")
    again = CapeLlamaForCausalLM.from_pretrained(tmp_path / "other")
    gains = [layer.self_attn.positional.gain.item() for layer in again.model.layers]
    assert gains == [0.5, 3.0]
    for layer in model.model.layers[:1]:
        assert layer.self_attn.positional.gain.item() == 0.5
        assert layer.self_attn.positional.inv_freq[0] == 1.0


@pytest.mark.parametrize(
    ("auto", "new"), [("QuestionAnswering", "qa_outputs"), ("SequenceClassification", "score")]
)
def test_a_language_models_folder_begins_any_head_which_transformers_draws(saved, auto, new):
    model, folder = saved("alibi")
    torch.manual_seed(0)
    head = getattr(transformers, f"AutoModelFor{auto}").from_pretrained(folder)
    assert torch.equal(head.model.embed_tokens.weight, model.model.embed_tokens.weight)
    spread = getattr(head, new).weight.std().item()
    assert spread == pytest.approx(0.15, rel=0.2)  # initializer_range


@pytest.mark.parametrize("auto", ["AutoModelForCausalLM", "AutoModelForTokenClassification"])
def test_a_base_model_is_built_once_and_keeps_checkpointing_of_gradients(create, monkeypatch, auto):
    built, init = [], transformers.LlamaModel.__init__
    monkeypatch.setattr(
        transformers.LlamaModel, "__init__", lambda self, c: (built.append(1), init(self, c))[1]
    )
    model = create("alibi", auto=auto, gradient_checkpointing=True)
    assert model.is_gradient_checkpointing
    assert all(layer.gradient_checkpointing for layer in model.model.layers)
    assert len(built) == 1


@torch.no_grad()
def test_half_precision_keeps_the_mark(saved):
    _, folder = saved("cape_rope", max_global_scale=1.2)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    mark = model.model.positions.mark.state_dict()
    assert mark["max_global_scale"] == torch.tensor(1.2)
    assert model.model.embed_tokens.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("pos", ["cape_rope", "alibi"])
def test_peft_adapts_and_loads(saved, tokens, tmp_path, pos):
    peft = pytest.importorskip("peft")
    _, folder = saved(pos)
    base = AutoModelForCausalLM.from_pretrained(folder)
    lora = peft.LoraConfig(target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(base, lora).train()
    model(input_ids=tokens, labels=tokens).loss.backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.data.add_(0.1 * torch.randn_like(parameter))
        assert ("lora" in name) == (parameter.grad is not None)
    model.save_pretrained(tmp_path / "adapter")
    base = AutoModelForCausalLM.from_pretrained(folder)
    again = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    with torch.no_grad():
        found, expected = again(input_ids=tokens).logits, model.eval()(input_ids=tokens).logits
    torch.testing.assert_close(found, expected)


@pytest.mark.release  # Trainer's start takes seconds
def test_trainer_resumes(create, tokens, tmp_path):
    pytest.importorskip("accelerate")
    rows = [dict(input_ids=row, labels=row) for row in tokens.repeat(4, 1)]

    def train(steps, resume=None):
        arguments = transformers.TrainingArguments(
            tmp_path,
            max_steps=steps,
            save_steps=2,
            per_device_train_batch_size=2,
            report_to=[],
            disable_tqdm=True,
            lr_scheduler_type="constant",
            use_cpu=True,
        )
        trainer = transformers.Trainer(create("cape_fire"), arguments, train_dataset=rows)
        trainer.train(resume_from_checkpoint=resume)
        return trainer.model.state_dict()

    whole, _ = train(4), train(2)
    resumed = train(4, tmp_path / "checkpoint-2")
    for name, value in whole.items():
        torch.testing.assert_close(resumed[name], value, msg=name)
