"""vllm-router and sglang-router in front of a service: python with_routers.py URL."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

BIN = Path(sys.executable).parent
URL = sys.argv[1]
PORT = 8711
HERE = f"http://127.0.0.1:{PORT}"
LISTEN = ("--worker-urls", URL, "--host", "127.0.0.1", "--port", str(PORT))
ROUTERS = {
    "vllm-router": [str(BIN / "vllm-router"), *LISTEN],
    "sglang-router": [sys.executable, "-m", "sglang_router.launch_router", *LISTEN],
}
USER = [{"role": "user", "content": "a"}]
REQUESTS = {
    "/v1/completions": [{"prompt": "x", "max_tokens": 2}, {"prompt": [1, 2], "max_tokens": 2}],
    "/v1/chat/completions": [
        {"messages": USER, "max_tokens": 2},
        {"messages": USER, "max_tokens": 2, "stream": True},
    ],
    "/inference/v1/generate": [{"token_ids": [1], "sampling_params": {"max_tokens": 2}}],
    "/generate": [{"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 2}}],
}
# sglang-router accepts texts only on this route, and does not have the other one.
LACKS = {
    ("sglang-router", "/v1/completions", 1),
    ("sglang-router", "/inference/v1/generate", 0),
}


def ask(path: str, body: dict | None = None) -> tuple[int, str]:
    """Send a request; return the status and the body of the answer."""
    data = None if body is None else json.dumps({"model": "rose", **body}).encode()
    headers = {"content-type": "application/json", "X-Session-ID": "s"}
    request = urllib.request.Request(HERE + path, data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, repr(error)


for name, command in ROUTERS.items():
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            end = time.monotonic() + 60
            while ask("/health")[0] != 200 and time.monotonic() < end:
                time.sleep(0.2)
            for path, bodies in REQUESTS.items():
                for place, body in enumerate(bodies):
                    if (name, path, place) in LACKS:
                        continue
                    status, text = ask(path, body)
                    assert status == 200, (name, path, place, status, text)
        finally:
            process.terminate()
    print(f"{name}: ok")
