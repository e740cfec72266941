"""Validation rules of the CRDs, evaluated as the API server does (x-kubernetes-validations, Common Expression Language).

A library implements the language; this module adds only the functions of Kubernetes' CEL environment that the rules use, over IP addresses,
prefixes and quantities. Addresses and prefixes are represented as text, because rules can access nothing else.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import cel

from sos_compile.model.addresses import is_cidr, is_ip, parse_cidr

USES_OLD_SELF = re.compile(r"\boldSelf\b")


class RuleError(Exception):
    """A rule that cannot be evaluated: a fault of the CRD, which the API server would report when the CRD is applied."""


def holds(rule: str, value: Any, old: Any = None) -> bool:
    """Return whether `rule` holds for `value` (`self`); `old` is `oldSelf` for rules about changes. Raises RuleError."""
    context = cel.Context()
    for name, function in FUNCTIONS.items():
        context.add_function(name, function)
    context.add_variable("self", value)
    if USES_OLD_SELF.search(rule):
        context.add_variable("oldSelf", old)
    try:
        # With optionalOldSelf, oldSelf is an optional value, which the library does not support.
        result = _program(rule.replace("oldSelf.hasValue()", "false" if old is None else "true")).execute(context)
    except (ValueError, KeyError, RuntimeError, TypeError) as error:
        raise RuleError(f"rule {rule!r}: {error}") from error
    if not isinstance(result, bool):
        raise RuleError(f"rule {rule!r}: gives {type(result).__name__}, not a bool")
    return result


@cache
def _program(rule: str) -> Any:
    return cel.compile(rule)


def _cidr(text: str) -> str:
    return str(parse_cidr(text))


def _masked(text: str) -> str:
    return str(parse_cidr(text).network)


def _ip(text: str) -> str:
    """Evaluate `ip('192.0.2.1')` of an address, or `cidr('192.0.2.1/24').ip()` of a prefix."""
    return str(parse_cidr(text).ip if "/" in text else ipaddress.ip_address(text))


def _family(text: str) -> int:
    return ipaddress.ip_address(text).version


def _contains_cidr(outer: str, inner: str) -> bool:
    """Evaluate `cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16')`; a prefix of the other family is not contained."""
    networks = [parse_cidr(text).network for text in (outer, inner)]
    if networks[0].version != networks[1].version:
        return False
    return networks[1].prefixlen >= networks[0].prefixlen and networks[1].network_address in networks[0]


QUANTITY = re.compile(r"[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][+-]?[0-9]+|[numkMGTPE]|[KMGTPE]i)?")


def _is_quantity(text: str) -> bool:
    """Evaluate `isQuantity('500m')` (k8s.io/apimachinery/pkg/api/resource)."""
    return QUANTITY.fullmatch(text) is not None


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "isCIDR": is_cidr,
    "cidr": _cidr,
    "masked": _masked,
    "containsCIDR": _contains_cidr,
    "isIP": is_ip,
    "ip": _ip,
    "family": _family,
    "isQuantity": _is_quantity,
}
"""Functions of the CIDR, IP and quantity libraries of Kubernetes 1.31 that the rules use; a method's receiver is the first argument."""
