"""``LLM``: the engine in this process, for scripts and batches. No server, no second process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .batch import Batch, CompletionOutput, Job, RequestOutput
from .core.pooling import unit_vector
from .core.request import Request, SamplingParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .core.grammar import Grammar
    from .grammar.compiler import GrammarCompiler
    from .models.text import TextModel

Message = Mapping[str, Any]
Prompt = str | Sequence[int]


class LLM:
    """A loaded model. Use it from one thread; ``close`` it, or use it in a ``with`` block, to free the device.

    ``model`` is a path, a Hub id or ``demo``; ``options`` are ``EngineConfig``'s and ``BackendOptions``' fields.

    Raises:
        TypeError: an option that neither knows.
        ValueError: an option out of range, or a model that nobody has or that can't be read.
        OSError: a model that can't be fetched now; the message says why.
    """

    def __init__(self, model: str, device: str = "auto", *, progress: bool = True, **options: Any) -> None:
        from .backends.options import BackendOptions
        from .backends.select import load_backend
        from .core.config import EngineConfig
        from .core.engine import Engine
        from .models.checkpoint import open_checkpoint
        from .models.hub import resolve
        from .models.text import TextModel

        engine_options, backend_options = _split_options(options, EngineConfig, BackendOptions)
        config = EngineConfig(**engine_options)
        with _bar("download", progress, "bytes") as report:
            path = resolve(model, report)
        checkpoint = open_checkpoint(path)
        self._text: TextModel = TextModel.from_files(checkpoint.tokenizer, checkpoint.config.vocab_size)
        self.default_params = default_params(checkpoint.generation_defaults)
        with _bar("load", progress, "bytes") as report:
            backend = load_backend(device, checkpoint, config, BackendOptions(**backend_options), report, options)
        self._engine = Engine(backend, config)
        self._checkpoint = checkpoint
        self._compiler: GrammarCompiler | None = None  # made for the first grammar
        self._numbers = count()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        stop: str | Sequence[str] = (),
        include_stop: bool = False,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Complete ``prompts`` (texts, or lists of token ids), all at once, and return in their order.

        ``params``: one for all, one for each, or None for the model's own defaults. ``stop``: strings that end an
        answer; they are not part of its text unless ``include_stop``.

        Raises:
            RequestRejectedError: a prompt that can never fit; the others are given up with it.
            ValueError: lists that don't match, an id outside the vocabulary, a grammar that can't be compiled.
        """
        many = _prompts(prompts)
        pairs = [(one if isinstance(one, str) else None, self._text.prompt_ids(one)) for one in many]
        return self._run(pairs, params, stop, include_stop, progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_options: Mapping[str, Any] | None = None,
        stop: str | Sequence[str] = (),
        include_stop: bool = False,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of a list of them, through the model's chat template.

        ``template_options`` go to the template by name, e.g. ``{"enable_thinking": False}``. Otherwise as ``generate``.

        Raises:
            TemplateError: the model has no template, or refuses these messages in the template's own words.
        """
        conversations: Any = [messages] if messages and isinstance(messages[0], Mapping) else messages
        extra = dict(template_options or {})
        pairs = [(None, self._text.chat_ids(one, tools, **extra)) for one in conversations]
        return self._run(pairs, params, stop, include_stop, progress)

    def embed(
        self, texts: Prompt | Sequence[Prompt], *, dimensions: int | None = None, progress: bool = True
    ) -> list[NDArray[np.float32]]:
        """A vector for each of ``texts`` (texts, or lists of token ids), in their order: what /v1/embeddings answers.

        Each is float32, [dimensions], of length one, so that the product of two is their cosine. ``dimensions``: only
        the first so many; None: all that the model has. Pooled as the model's files say, by the mean where they say
        nothing.

        Raises:
            RequestRejectedError: a text that can never fit; the others are given up with it.
            ValueError: an id outside the vocabulary, more dimensions than there are, states that are not finite, or a
                model whose files name a pooling that isn't known.
            RuntimeError: the device failed.
        """
        pooling, most = self._checkpoint.pooling, self._checkpoint.config.hidden_size
        if pooling is None:
            raise ValueError(f"the files of {self._checkpoint.name} name a pooling that isn't known here")
        if dimensions is not None and not 1 <= dimensions <= most:
            raise ValueError(f"dimensions is {dimensions}; it must be 1 to {most}, this model's number of dimensions")
        params = SamplingParams(max_tokens=1, temperature=0.0, pooling=pooling)
        pairs = [(None, self._text.prompt_ids(one)) for one in _prompts(texts)]
        jobs = self._finished(pairs, [params] * len(pairs), (), False, "embed", progress)
        return [unit_vector(job.embedding(), dimensions) for job in jobs]

    def close(self) -> None:
        """Free what the device and the files hold. Safe to call twice."""
        if self._compiler is not None:
            self._compiler.close()
        self._engine.close()
        self._checkpoint.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(
        self,
        prompts: Sequence[tuple[str | None, tuple[int, ...]]],
        params: SamplingParams | Sequence[SamplingParams] | None,
        stop: str | Sequence[str],
        include_stop: bool,
        progress: bool,
    ) -> list[RequestOutput]:
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        each = self._each_params(params, len(prompts))
        return [job.result for job in self._finished(prompts, each, stops, include_stop, "generate", progress)]

    def _finished(
        self,
        prompts: Sequence[tuple[str | None, tuple[int, ...]]],
        each: Sequence[SamplingParams],
        stops: Sequence[str],
        include_stop: bool,
        title: str,
        progress: bool,
    ) -> list[Job]:
        """All ``prompts`` run to their end, in their order."""
        jobs = [
            Job(
                Request(f"llm-{next(self._numbers)}", ids, one, arrival_time=self._engine.clock()),
                RequestOutput(text, ids, [CompletionOutput(index) for index in range(one.n)]),
                [self._text.output(stops, include_stop) for _ in range(one.n)],
                self._grammar(one),
            )
            for (text, ids), one in zip(prompts, each, strict=True)
        ]
        with _bar(title, progress, "requests") as report:
            Batch(self._engine, jobs).run(report)
        return jobs

    def _grammar(self, params: SamplingParams) -> Grammar | None:
        """What ``params.grammar`` compiles to. Raises ``GrammarError``, a ``ValueError``, with the reason."""
        if params.grammar is None:
            return None
        if self._compiler is None:
            from .grammar.compiler import GrammarCompiler

            info, config = self._engine.backend.info, self._engine.config
            self._compiler = GrammarCompiler.of(
                self._text.tokenizer, info.end_ids, config.grammar_timeout_s, config.grammar_cache
            )
        return self._compiler.compile(params.grammar)

    def _each_params(
        self, params: SamplingParams | Sequence[SamplingParams] | None, wanted: int
    ) -> Sequence[SamplingParams]:
        if params is None or isinstance(params, SamplingParams):
            return [params or self.default_params] * wanted
        if len(params) != wanted:
            raise ValueError(f"there are {len(params)} params for {wanted} prompts; give one for all, or one for each")
        return params


def default_params(generation_defaults: Mapping[str, Any]) -> SamplingParams:
    """The sampling a model's own files ask for; what they leave out is ``SamplingParams``' default."""
    known = {one.name for one in fields(SamplingParams)} - {"stop_token_ids", "logit_bias", "seed", "n"}
    return SamplingParams(**{name: value for name, value in generation_defaults.items() if name in known})


def _prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many, as a list. A list of ints is one prompt."""
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _split_options(options: Mapping[str, Any], *kinds: type) -> list[dict[str, Any]]:
    """``options`` by the record that has a field of the name."""
    names = [{one.name for one in fields(kind)} for kind in kinds]
    unknown = set(options) - set().union(*names)
    if unknown:
        raise TypeError(
            f"no such option: {', '.join(sorted(unknown))}. Known: {', '.join(sorted(set().union(*names)))}"
        )
    return [{name: value for name, value in options.items() if name in known} for known in names]


@contextmanager
def _bar(title: str, shown: bool, unit: str) -> Iterator[Any]:
    """A progress bar on standard error, fed (done, in all); gone when it is done."""
    from rich.console import Console

    console = Console(stderr=True)
    if not shown or not console.is_terminal:
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    column = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    bar = Progress("{task.description}", BarColumn(), column, TimeRemainingColumn(), console=console, transient=True)
    with bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
