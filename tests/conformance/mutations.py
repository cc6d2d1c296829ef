"""A sample of rules and, for each, one way to break it: ``make mutate`` shows that a test notices.

``old`` stands exactly once in ``file``. A change that moves it moves this line too.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutation(NamedTuple):
    """In ``file``, ``old`` becomes ``new``; then a test of ``rule`` must fail."""

    rule: str
    file: str
    old: str
    new: str


CODEC, SESSION = "moqt/codec/", "moqt/session/"

MUTATIONS = (
    # varint, key-value pairs, names
    Mutation(
        "M213",
        CODEC + "varint.py",
        "if end > len(data):",
        "if end > len(data) or not data[offset + 1]:",
    ),
    Mutation(
        "M214", CODEC + "fields.py", "if previous > MAX_VI64:", "if previous > MAX_VI64 << 1:"
    ),
    Mutation(
        "M215",
        CODEC + "fields.py",
        "            if code > MAX_VI64:",
        "            if code > MAX_VI64 << 1:",
    ),
    Mutation(
        "M216",
        CODEC + "fields.py",
        "reader.length_prefixed(MAX_PAIR_VALUE, ",
        "reader.length_prefixed(2 * MAX_PAIR_VALUE, ",
    ),
    Mutation(
        "M518",
        CODEC + "fields.py",
        "if len(value) > MAX_PAIR_VALUE:",
        "if len(value) > 2 * MAX_PAIR_VALUE:",
    ),
    Mutation(
        "M231",
        CODEC + "fields.py",
        "reader.length_prefixed(MAX_REASON, ",
        "reader.length_prefixed(MAX_REASON + 1, ",
    ),
    Mutation(
        "M233", CODEC + "fields.py", "if not all(namespace):", "if not any((True, *namespace)):"
    ),
    Mutation("M234", CODEC + "fields.py", "        if not part:\n", "        if part is None:\n"),
    Mutation(
        "M235",
        CODEC + "fields.py",
        "if count > MAX_NAMESPACE_FIELDS:",
        "if count > MAX_NAMESPACE_FIELDS + 1:",
    ),
    Mutation("M236", CODEC + "fields.py", "        left -= len(part)\n", "        left -= 0\n"),
    Mutation(
        "M237",
        CODEC + "fields.py",
        "left = MAX_NAME_LENGTH - sum(map(len, namespace))",
        "left = MAX_NAME_LENGTH",
    ),
    Mutation("M238", CODEC + "fields.py", "all(unit in _OCTET for unit in units)", "all(units)"),
    Mutation(
        "M241",
        CODEC + "fields.py",
        "if code > AliasType.USE_VALUE:",
        "if code > AliasType.USE_VALUE + 1:",
    ),
    # messages and parameters
    Mutation("M254", CODEC + "control.py", "if code not in self._messages:", "if code == 0x7F:"),
    Mutation(
        "M255", CODEC + "messages.py", "    reader.expect_end(kind.name)\n", "    reader.rest()\n"
    ),
    Mutation(
        "M257",
        CODEC + "properties.py",
        "                unknown += 1\n",
        "                raise ProtocolViolation('unknown')\n",
    ),
    Mutation("M258", CODEC + "properties.py", "elif name in values:", "elif name is None:"),
    Mutation(
        "M302",
        CODEC + "messages.py",
        "if scope is None or scope is Scope.TRACK_STATUS:",
        "if scope is None or scope is not Scope.SUBSCRIBE_TRACKS:",
    ),
    Mutation(
        "M346",
        CODEC + "params.py",
        "        writer.varint(row.code - previous)\n",
        "        writer.varint(row.code)\n",
    ),
    Mutation(
        "M347", CODEC + "params.py", "    if code > MAX_VI64:\n", "    if code > MAX_VI64 << 1:\n"
    ),
    Mutation(
        "M349",
        CODEC + "params.py",
        "    if row is None:\n",
        "    row = row or TABLE[0]\n    if row is None:\n",
    ),
    Mutation(
        "M351",
        CODEC + "params.py",
        "        elif row.field in values:",
        "        elif row.field is None:",
    ),
    Mutation(
        "M354",
        CODEC + "params.py",
        "if not (row.places | row.tolerated) & place:",
        "if not place & ~Place.NOWHERE:",
    ),
    Mutation("M366", CODEC + "params.py", "    if value not in (1, 2):", "    if value > 2:"),
    Mutation("M387", CODEC + "params.py", "    if value > 1:\n", "    if value > 2:\n"),
    Mutation("M058", CODEC + "params.py", "if len(set(keys)) < len(keys):", "if len(keys) > 64:"),
    # filters
    Mutation(
        "M369",
        CODEC + "filters.py",
        "if code > LocationFilterType.NEXT_OBJECT:",
        "code = min(code, 5)\n    if code > LocationFilterType.NEXT_OBJECT:",
    ),
    Mutation(
        "M370", CODEC + "filters.py", "    if group + delta > MAX_VI64:", "    if group > MAX_VI64:"
    ),
    Mutation(
        "M375", CODEC + "filters.py", "_MAX_PRIORITY: Final = 255", "_MAX_PRIORITY: Final = 256"
    ),
    Mutation(
        "M377",
        CODEC + "filters.py",
        "if property_type is not None and property_type & 1:",
        "if property_type == 1 << 70:",
    ),
    Mutation("M060", SESSION + "filters.py", "return any(all(", "return all(all("),
    Mutation(
        "M061",
        SESSION + "filters.py",
        "f for f in self._all if f.type not in named",
        "f for f in self._all",
    ),
    Mutation(
        "M372",
        "moqt/model.py",
        "min(max(following - self.start.group, 0), MAX_VI64)",
        "following - self.start.group",
    ),
    Mutation(
        "M065",
        "moqt/model.py",
        "end = largest if live.end is None else min(live.end, largest)",
        "end = largest if live.end is None else live.end",
    ),
    # properties
    Mutation(
        "M400",
        CODEC + "properties.py",
        "DEFAULT_PUBLISHER_GROUP_ORDER: range(1, 3),",
        "DEFAULT_PUBLISHER_GROUP_ORDER: range(1, 4),",
    ),
    Mutation(
        "M401", CODEC + "properties.py", "DYNAMIC_GROUPS: range(2),", "DYNAMIC_GROUPS: range(3),"
    ),
    Mutation("M408", CODEC + "properties.py", "    if nested:\n", "    if nested is None:\n"),
    Mutation(
        "M409", CODEC + "properties.py", "    if len(found) > 1:\n", "    if len(found) > 2:\n"
    ),
    Mutation(
        "M412",
        CODEC + "properties.py",
        "        if code in gaps:\n",
        "        if code == PRIOR_OBJECT_ID_GAP and code in gaps:\n",
    ),
    Mutation(
        "M416",
        CODEC + "properties.py",
        "if isinstance(value, int) and value > limit:",
        "if isinstance(value, int) and value > limit + 1:",
    ),
    Mutation(
        "M086",
        CODEC + "properties.py",
        "MANDATORY: Final = range(0x4000, 0x8000)",
        "MANDATORY: Final = range(0x4001, 0x7FFF)",
    ),
    # data streams and datagrams
    Mutation(
        "M420",
        CODEC + "data.py",
        "    if status is None:\n",
        "    status = status or _NORMAL\n    if status is None:\n",
    ),
    Mutation(
        "M422",
        CODEC + "data.py",
        '    if properties:\n        raise ProtocolViolation(f"properties on',
        "    if properties == b'?':\n        raise ProtocolViolation(f\"properties on",
    ),
    Mutation(
        "M426", CODEC + "datagram.py", "if flags & ~_FLAGS or", "if flags & ~_FLAGS & 0x3F or"
    ),
    Mutation("M427", CODEC + "datagram.py", "== _STATUS | _END_OF_GROUP:", "== 0x100:"),
    Mutation("M430", CODEC + "records.py", "if self._left or self._held:", "if self._held:"),
    Mutation(
        "M432",
        CODEC + "data.py",
        "if not is_subgroup_type(flags) or mode == _MODE:",
        "if not is_subgroup_type(flags):",
    ),
    Mutation(
        "M433",
        CODEC + "data.py",
        "return code < 0x80 and code & _ALWAYS != 0",
        "return code < 0x80",
    ),
    Mutation(
        "M436",
        CODEC + "data.py",
        'raise ProtocolViolation("object id above 2^64-1 on a subgroup stream")',
        "number = 0",
    ),
    Mutation(
        "M450",
        CODEC + "data.py",
        "        if kind is None:\n",
        "        kind = kind or GapKind.UNKNOWN\n        if kind is None:\n",
    ),
    Mutation(
        "M452",
        CODEC + "data.py",
        "if self._group < 0 and flags & _F_PLACE != _F_PLACE:",
        "if self._group < 0 and flags & _F_PLACE == 1 << 9:",
    ),
    Mutation("M453", CODEC + "data.py", "if not 0 <= group <= MAX_VI64:", "if not 0 <= group:"),
    Mutation(
        "M457",
        CODEC + "data.py",
        "        if flags & _F_DATAGRAM:\n            return None, at\n",
        "        if flags & _F_DATAGRAM and not mode:\n            return None, at\n",
    ),
    Mutation(
        "M464",
        CODEC + "datagram.py",
        "if flags == profile.padding_datagram:",
        "if flags == 1 << 40:",
    ),
    # the session
    Mutation(
        "M142",
        SESSION + "core.py",
        '            raise ProtocolViolation("second control stream")\n',
        "            return\n",
    ),
    Mutation(
        "M147",
        SESSION + "control.py",
        'raise ProtocolViolation("the control stream was closed")',
        "return",
    ),
    Mutation(
        "M144",
        SESSION + "intake.py",
        "        if opener is None:\n",
        "        if opener is None:\n            return\n        if opener is None:\n",
    ),
    Mutation(
        "M145",
        SESSION + "context.py",
        "            if owner is not None and self.established:\n",
        "            if owner is None and self.established:\n",
    ),
    Mutation("M153", SESSION + "request_ids.py", "if value & 1 != self._parity:", "if value < 0:"),
    Mutation(
        "M154",
        SESSION + "request_ids.py",
        "if not first <= value < end:",
        "if first <= value < end:",
    ),
    Mutation(
        "M155",
        SESSION + "request_ids.py",
        "            self._fill(value)\n",
        "            raise SessionFault(SessionCode.INVALID_REQUEST_ID, '')\n",
    ),
    Mutation(
        "M262",
        SESSION + "checks.py",
        "if options.authority is not None:\n",
        "if options.authority == 'x':\n",
    ),
    Mutation(
        "M269", SESSION + "checks.py", "if options.path is not None:\n", "if options.path == 'x':\n"
    ),
    Mutation(
        "M018",
        SESSION + "checks.py",
        'RequestCode.DOES_NOT_EXIST, "nothing is published',
        'RequestCode.NOT_SUPPORTED, "nothing is published',
    ),
    Mutation(
        "M017",
        SESSION + "checks.py",
        "if namespace and namespace[0] in RESERVED_FIELDS:\n        raise",
        "if namespace == RESERVED_FIELDS:\n        raise",
    ),
    Mutation(
        "M059", SESSION + "checks.py", "if filters.spans > limit:", "if filters.spans > limit + 1:"
    ),
    Mutation(
        "M243",
        SESSION + "tokens.py",
        "RequestCode.UNKNOWN_AUTH_TOKEN_ALIAS,",
        "RequestCode.UNAUTHORIZED,",
    ),
    Mutation(
        "M033",
        SESSION + "routes.py",
        "if other.name != name and live:",
        "if other.name != name and not live:",
    ),
    Mutation(
        "M107",
        SESSION + "prefixes.py",
        "if other != own and other[:shorter] == wanted[:shorter]:",
        "if other != own and other == wanted:",
    ),
    Mutation(
        "M108",
        SESSION + "namespaces.py",
        "if self.state is Request.ESTABLISHED and namespace in self._told:",
        "if self.state is Request.ESTABLISHED:",
    ),
    Mutation(
        "M027",
        SESSION + "subgroups.py",
        "passes = subscription.forward and start",
        "passes = start",
    ),
    Mutation(
        "M055",
        SESSION + "subgroups.py",
        "(end is None or place <= end)\n",
        "place is not None\n",
    ),
    Mutation("M008", SESSION + "subgroups.py", "head.first_object and not self._late,", "False,"),
    Mutation(
        "M440",
        SESSION + "subgroups.py",
        "        return self._cut or (",
        "        return not self._cut or (",
    ),
    Mutation(
        "M441",
        SESSION + "subgroups.py",
        "if not self._begun or self._incomplete:",
        "if not self._begun:",
    ),
    Mutation("M030", SESSION + "publications.py", "            or self._subgroups\n", ""),
    Mutation(
        "M334",
        SESSION + "publications.py",
        "        self._fills.pop(fill, None)\n        self._stream_count += counted\n",
        "        self._fills.pop(fill, None)\n",
    ),
    Mutation(
        "M066",
        SESSION + "publications.py",
        "(asked.location_filter or self._place).on_fetch",
        "(asked.location_filter or WHOLE_TRACK).on_fetch",
    ),
    Mutation(
        "M071",
        SESSION + "publications.py",
        "if asked is None or not self.forward:",
        "if asked is None:",
    ),
    Mutation(
        "M312",
        SESSION + "publications.py",
        "        if wanted.forward is not None:\n            self.forward = wanted.forward\n",
        "        self.forward = bool(wanted.forward)\n",
    ),
    Mutation(
        "M313",
        SESSION + "publications.py",
        "            self.abort(DoneCode.UPDATE_FAILED, refusal.reason)\n",
        "",
    ),
    Mutation(
        "M168",
        SESSION + "core.py",
        "raise SessionFault(SessionCode.GOAWAY_TIMEOUT",
        "return SessionFault(SessionCode.GOAWAY_TIMEOUT",
    ),
    Mutation(
        "M507",
        SESSION + "checks.py",
        "else StreamCode.INTERNAL_ERROR\n",
        "else StreamCode.CANCELLED\n",
    ),
)
