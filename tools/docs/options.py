"""The table of docs/options.md, from the options' fields and each HOST.

python tools/docs/options.py
"""

import dataclasses
import re
from collections.abc import Callable
from dataclasses import Field
from pathlib import Path
from typing import Any

from cape_plugins import variants
from cape_plugins.espnet import options as espnet
from cape_plugins.fairseq import options as fairseq
from cape_plugins.host import Host
from cape_plugins.options import POSITION
from cape_plugins.timm import options as timm
from cape_plugins.timm.registry import variants_by_name
from cape_plugins.transformers.options import DECODER

PAGE = Path(__file__).parents[2] / "docs" / "options.md"
MARKS = "<!-- options: made by tools/docs/options.py -->", "<!-- end of options -->"
HOSTS: dict[str, Host] = {
    "timm": timm.HOST,
    "fairseq": fairseq.HOST,
    "ESPnet": espnet.HOST,
    "transformers": DECODER,
}
#: host → the dataclass of options that it alone has
OWN: dict[str, type] = {
    "timm": timm.ImageOptions,
    "fairseq": fairseq.SourceFlags,
    "ESPnet": espnet.EncoderOptions,
}
#: of these the ones that not all variants take
TAKEN_BY: dict[str, Callable[[variants.Variant], bool]] = {
    "extent": lambda variant: variant.has_positions,
    "source_scale": fairseq.aligns_source,
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


def ours(host: str) -> tuple[str, ...]:
    """The variants of this package, without those of other packages that are installed."""
    return variants.OURS[HOSTS[host].axes]


def taken(host: str, pos: str) -> dict[str, Field[Any]]:
    """Name → option that a variant takes, the host's own among them."""
    variant = variants.get(pos, HOSTS[host].axes)
    own = dataclasses.fields(OWN[host]) if host in OWN else ()
    return HOSTS[host].taken(pos) | {
        one.name: one
        for one in own
        if "help" in one.metadata and TAKEN_BY.get(one.name, lambda _: True)(variant)
    }


def options(host: str) -> dict[str, Field[Any]]:
    """Name → option that one of our variants takes."""
    return {name: one for pos in ours(host) for name, one in taken(host, pos).items()}


def table() -> str:
    """A row for each option of any variant and host, then the names of timm that set some."""
    every = {name: one for host in HOSTS for name, one in options(host).items()}
    lines = [f"| option | what it does | variants | {' | '.join(HOSTS)} |", "|---" * 6 + "|"]
    for name, one in sorted(every.items()):
        takers = {host: [pos for pos in ours(host) if name in taken(host, pos)] for host in HOSTS}
        cells = [_default(host, name) if takers[host] else "" for host in HOSTS]
        lines.append(
            f"| `{name}` | {one.metadata['help']} | {_variants(takers)} | {' | '.join(cells)} |"
        )
    return "\n".join([*lines, "", *_names_of_timm()])


def _default(host: str, name: str) -> str:
    one = options(host)[name]
    default = HOSTS[host].default(one)
    if default is None:
        return DECIDES[host, name]
    value = f"`{default}`" if isinstance(default, str) else f"{default:g}"
    return f"{value} {HOSTS[host].unit}" if one.metadata.get("unit") == POSITION else value


def _variants(takers: dict[str, list[str]]) -> str:
    """Those of all hosts that have the option, then those of one host."""
    having = {host: found for host, found in takers.items() if found}
    shared = [pos for pos in next(iter(having.values())) if all(pos in f for f in having.values())]
    every = [len(ours(host)) - len(found) for host, found in having.items()]
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
