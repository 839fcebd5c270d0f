"""Models whose chat template and control tokens are a test's own, and answers that a test dictates token by token."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import httpx
import scripted

from bireme.backends.base import BackendInfo
from bireme.core.config import EngineConfig
from bireme.core.request import FinishReason, Request, SequenceOutput, TokenLogprob
from bireme.server.app import create_app
from bireme.server.client import EngineClient, EngineState
from bireme.server.frontend import load_frontend
from bireme.server.metrics import Metrics
from bireme.server.names import ServedNames
from bireme.server.settings import EngineSpec, ServerSettings
from bireme.server.state import ServerState
from bireme.server.stream import RequestStream

END = scripted.SPECIAL_IDS["<|im_end|>"]
INFO = BackendInfo("sim", "tiny", "F16", 352, 8192, frozenset({307, 308}), 64, 16, 0, 8, 1)
_FIRST_FREE = 309  # of the vocabulary's unused tokens
_CONTROL = 3


def model(folder: Path, template: str, specials: Sequence[str] = ()) -> Path:
    """The scripted model with another chat template, and control tokens of these texts."""
    reader = gguf.GGUFReader(scripted.SCRIPTED)
    tokens = list(reader.fields["tokenizer.ggml.tokens"].contents())
    kinds = [int(kind) for kind in reader.fields["tokenizer.ggml.token_type"].contents()]
    for token_id, text in enumerate(specials, _FIRST_FREE):
        tokens[token_id], kinds[token_id] = text, _CONTROL
    target = scripted.rewrite(
        scripted.SCRIPTED,
        folder / "dictated.gguf",
        {"tokenizer.chat_template": template, "tokenizer.ggml.tokens": tokens},
    )
    return _with_kinds(target, kinds) if specials else target


def _with_kinds(path: Path, kinds: list[int]) -> Path:
    """Set the token types in place: they are an array of int32."""
    reader = gguf.GGUFReader(path, "r+")
    values = reader.fields["tokenizer.ggml.token_type"]
    for index, part in enumerate(values.data):
        values.parts[part][0] = kinds[index]
    return path


@dataclass
class DictatedClient(EngineClient):
    """An engine's client without an engine: each choice of a request gets its own dictated tokens."""

    settings: ServerSettings
    answers: Sequence[Sequence[int]] = ()
    requests: list[Request] = field(default_factory=list)
    aborted: list[tuple[str, int | None]] = field(default_factory=list)
    pause: float = 0.0  # seconds between steps

    def __post_init__(self) -> None:
        super().__init__(self.settings)
        self.state, self.info, self.config = EngineState.READY, INFO, EngineConfig()

    def submit(self, request: Request, prompt_field: str, changed: asyncio.Event) -> RequestStream:
        stream = RequestStream(request.request_id, prompt_field, changed)
        self.requests.append(request)
        stream.accept()
        self.dictating = asyncio.create_task(self._dictate(stream, request))
        return stream

    async def _dictate(self, stream: RequestStream, request: Request) -> None:
        """Steps, each given out once the one before was read."""
        choices = [
            _outputs(request, index, self.answers[index % len(self.answers)]) for index in range(request.params.n)
        ]
        for step in itertools.zip_longest(*choices):
            for output in step:
                if output is not None:
                    stream.put(output)
            while stream._outputs:
                await asyncio.sleep(0)
            await asyncio.sleep(self.pause)

    def abort(self, request_id: str, index: int | None = None) -> None:
        self.aborted.append((request_id, index))
        if index is None:
            self.dictating.cancel()

    def finished(self, request_id: str) -> None:
        pass


def _outputs(request: Request, index: int, ids: Sequence[int]) -> list[SequenceOutput]:
    """A step for each token, then the end token; or a length end."""
    limit = request.params.max_tokens
    given = [*ids, END][:limit]
    found = []
    for at, token in enumerate(given):
        last = at == len(given) - 1
        reason = (FinishReason.STOP if token == END else FinishReason.LENGTH) if last else None
        scores = None if request.params.logprobs is None else (TokenLogprob(-0.5, (token,), (-0.5,)),)
        found.append(SequenceOutput(request.request_id, index, (token,), scores, reason))
    return found


class Dictation:
    """An application over a model's text side."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path = path
        self.prompt = ""  # of the last request
        self._settings = ServerSettings(EngineSpec(str(path)), **options)
        self._frontend = load_frontend(str(path))

    def ask(
        self, body: dict[str, Any], *answers: str, pause: float = 0.0, path: str = "/v1/chat/completions"
    ) -> httpx.Response:
        """The answer to ``body`` when the model writes ``answers``, one per choice; control tokens in them are such.

        ``pause``: seconds between two of its tokens.
        """
        return asyncio.run(self._ask(path, body, [self.tokens(text) for text in answers], pause))

    def tokens(self, text: str) -> list[int]:
        return self._frontend.tokenizer.encode(text, add_special_tokens=False)

    async def _ask(
        self, path: str, body: dict[str, Any], answers: Sequence[Sequence[int]], pause: float
    ) -> httpx.Response:
        client = self.client = DictatedClient(self._settings, answers, pause=pause)
        state = ServerState(self._settings, client, ServedNames(("tiny",)), Metrics("tiny"), self._frontend)
        transport = httpx.ASGITransport(create_app(state), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            response = await http.post(path, json=body)
        if client.requests:
            prompt_ids = client.requests[-1].prompt_ids
            self.prompt = self._frontend.tokenizer.decode(prompt_ids, skip_special_tokens=False)
        client.terminate()
        return response
