"""Attention maps as an interactive HTML page that needs no library."""

import html
import json
import re

import numpy as np

from kformer.plots.attention import AXES

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>@TITLE@</title><style>
body { font-family: system-ui, sans-serif; margin: 2rem; color: #1a1a1a; }
table { border-collapse: collapse; }
th { font-weight: normal; white-space: nowrap; padding: 0 .4rem; }
thead th { writing-mode: vertical-rl; padding: .3rem 0; } tbody th { text-align: right; }
td { width: 1.6rem; height: 1.6rem; border: 1px solid #eee; }
.on { font-weight: bold; color: #1f5fa8; }
label { margin-right: 1rem; }
</style></head><body><h1>@TITLE@</h1><p>@SOURCE@</p><p>
<label>attention <select id="kind"></select></label>
<label>layer <select id="layer"></select></label>
<label>head <select id="head"></select></label></p><p id="axes"></p>
<div id="map"></div><p id="pair">&nbsp;</p>
<script type="application/json" id="data">@DATA@</script><script>
const get = id => document.getElementById(id), data = JSON.parse(get("data").textContent);
function option(value, text) {
  return Object.assign(document.createElement("option"), { value: value, textContent: text });
}
function fill(select, names) {
  select.replaceChildren(...names.map((name, i) => option(i, name)));
}
function cell(tag, text) { const c = document.createElement(tag); c.textContent = text; return c; }
function draw() {
  const map = data[get("kind").value], scores = map.scores[get("layer").value];
  const head = +get("head").value, heads = head < 0 ? scores : [scores[head]];
  const table = document.createElement("table"), top = document.createElement("tr");
  top.append(cell("th", ""), ...map.keys.map(key => cell("th", key)));
  table.createTHead().append(top);
  const body = table.createTBody();
  map.queries.forEach((query, i) => {
    const row = body.insertRow(); row.append(cell("th", query));
    map.keys.forEach((key, j) => {
      const value = heads.reduce((sum, one) => sum + one[i][j], 0) / heads.length / 1000;
      const box = row.insertCell();
      box.style.background = `rgba(31, 95, 168, ${value})`;
      box.onmouseenter = () => {
        const names = `${map.rows} ${query}, ${map.columns} ${key}`;
        get("pair").textContent = `${names}: ${value.toFixed(3)}`;
        row.firstChild.className = top.children[j + 1].className = "on"; };
      box.onmouseleave = () => { row.firstChild.className = top.children[j + 1].className = ""; };
    });
  });
  get("map").replaceChildren(table);
  get("axes").textContent = `Rows: ${map.rows}. Columns: ${map.columns}.`;
}
function choose() {
  const map = data[get("kind").value];
  fill(get("layer"), map.scores.map((_, i) => i + 1));
  fill(get("head"), map.scores[0].map((_, i) => i + 1));
  get("head").prepend(option(-1, "mean"));
  get("layer").value = map.scores.length - 1; get("head").value = -1; draw();
}
fill(get("kind"), data.map(map => map.name)); get("kind").onchange = choose;
get("layer").onchange = get("head").onchange = draw; choose();
</script></body></html>
"""


def attention_html(maps):
    """Makes an interactive page with all the attention of a sentence.

    Its reader chooses kind, layer and head. Pointing at a cell shows its weight.

    Args:
        maps: `AttentionMaps`.

    Returns:
        str. The HTML.

    Example:

    ```python
    translator = kformer.Translator.load("runs/en-de")
    maps = kformer.plots.attention_maps(translator, "A man rides a horse.")
    page = kformer.plots.attention_html(maps)
    ```
    """
    data = []
    for name, kind in (
        ("decoder on encoder", "cross"),
        ("encoder", "encoder"),
        ("decoder", "decoder"),
    ):
        scores, queries, keys = maps.of(kind)
        thousandths = np.round(scores * 1000).astype(int).tolist()
        rows, columns = AXES[kind]
        entry = {"name": name, "scores": thousandths, "rows": rows, "columns": columns}
        data.append({**entry, "queries": list(queries), "keys": list(keys)})
    # A user's text may contain "</script>", which would end the script.
    content = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    parts = {"@TITLE@": html.escape(maps.text or "attention"), "@DATA@": content}
    parts["@SOURCE@"] = html.escape(maps.source_text)
    # In one pass, since the inserted texts may contain these marks too.
    return re.sub("|".join(parts), lambda mark: parts[mark[0]], _PAGE)
