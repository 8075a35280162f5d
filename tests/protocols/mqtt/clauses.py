# ruff: noqa: E501
"""Every normative statement of MQTT 3.1.1 and 5 (appendix B of each), and the test that shows that the broker keeps it.

A line is statements, a colon, and where they are tested: the module (in this folder, or a path from `tests`), and the
function. The last two blocks of each version are those that only a client can break, and those that have no test yet.
"""

from __future__ import annotations

V3 = """
1.5.3-1 1.5.3-2 2.2.2-1 2.2.2-2 2.3.1-1 3.1.0-2 3.3.1-4 3.3.2-1 3.3.2-2 3.6.1-1 3.8.1-1: test_codec test_violations_close_the_connection
3.8.3-1 3.8.3-3 3.8.3-4 3.10.1-1 3.10.3-1 3.10.3-2 3.14.1-1 4.7.1-1 4.7.1-2 4.7.1-3 4.7.3-1 4.7.3-2: test_codec test_violations_close_the_connection
3.1.0-1 3.1.2-1 3.1.2-3 3.1.2-9 3.1.2-11 3.1.2-13 3.1.2-14 3.1.2-15 3.1.2-18 3.1.2-19 3.1.2-20 3.1.2-21 3.1.2-22: test_codec test_violations_close_the_connection
3.1.3-1 3.1.3-3 3.1.3-4 3.1.3-10 3.1.3-11 3.1.4-1: test_codec test_violations_close_the_connection
1.5.3-3 2.3.1-5 3.1.3-5: test_codec test_legal_packets
3.1.2-2 3.2.2-6: test_codec test_mqtt_3_1_2_2_unacceptable_level_is_answered_with_connack_1
4.8.0-1: test_adapter test_mqtt_4_8_0_1_a_violation_closes_after_what_came_before_it
4.8.0-2: test_delivery test_a_publish_that_cannot_be_stored_closes_without_a_puback
2.3.1-2 2.3.1-4: test_inflight test_mqtt_2_3_1_4_an_unacknowledged_identifier_is_stepped_over
2.3.1-3 3.3.1-1 4.3.3-1 4.4.0-1 4.6.0-1: test_sessions test_mqtt_4_4_0_1_what_was_not_acknowledged_comes_again_with_the_same_ids
2.3.1-6 4.3.2-2: test_delivery test_mqtt_4_3_2_2_a_puback_waits_for_the_disk
2.3.1-7 3.8.4-1 3.8.4-2 3.8.4-4 3.8.4-5 3.9.3-1 3.9.3-2: test_adapter test_mqtt_3_8_4_5_suback_says_what_was_granted_for_each_filter
3.1.2-4 3.1.2-5 3.1.2-6 3.1.3-2 3.1.4-3 3.2.2-1 3.2.2-2 3.2.2-3 4.1.0-1 4.5.0-1: test_sessions test_mqtt_3_1_2_4_a_session_goes_on_until_a_clean_start
3.1.2-7: conformance/test_mqtt_retained test_retained_messages_survive_kills_and_clean_stops
3.1.2-8 3.1.2-12 3.1.2-16: test_adapter test_mqtt_3_1_2_8_the_will_is_published_at_any_other_end
3.1.2-10: test_wills test_mqtt_3_1_2_10_disconnect_erases_it_for_good
3.1.2-17: test_wills test_mqtt_3_1_2_17_a_will_with_retain_is_retained
3.1.2-24: test_adapter test_mqtt_3_1_2_24_silence_of_one_and_a_half_keep_alives_closes
3.1.3-6: test_adapter test_mqtt_3_1_3_6_empty_client_ids_get_one_each
3.1.3-8 3.1.3-9 3.2.2-4: test_adapter test_refused_connects_are_answered_and_closed
3.1.4-2: test_adapter test_mqtt_3_1_4_2_a_second_connection_takes_the_client_id_over
3.1.4-4 3.2.0-1: test_adapter test_mqtt_3_1_4_5_packets_may_follow_connect_at_once
3.1.4-5 3.2.2-5: test_adapter test_mqtt_3_2_2_5_who_may_connect
3.3.1-2 3.3.1-3 3.8.4-6: test_delivery test_mqtt_3_8_4_6_qos_is_the_smaller_of_published_and_granted
3.3.1-5 3.3.1-6 3.3.1-7 3.3.1-8: test_retained test_mqtt_3_3_1_6_newcomers_get_the_last_with_retain_1
3.3.1-9: test_delivery test_mqtt_3_3_1_9_retain_is_0_in_live_deliveries
3.3.1-10 3.3.1-11: test_retained test_mqtt_3_3_1_10_an_empty_payload_clears_and_is_delivered_live
3.3.1-12: test_retained test_mqtt_3_3_1_12_without_retain_nothing_is_kept_or_replaced
3.3.2-3 3.8.3-2 4.7.3-4: test_oracles test_mqtt_4_7_filters_match_as_paho_says
3.3.4-1 4.3.2-1: conformance/test_mqtt_paho test_publish_and_subscribe
3.3.5-1: test_delivery test_mqtt_3_3_5_1_overlapping_filters_deliver_once_at_the_highest_qos
3.3.5-2: conformance/test_rights test_mqtt_asks_for_the_exchange_and_the_key
3.8.4-3: test_adapter test_mqtt_3_8_4_3_subscribing_again_replaces_the_qos
3.10.4-1 3.10.4-2 3.10.4-4 3.10.4-5 3.10.4-6: test_adapter test_mqtt_3_10_4_unsubscribe_stops_delivery_and_is_always_answered
3.10.4-3: test_refusals_5 test_mqtt_3_10_4_3_what_was_begun_is_completed_after_unsubscribe
3.12.4-1: test_adapter test_mqtt_3_12_4_1_ping
3.14.4-3: test_adapter test_mqtt_3_14_4_3_disconnect_discards_the_will
4.1.0-2: test_adapter test_nothing_is_left_of_a_lost_connection
4.3.1-1: test_delivery test_a_fan_out_at_qos_0_shares_the_publishers_own_bytes
4.3.3-2: test_sessions test_mqtt_4_3_3_10_a_repeated_publish_is_answered_and_goes_nowhere
4.6.0-5 4.6.0-6: conformance/test_mqtt_paho test_many_messages_at_qos_1_arrive_once_and_in_order
4.7.2-1: conformance/test_mqtt_paho test_wildcards_and_dollar_topics
4.7.3-3: test_codec test_topic_limits_at_the_limit
6.0.0-1: gateway/test_websocket test_the_end_is_a_close_frame_and_then_the_end_of_the_stream
6.0.0-2: gateway/test_websocket test_packets_straddle_frames_and_share_them
6.0.0-4: gateway/test_websocket test_the_answer_to_a_request_is_that_of_the_standard
7.0.0-1 7.0.0-2: conformance/test_mqtt_amqtt test_publish_and_subscribe
"""

V3_CLIENT = """
3.1.2-23 3.1.3-7 3.14.4-1 3.14.4-2 4.5.0-2 4.6.0-2 4.6.0-3 4.6.0-4 6.0.0-3
"""

V3_OPEN = """
"""

V5 = """
1.5.4-1 1.5.4-2 1.5.7-1 2.1.3-1 2.2.1-2 2.2.1-3 2.2.2-1 3.1.0-2 3.3.1-2 3.3.1-4: test_codec_5 test_violations_are_answered_with_a_disconnect
3.3.2-1 3.3.2-2 3.3.2-8 3.3.2-9 3.3.2-13 3.3.2-14 3.3.2-19 3.3.4-6 3.6.1-1 3.8.1-1 3.8.3-1 3.8.3-2 3.8.3-4 3.8.3-5: test_codec_5 test_violations_are_answered_with_a_disconnect
3.10.1-1 3.10.3-1 3.10.3-2 3.14.1-1 3.15.1-1 4.7.0-1 4.7.1-1 4.7.1-2 4.7.3-1 4.7.3-2 4.8.2-1 4.8.2-2 4.13.1-1: test_codec_5 test_violations_are_answered_with_a_disconnect
3.1.2-3 3.1.2-9 3.1.2-11 3.1.2-12 3.1.2-13 3.1.2-16 3.1.2-17 3.1.2-18 3.1.2-19 3.1.3-1 3.1.3-3 3.1.3-4: test_codec_5 test_violations_of_connect_are_answered_with_connack
3.1.3-11 3.1.3-12 3.1.4-1: test_codec_5 test_violations_of_connect_are_answered_with_connack
3.1.3-5: test_codec_5 test_legal_packets
3.1.0-1 3.1.2-1: test_codec test_violations_close_the_connection
3.1.2-2: test_codec test_mqtt_3_1_2_2_unacceptable_level_is_answered_with_connack_1
3.2.2-19 3.2.2-20 3.4.2-2 3.4.2-3 3.5.2-2 3.5.2-3 3.6.2-2 3.6.2-3 3.7.2-2 3.7.2-3 3.9.2-1 3.9.2-2 3.11.2-1 3.11.2-2: test_wire test_mqtt_3_14_2_3_the_text_is_left_out_where_the_client_takes_no_more
3.14.2-3 3.14.2-4 3.15.2-2 3.15.2-3 3.1.2-24: test_codec_5 test_the_text_of_a_disconnect_is_left_out_where_the_client_takes_no_more
1.5.4-3: test_codec test_legal_packets
1.5.5-1: test_clauses_5 test_lengths_are_as_short_as_they_can_be
2.2.1-4 4.3.2-1 4.3.3-1: test_inflight test_mqtt_2_3_1_4_an_unacknowledged_identifier_is_stepped_over
2.2.1-5 3.3.4-1 3.4.2-1 3.5.2-1 3.7.2-1 4.3.2-4 4.3.3-8 4.3.3-11: test_clauses_5 test_a_publish_is_answered_by_its_quality
2.2.1-6 3.8.4-1 3.8.4-2 3.8.4-5 3.8.4-6 3.8.4-7 3.9.3-1 3.9.3-2: test_clauses_5 test_every_filter_is_answered_in_its_place
3.10.4-1 3.10.4-2 3.10.4-4 3.10.4-5 3.10.4-6 3.11.3-1 3.11.3-2: test_clauses_5 test_every_filter_is_answered_in_its_place
3.1.2-4 3.1.4-4 3.2.2-2: test_clauses_5 test_clean_start_forgets_what_there_was
3.1.2-23: test_sessions_5 test_mqtt_3_1_2_23_a_session_lasts_for_its_expiry_and_not_longer
3.1.2-5 3.1.2-6 3.1.3-2 3.2.2-3 4.1.0-1 4.1.0-2: test_clauses_5 test_sessions_are_there_until_they_expire
3.1.2-8: test_sessions_5 test_mqtt_3_1_2_8_only_a_normal_disconnect_voids_the_will
3.1.2-7 3.1.2-14: test_adapter test_mqtt_3_1_2_8_the_will_is_published_at_any_other_end
3.1.2-10: test_wills test_mqtt_3_1_2_10_disconnect_erases_it_for_good
3.1.2-15: test_wills test_mqtt_3_1_2_17_a_will_with_retain_is_retained
3.1.2-22 3.2.2-22: test_sessions_5 test_mqtt_3_2_2_22_the_servers_keep_alive_counts
3.1.2-25: test_properties test_mqtt_3_1_2_25_messages_that_are_too_large_are_dropped
3.1.2-28 3.1.3-6 3.1.3-7 3.1.4-5 3.2.0-1 3.2.0-2 3.2.2-1 3.2.2-16: test_clauses_5 test_connack_comes_first_and_says_what_was_assigned
3.1.2-30: test_authentication test_mqtt_3_1_2_30_nothing_but_auth_before_connack
3.1.3-8 3.1.4-2 3.1.4-6 3.2.2-6 3.2.2-7 3.2.2-8 3.14.0-1 4.13.2-1: test_clauses_5 test_a_refused_connect_is_the_end
3.1.3-9: test_sessions_5 test_mqtt_3_1_3_9_a_will_waits_for_its_delay_unless_the_client_comes_back
3.1.3-10: test_sessions_5 test_mqtt_3_1_3_10_properties_of_a_will_arrive_in_order
3.1.4-3: test_clauses_5 test_a_second_connection_is_the_clients_and_the_first_is_told
3.3.1-1 4.3.2-3 4.3.3-3 4.3.3-5 4.3.3-6 4.4.0-1: test_sessions test_mqtt_4_4_0_1_what_was_not_acknowledged_comes_again_with_the_same_ids
3.8.4-8: test_refusals_5 test_mqtt_3_8_4_8_retained_messages_come_at_the_qos_of_the_filter_that_asks
3.3.1-3 4.3.1-1 4.3.2-2 4.3.3-2: test_clauses_5 test_the_qos_of_a_delivery_is_the_smaller_and_dup_is_its_own
3.3.1-5 3.3.1-6 3.3.1-7 3.3.1-8 3.3.1-9 3.3.1-10 3.3.1-11: test_clauses_5 test_retained_messages_by_the_options_of_the_subscription
3.3.1-12 3.3.1-13: test_terms test_mqtt_3_3_1_12_and_13_retain_as_published
3.3.2-6: test_terms test_mqtt_3_3_2_6_what_is_left_of_an_expiry_is_told
3.3.4-3 3.3.4-4 3.3.4-5: test_terms test_mqtt_3_3_4_overlapping_subscriptions_are_one_message_with_all_their_ids
3.3.2-3 4.6.0-6 4.7.2-1 4.7.3-4: test_clauses_5 test_filters_match_as_they_are_written
3.3.2-4 3.3.2-15 3.3.2-16 3.3.2-17 3.3.2-18 3.3.2-20: test_clauses_5 test_properties_are_passed_on_unaltered_and_in_order
3.3.2-7 3.3.2-12: test_clauses_5 test_an_alias_is_taken_up_to_the_limit_and_lasts_as_long_as_the_connection
3.3.4-2: test_delivery test_mqtt_3_3_5_1_overlapping_filters_deliver_once_at_the_highest_qos
3.3.4-9 3.3.4-10 4.3.3-4 4.9.0-1 4.9.0-2 4.9.0-3: test_clauses_5 test_no_more_than_the_client_takes_is_under_way
3.6.2-1 3.14.2-1 3.15.2-1: test_wire test_a_reason_that_a_packet_may_not_have_becomes_an_unspecified_error
3.8.4-3: test_adapter test_mqtt_3_8_4_3_subscribing_again_replaces_the_qos
3.8.4-4: test_retained test_mqtt_3_8_4_3_a_filter_again_gives_them_again
3.8.3-3: test_clauses_5 test_no_local_leaves_out_ones_own_and_nobody_elses
3.12.4-1: test_adapter test_mqtt_3_12_4_1_ping
3.14.2-2: test_wire test_disconnect_and_auth
3.14.4-1 3.14.4-2 3.14.4-3: test_clauses_5 test_after_disconnect_nothing_counts_and_the_will_is_void
4.2-1: conformance/test_mqtt_paho test_publish_and_subscribe
4.3.2-5: test_sessions test_mqtt_4_4_0_1_what_was_not_acknowledged_comes_again_with_the_same_ids
4.3.3-10 4.3.3-12: test_sessions test_mqtt_4_3_3_10_a_repeated_publish_is_answered_and_goes_nowhere
4.3.3-9: test_refusals_5 test_a_full_queue_refuses_and_the_packet_id_is_another_messages_next
3.1.2-29: test_refusals_5 test_mqtt_3_1_2_29_texts_come_with_nothing_but_a_disconnect
3.3.2-5: test_refusals_5 test_mqtt_3_3_2_5_what_has_expired_is_not_sent
3.10.4-3: test_refusals_5 test_mqtt_3_10_4_3_what_was_begun_is_completed_after_unsubscribe
4.3.3-7: test_refusals_5 test_mqtt_4_3_3_7_what_has_been_sent_comes_again_after_its_expiry
4.3.3-13: test_refusals_5 test_mqtt_4_3_3_13_an_exchange_that_has_begun_goes_on_after_the_expiry
4.4.0-2: test_refusals_5 test_mqtt_4_4_0_2_what_a_subscriber_rejects_goes_to_the_dead_letter_exchange
4.5.0-1: test_sessions test_mqtt_3_1_2_4_a_session_goes_on_until_a_clean_start
4.8.2-3 4.8.2-4 4.8.2-5: test_shares test_mqtt_4_8_2_3_each_member_gets_messages_at_its_own_qos
4.8.2-6: test_refusals_5 test_mqtt_4_8_2_6_what_a_member_rejects_goes_to_no_other
4.6.0-5: test_clauses_5 test_messages_of_a_topic_keep_their_order
4.7.3-3: test_codec test_topic_limits_at_the_limit
4.12.0-1: test_authentication test_mqtt_4_12_0_1_an_unknown_method
4.12.0-2 4.12.0-5: test_authentication test_mqtt_4_12_0_a_right_password
3.1.2-26 3.3.2-11: test_aliases test_a_topic_comes_with_its_alias_and_then_the_alias_alone
3.1.2-27: test_aliases test_who_announces_nothing_gets_no_aliases
4.12.0-4: test_authentication test_who_is_not_welcome_is_told_the_same
4.12.0-6: test_authentication test_auth_out_of_turn
4.12.1-1: test_authentication test_authenticating_again
4.12.1-2: test_authentication test_who_authenticates_again_stays_who_it_was
6.0.0-1: gateway/test_websocket test_the_end_is_a_close_frame_and_then_the_end_of_the_stream
6.0.0-2: gateway/test_websocket test_packets_straddle_frames_and_share_them
6.0.0-4: gateway/test_websocket test_the_answer_to_a_request_is_that_of_the_standard
"""

V5_CLIENT = """
3.1.2-20 3.1.2-21 3.2.2-4 3.2.2-5 3.2.2-11 3.2.2-14 3.2.2-15 3.2.2-17 3.2.2-18 3.2.2-21 3.3.2-10 3.3.4-7 3.3.4-8
4.5.0-2 4.6.0-1 4.6.0-2 4.6.0-3 4.6.0-4 4.12.0-3 4.12.0-7 6.0.0-3
"""

V5_NOT_OURS = """
3.2.2-9 3.2.2-10 3.2.2-12 3.2.2-13
"""
"""Of servers that have no QoS 2 or no retained messages."""

V5_OPEN = """
"""

COUNTS_3 = {
    "1.5.3": 3, "2.2.2": 2, "2.3.1": 7, "3.1.0": 2, "3.1.2": 24, "3.1.3": 11, "3.1.4": 5, "3.2.0": 1, "3.2.2": 6,
    "3.3.1": 12, "3.3.2": 3, "3.3.4": 1, "3.3.5": 2, "3.6.1": 1, "3.8.1": 1, "3.8.3": 4, "3.8.4": 6, "3.9.3": 2,
    "3.10.1": 1, "3.10.3": 2, "3.10.4": 6, "3.12.4": 1, "3.14.1": 1, "3.14.4": 3, "4.1.0": 2, "4.3.1": 1, "4.3.2": 2,
    "4.3.3": 2, "4.4.0": 1, "4.5.0": 2, "4.6.0": 6, "4.7.1": 3, "4.7.2": 1, "4.7.3": 4, "4.8.0": 2, "6.0.0": 4,
    "7.0.0": 2,
}  # fmt: skip
"""How many statements each section of 3.1.1 has; they are numbered from 1 on."""

COUNTS_5 = {
    "1.5.4": 3, "1.5.5": 1, "1.5.7": 1, "2.1.3": 1, "2.2.1": 6, "2.2.2": 1, "3.1.0": 2, "3.1.2": 30, "3.1.3": 12,
    "3.1.4": 6, "3.2.0": 2, "3.2.2": 22, "3.3.1": 13, "3.3.2": 20, "3.3.4": 10, "3.4.2": 3, "3.5.2": 3, "3.6.1": 1,
    "3.6.2": 3, "3.7.2": 3, "3.8.1": 1, "3.8.3": 5, "3.8.4": 8, "3.9.2": 2, "3.9.3": 2, "3.10.1": 1, "3.10.3": 2,
    "3.10.4": 6, "3.11.2": 2, "3.11.3": 2, "3.12.4": 1, "3.14.0": 1, "3.14.1": 1, "3.14.2": 4, "3.14.4": 3, "3.15.1": 1,
    "3.15.2": 3, "4.1.0": 2, "4.2": 1, "4.3.1": 1, "4.3.2": 5, "4.3.3": 13, "4.4.0": 2, "4.5.0": 2, "4.6.0": 6,
    "4.7.0": 1, "4.7.1": 2, "4.7.2": 1, "4.7.3": 4, "4.8.2": 6, "4.9.0": 3, "4.12.0": 7, "4.12.1": 2, "4.13.1": 1,
    "4.13.2": 1, "6.0.0": 4,
}  # fmt: skip
"""The same of 5, which has no 2.2.1-1."""

MISSING_5 = {"2.2.1-1"}


def tested(table: str) -> dict[str, tuple[str, str]]:
    """Module and function by statement."""
    found = {}
    for line in filter(None, table.splitlines()):
        statements, _, where = line.partition(": ")
        module, function = where.split()
        for statement in statements.split():
            assert statement not in found, f"{statement} is there twice"
            found[statement] = module, function
    return found


def all_of(counts: dict[str, int]) -> set[str]:
    """The statements of a version."""
    return {f"{section}-{number}" for section, count in counts.items() for number in range(1, count + 1)} - (
        MISSING_5 if counts is COUNTS_5 else set()
    )
