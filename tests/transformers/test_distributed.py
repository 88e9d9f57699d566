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


SPLIT = """
import sys, torch, transformers
from transformers.distributed import DistributedConfig
torch.distributed.init_process_group("gloo")
rank, ids = torch.distributed.get_rank(), torch.arange(1, 17)[None]
sizes = dict(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2)
for pos in ("rope", "cape_rope", "alibi"):
    transformers.set_seed(0)
    config = transformers.AutoConfig.for_model(
        "cape_llama", pos=pos, num_attention_heads=4, **sizes)
    whole = transformers.AutoModelForCausalLM.from_config(config).eval()
    folder = f"{sys.argv[1]}/{pos}"
    if rank == 0:
        whole.save_pretrained(folder)
    torch.distributed.barrier()
    said = ""
    try:
        split = transformers.AutoModelForCausalLM.from_pretrained(
            folder, distributed_config=DistributedConfig(tp_size=2))
        found, expected = split.eval()(ids).logits, whole(ids).logits
        found = found.full_tensor() if hasattr(found, "full_tensor") else found
        said = f"off by {(found - expected).abs().max().item():.0e}; "
        split.train()(ids)
        said += "trains"
    except ValueError as error:
        said += f"refused: {error}"
    print(f"RANK{rank} {pos} {said}", flush=True)
"""


def test_tensor_parallelism_is_right_or_refused(tmp_path):
    """Ranks share each sample: what is drawn, or added to the scores of all heads, is refused."""
    script = tmp_path / "split.py"
    script.write_text(SPLIT)
    two = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    status, said = run(sys.executable, *two, str(script), str(tmp_path))
    assert status == 0, said
    for rank in (0, 1):
        found = {pos: re.search(rf"RANK{rank} {pos} (.*)", said)[1] for pos in POS}
        for pos in POS[:2]:
            assert float(re.match("off by (.*?);", found[pos])[1]) < 1e-4
        assert found["rope"].endswith("trains")
        assert re.search("refused: .* data parallelism or FSDP", found["cape_rope"])
        assert re.search("refused: .*has no `tp_plan`", found["alibi"])


POS = ("rope", "cape_rope", "alibi")
