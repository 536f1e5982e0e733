"""The command `visionchat`: `serve` runs everything on this machine, `ask` puts a question about a picture,
`queue` looks after the queue, `doctor` says what makes a machine slow or unsafe.

Exit codes: 0 done, 1 the product failed (the reason on stderr), 2 wrong use, 130 stopped by Ctrl-C before ready.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from visionchat_serve import __version__, doctor_command, queue_command
from visionchat_serve.config import Settings, load_settings
from visionchat_serve.errors import ConfigError, ImageError, VisionChatError

DEFAULT_URL = "http://127.0.0.1:8000"
ALL_SETTINGS = (
    "Every setting can come from a file (--config) or the environment (VISIONCHAT_<KEY>); flags win over both."
)
NEEDED_TO_SERVE = (
    "fastapi",
    "fastapi_swagger",
    "ray",
    "torch",
    "transformers",
    "tokenizers",
    "PIL",
    "llguidance",
    "uvicorn",
    "websockets",
)


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        code: int = args.run(args)
        return code
    except VisionChatError as error:
        inside = f" ({error.inside})" if error.inside else ""
        print(f"visionchat: {error.message}{inside}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except _Stopped as stopped:
        print(f"visionchat: stopped by {stopped}", file=sys.stderr)
        return stopped.exit_code


class _Parser(argparse.ArgumentParser):
    """One that ends its complaints with a hint, where it has one."""

    hint = ""

    def error(self, message: str) -> NoReturn:
        super().error(f"{message}{self.hint}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser("visionchat", description="Chat about pictures with a model on ordinary CPUs.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="run queue, model and HTTP API on this machine", epilog=ALL_SETTINGS)
    _add_settings(serve)
    serve.set_defaults(run=_serve)

    about = "ask about a picture; starts a server for the question if none answers"
    ask = commands.add_parser("ask", help=about, description=about, epilog=ALL_SETTINGS)
    ask.hint = '; name pictures, then the question, as in: visionchat ask photo.jpg "What do you see?"'
    ask.add_argument("pictures", nargs="+", type=Path, metavar="PICTURE", help="one or more picture files")
    ask.add_argument("question", metavar="QUESTION", help="what to ask, in quotes")
    ask.add_argument("--url", default=None, help=f"the server to ask (default {DEFAULT_URL}, else start one)")
    ask.add_argument("--api-key", metavar="KEY", help="sent as a bearer token")
    ask.add_argument("--max-tokens", type=int, metavar="N", help="longest answer (default: the server's)")
    ask.add_argument("--temperature", type=float, metavar="T", help="0: always the likeliest token; higher: livelier")
    ask.add_argument("--seed", type=int, metavar="N", help="with the same one the same answer, at any temperature")
    _add_settings(ask.add_argument_group("if a server has to be started"))
    ask.set_defaults(run=_ask)

    key = commands.add_parser("key", help="make an API key; prints it and the line for the server's key file")
    key.add_argument("name", help="who the key is for")
    key.set_defaults(run=_key)
    queue_command.add_to(commands)
    doctor_command.add_to(commands)
    return parser


def _add_settings(parser: Any) -> None:
    """The settings that people change by hand; all others by file or environment."""
    parser.add_argument("--config", type=Path, metavar="YAML", help="settings file")
    parser.add_argument("--model", help="`tiny` or a folder with a Qwen3-VL checkpoint")
    parser.add_argument("--redis", dest="redis_url", metavar="URL", help="use this Redis, not an embedded one")
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (default 8000; 0: any free one)")
    parser.add_argument("--api-keys", dest="api_keys_file", type=Path, metavar="FILE", help="who may ask; see `key`")
    parser.add_argument("--replicas", type=int, help="model replicas (default 1)")
    parser.add_argument("--cpus", type=int, help="whole CPUs of a replica (default: all, shared evenly)")
    parser.add_argument("--engine", choices=_choices("engine"), help=_help("engine"))
    parser.add_argument("--dtype", choices=_choices("dtype"), help=_help("dtype"))
    parser.add_argument("--data-dir", type=Path, help="where the embedded Redis keeps its data")


def _help(field: str) -> str:
    info = Settings.model_fields[field]
    return f"{info.description} (default {info.default})"


def _choices(field: str) -> tuple[str, ...]:
    annotation: Any = Settings.model_fields[field].annotation
    choices: tuple[str, ...] = annotation.__args__
    return choices


def _settings(args: argparse.Namespace) -> Settings:
    _check_installed()
    flags = {key: value for key, value in vars(args).items() if key in Settings.model_fields}
    settings = load_settings(args.config, flags=flags)
    _check(settings)
    return settings


def _check_installed() -> None:
    """Before anything starts; looks the packages up without importing them."""
    missing = [name for name in NEEDED_TO_SERVE if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"what runs a server is not installed ({', '.join(missing)}): pip install 'visionchat[serve]'; "
            "`visionchat ask --url` works without it"
        )


def _check(settings: Settings) -> None:
    """Whatever is wrong with the settings is said now, not by a replica that dies in the background."""
    from visionchat_serve import cpu
    from visionchat_serve.engines.registry import check_checkpoint

    check_checkpoint(settings.model)
    if settings.api_keys_file is not None:
        from visionchat_serve.api_keys import ApiKeys

        ApiKeys(settings.api_keys_file)
    elif settings.host not in ("127.0.0.1", "::1", "localhost"):
        _say(f"warning: {settings.host} can be reached by others, and without --api-keys everybody may ask")
    there = cpu.available_cpus().whole
    if settings.cpus is not None and settings.cpus * settings.replicas > there:
        asked = f"{settings.replicas} x {settings.cpus} CPUs"
        raise ConfigError(f"{asked} were asked for, but {there} are there; lower --cpus or --replicas")


def _serve(args: argparse.Namespace) -> int:
    settings = _settings(args)
    from visionchat_serve.local import serving

    with _StopSignals() as signals, serving(settings, _say):
        signals.wait()
    return 0


def _key(args: argparse.Namespace) -> int:
    from visionchat_serve.api_keys import new_key

    key, line = new_key(args.name)
    print(line)
    _say(f"the key for {args.name}, shown once: {key}")
    return 0


def _ask(args: argparse.Namespace) -> int:
    from visionchat_serve import client

    _check_question(args.question)
    _check_pictures(args.pictures)
    url = client.base_url(args.url or DEFAULT_URL)
    if args.url is not None or client.is_up(url):
        _check_ignored(args, url)
        _say(f"asking the server at {url}")
        return _print_answer(args, url)
    _say("no server answers; starting one for this question (`visionchat serve` keeps one running)")
    if args.port is None:
        args.port = 0
    settings = _settings(args)
    from visionchat_serve.local import serving

    with _StopSignals(), serving(settings, _say) as url:
        return _print_answer(args, url)


def _check_ignored(args: argparse.Namespace, url: str) -> None:
    """An answer by another model than the one that was asked for would be worse than none."""
    names = {"redis_url": "--redis", "api_keys_file": "--api-keys"}
    given = [
        names.get(key, f"--{key.replace('_', '-')}")
        for key, value in vars(args).items()
        if (key in Settings.model_fields or key == "config") and value is not None
    ]
    if given:
        found = f"the server to ask is {url}" if args.url is not None else f"a server answers at {url} already"
        raise ConfigError(f"{found}, so nothing is started that {', '.join(given)} could be for: leave that out")


def _check_question(question: str) -> None:
    if not question.strip():
        raise ConfigError('the question is empty; say what you want to know, as in "What do you see?"')
    if os.path.isfile(question):
        raise ConfigError(
            f"the last word, {question}, is a file; behind the pictures comes the question, in quotes: "
            f'visionchat ask {question} "What do you see?"'
        )


def _check_pictures(pictures: Sequence[Path]) -> None:
    """Before a byte is read: a video that was meant to be a picture would fill the memory first. What a server takes
    of one picture it says itself; more than a request may have altogether is not even sent."""
    room = Settings().max_body_bytes * 3 // 4  # base64
    for picture in pictures:
        if not os.path.isfile(picture):
            raise ConfigError(f"there is no picture at {picture}")
        room -= (size := picture.stat().st_size)
        if room < 0:
            raise ConfigError(
                f"{picture} ({size / 1e6:.0f} MB) is too much: a request takes at most "
                f"{Settings().max_body_bytes * 3 / 4e6:.0f} MB of pictures; make it smaller before asking"
            )
        _check_kind(picture)


def _check_kind(picture: Path) -> None:
    """By its first bytes; whether the rest can be read says the server."""
    from visionchat_serve.image_header import sniff

    try:
        with picture.open("rb") as file:
            sniff(file.read(1024))
    except OSError as error:
        raise ConfigError(f"{picture} cannot be read: {error.strerror}") from error
    except ImageError as error:
        raise ConfigError(f"{picture}: {error.message}") from error


def _print_answer(args: argparse.Namespace, url: str) -> int:
    from visionchat_serve import client

    sampling = {k: v for k in ("max_tokens", "temperature", "seed") if (v := getattr(args, k)) is not None}
    timing = client.Timing()
    for text in client.ask(url, args.pictures, args.question, timing, api_key=args.api_key, **sampling):
        print(text, end="", flush=True)
    print(flush=True)
    _say(_describe(timing))
    return 0


def _describe(timing: Any) -> str:
    if timing.first_token is None:
        return "the answer is empty"
    speed = timing.tokens_per_second
    later = f", then {speed:.1f} tokens/s" if speed is not None else ""
    return f"first token after {timing.first_token * 1000:.0f} ms{later} ({timing.tokens} tokens)"


def _say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


class _Stopped(BaseException):
    """Ctrl-C or SIGTERM before there was a server to stop; unwinds whatever was being started."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class _StopSignals:
    """SIGINT and SIGTERM as one clean stop: while `wait`ing they end the wait, at any other time they unwind.

    Once the stop has begun, further ones are ignored, so that an impatient second Ctrl-C orphans nothing.
    """

    def __init__(self) -> None:
        self._asked = False
        self._waiting = False
        self._pipe = os.pipe()  # a handler may only do what is safe anywhere: it writes one byte

    def __enter__(self) -> _StopSignals:
        self._install()
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for end in self._pipe:
            os.close(end)

    def wait(self) -> None:
        self._install()  # Ray replaces the handlers while it starts
        self._waiting = True
        if not self._asked:
            os.read(self._pipe[0], 1)

    def _install(self) -> None:
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._asked:
            return
        self._asked = True
        if not self._waiting:
            raise _Stopped(number)
        os.write(self._pipe[1], b"x")


if __name__ == "__main__":
    sys.exit(main())
