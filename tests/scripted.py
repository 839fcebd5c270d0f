"""Models whose greedy answer is fixed by the last character of the prompt, in the files of tests/data/scripted.

``scripted.gguf`` (byte-level BPE): a chat with one user message ``go 4``, or a raw prompt ``x4``, at temperature 0
gives trigger ``4`` of ``TRIGGERS``. ``scripted_spm.gguf`` (SentencePiece with byte fallback): raw prompts such as
``a0`` only, ``SPM_TRIGGERS``. Variants with another chat template or pre-tokenizer name are derived from
``scripted.gguf`` on demand.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

FOLDER = Path(__file__).parent / "data" / "scripted"
SCRIPTED = FOLDER / "scripted.gguf"
SCRIPTED_SPM = FOLDER / "scripted_spm.gguf"


@dataclass(frozen=True)
class Trigger:
    """What the model answers to one trigger character."""

    why: str
    token_ids: tuple[int, ...]  # without the end token; of an endless answer, one turn of the loop
    text: str
    finish: str
    completion_tokens: int | None  # the end token included; None where it never ends
    endless: bool


def _triggers() -> dict[str, Trigger]:
    raw = json.loads((FOLDER / "scripted.json").read_text(encoding="utf-8"))["triggers"]
    return {
        key: Trigger(t["why"], tuple(t["token_ids"]), t["text"], t["finish"], t["completion_tokens"], t["endless"])
        for key, t in raw.items()
    }


TRIGGERS = _triggers()
SPECIAL_IDS: dict[str, int] = json.loads((FOLDER / "scripted.json").read_text(encoding="utf-8"))["ids"]
#: trigger -> {"tokens": texts of the vocabulary, "text": what they say after a prompt, "why"}
SPM_TRIGGERS: dict[str, dict[str, Any]] = json.loads((FOLDER / "scripted_spm.json").read_text(encoding="utf-8"))

_TURNS = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + (m['content'] or '') + '<|im_end|>\n' }}{% endfor %}"
)
_ANSWER = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' + (messages|last)['content'][-1:] }}{% endif %}"
CHATML = _TURNS + _ANSWER

_TEMPLATE = "tokenizer.chat_template"
_PRE = "tokenizer.ggml.pre"
#: variant -> keys to change; None takes a key away
VARIANTS: dict[str, dict[str, Any]] = {
    "template_none": {_TEMPLATE: None},
    "template_bos_in_template": {_TEMPLATE: "{{ bos_token }}" + CHATML, "tokenizer.ggml.add_bos_token": True},
    "template_bos_without_id": {_TEMPLATE: "{{ bos_token }}" + CHATML, "tokenizer.ggml.bos_token_id": None},
    "template_strftime": {
        _TEMPLATE: "{{ '<|im_start|>system\nToday is ' + strftime_now('%d %B %Y') + '<|im_end|>\n' }}" + CHATML
    },
    "template_raises_on_system": {
        _TEMPLATE: "{% if messages[0]['role'] == 'system' %}"
        "{{ raise_exception('System role not supported') }}{% endif %}" + CHATML
    },
    "template_alternates": {
        _TEMPLATE: "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}{% endfor %}" + CHATML
    },
    "template_parts_only": {
        _TEMPLATE: "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}{% for p in m['content'] %}"
        "{% if p['type'] == 'text' %}{{ p['text'] }}{% endif %}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
        "{{ '<|im_start|>assistant\n' + (messages|last)['content'][-1]['text'][-1:] }}"
    },
    "template_named_tool_use": {
        _TEMPLATE + ".tool_use": "{{ '[TOOLS ' + (tools|length|string) + ']' }}" + CHATML,
        "tokenizer.chat_templates": ["tool_use"],
    },
    "sampling_defaults": {"general.sampling.temp": 100.0, "general.sampling.top_k": 1},
    "pre_none": {_PRE: None},
    "pre_default": {_PRE: "default"},
    "pre_made_up": {_PRE: "made-up-pre"},
}


def variant(folder: Path, name: str) -> Path:
    """Write variant ``name`` of ``scripted.gguf`` into ``folder``."""
    return rewrite(SCRIPTED, folder / f"{name}.gguf", VARIANTS[name])


def rewrite(source: Path, target: Path, changes: dict[str, Any]) -> Path:
    """Copy a GGUF file with metadata keys set, or taken away where the value is None."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    kept = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    for name, field in kept.items():
        if name != "general.architecture" and name not in changes:
            item = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], item)
    for name, value in changes.items():
        if value is not None:
            writer.add_key_value(name, value, _kind(value), gguf.GGUFValueType.STRING if type(value) is list else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.asarray(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _kind(value: Any) -> gguf.GGUFValueType:
    if isinstance(value, list):
        return gguf.GGUFValueType.ARRAY
    return gguf.GGUFValueType.get_type(value)
