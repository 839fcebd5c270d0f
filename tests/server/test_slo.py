"""An objective over HTTP: who meets it is counted, who can't is refused with the estimate; the log tells it."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from api_bodies import wait_for

from bireme.core.request import FinishReason
from bireme.core.slo import Slo
from bireme.server.goodput import Goodput
from bireme.server.report import goodput_text


def test_goodput_is_counted_and_told(start_server: Any) -> None:
    """Steps of 30 ms: a TPOT of 10 ms is missed by all, a TTFT of 10 s is met by all."""
    server = start_server(hook={"slo": "ttft=10s,tpot=10ms", "step_s": 0.03, "stats_interval": 0.3})
    server.wait_serving()
    body = {"prompt": [120] * 30, "max_tokens": 12, "ignore_eos": True}
    for _ in range(2):
        assert server.post("/v1/completions", body).status_code == 200
    single = server.post("/v1/completions", {**body, "max_tokens": 1})  # one token: nothing to miss
    assert single.status_code == 200
    now = server.metrics()
    counts = [now[f'bireme:slo_{name}_total{{user="other"}}'] for name in ("requests", "ttft_met", "tpot_met", "met")]
    assert counts == [3, 3, 1, 1] and now["bireme:slo_refused_total"] == 0
    line = r"prefix hits [\d.]+%, goodput [\d.]+ req/s \(\d of \d within ttft=10s,tpot=10ms\)"
    assert wait_for(lambda: re.search(line, server.log))
    assert "slo=ttft=10s,tpot=10ms, slo_policy=queue" in server.log


def test_requests_that_would_be_late_are_refused(start_server: Any) -> None:
    """One row, answers of a second: of many at once some are taken, the rest told when to come again."""
    server = start_server(
        hook={"slo": "ttft=1s", "slo_policy": "refuse", "max_num_seqs": 1, "step_s": 0.03, "stats_interval": 60}
    )
    server.wait_serving()

    def ask(number: int) -> Any:
        return server.post("/v1/completions", {"prompt": f"p{number}", "max_tokens": 30, "ignore_eos": True})

    for number in range(4):  # the pace becomes known
        assert ask(number).status_code == 200
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, range(12)))
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(refused) >= 6 and len(answers) - len(refused) >= 1
    for answer in refused:
        error = answer.json()["error"]
        assert error["code"] == "slo_unattainable" and answer.headers["retry-after"]
        assert re.search(r"first token would come after about [\d.]+ s, and the objective is 1 s", error["message"])
    assert wait_for(lambda: server.metrics()["bireme:slo_refused_total"] == len(refused))
    assert server.metrics()['bireme:user_rejected_total{user="other"}'] == len(refused)


def test_each_request_is_judged_once_and_by_the_rules() -> None:
    goodput = Goodput(Slo(ttft=1.0, tpot=0.1))
    done, gone, failed = FinishReason.STOP, FinishReason.ABORT, FinishReason.ERROR
    for reason, ttft, tpot, age in (
        (done, 0.5, 0.05, 2.0),  # good
        (done, 1.5, 0.05, 2.0),  # late
        (done, 0.5, 0.2, 9.0),  # slow
        (done, 0.5, None, 0.5),  # one token: good
        (failed, 0.5, 0.05, 2.0),  # met nothing
        (gone, None, None, 0.5),  # left in time: not judged
        (gone, 0.5, 0.05, 0.9),  # left while it went well: not judged
        (gone, None, None, 3.0),  # left because nothing came
        (done, None, None, 3.0),  # an embedding: no token to be in time
    ):
        goodput.judge("a", reason, ttft, tpot, age)
    [(_, one)] = goodput.users()
    assert (one.judged, one.ttft, one.tpot, one.both) == (6, 3, 3, 2)
    assert goodput.total == (2, 6)
    assert goodput_text(goodput.slo, (2, 6), (1, 2), 2.0) == ", goodput 0.50 req/s (1 of 4 within ttft=1s,tpot=100ms)"
    idle = Goodput(None)
    idle.judge("a", done, 0.5, 0.05, 1.0)
    assert not idle.users() and goodput_text(None, (0, 0), (0, 0), 1.0) == ""
