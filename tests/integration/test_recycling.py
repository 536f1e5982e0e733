"""A replica that retires is replaced, and nobody who asks notices; those of one machine go one after the other."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
from pathlib import Path

import openai

from support.server import running
from visionchat_serve.turn import Turn

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


def test_a_turn_is_one_processs_until_it_ends() -> None:
    name = f"visionchat-test-{os.getpid()}"
    code = f"from visionchat_serve.turn import Turn; turn = Turn({name!r}); print(turn.take(), flush=True); input()"
    ours = Turn(name)
    assert ours.take()
    assert ours.take()
    assert not Turn(name).take()
    ours.give_back()
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"True\n"
        assert not ours.take()
        other.kill()
        other.wait()
    assert ours.take()
    ours.give_back()
