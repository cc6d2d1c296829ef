"""The sample goes on: tokens, PUBLISH, SUBSCRIBE_TRACKS, delivery timeouts, GOAWAY, migration."""

from __future__ import annotations

from tests.conformance.mutations import SESSION, Mutation

REQUEST_MUTATIONS = (
    # tokens
    Mutation(
        "M239",
        SESSION + "tokens.py",
        "cost(self._known.pop(token.alias))",
        "cost(self._known[token.alias])",
    ),
    Mutation(
        "M242", SESSION + "tokens.py", "if token.alias in self._known:", "if token.alias < 0:"
    ),
    Mutation("M244", SESSION + "tokens.py", "refusal = self._verifier(", "self._verifier("),
    Mutation(
        "M245",
        SESSION + "tokens.py",
        "        if parameters.authorization_tokens:\n            tokens, unknown",
        "        if parameters.authorization_tokens and not refusal:\n            tokens, unknown",
    ),
    Mutation(
        "M248", SESSION + "tokens.py", "if not self._fits(token):", "if cost(token) > self._limit:"
    ),
    Mutation(
        "M249",
        SESSION + "tokens.py",
        "if self._octets + cost(token) > self._limit:\n            return token",
        "if cost(token) < self._limit:\n            return token",
    ),
    Mutation("M250", SESSION + "tokens.py", "if meant in seen:", "if meant is None:"),
    Mutation(
        "M251",
        SESSION + "tokens.py",
        "if not own.settled and own.stream != stream:",
        "if not own.settled and own.stream is None:",
    ),
    Mutation(
        "M252",
        SESSION + "tokens.py",
        "if own.users or not own.settled:",
        "if not own.settled:",
    ),
    Mutation(
        "M275",
        SESSION + "tokens.py",
        "return OVERHEAD + len(token.value)",
        "return len(token.value)",
    ),
    Mutation(
        "M277",
        SESSION + "tokens.py",
        "                if self._fits(token):\n",
        "                if self._resolve((token,)):\n",
    ),
    Mutation(
        "M278",
        SESSION + "tokens.py",
        "self._session = tuple(map(_by_value, tokens))",
        "self._session = tuple(t for t in tokens if t.alias_type is AliasType.USE_VALUE)",
    ),
    # PUBLISH
    Mutation(
        "M021",
        SESSION + "publishing.py",
        "        if self.state is not Request.PENDING:\n            return\n        self.receiver",
        "        self.receiver",
    ),
    Mutation(
        "M029",
        SESSION + "publishing.py",
        "        self._abort_streams(StreamCode.CANCELLED)\n        self._tell(error)",
        "        self._tell(error)",
    ),
    Mutation(
        "M032",
        SESSION + "publishing.py",
        "self.track_alias = session.allocate_alias()",
        "self.track_alias = 0",
    ),
    Mutation(
        "M088",
        SESSION + "publishing.py",
        "self.refuse(RequestCode.UNSUPPORTED_EXTENSION",
        "self.refuse(RequestCode.NOT_SUPPORTED",
    ),
    Mutation(
        "M325", SESSION + "publishing.py", "        if pending:\n", "        if not pending:\n"
    ),
    Mutation(
        "M326",
        SESSION + "publishing.py",
        "elif resumed and self._unplaced:",
        "elif resumed and not self._unplaced:",
    ),
    Mutation(
        "M327",
        SESSION + "publishing.py",
        "        if self.state is Request.PENDING:\n            self._ending",
        "        if self.state is Request.CLOSED:\n            self._ending",
    ),
    # SUBSCRIBE_TRACKS
    Mutation(
        "M063",
        SESSION + "tracks.py",
        " or not selects(self.parameters.range_filters, source.properties):",
        ":",
    ),
    Mutation(
        "M079",
        SESSION + "tracks.py",
        "return self.session.track_interests",
        "return set()",
    ),
    Mutation(
        "M080",
        SESSION + "tracks.py",
        "return self.session.track_interests\n",
        "return self.session.interests\n",
    ),
    Mutation(
        "M083",
        SESSION + "tracks.py",
        "            and name not in self.session.peer_tracks\n",
        "",
    ),
    Mutation(
        "M084",
        SESSION + "tracks.py",
        "            subscriber_priority=asked.subscriber_priority,\n",
        "            authorization_tokens=asked.authorization_tokens,\n",
    ),
    Mutation(
        "M085",
        SESSION + "tracks.py",
        "            self._told.add(name)\n            self.send(m.PublishSkipped",
        "            self.send(m.PublishSkipped",
    ),
    # delivery timeouts
    Mutation(
        "M124",
        SESSION + "subgroups.py",
        "limit = min(filter(None, limits), default=0)",
        "limit = max(limits)",
    ),
    Mutation(
        "M125",
        SESSION + "subgroups.py",
        "            if self._head.first_object:\n",
        "            if self._head:\n",
    ),
    Mutation(
        "M126",
        SESSION + "subgroups.py",
        "self._expire(head.object, asked, self._limits.object)",
        "self._expire(0, asked, self._limits.object)",
    ),
    Mutation(
        "M127",
        SESSION + "subgroups.py",
        "            if self._clocks and self._expired(item.object):\n",
        "            if self._clocks and self._expired(item.object) and not self._begun:\n",
    ),
    Mutation(
        "M133",
        SESSION + "subgroups.py",
        "if self._limits is not None and self.stream is not None and not self._over:",
        "if self._limits is None:",
    ),
    Mutation(
        "M134",
        SESSION + "subgroups.py",
        "limit / 1000, lambda: self.abort(StreamCode.DELIVERY_TIMEOUT)",
        "limit / 1000, lambda: self.abort(StreamCode.CANCELLED)",
    ),
    # GOAWAY and migration
    Mutation(
        "M288", SESSION + "checks.py", "if is_client and uri:", "if is_client and uri == 'x':"
    ),
    Mutation(
        "M289", SESSION + "checks.py", "if from_client and uri:", "if from_client and uri == 'x':"
    ),
    Mutation(
        "M290",
        SESSION + "control.py",
        '                raise ProtocolViolation("second GOAWAY on the control stream")\n',
        "                return\n",
    ),
    Mutation("M291", SESSION + "requests.py", "        if self._goaway_seen:\n", "        if 0:\n"),
    Mutation("M298", SESSION + "requester.py", "if self._context.leaving:", "if 0:"),
    Mutation(
        "M293",
        "moqt/migration.py",
        "for kept in tuple(self._kept)))\n",
        "for kept in tuple(self._kept)[1:]))\n",
    ),
    Mutation(
        "M295",
        "moqt/migration.py",
        "            await self._move_there(new, [what])\n",
        "            pass\n",
    ),
    Mutation(
        "M297",
        "moqt/migration.py",
        "        if moved:\n            old.cancel()\n",
        "        if moved:\n",
    ),
    Mutation(
        "M170",
        "moqt/migration.py",
        'await connection.close(SessionCode.NO_ERROR, "moved")',
        'await connection.close(SessionCode.INTERNAL_ERROR, "moved")',
    ),
)
