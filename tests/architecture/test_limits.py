"""Every limit that a peer can reach has a test that reaches it, and a line in docs/security.md."""

from __future__ import annotations

import ast
import dataclasses
import importlib
from pathlib import Path

import pytest

from kvcs.gatekeeper import GateLimits
from moqt.publisher import ServingLimits
from moqt.relay.admission import AdmissionLimits
from moqt.relay.config import RelayConfig
from moqt.session.config import SessionConfig
from transport.config import QuicOptions

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text("utf-8")

SETTINGS = {
    one.__name__: one
    for one in (
        SessionConfig,
        QuicOptions,
        ServingLimits,
        RelayConfig,
        AdmissionLimits,
        GateLimits,
    )
}
#: Settings that bound nothing of a peer's.
OTHERS = {
    "SessionConfig": (
        "implementation authority path webtransport served_authorities served_paths setup_tokens"
        " request_tokens token_verifier lifetime retry_interval stop_grace"
    ),
    "QuicOptions": ("protocols max_datagram_size unsent_budget piece hot_streams"),
    "ServingLimits": "retry_after",
}
SESSION = "tests/moqt/session/"
CONNECT = "tests/transport/test_connect.py::"
ENDPOINT = "tests/transport/test_endpoint.py::"
LIMITS = "tests/moqt/relay/test_limits.py::"
CERTIFICATES = "tests/transport/test_client_certificates.py::"
GATE = "tests/kvcs/test_gatekeeper.py::"
#: The test that reaches each.
REACHED = {
    "SessionConfig.max_auth_token_cache_size": (
        SESSION + "test_tokens.py::test_sixteen_octets_and_the_value_count"
    ),
    "SessionConfig.max_filter_ranges": SESSION + "test_update.py::test_ranges_in_force_add_up",
    "SessionConfig.max_request_updates": (
        SESSION + "test_update.py::test_too_many_unanswered_updates"
    ),
    "SessionConfig.max_fills": SESSION + "test_update.py::test_fills_that_wait_are_bounded",
    "SessionConfig.unread_answers": (
        SESSION + "test_update.py::test_answers_that_are_never_taken_are_bounded"
    ),
    "SessionConfig.setup_timeout": SESSION + "test_setup.py::test_nobody_says_setup",
    "SessionConfig.stall_timeout": (
        SESSION + "test_stalls.py::test_a_control_message_must_be_finished"
    ),
    "SessionConfig.request_timeout": (
        SESSION + "test_stalls.py::test_a_request_that_nobody_answers"
    ),
    "SessionConfig.early_streams": (
        SESSION + "test_setup.py::test_streams_before_setup_are_bounded"
    ),
    "SessionConfig.early_octets": SESSION + "test_hostile.py::test_a_flood_before_setup",
    "SessionConfig.orphan_streams": (
        SESSION + "test_data_streams.py::test_early_streams_are_bounded"
    ),
    "SessionConfig.orphan_octets": (
        SESSION + "test_data_streams.py::test_early_streams_of_several_aliases"
    ),
    "SessionConfig.orphan_timeout": (
        SESSION + "test_data_streams.py::test_an_alias_that_never_comes"
    ),
    "SessionConfig.orphan_datagrams": SESSION + "test_stalls.py::test_they_are_few",
    "SessionConfig.orphan_datagram_octets": SESSION + "test_stalls.py::test_they_are_few",
    "SessionConfig.done_timeout": (
        SESSION + "test_publish_done.py::test_a_wrong_or_unknown_count_ends_in_time"
    ),
    "SessionConfig.max_peer_requests": (
        SESSION + "test_request_streams.py::test_requests_open_at_once_are_bounded"
    ),
    "SessionConfig.max_id_holes": (
        SESSION + "test_hostile.py::test_ids_cancelled_early_do_not_end_the_session"
    ),
    "SessionConfig.namespace_octets": SESSION + "test_namespaces.py::test_names_are_bounded",
    "QuicOptions.idle_timeout": CONNECT + "test_a_client_that_vanishes_is_noticed",
    "QuicOptions.peer_timeout": (
        "tests/transport/test_vigil.py::test_a_path_that_is_dead_is_noticed_in_time_by_both"
    ),
    "QuicOptions.connect_timeout": CONNECT + "test_silence",
    "QuicOptions.max_datagram_frame_size": (
        "tests/transport/test_aioquic_quarantine.py::test_a_peer_without_datagrams"
    ),
    "QuicOptions.max_streams_bidi": (
        ENDPOINT + "test_small_windows_and_few_stream_slots_only_slow_down"
    ),
    "QuicOptions.max_streams_uni": (
        ENDPOINT + "test_small_windows_and_few_stream_slots_only_slow_down"
    ),
    "QuicOptions.max_data": ENDPOINT + "test_small_windows_and_few_stream_slots_only_slow_down",
    "QuicOptions.max_stream_data": (
        ENDPOINT + "test_small_windows_and_few_stream_slots_only_slow_down"
    ),
    "QuicOptions.max_connections": CONNECT + "test_a_server_that_is_full_says_so",
    "QuicOptions.max_half_open": CONNECT + "test_half_open_connections_end_and_are_capped",
    "QuicOptions.retry_from": CONNECT + "test_under_load_a_client_proves_its_address",
    "ServingLimits.fetches": SESSION + "test_fetch.py::test_fetches_at_once_are_bounded",
    "ServingLimits.rendezvous": SESSION + "test_grants.py::test_a_subscription_waits_for_its_track",
    "ServingLimits.awaited": SESSION + "test_grants.py::test_what_waits_is_bounded",
    "ServingLimits.awaited_each": (
        SESSION + "test_grants.py::test_one_session_does_not_take_all_the_places"
    ),
    "RelayConfig.cache": LIMITS + "test_a_small_cache_and_a_late_reader",
    "RelayConfig.max_cached_object": LIMITS + "test_an_object_too_large_to_keep_passes_through",
    "RelayConfig.unfinished": (
        "tests/moqt/relay/test_overload.py::test_objects_that_are_not_finished_take_so_much"
    ),
    "RelayConfig.backlog": LIMITS + "test_a_subscriber_that_does_not_read_is_ended",
    "RelayConfig.rendezvous": (
        LIMITS + "test_what_waits_for_a_publisher_is_bounded_in_time_and_number"
    ),
    "RelayConfig.max_rendezvous": (
        LIMITS + "test_what_waits_for_a_publisher_is_bounded_in_time_and_number"
    ),
    "RelayConfig.fill_timeout": LIMITS + "test_a_range_that_never_comes_is_given_up",
    "RelayConfig.straggler": LIMITS + "test_a_range_that_never_comes_is_given_up",
    "RelayConfig.max_fetches": LIMITS + "test_fetches_upstream_are_few_at_once",
    "RelayConfig.linger": LIMITS + "test_a_track_nobody_wants_is_left",
    "RelayConfig.recovery": LIMITS + "test_a_lost_publisher_is_waited_for_so_long",
    "RelayConfig.max_tracks": LIMITS + "test_tracks_are_bounded",
    "RelayConfig.max_finished": LIMITS + "test_finished_subgroups_are_few",
    "AdmissionLimits.session_rate": LIMITS + "test_requests_come_no_faster",
    "AdmissionLimits.session_burst": LIMITS + "test_requests_come_no_faster",
    "AdmissionLimits.identity_rate": LIMITS + "test_requests_come_no_faster",
    "AdmissionLimits.identity_burst": LIMITS + "test_requests_come_no_faster",
    "AdmissionLimits.egress": LIMITS + "test_octets_drawn_count",
    "AdmissionLimits.prefix_fields": LIMITS + "test_prefixes_name_enough_fields",
    "AdmissionLimits.identities": LIMITS + "test_identities_remembered_are_bounded",
    "GateLimits.good_tokens": GATE + "test_what_is_remembered_is_bounded",
    "GateLimits.bad_tokens": GATE + "test_what_is_remembered_is_bounded",
    "GateLimits.message_tokens": GATE + "test_too_many_tokens_are_not_looked_at",
    "GateLimits.burst": GATE + "test_a_session_that_shows_one_token_after_another",
    "GateLimits.per_second": GATE + "test_a_session_that_shows_one_token_after_another",
}

CODEC = "tests/moqt/codec/"
KVCS = "tests/kvcs/"
ATTACKS = "tests/attacks/test_consumer_attacked.py::"
#: Limits that nobody sets: constants of a module, and the test that reaches each.
RELAY_LOOPS = "tests/moqt/relay/test_loops.py::test_who_publishes_in_a_namespace_cuts_off_no_other"
CONSTANTS = {
    "moqt.codec.messages:MAX_BODY": (
        CODEC + "test_lengths.py::test_a_message_that_never_ends_is_held_up_to_its_length"
    ),
    "moqt.codec.messages:MAX_GOAWAY_URI": (
        CODEC + "test_messages.py::test_goaway_uri_above_8192_octets_is_a_violation"
    ),
    "moqt.codec.fields:MAX_REASON": (
        CODEC + "test_fields.py::test_reason_above_1024_octets_is_a_violation"
    ),
    "moqt.codec.fields:MAX_PAIR_VALUE": (
        CODEC + "test_fields.py::test_pair_value_above_65535_octets_is_a_violation"
    ),
    "moqt.codec.data:MAX_STREAM_HEADER": (CODEC + "test_data.py::test_a_cut_header_is_incomplete"),
    "moqt.model:MAX_NAMESPACE_FIELDS": (CODEC + "test_fields.py::test_33_fields_are_a_violation"),
    "moqt.model:MAX_NAME_LENGTH": (
        CODEC + "test_fields.py::test_full_name_of_4097_octets_is_a_violation"
    ),
    "moqt.session.integrity:MAX_GROUPS": (
        SESSION + "test_integrity.py::test_what_is_remembered_is_bounded"
    ),
    "moqt.session.integrity:MAX_ENTRIES": (
        SESSION + "test_integrity.py::test_what_is_remembered_is_bounded"
    ),
    "moqt.session.integrity:MAX_GAPS": (
        SESSION + "test_integrity.py::test_gaps_remembered_are_bounded"
    ),
    "moqt.session.routes:MAX_RETIRED_ALIASES": (
        SESSION + "test_data_streams.py::test_retired_aliases_are_bounded"
    ),
    "moqt.driver:CLOSE_TIMEOUT": "tests/moqt/test_driver.py::test_close_does_not_wait_for_ever",
    "moqt.reading:BUFFER_OCTETS": (
        "tests/moqt/test_discovery.py::test_namespaces_nobody_reads_are_bounded"
    ),
    "moqt.trace:MAX_ORDERS": "tests/moqt/test_trace.py::test_what_is_remembered_is_bounded",
    "moqt.migration:MAX_SEEN": (
        "tests/moqt/test_migration.py::test_what_is_remembered_for_the_seam_is_bounded"
    ),
    "moqt.retry:MAX_ATTEMPTS": "tests/moqt/test_retry.py::test_circles_and_long_waits_end",
    "moqt.retry:MAX_WAIT": "tests/moqt/test_retry.py::test_circles_and_long_waits_end",
    "moqt.relay.subgroups:MAX_WAITING": (
        "tests/moqt/relay/test_overload.py::test_objects_that_wait_for_one_before_them_are_few"
    ),
    "moqt.relay.archive:MAX_ABSENT": (
        "tests/moqt/relay/test_archive.py::test_gaps_beyond_reason_are_not_believed"
    ),
    "moqt.relay.spill:MAX_MAPPED": (
        "tests/moqt/relay/test_spill.py::test_few_files_are_mapped_at_once"
    ),
    "kvcs.geometry:MAX_MANIFEST_OCTETS": (
        KVCS + "test_consumer.py::test_a_manifest_too_large_to_be_taken"
    ),
    "kvcs.strictjson:MAX_DEPTH": (
        KVCS + "test_strictjson.py::test_nesting_far_beyond_the_interpreters_stack"
    ),
    "kvcs.assembler:MAX_OCTETS": KVCS + "test_assembler.py::test_impossible_wishes",
    "kvcs.tensorfile:MAX_HEADER": KVCS + "test_tensorfile.py::test_hostile_files",
    "kvcs.tensorfile:MAX_VALUES": KVCS + "test_tensorfile.py::test_hostile_files",
    "kvcs.tensorfile:MAX_DIMENSIONS": KVCS + "test_tensorfile.py::test_hostile_files",
    "kvcs.relays:MAX_MOVES": ATTACKS + "test_sent_away_on_and_on",
    "kvcs.relays:MAX_OFFERS": KVCS + "test_discovery.py::test_a_peer_that_tells_without_end",
    "kvcs.discovery:MAX_PROBES": KVCS + "test_discovery.py::test_one_by_one_has_an_end",
    "kvcs.sources:MAX_ALTERNATIVES": ATTACKS + "test_others_of_the_prefix_without_end",
    "kvcs.discovery:ALL_AFTER": ATTACKS + "test_one_more_name_before_every_look",
    "kvcs.pursuit:MAX_SETBACKS": KVCS + "test_recovery.py::test_setbacks_are_counted_and_bounded",
    "kvcs.uplink:MAX_SESSIONS": (
        "tests/attacks/test_publisher_attacked.py::test_a_relay_that_sends_away_on_and_on"
    ),
    "kvcs.identity:SCOPE_KEY_MIN": KVCS + "test_identity.py::test_a_scope_key_needs_32_octets",
    "kvcs.issuers:MAX_FILES": KVCS + "test_issuers.py::test_nothing_to_trust",
    "kvcs.relay_metrics:MAX_CLIENTS": (
        KVCS + "test_relay_metrics.py::test_clients_that_are_slow_hold_up_nobody"
    ),
    "moqt.relay.loops:LEFT": RELAY_LOOPS,
    "transport._aioquic:MAX_HANDSHAKE": (
        "tests/transport/test_aioquic_quarantine.py::test_a_handshake_message_without_end"
    ),
    "transport.authorities:MAX_CHAIN": CERTIFICATES + "test_chains_are_short_and_have_one_way_up",
    "transport.authorities:SMALLEST_RSA": CERTIFICATES + "test_odd_keys",
    "transport.url:MAX_URL": "tests/transport/test_url.py::test_too_long",
}


def check(named: str, test: str) -> None:
    """``named`` stands on the page as code; ``test`` exists."""
    assert f"`{named}`" in PAGE
    file, _, name = test.partition("::")
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    defined = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert name in {one.name for one in ast.walk(tree) if isinstance(one, defined)}


def test_every_limit_has_its_test() -> None:
    named = {
        f"{name}.{field.name}"
        for name, kind in SETTINGS.items()
        for field in dataclasses.fields(kind)
        if field.name not in OTHERS.get(name, "").split()
    }
    assert named == set(REACHED)


@pytest.mark.parametrize("limit", sorted(REACHED))
def test_it_is_on_the_page_and_its_test_is_there(limit: str) -> None:
    check(limit.split(".")[1], REACHED[limit])


@pytest.mark.parametrize("limit", CONSTANTS)
def test_a_constant_is_there_and_on_the_page_and_has_its_test(limit: str) -> None:
    module, _, constant = limit.partition(":")
    assert getattr(importlib.import_module(module), constant) > 0
    check(f"{module}.{constant}", CONSTANTS[limit])
