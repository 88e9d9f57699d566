"""By name: whatever is imported first, and nobody else waits."""

import os
import subprocess
import sys

import pytest

FIRST = {
    "transformers first": "from transformers import AutoConfig",
    "torch first": "import torch; from transformers import AutoConfig",
    "a table of models first": "import transformers.models.auto.modeling_auto; "
    "from transformers import AutoConfig",
    "explicitly": "import cape_plugins.transformers; from transformers import AutoConfig",
    "too late": "import transformers.models.auto.modeling_auto, cape_plugins.transformers; "
    "from transformers import AutoConfig",
}
# transformers' table of models is imported, none of its models, and none of ours
IDLE = """
import sys
from transformers import AutoTokenizer
assert "cape_plugins.transformers" in sys.modules
for name in ("transformers.modeling_utils", "cape_plugins.transformers.models", "timm"):
    assert name not in sys.modules, name
"""
BUILD = """
config = AutoConfig.for_model("cape_llama", vocab_size=9, hidden_size=8, num_attention_heads=2,
    num_hidden_layers=1, intermediate_size=8)
from transformers import AutoModelForCausalLM
print(type(AutoModelForCausalLM.from_config(config)).__name__)
"""


def python(program, **environment):
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
    )


@pytest.mark.parametrize(
    "first",
    [
        "transformers first",
        *(pytest.param(one, marks=pytest.mark.release) for one in list(FIRST)[1:]),
    ],
)
def test_a_type_is_there_whatever_is_imported_first(first):
    off = {} if "first" in first else {"CAPE_PLUGINS_AUTOLOAD": "0"}
    run = python(FIRST[first] + BUILD, **off)
    assert run.stdout.strip() == "CapeLlamaForCausalLM", run.stderr


def test_who_asks_for_no_model_does_not_wait_for_ours():
    run = python(IDLE)
    assert run.returncode == 0, run.stderr


@pytest.mark.release
def test_without_cape_plugins_a_folder_is_refused(create, tmp_path):
    create("alibi").save_pretrained(tmp_path)
    program = (
        f"from transformers import AutoModelForCausalLM as A; A.from_pretrained({str(tmp_path)!r})"
    )
    assert python(program).returncode == 0
    refused = python(program, CAPE_PLUGINS_AUTOLOAD="0")
    assert refused.returncode != 0
    assert "cape_llama" in refused.stderr
