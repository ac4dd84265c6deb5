"""Moves statements that cannot be recorded out of a function: what is left of it can be recorded.

    x = self.a(x)                       x = self.a(x)
    if x.max() > 1:                     def statement(self, x): if x.max() > 1: x = x / 2; return {"x": x}
        x = x / 2               →       result = run_statement(statement, locals()); x = result["x"]
    return self.b(x)                    return self.b(x)

Functions keep their identity: for the time of a recording they have other code.
"""

import __future__

import ast
import copy
import inspect
import linecache
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

from torch import nn

from .recording import Position

_RUN = f'__import__("{__package__}.statements", fromlist=["run_statement"]).run_statement'
_FUNCTION, _RESULT = "statement_moved_out", "result_of_statement"
_Body = list[ast.stmt]
_MOST = 40  # statements that a network may have moved out: each is found by another recording


@dataclass
class _Range:
    """Statements of one body, from `first` up to `last`. `line`: of the statement that cannot be recorded."""

    body: _Body
    first: int
    last: int
    why: str
    line: int


@dataclass
class _Source:
    """A function whose statements are moved out."""

    function: FunctionType
    original: CodeType
    tree: ast.FunctionDef
    ranges: list[_Range] = field(default_factory=list)
    code: CodeType | None = None


class Outlining:
    """The statements that were moved out so far."""

    def __init__(self) -> None:
        self._sources: list[_Source] = []
        self._count = 0

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Have the functions run their new code."""
        for source in self._sources:
            if source.code is not None:
                source.function.__code__ = source.code
        try:
            yield
        finally:
            for source in self._sources:
                source.function.__code__ = source.original

    @property
    def lines(self) -> dict[str, str]:
        """File, line and text of each statement → why it was moved out."""
        return {
            _where(source, span): span.why
            for source in self._sources
            for span in sorted(source.ranges, key=lambda each: each.body[each.first].lineno)
        }

    def move_out(self, positions: Sequence[Position], why: str) -> bool:
        """Move out the statement at the first of some positions that is in one.

        If it is out already, the statement before it joins it. Returns whether there is something new to record.
        """
        for function, position in positions:
            source = self._source(function)
            if source is not None and self._take(source, position, why):
                return True
        return False

    def extend(self, code: CodeType) -> bool:
        """Have the statement behind one that was moved out join it. `code`: of the function that it was moved to."""
        for source in self._sources:
            for span in source.ranges:
                if (
                    source.code is not None
                    and code in _codes(source.code)
                    and span.body[span.first].lineno == code.co_firstlineno
                ):
                    if span.last < len(span.body):
                        return self._move_range(source, replace(span, last=span.last + 1))
                    return self._widen(source, span)
        return False

    def _take(self, source: _Source, position: tuple[int, int], why: str) -> bool:
        for span in source.ranges:
            if span.body[span.first].lineno <= position[0] <= (span.body[span.last - 1].end_lineno or 0):
                if span.first > _num_docstrings(source, span.body):
                    return self._move_range(source, replace(span, first=span.first - 1))
                return self._widen(source, span)
        statement = _innermost(source.tree.body, position)
        if statement is None:
            return False
        body, first = statement
        return self._move_range(source, _Range(body, first, first + 1, why, body[first].lineno))

    def _widen(self, source: _Source, span: _Range) -> bool:
        """Move out the statement that the body of a range belongs to."""
        parent = _parent(source.tree.body, span.body)
        if parent is None:
            return False
        body, first = parent
        return self._move_range(source, replace(span, body=body, first=first, last=first + 1))

    def _move_range(self, source: _Source, added: _Range) -> bool:
        """Move out a range, in the place of those that it touches."""
        allowed = _allowed(source, added)
        if allowed is None or self._count >= _MOST:
            return False
        for span in source.ranges:
            if span.body is allowed.body and span.first < allowed.last and allowed.first < span.last:
                first, last = min(span.first, allowed.first), max(span.last, allowed.last)
                allowed = replace(span, body=allowed.body, first=first, last=last)
        inside = {id(node) for each in allowed.body[allowed.first : allowed.last] for node in ast.walk(each)}
        others = []
        for span in source.ranges:
            if id(span.body[span.first]) in inside:
                allowed = replace(allowed, why=span.why, line=span.line)  # the first reason is the cause
            else:
                others.append(span)
        whole = source.tree.body
        if allowed.body is whole and allowed.first <= _num_docstrings(source, whole) and allowed.last == len(whole):
            return False  # nothing is left
        before = source.ranges
        source.ranges = [*others, allowed]
        code = _rewritten(source)
        if code is None:
            source.ranges = before
            return False
        source.code = code
        self._count += 1
        return True

    def _source(self, function: FunctionType) -> _Source | None:
        for source in self._sources:
            if source.function is function:
                return source
        tree = _tree(function.__code__)
        if tree is None:
            return None
        self._sources.append(_Source(function, function.__code__, tree))
        return self._sources[-1]


# Where an error was raised


def positions_of(error: BaseException, module: nn.Module) -> list[Position]:
    """Return where an error was raised in a module's methods, the innermost first."""
    frames, traceback = [], error.__traceback__
    while traceback is not None:
        frames.append((traceback.tb_frame, traceback.tb_lasti))
        traceback = traceback.tb_next
    return _positions(frames[::-1], module)


def positions_now(module: nn.Module) -> list[Position]:
    """Return where a module's methods are as they call this function, the innermost first."""
    frames, frame = [], inspect.currentframe()
    while frame is not None:
        frames.append((frame, frame.f_lasti))
        frame = frame.f_back
    return _positions(frames, module)


def _positions(frames: Iterable[tuple[FrameType, int]], module: nn.Module) -> list[Position]:
    positions = []
    for frame, instruction in frames:
        code = frame.f_code
        if code.co_argcount and frame.f_locals.get(code.co_varnames[0]) is module:
            function = _method(module, code)
            if function is not None:
                line, _, column, _ = next(islice(code.co_positions(), instruction // 2, None))
                positions.append((function, (line or code.co_firstlineno, column or 0)))
    return positions


def _method(module: nn.Module, code: CodeType) -> FunctionType | None:
    """Return the function of a module's class that has some code, within decorators, too; None if it is torch's."""
    for kind in type(module).__mro__:
        function = vars(kind).get(code.co_name)
        while function is not None and kind not in nn.Module.__mro__:
            if isinstance(function, FunctionType) and function.__code__ is code:
                return function
            function = getattr(function, "__wrapped__", None)
    return None


# A function's statements


def _tree(code: CodeType) -> ast.FunctionDef | None:
    """Return the source of a function as a tree, with the lines that it has in its file; None if there is none."""
    try:
        lines, first = inspect.getsourcelines(code)
        indented = lines[0][:1].isspace()
        module = ast.parse("".join(["if True:\n", *lines] if indented else lines))
    except (OSError, SyntaxError, TypeError):
        return None
    ast.increment_lineno(module, first - 1 - indented)
    outer: Any = module.body[0].body[0] if indented else module.body[0]  # type: ignore[attr-defined]
    if not isinstance(outer, ast.FunctionDef) or outer.name != code.co_name or _is_odd(outer):
        return None
    outer.decorator_list = []
    return outer


def _is_odd(function: ast.FunctionDef) -> bool:
    """Return whether it cannot be compiled outside its class: private names, generators, names of outer scopes."""
    odd = (ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal)
    private = [node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)]
    return any(isinstance(node, odd) for node in ast.walk(function)) or any(
        name.startswith("__") and not name.endswith("__") for name in private
    )


def _bodies(statement: ast.stmt) -> Iterator[_Body]:
    for name in ("body", "orelse", "finalbody"):
        body = getattr(statement, name, None)
        if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
            yield body
    for handler in getattr(statement, "handlers", ()):
        yield handler.body


def _innermost(body: _Body, position: tuple[int, int]) -> tuple[_Body, int] | None:
    for i, each in enumerate(body):
        if (each.lineno, each.col_offset) <= position <= (each.end_lineno or 0, each.end_col_offset or 0):
            if not isinstance(each, ast.FunctionDef | ast.ClassDef):
                for inner in _bodies(each):
                    if (statement := _innermost(inner, position)) is not None:
                        return statement
            return body, i
    return None


def _parent(body: _Body, wanted: _Body) -> tuple[_Body, int] | None:
    for i, each in enumerate(body):
        for inner in _bodies(each):
            if inner is wanted:
                return body, i
            if (statement := _parent(inner, wanted)) is not None:
                return statement
    return None


def _num_docstrings(source: _Source, body: _Body) -> int:
    return int(body is source.tree.body and ast.get_docstring(source.tree) is not None)


class _Leaves(ast.NodeVisitor):
    """Notes how statements leave: by return, by continue or break of a loop outside of them."""

    def __init__(self, statements: _Body) -> None:
        self.returns = self.continues = self.breaks = False
        self._depth = 0
        for each in statements:
            self.visit(each)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None: ...
    def visit_Lambda(self, node: ast.Lambda) -> None: ...

    def visit_Return(self, node: ast.Return) -> None:
        self.returns = True

    def visit_Continue(self, node: ast.Continue) -> None:
        self.continues = self.continues or not self._depth

    def visit_Break(self, node: ast.Break) -> None:
        self.breaks = self.breaks or not self._depth

    def _loop(self, node: ast.For | ast.While) -> None:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1

    visit_For = visit_While = _loop


def _allowed(source: _Source, asked: _Range) -> _Range | None:
    """Return the smallest range around one that a function can hold: what leaves a body takes its rest along."""
    body, first, last = asked.body, asked.first, asked.last
    while True:
        leaves = _Leaves(body[first:last])
        whole = source.tree.body
        if not (leaves.returns or leaves.breaks or leaves.continues):
            return replace(asked, body=body, first=first, last=last)
        if body is whole:
            return replace(asked, body=body, first=first, last=len(body))
        parent = _parent(whole, body)
        assert parent is not None
        statement = parent[0][parent[1]]
        of_loop = isinstance(statement, ast.For | ast.While) and body is statement.body
        if of_loop and not (leaves.returns or leaves.breaks):
            return replace(asked, body=body, first=first, last=len(body))
        body, first, last = parent[0], parent[1], parent[1] + 1


# Writing a function anew


def _rewritten(source: _Source) -> CodeType | None:
    """Return a function's code with its ranges moved out; None if it would not have the same variables outside."""
    names = tuple(dict.fromkeys((*source.original.co_varnames, *source.original.co_cellvars)))  # some are in both
    marks = {(id(span.body), span.first): span for span in source.ranges}

    def of_body(body: _Body) -> _Body:
        made: _Body = []
        i = 0
        while i < len(body):
            span = marks.get((id(body), i))
            if span is not None:
                made += _moved_out(source, span, names)
                i = span.last
                continue
            each = copy.copy(body[i])
            if not isinstance(each, ast.FunctionDef | ast.ClassDef):
                for name in ("body", "orelse", "finalbody"):
                    inner = getattr(each, name, None)
                    if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt):
                        setattr(each, name, of_body(inner))
                if getattr(each, "handlers", None):
                    handlers = [copy.copy(handler) for handler in each.handlers]  # type: ignore[attr-defined]
                    for handler in handlers:
                        handler.body = of_body(handler.body)
                    each.handlers = handlers  # type: ignore[attr-defined]
            made.append(each)
            i += 1
        return made

    function = copy.copy(source.tree)
    function.body = of_body(source.tree.body)
    free = source.original.co_freevars
    factory = ast.parse(f"def factory({', '.join(free)}): pass").body[0]
    assert isinstance(factory, ast.FunctionDef)
    factory.body = [function]
    tree = ast.fix_missing_locations(ast.Module([ast.copy_location(factory, function)], []))
    outer = compile(
        tree, source.original.co_filename, "exec", dont_inherit=True, flags=source.original.co_flags & _FUTURE
    )
    made = next(code for code in _codes(outer) if code.co_name == "factory")
    inner = next(code for code in made.co_consts if isinstance(code, CodeType) and code.co_name == function.name)
    return inner if inner.co_freevars == free else None


_FUTURE = __future__.annotations.compiler_flag


def _moved_out(source: _Source, span: _Range, names: tuple[str, ...]) -> _Body:
    """Return the statements that stand where a range stood."""
    moved = copy.deepcopy(span.body[span.first : span.last])
    carried = _local_functions(source, moved, span)
    moved = [*carried, *moved]
    outside = _loaded(source.tree.body, without=span.body[span.first : span.last])
    loop = _loop_around(source, span)
    loaded, stored, written = _names(moved)
    if loop:
        outside |= loaded
    outputs = [name for name in names if name in stored | written and name in outside | written]
    inputs = [name for name in names if name in loaded | written and name not in {each.name for each in carried}]
    leaves = _Leaves(moved)
    to_the_end = span.body is source.tree.body and leaves.returns
    result = f"(lambda given: {{name: given[name] for name in {tuple(outputs)!r} if name in given}})(locals())"
    if not to_the_end:
        moved = [_Continues(result).visit(each) for each in moved] if leaves.continues else moved
        moved += ast.parse(f"return {result}").body
    head = ast.parse(f"def {_FUNCTION}({', '.join(f'{name}=None' for name in inputs)}): pass").body[0]
    assert isinstance(head, ast.FunctionDef)
    head.body = moved
    of_self = _uses(moved, names[0]) if names and names[0] in inputs else ()
    call = f"{_RUN}({_FUNCTION}, locals(), {tuple(sorted(written))!r}, {of_self!r}, {to_the_end!r})"
    if to_the_end:
        after = ast.parse(f"return {call}").body
    else:
        lines = [
            f"{_RESULT} = {call}",
            *(f"if {name!r} in {_RESULT}: {name} = {_RESULT}[{name!r}]" for name in outputs),
        ]
        after = ast.parse("\n".join(lines)).body
    made: _Body = [head, *after]
    first = span.body[span.first]
    for each in made:
        for node in [each] if each is head else ast.walk(each):
            ast.copy_location(node, first)
    return made


def _local_functions(source: _Source, moved: _Body, span: _Range) -> list[ast.FunctionDef]:
    """Return copies of the functions, defined in the body around, that statements call: none can be an argument."""
    inside = {id(each) for each in span.body[span.first : span.last]}
    known = {
        each.name: each for each in source.tree.body if isinstance(each, ast.FunctionDef) and id(each) not in inside
    }
    found: list[ast.FunctionDef] = []
    while names := [name for name in known if name in _names([*found, *moved])[0]]:
        found = [*(copy.deepcopy(known.pop(name)) for name in names), *found]
    return found


class _Continues(ast.NodeTransformer):
    """Has a function return its variables where a loop went on to its next turn."""

    def __init__(self, result: str) -> None:
        self._result = result

    def visit_Continue(self, node: ast.Continue) -> ast.stmt:
        made = ast.parse(f"return {self._result}").body[0]
        for each in ast.walk(made):
            ast.copy_location(each, node)
        return made

    def visit_For(self, node: ast.For) -> ast.For:
        return node

    def visit_While(self, node: ast.While) -> ast.While:
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return node


def _names(statements: _Body) -> tuple[set[str], set[str], set[str]]:
    """Return the names that statements read, set, and write into."""
    loaded, stored, written = set[str](), set[str](), set[str]()
    for node in (node for each in statements for node in ast.walk(each)):
        if isinstance(node, ast.Name):
            (loaded if isinstance(node.ctx, ast.Load) else stored).add(node.id)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            loaded.add(node.target.id)
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Name):
            written.add(node.value.id)
        if (tensor := _with_other_indices(node)) is not None:
            written.add(tensor)
    return loaded, stored, written


def _with_other_indices(node: ast.AST) -> str | None:
    """Return the name of a sparse tensor of spconv that gets other indices: `x.indices = …`, `x.indices[…] *= …`."""
    if not isinstance(node, ast.Attribute | ast.Subscript) or isinstance(node.ctx, ast.Load):
        return None
    attribute = node.value if isinstance(node, ast.Subscript) else node
    if isinstance(attribute, ast.Attribute) and attribute.attr == "indices" and isinstance(attribute.value, ast.Name):
        return attribute.value.id
    return None


def _uses(statements: _Body, name: str) -> tuple[tuple[str | int, ...], ...]:
    """Return what statements read of a variable, such as ("blocks", 3) for `self.blocks[3]`; () is all of it."""
    paths: dict[tuple[str | int, ...], None] = {}

    def visit(node: ast.AST) -> None:
        chain, inner = list[str | int](), node
        while True:
            if isinstance(inner, ast.Attribute):
                chain.append(inner.attr)
            elif isinstance(inner, ast.Subscript) and isinstance(inner.slice, ast.Constant):
                value = inner.slice.value
                if not isinstance(value, str | int):
                    break
                chain.append(value)
            else:
                break
            inner = inner.value
        if isinstance(inner, ast.Name) and inner.id in (name, "super"):
            paths[tuple(chain[::-1]) if inner.id == name else ()] = None
            return
        for child in ast.iter_child_nodes(node):
            visit(child)

    for each in statements:
        visit(each)
    return tuple(paths)


def _loaded(body: _Body, *, without: _Body) -> set[str]:
    skipped = {id(node) for each in without for node in ast.walk(each)}
    return {
        node.id
        for each in body
        for node in ast.walk(each)
        if isinstance(node, ast.Name) and id(node) not in skipped and not isinstance(node.ctx, ast.Store)
    }


def _loop_around(source: _Source, span: _Range) -> bool:
    body = span.body
    while (parent := _parent(source.tree.body, body)) is not None:
        if isinstance(parent[0][parent[1]], ast.For | ast.While):
            return True
        body = parent[0]
    return False


def _codes(code: CodeType) -> list[CodeType]:
    """Return code and what is within it."""
    return [code, *(inner for each in code.co_consts if isinstance(each, CodeType) for inner in _codes(each))]


def _where(source: _Source, span: _Range) -> str:
    """Write where a statement is: "net.py:12, `if x.sum() > 0:`"."""
    text = linecache.getline(source.original.co_filename, span.line).strip()
    return f"{Path(source.original.co_filename).name}:{span.line} (`{text[:60]}`)"
