"""Lists of calls: of JSON objects, or of Python calls."""

from __future__ import annotations

import re

from .json_calls import JsonCalls
from .machine import Steps
from .python_calls import balanced, read_calls

_IDENTIFIER = re.compile(r"[\w.]*")


class ListCalls(JsonCalls):
    """Python's calls are told once they are whole, and only those of tools that were offered."""

    def list_of_calls(self, held: list[str]) -> Steps[bool]:
        """``[{...}, {...}]`` or ``[f(...), g(...)]``; as ``call_object``."""
        yield from self.mark("[", held)
        yield from self.space(held.append)
        if (yield from self.peek()) == "{":
            return (yield from self.rest_of_array(held))
        name: list[str] = []
        yield from self.run_of(_IDENTIFIER, name.append)
        held += name
        called = "".join(name)
        if not (called in self.tools or called.rpartition(".")[2] in self.tools) or (yield from self.peek()) != "(":
            return False
        code = ["[", called]
        whole = yield from balanced(self, code)
        held += code[2:]
        return whole and self.tell_python("".join(code))

    def tell_python(self, source: str) -> bool:
        """Tell the calls of a piece of Python; False where it is something else."""
        calls = read_calls(source, self.tools)
        for name, arguments in calls or ():
            self.start_call(name)
            self.arguments(arguments)
            self.end_call(complete=True)
        return calls is not None
