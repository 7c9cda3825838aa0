# SPDX-License-Identifier: Apache-2.0
"""Settings of Sphinx for the site; tools/docs gives the version and Doxygen's XML."""

import os

project = "lade"
author = "The lade authors"
copyright = "the lade authors, Apache-2.0"
release = os.environ["LADE_DOCS_VERSION"]
html_title = f"lade {release}"
extensions = ["myst_parser", "breathe"]
exclude_patterns = ["README.md"]

breathe_projects = {"lade": os.environ["LADE_DOCS_XML"]}
breathe_default_project = "lade"
breathe_domain_by_extension = {"h": "c", "hpp": "cpp"}
breathe_show_include = False
c_id_attributes = ["LADE_API"]

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block"]
# A struct and its typedef are one name in C, and breathe declares both; a code block with "..." in it is shown as it is.
suppress_warnings = ["misc.highlighting_failure", "duplicate_declaration.c", "duplicate_declaration.cpp", "c.duplicate_declaration", "cpp.duplicate_declaration"]

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["lade.css"]
html_copy_source = False
html_show_sphinx = False
html_last_updated_fmt = None
