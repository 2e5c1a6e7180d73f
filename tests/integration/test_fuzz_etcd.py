"""A gateway that answers nonsense is told as a StoreError, and no thread of a client ends by it."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.errors import StoreError
from edl.store.etcd import EtcdStore
from edl.store.gateway import Refusal, _result
from edl.store.url import StoreUrl
from tests.integration.fuzzing import JSON, damaged, fuzzed

NUMBERS = st.integers(-1, 99).map(str) | JSON
PAIR = st.fixed_dictionaries(
    {}, optional={"key": st.just("L2E=") | JSON, "value": JSON, "mod_revision": NUMBERS}
)
ANSWERS = st.one_of(
    JSON,
    st.fixed_dictionaries(
        {},
        optional={
            "header": st.fixed_dictionaries({}, optional={"revision": NUMBERS}) | JSON,
            "kvs": st.lists(PAIR | JSON, max_size=2) | JSON,
            "succeeded": JSON,
            "responses": st.lists(
                st.fixed_dictionaries({}, optional={"response_range": JSON}) | JSON, max_size=2
            ),
            "TTL": NUMBERS,
            "token": JSON,
            "result": st.fixed_dictionaries(
                {},
                optional={
                    "TTL": NUMBERS,
                    "canceled": JSON,
                    "events": st.lists(
                        st.fixed_dictionaries({}, optional={"kv": PAIR | JSON, "type": JSON})
                        | JSON,
                        max_size=2,
                    )
                    | JSON,
                },
            )
            | JSON,
            "error": JSON,
            "code": JSON,
            "grpc_code": JSON,
            "message": JSON,
        },
    ),
)


def text_of(answer: object) -> bytes:
    return json.dumps(answer).encode()


@settings(fuzzed, max_examples=300)
@given(
    st.sampled_from([200, 400, 503]),
    st.one_of(st.binary(max_size=60), ANSWERS.map(text_of), damaged(ANSWERS.map(text_of))),
)
def test_a_gateways_answer_is_an_object_or_a_refusal(status: int, text: bytes) -> None:
    with suppress(Refusal):
        assert isinstance(_result(status, text), dict)


@dataclass(slots=True)
class Strange:
    """A server that answers everything with what it was given last."""

    url: str
    status: int = 200
    text: bytes = b"{}"


@pytest.fixture(scope="module")
def strange() -> Iterator[Strange]:
    told = Strange("")

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(told.status)
            self.send_header("Content-Length", str(len(told.text) + 1))
            self.end_headers()
            self.wfile.write(told.text + b"\n")

        def log_message(self, *args: object) -> None:
            return None

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        told.url = f"etcd://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield told
        server.shutdown()
        thread.join()


def test_whatever_etcd_answers_is_a_result_or_a_store_error(strange: Strange) -> None:
    store = EtcdStore(StoreUrl.parse(strange.url), job="fuzz", timeout_s=0.05)
    verbs: list[Callable[[], object]] = [
        lambda: store.get("a"),
        lambda: store.compare_and_swap("a", expected=0, value=b"x"),
        lambda: store.compare_and_swap("a", expected=1, value=None),
        lambda: store.compare_and_swap("a", expected=1, value=b"x", lease="me"),
        lambda: store.keep_alive("me", 3.0),
        lambda: store.keep_alive("me", 0),
    ]

    @settings(fuzzed, max_examples=60)
    @given(st.sampled_from(verbs), st.sampled_from([200, 200, 500]), ANSWERS.map(text_of))
    def ask(verb: Callable[[], object], status: int, text: bytes) -> None:
        strange.status, strange.text = status, text
        with suppress(StoreError):
            verb()

    try:
        ask()
    finally:
        store.close()


def test_a_watch_outlives_whatever_its_stream_says(strange: Strange) -> None:
    """The thread that listens is the only one: were it to end, no leader would be seen again."""
    texts: list[bytes] = []

    # Drawn beforehand, for that thread takes random pauses of its own.
    @settings(fuzzed, max_examples=60)
    @given(ANSWERS.map(text_of))
    def draw(text: bytes) -> None:
        texts.append(text)

    draw()
    assert len(texts) > 20
    store = EtcdStore(StoreUrl.parse(strange.url), job="fuzz", timeout_s=0.05)
    try:
        for strange.text in texts:
            strange.status = 200
            with suppress(StoreError):
                store.watch("a", lambda seen: None).cancel()
            # It listens anew only after a pause, so it is also handed each of them here.
            with suppress(StoreError, Refusal):
                store._on_answer(_result(200, strange.text))
            listener = store._listener
            assert listener is not None
            assert listener.is_alive()
    finally:
        store.close()
