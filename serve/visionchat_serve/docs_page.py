"""The page at `/docs`: Swagger UI over the API's own description, with nothing from elsewhere.

Its files come with the package `fastapi-swagger`; the page only names them. Knows nothing of the API. Used by `routes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

HTML = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>VisionChat: the API</title>
<link rel="icon" href="docs/favicon-32x32.png">
<link rel="stylesheet" href="docs/swagger-ui.css">
<div id="api">The API's description is in <a href="openapi.json">openapi.json</a>.</div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</html>
"""
START = 'SwaggerUIBundle({url: "openapi.json", dom_id: "#api", deepLinking: true, validatorUrl: null});\n'
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}
KEPT = {"Cache-Control": "max-age=86400"}  # one and a half megabyte; they change with a new version of the package


@dataclass(frozen=True, slots=True)
class File:
    """What a browser loads for the page."""

    body: bytes
    media_type: str


def load_files() -> Mapping[str, File]:
    """By name; they are below `/docs/`."""
    there = resources.files("fastapi_swagger.resources")
    of_package = {
        "swagger-ui-bundle.js": "text/javascript",
        "swagger-ui.css": "text/css",
        "favicon-32x32.png": "image/png",
    }
    files = {name: File(there.joinpath(name).read_bytes(), media_type) for name, media_type in of_package.items()}
    return files | {"start.js": File(START.encode(), "text/javascript")}
