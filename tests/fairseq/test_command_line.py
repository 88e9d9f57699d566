"""fairseq's own commands, on a small corpus, with the architecture given by name alone."""

import re
import shutil
from argparse import Namespace

import numpy as np
import pytest
import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task

from cape_plugins.mark import variant_of
from cape_support import ROOT
from fairseq_support import PAIRS, TRAIN, call, preprocess, ratio, run, train

USER_DIR = f"{ROOT}/integrations/fairseq/user_dir"

# beam 1: a wider beam stops at its first two hypotheses, however bad
READ = "--cpu --beam 1 --required-batch-size-multiple 1"

TASK_WITH_BOS = """
from fairseq.data import PrependTokenDataset
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask

@register_task("translation_with_bos", dataclass=TranslationConfig)
class TranslationWithBos(TranslationTask):
    def load_dataset(self, split, **options):
        super().load_dataset(split, **options)
        pairs = self.datasets[split]
        pairs.src = PrependTokenDataset(pairs.src, self.source_dictionary.bos())
        assert pairs[0]["source"][0] == self.source_dictionary.bos()
        print("the source begins with BOS")
"""


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """A model that knows the corpus by heart: the folder of its checkpoints."""
    folder = tmp_path_factory.mktemp("trained")
    flags = "--max-update 320 --lr-scheduler polynomial_decay --total-num-update 320"
    train(data, folder, f"{flags} --save-interval 80 --validate-interval 80")
    return folder


def translate(line, folder, *checkpoints, text=""):
    """fairseq-generate or -interactive translates every sentence; its output."""
    paths = ":".join(str(folder / f"checkpoint_{name}.pt") for name in checkpoints)
    output = run(f"{line} {READ} --path {paths}", text=text)
    found = re.findall(r"^H-(\d+)\t\S+\t(.*)$", output, flags=re.MULTILINE)
    assert {int(number): text for number, text in found} == dict(enumerate(de for _, de in PAIRS))
    return output


def test_generation_needs_no_training_set(data, trained, tmp_path):
    # what it needs of it is in the checkpoint
    elsewhere = shutil.copytree(data, tmp_path / "data", ignore=shutil.ignore_patterns("train.*"))
    translate(f"fairseq-generate {elsewhere}", trained, "best")


def test_the_user_dir_goes_with_autoload_and_two_checkpoints_with_each_other(data, trained):
    translate(f"fairseq-generate {data} --user-dir {USER_DIR}", trained, "best", "last")


def test_interactive_translates_what_it_reads(data, trained):
    text = "".join(en + "\n" for en, _ in PAIRS)
    line = f"fairseq-interactive {data} -s en -t de --buffer-size 3 --batch-size 3"
    translate(line, trained, "best", text=text)


def test_a_task_that_prepends_bos_itself_gives_the_same(data, trained, tmp_path):
    user_dir = tmp_path / "bos_task"
    user_dir.mkdir()
    (user_dir / "__init__.py").write_text(TASK_WITH_BOS)
    flags = f"--user-dir {user_dir} --task translation_with_bos"
    output = translate(f"fairseq-generate {data} {flags}", trained, "best")
    assert "the source begins with BOS" in output


def test_validate_finds_a_small_loss(data, trained):
    flags = "--cpu --batch-size 10 --log-format simple --required-batch-size-multiple 1"
    flags += " --task translation"  # which fairseq-validate wants for any model
    output = run(f"fairseq-validate {data} --path {trained}/checkpoint_best.pt {flags}")
    (loss,) = re.findall(r"valid on 'valid' subset.*nll_loss[ =]([\d.]+)", output)
    assert float(loss) < 0.5


def test_the_hub_interface_translates(data, trained):
    from fairseq.models import MODEL_REGISTRY

    hub = MODEL_REGISTRY["cape_transformer"].from_pretrained
    model = hub(str(trained), "checkpoint_best.pt", str(data))
    assert [model.translate(en, beam=1) for en, _ in PAIRS[:3]] == [de for _, de in PAIRS[:3]]


def test_a_checkpoint_holds_plain_types_and_the_counted_source_scale(trained):
    state = torch.load(trained / "checkpoint_last.pt", weights_only=True)
    model = state["cfg"]["model"]
    assert model["source_scale"] == pytest.approx(ratio(PAIRS))
    assert (model["pos"], model["max_global_shift"]) == ("cape", 5.0)


FIRE = """--pos-options '{"fire_width":8}'"""


@pytest.mark.parametrize("flags", ["relpos_first", "cape_alibi", "random", f"fire {FIRE}"])
def test_each_variant_trains_and_is_validated_by_bleu(data, tmp_path, flags):
    bleu = """--eval-bleu --eval-bleu-args '{"beam": 1, "max_len_b": 9}'"""
    state, output = train(data, tmp_path, f"--pos {flags} --max-update 4 {bleu}")
    model = state["cfg"]["model"]
    assert model["pos"] == flags.split()[0]
    assert model["pos_options"] == ('{"fire_width":8}' if "fire" in flags else None)
    assert state["extra_state"]["val_loss"] > 0
    assert re.search(r"valid on 'valid' subset.*\| bleu ", output)
    # its counts are arrays, which torch ≥ 2.6 does not load (``train`` has, by registration)
    found = [meter[3] for meters in state["extra_state"]["metrics"].values() for meter in meters]
    assert any(isinstance(one.get("sum"), np.ndarray) for one in found)


def test_resuming_within_an_epoch_gives_the_weights_of_an_uninterrupted_training(data, tmp_path):
    # (at the end of an epoch fairseq-fixed orders sentences differently after a restart)
    flags = "--disable-validation --batch-size 2 --max-update"
    once, _ = train(data, tmp_path / "once", f"{flags} 4")
    train(data, tmp_path / "twice", f"{flags} 2")
    twice, _ = train(data, tmp_path / "twice", f"{flags} 4")
    for name, weights in once["model"].items():
        torch.testing.assert_close(twice["model"][name], weights, rtol=0, atol=1e-6)


def test_a_checkpoint_that_holds_a_namespace_is_translated_with_and_trained_on(tmp_path):
    """Options of this task and of some optimizers are one, which torch ≥ 2.6 does not load."""
    data = preprocess(tmp_path, PAIRS, "--joined-dictionary")
    task = "--task translation_multi_simple_epoch --langs en,de --lang-pairs en-de"
    flags = f"{task} --source-scale 1.03 --optimizer adamax"
    path = f"{tmp_path}/first/checkpoint_last.pt"
    line = f"fairseq-train {data} {TRAIN} {flags}".replace("\n", " ")
    run(f"{line} --save-dir {tmp_path}/first --max-update 1")
    stored = torch.load(path, weights_only=True)["cfg"]
    assert isinstance(stored["task"], Namespace)
    assert isinstance(stored["optimizer"], Namespace)
    said = run(f"fairseq-generate {data} {task} -s en -t de {READ} --path {path}")
    assert "Translated 10 sentences" in said
    said = run(f"{line} --save-dir {tmp_path}/on --finetune-from-model {path} --max-update 1")
    assert "done training" in said


@pytest.mark.parametrize("command", ["fairseq-train", "fairseq-hydra-train"])
@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("max_global_scale", 0.5, "max_global_scale"),
        ("pos", "sinpos", "--pos cape.*--pos sinpos"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_before_data_are_read(
    data, trained, tmp_path, command, option, value, named
):
    if command == "fairseq-train":
        flags = f"/nowhere {TRAIN} --{option.replace('_', '-')} {value} --save-dir {trained}"
    else:
        flags = (
            f"--config-dir {ROOT}/configs/fairseq --config-name wmt14_en_de_18l task.data={data} "
            "common.cpu=true common.fp16=false model.share_all_embeddings=false "
            f"hydra.run.dir={tmp_path} checkpoint.save_dir={trained} model.{option}={value} "
        ) + ("" if option == "pos" else "model.pos=cape")
    assert_one_line(f"{command} {flags}", named)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ("{'max_global_shift': -1}", "max_global_shift"),
        ("{'pos': 'sinpos', 'source_scale': 0}", "--pos cape.* sinpos"),
    ],
)
def test_wrong_overrides_of_a_model_are_said_in_one_line(data, trained, overrides, named):
    line = f"fairseq-generate {data} --path {trained}/checkpoint_last.pt {READ}"
    assert_one_line(f'{line} --model-overrides "{overrides}"', named)


def assert_one_line(line, named):
    status, output = call(line)
    assert status == 2, output
    assert re.search(rf"^{line.split()[0]}: error: .*{named}", output.splitlines()[-1])
    assert "Traceback" not in output


@pytest.fixture(scope="module")
def stock(data, tmp_path_factory):
    """The folder of a training of fairseq's own Transformer, without positions."""
    folder = tmp_path_factory.mktemp("stock")
    line = TRAIN.replace("cape_transformer_tiny", "transformer_tiny").replace("\n", " ")
    flags = f"--no-token-positional-embeddings --max-update 3 --save-dir {folder}"
    run(f"fairseq-train {data} {line} {flags}")
    return folder


# what an encoder layer of fairseq 0.12.2 stores a second time, and today's does not
COPY = re.compile(r"encoder\.layers\.\d\.(in_proj|out_proj|fc1|fc2)_(weight|bias)")


def test_fine_tuning_starts_from_the_weights_of_fairseqs_own_transformer(data, stock, tmp_path):
    """Without positions, and at a learning rate of 0, the weights then are the same to the bit."""
    checkpoint = torch.load(stock / "checkpoint_last.pt", weights_only=False)
    theirs = {k: v for k, v in checkpoint["model"].items() if not COPY.fullmatch(k)}
    for copy in ("in_proj_weight", "out_proj_bias", "fc1_weight", "fc2_bias"):
        checkpoint["model"][f"encoder.layers.0.{copy}"] = torch.zeros(2)
    torch.save(checkpoint, tmp_path / "stock.pt")
    flags = f"--pos nopos --finetune-from-model {tmp_path}/stock.pt --max-update 1 --lr 0"
    ours, said = train(data, tmp_path / "ours", flags)
    assert "no --pos" in said
    for name, value in theirs.items():
        assert torch.equal(ours["model"][name], value), name
    expected = evaluate(stock / "checkpoint_last.pt", data)
    assert torch.equal(evaluate(tmp_path / "ours" / "checkpoint_last.pt", data), expected)


def test_fine_tuning_starts_from_the_weights_of_another_pos_and_resumes_as_itself(data, tmp_path):
    """At a learning rate of 0 the weights then are the same, but for what is about positions."""
    theirs, _ = train(data, tmp_path / "theirs", "--pos abspos --max-update 1")
    start = f"--finetune-from-model {tmp_path}/theirs/checkpoint_last.pt --lr 0"
    flags = f"--pos relpos {start} --max-update"
    ours, said = train(data, tmp_path / "ours", f"{flags} 1")
    assert "--pos abspos" in said
    same = [name for name in theirs["model"] if ".positions." not in name]
    assert len(same) > 60
    for name in same:
        assert torch.equal(ours["model"][name], theirs["model"][name]), name
    assert variant_of(ours["model"]) == "relpos"
    again, said = train(data, tmp_path / "ours", f"{flags} 2")  # its own checkpoint comes first
    assert "--pos abspos" not in said
    name = "decoder.layers.1.self_attn.positional.keys"
    assert torch.equal(again["model"][name], ours["model"][name])
    assert_one_line(
        f"fairseq-train {data} {TRAIN} --pos cape {start} --save-dir {tmp_path}/ours".replace(
            "\n", " "
        ),
        "--pos relpos.*--pos cape.*--finetune-from-model",
    )


def evaluate(path, data):
    """Logits of a checkpoint, loaded by fairseq, for a padded batch of the corpus."""
    (model,), _, task = load_model_ensemble_and_task([str(path)], {"data": str(data)})
    task.load_dataset("test")
    pairs = task.dataset("test")
    batch = pairs.collater([pairs[i] for i in range(len(pairs))])
    with torch.no_grad():
        return model.eval()(**batch["net_input"])[0]


@pytest.mark.parametrize("way", ["--save-dir {}", "--restore-file {}/checkpoint_last.pt"])
def test_training_does_not_go_on_from_fairseqs_own_transformer(data, stock, way, tmp_path):
    way = way.replace("{}", str(stock))
    if "--save-dir" not in way:
        way += f" --save-dir {tmp_path}"
    status, said = call(f"fairseq-train {data} {TRAIN} --pos cape {way}".replace("\n", " "))
    assert status == 2
    assert "--pos cape" in said.splitlines()[-1]
    assert "Traceback" not in said
