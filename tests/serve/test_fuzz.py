"""The HTTP interface against its own description, with generated requests over real sockets."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

import millstream as ms
from millstream.testing import Driver
from tests.serve.conftest import Serve
from tests.serve.writing import Put, Writer


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory, serve: Serve) -> Any:
    """A server with some slates, by its description."""
    writer = Writer(tmp_path_factory.mktemp("fuzzed"))
    writer.commit(*(Put(key, {"n": 1}) for key in ["a", "a/b", "", 0, None, True, ("a", 1)]))
    return schemathesis.openapi.from_url(f"{serve(writer.path).base_url}/openapi.json")


PATHS = ["/metrics", "/slates", "/slates/{updater}", "/slates/{updater}/{key}", "/status"]


WORDS = r"""
id s d nope 1 -1 'a' NULL TRUE ( ) + - * / % = <> < > <= >= AND OR NOT IN BETWEEN IS LIKE CASE WHEN
THEN ELSE END CAST AS INT , . upper( length( year( TIMESTAMP DATE INTERVAL rlike replace( SELECT
FROM rows EXISTS 1e309 99999999999999999999 x'00' `id` " ; --
"""
ROWS = ["/views", "/views/{view}"]
NEVER_ENDING = ["/events", "/views/{view}/events"]


CASES = [(path, GenerationMode.POSITIVE) for path in PATHS]
CASES += [("/slates/{updater}", GenerationMode.NEGATIVE)]  # nothing can be wrong elsewhere


@pytest.mark.parametrize(("path", "mode"), CASES, ids=str)
def test_answers_are_as_described(described: Any, path: str, mode: GenerationMode) -> None:
    operation = described[path]["GET"]

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=15,
        derandomize=True,
        database=None,
    )
    def ask(case: Any) -> None:
        names = case.path_parameters or {}
        for updater in {names.get("updater"), names.get("updater") and "counts"}:
            if updater is not None:
                names["updater"] = updater
            answer = case.call(timeout=60)
            assert answer.status_code < 500
            case.validate_response(answer)

    ask()


def test_everything_that_can_be_asked_is_described(described: Any) -> None:
    every = [*PATHS, *ROWS, *NEVER_ENDING]
    assert sorted(described.raw_schema["paths"]) == sorted(every)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory, serve: Serve) -> Any:
    """A server with a view, by its description."""
    path, flow = tmp_path_factory.mktemp("views") / "ck", ms.Flow("fuzzed")
    flow.sql(
        "CREATE STREAM t (id INT, s STRING, d DOUBLE, PRIMARY KEY (id)) "
        "WITH (source = 'http', port = 8401); CREATE STREAMED VIEW rows AS SELECT * FROM t"
    )
    with Driver(flow, checkpoint=path) as driver:
        some = [{"id": n, "s": chr(n), "d": n / 7} for n in range(200)]
        driver.push("t_records", [*some, {"id": 500, "s": None, "d": float("nan")}]).step()
    return schemathesis.openapi.from_url(f"{serve(path).base_url}/openapi.json")


@pytest.mark.parametrize("mode", list(GenerationMode), ids=str)
def test_rows_are_as_described(shown: Any, mode: GenerationMode) -> None:
    """Conditions among them that are nonsense, or none: never an answer of 500."""
    operation = shown["/views/{view}"]["GET"]
    words = st.sampled_from(WORDS.split())

    @given(case=operation.as_strategy(generation_mode=mode), text=st.lists(words, max_size=9))
    @settings(
        max_examples=20,
        derandomize=True,
        database=None,
    )
    def ask(case: Any, text: list[str]) -> None:
        if mode == GenerationMode.NEGATIVE:
            case.validate_response(case.call(timeout=60))
            return
        case.path_parameters["view"] = "rows"
        case.query = {"where": " ".join(text)}
        answer = case.call(timeout=60)
        assert answer.status_code in (200, 400)
        assert ("rows" if answer.status_code == 200 else "error") in answer.json()

    ask()


def test_views_are_as_described(shown: Any) -> None:
    answer = shown["/views"]["GET"].Case().call(timeout=60)
    assert answer.json()["views"] == [
        {
            "name": "rows",
            "columns": [
                {"name": name, "type": kind}
                for name, kind in (("id", "int"), ("s", "string"), ("d", "double"))
            ],
            "rows": 201,
        }
    ]
