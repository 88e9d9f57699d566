"""The YAMLs of studies: where they are, and how Hydra composes one of others and changes it."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import yaml
from hydra import compose, initialize_config_dir, version
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from cape_studies.command import said


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file.

    Raises:
        ValueError: it cannot be read, or is not a mapping.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8-sig"), yaml.CSafeLoader)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read: {said(error, None)}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must be a mapping")
    return content


def studies_of(path: Path) -> list[Path]:
    """The YAMLs of a set of studies, or the study's own."""
    names = read_yaml(path).get("studies")
    return [path.parent / f"{name}.yaml" for name in names] if isinstance(names, list) else [path]


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with the values of ``over``, mapping by mapping."""
    found = {**base, **over}
    for key in base.keys() & over.keys():
        if isinstance(base[key], Mapping) and isinstance(over[key], Mapping):
            found[key] = merge(base[key], over[key])
    return found


@contextmanager
def interpolations(fact: Callable[[str], Any]) -> Iterator[None]:
    """``${facts:NAME}`` is what ``fact`` gives of the name; ``${oc.env:NAME}`` is refused.

    Settings stand in ``config.yaml`` and on a report's page, where secrets of the environment must
    not be.
    """

    def refused(name: str, *_: Any) -> NoReturn:
        raise ValueError(
            f"${{oc.env:{name}}} would show a variable of the environment in the report: give its "
            "value as an override, KEY=VALUE"
        )

    OmegaConf.register_new_resolver("facts", fact, replace=True)
    OmegaConf.register_new_resolver("oc.env", refused, replace=True)
    try:
        yield
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


#: what Hydra says where +KEY=… is there already, the former if its value is not known yet
ADDED_TWICE = r"(?:Error merging override \+|Could not append .*already at ')([^=']+)"


def composed(path: Path, overrides: Sequence[str] = (), quick: bool = False) -> DictConfig:
    """The config that Hydra makes from a study's YAML, its defaults list and overrides.

    Names in the defaults list are looked for beside the YAML and in ``configs/studies``. Keys that
    every study has by default, such as ``run`` and ``seeds``, can be overridden in every study.

    Args:
        path: of the YAML.
        overrides: changes in Hydra's grammar: ``options.epochs=1``, ``+options.new=2``.
        quick: make the changes that the study lists under ``quick``, before the overrides.

    Raises:
        ValueError: it cannot be read or composed.
    """
    read_yaml(path)
    store = ConfigStore.instance().store
    store("cape_study_keys", {"run": [], "seeds": [0], "options": {}, "report": {}})
    defaults = ["cape_study_keys", path.stem, "cape_study_quick", "_self_"]
    store("cape_study", {"defaults": defaults})
    search = [f"hydra.searchpath=[{json.dumps(f'file://{folder}')}]" for folder in folders()]

    def make(overrides: Sequence[str] = (), changes: Any = None) -> DictConfig:
        store("cape_study_quick", changes or {})
        return compose("cape_study", overrides=[*search, *overrides])

    try:  # fairseq's own calls in this process set an older base, of which Hydra 1.3.8 warns
        with (
            interpolations(lambda name: f"<{name}>"),  # Hydra looks at a value that it replaces
            initialize_config_dir(str(path.resolve().parent), version_base="1.3"),
        ):
            try:
                return make(overrides, make().get("quick") if quick else {})
            except HydraException as error:
                text = said(error, None).partition(" Config search path")[0]
                if key := re.match(r"Could not (?:override|delete from config.) '([^']+)'", text):
                    text = _no_key(key[1], make()) or text
                elif key := re.match(ADDED_TWICE, text):
                    text = f"there is {key[1]} already: {key[1]}=… changes it"
                elif error.__cause__:
                    text += f": {said(error.__cause__)}"
                raise ValueError(f"{path}: {text}") from error
    except (OmegaConfBaseException, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path}, or a YAML that it names: {said(error, None)}") from error
    finally:
        version.VersionBase.instance().setbase(version.__compat_version__)


def _no_key(name: str, config: DictConfig) -> str | None:
    """Of a key that does not exist: the keys beside it, and how one is added."""
    above, _, key = name.rpartition(".")
    there = OmegaConf.select(config, above) if above else config
    if not isinstance(there, DictConfig):
        return None
    keys = ", ".join(sorted(map(str, there)))
    meant = f"is {key}=… meant? " if key in config else ""
    adds = f"; +{name}=… adds it" if above else ""
    return f"there is no {name}: {meant}{above or 'the study'} has {keys}{adds}"


def folders() -> list[Path]:
    """``configs/studies`` of this package's checkout, of the current folder, or of the wheel."""
    package = Path(__file__).resolve().parent
    roots = package.parents[1], Path.cwd(), package / "_files"
    there = [root / "configs" / "studies" for root in roots]
    return [folder for folder in there if folder.is_dir()][:1]


def names() -> list[Path]:
    """The YAMLs of all studies."""
    return sorted(path for folder in folders() for path in folder.glob("*.yaml"))


def find(name: str) -> Path:
    """The YAML of a study: a path, or a name in :func:`folders`.

    Raises:
        ValueError: there is none, or it is not the name of a folder.
    """
    if name.endswith(".yaml") and Path(name).is_file():
        if Path(name).name == "...yaml":  # its report's folder would be OUT/..
            raise ValueError(f"{name} is named '..' without .yaml: give it a name of letters")
        return Path(name)
    there = {path.stem: path for path in names()}
    if name not in there:
        near = get_close_matches(name, there)
        like = f"similar names are {', '.join(near)}; " if near else ""
        raise ValueError(
            f"no study {name!r} in configs/studies: {like}cape-run --list shows all. For a study "
            "of your own give the path of its NAME.yaml"
        )
    return there[name]
