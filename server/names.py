"""Which model names a request may use."""

from __future__ import annotations

from pathlib import Path

from .errors import ApiError


def default_name(model: str) -> str:
    """The id of a model nobody named: a path's last part without ``.gguf``, anything else as it is."""
    if not Path(model).exists():
        return model
    name = Path(model).resolve().name
    return name.removesuffix(".gguf")


class ServedNames:
    """The ids in ``/v1/models`` and the other names accepted for them."""

    def __init__(self, served: tuple[str, ...], aliases: tuple[str, ...] = ()) -> None:
        self.served = served
        self._accepted = {_base(name): name for name in served}
        self._accepted |= {alias: served[0] for one in aliases for alias in (one, _base(one))}
        self._accepted |= {name: name for name in served}

    @classmethod
    def of(cls, model: str, names: tuple[str, ...]) -> ServedNames:
        """``names`` if given, else one derived from ``model``; the argument itself is then accepted too."""
        return cls(names) if names else cls((default_name(model),), (model,))

    @property
    def primary(self) -> str:
        return self.served[0]

    def check(self, name: str | None) -> str:
        """The served id that ``name`` means; none given means the first. Raises ``ApiError`` 404."""
        if not name:
            return self.primary
        if found := self._accepted.get(name) or self._accepted.get(name.removesuffix(".gguf")):
            return found
        shown = name if len(name) <= 200 else name[:200] + "..."
        raise ApiError(
            404,
            f"The model {shown!r} is not served here; this server has {', '.join(map(repr, self.served))}.",
            param="model",
            code="model_not_found",
        )


def _base(name: str) -> str:
    return name.rsplit("/", 1)[-1].removesuffix(".gguf")
