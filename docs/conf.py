"""The documentation site: ``make docs`` writes it to out/docs.

Sphinx's source is the whole checkout, so that pages link to each other as files do: those of the
hosts and of the results stand outside this folder.
"""

import urllib.parse
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from sphinx.addnodes import pending_xref
from sphinx.transforms.post_transforms import SphinxPostTransform

ROOT = Path(__file__).parents[1]

project = "cape-plugins"
copyright = "the cape-plugins authors"
version = release = installed("cape-plugins")

root_doc = "README"
#: the site's navigation, which README's source has not
CONTENTS = {
    "Choose": ["docs/evidence", "docs/ask", "docs/paper"],
    "Use": [
        *(f"integrations/{host}/README" for host in ("timm", "fairseq", "espnet", "transformers")),
        "docs/other-doors",
        "docs/options",
        "docs/autoload",
        *(f"docs/notebooks/{name}" for name in ("timm", "fairseq", "espnet", "my_images")),
    ],
    "Understand": [f"docs/{page}" for page in ("how-it-works", "variants", "cost", "api")]
    + ["docs/adding-a-variant", "CONTRIBUTING"],
    "Measure": ["studies/results/README", "docs/intervals", "docs/studies", "docs/compare"],
}
include_patterns = [
    "README.md",
    "docs/**",
    "integrations/*/README.md",
    "studies/results/*.md",
    "CONTRIBUTING.md",
]
extensions = [
    "myst_nb",  # MyST and notebooks
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
myst_enable_extensions = ["colon_fence", "dollarmath", "html_image"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # pages that are read as files too begin their parts at ###
# Outputs are not committed. timm's notebook takes seconds and is run here, so that its pictures are
# shown; the other two train for minutes, and say in their text what came out.
nb_execution_mode = "force"
nb_execution_excludepatterns = [
    "docs/notebooks/fairseq.ipynb",
    "docs/notebooks/espnet.ipynb",
    "docs/notebooks/my_images.ipynb",
]
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_output_stderr = "remove"  # tqdm wants a widget
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_use_rtype = False
napoleon_use_ivar = True
html_theme = "furo"
html_title = "cape-plugins"
templates_path = ["templates"]
html_additional_pages = {"index": "front.html"}  # leads to README


class FilesOfTheRepository(SphinxPostTransform):
    """A link to a file that is no page, such as a recipe, becomes its text, if the file exists."""

    default_priority = 5  # before MyST looks for a page

    def run(self, **_: Any) -> None:
        """Replace the links of one page."""
        folder = (ROOT / self.env.docname).parent
        for node in list(self.document.findall(pending_xref)):
            target = urllib.parse.unquote(node["reftarget"]).partition("#")[0]
            if node.get("refdomain") == "doc":  # a Markdown file, named as Sphinx names pages
                is_file = target not in self.env.found_docs and (ROOT / f"{target}.md").exists()
            else:
                is_file = bool(target) and (folder / target).exists()
            if node["reftype"] == "myst" and is_file:
                node.replace_self(node.children)


def navigation(_: Any, page: str, source: list[str]) -> None:
    """README's source with CONTENTS."""
    if page == root_doc:
        for caption, pages in CONTENTS.items():
            listed = "\n".join(f"/{one}" for one in pages)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n"


def leave_out(app: Any, _: Any) -> None:
    """Studies of one or two trainings are listed on a page, and not in the navigation."""
    if app.env.docname.startswith("studies/results/"):
        app.env.metadata[app.env.docname]["orphan"] = True


def setup(app: Any) -> None:
    """Add the above."""
    app.add_post_transform(FilesOfTheRepository)
    app.connect("source-read", navigation)
    app.connect("doctree-read", leave_out)
