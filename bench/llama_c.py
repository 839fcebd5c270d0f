"""llama.cpp's own logits, through the C functions that xllamacpp's extension exports.

Both parameter records are taken as llama.cpp's defaults and passed back whole; only a few fields of the context's
record are set: the first four (n_ctx, n_batch, n_ubatch, n_seq_max) and, for attention in float32, flash_attn_type,
type_k and type_v. What came of them is checked after the fact. Both records are declared larger than they are: such
records travel in memory, so the callee reads and writes only its own part.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FLASH, _TYPE_K, _TYPE_V = 13, 26, 27  # words of llama_context_params
_AUTO, _F16, _OFF, _F32 = 2**32 - 1, 1, 0, 0  # their defaults, and what float32 attention takes


class _Record(ctypes.Structure):
    _fields_ = [("words", ctypes.c_uint32 * 256)]


class _Batch(ctypes.Structure):
    """llama_batch of llama.h."""

    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.POINTER(ctypes.c_float)),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


class LlamaModel:
    """One GGUF file in llama.cpp on the CPU, with room for ``context`` tokens of one sequence.

    At most ``chunk`` tokens are computed at once. With ``float32_attention`` keys and values are kept in float32 and
    flash attention, which takes them in float16, is off. RuntimeError if llama.cpp did not take what it was given.
    """

    def __init__(
        self, path: Path, context: int, threads: int, *, chunk: int = 512, float32_attention: bool = False
    ) -> None:
        self._library = _load()
        self._model = self._context = None
        call = self._library
        self._model = call.llama_model_load_from_file(str(path).encode(), call.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp can't load {path}")
        params = call.llama_context_default_params()
        params.words[0:4] = [context, context, min(chunk, context), 1]
        if float32_attention:
            _ask_float32(params)
        said = _Listener()
        call.llama_log_set(said.callback, None)
        self._context = call.llama_init_from_model(self._model, params)
        call.llama_log_set(_SILENT, None)
        if not self._context:
            raise RuntimeError(f"llama.cpp can't make a context for {path}")
        if float32_attention and not all(words in said.text for words in ("K (f32)", "V (f32)", "= disabled")):
            raise RuntimeError("this xllamacpp's records differ: it did not take float32 attention")
        found = (call.llama_n_ctx(self._context), call.llama_n_batch(self._context))
        if found[1] != context or found[0] < context:
            raise RuntimeError(f"this xllamacpp's records differ: asked for {context} tokens of context, got {found}")
        call.llama_set_n_threads(self._context, threads, threads)
        self.vocab_size: int = call.llama_vocab_n_tokens(call.llama_model_get_vocab(self._model))
        self._batch = call.llama_batch_init(context, 0, 1)
        self._most = context

    def logits(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """[T, V]: the logits after every one of ``token_ids``, a sequence of its own."""
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), True)
        return self.extend(token_ids, 0, every=True)

    def extend(self, token_ids: Sequence[int], position: int, every: bool = False) -> NDArray[np.float32]:
        """Go on with ``token_ids`` at ``position``: logits [T, V] after every one, or [1, V] after the last."""
        count = len(token_ids)
        if not 0 < count <= self._most:
            raise ValueError(f"{count} tokens in one batch; 1 to {self._most} are possible")
        batch = self._batch
        batch.n_tokens = count
        for i, token in enumerate(token_ids):
            batch.token[i] = token
            batch.pos[i] = position + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = every or i == count - 1
        code = self._library.llama_decode(self._context, batch)
        if code:
            raise RuntimeError(f"llama_decode failed with code {code}")
        pointer = self._library.llama_get_logits(self._context)
        rows = count if every else 1
        return np.ctypeslib.as_array(pointer, shape=(rows, self.vocab_size)).copy()

    def close(self) -> None:
        """Free the model and its context."""
        if self._context:
            self._library.llama_batch_free(self._batch)
            self._library.llama_free(self._context)
        if self._model:
            self._library.llama_model_free(self._model)
        self._model = self._context = None


_Log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_SILENT = _Log(lambda level, text, data: None)


class _Listener:
    """What llama.cpp says while ``callback`` is its log."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.callback = _Log(lambda level, text, data: self._pieces.append(text or b""))

    @property
    def text(self) -> str:
        return b"".join(self._pieces).decode("utf-8", "replace")


def _ask_float32(params: Any) -> None:
    found = tuple(params.words[at] for at in (_FLASH, _TYPE_K, _TYPE_V))
    if found != (_AUTO, _F16, _F16):
        raise RuntimeError(f"this xllamacpp's records differ: flash_attn_type, type_k and type_v read as {found}")
    for at, value in ((_FLASH, _OFF), (_TYPE_K, _F32), (_TYPE_V, _F32)):
        params.words[at] = value


def _load() -> Any:
    import xllamacpp

    library = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
    pointer = ctypes.c_void_p
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "llama_log_set": (None, [_Log, pointer]),
        "llama_backend_init": (None, []),
        "llama_model_default_params": (_Record, []),
        "llama_context_default_params": (_Record, []),
        "llama_model_load_from_file": (pointer, [ctypes.c_char_p, _Record]),
        "llama_model_free": (None, [pointer]),
        "llama_init_from_model": (pointer, [pointer, _Record]),
        "llama_free": (None, [pointer]),
        "llama_n_ctx": (ctypes.c_uint32, [pointer]),
        "llama_n_batch": (ctypes.c_uint32, [pointer]),
        "llama_set_n_threads": (None, [pointer, ctypes.c_int32, ctypes.c_int32]),
        "llama_model_get_vocab": (pointer, [pointer]),
        "llama_vocab_n_tokens": (ctypes.c_int32, [pointer]),
        "llama_batch_init": (_Batch, [ctypes.c_int32, ctypes.c_int32, ctypes.c_int32]),
        "llama_batch_free": (None, [_Batch]),
        "llama_get_memory": (pointer, [pointer]),
        "llama_memory_clear": (None, [pointer, ctypes.c_bool]),
        "llama_decode": (ctypes.c_int32, [pointer, _Batch]),
        "llama_get_logits": (ctypes.POINTER(ctypes.c_float), [pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.llama_log_set(_SILENT, None)
    library.llama_backend_init()
    return library
