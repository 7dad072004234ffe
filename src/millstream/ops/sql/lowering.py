"""From sqlglot's tree to ours: `lower` turns each node into one that workers can evaluate.

Most nodes are calls of a function, listed in `vocabulary.CALLS`; the others have a function here,
listed in `_SPECIAL`. What is not known, or has arguments that would be ignored, is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.errors import ConfigError
from millstream.ops.sql import spans
from millstream.ops.sql.branches import Case, Coalesce, Logic
from millstream.ops.sql.calling import UserCall
from millstream.ops.sql.conversions import CAST_TARGETS, cast_value
from millstream.ops.sql.nodes import Call, Cast, Column, Field, Literal, Node
from millstream.ops.sql.patterns import compile_regex, like_parts
from millstream.ops.sql.times import TRUNC_UNITS
from millstream.ops.sql.types import MOST_DIGITS, bounds, type_name
from millstream.ops.sql.vocabulary import ANONYMOUS, CALLS, HABITS, TYPE_FUNCTIONS, TYPES

if TYPE_CHECKING:
    from sqlglot import expressions as exp

ELSEWHERE = "use .map(fn) for anything else"
_NULL = Literal(None, pa.null())


class UnsupportedFunction(ConfigError):
    """A function that is not supported, before it is known what the user called it."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"unsupported function {names[0]!r}")
        self.names = names


def lower(node: exp.Expr) -> Node:
    special = _SPECIAL.get(node.key)
    if special is not None:
        lowered = special(node)
    elif node.key in CALLS:
        function, *keys = CALLS[node.key]
        _only(node, *keys)
        lowered = _call(function, *_arguments(node, keys))
    else:
        raise _unsupported(node)
    return Call("not", (lowered,)) if node.args.get("negate") else lowered


def _arguments(node: exp.Expr, keys: Sequence[str]) -> Iterable[Node]:
    for key in keys:
        found = node.args.get(key)
        for each in found if isinstance(found, list) else [found]:
            if each is not None:
                yield lower(each.this if each.key == "tsordstodate" else each)


def _call(function: str, *args: Node, params: tuple[object, ...] = ()) -> Call:
    """A call whose constant patterns are known to be good."""
    pattern = args[1] if len(args) > 1 else None
    if isinstance(pattern, Literal) and isinstance(pattern.value, str):
        if function in ("rlike", "regexp_extract", "regexp_replace"):
            compile_regex(pattern.value)
        elif function == "like":
            like_parts(pattern.value, str(params[0]))
    return Call(function, args, params)


def _only(node: exp.Expr, *keys: str) -> None:
    """Refuse arguments that would be silently ignored."""
    extra = [key for key, value in node.args.items() if value and key not in {*keys, *HABITS}]
    if extra:
        raise ConfigError(f"{node.key} with {', '.join(extra)} is not supported; {ELSEWHERE}")


def _unsupported(node: exp.Expr) -> ConfigError:
    if node.key == "anonymous":
        return UnsupportedFunction([node.name.lower()])
    if hasattr(node, "sql_names"):
        return UnsupportedFunction([name.lower() for name in node.sql_names()])
    return ConfigError(f"unsupported syntax {node.key!r}; {ELSEWHERE}")


def _anonymous(node: exp.Expr) -> Node:
    name, given = node.name.lower(), node.args.get("expressions") or []
    if "function" in node.meta:
        return UserCall(node.meta["function"], tuple(map(lower, given)))
    if name in spans.NAMED:
        counts, make = spans.NAMED[name]
        if len(given) not in counts:
            takes = " or ".join(map(str, counts))
            raise ConfigError(f"{name} takes {takes} arguments, not {len(given)}")
        return make(name, list(given), lower)
    if name in TYPE_FUNCTIONS and len(given) == 1:
        return Cast(lower(given[0]), TYPES[TYPE_FUNCTIONS[name]])
    if name not in ANONYMOUS:
        raise _unsupported(node)
    if len(given) != ANONYMOUS[name]:
        raise ConfigError(f"{name} takes {ANONYMOUS[name]} arguments, not {len(given)}")
    args = tuple(map(lower, given))
    if name == "isnotnull":
        return Call("not", (Call("isnull", args),))
    return Call("trim", (*args, Literal(" ", pa.string()))) if name == "btrim" else Call(name, args)


def _column(node: exp.Expr) -> Node:
    if node.this.key == "star":
        raise ConfigError("* stands alone in a select list")
    first, *fields = (part.name for part in node.parts)  # type: ignore[attr-defined]
    lowered: Node = Column(first)
    for name in fields:
        lowered = Field(lowered, name)
    return lowered


def _dot(node: exp.Expr) -> Node:
    if node.expression.key != "identifier":
        raise _unsupported(node.expression)
    return Field(lower(node.this), node.expression.name)


def _literal(node: exp.Expr) -> Node:
    return Literal(node.name, pa.string()) if node.is_string else _number(node.name)


def _number(text: str) -> Literal:
    if text.lstrip("-").isdigit():
        for of in (pa.int32(), pa.int64()):
            if bounds(of)[0] <= int(text) <= bounds(of)[1]:
                return Literal(int(text), of, Decimal(text))
        raise ConfigError(f"{text} does not fit in a bigint")
    plain = "e" not in text.lower()  # 1e3 is a double wherever it stands
    try:
        value = float(text)
    except ValueError:  # ". 0.5" is read as "0.0.5"
        raise ConfigError(f"{text} is not a number") from None
    if math.isinf(value):
        raise ConfigError(f"{text} does not fit in a double")
    return Literal(value, pa.float64(), Decimal(text) if plain else None)


def _neg(node: exp.Expr) -> Node:
    if node.this.key == "literal" and not node.this.is_string:
        return _number("-" + node.this.name)  # -9223372036854775808 has no positive counterpart
    return Call("negative", (lower(node.this),))


def _constant_int(node: exp.Expr | None, what: str) -> int:
    lowered = None if node is None else lower(node)
    if not isinstance(lowered, Literal) or not isinstance(lowered.value, int):
        raise ConfigError(f"{what} must be a whole number")
    return lowered.value


def _in(node: exp.Expr) -> Node:
    _only(node, "this", "expressions")
    members = node.args.get("expressions") or []
    if not members:
        raise ConfigError("IN needs a list of values")
    return Call("in", tuple(map(lower, [node.this, *members])))


def _between(node: exp.Expr) -> Node:
    _only(node, "this", "low", "high")
    of = lower(node.this)
    low, high = lower(node.args["low"]), lower(node.args["high"])
    return Logic(Call(">=", (of, low)), Call("<=", (of, high)))


def _is(node: exp.Expr) -> Node:
    of = lower(node.this)
    if node.expression.key == "null":
        return Call("isnull", (of,))
    if node.expression.key != "boolean":
        raise _unsupported(node)
    return Call("<=>", (of, lower(node.expression)))


def _replace(node: exp.Expr) -> Node:
    _only(node, "this", "expression", "replacement")
    new = node.args.get("replacement")
    instead = Literal("", pa.string()) if new is None else lower(new)
    return Call("replace", (lower(node.this), lower(node.expression), instead))


def _like(node: exp.Expr, escape: str = "\\") -> Node:
    sides = [lower(node.this), lower(node.expression)]
    if node.key == "ilike":
        sides = [Call("lower", (side,)) for side in sides]
        pattern = lower(node.expression)
        if isinstance(pattern, Literal) and pattern.value is not None:
            sides[1] = Literal(str(pattern.value).lower(), pa.string())
    return _call("like", *sides, params=(escape,))


def _escape(node: exp.Expr) -> Node:
    if node.this.key not in ("like", "ilike") or len(node.expression.name) != 1:
        raise ConfigError("ESCAPE takes one character, after a LIKE pattern")
    lowered = _like(node.this, node.expression.name)
    return Call("not", (lowered,)) if node.this.args.get("negate") else lowered


def _case(node: exp.Expr) -> Node:
    _only(node, "this", "ifs", "default")
    subject = None if node.this is None or not node.args.get("this") else lower(node.this)
    branches = []
    for each in node.args["ifs"]:
        condition = lower(each.this)
        if subject is not None:
            condition = Call("=", (subject, condition))
        branches.append((condition, lower(each.args["true"])))
    default = node.args.get("default")
    return Case(tuple(branches), _NULL if default is None else lower(default))


def _if(node: exp.Expr) -> Node:
    if node.args.get("false") is None:
        raise ConfigError("IF needs a condition and two values")
    branch = (lower(node.this), lower(node.args["true"]))
    return Case((branch,), lower(node.args["false"]))


def _nvl2(node: exp.Expr) -> Node:
    if node.args.get("false") is None:
        raise ConfigError("NVL2 needs three values")
    present = Call("not", (Call("isnull", (lower(node.this),)),))
    return Case(((present, lower(node.args["true"])),), lower(node.args["false"]))


def _pad(node: exp.Expr) -> Node:
    fill = node.args.get("fill_pattern")
    name = "lpad" if node.args.get("is_left") else "rpad"
    with_ = Literal(" ", pa.string()) if fill is None else lower(fill)
    return Call(name, (lower(node.this), lower(node.expression), with_))


def _nullif(node: exp.Expr) -> Node:
    of = lower(node.this)
    return Case(((Call("=", (of, lower(node.expression))), _NULL),), of)


def _coalesce(node: exp.Expr) -> Node:
    return Coalesce(tuple(_arguments(node, ("this", "expressions"))))


def _cast(node: exp.Expr) -> Node:
    _only(node, "this", "to")
    wanted = node.args["to"]
    to = None if wanted.args.get("nested") else TYPES.get(wanted.this.name)
    if wanted.this.name == "DECIMAL":
        to = _decimal(wanted)
    elif to not in CAST_TARGETS:
        known = ", ".join(sorted({type_name(of) for of in CAST_TARGETS} | {"decimal(p,s)"}))
        raise ConfigError(f"cannot cast to {wanted.sql('spark')}; the types are {known}")
    # CAST is read as TryCast because it gave NULL in older Sparks; `safe` marks a real TRY_CAST.
    of, lenient = lower(node.this), node.key == "trycast" and bool(node.args.get("safe"))
    if node.key == "cast" and isinstance(of, Literal):  # TIMESTAMP '2026-01-01'
        return Literal(cast_value(of.value, of.type, to), to)
    return Cast(of, to, lenient)


def _decimal(wanted: Any) -> pa.DataType:
    given = [str(one.this.name) for one in wanted.args.get("expressions") or []]
    precision, scale = (*given, *("10", "0")[len(given) :])[:2]
    numbers = precision.isdigit() and scale.isdigit()
    if not numbers or not 0 <= int(scale) <= int(precision) <= MOST_DIGITS or int(precision) < 1:
        raise ConfigError(
            f"decimal({precision},{scale}): expected at most {MOST_DIGITS} digits, and no more "
            "behind the point than there are"
        )
    return pa.decimal128(int(precision), int(scale))


def _log(node: exp.Expr) -> Node:
    base, number = lower(node.this), lower(node.expression)
    named = {10: "log10", 2: "log2"}.get(base.value) if isinstance(base, Literal) else None
    return Call(named, (number,)) if named else Call("log", (base, number))


def _round(node: exp.Expr) -> Node:
    _only(node, "this", "decimals")
    digits = node.args.get("decimals")
    places = 0 if digits is None else _constant_int(digits, "the second argument of ROUND")
    return Call("round", (lower(node.this),), (places,))


def _trim(node: exp.Expr) -> Node:
    _only(node, "this", "expression", "position")
    side = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(node.args.get("position") or "", "trim")
    blanks = node.args.get("expression")
    characters = Literal(" ", pa.string()) if blanks is None else lower(blanks)
    return Call(side, (lower(node.this), characters))


def _element(node: exp.Expr) -> Node:
    _only(node, "this", "expressions")
    (index,) = node.args["expressions"]
    of = lower(node.this)
    return Call("element", (of, lower(index)))


def _date_trunc(node: exp.Expr) -> Node:
    _only(node, "this", "unit")
    unit = str(node.args["unit"].name).upper()
    if unit not in TRUNC_UNITS:
        known = ", ".join(sorted(set(TRUNC_UNITS.values())))
        raise ConfigError(f"DATE_TRUNC cannot cut to {unit!r}; the units are {known}")
    return Call("date_trunc", (lower(node.this),), (TRUNC_UNITS[unit],))


def _extract(node: exp.Expr) -> Node:
    return spans.extracted(str(node.this.name), lower(node.expression))


def _shifted(node: exp.Expr) -> Node:
    moved = spans.moved(node, lower)
    return moved or Call(CALLS[node.key][0], (lower(node.this), lower(node.expression)))


def _compared(node: exp.Expr) -> Node:
    apart = spans.distance(node, lower)
    return apart or Call(CALLS[node.key][0], (lower(node.this), lower(node.expression)))


def _timestampadd(node: exp.Expr) -> Node:
    unit = spans.unit_of(node.args.get("unit"), "timestampadd")
    return Call("timestampadd", (lower(node.this), lower(node.expression)), (unit,))


def _timestampdiff(node: exp.Expr) -> Node:
    unit = spans.unit_of(node.args.get("unit"), "timestampdiff")
    return Call("timestampdiff", (lower(node.expression), lower(node.this)), (unit,))


def _interval(node: exp.Expr) -> Node:
    raise ConfigError("an INTERVAL is added to a time or taken from it, and has no value by itself")


_SPECIAL: dict[str, Callable[[Any], Node]] = {
    "anonymous": _anonymous,
    "column": _column,
    "dot": _dot,
    "literal": _literal,
    "rawstring": lambda node: Literal(node.name, pa.string()),
    "boolean": lambda node: Literal(bool(node.this), pa.bool_()),
    "null": lambda node: _NULL,
    "paren": lambda node: lower(node.this),
    "neg": _neg,
    "and": lambda node: Logic(lower(node.this), lower(node.expression)),
    "or": lambda node: Logic(lower(node.this), lower(node.expression), disjunction=True),
    "in": _in,
    "between": _between,
    "is": _is,
    "nullsafeneq": lambda node: Call(
        "not", (Call("<=>", (lower(node.this), lower(node.expression))),)
    ),
    "like": _like,
    "replace": _replace,
    "ilike": _like,
    "escape": _escape,
    "case": _case,
    "if": _if,
    "nvl2": _nvl2,
    "nullif": _nullif,
    "pad": _pad,
    "coalesce": _coalesce,
    "cast": _cast,
    "trycast": _cast,
    "log": _log,
    "round": _round,
    "trim": _trim,
    "bracket": _element,
    "timestamptrunc": _date_trunc,
    "extract": _extract,
    "interval": _interval,
    "attimezone": lambda node: spans.zoned(
        "from_utc_timestamp", lower(node.this), node.args.get("zone")
    ),
    "timestampadd": _timestampadd,
    "timestampdiff": _timestampdiff,
    "add": _shifted,
    "sub": _shifted,
    **dict.fromkeys(("gt", "gte", "lt", "lte", "eq", "neq"), _compared),
}
