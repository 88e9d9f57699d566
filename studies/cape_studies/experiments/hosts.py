"""The hosts' own commands, for training and testing."""

import ast
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cape_studies.experiments.study import Options, Study

PYTHON = sys.executable
TIMM_COMMIT = "aa4b5850"


@dataclass(frozen=True)
class Machine:
    """What a run gets: a number of GPUs (0: the CPU), and the folder of timm's train.py."""

    gpus: int = 0
    timm_scripts: Path | None = None

    @property
    def device(self) -> str:
        """The device by torch's name."""
        return "cuda" if self.gpus else "cpu"


class Host(NamedTuple):
    """What differs between the hosts, apart from their commands.

    Attributes:
        module: must be installed.
        packages: scores depend on their versions.
        checkpoint: the file to test in the folder of the training; empty: the folder.
        condition: columns of the evaluation's CSV that name the condition.
    """

    module: str
    packages: tuple[str, ...]
    checkpoint: str
    condition: tuple[str, ...]


HOSTS = {
    "timm": Host("timm", ("timm",), "last.pth.tar", ("resolution",)),
    "fairseq": Host("fairseq", ("fairseq-fixed", "fairseq"), "checkpoint_best.pt", ()),
    "espnet": Host("espnet2", ("espnet",), "", ("test_set",)),
}


def words(options: Mapping[str, Any], espnet: bool = False) -> list[str]:
    """Options as words of a command line.

    ``{a: 1, b: true, c: [1, 2], d: {x: true}}`` is ``--a 1 --b --c 1 2 --d x=True``, and for
    ESPnet's commands ``--a 1 --b true --c 1 --c 2 --d x=true``. null leaves an option out. false
    leaves it out too, except for ESPnet.
    """
    found: list[str] = []
    word = _lower if espnet else str  # timm's name=value takes Python's True
    for key, value in options.items():
        if value is None or (value is False and not espnet):
            continue
        several = [word(one) for one in value] if isinstance(value, list) else [word(value)]
        if isinstance(value, Mapping):
            several = [f"{name}={word(one)}" for name, one in value.items() if one is not None]
        if espnet:
            found += [each for one in several for each in (f"--{key}", one)]
        else:
            found += [f"--{key}", *([] if value is True else several)]
    return found


def _lower(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def script(study: Study, machine: Machine) -> Path | None:
    """The script that trains, if a script does and it exists: the study's, or timm's train.py."""
    if study.trainer:
        return study.trainer
    if study.host == "timm" and machine.timm_scripts:
        path = machine.timm_scripts / "train.py"
        if path.is_file():
            return path
    return None


def train(
    study: Study, recipe: Path | None, options: Options, seed: int, folder: Path, machine: Machine
) -> list[str]:
    """The command that trains into a folder, or goes on from a checkpoint in it.

    Args:
        study: whose trainer or host trains.
        recipe: the host's own YAML; None: options alone.
        options: with their places filled.
        seed: of the training.
        folder: to train into.
        machine: the one that trains.
    """
    if study.trainer:
        own = {"seed": seed, "out": folder, "device": machine.device}
        return [PYTHON, str(study.trainer), *words({**options, **own})]
    build = {"timm": _timm, "fairseq": _fairseq, "espnet": _espnet}[study.host]
    return build(recipe, options, seed, folder, machine)


def _timm(recipe: Path | None, options: Options, seed: int, folder: Path, on: Machine) -> list[str]:
    last = folder / "last.pth.tar"
    own = {"seed": seed, "device": on.device, "device-modules": "cape_plugins.timm"}
    own |= {"output": folder.parent, "experiment": folder.name}
    own["resume"] = last if last.exists() else None
    script = f"{on.timm_scripts or '<TIMM_SCRIPTS>'}/train.py"
    several = ["-m", "torch.distributed.run", f"--nproc-per-node={on.gpus}", "--standalone"]
    start = [PYTHON, *(several if on.gpus > 1 else [])]
    return [*start, script, *words({"config": recipe, **options, **own})]


def _fairseq(
    recipe: Path | None, options: Options, seed: int, folder: Path, on: Machine
) -> list[str]:
    scripts = Path(PYTHON).parent
    world = on.gpus or None  # fairseq starts a process for each GPU
    if recipe is None:
        data, rest = _apart(options, "data")
        rest |= {"seed": seed, "save-dir": folder, "cpu": not on.gpus}
        rest["distributed-world-size"] = world
        return [str(scripts / "fairseq-train"), data, *words(rest)]
    own = {**dict(_dotted(options)), "common.seed": seed, "common.cpu": not on.gpus}
    own["checkpoint.save_dir"] = folder
    own |= {"distributed_training.distributed_world_size": world} if world else {}
    start = [str(scripts / "fairseq-hydra-train"), "--config-dir", str(recipe.parent)]
    changes = [f"++{name}={_hydra(value)}" for name, value in own.items()]
    return [*start, "--config-name", recipe.stem, *changes, f"hydra.run.dir={folder}"]


def _apart(options: Options, name: str) -> tuple[str, Options]:
    return str(options[name]), {key: value for key, value in options.items() if key != name}


def _dotted(options: Options, above: str = "") -> Iterator[tuple[str, Any]]:
    """Nested options as Hydra types them: ``model.pos`` and its value."""
    for key, value in options.items():
        if isinstance(value, Mapping):
            yield from _dotted(dict(value), f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _hydra(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_hydra, value))}]"
    return "null" if value is None else _lower(value)


def _espnet(
    recipe: Path | None, options: Options, seed: int, folder: Path, on: Machine
) -> list[str]:
    own: Options = {"seed": seed, "ngpu": on.gpus, "resume": True, "output_dir": folder}
    if on.gpus > 1:
        own["multiprocessing_distributed"] = True
    typed = words({"config": recipe, **options, **own}, espnet=True)
    return [PYTHON, "-m", "espnet2.bin.asr_train", *typed]


def evaluate(
    host: str, command: str | None, options: Options, name: str, own: Options
) -> list[str]:
    """The command that evaluates a checkpoint with a host's evaluation.

    Args:
        host: by its name here.
        command: of ``cape-fairseq-eval``, which has several.
        options: with their places filled.
        name: the model's, for the CSV.
        own: checkpoint, device and the files to write.
    """
    start = [PYTHON, "-m", f"cape_studies.evaluation.{host}"]
    if host == "timm":
        return [*start, *words({**options, **own})]
    checkpoint, own = _apart(own, "checkpoint")
    own["model"] = f"{name}={checkpoint}"
    if host == "espnet":
        return [*start, *words({**options, **own})]
    data, rest = _apart(options, "data")
    return [*start, str(command), data, *words({**rest, **own})]


def missing(host: str, scripts: Iterable[Path] = ()) -> Iterator[str]:
    """A line with what to do if the host is not installed, and one for each module that a script
    needs and that is not installed."""
    needed = {HOSTS[host].module: host}
    for path in scripts:
        for name in sorted(read_script(path)[1]):
            needed.setdefault(name, f"{name}, which {path.name} imports,")
    for name, what in needed.items():
        if importlib.util.find_spec(name) is None:
            yield f"{what} is not installed: pip install 'cape-studies[{host}]'"


def read_script(script: Path) -> tuple[list[Path], set[str]]:
    """What a script needs to run.

    Imports in functions and in ``try`` do not count: the script can run without them.

    Returns:
        the script with the scripts beside it that it imports, and the other modules that these
        import.

    Raises:
        ValueError: a script does not exist or cannot be read.
    """
    files, found = [script], set[str]()
    for path in files:  # files grows
        try:
            body = ast.parse(path.read_bytes()).body
        except (OSError, SyntaxError) as error:
            raise ValueError(f"the study's script {path} cannot be read: {error}") from error
        for node in body:
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [str(node.module)]
            for name in [name.partition(".")[0] for name in names]:
                beside = path.with_name(f"{name}.py")
                if not beside.is_file():
                    found.add(name)
                elif beside not in files:
                    files.append(beside)
    return files, found


def problems(studies: Sequence[Study], machine: Machine) -> Iterator[str]:
    """What is missing for the hosts on this machine, a line each."""
    lines: dict[str, None] = {}
    for study in studies:
        scripts = [study.trainer, *(step.script for step in study.prepare.values())]
        scripts += [one.script for one in study.evaluations.values()]
        lines |= dict.fromkeys(missing(study.host, [path for path in scripts if path]))
    yield from lines
    if any(study.host == "timm" and script(study, machine) is None for study in studies):
        yield (
            f"no train.py of timm in {machine.timm_scripts or 'TIMM_SCRIPTS, which is not set'}: "
            "git clone https://github.com/huggingface/pytorch-image-models && "
            f"git -C pytorch-image-models checkout {TIMM_COMMIT} && mkdir scripts && "
            "cp pytorch-image-models/{train,validate,benchmark}.py scripts; "
            "then --timm-scripts scripts"
        )
