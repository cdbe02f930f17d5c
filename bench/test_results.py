"""The stored results: each page in results/ is what its JSON file renders to.

    cd bench && python3 -m unittest
"""

import json
import sys
import unittest
from pathlib import Path

BENCH = Path(__file__).resolve().parent
sys.path.insert(0, str(BENCH / "peers"))

import logs
import ranks_page
import readme
import results
import save
import sft

PAGES = {
    "cpu": results.cpu_page, "cpu_amx": results.cpu_page, "collect": results.collect_page, "faults": results.faults_page, "h200": results.h200_page,
    "save": save.page, "log": logs.page, "sft": sft.page,
    "h200_ranks": ranks_page.page,
}


class Stored(unittest.TestCase):
    def test_a_page_follows_from_its_json_file(self):
        for name, page in PAGES.items():
            path = BENCH / "results" / f"{name}.json"
            text = path.read_text()
            found = json.loads(text)
            self.assertEqual(json.dumps(found, indent=1) + "\n", text, name)
            self.assertEqual(page(found), path.with_suffix(".md").read_text(), name)

    def test_pages_have_the_tables_of_the_stored_numbers(self):
        found = json.loads((BENCH / "results" / "h200.json").read_text())
        for page in readme.PAGES:
            text = (BENCH.parent / page).read_text()
            self.assertEqual(readme.replaced(page, text, found), text, page)


if __name__ == "__main__":
    unittest.main()
