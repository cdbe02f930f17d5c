"""Makes docs/notebooks/ from pages of the cookbook: text as it is, files and commands as cells, with what they print.

    python docs/notebooks.py BINARY      # makes them, running every cell in an empty folder
    python docs/notebooks.py --check     # says which of them no longer are the pages; runs nothing

The notebooks need no more than `plimsoll` on the PATH, and run on a CPU in seconds."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "docs" / "notebooks"
PAGES = ["own-reward", "lora-24gb", "agent", "from-trl", "serve"]
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.M | re.S)
# Lines of an output that are kept: its end.
LINES = 25


def cells_of(page):
    """Returns (kind, source) of each cell of a page."""
    text = (ROOT / "docs" / "cookbook" / f"{page}.md").read_text()
    text = re.sub(r"\]\((?!http)([^)#]*)\.md", r"](../../docs/cookbook/\1.md", text)
    cells, at = [], 0
    for fence in FENCE.finditer(text):
        cells.append(("markdown", text[at : fence.start()].strip()))
        at = fence.end()
        language, info, body = fence.groups()
        name = re.search(r"file=(\S+)", info)
        if name:
            cells.append(("code", f"%%writefile {name[1]}\n{body.rstrip()}"))
        elif language == "console" and "no-run" not in info:
            commands = [line[2:] for line in body.splitlines() if line.startswith("$ ")]
            cells.append(("code", "\n".join(f"!{command}" for command in commands)))
        elif language == "python":
            cells.append(("code", body.rstrip()))
    cells.append(("markdown", text[at:].strip()))
    return [(kind, source) for kind, source in cells if source]


def run(source, folder, env):
    """Returns what a cell prints."""
    if source.startswith("%%writefile "):
        first, body = source.split("\n", 1)
        name = first.split()[1]
        (folder / name).write_text(body + "\n")
        return f"Writing {name}\n"
    commands = [line[1:] for line in source.splitlines() if line.startswith("!")]
    words = [["sh", "-c", f"exec 2>&1\n{command}"] for command in commands] or [[sys.executable, "-c", source]]
    printed = ""
    for command in words:
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"exit code {done.returncode}: {source}\n{done.stdout}{done.stderr}")
        printed += done.stdout
    lines = printed.splitlines(keepends=True)
    return "".join((["...\n"] if len(lines) > LINES else []) + lines[-LINES:])


def notebook(cells, outputs):
    """Returns the object of a notebook of nbformat 4."""
    made = []
    for index, (kind, source) in enumerate(cells):
        cell = {"cell_type": kind, "id": f"cell-{index}", "metadata": {}, "source": source.splitlines(keepends=True)}
        if kind == "code":
            out = outputs[index]
            stream = {"name": "stdout", "output_type": "stream", "text": out.splitlines(keepends=True)}
            cell.update(execution_count=None, outputs=[stream] if out else [])
        made.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def path_of(page):
    return NOTEBOOKS / f"{page.replace('-', '_')}.ipynb"


def check():
    """Returns 1 if a notebook's cells are not those of its page."""
    stale = []
    for page in PAGES:
        path = path_of(page)
        there = json.loads(path.read_text())["cells"] if path.exists() else []
        if [(cell["cell_type"], "".join(cell["source"])) for cell in there] != cells_of(page):
            stale.append(path.name)
    if stale:
        print(f"not as their pages are: {', '.join(stale)}: python docs/notebooks.py BINARY makes them")
    return int(bool(stale))


def main():
    (word,) = sys.argv[1:]
    if word == "--check":
        return check()
    NOTEBOOKS.mkdir(parents=True, exist_ok=True)
    for page in PAGES:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            shutil.copytree(ROOT / "runs", folder / "runs", ignore=shutil.ignore_patterns("out"))
            os.symlink(pathlib.Path(word).resolve(), folder / "plimsoll")
            env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
            cells = cells_of(page)
            outputs = [run(source, folder, env) if kind == "code" else "" for kind, source in cells]
        outputs = [out.replace(name, ".") for out in outputs]
        path_of(page).write_text(json.dumps(notebook(cells, outputs), indent=1, ensure_ascii=False) + "\n")
        print(path_of(page).relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
