"""The page of a result of scripts/gpu-check."""

import html

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 68em; padding: 0 1em; color: #1b1f24; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
table { border-collapse: collapse; width: 100%; margin: .6em 0; }
th, td { text-align: left; vertical-align: top; padding: .3em .6em; border-bottom: 1px solid #d8dee4; }
th { font-weight: 600; background: #f6f8fa; }
td.number { text-align: right; white-space: nowrap; }
td.figures { font-variant-numeric: tabular-nums; }
.figure { display: inline-block; margin-right: 1.2em; white-space: nowrap; } .figure b { font-weight: 600; }
.state { display: inline-block; padding: 0 .5em; border-radius: .7em; color: #fff; white-space: nowrap; font-size: .87em; }
.passed { background: #1a7f37; } .failed { background: #cf222e; } .late { background: #9a6700; }
.none { background: #6e7781; } .mock { background: #fff8c5; border: 1px solid #d4a72c; padding: .5em .8em; }
code { font-size: .92em; }
"""
CLASS = {"passed": "passed", "failed": "failed", "out of time": "late"}


def state(name):
    return f'<span class="state {CLASS.get(name, "none")}">{html.escape(name)}</span>'


def figure(name, value):
    text = value
    if isinstance(value, float):
        text = f"{value:.4g}" if abs(value) < 1e5 else f"{value:.0f}"
    return f'<span class="figure">{html.escape(name.replace("_", " "))} <b>{html.escape(str(text))}</b></span>'


def row(item):
    figures = " ".join(figure(*each) for each in item.get("figures", {}).items())
    said = html.escape(str(item.get("said", "")))
    return (f"<tr><td>{html.escape(item['item'])}</td><td>{state(item['state'])}</td>"
            f'<td class="figures">{figures}{"<br>" if figures and said else ""}{said}</td></tr>')


def page(result):
    """As HTML, which needs no other file."""
    machine = result["machine"]
    verdict = {None: "not finished", True: "all checks passed", False: "not all checks passed"}[result["passed"]]
    mock = result["mode"] == "mock"
    head = f"gpu-check --mock: {verdict}" if mock else f"Starling on {machine.get('device', 'a GPU')}: {verdict}"
    parts = [f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(head)}</title>'
             f"<style>{STYLE}</style></head><body><h1>{html.escape(head)}</h1>"]
    if mock:
        parts.append('<p class="mock">A run on the CPU, with small sizes. It shows that the checks run. '
                     "Its figures say nothing about a GPU.</p>")
    parts.append(f"<p>{html.escape(result['date'])}, {result['seconds']:.0f} s of {60 * result['minutes']:.0f} s</p>")
    if machine:
        parts.append("<p>" + " ".join(figure(*each) for each in machine.items()) + "</p>")
    parts.append("<table><tr><th>check</th><th>result</th><th>seconds</th><th>why</th></tr>")
    for check in result["checks"]:
        parts.append(f'<tr><td><a href="#{check["name"]}">{html.escape(check["title"])}</a></td><td>{state(check["status"])}</td>'
                     f'<td class="number">{check["seconds"]:.1f}</td><td>{html.escape(check["why"])}</td></tr>')
    parts.append("</table>")
    for check in result["checks"]:
        parts.append(f'<h2 id="{check["name"]}">{html.escape(check["title"])} <code>{check["name"]}</code></h2>')
        if not check["items"]:
            parts.append(f"<p>{html.escape(check['why'] or 'Nothing was said.')}</p>")
            continue
        parts.append("<table><tr><th>what</th><th>result</th><th>figures</th></tr>")
        parts += [row(item) for item in check["items"]]
        parts.append("</table>")
    parts.append("</body></html>\n")
    return "\n".join(parts)
