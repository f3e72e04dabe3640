"""Requests that a fuzzer makes from the OpenAPI schema: each answer keeps to the schema."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = 15
# A pause would hold all that follows; what is refused depends on versions, which the schema lacks.
OPTIONS = (
    *("--exclude-path", "/pause", "--exclude-path", "/pause_generation"),
    *("--exclude-checks", "positive_data_acceptance"),
    *("--request-timeout", "30", "--phases", "examples,coverage,fuzzing", "--seed", "1"),
    f"--max-examples={EXAMPLES}",
)


@pytest.mark.slow
def test_no_request_of_the_schema_breaks_the_service(repo, tmp_path) -> None:
    pytest.importorskip("schemathesis")
    command = [sys.executable, "-m", "rose.cli.main", "serve", "--rollouts", "trial:2"]
    fuzzer = Path(sys.executable).with_name("st")
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", "--context-tokens", "64"],
        cwd=repo,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            url = process.stdout.readline().split()[1]
            done = subprocess.run(
                [fuzzer, "run", f"{url}/openapi.json", *OPTIONS],
                cwd=tmp_path,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stdout[-4000:]
        finally:
            process.terminate()
        assert process.wait(20) == 0
