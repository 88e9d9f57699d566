"""The YAMLs of studies: where they are, and how one is composed of others and changed."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from cape_studies.command import once, said
from cape_studies.hosts import Options


class _Loader(yaml.CSafeLoader):
    """Refuses a key that stands twice in a mapping."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """As in YAML."""
        once([key.value for key, _ in node.value], f"line {node.start_mark.line + 1}")
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file.

    Raises:
        ValueError: it cannot be read, or is not a mapping.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8-sig"), _Loader)
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


#: keys that can be changed in every study, also in one that has them not
KEYS: Options = {"run": [], "seeds": [0], "options": {}, "report": {}}


def composed(path: Path, overrides: Sequence[str] = (), quick: bool = False) -> dict[str, Any]:
    """A study's YAML on what its defaults list names, with changes.

    Hydra reads the changes. It does not compose: that took a fifth of a second for each study.

    Args:
        path: of the YAML.
        overrides: changes in Hydra's grammar: ``options.epochs=1``, ``+options.new=2``, ``~needs``.
        quick: make the changes that the study lists under ``quick``, before the overrides.

    Raises:
        ValueError: it cannot be read or composed.
    """
    groups: set[str] = set()
    try:
        changes = _read(overrides)
        chosen = {one.key_or_group: str(one.value()) for one in changes}
        found = merge(KEYS, _whole(path, [path.parent, *folders()], chosen, groups))
        found = merge(found, found.get("quick") or {}) if quick else found
        for one in changes:
            found = found if one.key_or_group in groups else _changed(found, one)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return found


def _read(overrides: Sequence[str]) -> list[Any]:
    """Hydra's ``Override`` of each."""
    if not overrides:
        return []
    from hydra.core.override_parser.overrides_parser import OverridesParser  # takes 0.3 s
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_overrides([*overrides])
    except HydraException as error:
        raise ValueError(said(error, None)) from error


def _whole(
    path: Path, roots: Sequence[Path], chosen: Mapping[str, str], groups: set[str]
) -> dict[str, Any]:
    """A YAML on those of its ``defaults``, in whose list ``_self_`` is itself and ``GROUP: NAME``
    is ``GROUP/NAME.yaml``, or what is chosen of the group."""
    own, found = read_yaml(path), dict[str, Any]()
    for one in own.pop("defaults", ["_self_"]):
        name = one
        if isinstance(one, dict):
            ((group, name),) = one.items()
            groups.add(group)
            name = f"{group}/{chosen.get(group, name)}"
        below = own
        if name != "_self_":
            there = [at for root in roots if (at := root / f"{name}.yaml").is_file()]
            if not there:
                raise ValueError(
                    f"{path.name} names {name}, and there is no such YAML in {roots[-1]}"
                )
            below = _whole(there[0], roots, chosen, groups)
        found = merge(found, below)
    return found


def _changed(config: dict[str, Any], change: Any) -> dict[str, Any]:
    """A config after a change. Nothing in it is changed in place, as parts may be there twice."""
    name, adds = change.key_or_group, change.is_add()
    value: Any = change.value()
    *above, key = name.split(".")
    there: Any = config
    for one in above:
        there = there.get(one) if isinstance(there, Mapping) else None
    if change.is_sweep_override():
        raise ValueError(f"{change.input_line} is several values: a list is {name}=[…]")
    if not (adds or change.is_force_add()) and (there is None or key not in there):
        keys = ", ".join(sorted(map(str, there or ())))
        meant = f"is {key}=… meant? " if key in config else ""
        what = f"{meant}{'.'.join(above) or 'the study'} has {keys}"
        raise ValueError(f"there is no {name}: {what}{f'; +{name}=… adds it' if above else ''}")
    if adds and there and not isinstance(there.get(key), Mapping | None):
        raise ValueError(f"there is {name} already: {name}=… changes it")
    if change.is_delete():
        return _without(config, *above, key)
    for one in (key, *reversed(above)):
        value = {one: value}
    return merge(config, value)


def _without(config: dict[str, Any], key: str, *below: str) -> dict[str, Any]:
    if below:
        return {**config, key: _without(config[key], *below)}
    return {name: value for name, value in config.items() if name != key}


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
        ValueError: there is none.
    """
    if name.endswith(".yaml") and Path(name).is_file():
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
