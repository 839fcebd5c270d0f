"""``POST /tokenize`` and ``/detokenize``, and ``GET /tokenizer_info``, in vLLM's shapes."""

from __future__ import annotations

from typing import Any, TypeVar

from fastapi import APIRouter
from starlette.requests import Request

from ..conversation import render
from ..errors import bad_request
from ..frontend import Frontend
from ..openai_types import ChatRequest, DetokenizeRequest, TokenizeRequest, parse
from ..params import token_ids
from ..schema import json_body
from ..state import ServerState, state_of
from ..tool_use import tool_use

router = APIRouter()

T = TypeVar("T", TokenizeRequest, DetokenizeRequest)


@router.post("/tokenize", openapi_extra=json_body(TokenizeRequest))
async def tokenize(http: Request) -> dict[str, Any]:
    """Token ids of a text, or of chat messages exactly as the chat endpoint would send them to the model."""
    state, frontend, body = await _read(http, TokenizeRequest)
    if (body.prompt is None) == (body.messages is None):
        raise bad_request("Give either prompt or messages.", "prompt")
    if body.messages is not None:
        chat = ChatRequest(
            messages=body.messages,
            tools=body.tools,
            add_generation_prompt=body.add_generation_prompt,
            chat_template_kwargs=body.chat_template_kwargs,
        )
        ids = await render(frontend, chat, tool_use(chat))
    else:
        try:
            ids = await frontend.encode(body.prompt or "", add_special_tokens=body.add_special_tokens is not False)
        except ValueError as error:
            raise bad_request(str(error), "prompt") from None
    texts = [frontend.tokenizer.token_text(one) for one in ids] if body.return_token_strs else None
    return {"count": len(ids), "max_model_len": state.max_model_len, "tokens": list(ids), "token_strs": texts}


@router.post("/detokenize", openapi_extra=json_body(DetokenizeRequest))
async def detokenize(http: Request) -> dict[str, Any]:
    """The text of token ids, special tokens included."""
    state, frontend, body = await _read(http, DetokenizeRequest)
    if body.tokens is None:
        raise bad_request("tokens is missing.", "tokens")
    ids = list(token_ids(body.tokens, state.vocab_size, "tokens"))
    text = await frontend.run(len(ids), lambda: frontend.tokenizer.decode(ids, skip_special_tokens=False))
    return {"prompt": text}


@router.get("/tokenizer_info")
async def tokenizer_info(http: Request) -> dict[str, Any]:
    """What evaluation harnesses ask for before they tokenise here: the names of special tokens, and the template."""
    state = state_of(http)
    frontend = state.ready()
    tokenizer = frontend.tokenizer

    def text(token_id: int | None) -> str | None:
        return None if token_id is None else tokenizer.token_text(token_id)

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": state.max_model_len,
        "bos_token": text(tokenizer.bos_id),
        "eos_token": text(tokenizer.eos_id),
        "pad_token": None,
        "chat_template": frontend.text.template.source or None,
    }


async def _read(http: Request, kind: type[T]) -> tuple[ServerState, Frontend, T]:
    """What both need: a server that is ready, and a body that names its model or none."""
    state = state_of(http)
    frontend = state.ready()
    body = parse(await http.body(), kind)
    state.names.check(body.model)
    state.check_counts(body)
    return state, frontend, body
