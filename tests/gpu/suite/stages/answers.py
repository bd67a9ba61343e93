"""What gpool's own test of a GPU finds: answers that are known, and memory that keeps what is written."""

import json
import subprocess

from ..record import Skipped

SECONDS = 20
# For how long the GPU is tested, about; on a simulated one, where kernels are executed on a processor, with little memory.
TEST, SIMULATED = ["--seconds", "10"], ["--seconds", "1", "--memory", "8MiB"]
# A context is made, and kernels are compiled.
PATIENCE_S = 60


def run(suite):
    record = suite.record
    if suite.host.lacks:
        raise Skipped(suite.host.lacks)
    words = ["gpool", "gpu", "test", "--all", "--format", "json", *suite.choose(TEST, TEST, SIMULATED)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    tests = json.loads(ran.stdout or '{"tests": []}')["tests"]
    parts = [part for its in tests for part in its["report"]["parts"]]
    count = lambda outcome: sum(part["outcome"] == outcome for part in parts)
    # A healthy GPU passes: what fails here is more likely the test's fault, and says which part.
    record.figure("answers.passed", count("passed"), "parts", aim=">= 4", detail={"tests": tests, "said": ran.stderr.strip()})
    record.figure("answers.failed", count("failed"), "parts", aim="== 0")
    record.figure("answers.took", sum(its["report"]["took_ms"] for its in tests) / 1000, "s")
    for part in parts:
        record.note(f"{part['name']} {part['outcome']}: {part['told']}")
