"""Loading by name: every import order, every switch, and nothing that can break torch.

Each test runs in a fresh interpreter, because what is tested is the order of imports.
"""

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
USER_DIR = ROOT / "integrations" / "fairseq" / "user_dir"

# prints True when the host knows our models
REGISTERED = {
    "timm": "import timm; print(timm.is_model('vit_tiny_patch16_cape_224'))",
    "fairseq": (
        "from fairseq.models import ARCH_MODEL_REGISTRY as r; print('cape_transformer_tiny' in r)"
    ),
    "espnet": (
        "from espnet2.tasks.asr import encoder_choices as c; print('cape_transformer' in c.classes)"
    ),
}
MODULE = {"timm": "timm", "fairseq": "fairseq", "espnet": "espnet2"}


def needs(host: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(MODULE[host]) is None
    return pytest.mark.skipif(missing, reason=f"{host} is not installed here")


def python(code: str, *arguments: str, cwd: Path | None = None, **environment: str):
    """Run code in a fresh interpreter; returns the finished process."""
    clean = {k: v for k, v in os.environ.items() if "AUTOLOAD" not in k}
    command = [sys.executable, "-c", textwrap.dedent(code)] if code else [sys.executable]
    return subprocess.run(
        [*command, *arguments],
        env={**clean, **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
    )


def last_line(process: subprocess.CompletedProcess) -> str:
    assert process.returncode == 0, process.stderr
    return process.stdout.strip().splitlines()[-1]


def test_importing_the_package_imports_nothing_but_the_standard_library():
    code = """
    import sys
    import cape_plugins, cape_plugins.autoload
    heavy = [m for m in ("torch", "numpy", "timm", "fairseq", "espnet2") if m in sys.modules]
    print(heavy)
    """
    assert last_line(python(code)) == "[]"


def test_import_torch_installs_the_hook_once_and_imports_no_host():
    code = """
    import sys
    import torch
    from cape_plugins import autoload
    autoload.install()
    print(sum(isinstance(f, autoload._HostFinder) for f in sys.meta_path),
          [m for m in ("timm", "fairseq", "espnet2") if m in sys.modules])
    """
    assert last_line(python(code)) == "1 []"


FIRST = {
    "timm": ["torch", "timm.layers", "timm.models.vision_transformer", "cape_plugins.timm"],
    "fairseq": ["torch", "fairseq", "fairseq.models.transformer", "cape_plugins.fairseq"],
    "espnet": [
        *("torch", "espnet2.tasks.asr", "espnet2.tasks.abs_task", "espnet2.bin.asr_inference"),
        "cape_plugins.espnet",
    ],
}


@pytest.mark.parametrize(
    ("host", "first"),
    [
        pytest.param(host, module, marks=needs(host))
        for host, modules in FIRST.items()
        for module in modules
    ],
)
def test_a_host_knows_our_models_whatever_is_imported_first(host, first):
    process = python(f"import {first}\n{REGISTERED[host]}")
    assert last_line(process) == "True"
    assert "cape_plugins" not in process.stderr


@pytest.mark.skipif(importlib.util.find_spec("espnet3") is None, reason="ESPnet without espnet3")
@pytest.mark.parametrize("first", ["espnet3.systems.esp2_asr.task", "espnet2.tasks.asr"])
def test_espnet3s_task_and_espnet2s_both_know_our_encoder(first):
    code = f"""
    import {first}
    from espnet2.tasks.asr import encoder_choices as one
    from espnet3.systems.esp2_asr.task import encoder_choices as other
    print("cape_transformer" in one.classes, "cape_transformer" in other.classes)
    """
    assert last_line(python(code)) == "True True"


@needs("espnet")
def test_asr_train_as_a_module_knows_the_encoder():
    process = python("", "-m", "espnet2.bin.asr_train", "--help")
    assert process.returncode == 0, process.stderr
    assert "cape_transformer" in process.stdout


@pytest.mark.parametrize("host", [pytest.param(h, marks=needs(h)) for h in REGISTERED])
@pytest.mark.parametrize("switch", ["TORCH_DEVICE_BACKEND_AUTOLOAD", "CAPE_PLUGINS_AUTOLOAD"])
def test_both_switches_turn_it_off(host, switch):
    assert last_line(python(f"import torch\n{REGISTERED[host]}", **{switch: "0"})) == "False"


@pytest.mark.parametrize("host", [pytest.param(h, marks=needs(h)) for h in REGISTERED])
def test_the_explicit_import_works_with_autoload_off(host):
    code = f"import cape_plugins.{host}\n{REGISTERED[host]}"
    assert last_line(python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")) == "True"


@pytest.mark.parametrize("host", [pytest.param(h, marks=needs(h)) for h in REGISTERED])
def test_registering_early_late_and_twice_is_safe(host):
    code = f"""
    import cape_plugins.{host} as plugin
    plugin.register()
    plugin.register()
    from cape_plugins import autoload
    autoload.install(force=True)
    {REGISTERED[host]}
    """
    process = python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert last_line(process) == "True"
    assert "cape_plugins" not in process.stderr


@pytest.mark.parametrize("host", MODULE)
def test_an_absent_host_is_no_error_until_it_is_asked_for(host):
    code = f"""
    import sys
    sys.modules["{MODULE[host]}"] = None  # as if it were not installed
    import torch
    try:
        import cape_plugins.{host}
    except ImportError as error:
        print(error)
    """
    process = python(code)
    assert f"pip install 'cape-plugins[{host}]'" in last_line(process)
    assert process.stderr == "" or "cape_plugins" not in process.stderr


FAILING = """
import sys, types
broken = types.ModuleType("cape_plugins.timm")
def register():
    raise RuntimeError("version 99 is not supported")
broken.register = register
sys.modules["cape_plugins.timm"] = broken
import torch
import timm, timm.models
print(timm.is_model("vit_tiny_patch16_224"))
"""


@needs("timm")
@pytest.mark.parametrize("flags", [[], ["-W", "error::RuntimeWarning"]], ids=["plain", "W error"])
def test_a_failing_register_leaves_torch_and_the_host_working_with_one_message(flags):
    process = python("", *flags, "-c", FAILING)
    assert last_line(process) == "True"
    assert process.stderr.count("could not register with timm") == 1
    assert "version 99 is not supported" in process.stderr
    assert "import cape_plugins.timm" in process.stderr  # the fix


def test_a_broken_hook_never_breaks_import_torch():
    code = """
    import sys
    import cape_plugins.autoload as autoload
    class Broken:
        def __init__(self):
            raise OSError("no finder today")
    autoload._HostFinder.__init__ = Broken.__init__
    import torch
    print(torch.ones(1).item())
    """
    process = python(code)
    assert last_line(process) == "1.0"
    assert "no finder today" in process.stderr


@needs("timm")
def test_the_trigger_module_keeps_its_own_loader():
    code = """
    import inspect, importlib
    import torch, timm.models
    assert "_NotifyingLoader" not in repr(timm.models.__spec__.loader)
    assert inspect.getsource(timm.models)
    importlib.reload(timm.models)
    print(timm.is_model("vit_tiny_patch16_cape_224"))
    """
    assert last_line(python(code)) == "True"


AGAIN = {
    "reloaded": "importlib.reload(cape_plugins.autoload)",
    "imported again": "del sys.modules['cape_plugins.autoload']; import cape_plugins.autoload",
}


@needs("timm")
@pytest.mark.parametrize("again", AGAIN.values(), ids=AGAIN)
def test_one_hook_serves_however_often_autoload_is_imported(again):
    code = f"""
    import importlib, sys
    import torch, cape_plugins.autoload
    {again}
    cape_plugins.autoload.install()
    hooks = [f for f in sys.meta_path if type(f).__name__ == "_HostFinder"]
    import timm
    print(len(hooks), timm.is_model("vit_tiny_patch16_cape_224"))
    """
    assert last_line(python(code)) == "1 True"


@needs("timm")
def test_another_finder_that_asks_the_finders_in_its_turn_is_no_endless_loop():
    code = """
    import sys
    import torch
    class Asking:
        def find_spec(self, name, path=None, target=None):
            if name != "timm.models":
                return None
            others = (f for f in sys.meta_path if f is not self)
            return next(s for f in others if (s := f.find_spec(name, path, target)))
    sys.meta_path.insert(0, Asking())
    import timm
    print(timm.is_model("vit_tiny_patch16_cape_224"))
    """
    assert last_line(python(code)) == "True"


@needs("espnet")
def test_a_trigger_module_runs_as_a_script_as_it_does_without_us():
    code = """
    import runpy
    import torch
    print("AbsTask" in runpy.run_module("espnet2.tasks.abs_task", alter_sys=True))
    """
    assert last_line(python(code)) == "True"


@needs("timm")
def test_a_trigger_modules_loader_gives_its_source_before_it_is_imported():
    code = """
    import importlib.util
    import torch, timm.layers  # timm itself imports timm.models
    import sys; del sys.modules["timm.models"]
    spec = importlib.util.find_spec("timm.models")
    print("vision_transformer" in spec.loader.get_source("timm.models"))
    """
    assert last_line(python(code)) == "True"


UNKNOWN_ESPNET = {  # (abs_task.py, asr.py)
    "no AbsTask": ("class Task: pass", "from espnet2.tasks.abs_task import Task"),
    "no ASRTask": ("class AbsTask: pass", "import espnet2.tasks.abs_task"),
    "ASRTask of another name": (
        "class AbsTask: pass",
        "from espnet2.tasks.abs_task import AbsTask\nclass Recognition(AbsTask): pass",
    ),
    "no choices": (
        "class AbsTask: pass",
        "from espnet2.tasks.abs_task import AbsTask\nclass ASRTask(AbsTask): pass",
    ),
}


@pytest.mark.parametrize(
    ("first", "form"),
    [
        *(("import torch", form) for form in UNKNOWN_ESPNET),
        # the task finds torch, as in python -m espnet2.bin.asr_train; no class, no notice
        *(("pass", form) for form in UNKNOWN_ESPNET if form != "no ASRTask"),
    ],
)
def test_an_espnet_of_unknown_form_is_told_and_works(first, form, tmp_path):
    tasks = tmp_path / "espnet2" / "tasks"
    tasks.mkdir(parents=True)
    (tasks.parent / "__init__.py").touch()
    (tasks / "__init__.py").touch()
    abs_task, asr = UNKNOWN_ESPNET[form]
    (tasks / "abs_task.py").write_text(f"{abs_task}\n")
    (tasks / "asr.py").write_text(f"import torch\n{asr}\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    process = python(f"{first}\nimport espnet2.tasks.asr\nprint('imported')", PYTHONPATH=path)
    assert last_line(process) == "imported"
    assert "could not register with espnet" in process.stderr
    assert "python -m cape_plugins.run" in process.stderr  # the fix


def test_an_exported_program_loads_where_only_torch_was_imported(tmp_path):
    code = """
    import sys
    import torch
    from cape_plugins import PositionalEmbedding1d
    embedding = PositionalEmbedding1d(8, "sinpos").eval()
    content, positions = torch.zeros(1, 4, 8), torch.arange(4.0).unsqueeze(0)
    program = torch.export.export(embedding, (content, positions))
    assert "cape_plugins.add_sinusoid" in str(program.graph)
    torch.export.save(program, sys.argv[1])
    print(embedding(content, positions).sum().item())
    """
    saved = last_line(python(code, str(tmp_path / "model.pt2")))
    code = """
    import sys
    import torch
    assert "cape_plugins.fused" not in sys.modules  # import torch does not pay for it
    program = torch.export.load(sys.argv[1])
    print(program.module()(torch.zeros(1, 4, 8), torch.arange(4.0).unsqueeze(0)).sum().item())
    """
    assert last_line(python(code, str(tmp_path / "model.pt2"))) == saved


@needs("timm")
def test_spawned_workers_register_too(tmp_path):
    script = tmp_path / "spawn.py"
    script.write_text(
        textwrap.dedent(
            """
            import torch.multiprocessing as mp

            def worker(rank):
                import timm
                print(timm.is_model("vit_tiny_patch16_cape_224"), flush=True)

            if __name__ == "__main__":
                mp.spawn(worker, nprocs=2)
            """
        )
    )
    process = python("", str(script))
    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == ["True", "True"]


# python -m cape_plugins.run


@needs("timm")
def test_the_runner_runs_a_script_that_sees_its_own_arguments(tmp_path):
    (tmp_path / "beside.py").write_text("value = 7\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, beside\n"
        "import timm\n"
        "print(timm.is_model('vit_tiny_patch16_cape_224'), sys.argv[1:], beside.value, __name__)\n"
    )
    process = python(
        "", "-m", "cape_plugins.run", str(script), "--flag", TORCH_DEVICE_BACKEND_AUTOLOAD="0"
    )
    assert last_line(process) == "True ['--flag'] 7 __main__"


@needs("espnet")
@pytest.mark.parametrize("dash_m", [["-m"], []], ids=["-m module", "module"])
def test_the_runner_runs_a_module(dash_m):
    process = python(
        "",
        *("-m", "cape_plugins.run", *dash_m, "espnet2.bin.asr_train", "--help"),
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert process.returncode == 0, process.stderr
    assert "cape_transformer" in process.stdout


@needs("timm")
def test_the_runner_works_under_torchrun(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, timm\n"
        "found = timm.is_model('vit_tiny_patch16_cape_224')\n"
        "os.write(1, f'{os.environ[\"RANK\"]} {found}\\n'.encode())\n"
    )
    process = python(
        "",
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("-m", "cape_plugins.run", str(script)),
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert process.returncode == 0, process.stderr
    assert sorted(process.stdout.split("\n"))[-2:] == ["0 True", "1 True"]


@pytest.mark.parametrize("arguments", [[], ["-m"], ["no_such_script.py"]])
def test_the_runner_explains_itself(arguments):
    process = python("", "-m", "cape_plugins.run", *arguments)
    assert process.returncode != 0
    assert "usage: python -m cape_plugins.run" in process.stderr


# --user-dir, the explicit way of fairseq


@needs("fairseq")
@pytest.mark.parametrize("autoload", ["0", "1"], ids=["alone", "with autoload"])
def test_user_dir_registers_once(autoload):
    process = python(
        "",
        *("-m", "fairseq_cli.train", "--user-dir", str(USER_DIR), "/nowhere", "--arch", "nonsense"),
        TORCH_DEVICE_BACKEND_AUTOLOAD=autoload,
    )
    assert process.returncode == 2  # argparse, which lists the architectures it knows
    assert process.stderr.count("'cape_transformer_iwslt_de_en'") == 1
