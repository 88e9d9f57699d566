"""By name: whatever is imported first, and nobody else waits."""

import sys

import pytest
from transformers.models.auto import modeling_auto

import cape_plugins.transformers as ours
from cape_support import run

AUTO = "from transformers import AutoConfig"
TABLE = "import transformers.models.auto.modeling_auto"
# transformers' table of models is imported, none of its models, and none of ours
IDLE = """
import sys
from transformers import AutoTokenizer
assert "cape_plugins.transformers" in sys.modules
assert not hasattr(sys.modules["transformers.models.cape_llama"], "__file__")  # is asked for
for name in ("transformers.modeling_utils", "cape_plugins.transformers.models", "timm"):
    assert name not in sys.modules, name
from transformers import AutoConfig
"""
BUILD = """
config = AutoConfig.for_model("cape_llama", vocab_size=9, hidden_size=8, num_attention_heads=2,
    num_hidden_layers=1, intermediate_size=8)
from transformers import AutoModelForCausalLM
print(type(AutoModelForCausalLM.from_config(config)).__name__)
"""


@pytest.mark.parametrize(
    ("first", "autoload"),
    [
        (IDLE, "1"),  # who asks for no model does not wait for ours
        (f"{TABLE}; {AUTO}", "1"),
        (f"{TABLE}, cape_plugins.transformers; {AUTO}", "0"),
        pytest.param(f"import torch; {AUTO}", "1", marks=pytest.mark.release),
    ],
    ids=["transformers first", "a table of models first", "too late", "torch first"],
)
def test_a_type_is_there_whatever_is_imported_first(first, autoload):
    status, said = run(sys.executable, "-c", first + BUILD, CAPE_PLUGINS_AUTOLOAD=autoload)
    assert status == 0, said
    assert said.split()[-1] == "CapeLlamaForCausalLM"


def test_tables_of_another_form_are_told_with_what_to_install(monkeypatch):
    monkeypatch.delattr(modeling_auto, "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES")
    with pytest.raises(ImportError, match=r"cape-plugins\[transformers\]"):
        ours.register()
    with pytest.raises(AttributeError, match="nothing"):
        _ = ours.nothing


@pytest.mark.release
def test_without_cape_plugins_a_folder_is_refused(create, tmp_path):
    create("alibi").save_pretrained(tmp_path)
    load = f"import transformers as t; t.AutoModelForCausalLM.from_pretrained({str(tmp_path)!r})"
    assert run(sys.executable, "-c", load)[0] == 0
    status, said = run(sys.executable, "-c", load, CAPE_PLUGINS_AUTOLOAD="0")
    assert status != 0
    assert "cape_llama" in said
