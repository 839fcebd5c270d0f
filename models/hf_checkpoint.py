"""Opening a Hugging Face folder: config.json, safetensors files, tokenizer files."""

from __future__ import annotations

import logging
from pathlib import Path

from .checkpoint import OpenCheckpoint
from .hf_config import hf_config, text_part
from .hf_quantization import quantization_scheme
from .hf_source import SafetensorsSource
from .hf_text import hf_end_ids, hf_generation_defaults, hf_pooling, hf_tokenizer, read_json
from .names import HEAD
from .settings import Settings
from .weight import CheckpointError

logger = logging.getLogger(__name__)


def open_folder(folder: Path) -> OpenCheckpoint:
    """Open a folder with config.json and safetensors files. Reads headers only."""
    path = folder / "config.json"
    whole = read_json(path)
    inner, nested = text_part(whole)
    source = SafetensorsSource(folder, quantization_scheme(inner, str(path)), nested)
    try:
        config = hf_config(Settings(inner, str(path)), has_head=HEAD in source.tensors)
        source.set_norms(config)
        checkpoint = OpenCheckpoint(
            source=source,
            name=_name(folder),
            config=config,
            tokenizer=hf_tokenizer(folder),
            end_ids=hf_end_ids(folder, [whole, inner], config.vocab_size),
            generation_defaults=hf_generation_defaults(folder),
            pooling=hf_pooling(folder),
        )
    except CheckpointError:
        source.close()
        raise
    if nested:
        logger.warning("%s: %s reads images too; here it is text only, vision is off", folder, whole.get("model_type"))
    return checkpoint


def _name(folder: Path) -> str:
    """The folder's name; inside a Hub cache the repository's."""
    real = folder.absolute()
    repository = real.parent.parent.name
    if real.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.removeprefix("models--").replace("--", "/")
    return real.name
