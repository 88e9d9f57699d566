"""fairseq's own commands, on a small corpus, with the architecture given by name alone."""

import re
import shutil

import pytest
import torch

pytest.importorskip("fairseq")

ROOT = __file__.rsplit("/tests/", 1)[0]
USER_DIR = f"{ROOT}/integrations/fairseq/user_dir"

TRAIN = (
    *("--encoder-normalize-before", "--decoder-normalize-before", "--dropout", 0, "--cpu"),
    *("--optimizer", "adam", "--lr", 0.005, "--criterion", "label_smoothed_cross_entropy"),
    *("--batch-size", 5, "--num-workers", 0, "--log-format", "simple", "--seed", 3),
    # else fairseq-fixed drops the rest of a batch that 8 does not divide
    *("--no-epoch-checkpoints", "--required-batch-size-multiple", 1),
)
# beam 1: a wider beam stops at its first two hypotheses, however bad
READ = ("--cpu", "--beam", 1, "--required-batch-size-multiple", 1)

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
def trained(data, run, tmp_path_factory):
    """A model that knows the corpus by heart: the folder of its checkpoints."""
    folder = tmp_path_factory.mktemp("trained")
    run(
        *("fairseq-train", data, "--arch", "cape_transformer_tiny", "--save-dir", folder),
        *("--max-update", 320, "--save-interval", 80, "--validate-interval", 80, *TRAIN),
        *("--lr-scheduler", "polynomial_decay", "--total-num-update", 320),
    )
    return folder


def hypotheses(output):
    """Sentence number → translation, from the output of fairseq-generate or -interactive."""
    found = re.findall(r"^H-(\d+)\t\S+\t(.*)$", output, flags=re.MULTILINE)
    return {int(number): text for number, text in found}


def test_train_then_generate_translates_every_sentence(data, pairs, run, trained):
    # the training set is moved away: what generation needs of it is in the checkpoint
    elsewhere = trained.parent / "without-training-set"
    shutil.copytree(data, elsewhere, ignore=shutil.ignore_patterns("train.*"))
    output = run(
        "fairseq-generate", elsewhere, "--path", trained / "checkpoint_best.pt", *READ
    ).stdout
    assert hypotheses(output) == {i: de for i, (_, de) in enumerate(pairs)}


def test_interactive_translates_what_it_reads(data, pairs, run, trained):
    output = run(
        *("fairseq-interactive", data, "--path", trained / "checkpoint_best.pt", *READ),
        *("-s", "en", "-t", "de", "--buffer-size", 3, "--batch-size", 3),
        text="".join(en + "\n" for en, _ in pairs),
    ).stdout
    assert hypotheses(output) == {i: de for i, (_, de) in enumerate(pairs)}


def test_validate_finds_a_small_loss(data, run, trained):
    output = run(
        *("fairseq-validate", data, "--path", trained / "checkpoint_best.pt", "--cpu"),
        *("--batch-size", 10, "--log-format", "simple", "--required-batch-size-multiple", 1),
        *("--task", "translation"),  # which fairseq-validate wants for any model
    ).stdout
    (loss,) = re.findall(r"valid on 'valid' subset.*nll_loss[ =]([\d.]+)", output)
    assert float(loss) < 0.5


def test_the_hub_interface_translates(data, pairs, trained):
    from fairseq.models import MODEL_REGISTRY

    model = MODEL_REGISTRY["cape_transformer"].from_pretrained(
        str(trained), "checkpoint_best.pt", str(data)
    )
    assert [model.translate(en, beam=1) for en, _ in pairs[:3]] == [de for _, de in pairs[:3]]


def test_a_checkpoint_holds_plain_types_and_the_counted_source_scale(pairs, trained):
    state = torch.load(trained / "checkpoint_last.pt", weights_only=True)
    model = state["cfg"]["model"]
    source = sum(len(en.split()) + 1 for en, _ in pairs)
    target = sum(len(de.split()) + 1 for _, de in pairs)
    assert model["source_scale"] == pytest.approx(target / source)
    assert (model["pos"], model["max_global_shift"]) == ("cape", 5.0)


def test_resuming_within_an_epoch_gives_the_weights_of_an_uninterrupted_training(
    data, run, tmp_path
):
    # (at the end of an epoch fairseq-fixed orders sentences differently after a restart)
    def train(folder, updates):
        run(
            *("fairseq-train", data, "--arch", "cape_transformer_tiny", *TRAIN, "--batch-size", 2),
            *("--save-dir", tmp_path / folder, "--max-update", updates, "--disable-validation"),
        )
        return torch.load(tmp_path / folder / "checkpoint_last.pt", weights_only=True)

    once = train("once", 4)
    train("twice", 2)
    twice = train("twice", 4)
    for name, weights in once["model"].items():
        torch.testing.assert_close(twice["model"][name], weights, rtol=0, atol=1e-6)


def test_the_user_dir_works_without_autoload(data, pairs, run, tmp_path):
    off = {"CAPE_PLUGINS_AUTOLOAD": "0"}
    refused = run("fairseq-train", data, "--arch", "cape_transformer_tiny", check=False, **off)
    assert "invalid choice: 'cape_transformer_tiny'" in refused.stdout
    run(
        *("fairseq-train", data, "--user-dir", USER_DIR, "--arch", "cape_transformer_tiny"),
        *("--pos", "sinpos", "--max-epoch", 1, "--save-dir", tmp_path, *TRAIN),
        **off,
    )
    output = run(
        *("fairseq-generate", data, "--user-dir", USER_DIR, *READ),
        *("--path", tmp_path / "checkpoint_last.pt"),
        **off,
    ).stdout
    assert len(hypotheses(output)) == len(pairs)


def test_the_user_dir_goes_together_with_autoload(data, pairs, run, trained):
    output = run(
        *("fairseq-generate", data, "--user-dir", USER_DIR, *READ),
        *("--path", trained / "checkpoint_best.pt"),
    ).stdout
    assert hypotheses(output) == {i: de for i, (_, de) in enumerate(pairs)}


def test_a_task_that_prepends_bos_itself_gives_the_same(data, pairs, run, trained):
    user_dir = trained.parent / "bos_task"
    user_dir.mkdir()
    (user_dir / "__init__.py").write_text(TASK_WITH_BOS)
    output = run(
        *("fairseq-generate", data, "--user-dir", user_dir, "--task", "translation_with_bos"),
        *("--path", trained / "checkpoint_best.pt", *READ),
    ).stdout
    assert "the source begins with BOS" in output
    assert hypotheses(output) == {i: de for i, (_, de) in enumerate(pairs)}


def test_two_checkpoints_translate_together_under_our_name_of_the_task(data, pairs, run, trained):
    paths = f"{trained / 'checkpoint_best.pt'}:{trained / 'checkpoint_last.pt'}"
    output = run(
        "fairseq-generate", data, "--task", "cape_translation", "--path", paths, *READ
    ).stdout
    assert hypotheses(output) == {i: de for i, (_, de) in enumerate(pairs)}


def test_training_is_the_same_whatever_the_task(data, run, tmp_path):
    def train(task):
        run(
            *("fairseq-train", data, "--arch", "cape_transformer_tiny", *TRAIN, "--task", task),
            *("--save-dir", tmp_path / task, "--max-update", 2, "--disable-validation"),
        )
        return torch.load(tmp_path / task / "checkpoint_last.pt", weights_only=True)["model"]

    ours = train("cape_translation")
    for name, weights in train("translation").items():
        torch.testing.assert_close(ours[name], weights, rtol=0, atol=0)


def test_a_wrong_value_fails_on_the_command_line_before_data_is_read(run):
    failed = run(
        *("fairseq-train", "/nowhere", "--arch", "cape_transformer_tiny"),
        *("--max-global-scale", 0.5, *TRAIN),
        check=False,
    )
    assert failed.returncode == 2
    assert "Traceback" not in failed.stdout
    assert "fairseq-train: error: max_global_scale must be a finite number ≥ 1" in failed.stdout
