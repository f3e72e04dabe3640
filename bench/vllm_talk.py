"""Streams completions with the `openai` client, and prints each answer as a line of JSON.

Run by the Python of the environment that `make vllm-env` makes.
"""

import argparse
import json
import sys
import threading
import time

from openai import OpenAI

ANSWERS_S = 1800.0  # for all answers together


def stream(client: OpenAI, model: str, prompt: list[int], tokens: int) -> dict[str, object]:
    """Return the token ids of one answer, and the seconds until each piece arrived."""
    started = time.monotonic()
    ids: list[int] = []
    at_s: list[float] = []
    error = None
    try:
        for piece in client.completions.create(
            model=model,
            prompt=prompt,
            max_tokens=tokens,
            temperature=0.0,
            stream=True,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        ):
            new = piece.choices[0].token_ids or []
            ids += new
            at_s += [time.monotonic() - started] * len(new)
    except Exception as failure:  # noqa: BLE001 (it is the answer)
        error = f"{type(failure).__name__}: {failure}"
    return {"tokens": ids, "began_s": started, "at_s": at_s, "error": error}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--gap-s", type=float, default=0.0, help="between two starts")
    prompts = json.load(sys.stdin)
    options = parser.parse_args()
    client = OpenAI(
        base_url=f"http://127.0.0.1:{options.port}/v1", api_key="-", timeout=300, max_retries=0
    )
    model = client.models.list().data[0].id
    seats = threading.Semaphore(options.at_once)
    answers: list[dict[str, object]] = [{} for _ in prompts]

    def run(place: int) -> None:
        with seats:
            answers[place] = stream(client, model, prompts[place], options.tokens)

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(prompts))]
    for thread in threads:
        thread.start()
        time.sleep(options.gap_s)
    for thread in threads:
        thread.join(ANSWERS_S)
    for answer in answers:
        print(json.dumps(answer))


if __name__ == "__main__":
    main()
