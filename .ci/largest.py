"""Prints the path of the largest program of tests, that of the command line, from cargo's messages."""

import json
import sys

for message in map(json.loads, open(sys.argv[1])):
    if message.get("executable") and message["target"]["kind"] == ["test"]:
        if message["target"]["name"] == "it" and message["manifest_path"].endswith("/crates/plimsoll/Cargo.toml"):
            print(message["executable"])
