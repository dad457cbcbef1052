"""The page itself: a skeleton, one style sheet, one script and the data, put together so that no data can become code.

Data stand in a script element of type JSON, which browsers do not run, with every `<`, `>` and `&` escaped; the script
makes text nodes of them and never HTML. A content security policy says the same a second time: only the style and the
script with these hashes may act, images come from data addresses alone, and nothing is fetched.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib.resources import files
from string import Template
from typing import Any

# In this order: later files use, and later styles override, what stands before.
STYLES = ("base.css", "controls.css", "table.css", "charts.css", "pictures.css", "words.css", "media.css")
SCRIPTS = ("tools.js", "model.js", "table.js", "charts.js", "pictures.js", "words.js", "main.js")


def assemble(title: str, data: dict[str, Any]) -> str:
    style = "\n".join(map(_part, STYLES))
    script = '"use strict";\n(() => {\n' + "\n".join(map(_part, SCRIPTS)) + "})();\n"
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {"title": html.escape(title), "policy": policy, "style": style, "script": script, "data": as_json(data)}
    return Template(_part("page.html")).substitute(parts)


def as_json(data: Any) -> str:
    """JSON in ASCII that can stand inside a script element: nothing in it opens or closes a tag or a comment."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _part(name: str) -> str:
    return files("opendg.report").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
