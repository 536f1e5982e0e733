"""What the command `visionchat` says before anything is started or asked."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from visionchat_serve import cli, client
from visionchat_serve.errors import ConfigError, ImageUnreadable, Unavailable, VisionChatError

Capture = pytest.CaptureFixture[str]
PICTURE = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def picture(tmp_path: Path) -> str:
    (tmp_path / "a.png").write_bytes(PICTURE)
    return str(tmp_path / "a.png")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://host/", "http://host"),
        ("http://host/v1", "http://host"),
        ("https://host/chat/v1/", "https://host/chat"),
        ("localhost", "http://localhost"),
    ],
)
def test_a_servers_address_as_people_write_it(written: str, meant: str) -> None:
    assert client.base_url(written) == meant


@pytest.mark.parametrize("written", ["ftp://host", "http://", "http://host:port", ""])
def test_what_is_no_servers_address(written: str) -> None:
    with pytest.raises(ConfigError, match="not the address of a server"):
        client.base_url(written)


def answering(monkeypatch: pytest.MonkeyPatch, answer: httpx.MockTransport) -> None:
    """All that is asked over HTTP goes to `answer`."""
    original = httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **options: original(**options, transport=answer))


def ask(picture: str) -> str:
    return "".join(client.ask("http://host", [Path(picture)], "what?", client.Timing()))


def test_no_server_there(picture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    answering(monkeypatch, httpx.MockTransport(nobody))
    with pytest.raises(Unavailable, match=r"no server answers at http://host; start one with `visionchat serve`"):
        ask(picture)


def test_another_kind_of_server(picture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, httpx.MockTransport(lambda _: httpx.Response(200, text="<h1>hello</h1>")))
    with pytest.raises(VisionChatError, match="is not VisionChat"):
        ask(picture)


PAGE = "<!doctype html><html><body>Not here</body></html>"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (httpx.Response(404, html=PAGE), "http://host/v1/models answered 404 Not Found; is that the address"),
        (httpx.Response(502, text="no upstream\n"), "answered 502 Bad Gateway: no upstream; is"),
        (httpx.Response(301, html=PAGE, headers={"location": "https://host"}), "answered 301 Moved Permanently; is"),
        (httpx.Response(500, json=["x"]), "answered 500 Internal Server Error; is"),
    ],
)
def test_what_another_server_says_is_put_into_words(
    answer: httpx.Response, says: str, picture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, httpx.MockTransport(lambda _: answer))
    with pytest.raises(VisionChatError) as caught:
        ask(picture)
    assert says in str(caught.value)
    assert "<" not in str(caught.value)


@pytest.mark.parametrize("line", [PAGE, "data: <html>", 'data: {"choices": 5}', "data: 5"])
def test_a_stream_of_another_kind(line: str, picture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        return httpx.Response(200, text=line)

    answering(monkeypatch, httpx.MockTransport(answer))
    with pytest.raises(VisionChatError, match=r"closed the stream|not a stream of chat completions"):
        ask(picture)


def test_a_picture_that_the_server_refuses_is_named_by_its_file(picture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = "messages.0.content.0.image_url"
    refusal = ImageUnreadable(f"{place}: the PNG picture is cut off", param=place)

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        return httpx.Response(422, json=refusal.body())

    answering(monkeypatch, httpx.MockTransport(answer))
    with pytest.raises(ImageUnreadable) as caught:
        ask(picture)
    assert str(caught.value) == f"{picture}: the PNG picture is cut off"


def test_a_speed_needs_pieces_that_are_apart_in_time() -> None:
    timing = client.Timing(tokens=2)
    timing.note_text(0.5)
    assert timing.tokens_per_second is None
    timing.note_text(0.500001)
    assert timing.tokens_per_second is None
    timing.note_text(0.75)
    assert timing.tokens_per_second == pytest.approx(4)


@pytest.mark.parametrize("found", [True, False])
def test_flags_for_a_server_are_not_ignored_in_silence(
    picture: str, found: bool, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "is_up", lambda _: found)
    where = [] if found else ["--url", "host"]
    assert cli.main(["ask", picture, "what?", *where, "--model", "tiny", "--redis", "redis://x"]) == 2
    said = capsys.readouterr().err
    assert "--model, --redis" in said
    assert ("answers at http://127.0.0.1:8000 already" if found else "the server to ask is http://host") in said


def test_it_is_said_who_is_asked(picture: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "is_up", lambda _: True)
    monkeypatch.setattr(client, "ask", lambda *_, **__: iter(["a circle"]))
    assert cli.main(["ask", picture, "what?"]) == 0
    said = capsys.readouterr()
    assert said.out == "a circle\n"
    assert "asking the server at http://127.0.0.1:8000" in said.err


@pytest.mark.parametrize("data", [b"hello", b""])
def test_a_file_that_is_no_picture_is_named(tmp_path: Path, data: bytes, capsys: Capture) -> None:
    (tmp_path / "notes.txt").write_bytes(data)
    assert cli.main(["ask", str(tmp_path / "notes.txt"), "what?"]) == 2
    says = "not a picture, or not of a kind that is known; send" if data else "the picture is empty"
    assert f"visionchat: {tmp_path}/notes.txt: {says}" in capsys.readouterr().err


@pytest.mark.parametrize(("question", "says"), [("", "is empty"), (" \n", "is empty"), (__file__, "is a file")])
def test_a_question_that_is_none(picture: str, question: str, says: str, capsys: Capture) -> None:
    assert cli.main(["ask", picture, question]) == 2
    assert says in capsys.readouterr().err


def test_a_question_without_a_picture(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["ask", "What do you see?"])
    assert caught.value.code == 2
    assert 'as in: visionchat ask photo.jpg "What do you see?"' in capsys.readouterr().err


def test_without_what_runs_a_server(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "find_spec", lambda name: None if name == "ray" else object())
    assert cli.main(["serve"]) == 2
    assert "(ray): pip install 'visionchat[serve]'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["serve", "ask"])
def test_help_explains_every_flag(command: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "(default torch)" in text
    assert "VISIONCHAT_<KEY>" in text
    assert command == "serve" or "the likeliest token" in text
