"""Tells what is wrong with `package.module:factory`, without running anything of it.

A login node may lack torch, so the module is found as an import would find it, and its source is
read: whether it has the name, and whether a call would lack arguments.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcsweep import sources
from hpcsweep.errors import suggest

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

# a module that calls one of these may have names that its source does not show
_MAKES_NAMES: Final = frozenset({"exec", "globals", "locals", "setattr", "vars"})
_GIVEN: Final = {"model": 0, "dataset": 1}  # arguments: a data set gets the point
_DEEPEST: Final = 8  # imports and base classes that are followed
_Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_Arguments = tuple[str, ast.arguments, int]  # where they are defined, and how many are bound


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
        raise NoModule(f"no module '{module}' {where}{suggest(module, _modules(folders))}")
    try:
        tree = _tree(spec)
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        return f"{spec.origin}{line}: is not Python: {error}"
    if tree is None or (known := _names_in(tree)) is None:
        return None
    if attribute not in known:
        return f"{spec.origin} has no '{attribute}'{suggest(attribute, known)}"
    try:
        return _wrong_call(_arguments(spec, attribute, folders, _DEEPEST), attribute, _GIVEN[axis])
    except (SyntaxError, ValueError):  # of a module that this one imports
        return None


def _tree(spec: ModuleSpec) -> ast.Module | None:
    """Return the source of a module; None where it is compiled, or a namespace."""
    source = Path(spec.origin) if spec.origin else None
    if source is None or source.suffix != ".py" or not source.is_file():
        return None
    return ast.parse(source.read_bytes())


def _modules(folders: Sequence[str]) -> list[str]:
    files = [path for folder in map(Path, folders) for path in sorted(folder.glob("*.py"))]
    inits = [path for folder in map(Path, folders) for path in sorted(folder.glob("*/__init__.py"))]
    inner = [f"{path.parent.name}.{one.stem}" for path in inits for one in path.parent.glob("*.py")]
    return [*(path.stem for path in files), *(path.parent.name for path in inits), *inner]


def _names_in(tree: ast.Module) -> set[str] | None:
    """Return the names that a module defines; None if its source does not show them all."""
    found: set[str] = set()
    for node in _outside_functions(tree):
        if isinstance(node, _Defined):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update(
                (imported.asname or imported.name).partition(".")[0] for imported in node.names
            )
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return None if found & {"*", "__getattr__"} or used & _MAKES_NAMES else found


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, _Defined):
            yield from _outside_functions(child)


def _wrong_call(definition: _Arguments | None, name: str, given: int) -> str | None:
    """Say which arguments a call with so many would lack, or have too many."""
    if definition is None:
        return None
    where, args, bound = definition
    needed = [arg.arg for arg in (*args.posonlyargs, *args.args)]
    most = len(needed) - bound
    needed = needed[bound + given : len(needed) - len(args.defaults)]
    needed += [
        arg.arg for arg, d in zip(args.kwonlyargs, args.kw_defaults, strict=True) if d is None
    ]
    if needed:
        call = f"{name}({', '.join(f'{arg}=...' for arg in needed)})"
        return (
            f"{where}: '{name}' needs {', '.join(needed)}, which nobody gives; name a function "
            f"that does: `def mine({'point' * given}): return {call}`"
        )
    if given > most and args.vararg is None:
        return f"{where}: '{name}' takes no argument; a data set gets the point"
    return None


def _arguments(
    spec: ModuleSpec, name: str, folders: Sequence[str], depth: int
) -> _Arguments | None:
    """Return the arguments of a function or class.

    None where the source does not tell: decorated, a value, defined twice, of a compiled module.
    """
    tree = _tree(spec) if depth else None
    nodes = _outside_functions(tree) if tree else ()
    found = [(node, of) for node in nodes if (of := _defines(node, name))]
    if len(found) != 1:
        return None
    node, original = found[0]
    if isinstance(node, ast.ImportFrom):
        relative = "." * node.level + (node.module or "")
        module = importlib.util.resolve_name(relative, spec.parent) if node.level else relative
        other = sources.Sources(folders).spec(module)
        return _arguments(other, original, folders, depth - 1) if other else None
    if not isinstance(node, _Defined) or node.decorator_list:
        return None
    if isinstance(node, ast.ClassDef):
        return _of_class(spec, node, folders, depth - 1)
    return f"{spec.origin}:{node.lineno}", node.args, 0


def _defines(node: ast.AST, name: str) -> str:
    """Return the name that a node gives `name` to, as it is called there, or ""."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return next((one.name for one in node.names if (one.asname or one.name) == name), "")
    if isinstance(node, _Defined):
        return node.name * (node.name == name)
    stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name
    return name * stored


def _of_class(
    spec: ModuleSpec, node: ast.ClassDef, folders: Sequence[str], depth: int
) -> _Arguments | None:
    """Return the arguments of a class, or of the one class that it derives from."""
    made = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
    if node.keywords or "__new__" in made:
        return None
    if init := made.get("__init__"):
        return f"{spec.origin}:{init.lineno}", init.args, 1
    if len(node.bases) != 1 or not isinstance(node.bases[0], ast.Name):
        return None
    return _arguments(spec, node.bases[0].id, folders, depth)
