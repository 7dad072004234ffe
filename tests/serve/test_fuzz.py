"""The HTTP interface against its own description, with generated requests over real sockets."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode

from tests.serve.conftest import Serve
from tests.serve.writing import Put, Writer


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory, serve: Serve) -> Any:
    """A server with some slates, by its description."""
    writer = Writer(tmp_path_factory.mktemp("fuzzed"))
    writer.commit(*(Put(key, {"n": 1}) for key in ["a", "a/b", "", 0, None, True, ("a", 1)]))
    return schemathesis.openapi.from_url(f"{serve(writer.path).base_url}/openapi.json")


PATHS = ["/metrics", "/slates", "/slates/{updater}", "/slates/{updater}/{key}", "/status"]


CASES = [(path, GenerationMode.POSITIVE) for path in PATHS]  # /events never ends
CASES += [("/slates/{updater}", GenerationMode.NEGATIVE)]  # nothing can be wrong elsewhere


@pytest.mark.parametrize(("path", "mode"), CASES, ids=str)
def test_answers_are_as_described(described: Any, path: str, mode: GenerationMode) -> None:
    operation = described[path]["GET"]

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=40,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Any) -> None:
        names = case.path_parameters or {}
        for updater in {names.get("updater"), names.get("updater") and "counts"}:
            if updater is not None:
                names["updater"] = updater
            answer = case.call(timeout=10)
            assert answer.status_code < 500
            case.validate_response(answer)

    ask()


def test_everything_that_can_be_asked_is_described(described: Any) -> None:
    assert sorted(described.raw_schema["paths"]) == sorted([*PATHS, "/events"])
