#!/bin/sh
# What the container starts: the relay, in the place of this shell so that it gets the signals.
# Without words it is all in the configuration file; words are added to it.
set -eu
config=${KVCS_RELAY_CONFIG:-/etc/kvcs/relay.toml}
if [ ! -r "$config" ]; then
    echo "kvcs-relay: no configuration at $config: mount one there, or name it in" \
        "KVCS_RELAY_CONFIG; docs/relay.md lists its members" >&2
    exit 2
fi
exec kvcs-relay --config "$config" "$@"
