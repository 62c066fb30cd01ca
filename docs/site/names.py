# SPDX-License-Identifier: Apache-2.0
"""Link names in backticks to the reference: calls and types of C, statuses, and environment variables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform


class Names(SphinxPostTransform):
    """`expar_put_f32` leads to the family expar_put_TYPE, `EXPAR_ERR_PEER` to the page of statuses."""

    default_priority = 400

    def run(self, **_: Any) -> None:
        places = self.app.expar_places  # type: ignore[attr-defined]
        for literal in list(self.document.findall(nodes.literal)):
            name = literal.astext().removesuffix("()")
            place = places.get(name.split("=")[0])
            if place is None or isinstance(literal.parent, nodes.reference) or literal.parent is None:
                continue
            page, anchor = place
            if page == self.env.docname:
                continue
            uri = self.app.builder.get_relative_uri(self.env.docname, page)
            link = nodes.reference("", "", internal=True, refuri=f"{uri}#{anchor}" if anchor else uri)
            literal.replace_self(link)
            link += literal


def setup(app: Any) -> dict[str, bool]:
    app.expar_places = json.loads((Path(app.srcdir) / "places.json").read_text())
    app.add_post_transform(Names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
