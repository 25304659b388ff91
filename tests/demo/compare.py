"""Compares what was refused with what must have been, for each of the lists
that say so: compare.py EXPECTED SANDBOX LIST=FILE...

A line of EXPECTED is `RIGHT OBJECT RULE ERRNO`, separated by tabs.
"""

import json
import sys

expected_path, sandbox, *lists = sys.argv[1:]

with open(expected_path) as file:
    expected = sorted(tuple(line.rstrip("\n").split("\t")) for line in file)

failed = False
for argument in lists:
    title, path = argument.split("=", 1)
    with open(path) as file:
        events = [json.loads(line) for line in file if line.startswith("{")]
    found = sorted(
        (it["right"], it["object_display"], it["rule"], str(it["errno"]))
        for it in events
        if it["type"] == "denial" and it["sandbox_id"] == sandbox
    )
    lost = [it for it in events if it["type"] == "lost"]
    if found == expected and not lost:
        print(f"  {title}: {len(found)} entries, one for each")
        continue
    failed = True
    print(f"  {title}: not as promised")
    for entry in expected:
        if entry not in found:
            print(f"    missing: {entry}")
    for entry in found:
        if entry not in expected or found.count(entry) > 1:
            print(f"    too much: {entry}")
    if lost:
        print(f"    lost: {lost}")

sys.exit(1 if failed else 0)
