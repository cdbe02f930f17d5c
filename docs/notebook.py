"""Makes docs/notebooks/loop.ipynb of loop.py, whose cells begin with `# %%`, and runs notebooks.

    python docs/notebook.py                # makes it, with what it prints and draws; needs nbclient, ipykernel, matplotlib
    python docs/notebook.py --check        # says whether its cells are those of loop.py; runs nothing
    python docs/notebook.py --run          # runs it anew in an empty folder, and fails where a cell does
"""

import json
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent / "notebooks"
SOURCE, MADE = HERE / "loop.py", HERE / "loop.ipynb"


def cells():
    """Returns (kind, source) of each cell."""
    found = []
    for part in SOURCE.read_text().split("# %%")[1:]:
        head, _, body = part.partition("\n")
        if "[markdown]" in head:
            lines = [line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines()]
            found.append(("markdown", "\n".join(lines)))
        else:
            found.append(("code", body.strip()))
    return found


def notebook():
    made = []
    for index, (kind, source) in enumerate(cells()):
        cell = {"cell_type": kind, "id": f"cell-{index}", "metadata": {}, "source": source.splitlines(keepends=True)}
        made.append({**cell, "execution_count": None, "outputs": []} if kind == "code" else cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def run():
    """Returns the notebook with its outputs, by a kernel of this interpreter."""
    import nbclient
    import nbformat

    with tempfile.TemporaryDirectory() as folder:
        made = nbformat.reads(json.dumps(notebook()), as_version=4)
        nbclient.NotebookClient(made, timeout=600, resources={"metadata": {"path": folder}}).execute()
    for cell in made.cells:
        cell.metadata = {}
    return made


def written(made):
    """Returns the file's text, in which the source of a cell is a list of lines."""
    import nbformat

    return json.dumps(json.loads(nbformat.writes(made)), indent=1, ensure_ascii=False) + "\n"


def main():
    (how,) = sys.argv[1:] or [""]
    if how == "--check":
        there = json.loads(MADE.read_text())["cells"]
        same = [(cell["cell_type"], "".join(cell["source"])) for cell in there] == cells()
        print("" if same else f"{MADE.name} no longer has the cells of {SOURCE.name}: python docs/notebook.py makes it")
        return int(not same)
    made = run()
    pictures = sum("image/png" in out.get("data", {}) for cell in made.cells for out in cell.get("outputs", []))
    print(f"{len(made.cells)} cells, {pictures} pictures")
    if how != "--run":
        MADE.write_text(written(made))
    return 0


if __name__ == "__main__":
    sys.exit(main())
