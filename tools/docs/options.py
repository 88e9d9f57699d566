"""The table of docs/options.md, from the options' fields and each HOST.

python tools/docs/options.py
"""

import re
from pathlib import Path
from typing import Any

from cape_plugins import variants
from cape_plugins.espnet import options as espnet
from cape_plugins.fairseq import options as fairseq
from cape_plugins.host import Host
from cape_plugins.options import POSITION, Option
from cape_plugins.timm import options as timm
from cape_plugins.timm.registry import variants_by_name
from cape_plugins.transformers.options import DECODER

PAGE = Path(__file__).parents[2] / "docs" / "options.md"
MARKS = "<!-- options: made by tools/docs/options.py -->", "<!-- end of options -->"
HOSTS: dict[str, Host[Any]] = {
    "timm": timm.HOST,
    "fairseq": fairseq.HOST,
    "ESPnet": espnet.HOST,
    "transformers": DECODER,
}
#: what a host takes where the default is None
DECIDES = {
    ("timm", "max_local_shift"): "half a patch",
    ("timm", "rope_base"): "100",
    ("fairseq", "rope_base"): "10000",
    ("ESPnet", "rope_base"): "10000",
    ("ESPnet", "max_local_shift"): "half the spacing of frames after the convolution",
    ("ESPnet", "relpos_context"): f"{espnet.RELPOS_CONTEXT} seconds; "
    f"`relpos_first` {espnet.RELPOS_CONTEXT_FIRST} seconds",
    ("ESPnet", "content_scale"): "1; in ESPnet's encoders √`output_size`",
}


def ours(host: Host[Any]) -> list[str]:
    """The variants of this package, without those of other packages that are installed."""

    def is_ours(pos: str) -> bool:
        variant = variants.get(pos, host.axes)
        slots = [one for one in (variant.adds, variant.augments, variant.attends) if one]
        return all(one.__module__.startswith("cape_plugins.") for one in slots)

    return [pos for pos in host.names() if is_ours(pos)]


def table() -> str:
    """A row for each option of any variant and host, then the names of timm that set some."""
    taken = {
        name: {pos: host.taken(pos) for pos in ours(host)} for name, host in HOSTS.items()
    }  # host → variant → option
    options: dict[str, Option] = {}
    for by_variant in taken.values():
        for found in by_variant.values():
            options |= found
    lines = [f"| option | what it does | variants | {' | '.join(HOSTS)} |", "|---" * 6 + "|"]
    for name, one in sorted(options.items()):
        takers = {
            host: [pos for pos, found in by_variant.items() if name in found]
            for host, by_variant in taken.items()
        }
        cells = [_default(host, name) if takers[host] else "" for host in HOSTS]
        lines.append(f"| `{name}` | {one.help} | {_variants(takers)} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_names_of_timm()])


def _default(host: str, name: str) -> str:
    shown = HOSTS[host].options()[name]
    if shown.default is None:
        return DECIDES[host, name]
    number = not isinstance(shown.default, str)
    value = f"{shown.default:g}" if number else f"`{shown.default}`"
    return f"{value} {HOSTS[host].unit}" if shown.unit == POSITION else value


def _variants(takers: dict[str, list[str]]) -> str:
    """Those of all hosts that have the option, then those of one host."""
    having = {host: found for host, found in takers.items() if found}
    shared = [pos for pos in next(iter(having.values())) if all(pos in f for f in having.values())]
    every = [len(ours(HOSTS[host])) - len(found) for host, found in having.items()]
    if not any(every):
        return "all"
    if every == [1] and "nopos" not in shared:
        return "all but `nopos`"
    cell = ", ".join(f"`{pos}`" for pos in shared)
    more: dict[str, list[str]] = {}  # variants → the hosts that have them besides
    for host, found in having.items():
        more.setdefault(", ".join(f"`{pos}`" for pos in found if pos not in shared), []).append(
            host
        )
    for others, of in more.items():
        cell += f"; in {', '.join(of)} {others} too" if others else ""
    return cell


def _names_of_timm() -> list[str]:
    """The parts of timm's names that are a variant with an option set."""
    lines = ["| in a name of timm | is |", "|---|---|"]
    for name, given in variants_by_name().items():
        options = {option: value for option, value in given.items() if option != "pos"}
        if options:
            values = " ".join(f"{option}={value:g}" for option, value in options.items())
            lines.append(f"| `{name}` | `{given['pos']}` with `{values}` |")
    return lines


def page(text: str) -> str:
    """A page with its part between the marks made anew."""
    begin, end = map(re.escape, MARKS)
    made = "\n\n".join([MARKS[0], table(), MARKS[1]])
    return re.sub(f"{begin}.*{end}", lambda _: made, text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
