"""Loading by name: every import order, every switch, and nothing that can break torch.

What is tested is the order of imports, so every case has a fresh interpreter. The logic is tested
with stubs: packages of a few lines that import each other, and torch, in the order of the real
ones. After them each real host has one run.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent, indent

import pytest

ROOT = Path(__file__).parents[1]
OFF = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
RUNNER = ("-m", "cape_plugins.run")

TASK = """
import importlib, os
import torch
importlib.import_module(os.environ.get("EARLY", "sys"))
from espnet2.tasks.abs_task import AbsTask
names = {"conformer"}
class ASRTask(AbsTask): pass
"""
THEIRS = {
    "torch": """
        import os
        if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1":
            from cape_plugins.autoload import install  # the entry point
            install()
        """,
    "timm": "import timm.layers, timm.models",
    "timm.layers": "import torch",
    "timm.models": "names = {'vit'}\nimport timm.models.vision_transformer",
    "timm.models.vision_transformer": "import torch",
    "fairseq": "import fairseq.logging, fairseq.models, fairseq.tasks, fairseq.model_parallel",
    "fairseq.logging": "import torch",
    "fairseq.models": "names = {'transformer'}",
    "fairseq.tasks": "",
    "fairseq.model_parallel": "import fairseq.models",
    "espnet2.bin.asr_train": "from espnet2.tasks.asr import names\nprint(sorted(names))",
    "espnet2.tasks.abs_task": """
        import torch
        made = []
        class AbsTask:
            def __init_subclass__(cls, **options):
                super().__init_subclass__(**options)
                made.append(cls.__module__)
        """,
    "espnet2.tasks.asr": TASK,
    "espnet2.tasks.mt": "from espnet2.tasks.abs_task import AbsTask\nclass MT(AbsTask): pass",
    "espnet3.systems.esp2_asr.task": TASK,
}
REGISTER = """
import importlib, sys
running = []
def register():
    assert not running, "called in the middle of itself"
    running.append(1)
    try:
{body}
    finally:
        running.clear()
register()
"""
OURS = {
    "timm": "from timm.models import names; names.add('cape')",
    "fairseq": """
        import fairseq
        assert "fairseq.tasks" in sys.modules, "too early"
        fairseq.models.names.add("cape")
        """,
    "espnet": """
        tasks = ("espnet2.tasks.asr", "espnet3.systems.esp2_asr.task")
        for name in [name for name in tasks if name in sys.modules] or tasks[:1]:
            task = importlib.import_module(name)
            from espnet2.tasks.abs_task import made
            if name not in made:
                return False
            task.names.add("cape")
        """,
}
NAMES = {"timm": "timm.models", "fairseq": "fairseq.models", "espnet": "espnet2.tasks.asr"}
# prints whether the stub of a host knows our models
KNOWN = {h: f"from {module} import names; print('cape' in names)" for h, module in NAMES.items()}


def write_packages(folder: Path, sources: dict[str, str]) -> Path:
    """Write modules by their dotted names, and packages for them; returns the folder."""
    for name, source in sources.items():
        path = folder.joinpath(*name.split("."))
        is_package = any(other.startswith(f"{name}.") for other in sources)
        path = path / "__init__" if is_package else path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".py").write_text(dedent(source))
        for parent in path.relative_to(folder).parents[:-1]:
            (folder / parent / "__init__.py").touch()
    return folder


@pytest.fixture(scope="module")
def theirs(tmp_path_factory) -> Path:
    """A folder with stubs of torch and of the hosts."""
    return write_packages(tmp_path_factory.mktemp("theirs"), THEIRS)


@pytest.fixture(scope="module")
def ours(tmp_path_factory) -> Path:
    """A folder with cape_plugins: the real modules, and stubs of its packages for the hosts."""
    packages = {
        f"cape_plugins.{host}": REGISTER.format(body=indent(dedent(body), 8 * " "))
        for host, body in OURS.items()
    }
    real = {"cape_plugins": f"__path__.append({str(ROOT / 'cape_plugins')!r})"}
    return write_packages(tmp_path_factory.mktemp("ours"), real | packages)


def python(*arguments: object, code: str | None = None, path: tuple = (), **environment: str):
    """Run a fresh interpreter; returns the finished process."""
    clean = {k: v for k, v in os.environ.items() if "AUTOLOAD" not in k}
    paths = [*map(str, path), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, *map(str, arguments), *([] if code is None else ["-c", dedent(code)])],
        env={**clean, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **environment},
        cwd=os.sep,  # modules of this folder come before PYTHONPATH's
        capture_output=True,
        text=True,
        timeout=300,
    )


def last_line(process: subprocess.CompletedProcess) -> str:
    assert process.returncode == 0, process.stderr
    return process.stdout.strip().splitlines()[-1]


@pytest.fixture
def stub(ours, theirs):
    """Runs code, or arguments of the interpreter, with stubs of all; returns the last line."""

    def run(code: str | None = None, *arguments: object, **environment: str) -> str:
        process = python(*arguments, code=code, path=(ours, theirs), **environment)
        assert process.stderr == ""
        return last_line(process)

    return run


FIRST = {
    "timm": "torch timm timm.layers timm.models.vision_transformer cape_plugins.timm",
    "fairseq": "torch fairseq fairseq.models cape_plugins.fairseq",
    "espnet": "torch espnet2.tasks.asr espnet2.tasks.abs_task espnet2.bin.asr_train "
    "espnet2.tasks.mt espnet3.systems.esp2_asr.task cape_plugins.espnet",
}


@pytest.mark.parametrize(
    ("host", "first"), [(host, module) for host, all_ in FIRST.items() for module in all_.split()]
)
def test_a_host_knows_our_models_whatever_is_imported_first(host, first, stub):
    assert stub(f"import {first}\n{KNOWN[host]}") == "True"


@pytest.mark.parametrize("host", NAMES)
def test_both_switches_turn_it_off_and_the_explicit_ways_work_early_late_and_twice(host, stub):
    for switch in ("TORCH_DEVICE_BACKEND_AUTOLOAD", "CAPE_PLUGINS_AUTOLOAD"):
        assert stub(f"import torch\n{KNOWN[host]}", **{switch: "0"}) == "False"
        twice = f"import cape_plugins.{host} as ours\nours.register()"
        assert stub(f"{twice}\n{KNOWN[host]}", **{switch: "0"}) == "True"
    late = "import cape_plugins.autoload\ncape_plugins.autoload.install()"
    assert stub("\n".join([KNOWN[host], late, twice, KNOWN[host]]), **OFF) == "True"
    assert stub("\n".join([KNOWN[host], late, KNOWN[host]]), **OFF) == "True"


@pytest.mark.parametrize(
    ("code", "arguments", "environment", "expected"),
    [
        # the task is found before torch is imported, and registered before its parser is built
        (None, ["-m", "espnet2.bin.asr_train"], {}, "['cape', 'conformer']"),
        # our package is imported before the class of the task is there
        (KNOWN["espnet"], [], {"EARLY": "cape_plugins.espnet"}, "True"),
        # the runner, without the hook
        (None, [*RUNNER, "-m", "espnet2.bin.asr_train"], OFF, "['cape', 'conformer']"),
        (None, [*RUNNER, "espnet2.bin.asr_train"], OFF, "['cape', 'conformer']"),
    ],
)
def test_espnets_command_knows_our_models(code, arguments, environment, expected, stub):
    assert stub(code, *arguments, **environment) == expected


@pytest.mark.parametrize("flags", [[], ["-W", "error::RuntimeWarning"]], ids=["plain", "W error"])
def test_a_failing_register_leaves_the_host_working_with_one_message(flags, ours, theirs):
    code = """
    import sys, types
    broken = sys.modules["cape_plugins.timm"] = types.ModuleType("cape_plugins.timm")
    broken.register = lambda: 1 / 0
    import timm
    print(timm.models.names)
    """
    process = python(*flags, code=code, path=(ours, theirs))
    assert last_line(process) == "{'vit'}"
    assert process.stderr.count("could not register with timm (ZeroDivisionError") == 1
    assert "import cape_plugins.timm" in process.stderr  # the fix


ABS_TASK = "from espnet2.tasks.abs_task import AbsTask"


@pytest.mark.parametrize("first", ["torch", "sys"])  # sys: the task's module imports torch
@pytest.mark.parametrize(  # it has no ASRTask, or no choices
    "asr", ["import espnet2.tasks.abs_task", f"{ABS_TASK}\nclass ASRTask(AbsTask): pass"]
)
def test_an_espnet_of_unknown_form_is_warned_of_and_works(first, asr, theirs, tmp_path):
    task = {"espnet2.tasks.asr": f"import torch\n{asr}"}
    espnet2 = write_packages(tmp_path, {"espnet2.tasks.abs_task": "class AbsTask: pass", **task})
    code = f"import {first}\nimport espnet2.tasks.asr\nprint('imported')"
    # the real cape_plugins.espnet, which needs no more than these stubs to see that
    process = python(code=code, path=(espnet2, theirs))
    assert last_line(process) == "imported"
    assert "could not register with espnet" in process.stderr
    assert "python -m cape_plugins.run" in process.stderr  # the fix


# name → what runs after `import torch`, and the last line that it prints
HOOK = {
    "both of ESPnet's tasks": (
        "from espnet2.tasks.asr import names as one\n"
        "from espnet3.systems.esp2_asr.task import names as other\n"
        "print('cape' in one, 'cape' in other)",
        "True True",
    ),
    "AbsTask is left as it was": (
        "from espnet2.tasks import abs_task\n"
        "watched = abs_task.AbsTask.__init_subclass__.__func__\n"
        "from espnet2.tasks import mt, asr\n"
        "left = abs_task.AbsTask.__init_subclass__.__func__\n"
        "print(abs_task.made, watched.__module__, left.__module__)",
        "['espnet2.tasks.mt', 'espnet2.tasks.asr'] cape_plugins.autoload espnet2.tasks.abs_task",
    ),
    "the module has its own loader, and reloads": (
        "import importlib, inspect, timm.models\n"
        "importlib.reload(timm.models)\n"
        "loaders = timm.models.__spec__.loader, timm.models.__loader__\n"
        "assert 'names = ' in inspect.getsource(timm.models)\n"
        "print(timm.models.names == {'cape', 'vit'}, *(type(one).__name__ for one in loaders))",
        "True SourceFileLoader SourceFileLoader",
    ),
    "the module is missing": (
        "import sys, types\n"
        "sys.modules['timm'] = types.ModuleType('timm')\n"
        "sys.modules['timm'].__path__ = []\n"
        "try: import timm.models\n"
        "except ModuleNotFoundError as error: print(error)",
        "No module named 'timm.models'",
    ),
    "another finder asks the finders in its turn": (
        "import sys\n"
        "class Asking:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'timm.models':\n"
        "            others = [finder for finder in sys.meta_path if finder is not self]\n"
        "            found = (finder.find_spec(name, path, target) for finder in others)\n"
        "            return next(spec for spec in found if spec)\n"
        "sys.meta_path.insert(0, Asking())\n" + KNOWN["timm"],
        "True",
    ),
}


@pytest.mark.parametrize("case", HOOK)
def test_the_hook(case, stub):
    code, expected = HOOK[case]
    assert stub(f"import torch\n{code}") == expected


ABS_TASK = "from espnet2.tasks.abs_task import AbsTask"


# python -m cape_plugins.run

SCRIPT = """
import beside, multiprocessing, os, sys
from timm.models import names
line = f"{os.environ.get('RANK')} {'cape' in names} {sys.argv[1:]} {beside.value} {__name__}\\n"
os.write(1, line.encode())
if __name__ == "__main__":  # and once more in a spawned worker
    process = multiprocessing.get_context("spawn").Process(target=print)
    process.start()
    process.join()
"""


@pytest.mark.parametrize(
    ("before", "ranks"),
    [
        ([], ["None"]),
        pytest.param(
            ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
            ["0", "1"],
            marks=pytest.mark.release,
        ),
    ],
    ids=["alone", "torchrun"],
)
def test_the_runner_runs_a_script_that_sees_its_own_arguments(before, ranks, ours, tmp_path):
    timm = {name: source for name, source in THEIRS.items() if name.startswith("timm")}
    write_packages(tmp_path, {**timm, "beside": "value = 7", "script": SCRIPT})
    command = (*before, *RUNNER, tmp_path / "script.py", "--flag")
    ran = python(*command, path=(ours, tmp_path), CAPE_PLUGINS_AUTOLOAD="0")
    wanted = [f"{r} True ['--flag'] 7 {n}" for r in ranks for n in ("__main__", "__mp_main__")]
    assert sorted(filter(None, ran.stdout.split("\n"))) == wanted, ran.stderr


# the real torch, the real hosts


def test_import_torch_is_never_broken_and_gets_one_hook_and_no_host():
    code = """
    import sys
    before = {*sys.modules}
    from cape_plugins import autoload
    more = {name.split(".")[0] for name in {*sys.modules} - before}
    print(*more - sys.stdlib_module_names)
    class Broken(list):
        def insert(self, *given):
            1 / 0
    finders, sys.meta_path = sys.meta_path, Broken(sys.meta_path)
    import torch
    sys.meta_path = finders
    before = {*sys.modules}
    autoload.install()
    autoload.install()
    hooks = sum(hasattr(finder, "of_cape_plugins") for finder in sys.meta_path)
    print(torch.ones(1).item(), hooks, *{*sys.modules} - before)
    for host, module in (("timm", "timm"), ("fairseq", "fairseq"), ("espnet", "espnet2")):
        sys.modules[module] = None  # as if it were not installed
        try:
            __import__(f"cape_plugins.{host}")
        except ImportError as error:
            print(error)
    """
    process = python(code=code)
    assert process.returncode == 0, process.stderr
    assert "autoload failed (ZeroDivisionError" in process.stderr
    needed, installed, *errors = process.stdout.splitlines()
    assert needed == "cape_plugins"  # and the standard library
    assert installed == "1.0 1"
    for host, error in zip(NAMES, errors, strict=True):
        assert f"pip install 'cape-plugins[{host}]'" in error


CHOICES = "import encoder_choices as one; print('cape_transformer' in one.classes)"
REAL = {  # training commands run in tests/HOST
    "timm": "import timm; print(timm.is_model('vit_tiny_patch16_cape_224'))",
    "fairseq": "from fairseq.models import MODEL_REGISTRY as one; print('cape_transformer' in one)",
    # finds espnet2.tasks.asr before that imports torch
    "espnet2": f"import espnet2.bin.asr_train; from espnet2.tasks.asr {CHOICES}",
    "espnet3": f"from espnet3.systems.esp2_asr.task {CHOICES}",
    "transformers": "from transformers import AutoConfig\n"
    "print('Cape' in str(AutoConfig.for_model('cape_llama')))",
}


SLOW = [pytest.param(one, marks=pytest.mark.release) for one in ("espnet2", "espnet3")]


@pytest.mark.parametrize("module", ["timm", "fairseq", "transformers", *SLOW])
def test_a_real_host_knows_our_models(module):
    if not importlib.util.find_spec(module):
        pytest.skip(f"{module} is not here")
    process = python(code=REAL[module])
    assert last_line(process) == "True"
    assert "cape_plugins" not in process.stderr
