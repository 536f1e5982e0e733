"""A replica that retires is replaced, and nobody who asks notices."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path

import openai

from support.server import running

REPLICA = "ray::ServeReplica:visionchat:Model"


def test_replicas_retire_after_their_jobs_and_everyone_is_answered(tmp_path: Path) -> None:
    with running(tmp_path, environ={"VISIONCHAT_RECYCLE_AFTER_JOBS": "3"}) as server:
        first = server.children_named(REPLICA)
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=120) as client:

            def ask(number: int) -> str | None:
                answer = client.chat.completions.create(
                    model="visionchat-tiny",
                    messages=[{"role": "user", "content": f"What is {number}?"}],
                    max_tokens=8,
                )
                return answer.choices[0].finish_reason

            with concurrent.futures.ThreadPoolExecutor(5) as pool:
                assert set(pool.map(ask, range(5))) <= {"stop", "length"}
        assert len(first) == 1
        assert not set(first) & set(server.children_named(REPLICA))
