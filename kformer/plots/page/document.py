"""The page as a document: served in parts, or as one file that holds its data.

Neither has script or style in its markup, so a browser can be told to run nothing but the files of
this package.
"""

import base64
import hashlib
import html
import json
import re
from importlib import resources

_ASSETS = resources.files(__package__) / "assets"
_LINKED = re.compile(
    r'<link rel="icon"[^>]*>\n?|<link rel="stylesheet" href="page/(?P<style>[\w.]+)">'
    r'|<script defer src="page/(?P<script>[\w.]+)"></script>\n?|</body>|<title>kformer</title>'
)
# What the page does not name here, no browser loads: everything else is refused.
_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'"
POLICY = (
    f"{_POLICY}; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "frame-ancestors 'none'"
)


def asset(name):
    """Reads a file of the page.

    Args:
        name: str. Its name.

    Returns:
        bytes.
    """
    return (_ASSETS / name).read_bytes()


def asset_names():
    """The names of the files of the page.

    Returns:
        List of str.
    """
    return sorted(file.name for file in _ASSETS.iterdir() if file.name != "index.html")


def standalone_page(reply, attention, title):
    """The page as one file that needs no server.

    Args:
        reply: dict. What the server answers to `/page/translate`.
        attention: dict. What the server answers to `/page/attention`.
        title: str. The title of the document, until its script runs.

    Returns:
        str. HTML, whose policy names its scripts and its style by their hashes.
    """
    # A text may contain "</script>", which would end the data.
    data = json.dumps({"reply": reply, "attention": attention}, ensure_ascii=False)
    data = data.replace("<", "\\u003c")
    styles, scripts = [], []

    def whole(match):
        if match["style"]:
            styles.append(asset(match["style"]).decode("utf-8"))
            return f"<style>{styles[-1]}</style>"
        if match["script"]:
            scripts.append(asset(match["script"]).decode("utf-8"))
            return ""
        if match[0] == "</body>":
            blocks = [f'<script type="application/json" id="data">{data}</script>\n']
            blocks += [f"<script>{script}</script>\n" for script in scripts]
            return "".join([*blocks, match[0]])
        if match[0].startswith("<title>"):
            return f"<title>{html.escape(title)}</title>"
        return ""  # The icon.

    # In one pass, since the data may contain such marks, too.
    page = _LINKED.sub(whole, asset("index.html").decode("utf-8"))
    policy = f"{_POLICY}; script-src {_hashes(scripts)}; style-src {_hashes(styles)}"
    meta = f'<meta http-equiv="content-security-policy" content="{policy}">\n'
    return page.replace('<meta charset="utf-8">\n', f'<meta charset="utf-8">\n{meta}', 1)


def _hashes(texts):
    digests = [hashlib.sha256(text.encode("utf-8")).digest() for text in texts]
    return " ".join(f"'sha256-{base64.b64encode(digest).decode('ascii')}'" for digest in digests)
