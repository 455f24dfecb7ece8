import re
from importlib.metadata import version as version_of
from typing import Any

# Before autodoc imports them as type checkers do, which pydantic's models do not bear.
import farstep.sim.run
import farstep.sim.sweep  # noqa: F401

project = "farstep"
author = "The farstep developers"
copyright = author
release = version = version_of("farstep")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
root_doc = "index"

myst_enable_extensions = ["deflist", "colon_fence", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True}
autodoc_inherit_docstrings = False
autoclass_content = "class"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
python_use_unqualified_type_names = True
# Docstrings mark code with single backticks, as Markdown does.
default_role = "code"

html_theme = "furo"
html_title = f"farstep {release}"
html_static_path = ["_static"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "native"


def markdown_fences_to_rst(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turns fenced code in docstrings, which editors show well, into what autodoc understands."""
    is_inside = False
    converted: list[str] = []
    for line in lines:
        fence = re.fullmatch(r"(\s*)```(\w*)", line)
        if fence and not is_inside:
            is_inside = True
            converted += ["", f"{fence[1]}.. code-block:: {fence[2] or 'text'}", ""]
        elif fence:
            is_inside = False
            converted.append("")
        else:
            converted.append(f"    {line}" if is_inside else line)
    lines[:] = converted


def setup(app: Any) -> None:
    """Registers what this file adds to Sphinx."""
    app.connect("autodoc-process-docstring", markdown_fences_to_rst)
