"""Schedules that once broke an invariant, and what was wrong then. They stay in the suite."""

from __future__ import annotations

LOGS = {
    0: "a follower whose disk had refused a message appended the next one: offsets may have gaps, so it had a hole",
    86: "a log cannot begin within a batch: a follower that starts anew there takes the whole batch",
    309: "a broker that slept through its leadership begins it and ends it as it reads on",
    373: "who leads because another resigned served at once, though that one had promises to wait out itself",
    437: "a refusal of an old position made a follower start anew after it had reported more",
    2278: "an epoch that began with a gap ended the one before it too late on followers: a record outlived its epoch",
    3215: "a leader's log ended in a gap: no follower ever got to its end, so none was in sync and nothing was taken",
    1054: "an epoch in which a leader wrote nothing kept it from taking what an older epoch's leader had written more",
    20183: "a link whose hello was on its way while its broker registered anew: whoever follows by it can never join",
    8_100_060: "a cut that a disk had refused half-way was not tried again, by the simulation alone",
}

BROKERS = {
    1: "a member's copy of the catalog was written unsynced, and torn by a loss of power: it refused to start; and who "
    "asked for group offsets while a leader's lease was over woke all others who did, who woke it, without end",
    10: "who began to lead took what was published there before what it had sent to the leader before",
    920328: "a leader that had stood still for longer than its lease answered a get before its turn ended, which asks "
    "the clock: another might lead already",
    920836: "the same, when another had served already; and what it gave out was not marked",
    920079: "a log of a topic that a full disk did not let be opened at a start was set aside as one that nobody "
    "knows, and who had it began with an empty one in its place, as the leader",
}
"""Of whole brokers."""

HARSH = {
    3_000_006: "a dead letter for a queue that another broker leads ended its broker",
    3_000_014: "a replica of a topic that others got while its broker was away was set aside as one that nobody knows",
    4_000_168: "what a step had published was put once more where it had been written again further on in its log, and "
    "another broker came to lead that before the step was over",
    4_000_392: "who got a message of a queue that another broker leads was never answered if the disk was asked for it "
    "and the last message that had been got so was settled meanwhile",
}
"""Of whole brokers, with `--harsh`."""
