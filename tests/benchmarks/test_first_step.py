"""Files and functions that run from `system run` to the first training step, counted by a profiler."""

import json
import os
import subprocess
import sys

import pytest

MAX_FILES = 80

COUNTING = """
import json, sys
root, floors = sys.argv[1], ("system", "submission", "data_tools")
functions, depth = set(), 0

class FirstStep(BaseException):
    pass

def count(frame, event, _):
    global depth
    code = frame.f_code
    name = code.co_filename.removeprefix(root + "/")
    if event != "call" or name == code.co_filename or name.split("/")[0] not in floors or not code.co_flags & 1:
        return  # the bodies of modules and classes have no such flag
    functions.add((name, code.co_qualname))
    above, here = 0, frame
    while here:
        above += here.f_code.co_filename.startswith(root + "/")
        here = here.f_back
    depth = max(depth, above)
    if code.co_name == "add_gradients":
        raise FirstStep

from system.__main__ import main
sys.setprofile(count)
try:
    main(["run", sys.argv[2], "--out", "run"])
except FirstStep:
    sys.setprofile(None)
else:
    sys.exit("the function of the first step was not called; was it renamed?")
print(json.dumps({"files": len({name for name, _ in functions}), "functions": len(functions), "depth": depth}))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("unbroken")  # whose frames are there
def test_few_python_files_are_loaded_before_the_first_training_step(root, recipe, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(root)}
    command = [sys.executable, "-c", COUNTING, str(root), str(recipe)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    assert found["files"] <= MAX_FILES
