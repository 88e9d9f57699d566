"""cape-fairseq-eval against fairseq's own generator, sentence by sentence, and n-grams counted by
hand, with all options away from their defaults."""

import functools
import math
import re
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from fairseq_support import PAIRS, preprocess
from lab_support import check_items, rows

options = pytest.importorskip("fairseq.options")

from fairseq import tasks  # noqa: E402
from fairseq.dataclass.configs import GenerationConfig  # noqa: E402
from fairseq.dataclass.utils import convert_namespace_to_omegaconf  # noqa: E402
from fairseq_cli.preprocess import main as preprocess_main  # noqa: E402

from cape_studies.evaluate.fairseq import checkpoints, evaluate, generate  # noqa: E402
from cape_studies.evaluate.fairseq.options import FairseqOptions  # noqa: E402
from cape_studies.evaluate.output import Score  # noqa: E402

SEARCH = dict(beam=3, lenpen=1.7, max_len_a=0.5, max_len_b=9)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    # words in two parts, as subword_nmt writes them; sources of seven words each, as fairseq ends
    # a translation by the longest source of its batch
    cut = [
        (" ".join([*en.split(), *["the"] * 6][:7]), de.replace("schläft", "schl@@ äft"))
        for en, de in PAIRS
    ]
    return Path(preprocess(tmp_path_factory.mktemp("data"), cut))


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """A checkpoint of an untrained model, the model, and its task with the subset valid."""
    words = [str(data), "--arch", "cape_transformer_tiny", "--cpu", "--dropout", "0"]
    args = options.parse_args_and_arch(options.get_training_parser(), input_args=words)
    cfg = convert_namespace_to_omegaconf(args)
    task = tasks.setup_task(cfg.task)
    torch.manual_seed(0)
    model = task.build_model(cfg.model)
    torch.nn.init.normal_(model.decoder.embed_tokens.weight, std=0.3)
    torch.nn.init.normal_(model.encoder.embed_tokens.weight, std=1.0)
    path = tmp_path_factory.mktemp("model") / "checkpoint1.pt"
    history = [{"criterion_name": "cross_entropy", "optimizer_name": "Adam",
                "lr_scheduler_state": {}, "num_updates": 0}]  # fmt: skip
    plain = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)  # as its Trainer does it
    state = {"cfg": plain, "args": None, "model": model.state_dict(), "optimizer_history": history}
    torch.save(state | {"extra_state": {"epoch": 1}, "task_state": {}}, path)
    task.load_dataset("valid")
    return path, model.eval(), task


def by_hand(trained, **config: object) -> list[dict]:
    """What fairseq's generator finds for each sentence alone."""
    _, model, task = trained
    dataset = task.dataset("valid")
    found = []
    for i in range(len(dataset)):
        generator = task.build_generator([model], GenerationConfig(**config))
        with torch.no_grad():
            found.append(task.inference_step(generator, [model], dataset.collater([dataset[i]])))
    return [one[0][0] for one in found]


def ngrams(words: list[str], n: int) -> Counter:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def test_translations_are_those_of_fairseqs_generator(data, trained, run, tmp_path, capsys):
    (tmp_path / "raw.de").write_text("".join(f"{de}\n" for _, de in PAIRS), encoding="utf-8")
    words = [w for name, v in SEARCH.items() for w in (f"--{name.replace('_', '-')}", v)]
    found = run(
        *("bleu", data, "--model", f"mine={trained[0]}", "--gen-subset", "valid", *words),
        *("--max-tokens", 30, "--reference", tmp_path / "raw.de"),
        *("--items", tmp_path / "items.csv"),
    )
    check_items(found, tmp_path / "items.csv")
    target = trained[2].target_dictionary
    expected, sums = [], [0] * 10
    for i, ((_, reference), best) in enumerate(zip(PAIRS, by_hand(trained, **SEARCH), strict=True)):
        text = " ".join(target[int(one)] for one in best["tokens"] if one != target.eos())
        ours, theirs = text.replace("@@ ", "").split(), reference.split()
        counts = [(ngrams(ours, n) & ngrams(theirs, n)).total() for n in (1, 2, 3, 4)]
        totals = [max(0, len(ours) - n) for n in range(4)]
        item = [len(ours), len(theirs), *counts, *totals]
        sums = [a + b for a, b in zip(sums, item, strict=True)]
        expected.append([str(i), *map(str, item)])
    assert len({row[1] for row in expected}) > 1
    assert sum(sums[2:3]) > 0
    items = rows(tmp_path / "items.csv")
    parts = ["item", *(f"stats_{i}" for i in range(10))]
    for metric in ("bleu", "sacrebleu"):  # letters and spaces alone: both count the same words
        assert [[r[p] for p in parts] for r in items if r["metric"] == metric] == expected
    tokenised, plain = found
    about = ("model", "checkpoint", "subset", "metric", "how", "items", "weight")
    shared = ["mine", str(trained[0]), "valid"]
    weight = [str(len(PAIRS)), str(sums[1])]
    assert [tokenised[one] for one in about] == [*shared, "bleu", "bleu_unsmoothed", *weight]
    assert [plain[one] for one in about] == [*shared, "sacrebleu", "bleu", *weight]
    printed = capsys.readouterr().out
    assert f"mine {trained[0]} valid sacrebleu: BLEU" in printed
    assert "not comparable" not in printed


def test_losses_are_those_of_the_model_given_the_true_tokens(data, trained, run):
    given = ("loss", data, "--model", trained[0], "--gen-subset", "valid", "--max-tokens", 25)
    _, model, task = trained
    dataset, means = task.dataset("valid"), {}
    for amp in (False, True):
        columns: dict[int, list[float]] = {}
        for i in range(len(dataset)):
            sample = dataset.collater([dataset[i]])
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=amp):
                logits = model(**sample["net_input"])[0][0].float()
            right = logits.log_softmax(-1).gather(-1, sample["target"][0][:, None])[:, 0]
            for position, loss in enumerate((-right).tolist(), 1):
                columns.setdefault(position, []).append(loss)
        found = run(*given, *["--amp"] * amp)
        assert [(int(row["position"]), row["items"]) for row in found] == [
            (position, str(len(column))) for position, column in columns.items()
        ]
        means[amp] = [sum(column) / len(column) for column in columns.values()]
        values = [float(row["value"]) for row in found]
        assert values == pytest.approx(means[amp], abs=0.05 if amp else 1e-4)
        assert {(row["model"], row["subset"], row["metric"], row["how"]) for row in found} == {
            (str(trained[0]), "valid", "loss", "mean")
        }
    assert values != pytest.approx(means[False], abs=1e-4)  # mixed precision was used


def test_unknown_words_of_hypothesis_and_reference_never_match(trained, data, monkeypatch):
    path, _, _ = trained
    given = FairseqOptions(
        score="bleu", data=data, model=["m"], gen_subset="valid", device="cpu", max_len_b=15
    )
    loaded = checkpoints.load_model("m", str(path), given)
    test = generate.open_test(loaded, "valid", given)
    unknown = test.task.target_dictionary.unk()
    of_set = type(test.dataset).__getitem__

    def item(dataset, i):
        found = of_set(dataset, i)
        found["target"] = torch.where(found["target"] > 4, unknown, found["target"])
        return found

    monkeypatch.setattr(type(test.dataset), "__getitem__", item)
    always = functools.partial(GenerationConfig, unkpen=-1000.0)
    monkeypatch.setattr(generate, "GenerationConfig", always)
    translations = generate.translate(test, given)
    ours, theirs = ({*" ".join(side).split()} for side in zip(*translations, strict=True))
    assert len(ours) == 1
    assert not ours & theirs
    tokenised, plain = evaluate.bleu_scores({}, translations, "de")
    assert {item[3] for item in tokenised.items + plain.items} == {0}


@pytest.fixture
def opened(trained, data):
    """The subset valid, and its options: ``opened(max_tokens=25)``."""

    def call(score: str = "bleu", **given: object):
        given = dict(score="bleu", data=data, model=["m"], device="cpu") | SEARCH | given
        made = FairseqOptions(**given).model_copy(update={"score": score})
        loaded = checkpoints.load_model("m", str(trained[0]), made)
        return generate.open_test(loaded, "valid", made), made

    return call


def test_a_search_has_each_of_its_options(opened, monkeypatch):
    (test, given), asked = opened(), []
    build = type(test.task).build_generator

    def noted(task, models, config, *others):
        asked.append({name: getattr(config, name) for name in SEARCH})
        return build(task, models, config, *others)

    monkeypatch.setattr(type(test.task), "build_generator", noted)
    generate.translate(test, given)
    assert asked == [SEARCH]


def test_sentences_that_are_too_long_are_refused(opened, trained, data, tmp_path):
    with pytest.raises(ValueError, match="hypotheses would end at 1: give --max-len-a"):
        opened(max_len_a=0, max_len_b=1)
    assert opened(score="loss", max_len_b=1)  # nothing is searched
    assert opened(max_len_a=0, max_len_b=9)  # the longest reference has as many, and its end
    assert opened(max_tokens=10)  # the longest target has as many
    with pytest.raises(
        ValueError, match=r"a target sentence of 'valid' has 10 .* --max-tokens is 9"
    ):
        opened(max_tokens=9)
    state = torch.load(trained[0], weights_only=False)
    for side, many in (("source", 8), ("target", 10)):
        name = f"max_{side}_positions"
        for limit in (many, many - 1):
            state["cfg"]["task"] = {**state["cfg"]["task"], name: limit}
            torch.save(state, tmp_path / "m.pt")
            given = FairseqOptions(score="loss", data=data, model=["m"], device="cpu")
            loaded = checkpoints.load_model("m", str(tmp_path / "m.pt"), given)
            if limit == many:
                assert generate.open_test(loaded, "valid", given)
        with pytest.raises(ValueError, match=f"a {side} sentence .* at most {limit}, --max"):
            generate.open_test(loaded, "valid", given)
        state["cfg"]["task"][name] = 1024


def test_batches_have_no_more_tokens_than_they_may_and_are_read_by_so_many_processes(
    opened, monkeypatch
):
    test, given = opened(max_tokens=25, workers=1)
    shapes, step, batches = [], test.task.inference_step, test.task.get_batch_iterator

    def kept(generator, models, sample):
        shapes.append([*sample["net_input"]["src_tokens"].shape])
        return step(generator, models, sample)

    def asked(**about):
        assert about["num_workers"] == 1
        return batches(**about)

    monkeypatch.setattr(test.task, "inference_step", kept)
    monkeypatch.setattr(test.task, "get_batch_iterator", asked)
    generate.translate(test, given)
    # sources have seven words and an end; three of eight fit, and of targets of nine only two
    assert shapes == [[3, 8], [3, 8], [2, 8], [2, 8]]


def test_the_model_is_prepared_for_the_search_as_by_fairseq_generate(opened, monkeypatch):
    test, given = opened()

    def asked(**given):
        raise LookupError(given)

    monkeypatch.setattr(test.model, "make_generation_fast_", asked)
    with pytest.raises(LookupError) as found:
        generate.translate(test, given)
    assert found.value.args == ({"beamable_mm_beam_size": 3, "need_attn": None},)


@pytest.mark.parametrize(("kind", "told"), [("mmap", "cannot be opened"), ("lazy", "is empty")])
def test_a_subset_without_sentences_is_refused(trained, data, refused, tmp_path, kind, told):
    folder = tmp_path / "bin"
    folder.mkdir()
    for language in ("en", "de"):
        (tmp_path / f"none.{language}").write_text("")
    words = ["--source-lang", "en", "--target-lang", "de", "--destdir", folder]
    words += ["--testpref", tmp_path / "none", "--srcdict", data / "dict.en.txt"]
    words += ["--tgtdict", data / "dict.de.txt", "--dataset-impl", kind]
    preprocess_main(options.get_preprocessing_parser().parse_args([*map(str, words)]))
    assert f"'test' in {folder} {told}" in refused("loss", folder, "--model", trained[0])


def test_a_folder_is_tested_by_its_best_bleu_on_valid_alone(tmp_path, monkeypatch, run):
    """Three checkpoints whose BLEU and sacreBLEU on valid disagree, and a file of one."""
    for i in (1, 2, 3):
        (tmp_path / f"checkpoint{i}.pt").write_text("")
    (tmp_path / "raw").write_text("a\nb\n")
    task = SimpleNamespace(cfg=SimpleNamespace(source_lang="en", target_lang="de"))
    values = {"checkpoint1.pt": (1, 8), "checkpoint2.pt": (5, 3), "checkpoint3.pt": (4, 9)}
    done = []

    def open_test(loaded, subset, options):
        done.append(("open", loaded.path.split("/")[-1], subset))
        about = {"model": loaded.name, "checkpoint": loaded.path.split("/")[-1], "subset": subset}
        return generate.Test(None, task, [0, 1], about)

    def bleu_scores(about, translations, language, raw):
        done.append(("score", about["checkpoint"], about["subset"], language, raw))
        for value in values.get(about["checkpoint"], (0, 0)):
            yield Score(about, "bleu", "number", value)

    monkeypatch.setattr(evaluate, "open_test", open_test)
    monkeypatch.setattr(evaluate, "bleu_scores", bleu_scores)
    monkeypatch.setattr(evaluate, "translate", lambda test, options: [])
    monkeypatch.setattr(
        evaluate, "load_model", lambda name, path, options: checkpoints.Loaded(name, path, 0, task)
    )
    given = ("bleu", "d", "--model", f"folder={tmp_path}", f"file={tmp_path}/x.pt")
    found = run(*given, "--gen-subset", "test", "--reference", tmp_path / "raw")
    assert [(row["model"], row["checkpoint"], row["subset"], row["value"]) for row in found] == [
        ("folder", "checkpoint2.pt", "valid", "5"), ("folder", "checkpoint2.pt", "valid", "3"),
        ("folder", "checkpoint2.pt", "test", "5"), ("folder", "checkpoint2.pt", "test", "3"),
        ("file", "x.pt", "test", "0"), ("file", "x.pt", "test", "0"),
    ]  # fmt: skip
    # what may be wrong is found before any work; valid has no raw references
    assert done[:3] == [
        *(("open", "checkpoint1.pt", one) for one in ("valid", "test")), ("open", "x.pt", "test")
    ]  # fmt: skip
    assert [one[1:] for one in done[3:] if one[0] == "score"] == [
        *((f"checkpoint{i}.pt", "valid", "de", None) for i in (1, 2, 3)),
        *((one, "test", "de", ["a", "b"]) for one in ("checkpoint2.pt", "x.pt")),
    ]


def test_losses_are_of_the_best_checkpoint_and_the_subset_that_is_asked_for(
    tmp_path, monkeypatch, run
):
    (tmp_path / "checkpoint1.pt").write_text("")
    asked = []
    monkeypatch.setattr(
        evaluate, "load_model", lambda name, path, options: asked.append(path) or name
    )

    def open_test(loaded, subset, options):
        return generate.Test(None, None, None, {"model": loaded, "subset": subset})

    monkeypatch.setattr(evaluate, "open_test", open_test)
    monkeypatch.setattr(evaluate, "score_references", lambda test, options: [[0.0, 2.0], [1.0]])
    found = run("loss", "d", "--model", f"a={tmp_path}", "--gen-subset", "valid")
    assert asked == [f"{tmp_path}/checkpoint_best.pt"]
    columns = ("subset", "position", "metric", "how", "items", "value")
    assert [[row[name] for name in columns] for row in found] == [
        ["valid", "1", "loss", "mean", "2", "0.5"],
        ["valid", "2", "loss", "mean", "1", "2.0"],
    ]


def test_the_language_decides_how_words_are_joined_and_cut(capsys):
    pair = ("he 's here and so are you", "he 's here and so are you")
    for language, raw in (("en", "he's"), ("de", "he 's")):
        raw += " here and so are you"
        _, plain = evaluate.bleu_scores({"model": "m", "subset": "s"}, [pair], language, [raw])
        assert plain.value == pytest.approx(100)
        _, plain = evaluate.bleu_scores({"model": "m", "subset": "s"}, [pair], language)
        assert plain.value == pytest.approx(100)  # the references are joined too
    capsys.readouterr()
    [*evaluate.bleu_scores({"model": "m", "subset": "s"}, [("你好", "你好")], "zh")]
    tokenised, plain = capsys.readouterr().out.splitlines()
    assert tokenised.startswith("m s bleu: BLEU|")
    assert plain.startswith("m s sacrebleu, against detokenised references (not comparable): BLEU|")
    assert "tok:none|smooth:none|" in tokenised
    assert "tok:zh|smooth:exp|" in plain


@pytest.mark.parametrize("language", ["en", "de"])
def test_a_checkpoint_is_of_the_dictionaries_that_it_was_trained_with(
    trained, data, tmp_path, language
):
    state = torch.load(trained[0], weights_only=False)
    elsewhere = Path(shutil.copytree(data, tmp_path / "bin"))
    file = elsewhere / f"dict.{language}.txt"
    first, second, *others = file.read_text(encoding="utf-8").splitlines()
    file.write_text("\n".join([second, first, *others]) + "\n", encoding="utf-8")

    def load(trained_on: str, *, on: Path = elsewhere) -> checkpoints.Loaded:
        state["cfg"]["task"] |= {"data": trained_on}
        torch.save(state, tmp_path / "m.pt")
        given = FairseqOptions(score="loss", data=on, model=["m"], device="cpu")
        return checkpoints.load_model("m", str(tmp_path / "m.pt"), given)

    # trained on parts in several folders, the first of which has the dictionaries
    with pytest.raises(ValueError, match=f"dict.{language}.txt differ"):
        load(f"{data}:/nowhere")
    assert load("/gone").name == "m"  # where training's are not there, nothing is compared
    # what validated the training is not built again
    state["cfg"]["task"] |= {"eval_bleu": True, "eval_bleu_args": "not JSON"}
    found = load(str(data), on=data)
    assert (found.path, found.model.training) == (str(tmp_path / "m.pt"), False)
    assert found.task.cfg.data == str(data)


def test_the_options_of_an_old_fairseq_are_read_too(trained, data, tmp_path):
    words = ["/gone", "--arch", "cape_transformer_tiny", "-s", "en", "-t", "de"]
    args = options.parse_args_and_arch(options.get_training_parser(), input_args=words)
    state = torch.load(trained[0], weights_only=False)
    torch.save(state | {"args": args, "cfg": None}, tmp_path / "old.pt")
    given = FairseqOptions(score="loss", data=data, model=["m"], device="cpu")
    found = checkpoints.load_model("m", str(tmp_path / "old.pt"), given)
    assert found.task.cfg.data == str(data)


def test_a_checkpoint_with_the_counts_of_eval_bleu_is_loaded(data, trained, run, tmp_path):
    state = torch.load(trained[0], weights_only=False)
    state["extra_state"]["metrics"] = {"counts": np.array([3, 1])}  # torch ≥ 2.6 refuses arrays
    torch.save(state, tmp_path / "counts.pt")
    given = "loss", data, "--gen-subset", "valid", "--model"
    counted, plain = (run(*given, f"m={one}") for one in (tmp_path / "counts.pt", trained[0]))
    assert [row["value"] for row in counted] == [row["value"] for row in plain]


def test_a_loss_that_is_no_number_is_refused(data, trained, refused, tmp_path):
    state = torch.load(trained[0], weights_only=False)
    state["model"]["decoder.embed_tokens.weight"][5] = math.nan
    torch.save(state, tmp_path / "bad.pt")
    words = ("--gen-subset", "valid", "--model", tmp_path / "bad.pt")
    assert "is not finite: the training has failed" in refused("loss", data, *words)


def test_checkpoints_are_found_in_the_order_of_their_epochs(tmp_path):
    for name in ("1.pt", "12.pt", "2.pt", "_2_300.pt", "_best.pt", "_last.pt", "x.pt"):
        (tmp_path / f"checkpoint{name}").write_text("")
    file, best = f"{tmp_path}/checkpoint2.pt", f"{tmp_path}/checkpoint_best.pt"
    names = [name for _, paths in checkpoints.sources([str(tmp_path)]) for name in paths]
    assert [Path(name).name for name in names][:1] == ["checkpoint1.pt"]
    assert [Path(name).name for name in names][-1:] == ["checkpoint12.pt"]
    assert {Path(name).name for name in names[1:-1]} == {"checkpoint2.pt", "checkpoint_2_300.pt"}
    assert checkpoints.sources([f"a={tmp_path}", file], only_best=True) == [
        *(("a", [best]), (file, [file]))
    ]
    (tmp_path / "empty").mkdir()
    (_, alone), = checkpoints.sources([f"a={tmp_path}/empty"])  # fmt: skip
    assert alone == [f"{tmp_path}/empty/checkpoint_best.pt"]
    with pytest.raises(ValueError, match="--model takes"):
        checkpoints.sources(["=x"])


def test_the_defaults_are_the_papers(data):
    given = FairseqOptions(score="bleu", data=data, model=["m"])
    assert (given.beam, given.lenpen, given.max_len_a, given.max_len_b) == (4, 0.6, 0, 200)
    assert (given.gen_subset, given.max_tokens, given.workers) == ("test", 4096, 0)
    assert given.reference is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("bleu BIN --model nowhere.pt", "nowhere.pt cannot be loaded .*nowhere.pt"),
        ("bleu BIN --model no.pt", "no.pt cannot be loaded"),
        ("bleu BIN --model a=.", "./checkpoint_best.pt cannot be loaded"),
        ("loss nothing --model PT", "cannot be loaded with nothing"),
        ("loss BIN --model PT --gen-subset a", "Dataset not found: a .* en-de"),
        ("bleu BIN --model PT --reference no.pt", r"no.pt has 1 lines, .* has \d+ "),
        ("bleu BIN --model PT --reference no.pt --gen-subset test,valid", "--gen-subset"),
        ("loss d --model m --beam 2", "--beam is of bleu"),
        ("loss d --model m --reference 2", "--reference is of bleu"),
        ("loss d --model m --max-len-b 2", "--max-len-b is of bleu"),
        ("bleu d --model", "--model: "),
        ("bleu d --model m --lenpen inf", "--lenpen: "),
        ("bleu d --model m --max-len-a -1", "--max-len-a: "),
        ("bleu d --model m --max-len-b -1", "--max-len-b: "),
        ("bleu d --model m --beam 0", "--beam: "),
        ("loss d --model m --max-tokens 0", "--max-tokens: "),
        ("loss d --model m --workers -1", "--workers: "),
        ("both d --model m", "score: "),
    ],
)
def test_wrong_arguments_are_told_before_any_work(
    refused, data, trained, tmp_path, monkeypatch, words, told
):
    monkeypatch.chdir(tmp_path)
    Path("no.pt").write_text("no checkpoint")
    given = words.replace("BIN", str(data)).replace("PT", str(trained[0]))
    assert re.search(told, refused(*given.split()))
