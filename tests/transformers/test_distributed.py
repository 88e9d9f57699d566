"""Two processes of Trainer, hence of accelerate: each has positions of its own, weights are one."""

import re
import sys

import pytest

from cape_support import run

pytestmark = pytest.mark.release

PROGRAM = """
import sys, torch, transformers
transformers.set_seed(0)
config = transformers.AutoConfig.for_model("cape_llama", pos=sys.argv[1], vocab_size=97,
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
model = transformers.AutoModelForCausalLM.from_config(config)
seen = []
def note(module, given, out):
    rows = out[1].queries if out[1].bias is None else out[1].bias.clamp(min=-1e3)
    seen.append(round(float(rows.abs().sum()), 3))
model.model.positions.register_forward_hook(note)
rows = [dict(input_ids=torch.arange(1, 17), labels=torch.arange(1, 17))] * 8
arguments = transformers.TrainingArguments(sys.argv[2], max_steps=2, report_to=[], use_cpu=True,
    per_device_train_batch_size=2, disable_tqdm=True, ddp_backend="gloo", save_strategy="no")
transformers.Trainer(model, arguments, train_dataset=rows).train()
total = sum(one.double().sum().item() for one in model.parameters())
print(f"rank {arguments.process_index}: {seen} {total:.9f};", flush=True)
"""


@pytest.mark.parametrize("pos", ["cape_rope", "cape_alibi"])
def test_each_process_draws_its_own_positions(pos, tmp_path):
    pytest.importorskip("accelerate")
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    two = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    status, said = run(sys.executable, *two, str(script), pos, str(tmp_path / "out"))
    assert status == 0, said
    (first, weights), (second, others) = re.findall(r"rank \d: (\[.*?\]) (\S+);", said)
    assert first != second
    assert weights == others
