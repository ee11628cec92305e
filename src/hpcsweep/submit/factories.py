"""Tells what is wrong with `package.module:factory`, without running anything of it.

A login node may lack torch, so the module is found as an import would find it, and its source is
read: whether it has the name, and whether a call would lack arguments.
"""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from hpcsweep import sources
from hpcsweep.errors import suggest

# a module that calls one of these may have names that its source does not show
_MAKES_NAMES: Final = frozenset({"exec", "globals", "locals", "setattr", "vars"})
_GIVEN: Final = {"model": 0, "dataset": 1}  # arguments: a data set gets the point
_Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class NoModule(Exception):
    """There is no such module here; the job's Python may have it."""


def problem(axis: str, name: str, folders: Sequence[str]) -> str | None:
    """Return what is wrong with a factory of an axis; None if nothing is, or nobody can tell.

    Raises:
        NoModule: there is no such module here.
    """
    module, _, attribute = name.partition(":")
    spec = sources.Sources(folders).spec(module)
    if spec is None:
        where = f"in {' or '.join(folders)}, or where Python looks"
        known = [found.name for found in pkgutil.iter_modules(folders)]
        raise NoModule(f"no module '{module}' {where}{suggest(module, known)}")
    source = Path(spec.origin or "")
    if source.suffix != ".py" or not source.is_file():  # it is compiled, or a namespace
        return None
    try:
        tree = ast.parse(source.read_bytes())
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        return f"{source}{line}: is not Python: {error}"
    names = _names_in(tree)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if names.keys() & {"*", "__getattr__"} or used & _MAKES_NAMES:
        return None
    if attribute not in names:
        return f"{source} has no '{attribute}'{suggest(attribute, names)}"
    made = names[attribute]
    if len(made) > 1 or not isinstance(made[0], _Defined) or made[0].decorator_list:
        return None
    return _wrong_call(source, made[0], _GIVEN[axis])


def _names_in(tree: ast.Module) -> dict[str, list[ast.AST]]:
    """Return the names that a module defines, with the nodes that do."""
    found: dict[str, list[ast.AST]] = {}
    for node in _outside_functions(tree):
        names: list[str] = []
        if isinstance(node, _Defined):
            names = [node.name]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [(one.asname or one.name).partition(".")[0] for one in node.names]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names = [node.id]
        for name in names:
            found.setdefault(name, []).append(node)
    return found


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, _Defined):
            yield from _outside_functions(child)


def _wrong_call(source: Path, node: _Defined, given: int) -> str | None:
    """Say which arguments a call with so many would lack, or have too many."""
    name = node.name
    bound = 0
    if isinstance(node, ast.ClassDef):
        made = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
        if node.keywords or "__new__" in made or "__init__" not in made:
            return None
        node = made["__init__"]
        bound = 1
    args = node.args
    needed = [arg.arg for arg in (*args.posonlyargs, *args.args)]
    most = len(needed) - bound
    needed = needed[bound + given : len(needed) - len(args.defaults)]
    needed += [
        arg.arg for arg, d in zip(args.kwonlyargs, args.kw_defaults, strict=True) if d is None
    ]
    where = f"{source}:{node.lineno}"
    if needed:
        call = f"{name}({', '.join(f'{arg}=...' for arg in needed)})"
        return (
            f"{where}: '{name}' needs {', '.join(needed)}, which nobody gives; name a function "
            f"that does: `def mine({'point' * given}): return {call}`"
        )
    if given > most and args.vararg is None:
        return f"{where}: '{name}' takes no argument; a data set gets the point"
    return None
