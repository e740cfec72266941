"""Check of arguments by the parsers of click and typer, without running the command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shell_blocks.shell import is_placeholder

HELP = ("-h", "--help")


def problem(command: Any, words: Sequence[str], name: str, *, mention: bool) -> str:
    """The first error in the words after a program's name; "" if there is none. A mention may leave arguments out.

    `command` is a click command of click itself or of the copy inside typer, which share no base class.
    """
    context = command.context_class(command, info_name=name, **command.context_settings)
    try:
        values, rest, _ = command.make_parser(context).parse_args(list(words))
        if hasattr(command, "resolve_command"):
            return _below(command, context, rest, name, mention=mention)
        if any(word in HELP for word in words):
            return ""
        if rest and not context.allow_extra_args:
            return f"{name}: too many arguments: {' '.join(rest)}"
        return _values(command, context, values, name, mention=mention)
    except Exception as error:
        if not hasattr(error, "format_message"):  # of usage errors only
            raise
        return f"{name}: {error.format_message()}"


def _below(group: Any, context: Any, rest: list[str], name: str, *, mention: bool) -> str:
    if not rest or is_placeholder(rest[0]):
        return ""
    below, command, words = group.resolve_command(context, rest)
    return problem(command, words, f"{name} {below}", mention=mention)


def _values(command: Any, context: Any, values: dict[str, Any], name: str, *, mention: bool) -> str:
    for param in command.params:
        value = values.get(param.name)
        given = [each for each in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(each, str)]
        if param.required and not given and not mention:
            return f"{name}: missing {param.param_type_name} {param.name}"
        if given and not any(map(is_placeholder, given)):
            param.process_value(context, value)
    return ""
