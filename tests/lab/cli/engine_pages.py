"""Pages of engines in the shape that was recorded of them, and a server for them."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TTFT_BOUNDS = (0.001, 0.02, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 10.0)
TPOT_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.5)


def histogram(name, labels, bounds, values):
    lines = [f"# HELP {name} Histogram.", f"# TYPE {name} histogram"]
    for bound in (*bounds, float("inf")):
        count = sum(1 for value in values if value <= bound)
        le = "+Inf" if bound == float("inf") else repr(bound)
        lines.append(f'{name}_bucket{{{labels},le="{le}"}} {float(count)}')
    lines += [f"{name}_count{{{labels}}} {float(len(values))}"]
    lines += [f"{name}_sum{{{labels}}} {float(sum(values))!r}"]
    return lines


def vllm(
    *,
    kv=0.25,
    running=3,
    waiting=0,
    ttft=(),
    tpot=(),
    preempted=0,
    blocks=16384,
    rank="0",
    kv_name="vllm:kv_cache_usage_perc",
    tpot_name="vllm:inter_token_latency_seconds",
    model="Qwen/Qwen3-8B",
):
    labels = f'engine="{rank}",model_name="{model}"'
    lines = [
        "# HELP python_gc_objects_collected_total Objects collected during gc",
        "# TYPE python_gc_objects_collected_total counter",
        'python_gc_objects_collected_total{generation="0"} 9871.0',
        "# HELP vllm:num_requests_running Number of requests in model execution batches.",
        "# TYPE vllm:num_requests_running gauge",
        f"vllm:num_requests_running{{{labels}}} {float(running)}",
        "# TYPE vllm:num_requests_waiting gauge",
        f"vllm:num_requests_waiting{{{labels}}} {float(waiting)}",
        f"# HELP {kv_name} KV-cache usage. 1 means 100 percent usage.",
        f"# TYPE {kv_name} gauge",
        f"{kv_name}{{{labels}}} {kv!r}",
        "# TYPE vllm:num_preemptions_total counter",
        f"vllm:num_preemptions_total{{{labels}}} {float(preempted)}",
        "# TYPE vllm:cache_config_info gauge",
        (
            f'vllm:cache_config_info{{block_size="16",cache_dtype="auto",engine="{rank}",'
            f'num_gpu_blocks="{blocks}",num_cpu_blocks="None"}} 1.0'
        ),
        *histogram("vllm:time_to_first_token_seconds", labels, TTFT_BOUNDS, ttft),
        *histogram(tpot_name, labels, TPOT_BOUNDS, tpot),
    ]
    return "\n".join(lines) + "\n"


def sglang(*, kv=0.25, running=3, waiting=0, ttft=(), tpot=(), tokens=262144):
    labels = 'engine_type="unified",model_name="meta-llama/Llama-3.1-8B-Instruct",tp_rank="0"'
    lines = [
        "# HELP sglang:num_running_reqs The number of running requests.",
        "# TYPE sglang:num_running_reqs gauge",
        f"sglang:num_running_reqs{{{labels}}} {float(running)}",
        "# TYPE sglang:num_queue_reqs gauge",
        f"sglang:num_queue_reqs{{{labels}}} {float(waiting)}",
        "# TYPE sglang:token_usage gauge",
        f"sglang:token_usage{{{labels}}} {kv!r}",
        "# TYPE sglang:max_total_num_tokens gauge",
        f"sglang:max_total_num_tokens{{{labels}}} {float(tokens)}",
        *histogram("sglang:time_to_first_token_seconds", labels, TTFT_BOUNDS, ttft),
        *histogram("sglang:inter_token_latency_seconds", labels, TPOT_BOUNDS, tpot),
    ]
    return "\n".join(lines) + "\n"


class Pages:
    """What a server answers next; the last page is given again and again.

    A page is text, bytes, a status, or a function of the handler for a hostile answer.
    """

    def __init__(self, *pages):
        self.pages = list(pages)
        self.asked = 0
        self.paths = []
        self.is_over = threading.Event()
        self.url = ""

    def next(self):
        self.asked += 1
        return self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]


@contextmanager
def serving(*pages):
    """Serve pages on this machine, and give what says where and which."""
    given = Pages(*pages)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            given.paths.append(self.path)
            page = given.next()
            if callable(page):
                page(self, given)
                return
            status, body = (page, b"no") if isinstance(page, int) else (200, page)
            body = body.encode() if isinstance(body, str) else body
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    given.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield given
    finally:
        given.is_over.set()  # answers that dribble end
        server.shutdown()
        thread.join(timeout=30)
        server.server_close()


def endless(handler, given):
    """A page that never ends, as fast as it is read."""
    handler.send_response(200)
    handler.end_headers()
    try:
        while not given.is_over.is_set():
            handler.wfile.write(b"vllm:num_requests_running 1\n" * 4096)
    except OSError:
        pass


def dribbling(handler, given):
    """A byte now and then: each comes in time, and the page never does."""
    handler.send_response(200)
    handler.end_headers()
    try:
        while not given.is_over.wait(timeout=0.02):
            handler.wfile.write(b"x")
            handler.wfile.flush()
    except OSError:
        pass


def silent(_, given):
    given.is_over.wait(timeout=30)


def not_http(handler, _):
    handler.wfile.write(b"220 mail.example.com ESMTP\r\n")
