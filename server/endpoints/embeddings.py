"""``POST /v1/embeddings``; see docs/apis.md."""

from __future__ import annotations

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..embedder import pooled_states
from ..embedding import FORMATS, check_dimensions, vector, written
from ..errors import bad_request
from ..openai_types import EmbeddingRequest, parse
from ..prompts import Prompt, read_prompts
from ..schema import json_body
from ..sse import until_gone
from ..state import ServerState, state_of

router = APIRouter()


@router.post("/v1/embeddings", openapi_extra=json_body(EmbeddingRequest))
async def embeddings(http: Request) -> Response:
    """A vector of length one for each text."""
    state = state_of(http)
    frontend = state.ready()
    body = parse(await http.body(), EmbeddingRequest)
    model = state.names.check(body.model)
    state.check_counts(body)
    if body.encoding_format not in FORMATS:
        raise bad_request(
            f"encoding_format is {body.encoding_format!r:.50}; it can be 'float' or 'base64'", "encoding_format"
        )
    check_dimensions(body.dimensions, None)
    prompts = await read_prompts(
        body.input,
        frontend,
        state.vocab_size,
        add_special_tokens=body.add_special_tokens is not False,
        param="input",
        suffix=frontend.tokenizer.suffix_ids,
    )
    return await until_gone(http.receive, _answer(http, state, body, model, prompts))


async def _answer(
    http: Request, state: ServerState, body: EmbeddingRequest, model: str, prompts: list[Prompt]
) -> Response:
    pooled, cached = await pooled_states(http, state, body, prompts)
    vectors = [written(vector(one, body.dimensions), body.encoding_format) for one in pooled]
    spent = sum(len(prompt.ids) for prompt in prompts)
    content = {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": one} for index, one in enumerate(vectors)],
        "model": model,
        "usage": {
            "prompt_tokens": spent,
            "total_tokens": spent,
            "prompt_tokens_details": {"cached_tokens": cached},
        },
    }
    return Response(orjson.dumps(content), media_type="application/json")
